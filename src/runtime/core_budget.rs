//! The spare cores of a host, for threads that spin.

use std::thread;

use crate::config::Config;

/// The relation of a host's cores to its engines, which says whether waiting threads may spin. A thread that spins
/// where another could run waits for itself.
///
/// Each node has an engine and at least one thread of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// A core for each engine and each thread of the applications.
    Ample,
    /// A core for each engine, which it shares with the application.
    Tight,
    /// Fewer cores than engines.
    Crowded,
}

impl Room {
    /// The room on this host.
    pub(crate) fn here(config: &Config) -> Room {
        Room::of_this_host(config.members_here())
    }

    /// The room on this host, which runs `nodes` nodes.
    pub(crate) fn of_this_host(nodes: usize) -> Room {
        Room::of(nodes, thread::available_parallelism().map_or(1, usize::from))
    }

    /// The room where `nodes` nodes share a host of `cores` cores.
    pub(crate) fn of(nodes: usize, cores: usize) -> Room {
        match () {
            () if 2 * nodes <= cores => Room::Ample,
            () if nodes <= cores => Room::Tight,
            () => Room::Crowded,
        }
    }
}
