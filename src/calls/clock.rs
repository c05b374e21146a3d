//! The node's clock, as a group's threads read it.

#[cfg(feature = "sim")]
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::{SystemTime, UNIX_EPOCH};

use squall_fabric::Time;
use squall_ordered::log::Hlc;

/// A node's clock, which its core goes by.
#[derive(Clone, Debug)]
pub(crate) enum Now {
    /// The host's clocks.
    Boot,
    /// Simulated clocks, in nanoseconds.
    #[cfg(feature = "sim")]
    Virtual { boot: Arc<AtomicU64>, wall: Arc<AtomicU64> },
}

impl Now {
    pub(crate) fn get(&self) -> Time {
        match self {
            Now::Boot => Time::boot_clock(),
            #[cfg(feature = "sim")]
            Now::Virtual { boot, .. } => Time::from_nanos(boot.load(Ordering::Relaxed)),
        }
    }

    /// The time of day. It may go back when it is set.
    pub(crate) fn wall(&self) -> Hlc {
        match self {
            Now::Boot => {
                let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Hlc(u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX))
            }
            #[cfg(feature = "sim")]
            Now::Virtual { wall, .. } => Hlc(wall.load(Ordering::Relaxed)),
        }
    }
}
