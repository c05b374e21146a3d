//! The engine thread: steps the core, runs short applications, and decides when to sleep.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crossbeam::channel::{Receiver, Sender};
use squall_fabric::{Fabric, Time, Wait, Waker};
use squall_membership::{EndReason, ShardId};
use squall_ordered::{DeliverError, Undelivered};

use super::{
    delivery_thread::DeliveryThread,
    idle::{Idle, Rest},
    run_delay::RunDelay,
};
use crate::{
    delivery::Task,
    group::GroupControl,
    node::Outside,
    node_core::{CoreEffect, NodeCore},
    status::{BulkStatus, GroupStatus, MemberStatus, Status},
};

/// How many turns the engine delivers before it looks at the fabric again.
const BATCH: usize = 512;

/// So many overruns while a group is watched move it to a thread of its own.
const OVERRUNS: u32 = 3;

/// How long a group is watched after a batch of its calls took too long. A thread can lose its core in the middle of a short
/// call, which only a look at the kernel's count, before and after, can tell; too dear for every call.
const WATCH: Duration = Duration::from_secs(10);

/// What other threads ask of the engine.
#[derive(Debug)]
pub(crate) enum Request {
    /// End the node's part in all groups, and the thread.
    Stop,
    /// Say how things are.
    Status(Sender<Status>),
    /// A delivery thread met a faulty sender.
    Faulty(ShardId, DeliverError),
}

/// A group, as its engine sees it.
pub(crate) struct GroupSlot {
    pub(crate) control: Arc<dyn GroupControl>,
    home: Home,
    /// Overruns since it has been watched.
    overruns: u32,
    watched_until: Time,
}

/// Where a group's application runs.
enum Home {
    Engine(Box<dyn Task>),
    Thread(DeliveryThread),
    /// It met a faulty sender, and waits for its end.
    Stuck(Box<dyn Task>),
    Ended,
}

impl GroupSlot {
    pub(crate) fn new(task: Box<dyn Task>, control: Arc<dyn GroupControl>) -> GroupSlot {
        GroupSlot { control, home: Home::Engine(task), overruns: 0, watched_until: Time::ZERO }
    }

    fn end(&mut self, undelivered: Vec<Undelivered>, reason: EndReason) {
        match &mut self.home {
            Home::Engine(task) | Home::Stuck(task) => {
                task.end(&undelivered, &reason);
                self.home = Home::Ended;
            }
            // The thread stays until the node goes, since its application may be in the middle of a call.
            Home::Thread(thread) => thread.end(undelivered, reason),
            Home::Ended => {}
        }
    }
}

/// A running node's engine.
pub(crate) struct Engine<F> {
    pub(crate) core: NodeCore<F>,
    pub(crate) groups: BTreeMap<ShardId, GroupSlot>,
    pub(crate) requests: Receiver<Request>,
    /// For delivery threads.
    pub(crate) to_self: Sender<Request>,
    pub(crate) outside: Arc<Outside>,
    pub(crate) waker: Waker,
    pub(crate) idle: Idle,
    pub(crate) short_limit: Duration,
    pub(crate) effects: Vec<CoreEffect>,
}

impl<F: Fabric + Wait> Engine<F> {
    /// Runs until the node is asked to stop. A group that ended before stays, so that callers learn why.
    pub(crate) fn run(mut self) {
        let span = tracing::info_span!("engine", node = self.core.fabric().node().0);
        let _entered = span.enter();
        let run_delay = RunDelay::of_this_thread();
        let mut armed = false;
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
                self.idle.found();
                continue;
            }
            if std::mem::take(&mut armed) {
                // Armed, looked once more, and found nothing: what comes from now on signals this thread.
                let until = self.deadline();
                self.core.fabric().wait(until);
                continue;
            }
            match self.idle.rest() {
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

    /// One look at everything. Returns whether there was something to do, and whether the thread shall end.
    fn turn(&mut self, now: Time, run_delay: &RunDelay) -> (bool, bool) {
        let mut busy = self.core.step(now, &mut self.effects);
        busy |= self.carry_out();
        busy |= self.deliver(now, run_delay);
        let mut stop = false;
        while let Ok(request) = self.requests.try_recv() {
            busy = true;
            match request {
                Request::Stop => stop = true,
                Request::Status(reply) => {
                    // Who asked may have gone.
                    let _ = reply.send(self.status());
                }
                Request::Faulty(shard, error) => self.core.faulty(shard, &error, &mut self.effects),
            }
        }
        (busy, stop)
    }

    fn carry_out(&mut self) -> bool {
        let any = !self.effects.is_empty();
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            match effect {
                CoreEffect::Created { .. } => unreachable!("shards are created when the node starts"),
                CoreEffect::Formed(view) => self.outside.formed(view),
                CoreEffect::Deliver(shard) => {
                    if let Some(Home::Thread(thread)) = self.groups.get(&shard).map(|group| &group.home) {
                        thread.wake();
                    }
                }
                CoreEffect::Freed(shard) => {
                    if let Some(group) = self.groups.get(&shard) {
                        group.control.on_freed();
                    }
                }
                CoreEffect::FreedBulk(shard) => {
                    if let Some(group) = self.groups.get(&shard) {
                        group.control.on_freed_bulk();
                    }
                }
                CoreEffect::End { shard, undelivered, reason } => {
                    if let Some(group) = self.groups.get_mut(&shard) {
                        group.end(undelivered, reason);
                    }
                }
                CoreEffect::Ended(reason) => self.outside.ended(reason),
            }
        }
        self.effects = effects;
        any
    }

