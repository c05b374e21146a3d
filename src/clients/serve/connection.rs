//! The connection of one client: a thread reads from it, another writes to it.
//!
//! There are two threads because streams block (see [`squall_services`]), and because a request that waits for
//! room must not hold up the answers to requests before it.

use std::{
    io::{self, BufReader, BufWriter, Write},
    sync::Arc,
    thread,
    time::Duration,
};

use squall_fabric::{
    Time,
    net::{Call, CallerAccess},
};
use squall_services::{ControlStream, StreamWriter, frame::FrameError};

use super::{
    backend::Query,
    budget::Permit,
    outbox::{MAX_QUERIES, Outbox, too_many_queries},
    server::{ServedEntry, Server},
    watching::{AskedWatch, ConnectionWatches},
};
use crate::{
    calls::{
        error::{SubmitError, Unavailable},
        session::{Opening, SessionId, Trailer},
    },
    clients::{
        query::{JsonForm, Transcode},
        wire::{self, Members, ShardName, ToClient, ToNode, VERSION, WatchEnd},
    },
};

/// The most application bytes of a message of a client that has not named its group yet.
const HELLO_BYTES: usize = 0;

/// The answer to a query that takes more memory than its JSON did, for which there is no room.
const NO_ROOM_FOR_QUERY: &str =
    "there is no room for the query now, which is longer than its JSON: ask again, or divide it";

/// The answer to a client that watches in another form than rkyv's.
const NO_WATCHES_IN_JSON: &str = "changes are told in rkyv's form only: watch with a client in Rust";

/// The time after which a client that reads nothing is given up.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// Serves a client until its connection ends.
pub(super) fn converse(server: &Server, stream: ControlStream, outbox: &Arc<Outbox>) -> io::Result<()> {
    let ControlStream { access, reader, writer, .. } = stream;
    writer.set_timeout(Some(WRITE_LIMIT))?;
    let hang_up = writer.hang_up();
    outbox.set_stream(hang_up.clone());
    let of_writer = Arc::clone(outbox);
    thread::Builder::new().name("squall-served".to_owned()).spawn(move || {
        if let Err(error) = write(writer, &of_writer) {
            tracing::debug!(%error, "a client does not listen");
        }
        of_writer.close();
        hang_up.now();
    })?;
    if let Err(error) = listen(server, access, &mut BufReader::new(reader), outbox) {
        tracing::debug!(%error, "a client's connection ended");
    }
    outbox.close();
    Ok(())
}

/// Writes until the outbox is closed and empty.
fn write(to: StreamWriter, outbox: &Outbox) -> Result<(), FrameError> {
    let mut to = BufWriter::new(to);
    while let Some(messages) = outbox.take() {
        messages.into_iter().try_for_each(|message| wire::write(&mut to, &outbox.in_form(message)))?;
        to.flush()?;
    }
    Ok(())
}

fn listen(
    server: &Server,
    access: CallerAccess,
    from: &mut impl io::Read,
    outbox: &Arc<Outbox>,
) -> Result<(), FrameError> {
    let Some(mut connected) = ConnectedClient::enter(server, access, wire::read(from, HELLO_BYTES)?, outbox)? else {
        return Ok(());
    };
    loop {
        // The permit is held until the group has taken the request.
        let reserve = |bytes| server.reserve(bytes, outbox);
        let Some((message, permit)) = wire::read_within(from, connected.entry.options.request_bytes, reserve)? else {
            return Ok(());
        };
        outbox.hear(Time::boot_clock());
        let Some(ForGroup { command, trailer, kind, permit: _permit }) = connected.hear(message, permit)? else {
            continue;
        };
        if !connected.was_sent(kind, connected.entry.backend.send(&command, trailer)) {
            return Ok(());
        }
    }
}

/// A client that was admitted, and its connection.
pub(crate) struct ConnectedClient {
    entry: Arc<ServedEntry>,
    access: CallerAccess,
    outbox: Arc<Outbox>,
    /// The key of the session whose answers go to the client.
    attached: Option<u64>,
    /// The key of the session in which the client listens to this node's answers.
    listens: Option<u64>,
    watches: ConnectionWatches,
}

/// A message of a client for the group.
pub(crate) struct ForGroup {
    command: Vec<u8>,
    trailer: Trailer,
    kind: MessageKind,
    permit: Permit,
}

/// The kind of a client's message, by which a refusal is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MessageKind {
    /// A request with this number.
    Request(u64),
    /// The opening of a session with this key.
    Open(u64),
    /// A message that is not answered.
    Other,
}

