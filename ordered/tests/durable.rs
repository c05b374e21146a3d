//! Durable shards in virtual time, on disks that are slow, stand still or fail.

use std::time::Duration;

use fastrand::Rng;
use squall_membership::Rank;
use squall_ordered::Mode;

use crate::world::{End, Fault, Plan, World, ending, for_seeds, is_noticed};

const WHILE: Duration = Duration::from_millis(1);

/// Three members, of which the first sends messages when the test says so. Each can keep ten messages that are not on
/// disk.
fn three() -> World {
    // Messages are short, so that rings have room for all that a member holds up.
    World::new(Plan { messages: vec![0; 3], max_bytes: 20, disk_room: 10, ..Plan::new(3).durable() }, 2)
}

/// Two complete members, and one with index 2 that lacks the state. Disks take it in parts of three messages.
fn two_and_a_joiner() -> World {
    let (senders, messages) = (vec![0, 1], vec![0; 3]);
    World::new(Plan { senders, incomplete: vec![2], messages, disk_room: 3, ..Plan::new(3).durable() }, 1)
}

trait Look {
    fn send(&mut self, messages: usize);
    fn delivered(&self) -> Vec<u64>;
    fn globally_persisted(&self) -> Vec<u64>;
}

impl Look for World {
    /// Lets the first member send, and the world run for a while.
    fn send(&mut self, messages: usize) {
        self.members[0].send_more(messages);
        self.run_for(WHILE).unwrap_or_else(|wrong| panic!("{wrong}"));
    }

    fn delivered(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.app.delivered()).collect()
    }

    fn globally_persisted(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.app.globally_persisted).collect()
    }
}

/// An end of the view in which the members with these indices crash.
fn without(crashed: &[usize]) -> End {
    let at = Duration::ZERO;
    End { at, crashed: crashed.to_vec(), cut_off: Vec::new(), uncounted: Vec::new(), wedge_within: at }
}

#[test]
fn nothing_is_acknowledged_before_all_have_it_on_disk_and_all_is_in_the_end() {
    for_seeds(300, |seed| World::new(Plan::random(Mode::Durable, &mut Rng::with_seed(seed)), seed).run());
}

#[test]
fn views_end_at_the_trim_whatever_is_on_disk() {
    for_seeds(300, |seed| World::new(ending(Mode::Durable, &mut Rng::with_seed(seed)), seed).run());
}

/// In each view, every complete member alone has on disk all messages that were acknowledged in any view.
#[test]
fn what_was_acknowledged_stays_on_disk_from_view_to_view() {
    for_seeds(60, |seed| {
        let rng = &mut Rng::with_seed(seed);
        let mut plan = Plan::random(Mode::Durable, rng);
        plan.messages = plan.messages.iter().map(|messages| messages * 5).collect();
        World::new(plan, seed).run_views(1 + seed % 6)
    });
}

#[test]
fn whenever_all_crash_each_has_on_disk_what_anybody_acknowledged() {
    for_seeds(100, |seed| {
        let plan = Plan::random(Mode::Durable, &mut Rng::with_seed(seed));
        let all: Vec<usize> = (0..plan.members).collect();
        let mut world = World::new(plan, seed);
        for _ in 0..10 {
            let pause = Duration::from_micros(world.rng.u64(..200));
            world.run_for(pause)?;
            world.oracle.borrow().check_disks(&all)?;
        }
        Ok(())
    });
}

#[test]
fn who_tells_of_what_is_not_on_disk_is_noticed() {
    let plan = |rng: &mut Rng| Plan { fault: Some(Fault::TellEarly), ..Plan::random(Mode::Durable, rng) };
    assert!(is_noticed(plan));
}

#[test]
fn a_disk_that_stands_still_holds_up_replies_and_then_its_members_delivery() {
    let mut world = three();
    world.send(4);
    assert_eq!((world.delivered(), world.globally_persisted()), (vec![4; 3], vec![4; 3]));
    world.members[1].stop_disk();
    world.send(3);
    assert_eq!((world.delivered(), world.globally_persisted()), (vec![7; 3], vec![4; 3]));
    world.send(20);
    assert_eq!((world.delivered(), world.globally_persisted()), (vec![27, 14, 27], vec![4; 3]), "it has room for ten");
    let now = world.now;
    world.members[1].start_disk(now);
    world.send(0);
    assert_eq!((world.delivered(), world.globally_persisted()), (vec![27; 3], vec![27; 3]));
}

