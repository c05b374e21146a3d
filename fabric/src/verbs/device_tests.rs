//! Peers that present keys that were told to others, posts that the system refuses, and reports of the device.
//!
//! Without a device these tests are skipped, unless `SQUALL_VERBS=1` says that there must be one.
//! `tests/verbs-lab/fabric` runs them in a virtual machine with software RDMA.

use std::{
    fs,
    ptr::NonNull,
    time::{Duration, Instant},
};

use super::{VerbsConfig, VerbsError, VerbsFabric, endpoint::ConnectionStage, events::DeviceReport, setup::Exposed};
use crate::{
    BreakReason, Completion, EndpointId, Fabric, GroupTag, NodeId, Op, Region, RegionKey, RegionKind, RemoteRegion,
    Slice, Source, Target, Time, Token, net::NetConfig,
};

pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Nodes that know each other, each on a device of its own where there are several; none without a device.
pub(super) fn nodes<const N: usize>(test: &str) -> Option<[VerbsFabric; N]> {
    let entries = fs::read_dir("/sys/class/infiniband").into_iter().flatten();
    let mut devices: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    devices.sort();
    if devices.is_empty() {
        assert!(std::env::var_os("SQUALL_VERBS").is_none(), "SQUALL_VERBS is set, but: {}", VerbsError::NoDevice);
        eprintln!("skipped: {}", VerbsError::NoDevice);
        return None;
    }
    let cluster = format!("verbs-{test}-{}", std::process::id());
    let mut nodes: [VerbsFabric; N] = std::array::from_fn(|node| {
        let mut net = NetConfig::new(cluster.clone(), NodeId(node as u32));
        net.listen = vec!["127.0.0.1:0".to_owned()];
        net.failure_timeout = Duration::from_secs(5);
        let mut config = VerbsConfig::new(net);
        config.device = Some(devices[node % devices.len()].clone());
        VerbsFabric::open(config).expect("a verbs fabric")
    });
    let addresses: Vec<String> = nodes.iter().map(|node| node.local_addrs()[0].to_string()).collect();
    for node in &mut nodes {
        for (peer, address) in addresses.iter().enumerate() {
            node.learn(NodeId(peer as u32), std::slice::from_ref(address));
        }
    }
    Some(nodes)
}

/// Polls all nodes until a completion gives something; the callback gets the number of its node.
#[track_caller]
pub(super) fn until<T>(nodes: &mut [VerbsFabric], mut done: impl FnMut(usize, Completion) -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    let mut completions = Vec::new();
    loop {
        for (at, node) in nodes.iter_mut().enumerate() {
            node.poll(Time::boot_clock(), &mut completions);
            if let Some(found) = completions.drain(..).find_map(|completion| done(at, completion)) {
                return found;
            }
        }
        assert!(Instant::now() < deadline, "waited in vain");
        std::thread::yield_now();
    }
}

/// Connects node `at` to the first, which exposes some regions. Returns both endpoints, the other node's first.
pub(super) fn connect(nodes: &mut [VerbsFabric], at: usize, epoch: u64, expose: &[Region]) -> [EndpointId; 2] {
    let tag = GroupTag { layer: 9, group: 1, epoch };
    let theirs = nodes[0].connect(NodeId(at as u32), tag, expose, b"");
    let own = nodes[at].connect(NodeId(0), tag, &[], b"");
    let mut connected = 0;
    until(nodes, |_, completion| {
        connected += usize::from(matches!(completion, Completion::Connected { .. }));
        (connected == 2).then_some(())
    });
    [own, theirs]
}

/// The regions that an endpoint's peer told it of, with the device's keys; the last is the endpoint's watch.
fn told(node: &mut VerbsFabric, on: EndpointId) -> Vec<Exposed> {
    let endpoint = node.endpoints.get_mut(on).expect("an endpoint");
    let theirs = endpoint.up().expect("a connection");
    let describe = RemoteRegion { key: RegionKey(0), kind: RegionKind::Polled, bytes: 8 };
    let watch = Exposed { describe, addr: theirs.watch_addr, key: theirs.watch_key };
    theirs.regions.iter().copied().chain([watch]).collect()
}

/// Writes or reads a word by a key of which the endpoint was not told. Returns the reason for which it breaks.
fn breach(nodes: &mut [VerbsFabric], at: usize, on: EndpointId, forged: Exposed, read: bool) -> BreakReason {
    let endpoint = nodes[at].endpoints.get_mut(on).expect("an endpoint");
    let ConnectionStage::Up(theirs) = &mut endpoint.stage else { panic!("it is not connected") };
    let key = RegionKey(0xbad);
    theirs.regions.push(Exposed { describe: RemoteRegion { key, ..forged.describe }, ..forged });
    let target = Target { region: key, offset: 0 };
    let into = nodes[at].register(RegionKind::Polled, 8).expect("memory");
    let op = match read {
        true => Op::Read { from: target, into: Slice { region: &into, offset: 0, len: 8 } },
        false => Op::Write { source: Source::Inline(&[0xff; 8]), target },
    };
    nodes[at].post(on, op, Token(1)).expect("a post");
    let reason = until(nodes, |_, completion| match completion {
        Completion::Done { token: Token(1), result, .. } => {
            assert!(result.is_err(), "the device carried out a forged request");
            None
        }
        Completion::Broken { endpoint, reason, .. } if endpoint == on => Some(reason),
        _ => None,
    });
    assert_eq!(into.load(0), 0, "bytes of a region came that was not exposed to this endpoint");
    reason
}