impl ConnectedClient {
    /// Admits a client by its first message, or sends it to another member.
    pub(crate) fn enter(
        server: &Server,
        access: CallerAccess,
        hello: ToNode,
        outbox: &Arc<Outbox>,
    ) -> Result<Option<ConnectedClient>, FrameError> {
        let ToNode::Hello { version, group } = hello else {
            return Err(FrameError::Malformed("the first message is no hello".to_owned()));
        };
        let other =
            format!("clients speak version {VERSION} here, not {version}: run one version of squall everywhere");
        let (shard, codec) = ShardName::split_codec(&group);
        let entry = if version == VERSION { server.entry(shard) } else { Err(other) };
        let of = ShardName::parse(shard).map_or(group.as_str(), |(group, _)| group);
        if let Err(denied) = access.check(Call::Query, Some(of)) {
            outbox.push(ToClient::Denied { only_commands: false, why: denied.to_string() });
            return Ok(None);
        }
        let entry = match entry {
            Ok(entry) => entry,
            Err(why) => {
                outbox.push(ToClient::Away { why, members: Members::default() });
                return Ok(None);
            }
        };
        let (is_welcome, watches) = (entry.welcome(codec, outbox), ConnectionWatches::new(&entry.clients));
        let (outbox, attached, listens) = (Arc::clone(outbox), None, None);
        Ok(is_welcome.then_some(ConnectedClient { entry, access, outbox, attached, listens, watches }))
    }

    /// Handles a message of the client. Returns the message for its group, if there is one.
    pub(crate) fn hear(&mut self, message: ToNode, permit: Permit) -> Result<Option<ForGroup>, FrameError> {
        let options = &self.entry.options;
        let is_of_session = matches!(
            message,
            ToNode::Open { .. }
                | ToNode::Resume { .. }
                | ToNode::Request { .. }
                | ToNode::Touch { .. }
                | ToNode::Close { .. }
        );
        if is_of_session && let Err(denied) = self.access.check(Call::Command, Some(&self.entry.name)) {
            self.outbox.push(ToClient::Denied { only_commands: true, why: denied.to_string() });
            return Ok(None);
        }
        let (command, trailer, kind) = match message {
            ToNode::Hello { .. } => return Err(FrameError::Malformed("a second hello".to_owned())),
            ToNode::Open { key } => {
                let (sessions, window, reply_bytes) = (options.max_sessions, options.window, options.reply_bytes);
                let holder = self.outbox.holder().number();
                self.attach(key);
                let opening = Opening { key, sessions, holder, window, reply_bytes };
                (Vec::new(), Trailer::Open(opening), MessageKind::Open(key))
            }
            ToNode::Resume { session: SessionId { key, .. } } => {
                self.attach(key);
                return Ok(None);
            }
            ToNode::Request { session, number, acknowledged, command } => {
                self.entry.count_call();
                let Some(command) =
                    self.received(|form| form.command, command, |why| ToClient::Rejected { number, why })
                else {
                    return Ok(None);
                };
                (command, Trailer::Request { session, number, acknowledged }, MessageKind::Request(number))
            }
            ToNode::Touch { session, acknowledged } => {
                (Vec::new(), Trailer::Touch { session, acknowledged }, MessageKind::Other)
            }
            ToNode::Close { session } => (Vec::new(), Trailer::Close(session), MessageKind::Other),
            ToNode::Listen { session, first } => return self.listen(session, first, permit).map(|()| None),
            ToNode::Query { .. }
            | ToNode::Ping
            | ToNode::Watch { .. }
            | ToNode::More { .. }
            | ToNode::Unwatch { .. } => {
                self.hear_question(message, permit);
                return Ok(None);
            }
        };
        Ok(Some(ForGroup { command, trailer, kind, permit }))
    }

    /// Handles a message that asks this node alone.
    fn hear_question(&mut self, message: ToNode, mut permit: Permit) {
        match message {
            ToNode::Query { number, consistency, query } => {
                self.entry.count_call();
                let told = |why| ToClient::Told { number, answer: Err(why) };
                let Some(query) = self.received(|form| form.query, query, told) else { return };
                let outbox = Arc::clone(&self.outbox);
                if !permit.cover(query.len()) {
                    return outbox.push(told(NO_ROOM_FOR_QUERY.to_owned()));
                }
                if outbox.ask(MAX_QUERIES) {
                    self.entry.backend.query(Query { number, consistency, query, outbox, permit });
                } else {
                    outbox.push(told(too_many_queries()));
                }
            }
            ToNode::Watch { number, .. } if self.outbox.form().is_some() => {
                let why = WatchEnd::Refused(NO_WATCHES_IN_JSON.to_owned());
                self.outbox.push(ToClient::WatchEnded { number, why });
            }
            ToNode::Watch { number, prefix, start, credit } => {
                self.entry.count_call();
                let watch = AskedWatch { number, prefix, start, credit, permit };
                self.watches.begin(&self.entry, &self.outbox, watch);
            }
            ToNode::More { number, credit } => self.watches.more(number, credit),
            ToNode::Unwatch { number } => self.watches.end(number),
            _ => self.outbox.push(ToClient::Pong),
        }
    }

