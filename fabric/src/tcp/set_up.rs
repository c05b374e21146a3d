//! The message of each side of an endpoint to the other before its stream stands.
//!
//! ```text
//!   depth u32 │ hello length u32 │ hello │ regions u32 │ regions × { key u64 │ bytes u64 │ kind u8 }
//! ```
//!
//! All numbers are little-endian. A kind is 0 for polled, 1 for bulk, 2 for lent.

use super::config::MAX_QUEUE_DEPTH;
use crate::{
    HELLO_BYTES, Region, RegionKey, RegionKind, RemoteRegion,
    wire::{Reader, Writer},
};

/// The most regions that an endpoint exposes: their list must fit into a set-up of the control plane.
pub(super) const MAX_EXPOSED: usize = 4096;

const POLLED: u8 = 0;
const BULK: u8 = 1;
const LENT: u8 = 2;

const REGION_BYTES: usize = 17;

/// A peer's message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SetUp {
    /// The number of reads that it may have outstanding.
    pub(super) depth: usize,
    pub(super) hello: Vec<u8>,
    pub(super) remote: Vec<RemoteRegion>,
}

pub(super) fn encode(depth: usize, hello: &[u8], exposed: &[Region]) -> Vec<u8> {
    let mut out = Writer(Vec::with_capacity(12 + hello.len() + REGION_BYTES * exposed.len()));
    out.u32(depth as u32).u32(hello.len() as u32).bytes(hello).u32(exposed.len() as u32);
    for region in exposed {
        let kind = match region.kind() {
            RegionKind::Polled => POLLED,
            RegionKind::Bulk | RegionKind::Phantom => BULK,
            RegionKind::Lent => LENT,
        };
        out.u64(region.key().0).u64(region.len() as u64).u8(kind);
    }
    out.0
}

/// Reads a message. None if no node sends it.
pub(super) fn decode(bytes: &[u8]) -> Option<SetUp> {
    let mut rest = Reader(bytes);
    let (depth, hello) = (rest.u32().ok()? as usize, rest.u32().ok()? as usize);
    if !(1..=MAX_QUEUE_DEPTH).contains(&depth) || hello > HELLO_BYTES {
        return None;
    }
    let hello = rest.bytes(hello).ok()?.to_vec();
    let regions = rest.u32().ok()? as usize;
    if regions > MAX_EXPOSED || rest.0.len() != REGION_BYTES * regions {
        return None;
    }
    let region = |_| {
        let (key, bytes) = (RegionKey(rest.u64().ok()?), usize::try_from(rest.u64().ok()?).ok()?);
        let kind = match rest.u8().ok()? {
            POLLED => RegionKind::Polled,
            BULK => RegionKind::Bulk,
            LENT => RegionKind::Lent,
            _ => return None,
        };
        Some(RemoteRegion { key, kind, bytes })
    };
    let remote = (0..regions).map(region).collect::<Option<Vec<_>>>()?;
    Some(SetUp { depth, hello, remote })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Vec<u8> {
        let region = |kind, key, bytes| Region::heap(kind, RegionKey(key), bytes);
        let regions =
            [region(RegionKind::Polled, 7, 64), region(RegionKind::Bulk, 9, 13), region(RegionKind::Lent, 11, 5)];
        encode(16, b"hello", &regions)
    }

    #[test]
    fn a_set_up_is_read_as_it_was_written() {
        let set_up = decode(&good()).unwrap();
        assert_eq!((set_up.depth, &set_up.hello[..]), (16, &b"hello"[..]));
        let polled = RemoteRegion { key: RegionKey(7), kind: RegionKind::Polled, bytes: 64 };
        let bulk = RemoteRegion { key: RegionKey(9), kind: RegionKind::Bulk, bytes: 13 };
        let lent = RemoteRegion { key: RegionKey(11), kind: RegionKind::Lent, bytes: 5 };
        assert_eq!(set_up.remote, [polled, bulk, lent]);
    }

    #[test]
    fn a_set_up_that_is_cut_or_too_long_or_says_too_much_is_refused() {
        let good = good();
        for len in 0..good.len() {
            assert_eq!(decode(&good[..len]), None, "the first {len} bytes");
        }
        assert_eq!(decode(&[&good[..], &[0]].concat()), None);
        for at in [3, 7, 16, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] = 0xff;
            assert_eq!(decode(&bad), None, "byte {at}");
        }
    }
}
