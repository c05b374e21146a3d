//! The list of connections, and `CLIENT`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, atomic::Ordering},
};

use super::{
    client_filter::{ClientFilter, ClientKind},
    connected_client::ConnectedClient,
    lock,
    waits::Unblocking,
};
use crate::{Error, Reply, number::integer};

/// The longest name of a client or of its library, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// The connections of a replica.
#[derive(Debug, Default)]
pub(super) struct Clients(Mutex<BTreeMap<u64, Arc<ConnectedClient>>>);

impl Clients {
    /// The number of connections.
    pub(super) fn count(&self) -> usize {
        lock(&self.0).len()
    }

    /// The number of connections that listen to channels.
    pub(super) fn count_listeners(&self) -> usize {
        lock(&self.0).values().filter(|client| client.is_listener()).count()
    }

    /// The number of connections whose request waits for an element.
    pub(super) fn count_waiting(&self) -> usize {
        lock(&self.0).values().filter(|client| client.waits.is_set()).count()
    }

    /// Adds a client to the list, until it leaves.
    pub(super) fn enter(&self, client: ConnectedClient) -> Arc<ConnectedClient> {
        let client = Arc::new(client);
        lock(&self.0).insert(client.id, Arc::clone(&client));
        client
    }

    pub(super) fn leave(&self, id: u64) {
        lock(&self.0).remove(&id);
    }

    /// Ends the connections that listen to channels. Returns their number.
    pub(super) fn dismiss_listeners(&self) -> usize {
        let clients = lock(&self.0);
        let listeners = clients.values().filter(|client| client.is_listener() && !client.is_leaving());
        listeners.inspect(|client| client.leave()).count()
    }

    /// Ends all connections, each once its requests so far are answered. Returns their number.
    pub(super) fn dismiss_all(&self) -> usize {
        let clients = lock(&self.0);
        clients.values().filter(|client| !client.is_leaving()).for_each(|client| client.leave());
        clients.len()
    }

    /// Notes that a second has passed. Ends the connections without traffic for `timeout` seconds, unless they listen
    /// to channels or to requests, or wait for an element.
    pub(super) fn count_second(&self, timeout: Option<u64>) {
        for client in lock(&self.0).values() {
            let idle = match client.is_active.swap(false, Ordering::Relaxed) {
                true => 0,
                false => client.idle_seconds.load(Ordering::Relaxed) + 1,
            };
            client.idle_seconds.store(idle, Ordering::Relaxed);
            let is_quiet = client.is_sent_more() || client.waits.is_set();
            if timeout.is_some_and(|timeout| idle > timeout) && !is_quiet {
                tracing::debug!(client = client.id, peer = %client.peer, "closing an idle connection");
                client.kill();
            }
        }
    }

    /// Wakes the tasks of all connections.
    pub(super) fn wake_all(&self) {
        lock(&self.0).values().for_each(|client| client.bell.ring());
    }

    /// Answers `CLIENT ...`, of at least two words.
    pub(super) fn answer(&self, client: &ConnectedClient, words: &[&[u8]]) -> Result<Reply, Error> {
        let name = words[1].to_ascii_lowercase();
        let arguments = &words[2..];
        match (&*name, arguments) {
            (b"id", []) => Ok(Reply::Integer(client.id as i64)),
            (b"getname", []) => Ok(match &*client.details().name {
                "" => Reply::Null,
                name => Reply::bytes(name),
            }),
            (b"setname", [name]) => {
                client.details().name = valid_name(name)?;
                Ok(Reply::OK)
            }
            (b"setinfo", [attribute, value]) => set_info(client, attribute, value),
            (b"info", []) => Ok(Reply::Verbatim(client.line() + "\n")),
            (b"list", filter) => self.list(filter),
            (b"kill", filter @ [_, ..]) => self.kill(client, filter),
            (b"unblock", [id]) => self.unblock(id, Unblocking::Timeout),
            (b"unblock", [id, how]) => match &*how.to_ascii_lowercase() {
                b"timeout" => self.unblock(id, Unblocking::Timeout),
                b"error" => self.unblock(id, Unblocking::Error),
                _ => Err(Error::fixed("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")),
            },
            (b"no-evict" | b"no-touch", [switch]) => is_on(switch).map(|_| Reply::OK),
            (b"reply", [switch]) if switch.eq_ignore_ascii_case(b"on") => Ok(Reply::OK),
            (b"reply", [_]) => Err(Error::fixed("ERR replies can't be switched off here")),
            (b"tracking", [switch, ..]) => match is_on(switch)? {
                false => Ok(Reply::OK),
                true => Err(Error::fixed("ERR there is no client-side caching here")),
            },
            (b"help", []) => Ok(help()),
            (
                b"id" | b"getname" | b"setname" | b"setinfo" | b"info" | b"kill" | b"no-evict" | b"no-touch" | b"reply"
                | b"tracking" | b"unblock" | b"help",
                _,
            ) => Err(Error::arity(&format!("client|{}", String::from_utf8_lossy(&name)))),
            _ => Err(Error::unknown_subcommand("CLIENT", words[1])),
        }
    }

