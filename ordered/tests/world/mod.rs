//! A cluster of shards in virtual time, and what must be true of it.
//!
//! Every member is driven as a runtime would: its engine is stepped when the network has something for it, when the last
//! step was busy, and when one of its threads wakes it; its deliverer runs when the engine says so, later, and a few
//! messages at a time. A wake-up that is missing shows as a world that stands still.

mod member;
mod oracle;
mod reluctant;

use std::{cell::RefCell, rc::Rc, time::Duration};

use fastrand::Rng;
use squall_fabric::{
    NodeId, Time,
    sim::{SimConfig, SimNet},
};
use squall_membership::{Epoch, Incarnation, Member as ViewMember, Rank, Seq, ShardId, ShardView, View};
use squall_ordered::{BulkPath, Mode, ShardConfig, Undelivered};

pub(crate) use member::Member;
pub(crate) use oracle::{Entry, Oracle, Wrong};

/// What a run is like. All times are upper bounds of random ones.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) members: usize,
    /// The members that may send, by index.
    pub(crate) senders: Vec<usize>,
    pub(crate) mode: Mode,
    pub(crate) ring_bytes: usize,
    pub(crate) net: SimConfig,
    /// Of 256 posts, so many find the queue full at that moment.
    pub(crate) refused: u8,
    /// How many messages each member sends (of those that may).
    pub(crate) messages: Vec<usize>,
    /// Small messages are at most so long.
    pub(crate) max_bytes: usize,
    pub(crate) bulk: Option<BulkPlan>,
    /// How many reads each member asks for.
    pub(crate) reads: usize,
    /// Between two messages, or two reads, of a member.
    pub(crate) pace: Duration,
    /// From when a deliverer is woken to when it runs.
    pub(crate) delivery_delay: Duration,
    /// How many turns a deliverer takes at a time.
    pub(crate) batch: usize,
    pub(crate) end: Option<End>,
    pub(crate) fault: Option<Fault>,
}

/// What the bulk messages are like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BulkPlan {
    /// Of 256 messages, so many are around the threshold or above.
    pub(crate) share: u8,
    pub(crate) threshold: usize,
    pub(crate) reserve: usize,
    pub(crate) block: usize,
    pub(crate) path: BulkPath,
}

impl BulkPlan {
    fn random(rng: &mut Rng) -> BulkPlan {
        let block = 64 << rng.u32(..4);
        BulkPlan {
            share: [10, 80, 255][rng.usize(..3)],
            threshold: [0, 40, 100, 255, 600][rng.usize(..5)],
            reserve: block * [1, 2, 5, 40][rng.usize(..4)] + rng.usize(..block),
            block,
            path: if rng.bool() { BulkPath::Network } else { BulkPath::SharedMemory },
        }
    }

    /// A length: near one of the borders, or of any number of blocks.
    pub(crate) fn length(&self, most: usize, rng: &mut Rng) -> usize {
        let near = match rng.u8(..5) {
            0 => self.threshold,
            1 => self.block * rng.usize(1..=3),
            2 => most,
            _ => rng.usize(..=most),
        };
        (near + rng.usize(..3)).saturating_sub(1).min(most)
    }
}

/// How the view ends.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) at: Duration,
    /// They stop at once.
    pub(crate) crashed: Vec<usize>,
    /// They are cut off from all others, and learn later that they were dropped.
    pub(crate) cut_off: Vec<usize>,
    /// They take part, and the trim is computed without their counts: they leave, or are not complete yet.
    pub(crate) uncounted: Vec<usize>,
    /// The others wedge within this time.
    pub(crate) wedge_within: Duration,
}

/// Breaks a rule, to show that the checks notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Cleans up to the largest final `received`.
    TrimMax,
    /// Cleans up to less than the smallest one.
    TrimShort,
    /// Takes the final `received`, and goes on receiving.
    WedgeLate,
}

impl Plan {
    /// An ordered shard in which all members send, on a fast network.
    pub(crate) fn new(members: usize) -> Plan {
        Plan {
            members,
            senders: (0..members).collect(),
            mode: Mode::Ordered,
            ring_bytes: 1024,
            net: SimConfig::fast(),
            refused: 0,
            messages: vec![30; members],
            max_bytes: 100,
            bulk: None,
            reads: 0,
            pace: Duration::from_micros(20),
            delivery_delay: Duration::from_micros(5),
            batch: 8,
            end: None,
            fault: None,
        }
    }

