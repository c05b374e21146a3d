//! Raw RDMC for programs: groups on a fabric, and a thread that waits well.
//!
//! A program that moves bulk data has one loop, which is the only one to touch the fabric:
//!
//! ```no_run
//! use std::sync::Arc;
//! use squall::{Spin, Time, bulk::Bulk, rdmc::{Buffer, Event, GroupConfig, GroupId}};
//! use squall_fabric::{NodeId, shm::{ShmConfig, ShmFabric}};
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
//!                 let buffer = Buffer::register(bulk.fabric(), max_bytes.max(1))?;
//!                 bulk.group(id).expect("is there").accept(message, buffer)?;
//!             }
//!             Event::Received { buffer, len, .. } => println!("{} bytes, the first is {}", len, buffer[0]),
//!             Event::Destroyed => return Ok(()),
//!             Event::Failed(failure) => return Err(failure.reason.into()),
//!             Event::Connected | Event::Released { .. } => {}
//!         }
//!     }
//! }
//! # }
//! ```

use squall_fabric::{Completion, Fabric, Time, Wait, Waker};
use squall_rdmc::{CreateError, Event, Group, GroupConfig, GroupId, Interrupted, Rdmc};

use crate::{
    config::Spin,
    room::Room,
    runtime::{Idle, Rest},
};

/// The groups of one node on one fabric, for the thread that drives them.
#[derive(Debug)]
pub struct Bulk<F> {
    fabric: F,
    groups: Rdmc,
    completions: Vec<Completion>,
    idle: Idle,
    armed: bool,
}

impl<F: Fabric + Wait> Bulk<F> {
    /// Takes a fabric. `spin` decides how [`rest`](Bulk::rest) waits, on a host that runs `nodes` nodes.
    pub fn new(fabric: F, spin: Spin, nodes: usize) -> Bulk<F> {
        let idle = Idle::new(spin, Room::of_this_host(nodes));
        Bulk { fabric, groups: Rdmc::new(), completions: Vec::new(), idle, armed: false }
    }

    /// The fabric, to register memory with.
    pub fn fabric(&mut self) -> &mut F {
        &mut self.fabric
    }

    /// Ends a [`rest`](Bulk::rest), from any thread.
    pub fn waker(&self) -> Waker {
        self.fabric.waker()
    }

    /// Creates this node's part of a group: see [`Group::create`].
    pub fn create(&mut self, config: GroupConfig) -> Result<(), CreateError> {
        self.groups.create(&mut self.fabric, config)
    }

    /// Creates this node's part of a group that completes an interrupted message: see [`Group::resume`].
    pub fn resume(&mut self, config: GroupConfig, message: Interrupted) -> Result<(), CreateError> {
        self.groups.resume(&mut self.fabric, config, message)
    }

    /// A group, unless it was removed.
    pub fn group(&mut self, id: GroupId) -> Option<&mut Group> {
        self.groups.group(id)
    }

    /// Forgets a group, and leaves it if it has not ended: it then fails for the others, who hear why as long as turns are
    /// taken here. Returns the messages that this node has not released.
    pub fn remove(&mut self, id: GroupId) -> Vec<Interrupted> {
        self.groups.remove(&mut self.fabric, id)
    }

    /// Whether there is no group, and nobody has to hear anything from this node any more.
    pub fn is_quiet(&self) -> bool {
        self.groups.is_quiet()
    }

    /// One look at everything: appends what happened to `events`. Returns whether anything changed.
    pub fn turn(&mut self, events: &mut Vec<(GroupId, Event)>) -> bool {
        self.fabric.poll(Time::boot_clock(), &mut self.completions);
        let mut busy = !self.completions.is_empty();
        for completion in self.completions.drain(..) {
            self.groups.on_completion(&mut self.fabric, &completion);
        }
        busy |= self.groups.step(&mut self.fabric, events);
        if busy {
            if std::mem::take(&mut self.armed) {
                self.fabric.disarm();
            }
            self.idle.found();
        }
        busy
    }

    /// After a turn that changed nothing: lets time pass, in the way that the host's room suggests. At the latest, it
    /// returns at `until`; and when the fabric has something, or a [waker](Bulk::waker) is used.
    ///
    /// It does not always sleep: take another turn after it.
    pub fn rest(&mut self, until: Time) {
        if std::mem::take(&mut self.armed) {
            // Armed, looked once more, and found nothing: what comes from now on ends this.
            return self.fabric.wait(until);
        }
        match self.idle.rest() {
            Rest::Spin => std::hint::spin_loop(),
            Rest::Yield => std::thread::yield_now(),
            Rest::Sleep => {
                self.fabric.arm();
                self.armed = true;
            }
        }
    }
}
