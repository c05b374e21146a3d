//! A cluster of shards in virtual time, and the invariants that must hold of it.
//!
//! Every member is driven as a runtime would drive it. Its engine is stepped when the network has something for it,
//! when the last step was busy, and when one of its threads wakes it. Its deliverer runs when the engine says so,
//! later, and a few messages at a time. A missing wake-up shows as a world that stands still.

mod app;
mod disk;
mod member;
mod oracle;
mod plan;
mod reluctant;

use std::{cell::RefCell, rc::Rc, time::Duration};

use fastrand::Rng;
use squall_fabric::{NodeId, Time, sim::SimNet};
use squall_membership::{ClusterId, Epoch, Incarnation, Member as ViewMember, Rank, Seq, ShardId, ShardView, View};
use squall_ordered::Undelivered;

use crate::seeds::seeds;

pub(crate) use disk::Disk;
pub(crate) use member::Member;
pub(crate) use oracle::{Entry, Oracle, Wrong};
pub(crate) use plan::{BulkPlan, End, Fault, Plan, ending};

/// Runs `one` for the first `count` seeds, or for those that the environment names.
pub(crate) fn for_seeds(count: u64, mut one: impl FnMut(u64) -> Result<(), Wrong>) {
    for seed in seeds(count) {
        if let Err(wrong) = one(seed) {
            panic!("SQUALL_SEED={seed}: {wrong}");
        }
    }
}

/// Whether some seed shows a violation.
pub(crate) fn is_noticed(plan: impl Fn(&mut Rng) -> Plan) -> bool {
    (0..300).any(|seed| World::new(plan(&mut Rng::with_seed(seed)), seed).run().is_err())
}

/// A cluster, while it runs.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) net: SimNet,
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    pub(crate) oracle: Rc<RefCell<Oracle>>,
    /// All members that ever were.
    pub(crate) members: Vec<Member>,
    /// The current view.
    epoch: Epoch,
    current: Vec<usize>,
    ready: Vec<NodeId>,
}

pub(crate) const SHARD: ShardId = ShardId(3);

/// The number of nodes that may join in the course of a run.
const JOINERS: usize = 20;

/// Node ids are not ranks.
pub(crate) fn node(index: usize) -> NodeId {
    NodeId(10 + 7 * index as u32)
}

pub(crate) fn view(epoch: Epoch, members: &[usize], senders: &[usize], complete: &[usize]) -> View {
    let nodes = |indices: &[usize]| indices.iter().map(|&index| node(index)).collect::<Vec<_>>();
    let shard = ShardView { complete: nodes(complete), ..ShardView::whole(SHARD, nodes(members), nodes(senders)) };
    View {
        life: ClusterId(1),
        epoch,
        members: nodes(members).into_iter().map(|node| ViewMember::new(node, Incarnation(1))).collect(),
        shards: vec![shard],
        joined: Vec::new(),
        left: Vec::new(),
        preferred: Default::default(),
    }
}

/// A random time, up to `most`.
fn within(rng: &mut Rng, most: Duration) -> Duration {
    Duration::from_nanos(rng.u64(..=most.as_nanos() as u64))
}

impl World {
    pub(crate) fn new(plan: Plan, seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let net = SimNet::new(plan.net.clone(), rng.u64(..));
        let nodes: Vec<NodeId> = (0..plan.members + JOINERS).map(node).collect();
        let oracle = Rc::new(RefCell::new(Oracle::new(&plan, &nodes)));
        let current: Vec<usize> = (0..plan.members).collect();
        let complete: Vec<usize> = current.iter().copied().filter(|index| !plan.incomplete.contains(index)).collect();
        let view = view(Epoch::FIRST, &current, &plan.senders, &complete);
        let mut world = World {
            plan,
            net,
            now: Time::ZERO,
            rng,
            oracle,
            members: Vec::new(),
            epoch: Epoch::FIRST,
            current,
            ready: Vec::new(),
        };
        for _ in 0..world.plan.members {
            world.add(&view, &complete);
        }
        world
    }

    /// Adds a new node, which is a member of this view.
    fn add(&mut self, view: &View, complete: &[usize]) {
        let me = self.members.len();
        let mut fabric = self.net.fabric(node(me));
        let parts = squall_ordered::create(&mut fabric, view, SHARD, &self.plan.config()).expect("a valid shard");
        let mut member = Member::new(me, &self.plan, fabric, parts, Rc::clone(&self.oracle), self.rng.fork());
        member.set_counts(complete);
        if complete.contains(&me) {
            member.begin();
        } else {
            member.begin_backlog();
        }
        self.members.push(member);
    }

