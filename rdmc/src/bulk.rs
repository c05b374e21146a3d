//! Raw RDMC for programs: groups on a fabric, and a thread that waits well.
//!
//! A program that moves bulk data has one loop, which is the only one to touch the fabric:
//!
//! ```no_run
//! use std::sync::Arc;
//! use squall_fabric::{NodeId, Time, shm::{ShmConfig, ShmFabric}};
//! use squall_rdmc::{Buffer, Event, Failure, GroupConfig, GroupId, bulk::Bulk};
//! use squall_runtime::Spin;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Two processes of one host run this, as nodes 0 and 1.
//! let me = NodeId(0);
//! let mut bulk = Bulk::new(ShmFabric::open(ShmConfig::new("copies", me))?, Spin::Auto, 2);
//! let id = GroupId { group: 0, instance: 1 };
//! bulk.create(GroupConfig::new(id, vec![NodeId(0), NodeId(1)]))?;
//! if me == NodeId(0) {
//!     let mut message = Buffer::register(bulk.fabric(), 1 << 20)?;
//!     message.fill(42);
//!     let root = bulk.group(id).expect("was created");
//!     root.send(Arc::new(message), 1 << 20)?;
//!     root.destroy()?;
//! }
//! let mut events = Vec::new();
//! loop {
//!     if !bulk.turn(&mut events) {
//!         bulk.rest(Time::MAX);
//!     }
//!     for (id, event) in events.drain(..) {
//!         match event {
//!             Event::Incoming { message, max_bytes, .. } => {
//!                 let buffer = Buffer::register(bulk.fabric(), max_bytes)?;
//!                 bulk.group(id).expect("is there").accept(message, buffer)?;
//!             }
//!             Event::Received { buffer, len, .. } => println!("{} bytes, the first is {}", len, buffer[0]),
//!             Event::Destroyed => return Ok(()),
//!             Event::Failed(Failure { suspect: Some(node), reason, .. }) => {
//!                 return Err(format!("{node}: {reason}").into());
//!             }
//!             Event::Failed(failure) => return Err(failure.reason.into()),
//!             Event::Connected | Event::Released { .. } => {}
//!         }
//!     }
//! }
//! # }
//! ```

use squall_fabric::{Completion, Fabric, Time, Wait, Waker};
use squall_runtime::{Backoff, BackoffProfile, CoreBudget, Rest, Spin};

use crate::{CreateError, Event, Group, GroupConfig, GroupId, Interrupted, Rdmc};

/// The groups of one node on one fabric, for the thread that drives them.
#[derive(Debug)]
pub struct Bulk<F> {
    fabric: F,
    groups: Rdmc,
    completions: Vec<Completion>,
    backoff: Backoff,
    armed: bool,
    /// Whether a caller may have asked for something since the last turn. Only a turn carries it out.
    asked: bool,
}

impl<F: Fabric + Wait> Bulk<F> {
    /// Takes a fabric. `spin` decides how [`rest`](Bulk::rest) waits, on a host that runs `nodes` nodes.
    pub fn new(fabric: F, spin: Spin, nodes: usize) -> Bulk<F> {
        let backoff = Backoff::new(BackoffProfile::block(spin, CoreBudget::of_this_host(nodes)));
        Bulk { fabric, groups: Rdmc::new(), completions: Vec::new(), backoff, armed: false, asked: false }
    }

    /// The fabric, to register memory with.
    pub fn fabric(&mut self) -> &mut F {
        &mut self.fabric
    }

    /// Ends a [`rest`](Bulk::rest), from any thread.
    pub fn waker(&self) -> Waker {
        self.fabric.waker()
    }

    /// Creates this node's part of a group: see [`Group::create`]. Fails as that does, and if there is
    /// a group of this id already.
    pub fn create(&mut self, config: GroupConfig) -> Result<(), CreateError> {
        self.asked = true;
        self.groups.create(&mut self.fabric, config)
    }

