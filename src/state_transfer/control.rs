//! The control of a replica by threads that move states and logs.

use std::{io::Read, sync::Arc};

use squall_membership as membership;

use crate::{
    capture::{
        exchange::{CaptureReply, ReplicaStatus, Wanted},
        state::RestoreError,
    },
    durable::{history::History, log_writer::LogWriter},
    state_transfer::{
        install::Repair,
        wire::{LogEnd, OfferKind},
    },
};

/// A living group's replica and log, for threads other than those that deliver and write.
pub(crate) trait ReplicaControl: Send + Sync {
    fn name(&self) -> &str;

    /// Whether this node's replica is one of the group's. The engine is woken when that changes in the middle of a
    /// view.
    fn replica_status(&self) -> ReplicaStatus;

    /// Hands the replica's state, as it is between two messages, to `reply`, on the thread that delivers.
    fn capture(&self, wanted: Wanted, reply: CaptureReply);

    /// The log, of a durable group.
    fn log_writer(&self) -> Option<&Arc<LogWriter>>;

    /// The group's past at this node.
    fn history(&self) -> &Arc<History>;

    /// Takes the replica of a durable group to the end of this node's log, or to the first place that can't be read and
    /// is not repaired.
    ///
    /// Returns that place, if there is anything that another member's log could go on from. Blocks, as
    /// [`restore`](ReplicaControl::restore) does.
    fn prepare(&self, repair: Repair<'_>) -> Result<Option<LogEnd>, RestoreError>;

    /// Removes from the log of a durable group all that lies behind a place. Takes the replica back to there if
    /// `rebuilds`; else that is left to a later [`prepare`](ReplicaControl::prepare). Blocks. Nothing may be delivered
    /// meanwhile.
    fn cut(&self, to: membership::OrderEnd, rebuilds: bool) -> Result<(), RestoreError>;

    /// Returns what this node of a durable group can report in a restart as its own, once all that was appended is on
    /// disk. A node that is not complete gives up what has no room there. Blocks. None if the log has failed. Nothing
    /// may be delivered meanwhile, and no state fetched.
    fn held(&self) -> Option<membership::HeldCopy>;

    /// Replaces the replica's state by one that [`Captured::write`](crate::capture::state::Captured::write)
    /// wrote, or takes it further by another log's records, while the replica's
    /// [status](ReplicaControl::replica_status) is that it needs one.
    ///
    /// Blocks the calling thread, which must not be a delivering one, until the application has read all of it. The
    /// status shows whether that was enough: it becomes complete, or asks for another state.
    fn restore(&self, offer: OfferKind, from: &mut dyn Read) -> Result<(), RestoreError>;
}