    /// Lets the next event happen, not later than `limit`.
    pub(crate) fn turn(&mut self, limit: Time) -> Result<(), Wrong> {
        let due = self.members.iter().map(Member::due).min().unwrap_or(Time::MAX);
        self.now = self.net.advance(due.min(limit), &mut self.ready);
        for node in self.ready.drain(..) {
            let member = self.members.iter_mut().find(|member| member.node() == node).expect("a member's node");
            member.step(self.now)?;
        }
        for member in &mut self.members {
            member.fire(self.now)?;
        }
        self.oracle.borrow().verdict()
    }

    /// Runs until `done` holds.
    pub(crate) fn run_until(&mut self, what: &str, mut done: impl FnMut(&World) -> bool) -> Result<(), Wrong> {
        let end = self.now + Duration::from_secs(2);
        while !done(self) {
            if self.now >= end {
                return Err(Wrong(format!("within two seconds, never {what}: {}", self.status())));
            }
            self.turn(end)?;
        }
        Ok(())
    }

    /// Runs for this time.
    pub(crate) fn run_for(&mut self, time: Duration) -> Result<(), Wrong> {
        let end = self.now + time;
        while self.now < end {
            self.turn(end)?;
        }
        Ok(())
    }

    /// Runs until all messages are delivered everywhere and all reads are answered.
    pub(crate) fn run_to_rest(&mut self) -> Result<(), Wrong> {
        self.run_until("at rest", |world| {
            let accepted: u64 = world.members.iter().map(|member| member.accepted).sum();
            world.members.iter().all(|member| member.is_at_rest() && member.app.delivered() == accepted)
        })
    }

    /// Runs the whole plan.
    pub(crate) fn run(&mut self) -> Result<(), Wrong> {
        match self.plan.end.clone() {
            None => self.run_to_rest(),
            Some(end) => {
                self.run_for(end.at)?;
                self.end_view(&end).map(drop)
            }
        }
    }

    /// Runs views that follow each other: members crash, are dropped, leave and join. A message that was accepted by a
    /// member that stays is delivered once, in its sender's order, in one of the views.
    pub(crate) fn run_views(&mut self, views: u64) -> Result<(), Wrong> {
        for _ in 0..views {
            let lasts = within(&mut self.rng, Duration::from_micros(700));
            self.run_for(lasts)?;
            self.restore_some();
            self.run_for(lasts / 2)?;
            let complete = self.complete();
            let end = self.plan.random_end(&self.current, &complete, &mut self.rng);
            let undelivered = self.end_view(&end)?;
            self.next_view(&end, undelivered)?;
        }
        for _ in 0..2 {
            self.restore_some();
            self.run_for(Duration::from_millis(1))?;
        }
        self.run_until("at rest after all views", |world| {
            let at_rest = |&i: &usize| {
                let member = &world.members[i];
                let own = member.app.log.iter().filter(|entry| entry.sender == i).count() as u64;
                !member.app.is_complete() || (member.is_at_rest() && own == member.accepted)
            };
            world.current.iter().all(at_rest)
        })
    }

    fn complete(&self) -> Vec<usize> {
        self.current.iter().copied().filter(|&index| self.members[index].is_complete()).collect()
    }

    /// Gives a member that does not have the state that of another.
    pub(crate) fn restore(&mut self, index: usize, from: usize) {
        let log = self.members[from].app.log.clone();
        self.members[index].restore(self.now, &log);
    }

    /// Gives the state, as it is now, to some of the members that don't have it.
    fn restore_some(&mut self) {
        let complete = self.complete();
        for index in self.current.clone() {
            if !self.members[index].app.is_complete() && self.rng.bool() {
                let from = complete[self.rng.usize(..complete.len())];
                self.restore(index, from);
            }
        }
    }

