//! The interface that a backend provides so that the scenarios can run on it.

use std::time::Duration;

use squall_fabric::{Fabric, Time};

/// Three nodes, [`NodeId`](squall_fabric::NodeId) 0 to 2, on one fabric.
pub(crate) trait Testbed {
    /// The attachment of a node that was not killed.
    fn fabric(&mut self, node: usize) -> &mut dyn Fabric;

    /// Lets something happen: virtual time passes, or the thread yields. Appends the nodes that are to be polled then.
    fn step(&mut self, ready: &mut Vec<usize>);

    /// The time, as the fabric takes it.
    fn now(&self) -> Time;

    /// The seed of all randomness in a scenario.
    fn seed(&self) -> u64;

    /// The abilities of the testbed.
    fn can(&self) -> Capabilities;

    /// Ends a node's process.
    fn kill(&mut self, _node: usize) {
        unreachable!("the scenario asked whether it can");
    }

    /// Cuts two nodes off from each other.
    fn cut(&mut self, _a: usize, _b: usize) {
        unreachable!("the scenario asked whether it can");
    }

    /// Heals the cut between two nodes.
    fn heal(&mut self, _a: usize, _b: usize) {
        unreachable!("the scenario asked whether it can");
    }
}

/// The abilities of a backend and its testbed, and their times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capabilities {
    /// Whether a node's process can be ended.
    pub(crate) kill: bool,
    /// Whether nodes can be cut off from each other.
    pub(crate) cut: bool,
    /// Whether the memory that an endpoint exposed does not change any more once it is broken or closed. (G6 does not
    /// ask for as much: a fabric may fence by giving each group memory of its own.)
    pub(crate) fences_memory: bool,
    /// The time after which all posted work has happened, unless it waits for something.
    pub(crate) settled: Duration,
    /// The time within which both sides learn of a break.
    pub(crate) failure_timeout: Duration,
    /// The time beyond which a wait is in vain.
    pub(crate) patience: Duration,
}

/// Nodes of this process, on a fabric that takes its time from this host, polled in turn.
pub(crate) struct Here<F> {
    pub(crate) fabrics: Vec<F>,
    pub(crate) seed: u64,
    pub(crate) can: Capabilities,
}

impl Capabilities {
    /// The abilities of nodes of one process, which can't die alone, nor be cut off from each other.
    pub(crate) fn here(fences_memory: bool) -> Capabilities {
        Capabilities {
            kill: false,
            cut: false,
            fences_memory,
            settled: Duration::from_millis(5),
            failure_timeout: FAILURE_TIMEOUT,
            patience: Duration::from_secs(20),
        }
    }
}

/// The failure timeout of the fabrics of [`Here`].
pub(crate) const FAILURE_TIMEOUT: Duration = Duration::from_secs(5);

impl<F: Fabric> Testbed for Here<F> {
    fn fabric(&mut self, node: usize) -> &mut dyn Fabric {
        &mut self.fabrics[node]
    }

    fn step(&mut self, ready: &mut Vec<usize>) {
        std::thread::yield_now();
        ready.extend(0..self.fabrics.len());
    }

    fn now(&self) -> Time {
        Time::boot_clock()
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn can(&self) -> Capabilities {
        self.can
    }
}
