//! Whether a node can run as it is configured.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, ErrorKind},
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use squall::{
    Carrier, Config, ConfigError, FabricError, NodeId,
    config::{Address, KeyFiles, Security, hypervisor},
    keys::describe,
    log_keys,
};

use super::finding::{Area, Level};

/// The time that a member may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A certificate that is good for fewer days more should be renewed.
const SOON_DAYS: i64 = 30;

pub(super) fn look(config: Result<Config, ConfigError>) -> Area {
    let mut area = Area::new("configuration", "");
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            area.push(Level::Bad, error.to_string(), None);
            return area;
        }
    };
    let members: Vec<String> = config.members().iter().map(|member| member.0.to_string()).collect();
    area.good(format!(
        "{} of cluster {:?}, members {}: over {}",
        config.id(),
        config.cluster(),
        members.join(", "),
        config.carrier()
    ));
    look_at_signing(&mut area, &config);
    look_at_reads(&mut area, &config);
    if config.carrier() == Carrier::Shm {
        area.good("all members are on this host, so no port is opened and no keys are used");
        return area;
    }
    #[cfg(feature = "verbs")]
    if config.carrier() == Carrier::Verbs {
        super::verbs::look_at_choice(&mut area, "the node", &config);
    }
    look_at_keys(&mut area, &config);
    look_at_port(&mut area, &config);
    look_at_members(&mut area, &config);
    area
}

/// Whether the node reads under leases.
fn look_at_reads(area: &mut Area, config: &Config) {
    let lease = config.read_lease().as_millis();
    match (lease, config.confirms_reads()) {
        (0, _) => area.good("each read is confirmed by the other members (read_lease_ms = 0)"),
        (_, Some(why)) => area.good(why),
        (_, None) if config.carrier() != Carrier::Shm && hypervisor().is_some() => area.warn(
            format!("this is a virtual machine with read_lease_ms = {lease}: if it is paused or moved, a read may miss the newest writes"),
            "if that can happen, leave read_lease_ms out, so that each read is confirmed here",
        ),
        (_, None) => area.good(format!("reads are local under leases of {lease} ms")),
    }
}

/// Whether the node can sign its logs.
fn look_at_signing(area: &mut Area, config: &Config) {
    match config.sign_log().map(|path| (path, log_keys::signing_key(path))) {
        None => {}
        Some((path, Ok(key))) => {
            area.good(format!(
                "{} is the key with which it signs its logs; checked with {}",
                path.display(),
                key.public_key()
            ));
        }
        Some((_, Err(error))) => area.push(Level::Bad, error.to_string(), None),
    }
}

fn look_at_keys(area: &mut Area, config: &Config) {
    match config.security() {
        Security::LoopbackOnly => {
            area.good("without keys, only processes of this user on this host can reach the node");
        }
        Security::None => area.warn(
            "security = \"none\": every program that reaches the node's port can join, read and write",
            "unless only this cluster is on that network, make keys with `squall keys`",
        ),
        Security::Tls(files) => match config.check_keys() {
            Ok(()) => {
                area.good(format!(
                    "{} is this node's certificate, of the CA in {}",
                    files.certificate.display(),
                    files.ca.display()
                ));
                look_at_dates(area, files);
            }
            Err(error) => area.push(Level::Bad, error.to_string(), None),
        },
    }
}

fn look_at_dates(area: &mut Area, files: &KeyFiles) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().cast_signed());
    let renew = "renew it: `squall keys add --force`, and copy the two files to the node, which notices";
    let replace =
        "make a new one in another directory, and let both be trusted while keys are replaced: see «Keys and security»";
    for (path, remedy) in [(&files.certificate, renew), (&files.ca, replace)] {
        let Some(until) = fs::read_to_string(path)
            .ok()
            .and_then(|text| describe(&text).ok()?.iter().map(|certificate| certificate.until).min())
        else {
            continue;
        };
        let days = (until.unix_timestamp() - now) / 86_400;
        let text = format!("{} is good until {}, {days} days more", path.display(), until.date());
        if days < SOON_DAYS {
            area.warn(text, remedy);
        } else {
            area.good(text);
        }
    }
}

/// Whether the node can listen.
fn look_at_port(area: &mut Area, config: &Config) {
    if config.listen().is_empty() {
        area.good("it listens nowhere, and dials all others");
    }
    for address in config.listen() {
        let bound =
            resolve(address).and_then(|all| all.into_iter().map(TcpListener::bind).collect::<io::Result<Vec<_>>>());
        match bound {
            Ok(_) => area.good(format!("it can listen at {address}")),
            Err(error) => match error.kind() {
                ErrorKind::AddrInUse => area.warn(
                    format!("{address} is in use"),
                    format!("perhaps the node runs already; `ss -ltnp sport = :{}` names the program", address.port()),
                ),
                ErrorKind::AddrNotAvailable => area.bad(
                    format!("{address} is no address of this machine"),
                    "`ip address` lists them; if others reach this machine at another one (NAT, containers), say where to listen: \
                     `listen = \"0.0.0.0:PORT\"`",
                ),
                ErrorKind::PermissionDenied => {
                    area.bad(format!("this user may not listen at {address}"), "take a port from 1024 up");
                }
                _ => area.bad(format!("it can't listen at {address}: {error}"), "correct `listen`, or this node's address"),
            },
        }
    }
}

