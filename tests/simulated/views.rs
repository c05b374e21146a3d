//! A group that outlives its members, in virtual time.

use std::time::Duration;

use squall::{
    Config, Group, NodeId,
    sim::{Cluster, Options, ViewLogKind},
};

use crate::sum::Sum;

const LIMIT: Duration = Duration::from_secs(1);

const KINDS: [ViewLogKind; 3] = [ViewLogKind::Scripted, ViewLogKind::Raft, ViewLogKind::RaftOnDisks];

fn cluster(members: u32, view_log: ViewLogKind, seed: u64) -> (Cluster, Vec<Group<Sum>>) {
    let config = Config::builder("views", 1)
        .members(1..=members)
        .failure_timeout(Duration::from_millis(20))
        .build()
        .expect("the configuration is valid");
    let mut cluster = Cluster::new(config, Options { view_log, ..Options::default() }, seed);
    let groups = cluster.group("sum", |_| Sum::default());
    cluster.start().expect("it starts");
    (cluster, groups)
}

#[test]
fn a_group_outlives_a_member() {
    for (victim, kind) in [1, 2, 3].into_iter().flat_map(|victim| KINDS.map(|kind| (victim, kind))) {
        let (mut cluster, groups) = cluster(3, kind, u64::from(victim));
        assert_eq!(cluster.wait(LIMIT, groups[0].submit(&1)), Some(Ok(1)));
        let under_way: Vec<_> = groups.iter().map(|group| group.submit(&1)).collect();
        cluster.crash(NodeId(victim));
        for (index, submit) in under_way.into_iter().enumerate() {
            if index as u32 + 1 != victim {
                let answer = cluster.wait(LIMIT, submit).expect("it has an answer");
                assert!(answer.is_ok(), "victim {victim}: {answer:?}");
            }
        }
        let survivor = NodeId(victim % 3 + 1);
        // The submits under way are delivered, and answered, before the next view is installed.
        let installed =
            |cluster: &Cluster| cluster.view(survivor).is_some_and(|view| (view.epoch.0, view.members.len()) == (2, 2));
        assert!(cluster.run_until(LIMIT, installed), "{:?}", cluster.view(survivor));
        let group = &groups[survivor.0 as usize - 1];
        let sum = cluster.wait(LIMIT, group.submit(&10)).expect("in time").expect("it is served");
        assert!((13..=14).contains(&sum), "{sum}");
    }
}

#[test]
fn who_joins_gets_the_state_and_serves() {
    for kind in KINDS {
        let (mut cluster, groups) = cluster(2, kind, 1);
        assert_eq!(cluster.wait(LIMIT, groups[0].submit(&5)), Some(Ok(5)));
        let third = cluster.declare(NodeId(3), "sum", Sum::default());
        cluster.launch(NodeId(3)).expect("it starts");
        let complete =
            |cluster: &Cluster| cluster.view(NodeId(3)).is_some_and(|view| view.shards[0].is_complete(NodeId(3)));
        assert!(cluster.run_until(LIMIT, complete), "{:?}", cluster.view(NodeId(1)));
        assert_eq!(cluster.wait(LIMIT, third.submit(&2)), Some(Ok(7)));
        assert_eq!(cluster.wait(LIMIT, groups[1].read(|sum| sum.0)), Some(Ok(7)));
    }
}

#[test]
fn who_was_cut_off_comes_back_by_itself() {
    for kind in KINDS {
        let (mut cluster, groups) = cluster(3, kind, 1);
        assert_eq!(cluster.wait(LIMIT, groups[2].submit(&5)), Some(Ok(5)));
        for other in [1, 2] {
            cluster.net().cut(NodeId(other), NodeId(3));
        }
        assert_eq!(cluster.wait(LIMIT, groups[0].submit(&1)), Some(Ok(6)));
        let alone = |cluster: &Cluster| cluster.view(NodeId(1)).is_some_and(|view| view.members.len() == 2);
        assert!(cluster.run_until(LIMIT, alone));
        for other in [1, 2] {
            cluster.net().heal(NodeId(other), NodeId(3));
        }
        let complete = |cluster: &Cluster| {
            cluster.view(NodeId(3)).is_some_and(|view| view.epoch.0 > 2 && view.shards[0].is_complete(NodeId(3)))
        };
        assert!(cluster.run_until(LIMIT, complete), "{:?}", cluster.view(NodeId(1)));
        assert_eq!(cluster.wait(LIMIT, groups[2].submit(&2)), Some(Ok(8)));
    }
}

#[test]
fn who_leaves_is_gone_without_a_timeout() {
    for kind in KINDS {
        let (mut cluster, groups) = cluster(3, kind, 1);
        assert_eq!(cluster.wait(LIMIT, groups[0].submit(&5)), Some(Ok(5)));
        cluster.leave(NodeId(1));
        assert!(cluster.run_until(Duration::from_millis(10), |cluster| cluster.end_reason(NodeId(1)).is_some()));
        assert_eq!(cluster.wait(LIMIT, groups[1].submit(&1)), Some(Ok(6)));
    }
}

#[test]
fn who_comes_back_with_a_disk_or_without_is_a_member_again() {
    for (kind, wiped) in
        [(ViewLogKind::Raft, false), (ViewLogKind::RaftOnDisks, false), (ViewLogKind::RaftOnDisks, true)]
    {
        let (mut cluster, groups) = cluster(3, kind, 1);
        let before = cluster.view(NodeId(1)).expect("it has a view").members[2].voter;
        cluster.crash(NodeId(3));
        if wiped {
            cluster.wipe(NodeId(3));
        }
        let third = cluster.declare(NodeId(3), "sum", Sum::default());
        cluster.launch(NodeId(3)).expect("it starts");
        assert_eq!(cluster.wait(LIMIT, groups[0].submit(&5)), Some(Ok(5)));
        let complete =
            |cluster: &Cluster| cluster.view(NodeId(3)).is_some_and(|view| view.shards[0].is_complete(NodeId(3)));
        assert!(cluster.run_until(LIMIT, complete), "{:?}", cluster.view(NodeId(1)));
        assert_eq!(cluster.wait(LIMIT, third.submit(&2)), Some(Ok(7)));
        let view = cluster.view(NodeId(3)).expect("it has a view");
        let keeps_its_part = view.members.iter().any(|member| member.node == NodeId(3) && member.voter == before);
        assert_eq!(keeps_its_part, kind == ViewLogKind::RaftOnDisks && !wiped);
    }
}

#[test]
fn whoever_loses_a_majority_of_its_deciders_decides_nothing() {
    let (mut cluster, _groups) = cluster(3, ViewLogKind::Raft, 1);
    assert!(cluster.has_quorum());
    cluster.crash(NodeId(1));
    cluster.crash(NodeId(2));
    assert!(!cluster.has_quorum());
    cluster.declare(NodeId(2), "sum", Sum::default());
    cluster.launch(NodeId(2)).expect("it starts");
    assert!(!cluster.run_until(LIMIT, |cluster| cluster.has_quorum()), "what 2 knew was lost");
    assert_eq!(cluster.view(NodeId(3)).map(|view| view.epoch.0), Some(1));
}
