//! Groups of several shards, and calls to them from members, from other nodes, and from outside.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use squall_fabric::NodeId;

use super::tests::{Counter, until};
use crate::{
    Config, Consistency, Node, Partitioned, ServeOptions, ServedShards, SubmitError, Unavailable,
    client::{Client, ClientConfig, ClientError, Shards},
};

impl Partitioned for Counter {
    type Key = u64;

    fn shard_of(key: &u64, shards: u32) -> u32 {
        crate::shard_of_bytes(&key.to_le_bytes(), shards)
    }
}

fn cluster(test: &str) -> String {
    format!("sharded-{test}-{}", std::process::id())
}

/// Starts nodes with as many shards, each of which two hold.
fn start(test: &str, members: u32, shards: u32) -> Vec<(Node, ServedShards<Counter>)> {
    let start = |id| {
        let config = Config::builder(cluster(test), id).members(1..=members).group("counters", |group| {
            group.shards(shards).replicas(1, Some(2));
        });
        let mut node = Node::builder(config.build().unwrap());
        let counters = node.serve_sharded("counters", |_| Counter(0), ServeOptions::default());
        (node.start().expect("the view is formed"), counters)
    };
    thread::scope(|scope| {
        let starting: Vec<_> = (1..=members).map(|id| scope.spawn(move || start(id))).collect();
        starting.into_iter().map(|node| node.join().expect("it starts")).collect()
    })
}

fn connect(test: &str, members: impl IntoIterator<Item = u32>) -> Result<Shards<Counter>, ClientError> {
    let config = ClientConfig::on_host(cluster(test), members.into_iter().map(NodeId));
    Shards::connect(&config.with_timeout(Duration::from_secs(60)), "counters").wait()
}

#[test]
fn members_other_nodes_and_clients_have_one_handle() {
    let nodes = start("anywhere", 4, 3);
    // The client knows one node, which is no member of every shard.
    let client = connect("anywhere", [4]).unwrap();
    assert_eq!((client.len(), client.name()), (3, "counters"));
    let (mut here, mut elsewhere) = (0, 0);
    for (node, counters) in &nodes {
        let view = node.view();
        for shard in 0..3 {
            let is_member = view.shards[shard].members.contains(&node.id());
            let own = counters.group(shard).submit(&0).wait();
            match is_member {
                true => assert!(own.is_ok(), "{own:?}"),
                false => {
                    let why = own.unwrap_err();
                    assert!(
                        matches!(&why, SubmitError::Unavailable { why: Unavailable::Elsewhere { .. }, .. }),
                        "{why}"
                    );
                }
            }
            *if is_member { &mut here } else { &mut elsewhere } += 1;
            let sum = counters.shard(shard).submit(&1).wait().unwrap();
            for consistency in [Consistency::Linearizable, Consistency::Local] {
                let answer = counters.shard(shard).query_as(consistency, &()).wait();
                // A look at another node's replica may be behind.
                assert!(answer == Ok(sum) || consistency == Consistency::Local && !is_member, "{answer:?} of {sum}");
            }
            assert_eq!(client.shard(shard).submit(&1).wait(), Ok(sum + 1));
            assert_eq!(client.shard(shard).query(&()).wait(), Ok(sum + 1));
        }
    }
    assert_eq!((here, elsewhere), (6, 6));
    let by_key: i64 = (0..100).map(|key| client.of(&key).submit(&1).wait().map_or(0, |_| 1)).sum();
    let sum: i64 = client.iter().map(|shard| shard.query(&()).wait().unwrap()).sum();
    assert_eq!((by_key, sum), (100, 2 * 4 * 3 + 100));
}

