use super::*;

const BLOCK: usize = 1 << 20;

fn cluster(nodes: u32, algorithm: Algorithm) -> (BulkCluster, u32) {
    let net = SimConfig::ideal(12_500_000_000, Duration::from_micros(2));
    let mut cluster = BulkCluster::new(nodes, net, Duration::from_micros(1), 7);
    let members = (0..nodes).map(NodeId).collect();
    let spec = BulkGroup { members, algorithm, block_bytes: BLOCK, windows: None, largest_bytes: 64 * BLOCK };
    let group = cluster.create(spec).expect("a group");
    cluster.settle().expect("it connects");
    (cluster, group)
}

#[test]
fn messages_of_a_group_are_complete_in_order() {
    let (mut cluster, group) = cluster(5, Algorithm::BinomialPipeline);
    let lengths = [BLOCK, 1, 20 * BLOCK + 7, 64 * BLOCK];
    for bytes in lengths {
        cluster.send(group, bytes).expect("the root sends");
    }
    let done = cluster.settle().expect("all arrive");
    assert_eq!(done.iter().map(|multicast| multicast.bytes).collect::<Vec<_>>(), lengths);
    assert!(done.is_sorted_by_key(|multicast| multicast.last));
    assert!(done.iter().all(|multicast| multicast.sent < multicast.first && multicast.first <= multicast.last));
}

#[test]
fn a_receiver_gets_each_byte_once() {
    for algorithm in [Algorithm::Chain, Algorithm::BinomialPipeline] {
        let (mut cluster, group) = cluster(8, algorithm);
        cluster.count_traffic(Some(4));
        cluster.send(group, 10 * BLOCK).expect("the root sends");
        cluster.settle().expect("it arrives");
        let traffic = cluster.traffic();
        for &received in &traffic.received[1..] {
            // Words of control come on top.
            assert!((10 * BLOCK as u64..10 * BLOCK as u64 + 4096).contains(&received), "{traffic:?}");
        }
        let all: u64 = traffic.sent.iter().sum();
        assert_eq!(all, traffic.received.iter().sum::<u64>());
        assert!(traffic.between_racks > 0 && traffic.between_racks < all);
    }
}

#[test]
fn a_stalled_receiver_has_it_later() {
    let time = |stall: Option<Duration>| {
        let (mut cluster, group) = cluster(2, Algorithm::Chain);
        cluster.send(group, BLOCK).expect("the root sends");
        if let Some(time) = stall {
            cluster.stall(NodeId(1), time);
        }
        cluster.settle().expect("it arrives")[0].latency()
    };
    let stall = Duration::from_millis(10);
    assert!(time(Some(stall)) >= stall && time(None) < Duration::from_millis(1));
}
