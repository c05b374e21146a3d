//! The device's limits, and the messages where they are too small.

use squall_fabric::{
    BreakReason, Completion, Fabric, Op, RegionKind, Slice, Source, Target, Time, Token,
    verbs::{MAX_QUEUE_DEPTH, VerbsConfig, VerbsError, VerbsFabric},
};

use crate::world::{cluster, config, connect, devices, introduced, is_there, two, until};

/// Writes and reads beyond the device's longest message come as one.
#[test]
fn long_writes_are_split() {
    if !is_there() {
        return;
    }
    let mut fabrics = two();
    let len = 2 * fabrics[0].max_message_bytes().min(8 << 20) + 4096;
    let [from, back] = [0, 1].map(|_| fabrics[0].register(RegionKind::Bulk, len).expect("memory"));
    let to = fabrics[1].register(RegionKind::Bulk, len).expect("memory");
    let bytes: Vec<u8> = (0..len).map(|at| (at >> 12) as u8 ^ at as u8).collect();
    from.write(0, &bytes);
    let [(a, remote), (b, _)] = connect(&mut fabrics, [&[], std::slice::from_ref(&to)]);
    let [first, second] = &mut fabrics;
    second.post(b, Op::Recv { into: Slice { region: &to, offset: 0, len: 0 } }, Token(1)).expect("a receive");
    second.poll(Time::boot_clock(), &mut Vec::new());
    let target = Target { region: remote[0].key, offset: 0 };
    let source = Source::Region(Slice { region: &from, offset: 0, len });
    first.post(a, Op::WriteWithImm { source, target, imm: 5 }, Token(2)).expect("a write");
    let received = |_, completion: &Completion| {
        matches!(completion, Completion::Received { imm: Some(5), bytes: 0, .. }).then_some(())
    };
    until(&mut [first, second], "the immediate", received);
    let mut came = vec![0; len];
    to.read(0, &mut came);
    assert!(came == bytes, "the write came with other bytes");
    first.post(a, Op::Read { from: target, into: Slice { region: &back, offset: 0, len } }, Token(3)).expect("a read");
    let done = |_, completion: &Completion| {
        matches!(completion, Completion::Done { token: Token(3), result: Ok(()), .. }).then_some(())
    };
    until(&mut [first, second], "the read", done);
    back.read(0, &mut came);
    assert!(came == bytes, "the read came with other bytes");
}

#[test]
fn a_send_beyond_the_longest_message_breaks_with_a_sentence() {
    if !is_there() {
        return;
    }
    let mut fabrics = two();
    let most = fabrics[0].max_message_bytes();
    if most > 64 << 20 {
        eprintln!("skipped: this device sends {most} bytes");
        return;
    }
    let from = fabrics[0].register(RegionKind::Bulk, most + 1).expect("memory");
    let [(a, _), _] = connect(&mut fabrics, [&[], &[]]);
    let [first, second] = &mut fabrics;
    let source = Source::Region(Slice { region: &from, offset: 0, len: most + 1 });
    first.post(a, Op::Send { source, imm: None }, Token(1)).expect("a send");
    for node in 0..2 {
        let reason = until(&mut [&mut *first, &mut *second], "a break", |at, completion| match completion {
            Completion::Broken { reason, .. } => Some((at, reason.clone())),
            _ => None,
        });
        let (at, BreakReason::Failed(sentence)) = reason else { panic!("{reason:?}") };
        assert_eq!(at, node, "the node that posted breaks first");
        assert!(sentence.contains(&most.to_string()), "{sentence}");
    }
}

#[test]
fn what_cannot_be_had_is_refused_with_a_sentence() {
    let no_such = |change: fn(&mut VerbsConfig)| {
        let mut config = VerbsConfig::new(squall_fabric::net::NetConfig::new(cluster(), squall_fabric::NodeId(0)));
        change(&mut config);
        VerbsFabric::open(config).expect_err("a refusal")
    };
    assert_eq!(no_such(|c| c.mtu = Some(1500)), VerbsError::Mtu { mtu: 1500 });
    let most = MAX_QUEUE_DEPTH;
    assert_eq!(no_such(|c| c.queue_depth = 0), VerbsError::QueueDepth { depth: 0, most });
    if !is_there() {
        return;
    }
    let present = devices().join(", ");
    let VerbsError::NoSuchDevice { wanted, present: named } = no_such(|c| c.device = Some("mlx9_0".to_owned())) else {
        panic!("a device that there is not was opened")
    };
    assert_eq!(wanted, "mlx9_0");
    assert_eq!(named.len(), present.len(), "{named:?} instead of {present:?}");
    assert!(matches!(no_such(|c| c.gid_index = Some(200)), VerbsError::Gid { index: 200, .. }));
    assert!(matches!(no_such(|c| c.port = Some(9)), VerbsError::NoPort { .. }));
    let mut smaller = config(0, &cluster());
    smaller.mtu = Some(256);
    VerbsFabric::open(smaller.clone()).expect("packets of 256 bytes");
    let found = smaller.probe().expect("a device");
    assert_eq!((Some(found.device), found.mtu), (smaller.device, 256));
}

/// The device is that which has the address that the node listens at; what can't be is refused with what there is.
#[test]
fn the_address_is_that_which_the_node_listens_at() {
    if std::env::var("VERBS_LAB_RANK").is_err() || devices().len() < 3 {
        return eprintln!("skipped: not in the laboratory, or with fewer than 3 devices");
    }
    let mut listening = config(0, &cluster());
    listening.net.listen = vec!["10.1.0.3:7000".to_owned()];
    let refused = listening.probe().expect_err("a refusal");
    let VerbsError::NoGidOf { device, listens, present, .. } = &refused else { panic!("{refused}") };
    assert_eq!((device.as_str(), listens.as_str()), ("rxe0", "10.1.0.3"));
    assert!(present.contains("10.1.0.1 at index"), "{present}");
    listening.device = None;
    assert_eq!(listening.probe().expect("a device").device, "rxe2");

    let mut configs = [0, 1].map(|node| config(node, "packets"));
    for config in &mut configs {
        (config.traffic_class, config.service_level, config.partition_key) = (104, 3, Some(0x7fff));
    }
    let mut elsewhere = configs[0].clone();
    connect(&mut introduced(configs), [&[], &[]]);
    elsewhere.partition_key = Some(0x8005);
    let refused = elsewhere.probe().expect_err("a refusal");
    assert!(matches!(&refused, VerbsError::NoPartition { present, .. } if present == "0xffff"), "{refused}");
}
