//! One simulated node: its core, its applications, and the times at which they act.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use squall_fabric::{NodeId, Time, Waker, hostile::HostileFabric, sim::SimFabric};
use squall_membership::{EndReason, HeldCopy, Input, Member, OrderEnd, ShardId, View, ViewLog};
use squall_ordered::log::Hlc;

use super::{
    clock::Clock,
    cluster::{Cluster, random},
    disks::Logging,
    options::ViewLogKind,
    transfer::StateTransfer,
};
use crate::{
    calls::{clock::Now, clock_bound::ClockBound, error::Unavailable},
    capture::exchange::ReplicaStatus,
    clients::serve::Server,
    delivery::{Task, shard_change::ShardChange},
    durable::{
        log_writer::{self, DiskLog},
        recovery::Rebuilt,
        scrub::Scrubbing,
    },
    group::control::{GroupControl, GroupSpec},
    node::{
        core::{CoreEffect, NodeCore},
        onepipe::OnePipeSlot,
        plan::Plan,
    },
};

/// An entry of the agenda.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Act {
    Step,
    Deliver(ShardId),
    /// A node asks another one for a shard's state.
    Fetch(ShardId),
    /// A shard's state has come, or the next chunk of it.
    Restore(ShardId),
    /// A node's part of the view log does what is due.
    Log,
    /// A message for a node's part of the view log arrives.
    Letter(u64),
    /// The records that were appended to a shard's log are written.
    Write(ShardId),
    /// A shard's log that had nothing to write for a while notes how far it was acknowledged.
    Note(ShardId),
    /// A snapshot of a shard's state is taken a step further.
    Snapshot(ShardId),
    /// A shard's log is read again, or repaired.
    Scrub(ShardId),
    /// A shard's log is cut.
    Cut(ShardId),
    /// The contents of all logs are reported.
    Gather,
    /// The scripted view log looks at what is pending.
    Look,
    /// A client from outside does what is due.
    Client(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunState {
    Running,
    Paused,
}

/// The core of a simulated node, which may turn hostile.
type SimCore = NodeCore<HostileFabric<SimFabric>>;

pub(super) struct SimNode {
    pub(super) core: SimCore,
    pub(super) groups: BTreeMap<ShardId, Home>,
    /// The server of clients from outside, if the node serves any.
    pub(super) server: Option<Arc<Server>>,
    /// Whether it has a disk, for its part of the view log and for durable groups.
    has_disk: bool,
    /// Whether it is to report what its logs have; if so, whether that is on the agenda.
    pub(super) gathers: Option<bool>,
    /// Whether its engine was woken from outside.
    poked: Arc<AtomicBool>,
    pub(super) state: RunState,
    /// The shards for which the calls of applications don't return. Applications have threads of their own.
    pub(super) hung: BTreeSet<ShardId>,
    /// The acts that fell due while it was paused.
    pub(super) missed: Vec<Act>,
    /// The time at which its next step is on the agenda, at the latest.
    pub(super) step_at: Time,
    /// The view that is in operation here.
    pub(super) installed: Option<Arc<View>>,
    /// All views that were installed here, in this life.
    pub(super) views: Vec<Arc<View>>,
    pub(super) ended: Option<EndReason>,
    pub(super) clock: Clock,
    /// Its clock's reading, for the threads of its applications.
    reads: Arc<AtomicU64>,
    /// Its wall clock's reading.
    wall: Arc<AtomicU64>,
    /// The nanoseconds by which its wall clock is ahead of the true time.
    pub(super) wall_ahead: i64,
    /// The time that its engine read from the clock just before it was paused.
    stale: Option<Time>,
    /// Whether nothing can be decided here for now, as its operators are told.
    pub(super) is_stalled: bool,
    /// Whether callers were told that it can't serve: it was dropped, leaves, or nothing could be decided.
    disturbed: bool,
}

pub(super) struct Home {
    task: Box<dyn Task>,
    pub(super) control: Arc<dyn GroupControl>,
    /// The time for which a delivery is on the agenda.
    due_at: Option<Time>,
    /// Whether it has ended, or goes no further.
    over: bool,
    /// State that is on its way to it.
    pub(super) transfer: Option<StateTransfer>,
    /// Whether a fetch is on the agenda.
    pub(super) fetches: bool,
    /// Whether its log differs from its last source's.
    pub(super) differs: bool,
    /// The log, of a durable group.
    pub(super) logging: Option<Logging>,
    /// Whether a write is on the agenda.
    pub(super) writes: bool,
    /// Whether it is on the agenda to note how far the log was acknowledged.
    pub(super) notes: bool,
    /// Whether a step of a snapshot is on the agenda.
    pub(super) snapshots: bool,
    /// The scrubber that looks after its log.
    pub(super) scrubbing: Option<Scrubbing>,
    /// The place at which its log is to be cut, and whether its replica must then be rebuilt from what is left.
    pub(super) cut: Option<(OrderEnd, bool)>,
    /// Whether the cut is on the agenda.
    pub(super) cuts: bool,
}

impl Home {
    /// Tells the group's task of an event. One that goes no further is told of its end alone.
    fn tell(&mut self, change: ShardChange) {
        let is_end = matches!(change, ShardChange::End { .. });
        if matches!(change, ShardChange::Outside { .. }) {
            // A node that comes back gets other messages, and another state.
            (self.over, self.transfer) = (false, None);
        }
        if self.over && !is_end {
            return;
        }
        self.over |= is_end;
        self.task.change(change);
    }
}

/// The contents of a durable group's disk, as a node's start finds them.
pub(super) struct FoundDisk {
    pub(super) log: DiskLog,
    pub(super) is_kept: bool,
    pub(super) rebuilt: Rebuilt,
    pub(super) held: Option<HeldCopy>,
}

/// The parts that a node is launched with.
pub(super) struct Launch {
    pub(super) fabric: HostileFabric<SimFabric>,
    pub(super) clock: Clock,
    pub(super) me: Member,
    pub(super) plan: Plan,
    pub(super) view_log: Box<dyn ViewLog>,
    /// The groups, in the order of their names.
    pub(super) specs: Vec<Box<dyn GroupSpec>>,
    /// The slots of its 1Pipe groups, in the order of their names.
    pub(super) pipe_slots: Vec<Arc<OnePipeSlot>>,
    /// The logs of durable groups.
    pub(super) logs: BTreeMap<ShardId, FoundDisk>,
    pub(super) server: Option<Arc<Server>>,
}

/// The time of day in a simulated world, in nanoseconds since 1970. It begins in 2026.
pub(super) fn true_time(now: Time) -> u64 {
    1_795_000_000_000_000_000 + now.as_nanos()
}

impl SimNode {
    pub(super) fn launch(cluster: &Cluster, launch: Launch) -> SimNode {
        let Launch { fabric, clock, me, plan, view_log, specs, pipe_slots, mut logs, server } = launch;
        let has_disk = cluster.options.view_log == ViewLogKind::RaftOnDisks;
        let (now, wall_ahead) = (cluster.net.now(), cluster.walls.get(&me.node).copied().unwrap_or(0));
        let reads = Arc::new(AtomicU64::new(clock.at(now).as_nanos()));
        let wall = Arc::new(AtomicU64::new(true_time(now).saturating_add_signed(wall_ahead)));
        let bound = Arc::new(ClockBound::new(cluster.config.clock_limit()));
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
            let log_writer = logging.as_ref().map(|logging| Arc::clone(&logging.log_writer));
            let clock = Now::Virtual { boot: Arc::clone(&reads), wall: Arc::clone(&wall) };
            let (task, control) = spec.attach(me.node, waker.clone(), clock, Arc::clone(&bound), log_writer);
            let home = Home {
                task,
                control,
                due_at: None,
                over: false,
                transfer: None,
                fetches: false,
                differs: false,
                logging,
                writes: false,
                notes: false,
                snapshots: false,
                scrubbing: None,
                cut: None,
                cuts: false,
            };
            (shard, home)
        };
        let groups = plan.shards.keys().zip(specs).map(attach).collect();
        pipe_slots.iter().for_each(|slot| slot.attach(waker.clone()));
        let pipe_slots = plan.pipes.into_iter().zip(pipe_slots).collect();
        let mut core =
            NodeCore::new(fabric, me.clone(), plan.settings, plan.shards, pipe_slots, view_log, Arc::clone(&bound));
        if has_disk {
            core.input(Input::Held(held), &mut Vec::new());
        }
        SimNode {
            core,
            groups,
            server,
            has_disk,
            gathers: None,
            poked,
            state: RunState::Running,
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

    /// Stops its threads where they are.
    pub(super) fn pause(&mut self, now: Time) {
        self.state = RunState::Paused;
        // It may stop anywhere, so also between a look at the clock and what follows from it.
        self.stale = Some(self.clock.at(now));
    }

    /// Ends its groups, since its process is gone: callers that wait in it need not wait any more.
    pub(super) fn crash(mut self) {
        for group in self.groups.values_mut() {
            group.tell(ShardChange::End { undelivered: Vec::new(), reason: EndReason::ShutDown });
        }
    }

    /// Whether it is a member with all shards complete, and has not been disturbed in this life.
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
                CoreEffect::Shard(shard, change) => {
                    if let Some(group) = self.groups.get_mut(&shard) {
                        group.tell(change);
                    }
                }
                CoreEffect::Installed(view) => {
                    self.is_stalled = false;
                    self.views.push(Arc::clone(&view));
                    self.server.iter().for_each(|server| server.install(&view));
                    self.installed = Some(view);
                }
                // What is due is found by asking the tasks.
                CoreEffect::Deliver(_) => {}
                CoreEffect::Freed(shard) => self.groups[&shard].control.admission().on_freed(),
                CoreEffect::FreedBulk(shard) => self.groups[&shard].control.admission().on_freed_bulk(),
                CoreEffect::Stamps(shard) => self.groups[&shard].control.admission().on_stamps(),
                CoreEffect::ShortOfRoom(shard, nodes) => self.groups[&shard].control.admission().refuse_for(nodes),
                CoreEffect::Dropped => {
                    (self.disturbed, self.is_stalled, self.installed) = (true, false, None);
                    self.send_away("it was dropped from the group, and joins it again");
                }
                CoreEffect::Halt { shard, why } => self.groups[&shard].control.halt(&why),
                CoreEffect::CutTo { shard, end, complete } => {
                    let Some(group) = self.groups.get_mut(&shard).filter(|group| !group.over) else { continue };
                    group.tell(ShardChange::Outside { undelivered: Vec::new(), why: Unavailable::Joining });
                    group.cut = Some((end, complete));
                }
                // For what waits for room, replicas are taken back, which they must be free for.
                CoreEffect::Returns if self.groups.values().any(Home::is_full_now) => {
                    self.gathers = self.gathers.or(self.has_disk.then_some(false));
                }
                CoreEffect::Returns if self.has_disk => self.report_held(),
                CoreEffect::Returns => {}
                CoreEffect::WaitsFor(nodes) => {
                    (self.disturbed, self.is_stalled) = (true, self.is_stalled || !nodes.is_empty());
                }
                CoreEffect::Stalled(why) => {
                    (self.disturbed, self.is_stalled) = (true, true);
                    self.send_away(&why);
                    self.groups.values_mut().for_each(|group| group.tell(ShardChange::Stalled));
                }
                CoreEffect::Ended(reason) => {
                    for group in self.groups.values_mut() {
                        group.tell(ShardChange::End { undelivered: Vec::new(), reason: reason.clone() });
                    }
                    (self.installed, self.disturbed) = (None, true);
                    self.send_away(&reason.to_string());
                    self.ended = Some(reason);
                }
            }
        }
    }

    /// Sends its clients away: it can do nothing for them until the next view.
    fn send_away(&self, why: &str) {
        self.server.iter().for_each(|server| server.send_away(why));
    }

    /// Lets the deadlines of callers whose shards hang expire, if they are due. Returns the time of the next one.
    fn expire_for_hung(&self) -> Option<Time> {
        let now = Time::from_nanos(self.reads.load(Ordering::Relaxed));
        let hung = || self.hung.iter().filter_map(|shard| self.groups.get(shard));
        hung().for_each(|group| group.control.admission().deadlines.expire(now, |waker| waker.wake()));
        hung().filter_map(|group| group.control.admission().deadlines.next()).min()
    }

    /// Ends its part if a disk has failed, if the node can't go on with what is on it, or if the group lacks what is on
    /// it. Returns true in the last case.
    fn watch_disks(&mut self, effects: &mut Vec<CoreEffect>) -> bool {
        let log_writers = self.groups.values().filter_map(|group| Some(&group.logging.as_ref()?.log_writer));
        let (is_ended, mut any_went_back) = (self.core.is_ended(), false);
        for (reason, went_back) in log_writer::end_reasons(log_writers).filter(|_| !is_ended) {
            self.core.fail(reason, effects);
            any_went_back |= went_back;
        }
        any_went_back
    }

    /// Tells the core which shards are complete here.
    fn complete(&mut self, effects: &mut Vec<CoreEffect>) {
        for (&shard, group) in self.groups.iter().filter(|(_, group)| !group.over) {
            if group.control.replica_status() == ReplicaStatus::Complete {
                self.core.complete(shard, effects);
            }
        }
    }
}

