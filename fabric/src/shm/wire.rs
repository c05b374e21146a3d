//! The frames that nodes exchange over their connection's socket.
//!
//! Each is one packet: a byte that names the frame, then its fields without padding, numbers little-endian. Descriptors
//! travel beside the packet, in the order of the table.
//!
//! | byte | frame | fields | descriptors |
//! |---|---|---|---|
//! | 1 | `Hello` | magic u64, version u32, from u32, to u32, incarnation u64, cluster | watch, eventfd |
//! | 2 | `Welcome` | as `Hello` | watch, eventfd |
//! | 3 | `Refuse` | magic u64, version u32, why u8, cluster | |
//! | 4 | `Expose` | endpoint u64, count u8, then for each: key u64, kind u8, bytes u64 | the regions |
//! | 5 | `Offer` | endpoint u64, layer u32, group u32, epoch u64, ring slots u64, hello | ring |
//! | 6 | `Accept` | as `Offer`, then the accepted endpoint u64 | ring |
//! | 7 | `Confirm` | endpoint u64, the peer's endpoint u64 | |
//! | 8 | `Reject` | the peer's endpoint u64, text | |
//! | 9 | `Close` | endpoint u64, why u8, text | |
//! | 10 | `Source` | key u64, kind u8, bytes u64 | the region |
//! | 11 | `Forget` | key u64 | |
//! | 12 | `Goodbye` | | |
//! | 13 | `Share` | key u64, bytes u64 | the sealed memory |
//!
//! A region's kind is 0 if it is polled, 1 if bulk, 2 if lent. A text has its length (u16) before it. The start of a
//! `Hello`, up to `from`, and all of a `Refuse` stay the same in all versions, so that nodes of different versions can
//! name the mismatch.

pub(super) use crate::wire::Malformed;
use crate::{
    BreakReason, GroupTag, HELLO_BYTES, NodeId, RegionKey, RegionKind, RemoteRegion,
    wire::{Reader, UNKNOWN_REASON, Writer},
};

/// The number that begins the first frame in either direction.
pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"squallSM");

/// The longest frame, in bytes.
pub(super) const FRAME_BYTES: usize = 4096;

/// The most regions that one `Expose` carries; this also bounds the descriptors that a receiver makes room for.
pub(super) const EXPOSE_REGIONS: usize = 128;

/// The introduction of a node to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) version: u32,
    pub(super) from: NodeId,
    /// The remaining fields, known only if the version is this node's.
    pub(super) rest: Option<HelloRest>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HelloRest {
    pub(super) to: NodeId,
    pub(super) incarnation: u64,
    pub(super) cluster: String,
}

/// The reason for which a node does not talk to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefuseWhy {
    Version,
    Cluster,
    /// A connection with the other node that it has already. Try again.
    Busy,
}

/// One side's part of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SetUp {
    pub(super) endpoint: u64,
    pub(super) tag: GroupTag,
    pub(super) ring_slots: u64,
    pub(super) hello: Vec<u8>,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Hello(Hello),
    Welcome(Hello),
    Refuse { version: u32, why: RefuseWhy, cluster: String },
    Expose { endpoint: u64, regions: Vec<RemoteRegion> },
    Offer(SetUp),
    Accept { set_up: SetUp, yours: u64 },
    Confirm { mine: u64, yours: u64 },
    Reject { yours: u64, text: String },
    Close { mine: u64, reason: BreakReason },
    Source(RemoteRegion),
    Forget(RegionKey),
    Goodbye,
    Share { key: RegionKey, bytes: u64 },
}

