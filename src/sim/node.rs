//! One simulated node: its core, its applications, and when they act.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use squall_fabric::{NodeId, Time, Waker, sim::SimFabric};
use squall_membership::{End, EndReason, Held, Member, ShardId, View, ViewLog};
use squall_ordered::log::Hlc;

use super::{clock::Clock, cluster::Cluster, disks::Logging, transfer::Cargo};
use crate::{
    clock::Now,
    clock_bound::ClockBound,
    delivery::{Installed, Task},
    error::Unavailable,
    group::{GroupControl, GroupSpec},
    journal::DiskLog,
    node_core::{CoreEffect, NodeCore},
    onepipe::Desk,
    plan::Plan,
    recovery::Rebuilt,
    scrub::Scrubbing,
    serve::Server,
    transfer::Standing,
};

/// What is on the agenda.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Act {
    Step,
    Deliver(ShardId),
    /// Ask another node for a shard's state.
    Fetch(ShardId),
    /// It has come.
    Restore(ShardId),
    /// A node's part of the view log does what is due.
    Log,
    /// A message for it arrives.
    Letter(u64),
    /// What was appended to a shard's log is written.
    Write(ShardId),
    /// A shard's log that had nothing to write for a while notes how far it was acknowledged.
    Note(ShardId),
    /// An image of a shard's state is taken a step further.
    Image(ShardId),
    /// A shard's log is read again, or repaired.
    Scrub(ShardId),
    /// A shard's log is cut.
    Cut(ShardId),
    /// The scripted view log looks at what is pending.
    Look,
    /// A client from outside does what is due.
    Client(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Paused,
}

pub(super) struct Node {
    pub(super) core: NodeCore<SimFabric>,
    pub(super) groups: BTreeMap<ShardId, Home>,
    /// The server of clients from outside, if there are any.
    pub(super) server: Option<Arc<Server>>,
    /// It has durable groups, and a disk for them.
    has_disk: bool,
    /// Somebody woke its engine from outside.
    poked: Arc<AtomicBool>,
    pub(super) state: State,
    /// The shards of which the calls of applications, which have threads of their own, don't return.
    pub(super) hung: BTreeSet<ShardId>,
    /// What it would have done while it was paused.
    pub(super) missed: Vec<Act>,
    /// When its next step is on the agenda, at the latest.
    pub(super) step_at: Time,
    /// The view that is in operation here.
    pub(super) installed: Option<Arc<View>>,
    /// All that were, in this life.
    pub(super) views: Vec<Arc<View>>,
    pub(super) ended: Option<EndReason>,
    pub(super) clock: Clock,
    /// What its clock says, for the threads of its applications.
    reads: Arc<AtomicU64>,
    /// Its wall clock's reading.
    wall: Arc<AtomicU64>,
    /// By how much that is ahead of the true time, in nanoseconds.
    pub(super) wall_ahead: i64,
    /// What its engine read from the clock just before it was paused.
    stale: Option<Time>,
    /// Nothing can be decided here for now, as its operators are told.
    pub(super) is_stalled: bool,
    /// Callers were told that it can't serve: it was dropped, leaves, or nothing could be decided.
    disturbed: bool,
}

pub(super) struct Home {
    task: Box<dyn Task>,
    pub(super) control: Arc<dyn GroupControl>,
    /// A delivery is on the agenda at this time.
    due_at: Option<Time>,
    /// It ended, or goes no further.
    over: bool,
    /// State is on its way to it.
    pub(super) cargo: Option<Cargo>,
    /// A fetch is on the agenda.
    pub(super) fetches: bool,
    /// Its log is another one than its last source's.
    pub(super) differs: bool,
    /// The log, of a durable group.
    pub(super) logging: Option<Logging>,
    /// A write is on the agenda.
    pub(super) writes: bool,
    /// It is on the agenda to note how far the log was acknowledged.
    pub(super) notes: bool,
    /// A step of an image is on the agenda.
    pub(super) images: bool,
    /// Looks after its log.
    pub(super) scrubbing: Option<Scrubbing>,
    /// Where its log is to be cut, and whether its replica must then be what is left.
    pub(super) cut: Option<(End, bool)>,
    /// That is on the agenda.
    pub(super) cuts: bool,
}

