//! Tests of groups whose nodes all go down, and come back with their disks: their reports reach all, and the successor
//! is decided once.

use std::collections::BTreeMap;

use squall_fabric::NodeId;
use squall_membership::{
    Epoch, HeldCopy, Layout, OrderEnd, ReturnReport, Seq, ShardId, ShardState, Skipped, ViewEvent, ViewLog, restart,
};

use crate::world::{MS, Trouble, World};

const SHARD: ShardId = ShardId(0);

/// A group of nodes with disks, all of which went down and are up again.
fn come_back(list: &[u32], seed: u64) -> World {
    let mut world = World::new(list, seed);
    world.seed = Some(seed);
    list.iter().for_each(|&id| world.with_disk(id));
    list.iter().for_each(|&id| world.start(id));
    world.run_until(3000 * MS, "a first view", |world| list.iter().all(|&id| world.epoch(id) == Some(1)));
    list.iter().for_each(|&id| world.crash(id));
    world.trouble = Trouble { loss: 5, repeats: 5 };
    for &id in list {
        world.start(id);
        let pause = world.rng.u32(..200);
        world.run(MS * pause);
    }
    world.run_until(8000 * MS, "the last view", |world| list.iter().all(|&id| world.epoch(id) == Some(1)));
    world
}

/// Lets a node report that it has this many messages of the first view.
fn report_return(world: &mut World, id: u32, messages: u64) {
    let member = world.log(id).me();
    let end = OrderEnd { epoch: Epoch::FIRST, seq: Seq(messages) };
    let held = BTreeMap::from([(
        SHARD,
        HeldCopy {
            end,
            complete: true,
            version: Some(0),
            acknowledged: 0,
            trusted: false,
            skipped: Skipped::default(),
        },
    )]);
    world.log(id).report_return(ReturnReport { member, epoch: Epoch::FIRST, goes_on: false, held });
}

/// The nodes that are back, as a node was told.
fn backs(world: &World, id: u32) -> Vec<ReturnReport> {
    let told = world.nodes[&id].events.iter().rev().find_map(|event| match event {
        ViewEvent::Returns(backs) => Some(backs.clone()),
        _ => None,
    });
    told.unwrap_or_default()
}

fn propose_restart(world: &mut World, by: u32) {
    let last = world.last(by).expect("a view to follow");
    let layout = Layout::of_all(["group".into()]);
    let proposal = restart(&last, &layout, NodeId(by), &backs(world, by), Default::default());
    world.log(by).propose(proposal);
}

#[test]
fn whoever_is_back_is_known_to_all_and_one_restart_follows_though_all_propose_it() {
    for seed in 0..20 {
        let list = [1, 2, 3];
        let mut world = come_back(&list, seed);
        list.iter().for_each(|&id| report_return(&mut world, id, 10 * u64::from(id)));
        world.run_until(3000 * MS, "all hear of all", |world| list.iter().all(|&id| backs(world, id).len() == 3));
        list.iter().for_each(|&id| propose_restart(&mut world, id));
        world.run_until(3000 * MS, "a restart", |world| list.iter().all(|&id| world.epoch(id) == Some(2)));
        let next = world.last(1).expect("a restart");
        assert!(next.restart);
        assert_eq!(next.ends[&SHARD], OrderEnd { epoch: Epoch::FIRST, seq: Seq(30) });
        assert_eq!(next.view.shards[0].complete, [NodeId(3)]);
        world.run(2000 * MS);
        assert_eq!(world.epoch(1), Some(2));
        assert!(list.iter().all(|&id| backs(&world, id).is_empty()), "that was of the view before");
        assert!(list.iter().all(|&id| world.candidates(id).is_empty()), "all are members");
    }
}

#[test]
fn a_shard_that_nobody_brought_back_is_reopened_by_its_holder_as_it_joins() {
    for seed in 0..10 {
        let list = [1, 2, 3];
        let mut world = come_back(&list, seed);
        for id in [1, 2] {
            let member = world.log(id).me();
            world.log(id).report_return(ReturnReport {
                member,
                epoch: Epoch::FIRST,
                goes_on: false,
                held: BTreeMap::new(),
            });
        }
        world.run_until(3000 * MS, "both hear of both", |world| backs(world, 1).len() == 2);
        propose_restart(&mut world, 1);
        world.run_until(3000 * MS, "a restart", |world| [1, 2].iter().all(|&id| world.epoch(id) == Some(2)));
        let suspended = world.last(1).expect("a view");
        let ShardState::Suspended { after, last_holders, .. } = &suspended.view.shards[0].state else {
            panic!("no node holds it")
        };
        let holders: Vec<_> = last_holders.iter().map(|holder| holder.node).collect();
        assert_eq!((*after, holders), (Epoch::FIRST, [1, 2, 3].map(NodeId).to_vec()));
        world.run_until(3000 * MS, "a candidate", |world| world.candidates(1) == [3]);
        world.propose(1, &[1, 2, 3]);
        world.run_until(3000 * MS, "node 3 is in", |world| list.iter().all(|&id| world.epoch(id) == Some(3)));
        let (member, end) = (world.log(3).me(), OrderEnd { epoch: Epoch::FIRST, seq: Seq(7) });
        let held = HeldCopy {
            end,
            complete: true,
            version: Some(0),
            acknowledged: 0,
            trusted: false,
            skipped: Skipped::default(),
        };
        let reopen = ReturnReport { member, epoch: Epoch(3), goes_on: true, held: [(SHARD, held)].into() };
        world.log(3).report_return(reopen.clone());
        let told = |world: &World, id| world.nodes[&id].events.contains(&ViewEvent::Returns(vec![reopen.clone()]));
        world.run_until(3000 * MS, "all hear of it", |world| list.iter().all(|&id| told(world, id)));
    }
}
