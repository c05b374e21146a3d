//! 1Pipe for programs: scatterings in one total order by timestamps, driven by the calling thread.
//!
//! A *scattering* is a group of messages to different receivers that takes effect at one logical time: every receiver
//! gets its messages in the order of their timestamps, ties by sender. There is no sequencer that all messages would
//! have to pass. With [best effort](Mode::BestEffort) a message may be lost when a process fails. A
//! [reliable](Mode::Reliable) scattering is delivered by all its receivers that stay alive, or by none, and then its
//! sender is [told](PipeEvent::Undeliverable).
//!
//! No thread runs but the caller's. It spins while it waits and there are cores, yields where ranks share them, and
//! sleeps when the wait is long.
//!
//! ```no_run
//! use std::time::Duration;
//! use squall_fabric::{NodeId, shm::{ShmConfig, ShmFabric}};
//! use squall_onepipe::{HostClock, Message, Mode, OnePipeConfig, Pipe, Unsettled, tag};
//! use squall_runtime::Spin;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Four processes of one host run this, as nodes 0 to 3.
//! let me = NodeId(0);
//! let fabric = ShmFabric::open(ShmConfig::new("orders", me))?;
//! let config = OnePipeConfig::new((0..4).map(NodeId).collect(), tag(0, 1));
//! let mut pipe = Pipe::create(fabric, config, HostClock::default(), Unsettled, Spin::Auto, 4)?;
//! pipe.form(Duration::from_secs(30))?;
//!
//! // Takes effect at ranks 1 and 3 at the same time.
//! let orders = [Message { to: 1, bytes: b"debit 5" }, Message { to: 3, bytes: b"credit 5" }];
//! pipe.scatter(Mode::BestEffort, &orders, Duration::from_secs(1))?;
//! pipe.receive(Mode::BestEffort, 64, Duration::from_millis(10), |delivery| {
//!     println!("{} from rank {}: {:?}", delivery.stamp, delivery.sender, delivery.bytes);
//! });
//! # Ok(())
//! # }
//! ```
//!
//! # Failures
//!
//! When a rank fails, the others deliver nothing beyond its last barrier until its failure is settled, by a
//! [`Controller`].

#[cfg(all(test, not(squall_loom)))]
mod tests;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use squall_fabric::{Completion, Fabric, GroupTag, NodeId, NodeList, Time, Wait, Waker};
use squall_runtime::{Backoff, BackoffProfile, CoreBudget, Rest, Spin, cores};

use crate::{
    Clock, Controller, CreateError, Delivery, Directive, HostClock, Message, Mode, OnePipe, OnePipeConfig, PipeEvent,
    ScatterError, ScatteringId,
};

/// The layer of 1Pipe groups' connections, among those of other layers.
const LAYER: u32 = 4;

/// The number of steps that find something between two polls of the fabric. On some networks it moves data only when it
/// is polled, and a poll reports failures.
const STEPS_PER_POLL: u32 = 32;

/// The name of a group's connections: its number, and an instance among the groups with this number.
///
/// All its ranks give the same. No two groups of a node may have the same name at a time, nor one after another whose
/// connections may still be there: count `instance` up.
pub fn tag(number: u32, instance: u64) -> GroupTag {
    GroupTag { layer: LAYER, group: number, epoch: instance }
}

/// The reason why a group was not formed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormError {
    /// Some ranks did not appear. They may still: [`form`](Pipe::form) can be called again.
    #[error(
        "{} did not appear within {limit:?}: look whether they run, and form a group of the same nodes in the same order, \
         under the same tag (those that take their places in a view, in the same one)",
        NodeList(missing)
    )]
    Missing {
        /// The nodes that are not reached.
        missing: Vec<NodeId>,
        /// The time for which they were awaited.
        limit: Duration,
    },
    /// A rank and this one can't work together. No [`form`](Pipe::form) with it will succeed, but the view keeps it.
    #[error("{node} is not in the same group: {why}; make all ranks from the same configuration, and form a new group")]
    Refused {
        /// The node of that rank.
        node: NodeId,
        /// The difference.
        why: String,
    },
    /// The end of the group at this node, which was dropped from its view, or by a restart.
    #[error("this rank is no longer in its group: form another")]
    Ended,
}

/// A controller that settles no failures: when a rank fails, the ranks that are left deliver no more than what was sent
/// before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unsettled;

impl Controller for Unsettled {
    fn suspect(&mut self, _epoch: u64, _rank: usize) {}

    fn report(&mut self, _epoch: u64, _barrier: u64) {}

    fn poll(&mut self, _now: Time) -> Option<Directive> {
        None
    }
}

/// The causes that end a rank's sleep besides the writes of other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// Events, and a thread that wakes it.
    ForNews,
    /// A wait for neither of these: a call that waits for something else leaves them to [`Pipe::receive`].
    Regardless,
}

