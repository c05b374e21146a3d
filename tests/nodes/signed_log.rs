//! Nodes that sign their logs, through crashes and joins: the holder of a log's copy and of the public key can check
//! it.

use std::fs;

use squall::{
    NodeId,
    keys::{Files, LogKeys},
    log_keys::{MemberKey, PublicKey},
};
use squall_ordered::log::{self, Flaw, Log, Opened, Position, Verified};

use crate::process::{self, Cluster, Process};

/// Makes a key for each node, and returns the public keys.
fn make_keys(cluster: &Cluster, ids: &[u32]) -> Vec<MemberKey> {
    let made = ids.iter().map(|&id| {
        let keys = LogKeys::create(NodeId(id)).expect("a key");
        let files = Files::in_directory(cluster.log_key(id).parent().expect("all nodes' directory"));
        keys.save(&files, false).expect("it can be written");
        fs::rename(files.log_key(NodeId(id)), cluster.log_key(id)).expect("it is there");
        let key = PublicKey::from_pem(keys.public_key().as_bytes()).expect("it is one");
        MemberKey { member: NodeId(id), key }
    });
    made.collect()
}

fn look(cluster: &Cluster, id: u32) -> (Log<log::Files>, bool) {
    let (files, is_live) = log::Files::look(cluster.directory(id).join("logs/sum")).expect("it is there");
    let Opened { log, .. } = Log::look(files, is_live).expect("it can be read");
    (log, is_live)
}

fn check(log: &Log<log::Files>, keys: &[MemberKey]) -> Verified {
    let found = log.verify_signed(keys, |_| {}).expect("it can be read");
    assert_eq!(found.damage, []);
    found
}

#[test]
fn a_log_can_be_shown_to_others_whatever_its_node_went_through() {
    let cluster = Cluster::durable("signed", "shm", 3);
    let ids = [1, 2, 3];
    let keys = make_keys(&cluster, &ids);
    let mut nodes = cluster.start();
    let add = |nodes: &mut Vec<Process>| {
        for nth in 0..30 {
            nodes[nth % 3].add(1).expect("all are there");
        }
    };
    add(&mut nodes);
    let (log, is_live) = look(&cluster, 1);
    assert!(is_live);
    assert_eq!(check(&log, &keys).flaws, [], "while it runs");
    process::kill_all(nodes);
    let mut nodes = cluster.start();
    nodes.iter_mut().for_each(|node| assert_eq!(node.serves(), 30));
    nodes.iter_mut().for_each(|node| node.wait_view(&ids));
    add(&mut nodes);
    nodes.pop().expect("node 3").kill();
    nodes[0].wait_view(&ids[..2]);
    fs::remove_dir_all(cluster.directory(3)).expect("its disk is lost");
    nodes.push(cluster.launch(3));
    nodes[2].ready();
    nodes.iter_mut().for_each(|node| node.wait_view(&ids));
    assert_eq!(nodes[2].serves(), 60);
    add(&mut nodes);
    process::kill_all(nodes);

    let logs = ids.map(|id| look(&cluster, id).0);
    let (from, to) = logs.iter().fold((Position::START, Position::MAX), |(from, to), log| {
        (from.max(log.begin().position), to.min(log.persisted().position))
    });
    let mut alike = Vec::new();
    for (log, id) in logs.iter().zip(ids) {
        let found = check(log, &keys);
        assert_eq!(found.flaws, []);
        let [signed] = found.signed[..] else { panic!("{:?}", found.signed) };
        assert_eq!((signed.member, signed.is_known), (NodeId(id), true));
        assert!(signed.to.version >= 90, "{signed:?}");
        alike.push((log.digest(from, to).expect("it is well"), log.chain_at(to).expect("it is well")));
    }
    assert!(alike.iter().all(|one| one == &alike[0] && one.1.is_some()), "{alike:?}");

    let others = [MemberKey { member: NodeId(1), ..keys[1] }];
    assert!(matches!(check(&logs[0], &others).flaws[..], [Flaw::UnknownKey { member: NodeId(1), .. }]));
}