    /// Any plan, of the given mode.
    pub(crate) fn random(mode: Mode, rng: &mut Rng) -> Plan {
        let members = rng.usize(2..=7);
        let mut senders: Vec<usize> = (0..members).filter(|_| rng.u8(..4) > 0).collect();
        if senders.is_empty() {
            senders.push(rng.usize(..members));
        }
        let mut net = if rng.bool() { SimConfig::fast() } else { SimConfig::nasty() };
        net.queue_depth = [2, 4, 64][rng.usize(..3)];
        let talkative = rng.usize(1..60);
        let pace = Duration::from_micros([1, 10, 100][rng.usize(..3)]);
        Plan {
            senders,
            mode,
            ring_bytes: 1024 << rng.u32(..3),
            net,
            refused: [0, 3, 60][rng.usize(..3)],
            messages: (0..members).map(|_| if rng.bool() { talkative } else { rng.usize(..5) }).collect(),
            max_bytes: [0, 8, 100, 256][rng.usize(..4)],
            bulk: rng.bool().then(|| BulkPlan::random(rng)),
            reads: if mode == Mode::Ordered { rng.usize(..20) } else { 0 },
            pace,
            delivery_delay: Duration::from_micros([0, 5, 300][rng.usize(..3)]),
            batch: rng.usize(1..10),
            ..Plan::new(members)
        }
    }

    fn config(&self) -> ShardConfig {
        ShardConfig {
            mode: self.mode,
            ring_bytes: self.ring_bytes,
            bulk_threshold: self.bulk.map_or(0, |bulk| bulk.threshold),
            bulk_reserve_bytes: self.bulk.map_or(0, |bulk| bulk.reserve),
            bulk_block_bytes: self.bulk.map_or(64, |bulk| bulk.block),
            bulk_path: self.bulk.map_or(BulkPath::Network, |bulk| bulk.path),
            read_lease: Duration::ZERO,
        }
    }

    /// An end of the view: some members are lost, and more than half stay.
    /// One that is `complete` stays.
    pub(crate) fn random_end(&self, current: &[usize], complete: &[usize], rng: &mut Rng) -> End {
        let counted = complete[rng.usize(..complete.len())];
        let mut members: Vec<usize> = current.iter().copied().filter(|&member| member != counted).collect();
        rng.shuffle(&mut members);
        members.truncate(rng.usize(..=(current.len() - 1) / 2));
        let crashed = members.split_off(rng.usize(..=members.len()));
        let stays = |member: &usize| !members.contains(member) && !crashed.contains(member) && *member != counted;
        let mut is_uncounted = |member: &usize| !complete.contains(member) || rng.u8(..4) == 0;
        let uncounted = current.iter().copied().filter(stays).filter(|member| is_uncounted(member)).collect();
        let span = Duration::from_micros(500).max(self.pace * 40);
        End {
            at: Duration::from_micros(20) + within(rng, span),
            crashed,
            cut_off: members,
            uncounted,
            wedge_within: Duration::from_micros([1, 20, 2000][rng.usize(..3)]),
        }
    }
}

/// A cluster, while it runs.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) net: SimNet,
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    pub(crate) oracle: Rc<RefCell<Oracle>>,
    /// All that ever were.
    pub(crate) members: Vec<Member>,
    /// The current view.
    epoch: Epoch,
    current: Vec<usize>,
    ready: Vec<NodeId>,
}

const SHARD: ShardId = ShardId(3);

/// So many may join in the course of a run.
const JOINERS: usize = 20;

/// Node ids are not ranks.
fn node(index: usize) -> NodeId {
    NodeId(10 + 7 * index as u32)
}

fn view(epoch: Epoch, members: &[usize], senders: &[usize], complete: &[usize]) -> View {
    let nodes = |indices: &[usize]| indices.iter().map(|&index| node(index)).collect::<Vec<_>>();
    let shard = ShardView { complete: nodes(complete), ..ShardView::whole(SHARD, nodes(members), nodes(senders)) };
    View {
        epoch,
        members: nodes(members).into_iter().map(|node| ViewMember::new(node, Incarnation(1))).collect(),
        shards: vec![shard],
        joined: Vec::new(),
        left: Vec::new(),
    }
}