/// What was found on a durable group's disk.
pub(super) struct Found {
    pub(super) log: DiskLog,
    pub(super) is_kept: bool,
    pub(super) rebuilt: Rebuilt,
    pub(super) held: Option<Held>,
}

/// What a node is launched with.
pub(super) struct Launch {
    pub(super) fabric: SimFabric,
    pub(super) now: Time,
    pub(super) clock: Clock,
    pub(super) wall_ahead: i64,
    pub(super) clock_limit: Duration,
    pub(super) me: Member,
    pub(super) plan: Plan,
    pub(super) view_log: Box<dyn ViewLog>,
    /// Whether its part of the view log is on a disk.
    pub(super) has_disk: bool,
    /// In the order of the groups' names.
    pub(super) specs: Vec<Box<dyn GroupSpec>>,
    /// In the order of their names.
    pub(super) desks: Vec<Arc<Desk>>,
    /// Of durable groups.
    pub(super) logs: BTreeMap<ShardId, Found>,
    pub(super) server: Option<Arc<Server>>,
}

/// The time of day in a simulated world, in nanoseconds since 1970: it begins in 2026.
pub(super) fn true_time(now: Time) -> u64 {
    1_795_000_000_000_000_000 + now.as_nanos()
}

impl Node {
    pub(super) fn launch(launch: Launch) -> Node {
        let Launch { fabric, now, clock, wall_ahead, clock_limit, me, plan, view_log, .. } = launch;
        let Launch { has_disk, specs, desks, mut logs, server, .. } = launch;
        let says = clock.at(now);
        let reads = Arc::new(AtomicU64::new(says.as_nanos()));
        let wall = Arc::new(AtomicU64::new(true_time(now).saturating_add_signed(wall_ahead)));
        let bound = Arc::new(ClockBound::new(clock_limit));
        let poked = Arc::new(AtomicBool::new(false));
        let waker = {
            let poked = Arc::clone(&poked);
            Waker::new(move || poked.store(true, Ordering::Relaxed))
        };
        let mut held = BTreeMap::new();
        let attach = |(&shard, spec): (&ShardId, Box<dyn GroupSpec>)| {
            let logging = logs.remove(&shard).map(|found| {
                held.extend(found.held.map(|held| (shard, held)));
                Logging::new(found.log, &found.rebuilt, found.is_kept, waker.clone())
            });
            let journal = logging.as_ref().map(|logging| Arc::clone(&logging.journal));
            let clock = Now::Virtual { boot: Arc::clone(&reads), wall: Arc::clone(&wall) };
            let (task, control) = spec.attach(me.node, waker.clone(), clock, Arc::clone(&bound), journal);
            let home = Home {
                task,
                control,
                due_at: None,
                over: false,
                cargo: None,
                fetches: false,
                differs: false,
                logging,
                writes: false,
                notes: false,
                images: false,
                scrubbing: None,
                cut: None,
                cuts: false,
            };
            (shard, home)
        };
        let groups = plan.shards.keys().zip(specs).map(attach).collect();
        desks.iter().for_each(|desk| desk.attach(waker.clone()));
        let desks = plan.pipes.into_iter().zip(desks).collect();
        let mut core =
            NodeCore::new(fabric, me.clone(), plan.settings, plan.shards, desks, view_log, Arc::clone(&bound));
        if has_disk {
            core.hold(held, &mut Vec::new());
        }
        Node {
            core,
            groups,
            server,
            has_disk,
            poked,
            state: State::Running,
            hung: BTreeSet::new(),
            missed: Vec::new(),
            step_at: Time::MAX,
            installed: None,
            views: Vec::new(),
            ended: None,
            clock,
            reads,
            wall,
            wall_ahead,
            stale: None,
            is_stalled: false,
            disturbed: false,
        }
    }

