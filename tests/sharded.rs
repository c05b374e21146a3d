//! Groups with shards, in virtual time.

mod sum;

use std::time::Duration;

use squall::{
    Config, NodeId, Outcome, PlanError, ReadError, ShardView, Sharded, SubmitError, Unavailable,
    sim::{Cluster, NotStarted, Options},
};

use sum::Sum;

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
    let both =
        |view: &squall::View| view.members.len() == 2 && view.shards.iter().all(|shard| shard.complete.len() == 2);
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
fn a_group_is_declared_with_the_shards_that_it_has() {
    let mut cluster = cluster(1, 2, 1, 1);
    cluster.group("sums", |_| Sum::default());
    let expected = PlanError::Shards { name: "sums".into(), configured: 2, declared: 1 };
    assert_eq!(cluster.start(), Err(NotStarted::Plan(expected)));
}
