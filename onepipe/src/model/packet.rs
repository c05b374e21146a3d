//! What travels.

use super::Profile;

/// Promises about a link: no message with an earlier stamp will come on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Barriers {
    /// No message at all.
    pub(super) best_effort: u64,
    /// None that is reliable and not yet acknowledged by all who get it.
    pub(super) commit: u64,
}

/// One packet, or several that travel together.
#[derive(Clone, Debug)]
pub(super) enum Packet {
    Train(Train),
    /// One beacon of each process of a host.
    Beacons(Box<[Barriers]>),
    Beacon(Barriers),
    /// Of these messages of a scattering, by a host.
    Acknowledgement {
        serial: u64,
        host: usize,
        messages: Members,
    },
    /// To a process.
    Token(usize),
}

/// Processes of a host, a bit for each, or the messages of a scattering to them.
pub(super) type Members = u64;

/// The first of them, so many.
pub(super) fn first_members(count: usize) -> Members {
    u64::MAX.checked_shr(u64::BITS - count as u32).unwrap_or(0)
}

/// How many they are.
pub(super) fn count(members: Members) -> u64 {
    members.count_ones().into()
}

impl Packet {
    /// Its length on the wire.
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
#[derive(Clone, Copy, Debug)]
pub(super) struct Train {
    pub(super) content: Content,
    pub(super) sender: usize,
    /// The host.
    pub(super) to: usize,
    pub(super) messages: Members,
    /// 0 when they are first sent.
    pub(super) attempt: u32,
    pub(super) stamp: u64,
    pub(super) barriers: Barriers,
    /// What a sequencer, or the token, has numbered their scattering with.
    pub(super) number: Option<u64>,
}

/// What is in a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Messages of the scattering with this serial number.
    Messages(u64),
    /// The sender's clock, its stamp, for each.
    Clock,
}