/// One rank of a 1Pipe group on a fabric of its own, for the thread that drives it.
///
/// It makes progress only in its methods. Dropped, it has failed to the others, as when it is [closed](Pipe::close).
pub struct Pipe<F, C, K = HostClock> {
    fabric: F,
    pipe: OnePipe<K>,
    controller: C,
    completions: Vec<Completion>,
    /// The event that was taken from the group, and not yet by the application.
    event: Option<PipeEvent>,
    woken: Arc<AtomicBool>,
    backoff: Backoff,
    /// The time of the last turn.
    now: Time,
    /// The number of steps since the last poll of the fabric.
    steps: u32,
}

impl<F: Fabric + Wait, C: Controller, K: Clock> Pipe<F, C, K> {
    /// Makes a rank, which begins to connect. `controller` settles failures; `spin` decides how the thread waits, on a
    /// host that runs `nodes` of the ranks.
    ///
    /// The fabric is the group's own. Where it listens on ports (`tcp`, `verbs`), these are others than those of the
    /// process's node.
    ///
    /// The clocks of all ranks have one origin. On one host that is [`HostClock::default`], the time since it booted.
    /// Several hosts may have booted days apart, and a message would wait as long to be delivered. There each rank
    /// gives the reading of its synchronised clock, as `HostClock::that_shows(nanoseconds_since_1970,
    /// Time::boot_clock())`.
    ///
    /// Fails if the nodes are not different ones with this one among them, if the rings or racks are not possible, or
    /// if the memory can't be registered.
    pub fn create(
        mut fabric: F,
        config: OnePipeConfig,
        clock: K,
        controller: C,
        spin: Spin,
        nodes: usize,
    ) -> Result<Pipe<F, C, K>, CreateError> {
        let gate = controller.gate().cloned().unwrap_or_default();
        let pipe = OnePipe::with_gate(&mut fabric, config, clock, gate)?;
        Ok(Pipe {
            fabric,
            pipe,
            controller,
            completions: Vec::new(),
            event: None,
            woken: Arc::default(),
            backoff: Backoff::new(BackoffProfile::rank(spin, CoreBudget::of_this_host(nodes))),
            now: Time::boot_clock(),
            steps: 0,
        })
    }

    /// Waits until all ranks are there, for `limit` at most. Fails if a rank does not appear within `limit`, if one
    /// belongs to another group, or if this rank is no longer in the group.
    pub fn form(&mut self, limit: Duration) -> Result<(), FormError> {
        let until = Time::boot_clock() + limit;
        while !self.pipe.is_connected() {
            if self.pipe.has_ended() {
                return Err(FormError::Ended);
            }
            if let Some((rank, why)) = self.pipe.refused() {
                return Err(FormError::Refused { node: self.pipe.config().nodes[rank], why: why.to_owned() });
            }
            if self.now >= until {
                let nodes = &self.pipe.config().nodes;
                let missing = (0..nodes.len()).filter(|&rank| !self.pipe.is_reached(rank)).map(|rank| nodes[rank]);
                return Err(FormError::Missing { missing: missing.collect(), limit });
            }
            if !self.turn() {
                self.rest(until, Waits::Regardless);
            }
        }
        Ok(())
    }

    /// The rank, for its figures and state.
    pub fn onepipe(&self) -> &OnePipe<K> {
        &self.pipe
    }

    /// The fabric.
    pub fn fabric(&mut self) -> &mut F {
        &mut self.fabric
    }

    /// A waker that any thread may use. It makes [`receive`](Pipe::receive) return, if it waits or the next time that
    /// it would.
    pub fn waker(&self) -> Waker {
        let (woken, waker) = (Arc::clone(&self.woken), self.fabric.waker());
        Waker::new(move || {
            woken.store(true, Ordering::Release);
            waker.wake();
        })
    }