    /// Its threads stop where they are.
    pub(super) fn pause(&mut self, now: Time) {
        self.state = State::Paused;
        // It may stop anywhere, so also between a look at the clock and what follows from it.
        self.stale = Some(self.clock.at(now));
    }

    /// Its process is gone, so those who wait in it need not any more.
    pub(super) fn crash(mut self) {
        for group in self.groups.values_mut().filter(|group| !group.over) {
            group.task.end(Vec::new(), &EndReason::ShutDown);
        }
    }

    /// Whether it is a member that may do all, and nothing has ever kept it from it in this life.
    pub(super) fn serves(&self) -> bool {
        let id = self.core.membership().me().node;
        let may_send = |view: &Arc<View>| view.shards.iter().all(|shard| shard.is_complete(id));
        !self.disturbed && self.installed.as_ref().is_some_and(may_send)
    }

    pub(super) fn is_poked(&self) -> bool {
        self.poked.swap(false, Ordering::Relaxed)
    }

    pub(super) fn set_clock(&self, now: Time) {
        self.reads.store(self.clock.at(now).as_nanos(), Ordering::Relaxed);
        self.wall.store(self.wall(now).0, Ordering::Relaxed);
    }

    /// Its wall clock's reading.
    fn wall(&self, now: Time) -> Hlc {
        Hlc(true_time(now).saturating_add_signed(self.wall_ahead))
    }

    fn carry_out(&mut self, effects: &mut Vec<CoreEffect>) {
        for effect in effects.drain(..) {
            match effect {
                CoreEffect::Created { shard, view, submitter, deliverer, undelivered: resubmit, fell_short } => {
                    let Some(group) = self.groups.get_mut(&shard).filter(|group| !group.over) else { continue };
                    group.task.install(Installed { view, shard, submitter, deliverer, resubmit, fell_short });
                }
                CoreEffect::Installed(view) => {
                    self.is_stalled = false;
                    self.views.push(Arc::clone(&view));
                    self.server.iter().for_each(|server| server.install(&view));
                    self.installed = Some(view);
                }
                // What is due is found by asking.
                CoreEffect::Deliver(_) => {}
                CoreEffect::Freed(shard) => self.groups[&shard].control.on_freed(),
                CoreEffect::FreedBulk(shard) => self.groups[&shard].control.on_freed_bulk(),
                CoreEffect::Stamps(shard) => self.groups[&shard].control.on_stamps(),
                CoreEffect::Dropped => {
                    (self.disturbed, self.is_stalled, self.installed) = (true, false, None);
                    self.send_away("it was dropped from the group, and joins it again");
                }
                CoreEffect::Halt { shard, why } => self.groups[&shard].control.halt(&why),
                CoreEffect::Keep { shard, received } => {
                    if let Some(group) = self.groups.get_mut(&shard).filter(|group| !group.over) {
                        group.task.keep(received);
                    }
                }
                CoreEffect::Outside { shard, why, undelivered } => {
                    let Some(group) = self.groups.get_mut(&shard).filter(|group| !group.over) else { continue };
                    group.cargo = None;
                    group.task.outside(undelivered, why);
                }
                CoreEffect::CutTo { shard, end, complete } => {
                    let Some(group) = self.groups.get_mut(&shard).filter(|group| !group.over) else { continue };
                    group.cargo = None;
                    group.task.outside(Vec::new(), Unavailable::Joining);
                    group.cut = Some((end, complete));
                }
                CoreEffect::Returns => {
                    if self.has_disk {
                        let held =
                            self.groups.iter().filter_map(|(&shard, group)| Some((shard, group.control.held()?)));
                        let held = held.collect();
                        self.core.hold(held, &mut Vec::new());
                    }
                }
                CoreEffect::WaitsFor(nodes) => {
                    (self.disturbed, self.is_stalled) = (true, self.is_stalled || !nodes.is_empty());
                }
                CoreEffect::Stalled(why) => {
                    (self.disturbed, self.is_stalled) = (true, true);
                    self.send_away(&why);
                    for group in self.groups.values_mut().filter(|group| !group.over) {
                        group.task.stalled();
                    }
                }
                CoreEffect::End { shard, undelivered, reason } => {
                    if let Some(group) = self.groups.get_mut(&shard) {
                        group.over = true;
                        group.task.end(undelivered, &reason);
                    }
                }
                CoreEffect::Ended(reason) => {
                    for group in self.groups.values_mut().filter(|group| !group.over) {
                        group.over = true;
                        group.task.end(Vec::new(), &reason);
                    }
                    (self.installed, self.disturbed) = (None, true);
                    self.send_away(&reason.to_string());
                    self.ended = Some(reason);
                }
            }
        }
    }

