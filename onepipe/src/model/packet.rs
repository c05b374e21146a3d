//! What travels.

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
    /// Of so many messages of a scattering, by a host's processes.
    Acknowledgement {
        serial: u64,
        host: usize,
        messages: u16,
    },
    /// To a process.
    Token(usize),
}

/// Messages of one process to processes of one host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Train {
    pub(super) content: Content,
    pub(super) sender: usize,
    /// The host.
    pub(super) to: usize,
    /// Messages that their receivers do not have yet.
    pub(super) new: u16,
    /// Messages that only the acknowledgement of was lost.
    pub(super) again: u16,
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

impl Train {
    pub(super) fn messages(&self) -> u64 {
        u64::from(self.new) + u64::from(self.again)
    }
}
