//! Messages, scatterings and deliveries.

/// One of the two orders in which scatterings are sent. They are independent of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// One phase. When a rank fails, messages from it and to it may be lost.
    BestEffort,
    /// Two phases: a scattering is delivered by all its receivers that don't fail, or by none; one that none will
    /// deliver is [given back](crate::PipeEvent::Undeliverable) to its sender.
    Reliable,
}

impl Mode {
    /// Both modes.
    pub const ALL: [Mode; 2] = [Mode::BestEffort, Mode::Reliable];

    #[inline]
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// One message of a scattering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The rank that receives it; may be the sender.
    pub to: usize,
    /// The payload; may be empty.
    pub bytes: &'a [u8],
}

/// The number of a scattering of this rank, in the order of the calls, over both modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScatteringId(pub u64);

/// A message whose turn has come at a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery<'a> {
    /// The order that it belongs to.
    pub mode: Mode,
    /// The scattering's wide timestamp: the same at all its receivers, and different from those of the sender's other
    /// scatterings.
    pub stamp: u64,
    /// The rank that sent it. Deliveries are in the order of (stamp, sender).
    pub sender: usize,
    /// The payload.
    pub bytes: &'a [u8],
}