/// The members that answer now. A member that does not may simply not run.
fn look_at_members(area: &mut Area, config: &Config) {
    let others = config.members().iter().copied().filter(|&member| member != config.id());
    let tried: Vec<(NodeId, Address, thread::JoinHandle<io::Result<()>>)> = others
        .flat_map(|member| config.addresses(member).iter().map(move |address| (member, address.clone())))
        .map(|(member, address)| {
            let dialed = address.clone();
            (member, address, thread::spawn(move || dial(&dialed)))
        })
        .collect();
    let mut reached = BTreeSet::new();
    for (member, address, thread) in tried {
        let Err(error) = thread.join().expect("a thread that dials does not panic") else {
            area.good(format!("{address}, of {member}, can be reached"));
            reached.insert(member);
            continue;
        };
        match error.kind() {
            ErrorKind::ConnectionRefused => area.warn(
                format!("no program listens at {address}, of {member}"),
                "it does not run now, or listens elsewhere",
            ),
            ErrorKind::TimedOut => area.warn(
                format!("{member} does not answer at {address} within {PATIENCE:?}"),
                "its host is down, or a firewall on the way drops what goes to this port",
            ),
            ErrorKind::NotFound => area.bad(
                format!("{address}, of {member}, can't be found: {error}"),
                "correct the name, or /etc/hosts, or give the IP address",
            ),
            _ => {
                area.warn(
                    format!("{member} can't be reached at {address}: {error}"),
                    "check the route: `ip route get`",
                );
            }
        }
    }
    for member in reached {
        match config.greet(member, PATIENCE) {
            Ok(()) => area.good(format!("{member} runs, and takes this node for what it is")),
            // This node's keys have been checked before.
            Err(FabricError::Identity(_) | FabricError::OnlyVotes { .. } | FabricError::OtherOwner { .. } | FabricError::OtherCluster { .. }) => {}
            Err(error) => area.warn(
                format!("what can be reached there does not take this node for {}: {error}", config.id()),
                "compare its configuration, its keys and the version of its program with this one's; or another program has \
                 its port",
            ),
        }
    }
}

fn resolve(address: &Address) -> io::Result<Vec<SocketAddr>> {
    let all = (&*address.host(), address.port()).to_socket_addrs();
    // The resolver's errors have no kind.
    all.map(Iterator::collect).map_err(|error| io::Error::new(ErrorKind::NotFound, error))
}

/// Tries all addresses that a name stands for.
fn dial(address: &Address) -> io::Result<()> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for at in resolve(address)? {
        match TcpStream::connect_timeout(&at, PATIENCE) {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use squall::{
        config::Backend,
        keys::{Authority, Files, LogKeys},
    };

    use super::*;

    /// A listener at a port of its own, and its address.
    fn listener() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        (listener, at)
    }

    /// A cluster of two, as its first node.
    fn config(own: &str, other: &str, security: Security) -> Config {
        let builder = Config::builder("bank", 1).addresses(1, [own]).addresses(2, [other]).backend(Backend::Tcp);
        builder.security(security).build().unwrap()
    }

    fn found(area: &Area, level: Level, word: &str) -> bool {
        area.findings.iter().any(|finding| finding.level == level && finding.text.contains(word))
    }

    #[test]
    fn a_member_that_runs_answers_and_one_that_does_not_is_named() {
        let (_other, at) = listener();
        let (free, own) = listener();
        drop(free);
        let area = look(Ok(config(&own, &at, Security::LoopbackOnly)));
        assert!(area.usable(), "{:?}", area.findings);
        assert!(found(&area, Level::Good, "it can listen at"));
        assert!(found(&area, Level::Warning, "does not take this node for node 1"), "it is only a listener");
        assert!(found(&area, Level::Good, &format!("{at}, of node 2, can be reached")));
        let area = look(Ok(config(&at, &own, Security::LoopbackOnly)));
        assert!(found(&area, Level::Warning, "is in use"), "{:?}", area.findings);
        assert!(found(&area, Level::Warning, "no program listens at"));
        assert!(area.usable(), "others may start later");
    }

    #[test]
    fn an_address_of_another_machine_can_t_be_listened_at() {
        // TEST-NET-1 (RFC 5737).
        let area = look(Ok(config("192.0.2.1:7700", "127.0.0.1:1", Security::None)));
        assert!(!area.usable() && found(&area, Level::Bad, "192.0.2.1:7700 is no address of this machine"));
        assert!(found(&area, Level::Warning, "security = \"none\""));
    }

    #[test]
    fn a_key_for_logs_must_be_one() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::in_directory(directory.path());
        LogKeys::create(NodeId(1)).unwrap().save(&files, true).unwrap();
        let look_with = |key: PathBuf| {
            let config = Config::builder("bank", 1).members([1]).storage("state").sign_log(key);
            look(Ok(config.build().unwrap()))
        };
        let (own, other) = (look_with(files.log_key(NodeId(1))), look_with(files.log_public_key(NodeId(1))));
        assert!(found(&own, Level::Good, "signs its logs"), "{:?}", own.findings);
        assert!(!other.usable() && found(&other, Level::Bad, "can be read by other users"), "{:?}", other.findings);
    }

    #[test]
    fn keys_must_be_the_node_s_own() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::in_directory(directory.path());
        let authority = Authority::create("bank").unwrap();
        authority.save(&files, true).unwrap();
        for node in [1, 2] {
            authority.issue(NodeId(node), 20).unwrap().save(&files, true).unwrap();
        }
        let look_as = |node| look(Ok(config("127.0.0.1:1", "127.0.0.1:2", Security::Tls(files.of(NodeId(node))))));
        let (own, other) = (look_as(1), look_as(2));
        assert!(found(&own, Level::Good, "is this node's certificate"), "{:?}", own.findings);
        assert!(found(&own, Level::Warning, " days more"), "{:?}", own.findings);
        assert!(!other.usable() && found(&other, Level::Bad, "is the certificate of node 2, but this is node 1"));
    }
}