    /// It can do nothing for clients until the next view.
    fn send_away(&self, why: &str) {
        self.server.iter().for_each(|server| server.send_away(why));
    }

    /// Rings the deadlines of callers whose shards hang, and says when the next is due.
    fn ring_for_hung(&self) -> Option<Time> {
        let now = Time::from_nanos(self.reads.load(Ordering::Relaxed));
        let hung = || self.hung.iter().filter_map(|shard| self.groups.get(shard));
        hung().for_each(|group| group.control.ring(now));
        hung().filter_map(|group| group.control.rings_at()).min()
    }

    /// Ends its part if a disk has failed, if it can't go on with what is on it, or if its group lacks that: then this says so.
    fn watch_disks(&mut self, effects: &mut Vec<CoreEffect>) -> bool {
        let journals = self.groups.values().filter_map(|group| Some(&group.logging.as_ref()?.journal));
        if let Some(why) =
            journals.clone().filter_map(|journal| journal.went_back()).next().filter(|_| !self.core.is_ended())
        {
            self.core.fail(EndReason::Storage(why.to_owned()), effects);
            return true;
        }
        if let Some(reason) = journals.clone().find_map(|journal| journal.ends()).filter(|_| !self.core.is_ended()) {
            self.core.fail(reason.clone(), effects);
        }
        if let Some(why) = journals.filter_map(|journal| journal.failure()).next().filter(|_| !self.core.is_ended()) {
            self.core.fail(EndReason::Storage(why.to_owned()), effects);
        }
        false
    }

    /// Says which shards are complete here that the view does not know to be.
    fn complete(&mut self, effects: &mut Vec<CoreEffect>) {
        for (&shard, group) in self.groups.iter().filter(|(_, group)| !group.over) {
            if group.control.standing() == Standing::Complete {
                self.core.complete(shard, effects);
            }
        }
    }
}

