//! The events of a group, besides its messages.

use squall_fabric::BreakReason;

use crate::{Mode, ScatteringId};

/// Something that happened to the group, or to a scattering of this rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PipeEvent {
    /// A rank that was to receive a message of a scattering has failed. A reliable scattering was delivered nowhere,
    /// and will not be. Of a best-effort one, the message to that rank may not have arrived; its others go on. The
    /// event comes again at each settlement that removes another of its receivers.
    Undeliverable {
        /// The scattering's number, as [`scatter`](crate::OnePipe::scatter) returned it.
        id: ScatteringId,
        /// Its mode.
        mode: Mode,
        /// Its wide timestamp; none if it was still waiting for one, in which case nothing of it was sent, in either
        /// mode.
        stamp: Option<u64>,
    },
    /// The end of the connection to a rank, also because it wrote what no correct peer writes. Nothing is delivered
    /// beyond its last barrier until a [settlement](crate::Settlement) removes it.
    Broken {
        /// The rank.
        rank: usize,
        /// The reason.
        reason: BreakReason,
    },
    /// The removal of a rank by a settlement.
    Removed {
        /// The rank.
        rank: usize,
        /// Its reliable messages from this wide timestamp on are delivered nowhere; all before it everywhere.
        failure_timestamp: u64,
    },
    /// The removal of this rank by a settlement: it can do nothing more.
    Ended,
}