    /// Begins the next view, with the members that stay and with new ones. They install it one after another.
    pub(crate) fn next_view(
        &mut self,
        end: &End,
        mut undelivered: Vec<(usize, Vec<Undelivered>)>,
    ) -> Result<(), Wrong> {
        let was_complete = self.complete();
        // A member that was complete and did not count is one that leaves.
        let leaves = |index: &usize| end.uncounted.contains(index) && was_complete.contains(index);
        let lost = |index: &usize| end.crashed.contains(index) || end.cut_off.contains(index) || leaves(index);
        let mut stay: Vec<usize> = self.current.iter().copied().filter(|index| !lost(index)).collect();
        self.current.iter().filter(|index| lost(index)).for_each(|&index| self.members[index].crash());
        let complete: Vec<usize> = stay.iter().copied().filter(|index| was_complete.contains(index)).collect();
        let is_sender = |&&index: &&usize| self.members[index].accepted > 0 || self.rng.u8(..4) > 0;
        self.oracle.borrow().check_disks(&complete)?;
        let senders: Vec<usize> = complete.iter().filter(is_sender).copied().collect();
        let first_joiner = self.members.len();
        let joiners = self.rng.usize(..=stay.len().min(3));
        stay.extend((first_joiner..first_joiner + joiners).take_while(|&index| index < self.plan.members + JOINERS));
        let view = view(Epoch(self.epoch.0 + 1), &stay, &senders, &complete);
        (self.epoch, self.current) = (view.epoch, stay.clone());
        self.oracle.borrow_mut().begin(&senders);
        self.plan.senders = senders.clone();
        for (rank, index) in stay.into_iter().enumerate() {
            let rank = Rank(rank as u32);
            if index >= first_joiner {
                self.add(&view, &complete);
            } else if self.members[index].is_short() {
                self.members[index].begin_backlog();
            }
            if index < first_joiner {
                let to_send = if senders.contains(&index) { self.rng.usize(..200) } else { 0 };
                let resubmit = undelivered.iter_mut().find(|(at, _)| *at == index);
                let resubmit = resubmit.map(|(_, messages)| std::mem::take(messages)).unwrap_or_default();
                let (config, member) = (self.plan.config(), &mut self.members[index]);
                let parts = squall_ordered::create(member.fabric(), &view, SHARD, &config).expect("a valid shard");
                member.set_counts(&complete);
                member.install(self.now, rank, parts, resubmit, to_send);
            } else {
                self.members[index].set_rank(rank);
            }
            let pause = within(&mut self.rng, Duration::from_micros(20));
            self.run_for(pause)?;
        }
        Ok(())
    }

    fn status(&self) -> String {
        self.members.iter().map(|member| format!("\n  {member:?}")).collect()
    }

    /// Ends the view as membership would: the survivors wedge, the trim is the prefix that they all have, and they
    /// clean up to it. Returns, for each member that lives, the messages that it did not deliver.
    pub(crate) fn end_view(&mut self, end: &End) -> Result<Vec<(usize, Vec<Undelivered>)>, Wrong> {
        for &index in &end.crashed {
            self.net.crash(self.members[index].node());
            self.members[index].crash();
        }
        let is_lost = |index: &usize| end.crashed.contains(index) || end.cut_off.contains(index);
        let survivors: Vec<usize> = self.current.iter().copied().filter(|index| !is_lost(index)).collect();
        for &a in &end.cut_off {
            for &b in self.current.iter().filter(|b| !end.cut_off.contains(b)) {
                self.net.cut(self.members[a].node(), self.members[b].node());
            }
        }
        // They wedge in any order, each at its time.
        let mut wedges: Vec<(Time, usize)> =
            survivors.iter().map(|&i| (self.now + within(&mut self.rng, end.wedge_within), i)).collect();
        wedges.sort_unstable();
        let mut finals = Vec::new();
        for (at, index) in wedges {
            self.run_for(at.since(self.now))?;
            let (early, member) = (self.plan.fault == Some(Fault::WedgeLate), &mut self.members[index]);
            let count = if early { member.received() } else { member.wedge() };
            finals.extend((!end.uncounted.contains(&index)).then_some(count));
        }
        if self.plan.fault == Some(Fault::WedgeLate) {
            self.run_for(Duration::from_micros(200))?;
            for &index in &survivors {
                self.members[index].wedge();
            }
        }
        let least = finals.iter().copied().min().expect("a member stays");
        let trim = match self.plan.fault {
            Some(Fault::TrimMax) => finals.iter().copied().max().unwrap_or(least),
            Some(Fault::TrimShort) => Seq(least.0.saturating_sub(self.plan.senders.len() as u64)),
            _ => least,
        };
        for &index in &survivors {
            let pause = within(&mut self.rng, end.wedge_within);
            self.run_for(pause)?;
            self.members[index].clean_up(trim, !end.uncounted.contains(&index))?;
        }
        self.run_until("cleaned up", |world| survivors.iter().all(|&i| world.members[i].is_ended()))?;
        // A member that was cut off goes on for a while, and then learns that it was dropped.
        self.run_for(self.plan.net.failure_timeout)?;
        for &index in &end.cut_off {
            self.members[index].abandon();
        }
        self.run_until("at a stop", |world| end.cut_off.iter().all(|&i| world.members[i].is_ended()))?;
        let alive = survivors.iter().chain(&end.cut_off);
        let undelivered: Vec<_> = alive.map(|&i| (i, self.members[i].undelivered())).collect();
        let oracle = self.oracle.borrow();
        oracle.check_end(self.epoch, trim, &self.current, &survivors, &self.members, &undelivered)?;
        Ok(undelivered)
    }
}