/// Random, up to `most`.
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
        let view = view(Epoch::FIRST, &current, &plan.senders, &current);
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
            world.add(&view);
        }
        world
    }

    /// A new node, which is a member of this view.
    fn add(&mut self, view: &View) {
        let me = self.members.len();
        let mut fabric = self.net.fabric(node(me));
        let parts = squall_ordered::create(&mut fabric, view, SHARD, &self.plan.config()).expect("a valid shard");
        let member = Member::new(me, &self.plan, fabric, parts, Rc::clone(&self.oracle), self.rng.fork());
        self.members.push(member);
    }

    /// Lets the next thing happen, not later than `limit`.
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

    /// Runs until `done` says so.
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

    /// Runs for so long.
    pub(crate) fn run_for(&mut self, time: Duration) -> Result<(), Wrong> {
        let end = self.now + time;
        while self.now < end {
            self.turn(end)?;
        }
        Ok(())
    }

    /// Until all is delivered everywhere and all reads are answered.
    pub(crate) fn run_to_rest(&mut self) -> Result<(), Wrong> {
        self.run_until("at rest", |world| {
            let accepted: u64 = world.members.iter().map(|member| member.accepted).sum();
            world.members.iter().all(|member| member.is_at_rest() && member.app.delivered() == accepted)
        })
    }

    /// The whole plan.
    pub(crate) fn run(&mut self) -> Result<(), Wrong> {
        match self.plan.end.clone() {
            None => self.run_to_rest(),
            Some(end) => {
                self.run_for(end.at)?;
                self.end_view(&end).map(drop)
            }
        }
    }

    /// Views that follow each other: members crash, are dropped, leave and join; what was accepted by one that stays is delivered
    /// once, in its sender's order, in whichever view.
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
        self.current.iter().copied().filter(|&index| self.members[index].app.is_complete()).collect()
    }

    /// Some of those that don't have the state get it, as it is now.
    fn restore_some(&mut self) {
        let complete = self.complete();
        for index in self.current.clone() {
            if !self.members[index].app.is_complete() && self.rng.bool() {
                let log = self.members[complete[self.rng.usize(..complete.len())]].app.log.clone();
                self.members[index].restore(&log);
            }
        }
    }

    /// Those that stay go on, and others join. They install the view one after another.
    fn next_view(&mut self, end: &End, mut undelivered: Vec<(usize, Vec<Undelivered>)>) -> Result<(), Wrong> {
        let was_complete = self.complete();
        // Whoever was complete and did not count was one that leaves.
        let leaves = |index: &usize| end.uncounted.contains(index) && was_complete.contains(index);
        let lost = |index: &usize| end.crashed.contains(index) || end.cut_off.contains(index) || leaves(index);
        let mut stay: Vec<usize> = self.current.iter().copied().filter(|index| !lost(index)).collect();
        self.current.iter().filter(|index| lost(index)).for_each(|&index| self.members[index].crash());
        let complete: Vec<usize> = stay.iter().copied().filter(|index| was_complete.contains(index)).collect();
        let is_sender = |&&index: &&usize| self.members[index].accepted > 0 || self.rng.u8(..4) > 0;
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
                self.add(&view);
                self.members[index].begin_backlog();
            } else if self.members[index].is_short() {
                self.members[index].begin_backlog();
            }
            if index < first_joiner {
                let to_send = if senders.contains(&index) { self.rng.usize(..200) } else { 0 };
                let resubmit = undelivered.iter_mut().find(|(at, _)| *at == index);
                let resubmit = resubmit.map(|(_, messages)| std::mem::take(messages)).unwrap_or_default();
                let (config, member) = (self.plan.config(), &mut self.members[index]);
                let parts = squall_ordered::create(member.fabric(), &view, SHARD, &config).expect("a valid shard");
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

    /// As membership would: the survivors wedge, the trim is what they all have, they clean up to it.
    /// Returns what each that lives did not deliver.
    fn end_view(&mut self, end: &End) -> Result<Vec<(usize, Vec<Undelivered>)>, Wrong> {
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
        // In any order, each at its time.
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
        let least = finals.iter().copied().min().expect("somebody stays");
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
        // Whoever was cut off goes on for a while, and learns that it was dropped.
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