    /// Ends the wait of a client's request.
    fn unblock(&self, id: &[u8], how: Unblocking) -> Result<Reply, Error> {
        let id = integer(id).ok_or(Error::NOT_AN_INTEGER)?;
        let client = u64::try_from(id).ok().and_then(|id| lock(&self.0).get(&id).cloned());
        let is_ended = client.filter(|client| client.waits.unblock(how)).map(|client| client.bell.ring()).is_some();
        Ok(Reply::whether(is_ended))
    }

    fn list(&self, filter: &[&[u8]]) -> Result<Reply, Error> {
        let clients = lock(&self.0);
        let mut text = String::new();
        let mut add = |client: &ConnectedClient| {
            text.push_str(&client.line());
            text.push('\n');
        };
        match filter {
            [] => clients.values().for_each(|client| add(client)),
            [by, kind] if by.eq_ignore_ascii_case(b"type") => {
                let kind = ClientKind::read(kind)?;
                clients.values().filter(|client| kind.is_of(client)).for_each(|client| add(client));
            }
            [by, ids @ ..] if by.eq_ignore_ascii_case(b"id") && !ids.is_empty() => {
                for id in ids {
                    let id = integer(id).filter(|&id| id > 0).ok_or(Error::fixed("ERR Invalid client ID"))?;
                    clients.get(&(id as u64)).into_iter().for_each(|client| add(client));
                }
            }
            _ => return Err(Error::SYNTAX),
        }
        Ok(Reply::Verbatim(text))
    }

    fn kill(&self, own: &ConnectedClient, filter: &[&[u8]]) -> Result<Reply, Error> {
        if let [address] = filter {
            let clients = lock(&self.0);
            let found = clients.values().find(|client| client.peer.to_string().as_bytes() == *address);
            end(found.ok_or(Error::fixed("ERR No such client"))?, own);
            return Ok(Reply::OK);
        }
        let (pairs, []) = filter.as_chunks::<2>() else { return Err(Error::SYNTAX) };
        let mut filter = ClientFilter { skip_own: true, ..ClientFilter::default() };
        for [by, value] in pairs {
            match &*by.to_ascii_lowercase() {
                b"id" => {
                    let id = integer(value).filter(|&id| id > 0);
                    let error = Error::fixed("ERR client-id should be greater than 0");
                    filter.id = Some(id.ok_or(error)? as u64);
                }
                b"addr" => filter.peer = Some(value.to_vec()),
                b"laddr" => filter.here = Some(value.to_vec()),
                b"type" => filter.kind = Some(ClientKind::read(value)?),
                b"user" if *value == b"default" => {}
                b"user" => {
                    let user = String::from_utf8_lossy(value);
                    return Err(Error::new(format!("ERR No such user '{user}'")));
                }
                b"skipme" => {
                    filter.skip_own = match &*value.to_ascii_lowercase() {
                        b"yes" => true,
                        b"no" => false,
                        _ => return Err(Error::SYNTAX),
                    };
                }
                _ => return Err(Error::SYNTAX),
            }
        }
        let clients = lock(&self.0);
        let chosen = clients.values().filter(|client| filter.has(client) && !(filter.skip_own && client.id == own.id));
        Ok(Reply::count(chosen.inspect(|client| end(client, own)).count()))
    }
}

/// Ends a connection; the client's own only after the answer.
fn end(client: &ConnectedClient, own: &ConnectedClient) {
    if client.id == own.id { client.leave() } else { client.kill() }
}

/// Checks a name that a client gives itself.
pub(super) fn valid_name(name: &[u8]) -> Result<String, Error> {
    check_length(name)?;
    if name.iter().all(u8::is_ascii_graphic) {
        return Ok(String::from_utf8_lossy(name).into_owned());
    }
    Err(Error::fixed("ERR Client names cannot contain spaces, newlines or special characters."))
}

/// Checks a word that a client says about itself. It is listed for other clients, so it must not be long.
fn check_length(word: &[u8]) -> Result<(), Error> {
    if word.len() <= MAX_NAME_BYTES {
        return Ok(());
    }
    Err(Error::new(format!("ERR names of clients and libraries have at most {MAX_NAME_BYTES} bytes")))
}

fn set_info(client: &ConnectedClient, attribute: &[u8], value: &[u8]) -> Result<Reply, Error> {
    let attribute = attribute.to_ascii_lowercase();
    let named = String::from_utf8_lossy(&attribute);
    if !matches!(&*named, "lib-name" | "lib-ver") {
        return Err(Error::new(format!("ERR Unrecognized option '{named}'")));
    }
    if !value.iter().all(u8::is_ascii_graphic) {
        let text = format!("ERR {named} cannot contain spaces, newlines or special characters.");
        return Err(Error::new(text));
    }
    check_length(value)?;
    let value = String::from_utf8_lossy(value).into_owned();
    let mut details = client.details();
    *if named == "lib-name" { &mut details.library } else { &mut details.library_version } = value;
    Ok(Reply::OK)
}

