//! Formation, suspicion, wedge and decision, between members on the simulated network.

use std::{collections::BTreeMap, time::Duration};

use squall_fabric::{
    BreakReason, Completion, Fabric, NodeId, Time,
    sim::{SimConfig, SimFabric, SimNet},
};
use squall_membership::{
    Effect, EndReason, Epoch, Input, Membership, Proposal, Rank, Seq, Settings, ShardId, ShardView, ViewEvent,
};

const FAILURE_TIMEOUT: Duration = Duration::from_millis(20);
const READ_LEASE: Duration = Duration::from_millis(15);
const FORMATION_TIMEOUT: Duration = Duration::from_millis(500);
const SHARD: ShardId = ShardId(0);

fn settings(members: u32, view_log: bool) -> Settings {
    let members: Vec<NodeId> = (1..=members).map(NodeId).collect();
    Settings {
        shards: vec![ShardView { shard: SHARD, members: members.clone(), senders: members.clone() }],
        members,
        fingerprint: 7,
        formation_timeout: FORMATION_TIMEOUT,
        failure_timeout: FAILURE_TIMEOUT,
        read_lease: READ_LEASE,
        view_log,
    }
}

struct Member {
    fabric: SimFabric,
    membership: Membership,
    effects: Vec<Effect>,
    formed: bool,
    wedged: bool,
    proposed: Vec<Proposal>,
    ended: Option<EndReason>,
    /// What its shard answers when it wedges: its final count, and whom it has vouched for.
    received: u64,
    leased: Vec<NodeId>,
}

struct World {
    net: SimNet,
    members: BTreeMap<NodeId, Member>,
}

impl World {
    /// A world of which `present` start, each with its own settings.
    fn new(seed: u64, present: &[(u32, Settings)]) -> World {
        let net = SimNet::new(SimConfig::fast(), seed);
        let mut world = World { net, members: BTreeMap::new() };
        for (id, settings) in present {
            let node = NodeId(*id);
            let mut fabric = world.net.fabric(node);
            let mut effects = Vec::new();
            let mut membership =
                Membership::form(&mut fabric, world.net.now(), settings.clone(), &mut effects).expect("memory");
            assert!(matches!(effects.as_slice(), [Effect::Install(view)] if view.epoch == Epoch::FIRST));
            effects.clear();
            membership.input(Input::ShardsConnected, &mut effects);
            let received = 10 * u64::from(*id);
            let (formed, wedged, proposed, ended) = (false, false, Vec::new(), None);
            let leased = Vec::new();
            let member = Member { fabric, membership, effects, formed, wedged, proposed, ended, received, leased };
            world.members.insert(node, member);
        }
        world
    }

    fn formed(seed: u64, members: u32, view_log: bool) -> World {
        let present: Vec<_> = (1..=members).map(|id| (id, settings(members, view_log))).collect();
        let mut world = World::new(seed, &present);
        world.run_until("all have formed the view", |world| world.members.values().all(|m| m.formed));
        world
    }

    fn run_until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        let limit = self.net.now() + Duration::from_secs(2);
        let mut ready = Vec::new();
        while !done(self) {
            assert!(self.net.now() < limit, "{what}: not within {limit}");
            let timer = self.members.iter().filter(|(node, _)| self.net.runs(**node));
            let timer = timer.map(|(_, m)| m.membership.deadline()).min().unwrap_or(Time::MAX).min(limit);
            let now = self.net.advance(timer, &mut ready);
            for (node, member) in &mut self.members {
                if self.net.runs(*node) && (ready.contains(node) || member.membership.deadline() <= now) {
                    member.step(now);
                }
            }
            ready.clear();
        }
    }

    fn member(&mut self, id: u32) -> &mut Member {
        self.members.get_mut(&NodeId(id)).expect("it is there")
    }

    fn ended(&self, id: u32) -> Option<&EndReason> {
        self.members[&NodeId(id)].ended.as_ref()
    }
}

impl Member {
    fn step(&mut self, now: Time) {
        let mut completions: Vec<Completion> = Vec::new();
        self.fabric.poll(now, &mut completions);
        for completion in &completions {
            self.membership.on_completion(&mut self.fabric, completion, &mut self.effects);
        }
        self.membership.step(&mut self.fabric, now, &mut self.effects);
        while !self.effects.is_empty() {
            for effect in std::mem::take(&mut self.effects) {
                match effect {
                    Effect::Install(_) => panic!("only the first view is installed"),
                    Effect::Formed(_) => self.formed = true,
                    Effect::Wedge => {
                        self.wedged = true;
                        self.membership.input(
                            Input::Frozen { shard: SHARD, count: Seq(self.received), leased: self.leased.clone() },
                            &mut self.effects,
                        );
                    }
                    Effect::Propose(proposal) => self.proposed.push(proposal),
                    Effect::CleanUp(_) => self.membership.input(Input::Ended(SHARD), &mut self.effects),
                    Effect::End(reason) => self.ended = Some(reason),
                }
            }
        }
    }
}

#[test]
fn all_members_form_the_first_view() {
    for seed in 0..50 {
        World::formed(seed, 1 + seed as u32 % 7, false);
    }
}