    /// Takes a scattering, which leaves in the next call that waits, or with [`push`](Pipe::push). Scatterings that
    /// gather until then go out together.
    ///
    /// While as many wait for room as may, it waits, for `limit` at most; then it fails with [`ScatterError::Full`].
    /// Room comes from receivers that receive: where every rank only scatters, all wait in vain.
    pub fn scatter(
        &mut self,
        mode: Mode,
        messages: &[Message<'_>],
        limit: Duration,
    ) -> Result<ScatteringId, ScatterError> {
        let mut until = None;
        loop {
            match self.pipe.scatter(Time::boot_clock(), mode, messages) {
                Err(full @ ScatterError::Full { .. }) => {
                    let busy = self.turn();
                    let until = *until.get_or_insert(self.now + limit);
                    if self.now >= until {
                        return Err(full);
                    }
                    if !busy {
                        self.rest(until, Waits::Regardless);
                    }
                }
                taken => return taken,
            }
        }
    }

    /// Sends the gathered scatterings, and makes whatever progress there is.
    pub fn push(&mut self) {
        self.turn();
        self.look();
    }

    /// Hands over messages of a mode in their order, at most `max`, and returns how many. It waits for the first, for
    /// `limit` at most; less if another thread [wakes](Pipe::waker) this one.
    ///
    /// While there is an [event](Pipe::next_event) that was not taken, it returns 0 at once: messages that others sent
    /// after a failure was settled come after the application was told of that.
    pub fn receive(&mut self, mode: Mode, max: usize, limit: Duration, sink: impl FnMut(Delivery<'_>)) -> usize {
        self.receive_of(&[mode], max, limit, sink)
    }

    /// Hands over messages of both modes, each mode's in its order and at most `max` of each, reliable ones first.
    /// Otherwise it is as [`receive`](Pipe::receive).
    pub fn receive_any(&mut self, max: usize, limit: Duration, sink: impl FnMut(Delivery<'_>)) -> usize {
        self.receive_of(&[Mode::Reliable, Mode::BestEffort], max, limit, sink)
    }

    #[inline]
    fn receive_of(&mut self, modes: &[Mode], max: usize, limit: Duration, mut sink: impl FnMut(Delivery<'_>)) -> usize {
        let mut until = None;
        loop {
            let busy = self.turn();
            if self.has_event() {
                return 0;
            }
            let received: usize = modes.iter().map(|&mode| self.pipe.deliver(mode, max, &mut sink)).sum();
            if received > 0 {
                self.backoff.found();
                return received;
            }
            if self.was_woken() {
                return 0;
            }
            let until = *until.get_or_insert(self.now + limit);
            if self.now >= until {
                return 0;
            }
            if !busy {
                self.rest(until, Waits::ForNews);
            }
        }
    }

    /// The next event, if there is one. While there is one, [`receive`](Pipe::receive) hands over nothing.
    pub fn next_event(&mut self) -> Option<PipeEvent> {
        self.has_event();
        self.event.take()
    }

    /// Closes all connections. To the others, this rank has failed.
    pub fn close(mut self) {
        self.disconnect();
    }

    fn has_event(&mut self) -> bool {
        if self.event.is_none() {
            self.event = self.pipe.next_event();
        }
        self.event.is_some()
    }

    /// Whether another thread woke this one since the last call.
    fn was_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::Acquire)
    }

    /// Makes progress, and polls the fabric if there was none. Returns whether anything changed.
    #[inline]
    fn turn(&mut self) -> bool {
        self.now = Time::boot_clock();
        let mut busy = self.pipe.step(&mut self.fabric, self.now);
        self.steps += 1;
        if !busy || self.steps >= STEPS_PER_POLL {
            busy |= self.look();
        }
        busy |= self.pipe.attend(&mut self.fabric, self.now, &mut self.controller);
        if busy {
            self.backoff.found();
        }
        busy
    }

    /// Polls the fabric. Returns whether there were completions.
    fn look(&mut self) -> bool {
        self.steps = 0;
        self.fabric.poll(self.now, &mut self.completions);
        let heard = !self.completions.is_empty();
        for completion in self.completions.drain(..) {
            self.pipe.on_completion(&mut self.fabric, self.now, &completion);
        }
        heard
    }

    /// Lets time pass after a turn without progress, until `until` at the latest.
    #[inline]
    fn rest(&mut self, until: Time, waits: Waits) {
        match self.backoff.rest(Time::boot_clock) {
            Rest::Spin => std::hint::spin_loop(),
            Rest::Yield => {
                if self.backoff.is_astray(Time::boot_clock) {
                    cores::spread(self.pipe.rank());
                }
                std::thread::yield_now();
            }
            Rest::Sleep => self.sleep(until, waits),
        }
    }

    #[cold]
    fn sleep(&mut self, until: Time, waits: Waits) {
        self.fabric.arm();
        // A write from now on ends the sleep.
        let busy = self.turn();
        if busy || (waits == Waits::ForNews && (self.has_event() || self.woken.load(Ordering::Acquire))) {
            return self.fabric.disarm();
        }
        self.fabric.wait(self.pipe.deadline().min(until));
    }
}

impl<F: Fabric, C, K: Clock> Pipe<F, C, K> {
    fn disconnect(&mut self) {
        self.pipe.disconnect(&mut self.fabric);
        self.fabric.poll(self.now, &mut self.completions);
    }
}

impl<F: fmt::Debug, C, K: fmt::Debug> fmt::Debug for Pipe<F, C, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipe").field("fabric", &self.fabric).field("pipe", &self.pipe).finish_non_exhaustive()
    }
}
