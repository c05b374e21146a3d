//! Who settles failures.

use std::sync::Arc;

use squall_fabric::Time;

use crate::Gate;

/// What settles failures for the ranks of a group, all alike: the paper's controller (§5.2). A rank's side of it.
///
/// # To ensure correctness
///
/// 1. All ranks get the same settlements in the same order, each once, with epochs that increase by one; or a prefix of
///    them. One without failed ranks is possible, as when others have joined what the group is a part of.
/// 2. Before a settlement is decided, every rank of the group that it does not name as failed, and that none before it
///    did, has [reported](Controller::report) for the epoch that it ends, or its gate was [closed](Gate::close) for it. Its
///    failure timestamp is the greatest of what they have reported, or their gates have said; where it has no failed
///    ranks, it means nothing.
/// 3. It is committed, so that no other can take its place, before any rank is told of it.
/// 4. A rank that others suspect in every epoch is named as failed in the end, or they are: a broken connection is not
///    made again.
pub trait Controller {
    /// The connection to a rank is gone, or it does not keep the protocol. Told once in every epoch until the rank is
    /// removed.
    fn suspect(&mut self, epoch: u64, rank: usize);

    /// This rank is wedged: in `epoch` it delivers no reliable message whose wide timestamp is `barrier` or higher.
    fn report(&mut self, epoch: u64, barrier: u64);

    /// The rank's gate, if the controller closes it: the rank is to be [made with it](crate::OnePipe::with_gate). Without one
    /// the controller must tell the rank to [wedge](Directive::Wedge).
    fn gate(&self) -> Option<&Arc<Gate>> {
        None
    }

    /// What this rank is told to do next.
    fn poll(&mut self, now: Time) -> Option<Directive>;
}

/// What a controller tells a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Directive {
    /// Accept no further barrier of reliable messages in this epoch, and [report](Controller::report) the last one. Told
    /// of another epoch than the current one, or again, it changes nothing; a report follows whenever the epoch is the
    /// current one.
    Wedge {
        /// The epoch that is to end.
        epoch: u64,
    },
    /// Go on without those who have failed.
    Settle(Settlement),
}

/// What was decided about a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The epoch that begins: one more than that which ends.
    pub epoch: u64,
    /// The ranks that were removed since the last settlement.
    pub failed: Vec<usize>,
    /// Of their reliable messages, those with lower wide timestamps are delivered by all receivers, all others by none.
    pub failure_timestamp: u64,
}
