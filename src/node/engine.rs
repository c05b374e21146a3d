//! The engine thread: steps the core, runs short applications, and decides when to sleep.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crossbeam::channel::{Receiver, Sender};
use squall_fabric::{NodeId, Time, Wait, Waker};
use squall_membership::{EndReason, Epoch, Input, ShardId};
use squall_runtime::{Backoff, Rest, RunDelay};
use squall_services::Caller;
use squall_view_log::Monitor;

use super::{
    group_slot::{GroupSlot, Home},
    milestones::Milestones,
    returning::{Done, Returning, waits_for},
};
use crate::{
    calls::{clock::Now, error::Unavailable},
    capture::exchange::ReplicaStatus,
    clients::admin::{EmptiedShard, StatusReport},
    delivery::{Halt, delivery_thread::DeliveryThread, shard_change::ShardChange},
    durable::log_writer::{self, LogWriter},
    fabric::NodeFabric,
    group::control::GroupControl,
    node::{
        core::{CoreEffect, NodeCore},
        rates::{LOOK_EVERY, RateMeter},
        status::{BulkStatus, GroupStatus, MemberStatus, Status},
        view_log,
        watch::NodeWatch,
    },
    state_transfer::fetcher::Fetcher,
};

/// The number of turns that the engine delivers before it looks at the fabric again.
const BATCH: usize = 512;

/// The number of overruns while a group is watched that move it to a thread of its own.
const OVERRUNS: u32 = 3;

/// The time for which a group is watched after a batch of its calls took too long. A thread can lose its core in the
/// middle of a short call. Only a look at the kernel's count, before and after, can tell that, and it is too dear for
/// every call.
const WATCH: Duration = Duration::from_secs(10);

/// The advice to operators when nothing can be decided.
const LAST_RESORT: &str = "it goes on by itself once more of them are back; if these are lost for ever, `squall recover --force \
                           --reason TEXT` lets this node go on without them";

/// The view that a node is forced to go on with, and the shards that start empty in it.
pub(crate) type Forced = (Epoch, Vec<EmptiedShard>);

/// A request of another thread to the engine.
#[derive(Debug)]
pub(crate) enum EngineRequest {
    /// Ends the node's part in all groups, and the thread.
    Stop,
    /// Gives membership the word of an operator, or of the application.
    Input(Input),
    /// Asks for the state of the node and its groups.
    Status(Sender<Status>),
    /// Asks for an operator's report, which completes the given one about the view log.
    Report(Box<StatusReport>, Sender<StatusReport>),
    /// Lets this node go on alone, on an operator's word, for this reason. The answer is the view that it will be in.
    Recover(String, Sender<Result<Forced, String>>),
    /// Says that a delivery thread goes no further.
    Halted(ShardId, Halt),
}

/// A node's counters over time, besides those of its groups.
#[derive(Debug, Default)]
pub(crate) struct NodeActivity {
    /// The time of the engine's start.
    pub(super) started: Time,
    /// The time of the next look at the counters.
    look_at: Time,
    /// The rate of clients' calls.
    pub(super) calls: RateMeter<1>,
}

/// A running node's engine.
pub(crate) struct Engine<F: NodeFabric> {
    pub(crate) core: NodeCore<F>,
    pub(crate) groups: BTreeMap<ShardId, GroupSlot>,
    /// The log writers of durable groups.
    pub(crate) log_writers: Vec<Arc<LogWriter>>,
    pub(crate) returning: Returning,
    pub(crate) monitor: Monitor,
    /// Dials other members.
    pub(crate) caller: Caller,
    pub(crate) requests: Receiver<EngineRequest>,
    /// The sender of requests for delivery threads.
    pub(crate) to_self: Sender<EngineRequest>,
    pub(crate) watch: Arc<NodeWatch>,
    /// The members that the node's configuration lists.
    pub(crate) configured: Vec<NodeId>,
    /// The points that the program waits for.
    pub(crate) milestones: Milestones,
    /// The node's own counters over time.
    pub(crate) activity: NodeActivity,
    /// The reason for which nothing can be decided, while that is so.
    pub(crate) stalled: Option<String>,
    pub(crate) waker: Waker,
    pub(crate) backoff: Backoff,
    pub(crate) short_limit: Duration,
    pub(crate) effects: Vec<CoreEffect>,
}

