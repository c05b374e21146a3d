//! Ends of connections that no side closes.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
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

/// The laboratory's last network interface, whose state one test at a time may change.
static INTERFACE: Mutex<()> = Mutex::new(());

/// Two nodes on the laboratory's last two devices, the second of them on that interface; none elsewhere.
fn on_the_interface(devices_of_nodes: [&str; 2]) -> Option<([VerbsFabric; 2], MutexGuard<'static, ()>)> {
    let in_the_laboratory = std::env::var("VERBS_LAB_RANK").is_ok();
    if !in_the_laboratory || devices().len() < 4 {
        eprintln!("skipped: not in the laboratory, or with fewer than 4 devices");
        return None;
    }
    let guard = INTERFACE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = cluster();
    let mut node = 0;
    let configs = devices_of_nodes.map(|device| {
        let mut config = config(node, &cluster);
        node += 1;
        config.device = Some(device.to_owned());
        config.net.failure_timeout = Duration::from_secs(2);
        config
    });
    Some((introduced(configs), guard))
}

fn ip(command: &str) {
    let ended = Command::new("/usr/bin/ip").args(command.split(' ')).status().expect("ip");
    assert!(ended.success(), "ip {command}: {ended}");
}

/// Waits until both nodes have seen their endpoints break; returns the reasons, in that order.
fn both_breaks(fabrics: &mut [VerbsFabric; 2]) -> [BreakReason; 2] {
    let since = Time::boot_clock();
    let mut reasons = Vec::new();
    let [first, second] = fabrics;
    let reasons = until(&mut [first, second], "both breaks", |_, completion| {
        if let Completion::Broken { reason, .. } = completion {
            reasons.push(reason.clone());
        }
        <[BreakReason; 2]>::try_from(reasons.clone()).ok()
    });
    let took = Time::boot_clock().since(since);
    assert!(took <= Duration::from_secs(2), "the break was reported after {took:?}");
    reasons
}

/// A device finds out that its peer is cut off while the nodes' ports still reach each other; both sides learn of it in
/// time.
#[test]
fn a_cut_between_devices_breaks() {
    let Some((mut fabrics, _guard)) = on_the_interface(["rxe2", "rxe3"]) else { return };
    let table = fabrics[1].register(RegionKind::Polled, 64).expect("memory");
    let [(a, remote), _] = connect(&mut fabrics, [&[], std::slice::from_ref(&table)]);
    ip("link set port3 nomaster");
    let write = Op::Write { source: Source::Inline(&[1; 8]), target: Target { region: remote[0].key, offset: 0 } };
    fabrics[0].post(a, write, Token(1)).expect("a post");
    let reasons = both_breaks(&mut fabrics);
    ip("link set port3 master switch");
    assert_eq!(reasons, [BreakReason::Unreachable, BreakReason::GivenUp]);
    assert_eq!(table.load(0), 0);
}

/// A port that goes down ends its endpoints, though nothing is sent on them; when it is up again, others can be made.
#[test]
fn a_port_that_goes_down_breaks() {
    let Some((mut fabrics, _guard)) = on_the_interface(["rxe2", "rxe3"]) else { return };
    connect(&mut fabrics, [&[], &[]]);
    ip("link set port3 down");
    let reasons = both_breaks(&mut fabrics);
    ip("link set port3 up");
    let BreakReason::Lost(sentence) = &reasons[0] else { panic!("{reasons:?}") };
    assert!(sentence.contains("port 1 of the RDMA device rxe3 of node 1 is down"), "{sentence}");
    assert_eq!(reasons[0], reasons[1], "the peer is told the reason");
    connect(&mut fabrics, [&[], &[]]);
}

/// An address that goes ends the endpoints that had it; new ones take another that the port has.
#[test]
fn a_change_of_address_breaks_and_is_followed() {
    let Some((mut fabrics, _guard)) = on_the_interface(["rxe3", "rxe3"]) else { return };
    connect(&mut fabrics, [&[], &[]]);
    ip("addr add 10.1.0.104/32 dev eth3");
    ip("addr del 10.1.0.4/24 dev eth3");
    let reasons = both_breaks(&mut fabrics);
    assert!(
        reasons.iter().all(|reason| matches!(reason, BreakReason::Lost(why) if why.contains("another address"))),
        "{reasons:?}"
    );
    connect(&mut fabrics, [&[], &[]]);
    ip("addr add 10.1.0.4/24 dev eth3 noprefixroute");
    ip("addr del 10.1.0.104/32 dev eth3");
}
