//! A fabric's interface beyond the contract, so that several of one process can be used as one.

use std::os::fd::BorrowedFd;

use crate::{Fabric, Wait, graph::Host};

/// A fabric that may be a part of a [`MixedFabric`](crate::mixed::MixedFabric).
pub(crate) trait MixedPart: Fabric + Wait + Host + Send {
    /// The number of receives that an endpoint may have outstanding.
    fn depth(&self) -> usize;

    /// A descriptor that is readable once something has come for a thread that is armed. A `wait` that has no time
    /// takes the signal.
    fn signal(&self) -> BorrowedFd<'_>;

    /// Whether the fabric is armed, and has no work left that would come without a signal.
    fn may_sleep(&self) -> bool;
}
