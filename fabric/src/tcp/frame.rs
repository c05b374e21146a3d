//! The header before the bytes of each piece of work on an endpoint's stream.
//!
//! ```text
//!   0        1          4        8               16              24              32
//!   ┌────────┬──────────┬────────┬───────────────┬───────────────┬───────────────┬─ ─ ─
//!   │ kind   │ zeros    │ imm    │ length        │ region key    │ offset        │ bytes
//!   └────────┴──────────┴────────┴───────────────┴───────────────┴───────────────┴─ ─ ─
//! ```
//!
//! All numbers are little-endian; fields that a kind has no use for are zero. `length` bytes follow, except behind a
//! request to read, which asks for as many.

use crate::{RegionKey, Target};

/// The length of a header, in bytes.
pub(super) const HEADER_BYTES: usize = 32;

/// The purpose of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Write(Target),
    WriteWithImm(Target, u32),
    Send,
    SendWithImm(u32),
    /// A request that is answered by an `Answer`, in the order of requests.
    Read(Target),
    Answer,
}

/// A frame without its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) len: usize,
}

const WRITE: u8 = 1;
const WRITE_WITH_IMM: u8 = 2;
const SEND: u8 = 3;
const SEND_WITH_IMM: u8 = 4;
const READ: u8 = 5;
const ANSWER: u8 = 6;

impl Header {
    #[inline]
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let (kind, target, imm) = match self.kind {
            Kind::Write(target) => (WRITE, Some(target), 0),
            Kind::WriteWithImm(target, imm) => (WRITE_WITH_IMM, Some(target), imm),
            Kind::Send => (SEND, None, 0),
            Kind::SendWithImm(imm) => (SEND_WITH_IMM, None, imm),
            Kind::Read(target) => (READ, Some(target), 0),
            Kind::Answer => (ANSWER, None, 0),
        };
        let (key, offset) = target.map_or((0, 0), |target| (target.region.0, target.offset as u64));
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = kind;
        bytes[4..8].copy_from_slice(&imm.to_le_bytes());
        bytes[8..16].copy_from_slice(&(self.len as u64).to_le_bytes());
        bytes[16..24].copy_from_slice(&key.to_le_bytes());
        bytes[24..].copy_from_slice(&offset.to_le_bytes());
        bytes
    }

    /// Reads a header. None if no node sends it.
    #[inline]
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let imm = (word(0) >> 32) as u32;
        let (len, key, offset) = (usize::try_from(word(8)).ok()?, word(16), word(24));
        let target = Target { region: RegionKey(key), offset: usize::try_from(offset).ok()? };
        let kind = match bytes[0] {
            WRITE => Kind::Write(target),
            WRITE_WITH_IMM => Kind::WriteWithImm(target, imm),
            SEND => Kind::Send,
            SEND_WITH_IMM => Kind::SendWithImm(imm),
            READ => Kind::Read(target),
            ANSWER => Kind::Answer,
            _ => return None,
        };
        let no_target = matches!(kind, Kind::Send | Kind::SendWithImm(_) | Kind::Answer);
        let no_imm = !matches!(kind, Kind::WriteWithImm(..) | Kind::SendWithImm(_));
        let clean = bytes[1..4] == [0; 3] && (!no_target || key | offset == 0) && (!no_imm || imm == 0);
        clean.then_some(Header { kind, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target { region: RegionKey(0x1122_3344_5566_7788), offset: 0x99aa_bbcc };

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let kinds = [
            Kind::Write(TARGET),
            Kind::WriteWithImm(TARGET, 7),
            Kind::Send,
            Kind::SendWithImm(u32::MAX),
            Kind::Read(TARGET),
            Kind::Answer,
        ];
        for kind in kinds {
            for len in [0, 1, 1 << 40] {
                let read = Header::decode(&Header { kind, len }.encode()).map(|header| (header.kind, header.len));
                assert_eq!(format!("{read:?}"), format!("{:?}", Some((kind, len))));
            }
        }
    }

    #[test]
    fn a_header_that_no_node_writes_is_refused() {
        let good = Header { kind: Kind::Send, len: 8 }.encode();
        assert!(Header::decode(&good).is_some());
        for (at, value) in [(0, 0), (0, 7), (0, 255), (1, 1), (3, 1), (4, 1), (16, 1), (31, 1)] {
            let mut bad = good;
            bad[at] = value;
            assert!(Header::decode(&bad).is_none(), "byte {at} is {value}");
        }
    }
}
