//! Collective operations for programs: communicators on a fabric, driven by the calling thread.
//!
//! Barrier, broadcast, reduce, allreduce, gather, scatter, allgather, reduce-scatter and all-to-all, as in MPI, with
//! remote writes for messages. No thread runs but the caller's. It spins while it waits and there are cores, yields
//! where ranks share them, and sleeps when the wait is long. A rank that fails ends all operations on all others, with
//! an error that names it.
//!
//! ```no_run
//! use std::time::Duration;
//! use squall_collectives::{Builtin, Collectives, CommunicatorConfig};
//! use squall_fabric::{NodeId, shm::{ShmConfig, ShmFabric}};
//! use squall_runtime::Spin;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Four processes of one host run this, as nodes 0 to 3.
//! let me = NodeId(0);
//! let fabric = ShmFabric::open(ShmConfig::new("vectors", me))?;
//! let mut ranks = Collectives::new(fabric, Spin::Auto, 4);
//! let config = CommunicatorConfig::new((0..4).map(NodeId).collect(), Collectives::tag(0, 1));
//! let all = ranks.form(config, Duration::from_secs(30))?;
//!
//! let sums = ranks.allreduce(all, &Builtin::Sum.into(), vec![1.0, 2.0, f64::from(me.0)])?;
//! assert_eq!(sums, [4.0, 8.0, 6.0]);
//!
//! // Ranks of the same color get a communicator of their own.
//! let half = ranks.split(all, Some(me.0 % 2), 0, Duration::from_secs(30))?.expect("it has a color");
//! ranks.barrier(half)?;
//!
//! // Not blocking: other work can be done meanwhile.
//! let gathered = ranks.start(all, |all, fabric| all.start_allgather(fabric, vec![me.0]))?;
//! while !ranks.test(&gathered)? { /* other work */ }
//! assert_eq!(ranks.wait(gathered)?, [0, 1, 2, 3]);
//! ranks.close(all)?;
//! # Ok(())
//! # }
//! ```
//!
//! A process that also runs a node of a cluster opens a fabric of its own for this, under another cluster's name. A
//! communicator of a view's members has their ids, in the view's order, and the view's epoch in its
//! [tag](Collectives::tag).

mod blocking;
mod form;
mod measure;

use std::time::Duration;

use squall_fabric::{Completion, Fabric, GroupTag, Time, Wait, Waker};
use squall_runtime::{Backoff, BackoffProfile, CoreBudget, Rest, Spin, cores};

pub use self::form::FormError;
use crate::{CollectiveError, Communicator, Element, Operation};

/// The layer of communicators' connections, among those of other layers.
const LAYER: u32 = 3;

/// The number of steps without progress between two polls of the fabric. On some networks it moves data only when it is
/// polled, and a poll reports failures.
const STEPS_PER_POLL: u32 = 32;

/// The number of steps that take as long as a yield, at most.
const STEPS_PER_YIELD: u32 = 8;

/// The interval at which a rank that is closing looks for farewells while it sleeps.
const FAREWELL_LOOKS: Duration = Duration::from_millis(1);

/// The name of one of a [`Collectives`]' communicators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommunicatorId(usize);

/// An operation that was [started](Collectives::start); its result is a vector of `T`, or nothing.
#[derive(Debug)]
#[must_use = "an operation makes progress only while a thread waits for one, or tests it"]
pub struct Started<T = ()> {
    on: CommunicatorId,
    operation: Operation<T>,
}

/// The communicators of one node on one fabric, for the thread that drives them.
#[derive(Debug)]
pub struct Collectives<F> {
    fabric: F,
    /// The communicators by id; none once one is closed.
    communicators: Vec<Option<DrivenCommunicator>>,
    completions: Vec<Completion>,
    backoff: Backoff,
    /// This node's rank in the first communicator, whose other ranks may be on this host.
    first_rank: Option<usize>,
    /// The time of the last poll of the fabric.
    now: Time,
    /// The number of steps since that poll.
    steps: u32,
}