/// A key serves on the endpoint that was told it, and on no other; the memory's registration serves no peer at all.
#[test]
fn a_peer_reaches_what_was_exposed_to_its_endpoint_alone() {
    let Some(mut nodes) = nodes::<3>("keys") else { return };
    let tables = [0, 1].map(|_| nodes[0].register(RegionKind::Polled, 64).expect("memory"));
    tables[0].store(0, 42);
    let [honest, _] = connect(&mut nodes, 1, 1, &tables[..1]);
    let theirs = told(&mut nodes[1], honest);
    let registration = nodes[0].core.memories.local_key(&tables[0]).expect("a registration");
    let by_registration = Exposed { key: registration, ..theirs[0] };
    let mut epoch = 1;
    // From another node, and from the same node through another endpoint.
    for at in [2, 1] {
        for forged in theirs.iter().copied().chain([by_registration]) {
            for read in [false, true] {
                epoch += 1;
                let [own, _] = connect(&mut nodes, at, epoch, &tables[1..]);
                assert_eq!(breach(&mut nodes, at, own, forged, read), BreakReason::Access, "{forged:?}, read: {read}");
                assert_eq!(tables[0].load(0), 42, "memory was written that was not exposed to the endpoint");
            }
        }
    }
    // The honest endpoint goes on.
    let target = Target { region: theirs[0].describe.key, offset: 0 };
    let write = Op::Write { source: Source::Inline(&43u64.to_ne_bytes()), target };
    nodes[1].post(honest, write, Token(2)).expect("a post");
    until(&mut nodes, |_, completion| match completion {
        Completion::Done { token: Token(2), result, .. } => result.ok(),
        _ => None,
    });
    assert_eq!(tables[0].load(0), 43);
}

/// A window on lent memory has no right to write, whatever the peer's own checks say.
#[test]
fn a_peer_reads_what_is_lent_and_can_not_write_it() {
    let Some(mut nodes) = nodes::<2>("lent") else { return };
    let lent = nodes[0].register(RegionKind::Lent, 64).expect("memory");
    lent.write(0, &[7; 64]);
    let [own, _] = connect(&mut nodes, 1, 1, std::slice::from_ref(&lent));
    let into = nodes[1].register(RegionKind::Bulk, 64).expect("memory");
    let from = Target { region: lent.key(), offset: 0 };
    let read = Op::Read { from, into: Slice { region: &into, offset: 0, len: 64 } };
    nodes[1].post(own, read, Token(2)).expect("a post");
    until(&mut nodes, |_, completion| match completion {
        Completion::Done { token: Token(2), result, .. } => result.ok(),
        _ => None,
    });
    let mut bytes = [0; 64];
    into.read(0, &mut bytes);
    assert_eq!(bytes, [7; 64]);
    let told = told(&mut nodes[1], own)[0];
    let forged = Exposed { describe: RemoteRegion { kind: RegionKind::Bulk, ..told.describe }, ..told };
    assert_eq!(breach(&mut nodes, 1, own, forged, false), BreakReason::Access);
    lent.read(0, &mut bytes);
    assert_eq!(bytes, [7; 64], "lent memory was written");
}

/// Memory that can't be registered breaks the endpoint with the next poll, whatever is outstanding on it.
#[test]
fn a_refused_post_breaks_at_once() {
    let Some(mut nodes) = nodes::<2>("refused") else { return };
    let len = 4 << 20;
    let [from, to] = [1, 0].map(|node: usize| nodes[node].register(RegionKind::Bulk, len).expect("memory"));
    let address = NonNull::new(std::ptr::without_provenance_mut::<u8>(4096)).expect("an address");
    // SAFETY: nothing is mapped there, and nothing accesses it.
    let nowhere = unsafe { Region::from_raw(RegionKind::Bulk, RegionKey(1), address, 4096, Box::new(())) };
    let nowhere = Slice { region: &nowhere, offset: 0, len: 4096 };
    for (epoch, receives) in [(1, false), (2, true)] {
        let [on, _] = connect(&mut nodes, 1, epoch, std::slice::from_ref(&to));
        let target = Target { region: to.key(), offset: 0 };
        let source = Source::Region(Slice { region: &from, offset: 0, len });
        for token in 1..=4 {
            nodes[1].post(on, Op::Write { source, target }, Token(token)).expect("a post");
        }
        nodes[1].poll(Time::boot_clock(), &mut Vec::new());
        let refused =
            if receives { Op::Recv { into: nowhere } } else { Op::Send { source: Source::Region(nowhere), imm: None } };
        nodes[1].post(on, refused, Token(5)).expect("a post");
        let mut seen = Vec::new();
        nodes[1].poll(Time::boot_clock(), &mut seen);
        let Some(Completion::Broken { reason: BreakReason::Failed(sentence), .. }) = seen.last() else {
            panic!("{seen:?} in place of a break")
        };
        assert!(sentence.contains("work could not be posted"), "{sentence}");
        let flushed = |token| {
            seen.iter().any(|done| matches!(done, Completion::Done { token: t, result: Err(_), .. } if *t == token))
        };
        assert!(flushed(Token(4)) && flushed(Token(5)), "{seen:?}");
        until(&mut nodes, |at, completion| (at == 0 && matches!(completion, Completion::Broken { .. })).then_some(()));
    }
}

