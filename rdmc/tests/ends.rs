//! The ends of groups where a member leaves, or nothing can be done: every member hears one end, and none waits for
//! ever.

use std::sync::Arc;

use squall_fabric::{
    Fabric, NodeId,
    sim::{SimConfig, SimNet},
};
use squall_rdmc::{BlockSet, Buffer, Group, GroupConfig, GroupId, Interrupted};

use crate::{
    exposed::Exposed,
    world::{GROUP, World, config},
};

const BLOCK: usize = 64;

/// Leaves all groups, and checks that no member has to hear anything any more.
fn leave_all(world: &mut World, context: &str) {
    (0..world.members.len()).for_each(|member| world.leave(member));
    world.settle();
    for member in world.alive() {
        assert!(member.rdmc.is_quiet(), "{context}: {} is not quiet", member.fabric.node());
    }
}

#[test]
fn each_member_may_leave_at_any_time_and_all_get_quiet() {
    for who in 0..4 {
        for seed in 0..20 {
            for after in 0.. {
                let context = format!("seed {seed}, {who} leaves after {after}");
                let mut world = World::new(SimConfig::fast(), seed, &GroupConfig { block_bytes: BLOCK, ..config(4) });
                world.connect();
                world.send(5 * BLOCK);
                world.root().group().destroy().expect("the root may");
                world.kick();
                if !(0..after).all(|_| world.step()) {
                    break;
                }
                let ended = world.members[who].as_ref().expect("alive").has_ended();
                world.leave(who);
                world.settle();
                for (rank, member) in world.alive().enumerate().filter(|(rank, _)| ended || *rank != who) {
                    assert_eq!(member.failures.len() + member.destroyed, 1, "{context}: rank {rank}");
                }
                leave_all(&mut world, &context);
            }
        }
    }
}

fn resumed(held: &BlockSet, fabric: &mut impl Fabric) -> Interrupted {
    let blocks = held.blocks();
    let len = Some(blocks as usize * BLOCK);
    let buffer = Buffer::register(fabric, blocks as usize * BLOCK).expect("memory");
    Interrupted { message: 0, blocks, len, held: held.clone(), buffer: Some(Arc::new(buffer)) }
}

fn resume_config(n: u32) -> GroupConfig {
    let id = GroupId { instance: GROUP.instance + 1, ..GROUP };
    GroupConfig { block_bytes: BLOCK, ..GroupConfig::new(id, (0..n).map(NodeId).collect()) }
}

#[test]
fn who_comes_late_to_a_resume_hears_that_it_has_failed() {
    let mut world = World::new(SimConfig::fast(), 3, &GroupConfig { block_bytes: BLOCK, ..config(3) });
    world.connect();
    let mut world = world.resume(&resume_config(3), |_, fabric| resumed(&BlockSet::full(3), fabric));
    // Node 2 does not look at its fabric yet.
    world.net.pause(NodeId(2));
    for _ in 0..100 {
        let now = world.net.now();
        world.members[..2].iter_mut().flatten().for_each(|member| member.step(now, false));
        world.step();
    }
    world.leave(1);
    world.settle();
    assert!(world.root().has_ended());
    world.net.resume(NodeId(2));
    world.settle();
    let late = world.members[2].as_ref().expect("alive");
    assert_eq!(late.failures.iter().map(|failure| failure.suspect).collect::<Vec<_>>(), [Some(NodeId(1))]);
    leave_all(&mut world, "a late member");
}

#[test]
fn a_message_that_is_lost_leaves_nobody_waiting() {
    let mut world = World::new(SimConfig::fast(), 3, &GroupConfig { block_bytes: BLOCK, ..config(3) });
    world.connect();
    let mut world = world.resume(&resume_config(3), |_, fabric| resumed(&BlockSet::new(3), fabric));
    world.run_dry();
    for member in world.alive() {
        assert!(member.failures.iter().all(|failure| failure.suspect.is_none()) && member.failures.len() == 1);
    }
    leave_all(&mut world, "a lost message");
}

#[test]
fn members_that_refused_each_other_get_quiet() {
    let mut world = World::new(SimConfig::fast(), 3, &GroupConfig { block_bytes: BLOCK, ..config(2) });
    world.connect();
    for (block_bytes, member) in (BLOCK..).zip(world.members.iter_mut().flatten()) {
        member.rdmc.remove(&mut member.fabric, member.id);
        member.failures.clear();
        let config = GroupConfig { block_bytes, ..resume_config(2) };
        member.id = config.id;
        member.rdmc.create(&mut member.fabric, config).expect("sound by itself");
    }
    world.run_dry();
    assert!(world.alive().all(|member| member.failures.len() == 1));
    leave_all(&mut world, "members that differ");
}

#[test]
fn memory_that_somebody_else_may_be_reading_takes_no_blocks() {
    let mut world = World::new(SimConfig::fast(), 3, &config(2));
    let root = world.root();
    let message = resumed(&BlockSet::new(3), &mut root.fabric);
    let other = message.clone();
    let refused = root.rdmc.resume(&mut root.fabric, resume_config(2), message).unwrap_err().to_string();
    assert!(refused.contains("drop all other handles"), "{refused}");
    root.rdmc.resume(&mut root.fabric, resume_config(2), other).expect("it is the only one now");
}

#[test]
fn no_two_members_are_given_the_same_memory() {
    let open = || Exposed::new(SimNet::new(SimConfig::fast(), 1).fabric(NodeId(0)));
    let config = GroupConfig { block_bytes: BLOCK, ..config(8) };
    let mut fabric = open();
    Group::create(&mut fabric, config.clone()).expect("a sound configuration");
    assert_eq!(fabric.shared(&config.members[1..]), 0);
    let mut fabric = open();
    let what = resumed(&BlockSet::new(3), &mut fabric);
    Group::resume(&mut fabric, config.clone(), what).expect("a sound message");
    assert_eq!(fabric.shared(&config.members[1..]), 0, "of a group that resumes");
}
