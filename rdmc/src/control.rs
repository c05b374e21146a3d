//! The words that members of a group write into each other's memory.
//!
//! Each member has a polled region for each member that it is connected with, which it exposes to that member alone:
//!
//! ```text
//! byte  0   ready    u64  receives that it has posted for this member's blocks since the group began
//!       8   failed   u64  0, or in its low half 1 + the rank that is thought to have failed, n + 1 if it does not know
//!                         the rank; in its high half 1 + the rank that it heard of the failure from, 0 if it saw it
//!      16   total    u64  by the root, once it closes the group: 1 + the number of its messages
//!      24   done     u64  1 once it has all of them, and has sent on all that it has to
//!      32   closed   u64  by the root: 1 once all members are done
//! ```
//!
//! `ready` comes over an endpoint beside the one that carries the blocks, so that it does not wait behind a block. The
//! others come over an endpoint of their own, which stays when those two are closed; only the root has one to every
//! member. They are written with an immediate, so that a node with many groups need not look at all of them. A region
//! is 64 bytes.

use squall_fabric::{
    EndpointId, Fabric, MIN_RECV_DEPTH, Op, PostError, Region, RegionKey, RegionKind, RegisterError, RemoteRegion,
    Slice, Source, Target, Token,
};

use crate::schedule::Rank;

const REGION_BYTES: usize = 64;
const READY: usize = 0;
const FAILED: usize = 8;
const TOTAL: usize = 16;
const DONE: usize = 24;
const CLOSED: usize = 32;
/// The largest number of notices that a member sends to another. It sends that a member failed, and then its rank; or
/// that it is done, or the number of messages. At last it sends that the group is closed.
const CHANGES: usize = 4;
const _: () = assert!(CHANGES <= MIN_RECV_DEPTH, "each change takes a receive that was posted at the start");

/// The state that a member announces to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) failed: Option<Suspect>,
    /// The member that this one heard of the failure from; none if it saw the failure itself.
    pub(crate) told_by: Option<Rank>,
    /// The number of messages, by the root.
    pub(crate) total: Option<u64>,
    pub(crate) done: bool,
    pub(crate) closed: bool,
}

/// The member that is thought to have failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suspect {
    Rank(Rank),
    /// An unnamed member: the one that closed its connection knows the rank.
    Unknown,
}

/// This member's memory for the words of the others, by rank.
#[derive(Debug)]
pub(crate) struct Control(Vec<Option<Region>>);

/// The members that member `me` announces things to: at the root all others, elsewhere the root.
pub(crate) fn line_ranks(members: usize, me: Rank) -> impl Iterator<Item = Rank> {
    (0..members as u32).map(Rank).filter(move |&rank| rank != me && (me == Rank::ROOT || rank == Rank::ROOT))
}

/// Whether a peer's region can be the memory for this member's words.
pub(crate) fn is_control(remote: &RemoteRegion) -> bool {
    remote.kind == RegionKind::Polled && remote.bytes == REGION_BYTES
}

impl Control {
    /// Registers the memory for the words of `peers`.
    pub(crate) fn register(
        fabric: &mut impl Fabric,
        members: usize,
        peers: impl Iterator<Item = Rank>,
    ) -> Result<Control, RegisterError> {
        let mut regions = vec![None; members];
        for peer in peers {
            let region = &mut regions[peer.index()];
            if region.is_none() {
                *region = Some(fabric.register(RegionKind::Polled, REGION_BYTES)?);
            }
        }
        Ok(Control(regions))
    }

    /// The memory that a peer writes into, to be exposed to it alone.
    pub(crate) fn region(&self, peer: Rank) -> &Region {
        self.0[peer.index()].as_ref().expect("there is memory for each member that this one connects with")
    }

    /// The number of receives that a member has posted for this one's blocks.
    pub(crate) fn ready(&self, from: Rank) -> u64 {
        self.word(from, READY)
    }

    /// The member that `from` thinks to have failed. Any word that is no rank means that it does not know which one
    /// failed.
    pub(crate) fn failed(&self, from: Rank) -> Option<Suspect> {
        match self.word(from, FAILED) {
            0 => None,
            word => Some(self.rank(word as u32).map_or(Suspect::Unknown, Suspect::Rank)),
        }
    }

    /// The member from which `from` says to have heard that one failed.
    pub(crate) fn told_by(&self, from: Rank) -> Option<Rank> {
        self.rank((self.word(from, FAILED) >> 32) as u32)
    }

    /// The rank that half a word means, if it means one.
    fn rank(&self, half: u32) -> Option<Rank> {
        half.checked_sub(1).map(Rank).filter(|rank| rank.index() < self.0.len())
    }

    /// The number of messages, once the root closes the group.
    pub(crate) fn total(&self) -> Option<u64> {
        self.word(Rank::ROOT, TOTAL).checked_sub(1)
    }

    /// Whether a member has all messages, and has sent on all that it has to.
    pub(crate) fn is_done(&self, member: Rank) -> bool {
        self.word(member, DONE) != 0
    }

    /// Whether the root has announced that all are done.
    pub(crate) fn is_closed(&self) -> bool {
        self.word(Rank::ROOT, CLOSED) != 0
    }

    fn word(&self, from: Rank, at: usize) -> u64 {
        self.0[from.index()].as_ref().map_or(0, |region| region.load(at))
    }

    /// Tells a peer the number of receives that are posted for its blocks.
    pub(crate) fn say_ready(
        fabric: &mut impl Fabric,
        on: EndpointId,
        to: RegionKey,
        count: u64,
    ) -> Result<(), PostError> {
        let target = Target { region: to, offset: READY };
        fabric.post(on, Op::Write { source: Source::Inline(&count.to_ne_bytes()), target }, Token::UNSIGNALED)
    }

    /// Sends a notice to a peer, which replaces the one before.
    pub(crate) fn say(
        &self,
        fabric: &mut impl Fabric,
        on: EndpointId,
        to: RegionKey,
        notice: Notice,
    ) -> Result<(), PostError> {
        let failed = match notice.failed {
            None => 0,
            Some(Suspect::Rank(rank)) => u64::from(rank.0) + 1,
            Some(Suspect::Unknown) => self.0.len() as u64 + 1,
        };
        let told_by = notice.told_by.map_or(0, |rank| u64::from(rank.0) + 1);
        let total = notice.total.map_or(0, |total| total + 1);
        let words = [failed | told_by << 32, total, u64::from(notice.done), u64::from(notice.closed)];
        let mut bytes = [0; 32];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        let target = Target { region: to, offset: FAILED };
        fabric.post(on, Op::WriteWithImm { source: Source::Inline(&bytes), target, imm: 0 }, Token::UNSIGNALED)
    }

    /// Posts the receives by which this member notices what a peer [says](Control::say) to it.
    pub(crate) fn listen(&self, fabric: &mut impl Fabric, on: EndpointId, peer: Rank) {
        for _ in 0..CHANGES {
            let into = Slice { region: self.region(peer), offset: 0, len: 0 };
            // A new endpoint has room for them (G3); one that is broken already says so by itself.
            let _ = fabric.post(on, Op::Recv { into }, Token(0));
        }
    }
}