/// The endpoints of a node that break with its next poll, and their reasons.
fn broken(node: &mut VerbsFabric) -> Vec<(EndpointId, BreakReason)> {
    let mut seen = Vec::new();
    node.poll(Time::boot_clock(), &mut seen);
    let broken = seen.into_iter().filter_map(|completion| match completion {
        Completion::Broken { endpoint, reason, .. } => Some((endpoint, reason)),
        _ => None,
    });
    broken.collect()
}

/// A queue pair's failure ends its endpoint and no other.
#[test]
fn a_failed_queue_pair_breaks_its_endpoint() {
    let Some(mut nodes) = nodes::<2>("qp") else { return };
    let [[first, _], [second, _]] = [1, 2].map(|epoch| connect(&mut nodes, 1, epoch, &[]));
    let number = nodes[1].endpoints.get_mut(first).expect("an endpoint").qp.number();
    nodes[1].on_report(DeviceReport::QpFailed { number }, Time::boot_clock());
    let ends = broken(&mut nodes[1]);
    assert!(matches!(&ends[..], [(id, BreakReason::Failed(_))] if *id == first), "{ends:?}");
    assert!(nodes[1].endpoints.get_mut(second).is_some());
}

/// A device's failure ends all endpoints at once, and there can be no more.
#[test]
fn a_failed_device_breaks_all_endpoints() {
    let Some(mut nodes) = nodes::<2>("fatal") else { return };
    for epoch in 1..=2 {
        connect(&mut nodes, 1, epoch, &[]);
    }
    nodes[1].on_report(DeviceReport::DeviceFailed, Time::boot_clock());
    let failed = |ends: &[(EndpointId, BreakReason)]| {
        ends.iter().all(|(_, why)| matches!(why, BreakReason::Failed(why) if why.contains("of node 1 failed")))
    };
    let ends = broken(&mut nodes[1]);
    assert!(ends.len() == 2 && failed(&ends), "{ends:?}");
    let mut told = 0;
    until(&mut nodes[..1], |_, completion| {
        told += usize::from(matches!(completion, Completion::Broken { reason: BreakReason::Failed(_), .. }));
        (told == 2).then_some(())
    });
    nodes[1].connect(NodeId(0), GroupTag { layer: 9, group: 1, epoch: 3 }, &[], b"");
    let ends = broken(&mut nodes[1]);
    assert!(ends.len() == 1 && failed(&ends), "{ends:?}");
}

/// A completion queue that lost completions takes its endpoints with it, and serves no others.
#[test]
fn a_failed_completion_queue_is_replaced() {
    let Some(mut nodes) = nodes::<2>("cq") else { return };
    let [own, _] = connect(&mut nodes, 1, 1, &[]);
    let cq = nodes[1].endpoints.get_mut(own).expect("an endpoint").cq;
    let address = nodes[1].completions.address(cq);
    nodes[1].on_report(DeviceReport::CqFailed { address }, Time::boot_clock());
    let ends = broken(&mut nodes[1]);
    assert!(matches!(&ends[..], [(id, BreakReason::Failed(_))] if *id == own), "{ends:?}");
    let [own, _] = connect(&mut nodes, 1, 2, &[]);
    assert_ne!(nodes[1].endpoints.get_mut(own).expect("an endpoint").cq, cq);
}

/// Endpoints that rest are not looked at, and share few completion queues.
#[test]
fn endpoints_that_rest_cost_a_poll_nothing() {
    let Some(mut nodes) = nodes::<2>("rest") else { return };
    let table = nodes[0].register(RegionKind::Polled, 64).expect("memory");
    let endpoints: Vec<EndpointId> =
        (1..=20).map(|epoch| connect(&mut nodes, 1, epoch, std::slice::from_ref(&table))[0]).collect();
    let target = Target { region: table.key(), offset: 0 };
    nodes[1].post(endpoints[7], Op::Write { source: Source::Inline(&[1; 8]), target }, Token(1)).expect("a post");
    assert_eq!(nodes[1].core.active, [endpoints[7]]);
    let mut active = 0;
    until(&mut nodes[1..], |_, completion| {
        active += 1;
        matches!(completion, Completion::Done { token: Token(1), result: Ok(()), .. }).then_some(())
    });
    assert_eq!(active, 1, "other endpoints reported something");
    assert!(nodes[1].core.active.is_empty());
    assert!(nodes[1].completions.count() <= 2, "{} completion queues", nodes[1].completions.count());
}