#[derive(Debug)]
struct DrivenCommunicator {
    communicator: Communicator,
    tag: GroupTag,
    /// The number of times that it was split.
    splits: u64,
}

impl Collectives<()> {
    /// The name of a communicator's connections: its number, and an instance among the communicators with this number.
    ///
    /// All its ranks give the same. No two communicators of a node may have the same name at a time, nor one after
    /// another whose connections may still be there: count `instance` up.
    pub fn tag(number: u32, instance: u64) -> GroupTag {
        GroupTag { layer: LAYER, group: number, epoch: instance }
    }
}

impl<F: Fabric + Wait> Collectives<F> {
    /// Takes a fabric. `spin` decides how its thread waits, on a host that runs `nodes` nodes.
    pub fn new(fabric: F, spin: Spin, nodes: usize) -> Collectives<F> {
        // No other thread of this process needs a core meanwhile, since the caller's thread waits.
        let backoff = Backoff::new(BackoffProfile::rank(spin, CoreBudget::of_this_host(nodes)));
        let now = Time::boot_clock();
        Collectives {
            fabric,
            communicators: Vec::new(),
            completions: Vec::new(),
            backoff,
            first_rank: None,
            now,
            steps: 0,
        }
    }

    /// The fabric.
    pub fn fabric(&mut self) -> &mut F {
        &mut self.fabric
    }

    /// A waker that any thread may use. It ends a sleep in any of the methods that wait, which then look at everything
    /// again.
    pub fn waker(&self) -> Waker {
        self.fabric.waker()
    }

    /// A communicator, for example for its ranks, or to set its algorithms. Fails if it was closed.
    pub fn communicator(&mut self, CommunicatorId(on): CommunicatorId) -> Result<&mut Communicator, CollectiveError> {
        match self.communicators.get_mut(on) {
            Some(Some(member)) => Ok(&mut member.communicator),
            _ => Err(CollectiveError::Disconnected),
        }
    }

    /// Starts an operation, by one of the communicator's `start` methods. If as many are under way as can be, it waits
    /// until the oldest is over.
    ///
    /// The operation makes progress in [`test`](Collectives::test), and while another is waited for.
    ///
    /// Fails if the communicator was closed or has failed, or if `start` does.
    pub fn start<T>(
        &mut self,
        on: CommunicatorId,
        start: impl FnOnce(&mut Communicator, &mut F) -> Result<Operation<T>, CollectiveError>,
    ) -> Result<Started<T>, CollectiveError> {
        while self.communicator(on)?.is_busy() {
            if !self.step() {
                self.rest(Time::MAX);
            }
        }
        let CommunicatorId(index) = on;
        let member = self.communicators[index].as_mut().expect("it was there");
        let operation = start(&mut member.communicator, &mut self.fabric)?;
        Ok(Started { on, operation })
    }

    /// Makes progress. Returns whether an operation is over. Fails if the communicator was closed, or as
    /// [`Communicator::test`] does.
    pub fn test<T>(&mut self, started: &Started<T>) -> Result<bool, CollectiveError> {
        self.step();
        let over = self.communicator(started.on)?.test(&started.operation);
        if over != Ok(false) {
            self.flush();
        }
        over
    }

    /// Waits until an operation is over.
    fn until_over<T>(&mut self, started: &Started<T>) -> Result<(), CollectiveError> {
        let mut over = self.communicator(started.on)?.test(&started.operation);
        while over == Ok(false) {
            if !self.step() {
                self.rest(Time::MAX);
            }
            over = self.communicator(started.on)?.test(&started.operation);
        }
        self.backoff.found();
        self.flush();
        over.map(drop)
    }

    /// Waits until an operation is over, and returns its result. Fails as [`test`](Collectives::test) does.
    pub fn wait<T: Element>(&mut self, started: Started<T>) -> Result<Vec<T>, CollectiveError> {
        self.until_over(&started)?;
        self.communicator(started.on)?.finish(started.operation)
    }

