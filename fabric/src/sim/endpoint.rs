//! One side of a connection: the work that it has posted, and the operations that travel towards it.

use std::{collections::VecDeque, ops::Range};

use fastrand::Rng;

use super::{payload::Payload, queue::NodeIx};
use crate::{BreakReason, EndpointId, GroupTag, NodeId, Region, RemoteRegion, Target, Time, Token, recvs::Recv};

/// The state of a connection, as one side sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SideState {
    /// `connect` was called; the next poll announces it.
    New,
    /// An endpoint that is announced, and meets its counterpart once there is one.
    Waiting,
    /// An endpoint with a counterpart of which its node has not heard yet.
    Met,
    /// Its node knows: all work may be posted.
    Up,
    /// Sabotaged: it is closed, and still there.
    Closing,
}

/// One side of a connection. It is dropped when it breaks or is closed, and with it all that travels towards it (G6).
#[derive(Debug)]
pub(super) struct Side {
    pub(super) node: NodeIx,
    pub(super) peer_node: NodeId,
    /// The place of the peer's node; known from `Met` on.
    pub(super) peer_ix: NodeIx,
    pub(super) tag: GroupTag,
    pub(super) state: SideState,
    /// The counterpart, while it exists.
    pub(super) peer: Option<EndpointId>,
    /// The regions that the peer may reach.
    pub(super) exposed: Vec<Region>,
    pub(super) hello: Vec<u8>,
    /// The regions that the peer exposed.
    pub(super) remote: Vec<RemoteRegion>,
    pub(super) peer_hello: Vec<u8>,
    /// The operations that the peer's side has sent here.
    pub(super) incoming: Flow,
    /// Receives, oldest first.
    pub(super) recvs: VecDeque<Recv>,
    /// Outstanding writes, reads and sends, in the order of their posts.
    pub(super) pending: VecDeque<Pending>,
    /// The number of the first of `pending`.
    pub(super) pending_base: u64,
    /// The number of signaled ones in `pending`.
    pub(super) signaled: usize,
    /// Whether `Connected` was reported.
    pub(super) reported: bool,
    /// Whether an event will look at `pending`.
    pub(super) done_scheduled: bool,
    /// Whether the send queue, or the receive queue, was full, so that `Room` is owed.
    pub(super) send_was_full: bool,
    pub(super) recv_was_full: bool,
    /// Whether a graph's request waits for room, or for the connection.
    pub(super) graph_waits: bool,
    /// Whether posted work waits for the next poll.
    pub(super) unsent: bool,
    /// Reads of the peer that are being served here.
    pub(super) serving: Vec<Read>,
    /// Reads of this side whose bytes are on their way back.
    pub(super) returning: Vec<Read>,
}

/// Outstanding work.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) token: Token,
    /// The time at which it is complete locally, once that is known.
    pub(super) ready_at: Option<Time>,
}

/// The operations that travel from one side of a connection to the other, in order. They are kept at their target.
#[derive(Debug, Default)]
pub(super) struct Flow {
    pub(super) queue: VecDeque<Work>,
    /// The number of operations at the front that have left, and have their time of arrival.
    pub(super) departed: usize,
    /// The number of operations at the front that were handed to the network.
    pub(super) handed: usize,
    /// Whether a large operation is passing the bottleneck.
    pub(super) sending: bool,
    /// The position of that operation, where it goes in segments.
    pub(super) passing: Option<Passing>,
    /// Whether an event will look at the front.
    pub(super) scheduled: bool,
    /// The operation that has begun to land.
    pub(super) landing: Option<Landing>,
    pub(super) last_arrival: Time,
}

/// A large operation that passes the ports in segments. One segment at a time is on its way, so that an operation that
/// is held up at one port leaves the ports before it to others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passing {
    /// Bytes that are still to go, those of this segment included.
    pub(super) left: usize,
    /// The port that this segment comes to next.
    pub(super) hop: usize,
    /// The time at which this segment is through the ports before, in nanoseconds.
    pub(super) clear: u64,
}

