//! The code that a peer's bytes reach first, for fuzzing: without sockets, and with checks that hold whatever the bytes
//! are.

use std::collections::VecDeque;

use super::{
    frame::{HEADER_BYTES, Header, Kind},
    receive::{Local, Receiver},
    set_up,
};
use crate::{Completion, EndpointId, Region, RegionKey, RegionKind, Target, Token, graph::OwnedSlice, recvs::Recv};

/// The number of bytes on both sides of each range, which no frame may change.
const GUARD: usize = 32;

/// The value of those bytes, and of all others before a frame has come.
const UNTOUCHED: u8 = 0xa5;

/// The size of a case's memory.
const ARENA_BYTES: usize = 2048;

/// The number of answers that a peer may ask for.
const MAY_ASK: usize = 4;

/// The exposed regions: a kind, a size; the key is the index and 1.
const EXPOSED: [(RegionKind, usize); 4] =
    [(RegionKind::Polled, 64), (RegionKind::Bulk, 200), (RegionKind::Bulk, 1), (RegionKind::Lent, 40)];

/// The buffers of receives, in turn.
const RECVS: [(RegionKind, usize); 4] =
    [(RegionKind::Bulk, 100), (RegionKind::Polled, 40), (RegionKind::Bulk, 0), (RegionKind::Bulk, 13)];

/// The buffers of answers to reads, in turn.
const READS: [(RegionKind, usize); 3] = [(RegionKind::Polled, 48), (RegionKind::Bulk, 33), (RegionKind::Bulk, 0)];

/// A side that receives.
struct World {
    arena: Region,
    end: usize,
    exposed: Vec<Region>,
    recvs: VecDeque<Recv>,
    reads: VecDeque<OwnedSlice>,
    answered: u64,
    asked: Vec<Option<OwnedSlice>>,
    out: Vec<Completion>,
    receiver: Receiver,
    broken: Option<String>,
}

impl World {
    fn new(recvs: usize, reads: usize) -> World {
        let arena = Region::heap(RegionKind::Bulk, RegionKey(99), ARENA_BYTES);
        arena.write(0, &[UNTOUCHED; ARENA_BYTES]);
        let mut world = World {
            arena,
            end: 0,
            exposed: Vec::new(),
            recvs: VecDeque::new(),
            reads: VecDeque::new(),
            answered: 0,
            asked: Vec::new(),
            out: Vec::new(),
            receiver: Receiver::default(),
            broken: None,
        };
        world.exposed = (1..).zip(EXPOSED).map(|(key, (kind, bytes))| world.part(kind, key, bytes)).collect();
        for (token, (kind, len)) in RECVS.into_iter().cycle().take(recvs).enumerate() {
            let region = world.part(kind, 10, len);
            world.recvs.push_back(Recv { region, offset: 0, len, token: Token(token as u64) });
        }
        for (kind, len) in READS.into_iter().cycle().take(reads) {
            let region = world.part(kind, 20, len);
            world.reads.push_back(OwnedSlice { region, offset: 0, len });
        }
        world
    }

    /// The next bytes of the arena, behind a guard.
    fn part(&mut self, kind: RegionKind, key: u64, bytes: usize) -> Region {
        let offset = self.end + GUARD;
        self.end = (offset + bytes).next_multiple_of(8);
        assert!(self.end + GUARD <= ARENA_BYTES);
        let base = self.arena.address(offset, bytes);
        // SAFETY: the arena has these bytes, rounded up to whole words, at an offset that is a multiple of 8; it lives
        // as long as its clone, and one thread uses it.
        unsafe { Region::from_raw(kind, RegionKey(key), base, bytes, Box::new(self.arena.clone())) }
    }

    /// Takes bytes of the stream. With `in_place`, they go straight to their place if it is known, as the socket does
    /// with long ones.
    fn take(&mut self, mut bytes: &[u8], in_place: bool) {
        if self.broken.is_some() {
            return;
        }
        let mut local = Local {
            endpoint: EndpointId(7),
            exposed: &self.exposed,
            recvs: &mut self.recvs,
            reads: &mut self.reads,
            answered: &mut self.answered,
            asked: &mut self.asked,
            may_ask: MAY_ASK,
            out: &mut self.out,
        };
        if in_place && let Some((region, offset, left)) = self.receiver.place() {
            let (now, rest) = bytes.split_at(left.min(bytes.len()));
            region.write(offset, now);
            self.receiver.placed(now.len(), &mut local);
            bytes = rest;
        }
        self.broken = self.receiver.feed(bytes, &mut local).err().map(|reason| reason.to_string());
    }