    /// Leaves a communicator in good order: waits until all its operations are over, and no other rank needs this one.
    /// That takes until the other ranks close theirs, or fail.
    ///
    /// The other ranks see a communicator that is not closed fail when this is dropped.
    ///
    /// Fails if it was closed before.
    pub fn close(&mut self, on: CommunicatorId) -> Result<(), CollectiveError> {
        self.communicator(on)?;
        let CommunicatorId(index) = on;
        loop {
            let Some(member) = &mut self.communicators[index] else { return Ok(()) };
            if member.communicator.close(&mut self.fabric) {
                self.communicators[index] = None;
                self.look();
                return Ok(());
            }
            if !self.turn() {
                // A farewell that has just come is no progress, so nothing would end a longer sleep.
                self.rest(Time::boot_clock() + FAREWELL_LOOKS);
            }
        }
    }

    /// Closes a communicator that is not to be used any more; the other ranks see this one fail.
    fn abandon(&mut self, CommunicatorId(on): CommunicatorId) {
        if let Some(mut member) = self.communicators.get_mut(on).and_then(Option::take) {
            member.communicator.disconnect(&mut self.fabric);
            self.look();
        }
    }

    /// Makes progress with all operations, and polls the fabric now and then. Returns whether anything has changed: a
    /// completion may end an operation.
    #[inline]
    fn step(&mut self) -> bool {
        self.steps += 1;
        let mut progress = self.steps >= STEPS_PER_POLL && self.look();
        for member in self.communicators.iter_mut().flatten() {
            progress |= member.communicator.step(&mut self.fabric, self.now);
        }
        if self.needs_completions() {
            progress |= self.look();
        }
        if progress {
            self.backoff.found();
        }
        progress
    }

    fn needs_completions(&self) -> bool {
        self.communicators.iter().flatten().any(|member| member.communicator.needs_completions())
    }

    /// Polls the fabric, and makes progress. Returns whether anything has changed: an operation may have ended.
    fn turn(&mut self) -> bool {
        let heard = self.look();
        self.step() || heard
    }

    /// Polls the fabric. Returns whether there were completions.
    #[inline]
    fn look(&mut self) -> bool {
        self.now = Time::boot_clock();
        self.flush()
    }

    /// Hands over the last posts, which may be for a rank that sleeps. Saves a clock read.
    #[inline]
    fn flush(&mut self) -> bool {
        self.steps = 0;
        self.fabric.poll(self.now, &mut self.completions);
        let heard = !self.completions.is_empty();
        if heard {
            self.hand_out();
        }
        heard
    }

    #[cold]
    fn hand_out(&mut self) {
        self.backoff.found();
        for completion in self.completions.drain(..) {
            let mut members = self.communicators.iter_mut().flatten();
            // Completions of a communicator that was closed belong to no member.
            let _ = members.any(|member| member.communicator.on_completion(&mut self.fabric, self.now, &completion));
        }
    }

    /// Lets time pass after a step without progress, until `until` at the latest.
    #[inline]
    fn rest(&mut self, until: Time) {
        match self.backoff.rest(Time::boot_clock) {
            Rest::Spin => std::hint::spin_loop(),
            Rest::Yield => {
                if self.backoff.is_astray(Time::boot_clock) {
                    cores::spread(self.first_rank.unwrap_or_default());
                }
                self.steps += STEPS_PER_YIELD;
                if self.steps >= STEPS_PER_POLL {
                    self.look();
                }
                std::thread::yield_now();
            }
            Rest::Sleep => self.sleep(until),
        }
    }

    #[cold]
    fn sleep(&mut self, until: Time) {
        self.fabric.arm();
        // A write from now on ends the sleep.
        if self.turn() {
            return self.fabric.disarm();
        }
        let deadlines = self.communicators.iter().flatten().map(|member| member.communicator.deadline());
        self.fabric.wait(deadlines.fold(until, Time::min));
    }
}