impl Frame {
    /// Writes the packet.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Writer(Vec::with_capacity(64));
        match self {
            Frame::Hello(hello) => to.u8(1).hello(hello),
            Frame::Welcome(hello) => to.u8(2).hello(hello),
            Frame::Refuse { version, why, cluster } => to.u8(3).u64(MAGIC).u32(*version).u8(*why as u8).text(cluster),
            Frame::Expose { endpoint, regions } => {
                debug_assert!(regions.len() <= EXPOSE_REGIONS);
                to.u8(4).u64(*endpoint).u8(regions.len() as u8);
                regions.iter().fold(&mut to, |to, region| to.region(region))
            }
            Frame::Offer(set_up) => to.u8(5).set_up(set_up),
            Frame::Accept { set_up, yours } => to.u8(6).set_up(set_up).u64(*yours),
            Frame::Confirm { mine, yours } => to.u8(7).u64(*mine).u64(*yours),
            Frame::Reject { yours, text } => to.u8(8).u64(*yours).text(text),
            // These need a network, and the reader refuses them.
            Frame::Close { mine, reason: BreakReason::Lost(_) | BreakReason::GivenUp | BreakReason::Unreachable } => {
                to.u8(9).u64(*mine).reason(&BreakReason::PeerClosed)
            }
            Frame::Close { mine, reason } => to.u8(9).u64(*mine).reason(reason),
            Frame::Source(region) => to.u8(10).region(region),
            Frame::Forget(key) => to.u8(11).u64(key.0),
            Frame::Goodbye => to.u8(12),
            Frame::Share { key, bytes } => to.u8(13).u64(key.0).u64(*bytes),
        };
        debug_assert!(to.0.len() <= FRAME_BYTES);
        to.0
    }

    /// Reads a packet, which may hold anything. `version` is that of this node.
    pub(super) fn decode(bytes: &[u8], version: u32) -> Result<Frame, Malformed> {
        let mut from = Reader(bytes);
        let frame = match from.u8()? {
            kind @ 1..=2 => {
                let hello = from.hello(version)?;
                if hello.rest.is_none() {
                    // Of a foreign version no more than this is known.
                    from.0 = &[];
                }
                if kind == 1 { Frame::Hello(hello) } else { Frame::Welcome(hello) }
            }
            3 => {
                from.magic()?;
                let version = from.u32()?;
                let why = match from.u8()? {
                    0 => RefuseWhy::Version,
                    1 => RefuseWhy::Cluster,
                    2 => RefuseWhy::Busy,
                    _ => return Err(Malformed("a refusal for no known reason")),
                };
                Frame::Refuse { version, why, cluster: from.text()? }
            }
            4 => {
                let endpoint = from.u64()?;
                let count = usize::from(from.u8()?);
                if count > EXPOSE_REGIONS {
                    return Err(Malformed("more regions than a packet may carry"));
                }
                let regions = (0..count).map(|_| from.region()).collect::<Result<_, _>>()?;
                Frame::Expose { endpoint, regions }
            }
            5 => Frame::Offer(from.set_up()?),
            6 => Frame::Accept { set_up: from.set_up()?, yours: from.u64()? },
            7 => Frame::Confirm { mine: from.u64()?, yours: from.u64()? },
            8 => Frame::Reject { yours: from.u64()?, text: from.text()? },
            9 => Frame::Close { mine: from.u64()?, reason: from.local_reason()? },
            10 => Frame::Source(from.region()?),
            11 => Frame::Forget(RegionKey(from.u64()?)),
            12 => Frame::Goodbye,
            13 => Frame::Share { key: RegionKey(from.u64()?), bytes: from.u64()? },
            _ => return Err(Malformed("it is of no known kind")),
        };
        from.end()?;
        Ok(frame)
    }
}

/// The parts that frames have in common.
impl Writer {
    fn hello(&mut self, hello: &Hello) -> &mut Writer {
        self.u64(MAGIC).u32(hello.version).u32(hello.from.0);
        match &hello.rest {
            Some(rest) => self.u32(rest.to.0).u64(rest.incarnation).text(&rest.cluster),
            None => self,
        }
    }

    fn region(&mut self, region: &RemoteRegion) -> &mut Writer {
        let kind = match region.kind {
            RegionKind::Polled => 0,
            RegionKind::Bulk | RegionKind::Phantom => 1,
            RegionKind::Lent => 2,
        };
        self.u64(region.key.0).u8(kind).u64(region.bytes as u64)
    }

    fn set_up(&mut self, set_up: &SetUp) -> &mut Writer {
        self.u64(set_up.endpoint).tag(set_up.tag).u64(set_up.ring_slots).sized(&set_up.hello)
    }
}

