//! A front end between hosts: over TCP with TLS, while the replicas that it talks to die and come back.

use std::{fs, net::SocketAddr, thread};

use rustix::process::Signal;
use squall::{
    NodeId,
    keys::{Authority, ClientRights, Files, Principal},
};
use tempfile::TempDir;

use crate::{
    load::{Load, Seen},
    machine::{free_ports, one_at_a_time, until},
    process::Replica,
    target::until_all_hold_the_same,
};

const CLIENTS: usize = 4;

/// The name of the front end's certificate.
const NAME: &str = "front-end";

/// The directory with the configuration and the keys of three replicas and a front end.
struct Secured {
    directory: TempDir,
    base: u16,
}

impl Secured {
    fn new() -> Secured {
        let (name, base) = (format!("front-end-{}", std::process::id()), free_ports());
        let directory = tempfile::tempdir().expect("a directory can be made");
        let files = Files::in_directory(directory.path());
        let ca = Authority::create(&name).expect("a CA");
        ca.save(&files, false).expect("the directory is new");
        let mut text = format!("cluster = {name:?}\n[addresses]\n");
        for id in 1..=3 {
            ca.issue(NodeId(id), 1).and_then(|keys| keys.save(&files, false)).expect("keys");
            text += &format!("{id} = \"127.0.0.1:{}\"\n", u32::from(base) + 10 + id);
        }
        let client = Principal::Client(NAME.to_owned(), ClientRights::default());
        ca.issue(client, 1).and_then(|keys| keys.save(&files, false)).expect("keys");
        text += "[fabric]\nbackend = \"tcp\"\n[groups.kv]\nbulk_reserve = \"64MiB\"\n";
        text += "[security]\nca = \"ca.pem\"\ncertificate = \"node-{id}.pem\"\nkey = \"node-{id}.key\"\n";
        fs::write(directory.path().join("kv.toml"), text).expect("there is room");
        Secured { directory, base }
    }

    fn start(&self, what: &[&str]) -> Replica {
        let file = self.directory.path().join("kv.toml");
        Replica::serving(&[what, &["--config", file.to_str().expect("a readable path")]].concat())
    }

    fn replica(&self, id: u32) -> Replica {
        self.start(&["--id", &id.to_string(), "--port", &self.base.to_string()])
    }
}

#[test]
fn its_clients_do_not_notice_when_the_replica_that_it_talks_to_dies() {
    let _turn = one_at_a_time();
    let cluster = Secured::new();
    let mut replicas: Vec<Replica> = thread::scope(|scope| {
        let starting = [1, 2, 3].map(|id| {
            scope.spawn({
                let cluster = &cluster;
                move || cluster.replica(id)
            })
        });
        starting.into_iter().map(|replica| replica.join().expect("it starts")).collect()
    });
    let listen = format!("127.0.0.1:{}", cluster.base + 19);
    let keys = cluster.directory.path().to_str().expect("a readable path");
    let front_end = cluster.start(&["front-end", "--keys", keys, "--client", NAME, "--listen", &listen]);
    let addresses: [SocketAddr; 1] = [front_end.address()];
    let load = Load::new(CLIENTS);
    let seen: Vec<Seen> = thread::scope(|scope| {
        let clients = load.start(scope, &addresses);
        load.until_more("the clients have begun", 20);
        // The replica that the front end talks to is among them.
        for id in 1..=3 {
            let replica = &mut replicas[id as usize - 1];
            replica.signal(Signal::KILL);
            load.until_more("the clients go on", 20);
            *replica = cluster.replica(id);
            until("it is a full member again", || {
                let senders = replicas[id as usize - 1].info("view_senders").unwrap_or_default();
                senders.split(',').count() == 3
            });
        }
        load.until_more("the clients go on with all replicas", 20);
        load.stop();
        clients.into_iter().map(|client| client.join().expect("no client has seen anything wrong")).collect()
    });
    assert!(seen.iter().all(|seen| seen.unknown + seen.refused == 0), "a request failed: {seen:?}");
    let mut client = front_end.connect();
    for Seen { key, acknowledged, .. } in &seen {
        assert_eq!(client.ask(&["GET", key]), acknowledged.to_string(), "each was applied once");
    }
    until_all_hold_the_same(replicas.iter().map(Replica::connect).collect());
    assert!(front_end.stop().is_some_and(|status| status.success()));
}