fn is_on(switch: &[u8]) -> Result<bool, Error> {
    match &*switch.to_ascii_lowercase() {
        b"on" => Ok(true),
        b"off" => Ok(false),
        _ => Err(Error::SYNTAX),
    }
}

fn help() -> Reply {
    let lines = [
        "CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "GETNAME, ID, INFO: tell of this connection.",
        "KILL <ip:port> | <option> <value> ...: ends connections; options are ADDR, ID, LADDR, SKIPME, TYPE, USER.",
        "LIST [TYPE <type> | ID <id> ...]: tells of connections.",
        "NO-EVICT, NO-TOUCH (ON|OFF): accepted, without a meaning here.",
        "PAUSE <milliseconds> [WRITE|ALL], UNPAUSE: let the requests of this server's clients wait.",
        "SETINFO <option> <value>, SETNAME <name>: note what the connection says of itself.",
        "UNBLOCK <id> [TIMEOUT|ERROR]: ends the wait of a request for an element.",
    ];
    Reply::Array(lines.map(Reply::status).into())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::{
        super::wake::{Bell, Bells},
        *,
    };

    fn clients() -> (Clients, [Arc<ConnectedClient>; 2]) {
        let clients = Clients::default();
        let here = "127.0.0.1:7001".parse().expect("it is an address");
        let enter = |id: u64| {
            let peer = SocketAddr::from(([127, 0, 0, 1], 50_000 + id as u16));
            clients.enter(ConnectedClient::new(id, peer, here, Bell::new(&Arc::new(Bells::default()))))
        };
        let both = [enter(1), enter(2)];
        (clients, both)
    }

    fn ask(clients: &Clients, client: &ConnectedClient, line: &str) -> Result<Reply, Error> {
        let words: Vec<_> = line.split(' ').map(str::as_bytes).collect();
        clients.answer(client, &words)
    }

    #[test]
    fn a_client_ends_others_and_itself_only_if_it_says_so() {
        let (clients, [one, two]) = clients();
        assert_eq!(ask(&clients, &one, "client kill type normal"), Ok(Reply::Integer(1)));
        assert!(two.is_killed() && !one.is_killed());
        assert_eq!(ask(&clients, &one, "client kill addr 127.0.0.1:50001 skipme no"), Ok(Reply::Integer(1)));
        assert!(one.is_leaving() && !one.is_killed(), "it has its answer first");
        assert_eq!(ask(&clients, &one, "client kill id 3"), Ok(Reply::Integer(0)));
        assert_eq!(ask(&clients, &one, "client kill 127.0.0.1:50002"), Ok(Reply::OK));
    }

    #[test]
    fn what_a_client_says_of_itself_is_listed() {
        let (clients, [one, _]) = clients();
        for line in ["client setname me", "client setinfo lib-name lib"] {
            assert_eq!(ask(&clients, &one, line), Ok(Reply::OK));
        }
        let Ok(Reply::Verbatim(list)) = ask(&clients, &one, "client list") else { panic!("it is a text") };
        let (first, second) = list.split_once('\n').expect("there are two lines");
        assert!(first.starts_with("id=1 addr=127.0.0.1:50001 laddr=127.0.0.1:7001 fd=0 name=me "), "{first}");
        assert!(first.ends_with(" lib-name=lib lib-ver="), "{first}");
        assert!(second.starts_with("id=2 "), "{second}");
        let long = "x".repeat(MAX_NAME_BYTES + 1);
        for line in ["client setname ", "client setinfo lib-ver "] {
            assert!(ask(&clients, &one, &format!("{line}{long}")).is_err());
        }
    }

    #[test]
    fn who_listens_is_dismissed_once() {
        let (clients, [one, two]) = clients();
        two.details().patterns = 1;
        assert_eq!([clients.dismiss_listeners(), clients.dismiss_listeners()], [1, 0]);
        assert!(two.is_leaving() && !one.is_leaving());
    }

    #[test]
    fn only_who_neither_sends_nor_reads_for_longer_than_the_timeout_is_idle() {
        let (clients, [one, two]) = clients();
        two.details().channels = 1;
        for _ in 0..3 {
            clients.count_second(Some(2));
            assert!(!one.is_killed());
        }
        one.touch();
        for _ in 0..3 {
            clients.count_second(Some(2));
            assert!(!one.is_killed());
        }
        clients.count_second(Some(2));
        assert!(one.is_killed());
        assert!(!two.is_killed(), "it listens");
    }
}
