//! Rolling replacement: each replica is replaced by one with a new id, one at a time, and clients notice nothing.

use std::{net::SocketAddr, thread};

use crate::{
    load::{Load, Seen},
    machine::{free_ports, one_at_a_time, until},
    process::Replica,
    target::until_all_hold_the_same,
    wire::show,
};

const CLIENTS: usize = 4;

#[test]
fn all_replicas_are_replaced_one_by_one_and_no_request_fails() {
    let _turn = one_at_a_time();
    let (cluster, base) = (format!("replace-{}", std::process::id()), free_ports());
    let ports = base.to_string();
    let common = ["--cluster", &cluster, "--port", &ports];
    let replica = |id: u32, more: &[&str]| {
        let id = id.to_string();
        Replica::serving(&[&["--id", &id], &common[..], more].concat())
    };
    let mut replicas: Vec<Replica> = thread::scope(|scope| {
        let starting: Vec<_> = (1..=3).map(|id| scope.spawn(move || replica(id, &[]))).collect();
        starting.into_iter().map(|replica| replica.join().expect("it starts")).collect()
    });
    let listen = format!("127.0.0.1:{}", base + 19);
    let front_end = Replica::serving(&["front-end", "--cluster", &cluster, "--listen", &listen]);
    let addresses: [SocketAddr; 1] = [front_end.address()];
    let load = Load::new(CLIENTS);
    let seen: Vec<Seen> = thread::scope(|scope| {
        let clients = load.start(scope, &addresses);
        load.until_more("the clients have begun", 20);
        for id in 4..=6 {
            let old = replicas.remove(0);
            let mut guest = old.connect();
            assert_eq!(guest.ask(&["SET", "guest", "1"]), "OK");
            let new = replica(id, &["--join", &(id - 1).to_string()]);
            until("the new one is a full member", || {
                let senders = new.info("view_senders").unwrap_or_default();
                senders.split(',').any(|sender| sender == id.to_string())
            });
            let of_guest = scope.spawn(move || {
                loop {
                    match guest.call(&["INCR", "guest"]) {
                        Ok(answer) => assert!(!show(&answer).starts_with('-'), "{}", show(&answer)),
                        // All answers were no errors, and then the connection ended.
                        Err(_) => return,
                    }
                }
            });
            assert!(old.stop().is_some_and(|status| status.success()), "it ends cleanly");
            of_guest.join().expect("nothing was refused");
            replicas.push(new);
            load.until_more("the clients go on", 20);
        }
        load.stop();
        clients.into_iter().map(|client| client.join().expect("no client has seen anything wrong")).collect()
    });
    assert!(seen.iter().all(|seen| seen.unknown + seen.refused == 0), "a request failed: {seen:?}");
    let mut client = front_end.connect();
    for Seen { key, acknowledged, .. } in &seen {
        assert_eq!(client.ask(&["GET", key]), acknowledged.to_string());
    }
    until_all_hold_the_same(replicas.iter().map(Replica::connect).collect());
    assert!(front_end.stop().is_some_and(|status| status.success()));
}