#[test]
fn commands_of_a_node_that_is_dropped_go_on_elsewhere() {
    const AT_ONCE: usize = 3000;
    let nodes = start("dropped", 4, 2);
    let (done, batches) = (AtomicBool::new(false), AtomicU64::new(0));
    let (_, counters) = &nodes[0];
    // What the dropped node has not sent goes elsewhere call by call, as each is waited for.
    let shards = [0, 1].map(|shard| counters.shard(shard).within(Duration::from_secs(60)));
    let results: Vec<(usize, Result<i64, ClientError>)> = thread::scope(|scope| {
        let submitting = scope.spawn(|| {
            let mut results = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let submit = |number: usize| (number % 2, shards[number % 2].submit(&1));
                let calls: Vec<_> = (0..AT_ONCE).map(submit).collect();
                results.extend(calls.into_iter().map(|(shard, call)| (shard, call.wait())));
                batches.fetch_add(1, Ordering::Relaxed);
            }
            results
        });
        for _ in 0..3 {
            let (first, other) = (&nodes[0].0, &nodes[1].0);
            let before = other.view().epoch;
            other.suspect(NodeId(1));
            // It joins again, and holds no shard at first.
            let is_back = || {
                let view = first.view();
                view.epoch > before && view.members.len() == 4 && view.joined.contains(&NodeId(1))
            };
            until("the node is back", || is_back() || first.view().epoch.0 > before.0 + 2);
            let made = batches.load(Ordering::Relaxed);
            until("calls go on", || batches.load(Ordering::Relaxed) >= made + 2);
        }
        done.store(true, Ordering::Relaxed);
        submitting.join().expect("the caller does not panic")
    });
    for shard in 0..2 {
        let of_shard: Vec<_> = results.iter().filter(|(of, _)| *of == shard).map(|(_, result)| result).collect();
        let sums: BTreeSet<i64> = of_shard.iter().filter_map(|result| result.as_ref().ok().copied()).collect();
        let unknown = of_shard.iter().filter(|result| matches!(result, Err(ClientError::Unknown(_)))).count();
        let failed =
            of_shard.iter().find(|result| matches!(result, Err(why) if !matches!(why, ClientError::Unknown(_))));
        assert_eq!(failed, None);
        assert_eq!(sums.len() + unknown, of_shard.len(), "two commands got one reply");
        let sum = nodes[1].1.shard(shard).query(&()).wait().unwrap() as usize;
        assert!((sums.len()..=sums.len() + unknown).contains(&sum), "{sum} of {} and {unknown}", sums.len());
    }
}

#[test]
fn a_group_of_one_shard_is_a_sharded_one_too_and_a_shard_that_there_is_not_is_named() {
    let nodes = start("one", 2, 1);
    let client = connect("one", [1, 2]).unwrap();
    assert_eq!((client.len(), client.shard(0).submit(&1).wait()), (1, Ok(1)));
    let config = ClientConfig::on_host(cluster("one"), [NodeId(1)]).with_timeout(Duration::from_millis(300));
    let beyond = Client::<Counter>::connect(&config, "counters/7").unwrap();
    let error = beyond.submit(&1).wait().unwrap_err();
    assert!(error.to_string().contains("no shard 7") && error.is_not_applied(), "{error}");
    let whole = start("whole", 2, 2);
    let config = ClientConfig::on_host(cluster("whole"), [NodeId(1)]).with_timeout(Duration::from_millis(300));
    let error = Client::<Counter>::connect(&config, "counters").unwrap().submit(&1).wait().unwrap_err();
    assert!(error.to_string().contains("2 shards") && error.is_not_applied(), "{error}");
    drop((nodes, whole));
    let config = ClientConfig::on_host(cluster("nobody"), [NodeId(1)]).with_timeout(Duration::from_millis(200));
    let error = Shards::<Counter>::connect(&config, "counters").wait().map(|shards| shards.len());
    assert!(matches!(&error, Err(ClientError::Deadline { sent: false, .. })), "{error:?}");
}

#[test]
fn nothing_is_lost_or_doubled_while_members_go_and_shards_move() {
    const SHARDS: u32 = 3;
    let mut nodes = start("moves", 5, SHARDS);
    let (done, made) = (AtomicBool::new(false), AtomicU64::new(0));
    let client = connect("moves", [1, 2]).unwrap();
    let member = nodes[0].1.clone();
    let replies: Vec<(usize, i64)> = thread::scope(|scope| {
        let submit = |shards: Shards<Counter>| {
            let (done, made) = (&done, &made);
            scope.spawn(move || {
                let mut replies = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    let calls: Vec<_> = (0..SHARDS as usize).map(|shard| shards.shard(shard).submit(&1)).collect();
                    let results = calls.into_iter().map(|call| call.wait().expect("it goes on at another member"));
                    replies.extend(results.enumerate());
                    made.fetch_add(1, Ordering::Relaxed);
                }
                replies
            })
        };
        let submitting = [submit(client.clone()), submit((*member).clone())];
        for _ in 0..2 {
            let before = made.load(Ordering::Relaxed);
            until("calls go on", || made.load(Ordering::Relaxed) >= before + 200);
            // The last node fails. The others hold its shards from then on.
            drop(nodes.pop());
        }
        let before = made.load(Ordering::Relaxed);
        until("calls go on", || made.load(Ordering::Relaxed) >= before + 200);
        done.store(true, Ordering::Relaxed);
        submitting.into_iter().flat_map(|thread| thread.join().expect("no call fails")).collect()
    });
    for shard in 0..SHARDS as usize {
        let sums: Vec<i64> = replies.iter().filter(|(of, _)| *of == shard).map(|(_, sum)| *sum).collect();
        let distinct: BTreeSet<i64> = sums.iter().copied().collect();
        assert_eq!(distinct.len(), sums.len(), "two commands got one reply");
        assert_eq!(client.shard(shard).query(&()).wait(), Ok(sums.len() as i64), "shard {shard}");
    }
}
