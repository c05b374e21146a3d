//! Groups with shards: in virtual time, and between nodes of this process over shared memory and TCP.

use std::{
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use squall::{
    Config, Node, NodeId, Outcome, PlanError, ReadError, ShardView, Sharded, SubmitError, Unavailable, View,
    config::{Backend, ShardOptions},
    sim::{Cluster, NotStarted, Options},
};

use crate::sum::Sum;

const LIMIT: Duration = Duration::from_secs(2);

fn cluster(members: u32, shards: u32, min: u32, max: u32) -> Cluster {
    let config = Config::builder("sharded", 1).members(1..=members).failure_timeout(Duration::from_millis(20));
    let config = config.group("sums", |group| {
        group.shards(shards).replicas(min, Some(max));
    });
    Cluster::new(config.build().expect("the configuration is valid"), Options::default(), 1)
}

fn shards(cluster: &Cluster, node: u32) -> Vec<ShardView> {
    cluster.view(NodeId(node)).expect("it has a view").shards.clone()
}

fn unavailable<T>(result: Result<T, SubmitError>) -> Unavailable {
    match result {
        Err(SubmitError::Unavailable { why, outcome: Outcome::NotAccepted }) => why,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was taken"),
    }
}

#[test]
fn each_shard_has_members_an_order_and_a_state_of_its_own() {
    let mut cluster = cluster(3, 3, 1, 2);
    let sums: Vec<Sharded<Sum>> = cluster.sharded("sums", |_, _| Sum::default());
    cluster.start().expect("it starts");
    for (index, shard) in shards(&cluster, 1).into_iter().enumerate() {
        assert_eq!((shard.members.len(), sums[0].len()), (2, 3));
        let add = 10 * (index as u64 + 1);
        for (times, &member) in shard.members.iter().enumerate() {
            let submit = sums[member.0 as usize - 1].shard(index).submit(&add);
            assert_eq!(cluster.wait(LIMIT, submit), Some(Ok(add * (times as u64 + 1))));
        }
        let other = NodeId((1..=3).find(|&id| !shard.members.contains(&NodeId(id))).expect("one has no part"));
        let handle = &sums[other.0 as usize - 1][index];
        let why = Unavailable::Elsewhere { members: shard.members.clone() };
        let submit = cluster.wait(LIMIT, handle.submit(&1)).expect("at once");
        assert_eq!(unavailable(submit), why);
        assert_eq!(
            cluster.wait(LIMIT, handle.read(|sum| sum.0)),
            Some(Err(ReadError::Unavailable { why: why.clone() }))
        );
        assert!(why.to_string().contains(&shard.members[0].to_string()), "{why}");
    }
}

#[test]
fn replicas_of_a_member_that_fails_are_made_anew_elsewhere() {
    let mut cluster = cluster(3, 3, 1, 2);
    let sums = cluster.sharded("sums", |_, _| Sum::default());
    cluster.start().expect("it starts");
    for (index, shard) in shards(&cluster, 1).into_iter().enumerate() {
        let first = shard.members[0].0 as usize - 1;
        assert_eq!(cluster.wait(LIMIT, sums[first][index].submit(&7)), Some(Ok(7)));
    }
    cluster.crash(NodeId(3));
    let both = |view: &View| view.members.len() == 2 && view.shards.iter().all(|shard| shard.complete.len() == 2);
    let whole = |cluster: &Cluster| [1, 2].iter().all(|&id| cluster.view(NodeId(id)).is_some_and(|view| both(view)));
    assert!(cluster.run_until(LIMIT, whole), "{:?}", cluster.view(NodeId(1)));
    for (node, handles) in sums.iter().enumerate().take(2) {
        for (index, sum) in handles.iter().enumerate() {
            let expected = 8 + node as u64;
            assert_eq!(cluster.wait(LIMIT, sum.submit(&1)), Some(Ok(expected)), "shard {index}");
        }
    }
}

#[test]
fn a_shard_with_too_few_replicas_refuses_work_until_others_have_joined() {
    let mut cluster = cluster(2, 1, 2, 2);
    let sums = cluster.group("sums", |_| Sum::default());
    cluster.start().expect("it starts");
    assert_eq!(cluster.wait(LIMIT, sums[0].submit(&7)), Some(Ok(7)));
    cluster.crash(NodeId(2));
    assert!(cluster.run_until(LIMIT, |cluster| cluster.view(NodeId(1)).is_some_and(|view| view.epoch.0 == 2)));
    let refused = cluster.wait(LIMIT, sums[0].submit(&1)).expect("at once");
    assert_eq!(unavailable(refused), Unavailable::Inadequate);
    let back = cluster.declare(NodeId(2), "sums", Sum::default());
    cluster.launch(NodeId(2)).expect("it starts");
    let whole = |cluster: &Cluster| cluster.view(NodeId(2)).is_some_and(|view| view.shards[0].complete.len() == 2);
    assert!(cluster.run_until(LIMIT, whole), "{:?}", cluster.view(NodeId(1)));
    assert_eq!(cluster.wait(LIMIT, back.submit(&1)), Some(Ok(8)));
    assert_eq!(cluster.wait(LIMIT, sums[0].submit(&1)), Some(Ok(9)));
}

#[test]
fn a_pinned_shard_moves_back_to_its_node_with_its_state() {
    let config = Config::builder("pinned", 1).members(1..=3).failure_timeout(Duration::from_millis(20));
    let config = config.group("sums", |group| {
        let pinned = vec![NodeId(1), NodeId(3)];
        group.replicas(1, Some(2)).shard(0, ShardOptions { pinned, ..ShardOptions::default() });
    });
    let mut cluster = Cluster::new(config.build().expect("it is valid"), Options::default(), 1);
    let sums = cluster.group("sums", |_| Sum::default());
    cluster.start().expect("it starts");
    let is_whole_at = |nodes: [u32; 2]| {
        let nodes = nodes.map(NodeId);
        move |cluster: &Cluster| {
            let view = cluster.view(NodeId(1)).expect("it runs");
            view.shards[0].members == nodes && view.shards[0].complete == nodes
        }
    };
    assert!(is_whole_at([1, 3])(&cluster));
    assert_eq!(cluster.wait(LIMIT, sums[0].submit(&7)), Some(Ok(7)));
    cluster.crash(NodeId(3));
    assert!(cluster.run_until(LIMIT, is_whole_at([1, 2])), "{:?}", cluster.view(NodeId(1)));
    let back = cluster.declare(NodeId(3), "sums", Sum::default());
    cluster.launch(NodeId(3)).expect("it starts");
    assert!(cluster.run_until(LIMIT, is_whole_at([1, 3])), "{:?}", cluster.view(NodeId(1)));
    assert_eq!(cluster.wait(LIMIT, back.submit(&1)), Some(Ok(8)));
    let elsewhere = cluster.wait(LIMIT, sums[1].submit(&1)).expect("at once");
    assert_eq!(unavailable(elsewhere), Unavailable::Elsewhere { members: vec![NodeId(1), NodeId(3)] });
}

#[test]
fn a_group_is_declared_with_the_shards_that_it_has() {
    let mut cluster = cluster(1, 2, 1, 1);
    cluster.group("sums", |_| Sum::default());
    let expected = PlanError::Shards { name: "sums".into(), configured: 2, declared: 1 };
    assert_eq!(cluster.start(), Err(NotStarted::Plan(expected)));
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Nodes 1 to 3, with three shards of exactly two replicas each.
struct Real {
    name: String,
    backend: Backend,
    addresses: Vec<String>,
}

type Started = (Node, Sharded<Sum>);

impl Real {
    fn new(backend: Backend) -> Real {
        let held: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
        let addresses = held.iter().map(|held| held.local_addr().expect("it has one").to_string()).collect();
        Real { name: format!("sharded-{backend:?}-{}", std::process::id()).to_lowercase(), backend, addresses }
    }

    fn start(&self, id: u32) -> Started {
        let config = Config::builder(&self.name, id).backend(self.backend).formation_timeout(PATIENCE);
        let config = config.failure_timeout(Duration::from_millis(500)).group("sums", |group| {
            group.shards(3).replicas(2, Some(2));
        });
        let config = match self.backend {
            Backend::Shm => config.members(1..=3),
            _ => (1..).zip(&self.addresses).fold(config, |config, (id, at)| config.addresses(id, [at])),
        };
        let mut node = Node::builder(config.build().expect("the configuration is valid"));
        let sums = node.sharded("sums", |_| Sum::default());
        (node.start().expect("it becomes a member"), sums)
    }

    fn start_all<const N: usize>(&self, ids: [u32; N]) -> [Started; N] {
        thread::scope(|scope| {
            ids.map(|id| scope.spawn(move || self.start(id))).map(|node| node.join().expect("no panic"))
        })
    }
}

/// Waits until a node has a view with `members` members, all of whose shards have two replicas with the state.
fn until_whole(node: &Node, members: usize) {
    let is_whole =
        |view: &View| view.members.len() == members && view.shards.iter().all(|shard| shard.complete.len() == 2);
    assert!(node.wait_view(PATIENCE, is_whole).expect("it goes on").is_some(), "{:?}", node.view());
}

/// Adds to a shard at the first of these nodes that is a member of it then and serves it.
fn add(nodes: &[&Started], shard: usize, number: u64) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    for (_, sums) in nodes.iter().cycle() {
        match sums[shard].submit(&number).wait() {
            Ok(sum) => return sum,
            // A shard that moves away leaves the number behind.
            Err(SubmitError::Unavailable { outcome: Outcome::NotAccepted | Outcome::NotDelivered, why }) => {
                assert!(Instant::now() < deadline, "shard {shard}: {why}");
            }
            Err(error) => panic!("shard {shard}: {error}"),
        }
        thread::sleep(Duration::from_millis(1));
    }
    unreachable!("there are nodes")
}

fn shards_live_on_through_a_death_a_leave_and_joins(backend: Backend) {
    let cluster = Real::new(backend);
    let [one, two, three] = cluster.start_all([1, 2, 3]);
    for shard in 0..3 {
        let number = 10 * (shard as u64 + 1);
        assert_eq!(add(&[&one, &two, &three], shard, number), number);
    }
    three.0.shutdown();
    until_whole(&one.0, 2);
    until_whole(&two.0, 2);
    for shard in 0..3 {
        let before = 10 * (shard as u64 + 1);
        assert_eq!([&one, &two].map(|node| add(&[node], shard, 1)), [before + 1, before + 2], "shard {shard}");
    }
    assert!(two.0.leave(PATIENCE), "node 1 has all that it has");
    drop(two);
    let alone = |view: &View| view.members.len() == 1;
    assert!(one.0.wait_view(PATIENCE, alone).expect("it goes on").is_some());
    for sum in one.1.iter() {
        let why = unavailable(sum.submit(&1).wait());
        assert_eq!(why, Unavailable::Inadequate);
        assert!(why.to_string().contains("min_replicas"), "{why}");
    }
    let [two, three] = cluster.start_all([2, 3]);
    until_whole(&one.0, 3);
    for shard in 0..3 {
        assert_eq!(add(&[&two, &three, &one], shard, 1), 10 * (shard as u64 + 1) + 3, "shard {shard}");
    }
}

#[test]
fn over_shm_shards_live_on_through_a_death_a_leave_and_joins() {
    shards_live_on_through_a_death_a_leave_and_joins(Backend::Shm);
}

#[test]
fn over_tcp_shards_live_on_through_a_death_a_leave_and_joins() {
    shards_live_on_through_a_death_a_leave_and_joins(Backend::Tcp);
}