    /// Creates this node's part of a group that completes an interrupted message: see [`Group::resume`]. Fails as that
    /// does, and if there is a group of this id already.
    pub fn resume(&mut self, config: GroupConfig, message: Interrupted) -> Result<(), CreateError> {
        self.asked = true;
        self.groups.resume(&mut self.fabric, config, message)
    }

    /// A group, unless it was removed.
    pub fn group(&mut self, id: GroupId) -> Option<&mut Group> {
        self.asked = true;
        self.groups.group(id)
    }

    /// Forgets a group, and leaves it if it has not ended. A group that is left fails for its other members, which hear
    /// the reason as long as turns are taken here. Returns the messages that this node has not released.
    pub fn remove(&mut self, id: GroupId) -> Vec<Interrupted> {
        self.asked = true;
        self.groups.remove(&mut self.fabric, id)
    }

    /// Whether there is no group, and no other node is still to hear something from this node.
    pub fn is_quiet(&self) -> bool {
        self.groups.is_quiet()
    }

    /// Looks once at everything, and appends what happened to `events`. Returns whether anything changed.
    pub fn turn(&mut self, events: &mut Vec<(GroupId, Event)>) -> bool {
        self.asked = false;
        self.fabric.poll(Time::boot_clock(), &mut self.completions);
        let mut busy = !self.completions.is_empty();
        // Broken endpoints come last, so that what came in together with a group's end is not lost.
        self.completions.sort_by_key(|completion| matches!(completion, Completion::Broken { .. }));
        for completion in self.completions.drain(..) {
            self.groups.on_completion(&mut self.fabric, &completion);
        }
        busy |= self.groups.step(&mut self.fabric, events);
        if busy {
            if std::mem::take(&mut self.armed) {
                self.fabric.disarm();
            }
            self.backoff.found();
        }
        busy
    }

    /// Lets time pass after a turn that changed nothing, in the way that the host's core budget suggests. It returns at
    /// `until` at the latest, and earlier when the fabric has something or a [waker](Bulk::waker) is used.
    ///
    /// It does not always sleep: take another turn after it. It never sleeps if anything was asked for since the last
    /// turn; every call of [`group`](Bulk::group) counts as that.
    pub fn rest(&mut self, until: Time) {
        if self.asked {
            return;
        }
        if std::mem::take(&mut self.armed) {
            // Armed, looked once more, and found nothing: what comes from now on ends this wait.
            return self.fabric.wait(until);
        }
        match self.backoff.rest(Time::boot_clock) {
            Rest::Spin => std::hint::spin_loop(),
            Rest::Yield => std::thread::yield_now(),
            Rest::Sleep => {
                self.fabric.arm();
                self.armed = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use squall_fabric::{
        NodeId,
        shm::{ShmConfig, ShmFabric},
    };

    use super::*;

    #[test]
    fn what_is_asked_between_a_turn_and_a_rest_is_not_slept_over() {
        let me = NodeId(0);
        let fabric = ShmFabric::open(ShmConfig::new(format!("bulk-asked-{}", std::process::id()), me));
        let mut bulk = Bulk::new(fabric.expect("shared memory"), Spin::Never, 1);
        let id = GroupId { group: 0, instance: 1 };
        bulk.create(GroupConfig::new(id, vec![me])).expect("a sound configuration");
        let mut events = Vec::new();
        while bulk.turn(&mut events) {}
        bulk.rest(Time::MAX);
        assert!(!bulk.turn(&mut events) && bulk.armed, "the next rest sleeps");
        bulk.group(id).expect("was created").destroy().expect("the root may");
        let until = Time::boot_clock() + Duration::from_secs(20);
        bulk.rest(until);
        assert!(Time::boot_clock() < until, "it slept");
        while bulk.turn(&mut events) {}
        assert!(matches!(events.last(), Some((_, Event::Destroyed))), "{events:?}");
    }
}