    /// Runs the applications that live on this thread, and wakes those that don't if somebody asked them something.
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
                        Err(error) => {
                            if let Home::Engine(task) = std::mem::replace(&mut group.home, Home::Ended) {
                                group.home = Home::Stuck(task);
                            }
                            self.core.faulty(shard, &error, &mut self.effects);
                        }
                    }
                }
                Home::Thread(thread) if group.control.wants_delivery() => thread.wake(),
                Home::Thread(_) | Home::Stuck(_) | Home::Ended => {}
            }
        }
        busy
    }

    /// When something is due even if nothing happens.
    fn deadline(&self) -> Time {
        let tasks = self.groups.values().filter_map(|group| match &group.home {
            Home::Engine(task) => task.deadline(),
            Home::Thread(_) | Home::Stuck(_) | Home::Ended => None,
        });
        tasks.chain([self.core.deadline()]).min().unwrap_or(Time::MAX)
    }

    fn status(&self) -> Status {
        let view = self.core.view();
        let groups = self.groups.iter().map(|(&shard, group)| {
            let members = view.shard(shard).map(|shard| shard.members.as_slice()).unwrap_or_default();
            let row = |&node| {
                let row = self.core.row(shard, node).unwrap_or_default();
                MemberStatus { node, sent: row.sent, received: row.received, delivered: row.delivered }
            };
            let (messages, bytes) = self.core.bulk_in_flight(shard);
            GroupStatus {
                bulk: BulkStatus { messages, bytes },
                name: group.control.name().to_owned(),
                members: members.iter().map(row).collect(),
                own_thread: matches!(group.home, Home::Thread(_)),
                counts: group.control.counts(),
            }
        });
        Status { view: Arc::clone(view), ended: self.outside.end_reason(), groups: groups.collect() }
    }

    fn stop(&mut self, run_delay: &RunDelay) {
        self.core.stop(&mut self.effects);
        // Whatever is stable is still delivered; an application that does not return is not waited for here, but when its
        // thread is joined.
        let until = Time::boot_clock() + Duration::from_secs(1);
        while !self.core.is_ended() && Time::boot_clock() < until {
            let now = Time::boot_clock();
            self.core.step(now, &mut self.effects);
            self.carry_out();
            self.deliver(now, run_delay);
            std::thread::yield_now();
        }
        self.carry_out();
        for group in self.groups.values_mut() {
            group.end(Vec::new(), EndReason::ShutDown);
        }
        self.outside.ended(EndReason::ShutDown);
        self.core.disconnect();
        let now = Time::boot_clock();
        self.core.step(now, &mut self.effects);
    }
}

impl<F> Drop for Engine<F> {
    /// If an application panicked on this thread, those outside must not wait for ever. In order, they know already.
    fn drop(&mut self) {
        self.outside.ended(EndReason::Panicked);
    }
}

fn overran(group: &mut GroupSlot, shard: ShardId, requests: &Sender<Request>, waker: &Waker) {
    group.overruns += 1;
    group.control.count_overrun();
    if group.overruns < OVERRUNS {
        return;
    }
    if let Home::Engine(task) = std::mem::replace(&mut group.home, Home::Ended) {
        tracing::warn!(group = task.name(), "its calls are not short: it moves to a thread of its own");
        group.home = match DeliveryThread::start(shard, task, requests.clone(), waker.clone()) {
            Ok(thread) => Home::Thread(thread),
            Err(task) => Home::Engine(task),
        };
        group.overruns = 0;
    }
}
