//! The message of each side of a connection to the other before their queue pairs meet.
//!
//! Little-endian:
//!
//! ```text
//!  0  version (1)            24  its watch's remote key (4)
//!  1  path MTU, as verbs     28  GID (16 bytes)
//!     number it              44  the endpoint's slot (4)
//!  2  link layer             48  hello length (1), hello
//!  3  reads served            .  region count (4), and for each region
//!  4  LID (2), zero (2)          key (8), address (8), bytes (8),
//!  8  queue pair number (4)      remote key (4), kind (1)
//! 12  first packet (4)
//! 16  its watch's address (8)
//! ```
//!
//! A kind is 0 for polled, 1 for bulk, 2 for lent.

use crate::{
    HELLO_BYTES, RegionKey, RegionKind, RemoteRegion,
    wire::{self, Reader, Writer},
};

/// The version of these bytes.
const VERSION: u8 = 2;

const HEAD_BYTES: usize = 48;
const REGION_BYTES: usize = 29;

/// The most regions that one endpoint exposes, so that a set-up fits into a packet of the control plane.
pub(super) const MAX_EXPOSED: usize = 4096;

/// One side of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SetUp {
    pub(super) mtu: u8,
    pub(super) link_layer: u8,
    /// The number of reads of the peer that may be under way.
    pub(super) served_reads: u8,
    pub(super) lid: u16,
    pub(super) number: u32,
    /// The number of the first packet that it sends, 24 bits.
    pub(super) psn: u32,
    /// The word in which it learns that the other side sleeps: see `watch`.
    pub(super) watch_addr: u64,
    pub(super) watch_key: u32,
    pub(super) gid: [u8; 16],
    /// The place of the endpoint in this side's table, by which the other side's rings name it: see `bell`.
    pub(super) slot: u32,
    pub(super) hello: Vec<u8>,
    pub(super) regions: Vec<Exposed>,
}

/// A region that the peer may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exposed {
    pub(super) describe: RemoteRegion,
    pub(super) addr: u64,
    /// The device's name for it.
    pub(super) key: u32,
}

/// The reason for which a peer's message can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error(
        "the peer's set-up of version {0} can't be understood, this node's is {VERSION}: run one release on all nodes"
    )]
    Version(u8),
    #[error("the peer's set-up is malformed: {0}")]
    Field(&'static str),
    #[error("the peer's set-up is malformed: it is too short")]
    Short(#[from] wire::Malformed),
}

impl SetUp {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(HEAD_BYTES + 5 + self.hello.len() + REGION_BYTES * self.regions.len()));
        out.bytes(&[VERSION, self.mtu, self.link_layer, self.served_reads]).bytes(&self.lid.to_le_bytes());
        out.bytes(&[0; 2]).u32(self.number).u32(self.psn).u64(self.watch_addr).u32(self.watch_key).bytes(&self.gid);
        out.u32(self.slot).u8(self.hello.len() as u8).bytes(&self.hello).u32(self.regions.len() as u32);
        for Exposed { describe, addr, key } in &self.regions {
            let kind = match describe.kind {
                RegionKind::Polled => 0,
                RegionKind::Bulk | RegionKind::Phantom => 1,
                RegionKind::Lent => 2,
            };
            out.u64(describe.key.0).u64(*addr).u64(describe.bytes as u64).u32(*key).u8(kind);
        }
        out.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<SetUp, Malformed> {
        let mut rest = Reader(bytes);
        let [version, mtu, link_layer, served_reads] = rest.array()?;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        if !(1..=5).contains(&mtu) {
            return Err(Malformed::Field("there is no such MTU"));
        }
        let lid = u16::from_le_bytes(rest.array()?);
        rest.bytes(2)?;
        let number = rest.u32()?;
        let psn = rest.u32()?;
        if number >= 1 << 24 || psn >= 1 << 24 {
            return Err(Malformed::Field("queue pairs and packets have numbers of 24 bits"));
        }
        let watch_addr = rest.u64()?;
        let watch_key = rest.u32()?;
        let gid = rest.array()?;
        let slot = rest.u32()?;
        let hello = usize::from(rest.u8()?);
        if hello > HELLO_BYTES {
            return Err(Malformed::Field("its private data is too long"));
        }
        let hello = rest.bytes(hello)?.to_vec();
        let count = rest.u32()? as usize;
        if count > MAX_EXPOSED || rest.0.len() != count * REGION_BYTES {
            return Err(Malformed::Field("it is not as long as its list of regions"));
        }
        let mut regions = Vec::with_capacity(count);
        for _ in 0..count {
            let key = RegionKey(rest.u64()?);
            let addr = rest.u64()?;
            let bytes = rest.u64()?;
            let remote_key = rest.u32()?;
            let kind = match rest.u8()? {
                0 => RegionKind::Polled,
                1 => RegionKind::Bulk,
                2 => RegionKind::Lent,
                _ => return Err(Malformed::Field("there is no such kind of region")),
            };
            if addr.checked_add(bytes).is_none() {
                return Err(Malformed::Field("a region goes beyond the end of memory"));
            }
            let describe = RemoteRegion { key, kind, bytes: bytes as usize };
            regions.push(Exposed { describe, addr, key: remote_key });
        }
        Ok(SetUp { mtu, link_layer, served_reads, lid, number, psn, watch_addr, watch_key, gid, slot, hello, regions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> SetUp {
        let region = |key, kind| Exposed {
            describe: RemoteRegion { key: RegionKey(key), kind, bytes: 4096 },
            addr: 0x7f00_0000_1000,
            key: 77,
        };
        SetUp {
            mtu: 5,
            link_layer: 2,
            served_reads: 16,
            lid: 3,
            number: 0x00ab_cdef,
            psn: 1,
            watch_addr: u64::MAX,
            watch_key: 5,
            gid: [9; 16],
            slot: 17,
            hello: b"hello".to_vec(),
            regions: vec![region(1, RegionKind::Polled), region(2, RegionKind::Bulk), region(3, RegionKind::Lent)],
        }
    }

    #[test]
    fn what_is_said_is_understood() {
        assert_eq!(SetUp::decode(&some().encode()), Ok(some()));
        let bare = SetUp { hello: Vec::new(), regions: Vec::new(), ..some() };
        assert_eq!(SetUp::decode(&bare.encode()), Ok(bare));
    }

    #[test]
    fn what_is_cut_or_followed_by_more_is_refused() {
        let mut whole = some().encode();
        for len in 0..whole.len() {
            assert!(SetUp::decode(&whole[..len]).is_err(), "{len} of {} bytes", whole.len());
        }
        whole.push(0);
        assert!(SetUp::decode(&whole).is_err());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(SetUp::decode(&[9; 64]), Err(Malformed::Version(9)));
        for bad in [
            SetUp { mtu: 6, ..some() },
            SetUp { number: 1 << 24, ..some() },
            SetUp { hello: vec![0; HELLO_BYTES + 1], ..some() },
            SetUp { regions: vec![Exposed { addr: u64::MAX, ..some().regions[0] }], ..some() },
        ] {
            assert!(matches!(SetUp::decode(&bad.encode()), Err(Malformed::Field(_))), "{bad:?}");
        }
    }
}
