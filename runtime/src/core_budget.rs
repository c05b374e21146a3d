//! The budget of a host's cores: whether there are spare ones for threads that spin.

use std::thread;

/// The relation of a host's cores to its engines, which says whether waiting threads may spin. A thread that spins
/// where another could run waits for itself.
///
/// Each node has an engine and at least one thread of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreBudget {
    /// A core for each engine and each thread of the applications.
    Spare,
    /// A core for each engine, which it shares with the application.
    Shared,
    /// Fewer cores than engines.
    Oversubscribed,
}

impl CoreBudget {
    /// The budget of this host, which runs `nodes` nodes.
    pub fn of_this_host(nodes: usize) -> CoreBudget {
        CoreBudget::of(nodes, thread::available_parallelism().map_or(1, usize::from))
    }

    /// The budget where `nodes` nodes share a host of `cores` cores.
    pub fn of(nodes: usize, cores: usize) -> CoreBudget {
        match () {
            () if 2 * nodes <= cores => CoreBudget::Spare,
            () if nodes <= cores => CoreBudget::Shared,
            () => CoreBudget::Oversubscribed,
        }
    }
}
