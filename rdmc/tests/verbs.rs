//! Transfers over RDMA verbs: each member is a process, on a device of its own where there are several.
//!
//! `tests/verbs-lab/rdmc` runs it in a virtual machine with software RDMA, where each copy of this test is one member.
//! Without that it is skipped.

#![cfg(feature = "verbs")]

mod member;

use std::time::Duration;

use member::content;
use squall_fabric::{
    NodeId,
    net::{NetConfig, Security},
    verbs::{VerbsConfig, VerbsFabric},
};
use squall_rdmc::{GroupConfig, GroupId, schedule::Algorithm};

/// The port of member 0; the others' follow.
const PORT: u32 = 7400;

/// A setting of the laboratory.
fn given<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// A member's address: there are as many devices as members, with addresses in their order.
fn address(node: u32) -> String {
    format!("10.1.0.{}:{}", node + 1, PORT + node)
}

fn open(node: u32, nodes: u32, device: &str) -> VerbsFabric {
    let mut net = NetConfig::new("rdmc-verbs", NodeId(node));
    net.listen = vec![address(node)];
    net.peers = (0..nodes).filter(|peer| *peer != node).map(|peer| (NodeId(peer), vec![address(peer)])).collect();
    // No other host is on this machine's network.
    net.security = Security::None;
    // An emulated processor may stand still for long.
    net.failure_timeout = Duration::from_secs(10);
    let mut config = VerbsConfig::new(net);
    config.device = Some(device.to_owned());
    VerbsFabric::open(config).expect("a verbs fabric")
}

#[test]
fn all_schedules_bring_all_bytes_to_other_processes() {
    let (Some(node), Some(nodes), Some(device)) =
        (given("VERBS_LAB_RANK"), given("VERBS_LAB_SIZE"), given::<String>("VERBS_LAB_DEVICE"))
    else {
        return eprintln!("skipped: not in the laboratory, tests/verbs-lab/rdmc");
    };
    let mut fabric = open(node, nodes, &device);
    let lens = [3_000_001, 0, 70_000, 9 << 20];
    let algorithms = [Algorithm::Sequential, Algorithm::Chain, Algorithm::BinomialTree, Algorithm::BinomialPipeline];
    for (instance, algorithm) in algorithms.into_iter().enumerate() {
        let members = (0..nodes).map(NodeId).collect();
        let config = GroupConfig {
            algorithm: algorithm.clone(),
            block_bytes: 256 << 10,
            ..GroupConfig::new(GroupId { group: 1, instance: instance as u64 + 1 }, members)
        };
        let received = member::run(&mut fabric, config, &lens);
        assert_eq!(received.len(), if node == 0 { 0 } else { lens.len() }, "{}", algorithm.name());
        for (message, bytes) in received.iter().enumerate() {
            assert!(*bytes == content(message, lens[message]), "message {message} with {}", algorithm.name());
        }
        eprintln!("{}: all bytes are there; {:?}", algorithm.name(), fabric.stats());
    }
}