#[test]
fn a_member_that_never_comes_is_named() {
    let mut world = World::new(1, &[(1, settings(3, false)), (3, settings(3, false))]);
    world.run_until("both give up", |world| world.ended(1).is_some() && world.ended(3).is_some());
    let missing = vec![(NodeId(2), None)];
    assert_eq!(world.ended(1), Some(&EndReason::NotFormed { missing, waited: FORMATION_TIMEOUT }));
    assert!(world.ended(1).unwrap().to_string().contains("node 2 never appeared"));
}

#[test]
fn members_that_disagree_refuse_each_other() {
    let other = Settings { fingerprint: 8, ..settings(2, false) };
    let mut world = World::new(1, &[(1, settings(2, false)), (2, other)]);
    world.run_until("both end", |world| world.ended(1).is_some() && world.ended(2).is_some());
    let reasons = [world.ended(1), world.ended(2)];
    let said = |reason: &Option<&EndReason>| matches!(reason, Some(EndReason::Incompatible { .. }));
    assert!(reasons.iter().any(said), "{reasons:?}");
}

#[test]
fn a_member_that_broke_the_protocol_is_faulty_not_incompatible() {
    let mut world = World::formed(1, 2, false);
    let Member { membership, effects, .. } = world.member(1);
    membership.input(Input::Faulty(NodeId(2), "it sent nonsense".into()), effects);
    world.run_until("node 1 ends", |world| world.ended(1).is_some());
    assert_eq!(world.ended(1), Some(&EndReason::Faulty { node: NodeId(2), why: "it sent nonsense".into() }));
}

#[test]
fn a_dead_member_ends_a_group_without_a_view_log_for_all() {
    for seed in 0..50 {
        let mut world = World::formed(seed, 3, false);
        world.net.crash(NodeId(2));
        world.run_until("the others end", |world| world.ended(1).is_some() && world.ended(3).is_some());
        for id in [1, 3] {
            assert!(world.member(id).wedged);
            assert!(world.ended(id).unwrap().to_string().contains("node 2"), "{:?}", world.ended(id));
        }
    }
}

#[test]
fn a_frozen_member_is_suspected_after_the_timeout_and_accuses_nobody_itself() {
    for seed in 0..50 {
        let mut world = World::formed(seed, 3, false);
        world.net.pause(NodeId(3));
        let frozen = world.net.now();
        world.run_until("the others end", |world| world.ended(1).is_some() && world.ended(2).is_some());
        let took = world.net.now().since(frozen);
        assert!(took >= FAILURE_TIMEOUT && took < 3 * FAILURE_TIMEOUT, "it took {took:?}");
        world.net.resume(NodeId(3));
        world.run_until("it ends as well", |world| world.ended(3).is_some());
        let reason = world.ended(3).unwrap();
        assert!(matches!(reason, EndReason::GivenUp { .. }), "{reason}");
    }
}

#[test]
fn short_pauses_harm_nobody() {
    for seed in 0..20 {
        let mut world = World::formed(seed, 3, false);
        for round in 0..10 {
            let node = NodeId(1 + round % 3);
            world.net.pause(node);
            let until = world.net.now() + FAILURE_TIMEOUT / 4;
            world.run_until("a pause passes", |world| world.net.now() >= until);
            world.net.resume(node);
            world.member(node.0).step(until);
        }
        assert!(world.members.values().all(|member| member.ended.is_none() && !member.wedged));
    }
}

#[test]
fn the_lowest_of_those_who_stay_proposes_the_smallest_final_count() {
    for seed in 0..50 {
        let mut world = World::formed(seed, 4, true);
        world.net.crash(NodeId(1));
        world.run_until("somebody proposes", |world| world.members.values().any(|m| !m.proposed.is_empty()));
        let proposal = world.member(2).proposed.first().expect("node 2 leads those who stay").clone();
        assert_eq!(proposal.view.nodes(), [2, 3, 4].map(NodeId));
        assert_eq!(proposal.view.left, [NodeId(1)]);
        assert_eq!(proposal.trims[&SHARD], Seq(20), "node 1, which does not stay, had received only 10");
        for id in [2, 3, 4] {
            let member = world.member(id);
            member.membership.input(Input::ViewLog(ViewEvent::Committed(proposal.clone())), &mut member.effects);
            let now = world.net.now();
            world.member(id).step(now);
            assert_eq!(world.ended(id), Some(&EndReason::CleanedUp { epoch: Epoch::FIRST }));
        }
    }
}

