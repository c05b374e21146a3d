//! What is sent and delivered.

/// Which of the two orders a scattering is sent in. They are independent of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// One phase. When a rank fails, messages from it and to it may be lost.
    BestEffort,
    /// Two phases: a scattering is delivered by all its receivers that don't fail, or by none; one that none will deliver is
    /// [given back](crate::Event::Undeliverable) to its sender.
    Reliable,
}

impl Mode {
    /// Both.
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
    /// What it says; may be empty.
    pub bytes: &'a [u8],
}

/// A scattering of this rank: they are numbered in the order of the calls, over both modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScatteringId(pub u64);

/// A message whose turn has come at a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery<'a> {
    /// The order that it belongs to.
    pub mode: Mode,
    /// The scattering's wide timestamp: the same at all its receivers, and of no other scattering of this sender.
    pub stamp: u64,
    /// The rank that sent it. Deliveries are in the order of (stamp, sender).
    pub sender: usize,
    /// What it says.
    pub bytes: &'a [u8],
}