impl Reader<'_> {
    fn magic(&mut self) -> Result<(), Malformed> {
        if self.u64()? == MAGIC { Ok(()) } else { Err(Malformed("it does not begin as Squall's")) }
    }

    fn hello(&mut self, own_version: u32) -> Result<Hello, Malformed> {
        self.magic()?;
        let version = self.u32()?;
        let from = NodeId(self.u32()?);
        let rest = match version == own_version {
            true => Some(HelloRest { to: NodeId(self.u32()?), incarnation: self.u64()?, cluster: self.text()? }),
            false => None,
        };
        Ok(Hello { version, from, rest })
    }

    fn region(&mut self) -> Result<RemoteRegion, Malformed> {
        let key = RegionKey(self.u64()?);
        let kind = match self.u8()? {
            0 => RegionKind::Polled,
            1 => RegionKind::Bulk,
            2 => RegionKind::Lent,
            _ => return Err(Malformed("a region is of no known kind")),
        };
        let bytes = usize::try_from(self.u64()?).map_err(|_| Malformed("a region is too large"))?;
        if bytes == 0 || kind == RegionKind::Polled && !bytes.is_multiple_of(8) {
            return Err(Malformed("a region has an impossible size"));
        }
        Ok(RemoteRegion { key, kind, bytes })
    }

    fn set_up(&mut self) -> Result<SetUp, Malformed> {
        Ok(SetUp {
            endpoint: self.u64()?,
            tag: self.tag()?,
            ring_slots: self.u64()?,
            hello: self.sized(HELLO_BYTES)?.to_vec(),
        })
    }

    /// The reason for which a node of this host has closed an endpoint.
    fn local_reason(&mut self) -> Result<BreakReason, Malformed> {
        match self.reason()? {
            // They need a network.
            BreakReason::Lost(_) | BreakReason::GivenUp => Err(UNKNOWN_REASON),
            reason => Ok(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::TEXT_BYTES;

    fn examples() -> Vec<Frame> {
        let hello = Hello {
            version: 1,
            from: NodeId(3),
            rest: Some(HelloRest { to: NodeId(4), incarnation: 5, cluster: "cluster".into() }),
        };
        let tag = GroupTag { layer: 1, group: 2, epoch: 3 };
        let set_up = SetUp { endpoint: 6, tag, ring_slots: 64, hello: vec![7; HELLO_BYTES] };
        let region = RemoteRegion { key: RegionKey(8), kind: RegionKind::Bulk, bytes: 9 };
        let polled = RemoteRegion { key: RegionKey(10), kind: RegionKind::Polled, bytes: 16 };
        let mut frames = vec![
            Frame::Hello(hello.clone()),
            Frame::Welcome(hello),
            Frame::Expose { endpoint: 1, regions: vec![region; EXPOSE_REGIONS] },
            Frame::Expose { endpoint: 1, regions: vec![RemoteRegion { kind: RegionKind::Lent, ..region }] },
            Frame::Expose { endpoint: 1, regions: vec![] },
            Frame::Offer(set_up.clone()),
            Frame::Accept { set_up, yours: 11 },
            Frame::Confirm { mine: 12, yours: 13 },
            Frame::Reject { yours: 14, text: "a sentence".into() },
            Frame::Source(polled),
            Frame::Forget(RegionKey(15)),
            Frame::Goodbye,
            Frame::Share { key: RegionKey(17), bytes: 18 },
        ];
        for why in [RefuseWhy::Version, RefuseWhy::Cluster, RefuseWhy::Busy] {
            frames.push(Frame::Refuse { version: 2, why, cluster: "other".into() });
        }
        for reason in [
            BreakReason::PeerClosed,
            BreakReason::Access,
            BreakReason::ReceiverNotReady,
            BreakReason::Refused("why".into()),
            BreakReason::Failed("how".into()),
        ] {
            frames.push(Frame::Close { mine: 16, reason });
        }
        frames
    }

    #[test]
    fn every_frame_comes_out_as_it_went_in() {
        for frame in examples() {
            let bytes = frame.encode();
            assert!(bytes.len() <= FRAME_BYTES);
            assert_eq!(Frame::decode(&bytes, 1), Ok(frame));
        }
    }

    #[test]
    fn a_frame_that_was_cut_or_lengthened_is_malformed() {
        for frame in examples() {
            let mut bytes = frame.encode();
            for len in 0..bytes.len() {
                assert!(Frame::decode(&bytes[..len], 1).is_err(), "{frame:?} cut to {len}");
            }
            bytes.push(0);
            assert!(Frame::decode(&bytes, 1).is_err(), "{frame:?} with a byte more");
        }
    }

    #[test]
    fn any_bytes_are_a_frame_or_malformed() {
        let mut rng = fastrand::Rng::with_seed(1);
        let examples: Vec<Vec<u8>> = examples().iter().map(Frame::encode).collect();
        for _ in 0..200_000 {
            let mut bytes = examples[rng.usize(..examples.len())].clone();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..bytes.len());
                bytes[at] = rng.u8(..);
            }
            let _ = Frame::decode(&bytes, 1);
        }
    }

    #[test]
    fn a_reason_that_needs_a_network_is_malformed() {
        for code in [5, 6] {
            let mut close = Writer(Vec::new());
            close.u8(9).u64(1).u8(code).text("");
            assert_eq!(Frame::decode(&close.0, 1), Err(UNKNOWN_REASON));
        }
    }

    #[test]
    fn a_reason_that_needs_a_network_goes_as_a_plain_close() {
        for reason in [BreakReason::Lost("why".into()), BreakReason::GivenUp, BreakReason::Unreachable] {
            let plain = Frame::Close { mine: 1, reason: BreakReason::PeerClosed };
            assert_eq!(Frame::decode(&Frame::Close { mine: 1, reason }.encode(), 1), Ok(plain));
        }
    }

    #[test]
    fn a_hello_of_another_version_still_says_who_it_is() {
        let bytes = examples()[0].encode();
        let Ok(Frame::Hello(hello)) = Frame::decode(&bytes, 2) else { panic!("no hello") };
        assert_eq!((hello.version, hello.from, hello.rest), (1, NodeId(3), None));
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let frame = Frame::Reject { yours: 1, text: "ä".repeat(TEXT_BYTES) };
        let Ok(Frame::Reject { text, .. }) = Frame::decode(&frame.encode(), 1) else { panic!("no rejection") };
        assert_eq!(text, "ä".repeat(TEXT_BYTES / 2));
    }
}