    /// Returns bytes of the client in rkyv's form. Tells the client if they have none, or one that is too long.
    fn received(
        &self,
        transcode: impl FnOnce(&JsonForm) -> Transcode,
        bytes: Vec<u8>,
        refusal: impl FnOnce(String) -> ToClient,
    ) -> Option<Vec<u8>> {
        let Some(form) = self.outbox.form() else { return Some(bytes) };
        let most = self.entry.options.request_bytes;
        let why = match transcode(form)(&bytes) {
            Ok(bytes) if bytes.len() <= most => return Some(bytes),
            Ok(bytes) => {
                format!("it has {} bytes for the group, which takes {most} of a client: divide it", bytes.len())
            }
            Err(why) => why,
        };
        self.outbox.push(refusal(why));
        None
    }

    /// Reports to the client that its message was not sent, if so. Returns whether the client may stay.
    pub(crate) fn was_sent(&self, kind: MessageKind, sent: Result<(), SubmitError>) -> bool {
        let is_short = |error: &SubmitError| {
            matches!(error, SubmitError::Unavailable { why: Unavailable::ShortOfRoom { .. }, .. })
        };
        match (sent, kind) {
            (Ok(()), _) => true,
            // No other member would take it, either.
            (Err(error), MessageKind::Request(number))
                if is_short(&error) || matches!(error, SubmitError::TooLarge { .. }) =>
            {
                self.outbox.push(ToClient::Rejected { number, why: error.to_string() });
                true
            }
            (Err(error), MessageKind::Open(key)) if is_short(&error) => {
                self.outbox.push(ToClient::NotOpened { key, why: error.to_string() });
                true
            }
            // The next one comes soon.
            (Err(error), MessageKind::Other) if is_short(&error) => true,
            // The reason that keeps this member from sending may not apply to another.
            (Err(error), _) => {
                self.outbox.push(ToClient::Away { why: error.to_string(), members: self.entry.members() });
                false
            }
        }
    }

    fn attach(&mut self, key: u64) {
        let clients = &self.entry.clients;
        if let Some(before) = self.attached.replace(key).filter(|&before| before != key) {
            clients.detach(before, &self.outbox);
        }
        clients.attach(key, &self.outbox);
    }

    /// Lets the client listen. It listens before the replica is asked for earlier answers, so that it misses none.
    fn listen(&mut self, session: SessionId, first: u64, permit: Permit) -> Result<(), FrameError> {
        if !self.outbox.ask(MAX_QUERIES) {
            return Err(FrameError::Malformed("it begins to listen too often".to_owned()));
        }
        let clients = &self.entry.clients;
        if self.listens != Some(session.key) {
            if let Some(before) = self.listens.replace(session.key) {
                clients.unlisten(before, &self.outbox);
            }
            clients.listen(session.key, &self.outbox);
        }
        self.entry.backend.answers(session, first, Arc::clone(&self.outbox), permit);
        Ok(())
    }

    /// Sends a message to the group. The result is for [`ConnectedClient::was_sent`].
    #[cfg(feature = "sim")]
    pub(crate) fn send(&self, message: ForGroup) -> Passing {
        let ForGroup { command, trailer, kind, permit } = message;
        Passing { sending: self.entry.backend.sending(&command, trailer), kind, _permit: permit }
    }
}

impl Drop for ConnectedClient {
    fn drop(&mut self) {
        if let Some(key) = self.attached {
            self.entry.clients.detach(key, &self.outbox);
        }
        if let Some(key) = self.listens {
            self.entry.clients.unlisten(key, &self.outbox);
        }
    }
}

/// A message on its way into a group; it may wait for room.
#[cfg(feature = "sim")]
pub(crate) struct Passing {
    pub(crate) sending: crate::calls::submit::Sending,
    pub(crate) kind: MessageKind,
    _permit: Permit,
}
