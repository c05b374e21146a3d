//! Packets.

use super::Profile;

/// Promises about a link: no message with an earlier stamp will come on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Barriers {
    /// The barrier before which no message at all is still to come.
    pub(super) best_effort: u64,
    /// The barrier before which no reliable message lacks the acknowledgement of a receiver.
    pub(super) commit: u64,
}

/// One packet, or several that travel together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Packet {
    Train(Train),
    /// One beacon of each process of a host.
    Beacons(Box<[Barriers]>),
    Beacon(Barriers),
    /// The acknowledgement of these messages of a scattering, by a host.
    Acknowledgement {
        serial: u64,
        host: usize,
        messages: Members,
    },
    /// The token, to a process.
    Token(usize),
}

/// Processes of a host, a bit for each, or the messages of a scattering to them.
pub(super) type Members = u64;

/// The first `count` processes.
pub(super) fn first_members(count: usize) -> Members {
    u64::MAX.checked_shr(u64::BITS - count as u32).unwrap_or(0)
}

/// The number of processes.
pub(super) fn count(members: Members) -> u64 {
    members.count_ones().into()
}

impl Packet {
    /// The packet's length on the wire.
    pub(super) fn bytes(&self, profile: &Profile) -> u64 {
        match self {
            Packet::Train(train) => count(train.messages) * profile.message_bytes,
            Packet::Beacons(beacons) => beacons.len() as u64 * profile.beacon_bytes,
            Packet::Beacon(_) => profile.beacon_bytes,
            Packet::Acknowledgement { messages, .. } => count(*messages) * profile.acknowledgement_bytes,
            Packet::Token(_) => profile.message_bytes,
        }
    }
}

/// Messages of one process to processes of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Train {
    pub(super) content: Content,
    pub(super) sender: usize,
    /// The receiving host.
    pub(super) to: usize,
    pub(super) messages: Members,
    /// The number of times that the messages were sent again.
    pub(super) attempt: u32,
    pub(super) stamp: u64,
    pub(super) barriers: Barriers,
    /// The number that a sequencer, or the token, has given to their scattering.
    pub(super) number: Option<u64>,
}

/// The content of a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Content {
    /// Messages of the scattering with this serial number.
    Messages(u64),
    /// The sender's clock, which is the stamp, for each.
    Clock,
}
