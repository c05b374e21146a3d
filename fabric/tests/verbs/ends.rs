//! Ends of connections that no side closes.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::Duration,
};

use squall_fabric::{
    BreakReason, Completion, Fabric, NodeId, Op, RegionKind, Source, Target, Time, Token, verbs::VerbsFabric,
};

use crate::world::{TAG, cluster, config, connect, devices, introduced, is_there, until};

/// The variable that makes this test binary a child that is to be killed: the cluster's name, and its peer's address.
const CHILD: &str = "SQUALL_VERBS_CHILD";

/// Runs the process that [`the_death_of_a_process_breaks`] kills; it is no test.
#[test]
fn child() {
    let Ok(given) = std::env::var(CHILD) else { return };
    let (cluster, peer) = given.split_once(' ').expect("a cluster and an address");
    let mut fabric = VerbsFabric::open(config(1, cluster)).expect("a verbs fabric");
    fabric.learn(NodeId(0), &[peer.to_owned()]);
    // The node with the smaller id dials, and gets the address.
    eprintln!("listens at {}", fabric.local_addrs()[0]);
    let table = fabric.register(RegionKind::Polled, 64).expect("memory");
    fabric.connect(NodeId(0), TAG, &[table], b"");
    loop {
        fabric.poll(Time::boot_clock(), &mut Vec::new());
        std::thread::yield_now();
    }
}

/// A process that dies takes its queue pairs with it; outstanding work is flushed, and the link gives the reason.
#[test]
fn the_death_of_a_process_breaks() {
    if !is_there() {
        return;
    }
    let cluster = cluster();
    let mut fabric = VerbsFabric::open(config(0, &cluster)).expect("a verbs fabric");
    let mut child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "ends::child", "--nocapture"])
        .env(CHILD, format!("{cluster} {}", fabric.local_addrs()[0]))
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("a child");
    let lines = BufReader::new(child.stderr.take().expect("its stderr")).lines();
    let listens = |line: std::io::Result<String>| Some(line.ok()?.split_once("listens at ")?.1.to_owned());
    let address = lines.into_iter().find_map(listens).expect("the child's address");
    fabric.learn(NodeId(1), &[address]);
    let e = fabric.connect(NodeId(1), TAG, &[], b"");
    let remote = until(&mut [&mut fabric], "a connection", |_, completion| match completion {
        Completion::Connected { remote, .. } => Some(remote.clone()),
        _ => None,
    });

    child.kill().expect("to kill the child");
    child.wait().expect("its end");
    let write = Op::Write { source: Source::Inline(&[1; 8]), target: Target { region: remote[0].key, offset: 0 } };
    // The link may have told already.
    let outstanding = fabric.post(e, write, Token(1)).is_ok();
    let mut flushed = false;
    let reason = until(&mut [&mut fabric], "a break", |_, completion| match completion {
        Completion::Done { token: Token(1), result, .. } => {
            flushed |= result.is_err();
            None
        }
        Completion::Broken { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    assert!(matches!(reason, BreakReason::Lost(_)), "{reason:?}");
    assert_eq!(flushed, outstanding, "what was outstanding is flushed before the break");
}

/// A device finds out that its peer is cut off while the nodes' ports still reach each other; both sides learn of it in
/// time.
#[test]
fn a_cut_between_devices_breaks() {
    let in_the_laboratory = std::env::var("VERBS_LAB_RANK").is_ok();
    if !in_the_laboratory || devices().len() < 4 {
        return eprintln!("skipped: not in the laboratory, or with fewer than 4 devices");
    }
    let cluster = cluster();
    let configs = [(0, "rxe2"), (1, "rxe3")].map(|(node, device)| {
        let mut config = config(node, &cluster);
        config.device = Some(device.to_owned());
        config.net.failure_timeout = Duration::from_secs(2);
        config
    });
    let mut fabrics = introduced(configs);
    let table = fabrics[1].register(RegionKind::Polled, 64).expect("memory");
    let [(a, remote), _] = connect(&mut fabrics, [&[], std::slice::from_ref(&table)]);
    let set = |state: &str| {
        let ended = Command::new("/usr/bin/ip").args(["link", "set", "port3", state]).status().expect("ip");
        assert!(ended.success(), "ip link set port3 {state}: {ended}");
    };
    set("down");
    let [first, second] = &mut fabrics;
    let write = Op::Write { source: Source::Inline(&[1; 8]), target: Target { region: remote[0].key, offset: 0 } };
    first.post(a, write, Token(1)).expect("a post");
    let since = Time::boot_clock();
    let mut reasons = Vec::new();
    until(&mut [first, second], "both breaks", |_, completion| {
        if let Completion::Broken { reason, .. } = completion {
            reasons.push(reason.clone());
        }
        (reasons.len() == 2).then_some(())
    });
    let took = Time::boot_clock().since(since);
    set("up");
    assert_eq!(reasons, [BreakReason::Unreachable, BreakReason::GivenUp]);
    assert!(took <= Duration::from_secs(2), "the break was reported after {took:?}");
    assert_eq!(table.load(0), 0);
}