impl Cluster {
    /// Does something with a node's core, and what follows from it.
    pub(super) fn with_core(&mut self, id: NodeId, with: impl FnOnce(&mut SimCore, &mut Vec<CoreEffect>)) {
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
        let of_hung = node.expire_for_hung();
        let deadline =
            node.clock.when(of_hung.map_or(node.core.deadline(), |deadline| deadline.min(node.core.deadline())));
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
            if group.cut.is_some() && !std::mem::replace(&mut group.cuts, true) {
                puts.push((now + random(&mut self.rng, self.options.transfer_delay), Act::Cut(shard)));
            }
            let is_lacking = matches!(group.control.replica_status(), ReplicaStatus::Incomplete { .. });
            if is_lacking && group.transfer.is_none() && !std::mem::replace(&mut group.fetches, true) {
                puts.push((now + random(&mut self.rng, self.options.transfer_delay), Act::Fetch(shard)));
            }
            let at = if node.hung.contains(&shard) {
                continue;
            } else if group.task.is_due() {
                now + random(&mut self.rng, self.options.delivery_delay)
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
        if node.gathers == Some(false) {
            node.gathers = Some(true);
            puts.push((now + random(&mut self.rng, self.options.transfer_delay), Act::Gather));
        }
        for (at, act) in puts {
            self.put(at, id, act);
        }
        self.schedule_writes(id);
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