impl Cluster {
    /// Does something with a node's core, and what follows from it.
    pub(super) fn with_core(&mut self, id: NodeId, with: impl FnOnce(&mut NodeCore<SimFabric>, &mut Vec<CoreEffect>)) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let mut effects = std::mem::take(&mut self.effects);
        with(&mut node.core, &mut effects);
        node.carry_out(&mut effects);
        self.effects = effects;
        self.schedule_log(id);
        self.step_within(id, self.options.step_delay);
    }

    pub(super) fn step(&mut self, id: NodeId) {
        self.steps += 1;
        let now = self.net.now();
        let node = self.nodes.get_mut(&id).expect("the caller has looked");
        if node.step_at <= now {
            node.step_at = Time::MAX;
        }
        let mut effects = std::mem::take(&mut self.effects);
        let (read, wall) = (node.stale.take().unwrap_or(node.clock.at(now)), node.wall(now));
        let mut busy = node.core.step(read, wall, &mut effects);
        if self.steps % 16 < 8 {
            // It sleeps until its next step. At other times it is awake, and slow.
            node.core.bound().look_away();
        }
        busy |= !effects.is_empty();
        node.carry_out(&mut effects);
        if node.watch_disks(&mut effects) {
            self.raft.say_went_back(id);
        }
        node.complete(&mut effects);
        node.carry_out(&mut effects);
        self.effects = effects;
        self.look_if_asked();
        self.schedule_log(id);
        self.schedule_deliveries(id);
        let node = &self.nodes[&id];
        let alarms = node.ring_for_hung();
        let deadline = node.clock.when(alarms.map_or(node.core.deadline(), |alarm| alarm.min(node.core.deadline())));
        if busy {
            self.step_within(id, self.options.step_delay);
        } else if deadline != Time::MAX {
            self.step_at(id, deadline.max(now + Duration::from_nanos(1)));
        }
    }

    /// Puts on the agenda what a node's applications have to do.
    pub(super) fn schedule_deliveries(&mut self, id: NodeId) {
        let now = self.net.now();
        let node = self.nodes.get_mut(&id).expect("the caller has looked");
        let mut puts = Vec::new();
        for (&shard, group) in node.groups.iter_mut().filter(|(_, group)| !group.over) {
            if group.cut.is_some() && !group.cuts {
                group.cuts = true;
                let delay = self.rng.u64(0..=self.options.transfer_delay.as_nanos() as u64);
                puts.push((now + Duration::from_nanos(delay), Act::Cut(shard)));
            }
            let is_lacking = matches!(group.control.standing(), Standing::Incomplete { .. });
            if is_lacking && group.cargo.is_none() && !group.fetches {
                group.fetches = true;
                let delay = self.rng.u64(0..=self.options.transfer_delay.as_nanos() as u64);
                puts.push((now + Duration::from_nanos(delay), Act::Fetch(shard)));
            }
            let at = if node.hung.contains(&shard) {
                continue;
            } else if group.task.is_due() {
                now + Duration::from_nanos(self.rng.u64(0..=self.options.delivery_delay.as_nanos() as u64))
            } else if let Some(deadline) = group.task.deadline() {
                node.clock.when(deadline).max(now)
            } else {
                continue;
            };
            if group.due_at.is_none_or(|due| at < due) {
                group.due_at = Some(at);
                puts.push((at, Act::Deliver(shard)));
            }
        }
        for (at, act) in puts {
            self.put(at, id, act);
        }
        self.schedule_writes(id);
    }

    /// Lets no call of a node's applications return, from now on until it is said otherwise; its engine goes on.
    pub fn hang_application(&mut self, id: NodeId, hangs: bool) {
        let shards: Vec<ShardId> = self.nodes.get(&id).iter().flat_map(|node| node.groups.keys().copied()).collect();
        shards.into_iter().for_each(|shard| self.hang_shard(id, shard.0, hangs));
    }

    /// The same of one shard.
    pub fn hang_shard(&mut self, id: NodeId, shard: u32, hangs: bool) {
        if let Some(node) = self.nodes.get_mut(&id) {
            if hangs {
                node.hung.insert(ShardId(shard));
            } else {
                node.hung.remove(&ShardId(shard));
            }
            self.schedule_deliveries(id);
        }
    }

    pub(super) fn deliver(&mut self, id: NodeId, shard: ShardId) {
        let now = self.net.now();
        // Mostly few turns at a time, so that the node acts while its application is behind.
        let max = if self.rng.bool() { self.rng.usize(1..=4) } else { 64 };
        let node = self.nodes.get_mut(&id).expect("the caller has looked");
        let Some(group) = node.groups.get_mut(&shard).filter(|group| !group.over) else { return };
        if group.due_at.is_some_and(|due| due <= now) {
            group.due_at = None;
        }
        if node.hung.contains(&shard) {
            return;
        }
        if let Err(halt) = group.task.step(node.clock.at(now), max) {
            group.over = true;
            self.with_core(id, |core, effects| core.halted(shard, halt, effects));
        }
        self.schedule_deliveries(id);
        self.step_within(id, self.options.step_delay);
    }
}