/// A member's own reads, too, see messages that its disk lacks, and are held back.
#[test]
fn what_was_read_is_not_told_before_it_is_on_all_disks() {
    let mut world = three();
    world.members[1].stop_disk();
    world.send(3);
    world.members[2].read_more(1);
    world.send(0);
    assert_eq!((world.members[2].app.answered, world.members[2].app.held.len()), (1, 1));
    let now = world.now;
    world.members[1].start_disk(now);
    world.send(0);
    assert_eq!(world.members[2].app.held.len(), 0);
}

#[test]
fn the_next_view_waits_for_no_disk_and_acknowledges_nothing_until_it_is_there() {
    let mut world = three();
    world.members[1].stop_disk();
    world.send(7);
    let end = without(&[]);
    let undelivered = world.end_view(&end).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert_eq!(world.delivered(), [7; 3]);
    world.next_view(&end, undelivered).unwrap_or_else(|wrong| panic!("{wrong}"));
    world.run_for(WHILE).unwrap_or_else(|wrong| panic!("{wrong}"));
    // Others may have joined.
    assert_eq!(world.globally_persisted()[..3], [0; 3]);
    let now = world.now;
    world.members[1].start_disk(now);
    world.run_for(WHILE).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(world.globally_persisted()[..3].iter().all(|&version| version >= 7), "{:?}", world.globally_persisted());
}

/// A failed disk is one that stands still for good. The others go on without its member, and acknowledge the messages
/// that it held up.
#[test]
fn who_has_a_failed_disk_publishes_nothing_more_and_holds_up_the_others_until_it_is_dropped() {
    let mut world = three();
    world.send(4);
    world.members[2].stop_disk();
    world.send(5);
    assert_eq!(world.globally_persisted(), [4; 3]);
    assert_eq!(world.members[2].row().persisted, 4);
    let end = without(&[2]);
    let undelivered = world.end_view(&end).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert_eq!(world.members[0].app.globally_persisted, 4, "the old view tells of no more");
    world.next_view(&end, undelivered).unwrap_or_else(|wrong| panic!("{wrong}"));
    world.run_for(WHILE).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(world.globally_persisted()[..2].iter().all(|&version| version >= 9), "{:?}", world.globally_persisted());
}

/// A member that is dropped tells its callers only of messages that it saw on all disks.
#[test]
fn who_is_dropped_acknowledges_nothing_more() {
    let mut world = three();
    world.members[1].stop_disk();
    world.send(6);
    for member in &mut world.members {
        member.abandon();
    }
    world.run_for(WHILE).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(world.members.iter().all(|member| member.is_ended()), "no member waits for a disk");
    assert_eq!((world.delivered(), world.globally_persisted()), (vec![6; 3], vec![0; 3]));
}

#[test]
fn who_lacks_the_state_holds_up_no_reply() {
    let mut world = two_and_a_joiner();
    world.members[2].stop_disk();
    world.send(6);
    assert_eq!((world.delivered(), world.globally_persisted()), (vec![6, 6, 0], vec![6, 6, 6]));
    assert_eq!(world.members[2].row().delivered, world.members[0].row().delivered, "it keeps what is delivered");
    assert_eq!(world.members[2].row().persisted, 0);
}

#[test]
fn who_has_got_the_state_counts_from_when_it_is_on_disk() {
    let mut world = two_and_a_joiner();
    world.send(6);
    world.members[2].stop_disk();
    world.restore(2, 0);
    world.send(2);
    assert_eq!((world.delivered(), world.globally_persisted()), (vec![8, 8, 6], vec![8; 3]), "its disk lacks all");
    assert_eq!(world.members[0].row_of(Rank(2)).persisted, 0);
    let now = world.now;
    world.members[2].start_disk(now);
    world.send(0);
    assert_eq!(world.members[0].row_of(Rank(2)).persisted, 8);
    world.members[2].stop_disk();
    world.send(3);
    assert_eq!((world.delivered(), world.globally_persisted()), (vec![11; 3], vec![8; 3]));
}
