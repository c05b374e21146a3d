//! The interface of the controller, which settles failures.

use std::sync::Arc;

use squall_fabric::Time;

use crate::Gate;

/// A rank's side of the paper's controller (§5.2), which settles failures for the ranks of a group, the same for all.
///
/// # To ensure correctness
///
/// 1. All ranks get the same settlements in the same order, each once, with epochs that increase by one; or a prefix of
///    them. A settlement without failed ranks is possible, as when others have joined what the group is a part of.
/// 2. Before a settlement is decided, every rank that neither it nor an earlier one names as failed has
///    [reported](Controller::report) for the epoch that it ends, or its gate was [closed](Gate::close) for it. Its
///    failure timestamp is the greatest barrier that they have reported, or that their gates have returned. Without
///    failed ranks, the timestamp means nothing.
/// 3. It is committed, so that no other can take its place, before any rank is told of it.
/// 4. A rank that others suspect in every epoch is named as failed in the end, or they are: a broken connection is not
///    made again.
pub trait Controller {
    /// Takes note that the connection to a rank is gone, or that the rank does not keep the protocol. It is told once
    /// in every epoch until the rank is removed.
    fn suspect(&mut self, epoch: u64, rank: usize);

    /// Takes note that this rank is wedged: in `epoch` it delivers no reliable message whose wide timestamp is
    /// `barrier` or higher.
    fn report(&mut self, epoch: u64, barrier: u64);

    /// The rank's gate, if the controller closes it: the rank is to be [made with it](crate::OnePipe::with_gate).
    /// Without one the controller must tell the rank to [wedge](Directive::Wedge).
    fn gate(&self) -> Option<&Arc<Gate>> {
        None
    }

    /// The next directive for this rank.
    fn poll(&mut self, now: Time) -> Option<Directive>;
}

/// An order of a controller to a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Directive {
    /// Accept no further barrier of reliable messages in this epoch, and [report](Controller::report) the last one. If
    /// the epoch is not the current one, or this was told before, it changes nothing; a report follows whenever the
    /// epoch is the current one.
    Wedge {
        /// The epoch that is to end.
        epoch: u64,
    },
    /// Go on without the ranks that have failed.
    Settle(Settlement),
}

/// A decision about a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The epoch that begins: one more than the epoch that ends.
    pub epoch: u64,
    /// The ranks that were removed since the last settlement.
    pub failed: Vec<usize>,
    /// The timestamp that bounds the failed ranks' reliable messages: those with lower wide timestamps are delivered by
    /// all receivers, all others by none. A rank takes one beyond its own barrier, which no ranks that keep the
    /// protocol report, to be that barrier.
    pub failure_timestamp: u64,
}