impl<F: NodeFabric + Wait> Engine<F> {
    /// Runs until the node is asked to stop. A group that ended before stays, so that callers learn the reason.
    pub(crate) fn run(mut self) {
        let span = tracing::info_span!("engine", node = self.core.fabric().node().0);
        let _entered = span.enter();
        let run_delay = RunDelay::of_this_thread();
        let mut armed = false;
        self.activity.started = Time::boot_clock();
        loop {
            let now = Time::boot_clock();
            let (busy, stop) = self.turn(now, &run_delay);
            if stop {
                break;
            }
            if busy {
                if std::mem::take(&mut armed) {
                    self.core.fabric().disarm();
                }
                self.backoff.found();
                continue;
            }
            if std::mem::take(&mut armed) {
                // Armed, looked once more, and found nothing: what comes from now on signals this thread.
                let until = self.deadline();
                self.core.bound().look_away();
                self.core.fabric().wait(until);
                continue;
            }
            match self.backoff.rest(Time::boot_clock) {
                Rest::Spin => std::hint::spin_loop(),
                Rest::Yield => std::thread::yield_now(),
                Rest::Sleep => {
                    self.core.fabric().arm();
                    armed = true;
                }
            }
        }
        self.stop(&run_delay);
    }

    /// Looks once at everything. Returns whether there was work, and whether the thread shall end.
    fn turn(&mut self, now: Time, run_delay: &RunDelay) -> (bool, bool) {
        let mut busy = self.core.step(now, Now::Boot.wall(), &mut self.effects);
        busy |= self.carry_out();
        busy |= self.deliver(now, run_delay);
        self.look_at_counters(now);
        self.milestones.look_at_start(now, &self.watch, || self.core.bound().is_known());
        if self.core.is_ended() {
            self.milestones.look_at_end(now, &self.watch, || self.monitor.is_voter());
        }
        self.look_after_states();
        busy |= self.return_to_group();
        if !self.core.is_ended()
            && let Some(failure) = self.monitor.failure()
        {
            let node = self.core.fabric().node();
            self.core.fail(view_log::end_reason(node, failure), &mut self.effects);
            busy = true;
        }
        let is_ended = self.core.is_ended();
        for (reason, went_back) in log_writer::end_reasons(self.log_writers.iter()).filter(|_| !is_ended) {
            if went_back {
                self.monitor.say_went_back();
            }
            self.core.fail(reason, &mut self.effects);
            busy = true;
        }
        let mut stop = false;
        while let Ok(request) = self.requests.try_recv() {
            busy = true;
            match request {
                EngineRequest::Stop => stop = true,
                EngineRequest::Input(input) => self.core.input(input, &mut self.effects),
                EngineRequest::Status(reply) => {
                    // The caller that asked may have gone.
                    let _ = reply.send(self.status());
                }
                EngineRequest::Report(known, reply) => {
                    let _ = reply.send(self.report(*known, now));
                }
                EngineRequest::Recover(reason, reply) => self.recover(reason, reply),
                EngineRequest::Halted(shard, halt) => self.core.halted(shard, halt, &mut self.effects),
            }
        }
        (busy, stop)
    }