    fn memory(&self) -> Vec<u8> {
        let mut bytes = vec![0; ARENA_BYTES];
        self.arena.read(0, &mut bytes);
        bytes
    }

    /// The range of a region in the arena.
    fn range(&self, region: &Region) -> std::ops::Range<usize> {
        let begin = region.base().addr().get() - self.arena.base().addr().get();
        begin..begin + region.len()
    }
}

/// Takes a peer's stream, whole and in pieces.
///
/// The first byte gives the number of receives (its low three bits) and of reads (the next two) that wait. The low
/// three bits of the second one give the number of pieces whose sizes follow, a byte each; pieces of odd size are taken
/// in place where that can be. The rest is the stream.
pub fn stream(input: &[u8]) {
    let Some(([waiting, pieces], rest)) = input.split_first_chunk() else { return };
    let Some((sizes, stream)) = rest.split_at_checked(usize::from(pieces & 7)) else { return };
    let (recvs, reads) = (usize::from(waiting & 7), usize::from(waiting >> 3 & 3));

    let mut whole = World::new(recvs, reads);
    let reachable = reachable(&whole, stream);
    whole.take(stream, false);
    let memory = whole.memory();
    let touched = memory.iter().zip(&reachable).position(|(byte, reachable)| *byte != UNTOUCHED && !reachable);
    assert_eq!(touched, None, "a byte changed that no frame names");
    assert_eq!(whole.out.len() + whole.recvs.len(), recvs, "a receive is completed once, and no other is");
    assert_eq!(whole.answered as usize + whole.reads.len(), reads);
    assert!(whole.asked.len() <= MAY_ASK);
    for (completion, (_, len)) in whole.out.iter().zip(RECVS.into_iter().cycle()) {
        assert!(matches!(completion, Completion::Received { bytes, .. } if *bytes <= len), "{completion:?}");
    }

    let mut pieces = World::new(recvs, reads);
    let mut rest = stream;
    for size in sizes.iter().cycle() {
        let (piece, behind) = rest.split_at(rest.len().min(1 + usize::from(*size)));
        pieces.take(piece, size % 2 == 1);
        rest = behind;
        if rest.is_empty() {
            break;
        }
    }
    if sizes.is_empty() {
        return;
    }
    assert!(memory == pieces.memory(), "the same bytes in pieces leave other memory behind");
    assert_eq!(whole.out, pieces.out);
    assert_eq!((whole.answered, whole.asked.len()), (pieces.answered, pieces.asked.len()));
    assert_eq!(whole.broken, pieces.broken);
    assert_eq!(whole.receiver.is_between_frames(), pieces.receiver.is_between_frames());
    assert_eq!((whole.receiver.frames, whole.receiver.bulk), (pieces.receiver.frames, pieces.receiver.bulk));
}

/// The bytes of the arena that the frames of a stream name, as if all were allowed and complete.
fn reachable(world: &World, mut stream: &[u8]) -> Vec<bool> {
    let mut reachable = vec![false; ARENA_BYTES];
    let mut mark = |region: &Region, offset: usize, len: usize| {
        let range = world.range(region);
        if offset <= region.len() && len <= region.len() - offset {
            // Words of polled memory change as a whole.
            let len = if region.kind() == RegionKind::Polled { len.next_multiple_of(8) } else { len };
            reachable[range.start + offset..][..len].fill(true);
        }
    };
    let (mut recvs, mut reads) = (world.recvs.iter(), world.reads.iter());
    while let Some((header, rest)) = stream.split_first_chunk::<HEADER_BYTES>() {
        let Some(Header { kind, len }) = Header::decode(header) else { break };
        match kind {
            Kind::Write(Target { region, offset }) | Kind::WriteWithImm(Target { region, offset }, _) => {
                if let Some(region) = world.exposed.iter().find(|exposed| exposed.key() == region)
                    && region.kind() != RegionKind::Lent
                {
                    mark(region, offset, len);
                }
            }
            Kind::Send | Kind::SendWithImm(_) => {}
            Kind::Answer => {
                if let Some(read) = reads.next() {
                    mark(&read.region, 0, len);
                }
            }
            Kind::Read(_) => {
                stream = rest;
                continue;
            }
        }
        if matches!(kind, Kind::Send | Kind::SendWithImm(_) | Kind::WriteWithImm(..))
            && let Some(recv) = recvs.next()
            && !matches!(kind, Kind::WriteWithImm(..))
        {
            mark(&recv.region, 0, len);
        }
        stream = rest.get(len..).unwrap_or_default();
    }
    reachable
}