/// One operation on its way.
#[derive(Debug)]
pub(super) struct Work {
    /// Its number among the poster's work.
    pub(super) seq: u64,
    pub(super) kind: WorkKind,
    pub(super) payload: Payload,
    pub(super) arrival: Time,
    /// Whether its poster is gone, so that any subset of its words lands, and nothing else of it happens.
    pub(super) torn: bool,
}

#[derive(Debug)]
pub(super) enum WorkKind {
    Write {
        to: Target,
        imm: Option<u32>,
        word: Option<(u64, Target)>,
    },
    Send {
        imm: Option<u32>,
    },
    Read {
        from: Target,
        into: Region,
        into_offset: usize,
        len: usize,
    },
    /// The last operation: the poster's side is gone.
    Fin(BreakReason),
}

impl WorkKind {
    /// Its name in a trace.
    pub(super) fn name(&self) -> &'static str {
        match self {
            WorkKind::Write { imm: Some(_), .. } => "write with immediate",
            WorkKind::Write { word: Some(_), .. } => "write then word",
            WorkKind::Write { .. } => "write",
            WorkKind::Send { .. } => "send",
            WorkKind::Read { .. } => "read",
            WorkKind::Fin(_) => "end",
        }
    }
}

/// An operation that has begun to land.
#[derive(Debug)]
pub(super) struct Landing {
    pub(super) work: Work,
    /// The destination of its bytes; none if it has no bytes.
    pub(super) to: Option<(Region, usize)>,
    /// The destination of its announcing word, and the word.
    pub(super) word: Option<(Region, usize, u64)>,
    /// The receive that it consumes.
    pub(super) recv: Option<Recv>,
    /// The pieces that are still to land.
    pub(super) pieces: Pieces,
}

/// Up to four parts of one operation's bytes, and a pause.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    parts: [(usize, usize); 5],
    count: usize,
}

impl Pieces {
    /// Cuts `len` bytes at multiples of `grain` into `count` parts (1 to 4; fewer if cuts coincide), in random order.
    /// With `pause`, an empty part comes last.
    pub(super) fn cut(len: usize, grain: usize, count: usize, pause: bool, rng: &mut Rng) -> Pieces {
        let mut cuts = [len; 4];
        for cut in &mut cuts[..count - 1] {
            *cut = rng.usize(0..=len / grain) * grain;
        }
        cuts[..count - 1].sort_unstable();
        let mut pieces = Pieces::default();
        if pause {
            pieces.push(0, 0);
        }
        let mut start = 0;
        for cut in &cuts[..count] {
            if *cut > start {
                pieces.push(start, *cut);
                start = *cut;
            }
        }
        let end = pieces.count;
        rng.shuffle(&mut pieces.parts[usize::from(pause)..end]);
        pieces
    }

    /// Pieces that land nothing at first, and all `len` bytes after a pause.
    pub(super) fn after_pause(len: usize) -> Pieces {
        let mut pieces = Pieces::default();
        pieces.push(0, len);
        pieces.push(0, 0);
        pieces
    }

    fn push(&mut self, start: usize, end: usize) {
        self.parts[self.count] = (start, end);
        self.count += 1;
    }

    pub(super) fn pop(&mut self) -> Option<Range<usize>> {
        self.count = self.count.checked_sub(1)?;
        let (start, end) = self.parts[self.count];
        Some(start..end)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// A read that has reached its target.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) id: u64,
    pub(super) seq: u64,
    pub(super) from: (Region, usize),
    pub(super) into: (Region, usize),
    pub(super) len: usize,
    /// The number of bytes that are not fetched, or not placed, yet: the first ones.
    pub(super) rest: usize,
    /// The fetched bytes; empty for a phantom's.
    pub(super) bytes: Vec<u8>,
    /// Whether a partition holds its bytes up.
    pub(super) stalled: bool,
}