    fn carry_out(&mut self) -> bool {
        let any = !self.effects.is_empty();
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            match effect {
                CoreEffect::Shard(shard, change) => self.tell(shard, change),
                CoreEffect::Installed(view) => {
                    let forced = !self.monitor.status().forced.is_empty();
                    self.log_writers.iter().for_each(|log_writer| log_writer.set_forced(forced));
                    self.stalled = None;
                    self.watch.installed(view, self.core.last_change());
                }
                CoreEffect::Dropped => {
                    self.stalled = None;
                    self.watch.interrupted("it was dropped from the group, and joins it again");
                }
                CoreEffect::Halt { shard, why } => self.with_control(shard, |control| control.halt(&why)),
                CoreEffect::CutTo { shard, end, complete } => {
                    // The shard's part of the view before, with which it was to go on, is void.
                    self.tell(shard, ShardChange::Outside { undelivered: Vec::new(), why: Unavailable::Joining });
                    self.returning.cut(shard, end, complete);
                }
                CoreEffect::Returns => self.returning.gather(),
                CoreEffect::WaitsFor(nodes) if nodes.is_empty() => {}
                CoreEffect::WaitsFor(nodes) => {
                    let why = waits_for(&nodes);
                    tracing::warn!(%why, "the group is to be put together again");
                    self.stalled = Some(why);
                }
                CoreEffect::Stalled(why) => {
                    let why = format!("{why}; {LAST_RESORT}");
                    tracing::warn!(%why, "the group stands still");
                    self.watch.interrupted(&why);
                    self.stalled = Some(why);
                    self.groups.values_mut().for_each(|group| group.tell(ShardChange::Stalled));
                }
                CoreEffect::Deliver(shard) => {
                    if let Some(Home::Thread(thread)) = self.groups.get(&shard).map(|group| &group.home) {
                        thread.wake();
                    }
                }
                CoreEffect::Freed(shard) => self.with_control(shard, |control| control.admission().on_freed()),
                CoreEffect::FreedBulk(shard) => self.with_control(shard, |control| control.admission().on_freed_bulk()),
                CoreEffect::Stamps(shard) => self.with_control(shard, |control| control.admission().on_stamps()),
                CoreEffect::ShortOfRoom(shard, nodes) => {
                    self.with_control(shard, |control| control.admission().refuse_for(nodes));
                }
                CoreEffect::Ended(reason) => {
                    for group in self.groups.values_mut() {
                        group.tell(ShardChange::End { undelivered: Vec::new(), reason: reason.clone() });
                    }
                    self.watch.say_ended(reason);
                }
            }
        }
        self.effects = effects;
        any
    }

    /// Takes the counters for the rates, if that is due. Heartbeats wake the thread often enough.
    fn look_at_counters(&mut self, now: Time) {
        if now < self.activity.look_at {
            return;
        }
        self.activity.look_at = now + LOOK_EVERY;
        self.groups.values_mut().for_each(|group| group.look(now));
        if let Some(clients) = self.watch.clients() {
            self.activity.calls.look(now, [clients.calls()]);
        }
    }

    /// Fetches the states that replicas lack, and reports the ones that they have.
    fn look_after_states(&mut self) {
        for (&shard, group) in &mut self.groups {
            // Else a replica that was complete in the view before would be taken for complete in this one.
            if matches!(&group.home, Home::Thread(thread) if !thread.is_up_to_date()) {
                continue;
            }
            match group.control.replica_status() {
                ReplicaStatus::Outside => group.retire(),
                ReplicaStatus::Complete => {
                    group.retire();
                    self.core.complete(shard, &mut self.effects);
                }
                ReplicaStatus::Incomplete { fetch } => {
                    let Some(view) = self.core.view() else { continue };
                    if let Some((number, fetcher)) = &group.fetcher
                        && *number == fetch
                        && !fetcher.has_failed()
                    {
                        fetcher.learn(view);
                        continue;
                    }
                    group.retire();
                    // `returning` waits until no fetch is under way, so a new one would keep it from its work for ever.
                    if self.returning.is_busy() {
                        continue;
                    }
                    let control = Arc::clone(&group.control);
                    let started = Fetcher::start(self.caller.clone(), control, shard, Arc::clone(view));
                    group.fetcher = started.map(|fetcher| (fetch, fetcher));
                }
            }
        }
    }

    /// Carries out the work on this node's logs that a restart of the group needs. Returns whether any was done.
    fn return_to_group(&mut self) -> bool {
        let Some(done) = self.returning.step(&mut self.groups) else { return false };
        match done {
            Done::Held(held) => self.core.input(Input::Held(held), &mut self.effects),
            Done::Cut(shard, Ok(())) => self.core.cut_done(shard),
            Done::Cut(_, Err(why)) => self.core.fail(EndReason::Storage(why), &mut self.effects),
        }
        true
    }

    fn with_control(&self, shard: ShardId, with: impl FnOnce(&dyn GroupControl)) {
        if let Some(group) = self.groups.get(&shard) {
            with(&*group.control);
        }
    }

    fn tell(&mut self, shard: ShardId, change: ShardChange) {
        if let Some(group) = self.groups.get_mut(&shard) {
            group.tell(change);
        }
    }

    /// Runs the applications that live on this thread. Wakes the delivery threads that were asked for something.
    fn deliver(&mut self, now: Time, run_delay: &RunDelay) -> bool {
        let mut busy = false;
        for (&shard, group) in &mut self.groups {
            match &mut group.home {
                Home::Engine(task) => {
                    if !task.is_due() && task.deadline().is_none_or(|deadline| deadline > now) {
                        continue;
                    }
                    busy = true;
                    let watched = now < group.watched_until;
                    let delayed = || if watched { run_delay.total() } else { Duration::ZERO };
                    let (began, delay) = (Time::boot_clock(), delayed());
                    let ran = task.step(now, BATCH);
                    let (delay, ended) = (delayed().saturating_sub(delay), Time::boot_clock());
                    match ran {
                        Ok(ran) => {
                            let calls = u32::try_from(ran.messages as u64 + ran.reads).unwrap_or(u32::MAX).max(1);
                            let took = ended.since(began).saturating_sub(delay);
                            let long = took > self.short_limit.saturating_mul(calls);
                            if long && watched {
                                overran(group, shard, &self.to_self, &self.waker);
                            } else if long {
                                (group.watched_until, group.overruns) = (ended + WATCH, 0);
                            }
                        }
                        Err(halt) => {
                            if let Home::Engine(task) = std::mem::replace(&mut group.home, Home::Ended) {
                                group.home = Home::Stuck(task);
                            }
                            self.core.halted(shard, halt, &mut self.effects);
                        }
                    }
                }
                // Its thread may hang.
                Home::Thread(thread) => {
                    group.control.admission().deadlines.expire(now, |waker| waker.wake());
                    if group.control.wants_delivery() {
                        thread.wake();
                    }
                }
                Home::Stuck(_) | Home::Ended => {}
            }
        }
        busy
    }

    /// The time at which something is due even if nothing happens.
    fn deadline(&self) -> Time {
        let tasks = self.groups.values().filter_map(|group| match &group.home {
            Home::Engine(task) => task.deadline(),
            // Its thread wakes itself for what else is due.
            Home::Thread(_) => group.control.admission().deadlines.next(),
            Home::Stuck(_) | Home::Ended => None,
        });
        tasks.chain([self.core.deadline(), self.milestones.deadline()]).min().unwrap_or(Time::MAX)
    }

    fn status(&self) -> Status {
        let view = self.core.view();
        let groups = self.groups.iter().map(|(&shard, group)| {
            let members =
                view.and_then(|view| view.shard(shard)).map(|shard| shard.members.as_slice()).unwrap_or_default();
            let row = |&node| {
                let row = self.core.row(shard, node).unwrap_or_default();
                MemberStatus {
                    node,
                    sent: row.sent,
                    received: row.received,
                    delivered: row.delivered,
                    persisted: row.persisted,
                }
            };
            let (messages, bytes) = self.core.bulk_in_flight(shard);
            GroupStatus {
                bulk: BulkStatus { messages, bytes },
                fetching: group.fetching(),
                name: group.control.name().to_owned(),
                members: members.iter().map(row).collect(),
                own_thread: matches!(group.home, Home::Thread(_)),
                counts: group.control.counts(),
                log: group.control.history().status(),
            }
        });
        Status { view: view.cloned(), ended: self.watch.end_reason(), groups: groups.collect() }
    }

    fn stop(&mut self, run_delay: &RunDelay) {
        self.core.input(Input::Stop, &mut self.effects);
        // Stable messages are still delivered. An application that does not return is not waited for here, but when its
        // thread is joined.
        let until = Time::boot_clock() + Duration::from_secs(1);
        while !self.core.is_ended() && Time::boot_clock() < until {
            let now = Time::boot_clock();
            self.core.step(now, Now::Boot.wall(), &mut self.effects);
            self.carry_out();
            self.deliver(now, run_delay);
            std::thread::yield_now();
        }
        self.carry_out();
        for group in self.groups.values_mut() {
            group.tell(ShardChange::End { undelivered: Vec::new(), reason: EndReason::ShutDown });
        }
        self.watch.say_ended(EndReason::ShutDown);
        self.core.end_pipe_slots(&EndReason::ShutDown);
        self.core.disconnect();
        let now = Time::boot_clock();
        self.core.step(now, Now::Boot.wall(), &mut self.effects);
    }
}

impl<F: NodeFabric> Drop for Engine<F> {
    /// Tells other threads of the end, which must not wait for ever if an application panicked on this thread. After an
    /// orderly end they know already.
    fn drop(&mut self) {
        self.watch.say_ended(EndReason::Panicked);
        self.watch.say_left();
        self.core.end_pipe_slots(&EndReason::Panicked);
        self.log_writers.iter().for_each(|log_writer| log_writer.close());
    }
}

fn overran(group: &mut GroupSlot, shard: ShardId, requests: &Sender<EngineRequest>, waker: &Waker) {
    group.overruns += 1;
    group.control.count_overrun();
    if group.overruns < OVERRUNS {
        return;
    }
    if let Home::Engine(task) = std::mem::replace(&mut group.home, Home::Ended) {
        tracing::warn!(group = task.name(), "its calls are not short: it moves to a thread of its own");
        let requests = requests.clone();
        let halted = move |shard, halt| drop(requests.send(EngineRequest::Halted(shard, halt)));
        group.home = match DeliveryThread::start(shard, task, halted, waker.clone()) {
            Ok(thread) => Home::Thread(thread),
            Err(task) => Home::Engine(task),
        };
        group.overruns = 0;
    }
}
