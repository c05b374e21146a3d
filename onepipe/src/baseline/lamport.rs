//! Lamport timestamps: logical clocks.

use squall_fabric::{Completion, Fabric, Time};

use super::{TotalOrder, total_order_by};
use crate::{
    CreateError, Delivery, Message, Mode, OnePipeConfig, ScatterError, ScatteringId, Topology, engine::Engine,
    stamps::Stamps,
};

/// The flat order of timestamps that are one more than the greatest that the sender has seen.
///
/// Ranks exchange the timestamps that they have seen once in a beacon interval, not for each message: the common
/// optimisation that the paper measures (§7.2).
#[derive(Debug)]
pub struct Lamport {
    engine: Engine<Logical>,
}

impl Lamport {
    /// Registers the memory, and starts to connect this node to all others. The topology is flat, whatever the
    /// configuration says.
    pub fn create(fabric: &mut impl Fabric, config: OnePipeConfig) -> Result<Lamport, CreateError> {
        let config = OnePipeConfig { topology: Topology::Flat, ..config };
        Ok(Lamport { engine: Engine::create(fabric, config, Logical { next: 1 }, "squall lamport 1")? })
    }
}

total_order_by!(Lamport, engine);

/// Timestamps of a logical clock.
#[derive(Debug)]
struct Logical {
    next: u64,
}

impl Stamps for Logical {
    const GROWS_WITH_TIME: bool = false;
    const IS_URGENT: bool = false;

    fn advance(&mut self, _: Time) {}

    #[inline]
    fn hear(&mut self, _: usize, promise: u64) {
        // The greatest timestamp that the rank may have used is one less.
        self.next = self.next.max(promise);
    }

    #[inline]
    fn hear_want(&mut self, stamp: u64) {
        self.next = self.next.max(stamp.saturating_add(1));
    }

    #[inline]
    fn stamp(&mut self) -> Option<u64> {
        let stamp = self.next;
        // Other ranks may have led this one to the end of all timestamps.
        self.next = stamp.checked_add(1)?;
        Some(stamp)
    }

    #[inline]
    fn promise(&mut self) -> u64 {
        self.next
    }

    #[inline]
    fn near(&self) -> u64 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_seen_a_timestamp_uses_greater_ones() {
        let mut logical = Logical { next: 1 };
        assert_eq!([logical.stamp(), logical.stamp()], [Some(1), Some(2)]);
        logical.hear_want(9);
        assert_eq!(logical.promise(), 10);
        logical.hear(0, 7);
        assert_eq!(logical.stamp(), Some(10));
        logical.hear(0, 20);
        assert_eq!(logical.stamp(), Some(20));
        logical.hear_want(u64::MAX);
        assert_eq!((logical.stamp(), logical.promise()), (None, u64::MAX));
    }
}
