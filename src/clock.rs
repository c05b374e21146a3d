//! Where a group's threads read the node's clock.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use squall_fabric::Time;

/// A node's clock: the one that its core goes by.
#[derive(Clone, Debug)]
pub(crate) enum Now {
    /// The host's.
    Boot,
    /// A simulated one, in nanoseconds.
    Virtual(Arc<AtomicU64>),
}

impl Now {
    pub(crate) fn get(&self) -> Time {
        match self {
            Now::Boot => Time::boot_clock(),
            Now::Virtual(nanos) => Time::from_nanos(nanos.load(Ordering::Relaxed)),
        }
    }
}