/// Members 1 to 3, of which the last is dropped after the others were told to suspect it for `reason`, as one that 1 and 2
/// have vouched for. Returns how long after the suspicion, and after the decision, member 1 goes on.
fn waits_for_the_lease(seed: u64, reason: BreakReason, wedges: bool) -> [Duration; 2] {
    let mut world = World::formed(seed, 3, true);
    for id in [1, 2] {
        world.member(id).leased = vec![NodeId(3)];
    }
    if !wedges {
        for id in [1, 2] {
            world.net.cut(NodeId(id), NodeId(3));
        }
    }
    let lost = Input::Broken(NodeId(3), reason);
    let suspected = world.net.now();
    let member = world.member(1);
    member.membership.input(lost, &mut member.effects);
    member.step(suspected);
    world.run_until("1 and 2 are wedged", |world| !world.members[&NodeId(1)].proposed.is_empty());
    if wedges {
        let rank = Rank(2);
        world.run_until("3 says that it is wedged", |world| world.members[&NodeId(1)].membership.is_wedged(rank));
    }
    let proposal = world.member(1).proposed[0].clone();
    let decided = world.net.now();
    let member = world.member(1);
    member.membership.input(Input::ViewLog(ViewEvent::Committed(proposal)), &mut member.effects);
    member.step(decided);
    world.run_until("member 1 goes on", |world| world.ended(1).is_some());
    assert_eq!(world.ended(1), Some(&EndReason::CleanedUp { epoch: Epoch::FIRST }));
    [suspected, decided].map(|time| world.net.now().since(time))
}

#[test]
fn nobody_goes_on_while_one_that_was_dropped_may_read() {
    for seed in 0..20 {
        let [waited, _] = waits_for_the_lease(seed, BreakReason::Unreachable, false);
        assert!(waited > READ_LEASE + READ_LEASE / 5 && waited < 2 * READ_LEASE, "it waited {waited:?}");
        let [_, waited] = waits_for_the_lease(seed, BreakReason::ProcessGone, false);
        assert_eq!(waited, Duration::ZERO, "who is gone does not read");
        let [_, waited] = waits_for_the_lease(seed, BreakReason::Unreachable, true);
        assert_eq!(waited, Duration::ZERO, "who is wedged does not read");
    }
}

/// A thread may stand still between its look at the clock and what it does in that step: then its shards echo, after that
/// look, what they find. The wait begins when they have wedged, not at the clock of the step in which that was asked for.
#[test]
fn the_wait_for_a_lease_begins_after_the_last_echo_even_if_the_clock_was_read_long_before() {
    for seed in 0..20 {
        let mut world = World::formed(seed, 3, true);
        for id in [1, 2] {
            world.member(id).leased = vec![NodeId(3)];
        }
        let read = world.net.now();
        world.net.pause(NodeId(1));
        let until = read + READ_LEASE + Duration::from_millis(2);
        world.run_until("member 1 stood still", |world| world.net.now() >= until);
        world.net.resume(NodeId(1));
        for id in [1, 2] {
            world.net.cut(NodeId(id), NodeId(3));
        }
        // As `NodeCore::step` does: completions, then the shards (which echo here and now), then membership, then the wedge.
        let echoed = world.net.now();
        let member = world.member(1);
        member.membership.input(Input::Broken(NodeId(3), BreakReason::Unreachable), &mut member.effects);
        member.step(read);
        world.run_until("1 and 2 are wedged", |world| !world.members[&NodeId(1)].proposed.is_empty());
        let proposal = world.member(1).proposed[0].clone();
        let decided = world.net.now();
        let member = world.member(1);
        member.membership.input(Input::ViewLog(ViewEvent::Committed(proposal)), &mut member.effects);
        member.step(decided);
        world.run_until("member 1 goes on", |world| world.ended(1).is_some());
        let waited = world.net.now().since(echoed);
        assert!(waited > READ_LEASE + READ_LEASE / 5, "seed {seed}: it went on {waited:?} after its last echo");
    }
}

#[test]
fn less_than_half_of_a_view_does_not_wait_for_a_successor() {
    let mut world = World::formed(1, 5, true);
    for node in [1, 2, 4] {
        world.net.crash(NodeId(node));
    }
    world.run_until("the others end", |world| world.ended(3).is_some() && world.ended(5).is_some());
    assert!(world.members.values().all(|member| member.proposed.is_empty()));
}

#[test]
fn a_node_that_was_given_up_says_so_whatever_it_saw_before() {
    for first in [None, Some(BreakReason::PeerClosed)] {
        let mut world = World::formed(1, 3, false);
        let now = world.net.now();
        let member = world.member(3);
        if let Some(reason) = first {
            member.membership.input(Input::Broken(NodeId(2), reason), &mut member.effects);
            member.step(now);
        }
        member.membership.input(Input::Broken(NodeId(1), BreakReason::GivenUp), &mut member.effects);
        member.step(now);
        assert_eq!(world.ended(3), Some(&EndReason::GivenUp { by: NodeId(1) }));
    }
}

#[test]
fn a_node_that_hears_of_no_failure_ends_a_moment_after_the_one_that_left() {
    let mut world = World::formed(1, 3, false);
    let left = world.net.now();
    let member = world.member(3);
    member.membership.input(Input::Broken(NodeId(2), BreakReason::PeerClosed), &mut member.effects);
    member.step(left);
    assert_eq!(world.ended(3), None, "whoever gave it up would say so now");
    world.run_until("member 3 ends", |world| world.ended(3).is_some());
    assert_eq!(world.ended(3), Some(&EndReason::Lost { node: NodeId(2), reason: BreakReason::PeerClosed }));
    assert!(world.net.now().since(left) <= FAILURE_TIMEOUT / 8, "{:?}", world.net.now().since(left));
}