/// Reads bytes as the set-up of an endpoint that a peer's fabric sends.
pub fn set_up(bytes: &[u8]) {
    if let Some(set_up) = set_up::decode(bytes) {
        assert_eq!(17 * set_up.remote.len() + 12 + set_up.hello.len(), bytes.len());
        let regions = set_up.remote.iter().filter(|region| region.bytes <= 1 << 20);
        let regions: Vec<_> = regions.map(|region| Region::heap(region.kind, region.key, region.bytes)).collect();
        if regions.len() == set_up.remote.len() {
            assert_eq!(set_up::encode(set_up.depth, &set_up.hello, &regions), bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds::replay;

    fn frame(kind: Kind, len: usize) -> Vec<u8> {
        let mut bytes = Header { kind, len }.encode().to_vec();
        if !matches!(kind, Kind::Read(_)) {
            bytes.extend((0..len).map(|at| at as u8));
        }
        bytes
    }

    fn at(region: u64, offset: usize) -> Target {
        Target { region: RegionKey(region), offset }
    }

    /// An input of [`stream`].
    fn input(recvs: u8, reads: u8, sizes: &[u8], frames: &[Vec<u8>]) -> Vec<u8> {
        [&[recvs | reads << 3, sizes.len() as u8], sizes, &frames.concat()].concat()
    }

    #[test]
    fn known_streams_keep_to_the_rules() {
        let all = [
            frame(Kind::Write(at(1, 8)), 16),
            frame(Kind::WriteWithImm(at(2, 3), 7), 197),
            frame(Kind::Send, 100),
            frame(Kind::SendWithImm(9), 35),
            frame(Kind::Read(at(1, 0)), 64),
            frame(Kind::Answer, 48),
            frame(Kind::Answer, 33),
            frame(Kind::Read(at(3, 0)), 0),
            frame(Kind::Write(at(3, 0)), 1),
        ];
        let empty = [
            frame(Kind::Write(at(8, 0)), 0),
            frame(Kind::WriteWithImm(at(8, 0), 1), 0),
            frame(Kind::Send, 0),
            frame(Kind::Read(at(8, 0)), 0),
        ];
        let seeds = [
            ("all-kinds", input(4, 2, &[], &all)),
            ("all-kinds-by-byte", input(4, 2, &[0], &all)),
            ("all-kinds-in-place", input(4, 2, &[30, 1, 6, 255, 12], &all)),
            ("empty", input(7, 3, &[31], &empty)),
            ("beyond-a-region", input(1, 0, &[3], &[frame(Kind::Write(at(2, 1)), 200)])),
            ("misaligned", input(1, 0, &[3], &[frame(Kind::Write(at(1, 4)), 8)])),
            ("unknown-key", input(1, 0, &[3], &[frame(Kind::Write(at(5, 0)), 8)])),
            ("write-of-lent", input(1, 0, &[3], &[frame(Kind::Read(at(4, 1)), 39), frame(Kind::Write(at(4, 0)), 8)])),
            ("too-long-for-a-receive", input(2, 0, &[3], &[frame(Kind::Send, 101)])),
            ("unasked-answer", input(0, 0, &[3], &[frame(Kind::Answer, 8)])),
            ("too-many-reads", input(0, 0, &[3], &vec![frame(Kind::Read(at(1, 0)), 8); MAY_ASK + 1])),
            ("cut", input(4, 2, &[9], &[all.concat()[..200].to_vec()])),
        ];
        replay("stream", &seeds, stream);
    }

    #[test]
    fn known_set_ups_are_read_or_refused() {
        let region = |kind, key, bytes| Region::heap(kind, RegionKey(key), bytes);
        let regions =
            [region(RegionKind::Polled, 7, 64), region(RegionKind::Bulk, 9, 13), region(RegionKind::Lent, 11, 5)];
        let seeds =
            [("three-regions", set_up::encode(16, b"hello", &regions)), ("nothing", set_up::encode(1, b"", &[]))];
        replay("set_up", &seeds, set_up);
    }
}
