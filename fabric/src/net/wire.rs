//! The frames of the handshake and of links.
//!
//! Each begins with its length (u32, of the bytes behind it) and a byte that names the frame; then its fields without
//! padding, numbers little-endian, a text behind its length (u16).
//!
//! | byte | handshake frame | fields |
//! |---|---|---|
//! | 1 | `Challenge`, the acceptor's first | magic u64, version u32, challenge 16 bytes |
//! | 2 | `Hello`, the dialer's first | magic u64, version u32, from u32, to u32, and the fields below |
//! | 3 | `Welcome` | magic u64, version u32, from u32, incarnation u64, the nonce 16 bytes |
//! | 4 | `Refuse` | magic u64, version u32, why u8, cluster |
//!
//! `Hello` goes on with: incarnation u64, the challenge 16 bytes, a nonce 16 bytes, service, cluster. Its `to` is
//! `u32::MAX` for any node.
//!
//! A service is a byte and its fields: 0 a link, whether its dialer listens u8; 1 data, the link's challenge 16 bytes,
//! the dialer's endpoint u64, the acceptor's endpoint u64; 2 an application's, its number u32.
//!
//! | byte | link frame | fields |
//! |---|---|---|
//! | 16 | `Beat` | |
//! | 17 | `Offer` | endpoint u64, plane u8, layer u32, group u32, epoch u64, set-up |
//! | 18 | `Accept` | endpoint u64, the accepted endpoint u64, set-up |
//! | 19 | `Confirm` | endpoint u64, the peer's endpoint u64 |
//! | 20 | `Tell` | the peer's endpoint u64, bytes |
//! | 21 | `Close` | endpoint u64, why u8, text |
//! | 22 | `Goodbye` | |
//! | 23 | `GivenUp` | |
//!
//! `Challenge`, the start of a `Hello` up to `from`, and all of a `Refuse` stay the same in all versions, so that nodes
//! of different versions can name the mismatch.

use super::plane::{Plane, SET_UP_BYTES, TELL_BYTES};
use crate::{
    BreakReason, GroupTag, NodeId,
    wire::{Malformed, Reader, Writer},
};

/// The number that begins each frame of the handshake.
const MAGIC: u64 = u64::from_be_bytes(*b"squallIP");

/// The longest handshake frame, in bytes behind its length.
pub(crate) const GREETING_BYTES: usize = 256;

/// The longest link frame.
pub(crate) const LINK_FRAME_BYTES: usize = SET_UP_BYTES + 64;

/// A number that can't be guessed, and was not used before.
pub(crate) type Nonce = [u8; 16];

/// The introduction of a dialer, and its purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    pub(crate) from: NodeId,
    /// The remaining fields, known only if the version is this node's.
    pub(crate) rest: Option<HelloRest>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HelloRest {
    /// The node that is dialed; None for any node that listens there.
    pub(crate) to: Option<NodeId>,
    pub(crate) incarnation: u64,
    pub(crate) challenge: Nonce,
    pub(crate) nonce: Nonce,
    pub(crate) service: Service,
    pub(crate) cluster: String,
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Link { dialer_listens: bool },
    Data { link: Nonce, mine: u64, yours: u64 },
    Application(u32),
}

/// The reason for which a node does not talk to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Version,
    Cluster,
    /// The dialed node is not the one that was called.
    Node,
    /// A link that there is already. Try again.
    Busy,
    /// The endpoint that data are for is no more, or not yet.
    NoEndpoint,
    /// The service is not offered, or has too many waiting.
    NoService,
    /// A dial by the node that should be dialed: of the two nodes, the other one dials.
    Order,
    /// A call that the dialer's certificate does not permit.
    Denied,
}

const REFUSALS: [Refusal; 8] = [
    Refusal::Version,
    Refusal::Cluster,
    Refusal::Node,
    Refusal::Busy,
    Refusal::NoEndpoint,
    Refusal::NoService,
    Refusal::Order,
    Refusal::Denied,
];

/// A frame of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    Challenge { version: u32, challenge: Nonce },
    Hello(Hello),
    Welcome { version: u32, from: NodeId, incarnation: u64, nonce: Nonce },
    Refuse { version: u32, why: Refusal, cluster: String },
}

/// A frame of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkFrame {
    Beat,
    Offer { mine: u64, plane: Plane, tag: GroupTag, set_up: Vec<u8> },
    Accept { mine: u64, yours: u64, set_up: Vec<u8> },
    Confirm { mine: u64, yours: u64 },
    Tell { yours: u64, bytes: Vec<u8> },
    Close { mine: u64, reason: BreakReason },
    Goodbye,
    GivenUp,
}

/// The length of the frame at the beginning of `bytes`, its length field included, once that field has come.
pub(crate) fn frame_len(bytes: &[u8], most: usize) -> Result<Option<usize>, Malformed> {
    let Some(header) = bytes.first_chunk::<4>() else { return Ok(None) };
    let len = u32::from_le_bytes(*header) as usize;
    if len == 0 || len > most {
        return Err(Malformed("its length is that of none"));
    }
    Ok(Some(4 + len))
}

/// Puts the length before a frame.
fn finish(mut to: Writer) -> Vec<u8> {
    let len = (to.0.len() - 4) as u32;
    to.0[..4].copy_from_slice(&len.to_le_bytes());
    to.0
}

fn begin(kind: u8) -> Writer {
    let mut to = Writer(Vec::with_capacity(64));
    to.u32(0).u8(kind);
    to
}

fn magic(from: &mut Reader<'_>) -> Result<u32, Malformed> {
    if from.u64()? == MAGIC { from.u32() } else { Err(Malformed("it does not begin as Squall's")) }
}

impl Greeting {
    /// Writes the frame, its length included.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to;
        match self {
            Greeting::Challenge { version, challenge } => {
                to = begin(1);
                to.u64(MAGIC).u32(*version).bytes(challenge);
            }
            Greeting::Hello(hello) => {
                to = begin(2);
                to.u64(MAGIC).u32(hello.version).u32(hello.from.0);
                if let Some(rest) = &hello.rest {
                    let node = rest.to.map_or(u32::MAX, |node| node.0);
                    to.u32(node).u64(rest.incarnation).bytes(&rest.challenge).bytes(&rest.nonce);
                    match rest.service {
                        Service::Link { dialer_listens } => to.u8(0).u8(dialer_listens.into()),
                        Service::Data { link, mine, yours } => to.u8(1).bytes(&link).u64(mine).u64(yours),
                        Service::Application(service) => to.u8(2).u32(service),
                    };
                    to.text(&rest.cluster);
                }
            }
            Greeting::Welcome { version, from, incarnation, nonce } => {
                to = begin(3);
                to.u64(MAGIC).u32(*version).u32(from.0).u64(*incarnation).bytes(nonce);
            }
            Greeting::Refuse { version, why, cluster } => {
                to = begin(4);
                let why = REFUSALS.iter().position(|refusal| refusal == why).unwrap_or_default();
                to.u64(MAGIC).u32(*version).u8(why as u8).text(cluster);
            }
        }
        debug_assert!(to.0.len() <= 4 + GREETING_BYTES);
        finish(to)
    }

    /// Reads a frame (behind its length), which may hold anything. `version` is that of this node.
    pub(crate) fn decode(bytes: &[u8], version: u32) -> Result<Greeting, Malformed> {
        let mut from = Reader(bytes);
        let greeting = match from.u8()? {
            1 => Greeting::Challenge { version: magic(&mut from)?, challenge: from.array()? },
            2 => {
                let theirs = magic(&mut from)?;
                let node = NodeId(from.u32()?);
                let rest = if theirs == version {
                    Some(hello_rest(&mut from)?)
                } else {
                    // Of a foreign version no more than this is known.
                    from.0 = &[];
                    None
                };
                Greeting::Hello(Hello { version: theirs, from: node, rest })
            }
            3 => Greeting::Welcome {
                version: magic(&mut from)?,
                from: NodeId(from.u32()?),
                incarnation: from.u64()?,
                nonce: from.array()?,
            },
            4 => {
                let version = magic(&mut from)?;
                let why = REFUSALS.get(usize::from(from.u8()?)).ok_or(Malformed("a refusal for no known reason"))?;
                Greeting::Refuse { version, why: *why, cluster: from.text()? }
            }
            _ => return Err(Malformed("it is no greeting")),
        };
        from.end()?;
        Ok(greeting)
    }
}

fn hello_rest(from: &mut Reader<'_>) -> Result<HelloRest, Malformed> {
    let to = match from.u32()? {
        u32::MAX => None,
        node => Some(NodeId(node)),
    };
    let (incarnation, challenge, nonce) = (from.u64()?, from.array()?, from.array()?);
    let service = match from.u8()? {
        0 => Service::Link {
            dialer_listens: match from.u8()? {
                0 => false,
                1 => true,
                _ => return Err(Malformed("a dialer neither listens nor does it not")),
            },
        },
        1 => Service::Data { link: from.array()?, mine: from.u64()?, yours: from.u64()? },
        2 => Service::Application(from.u32()?),
        _ => return Err(Malformed("it is for no known service")),
    };
    Ok(HelloRest { to, incarnation, challenge, nonce, service, cluster: from.text()? })
}

impl LinkFrame {
    /// Writes the frame, its length included.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to;
        match self {
            LinkFrame::Beat => to = begin(16),
            LinkFrame::Offer { mine, plane, tag, set_up } => {
                debug_assert!(set_up.len() <= SET_UP_BYTES);
                to = begin(17);
                to.u64(*mine).u8(*plane as u8).tag(*tag).bytes(set_up);
            }
            LinkFrame::Accept { mine, yours, set_up } => {
                debug_assert!(set_up.len() <= SET_UP_BYTES);
                to = begin(18);
                to.u64(*mine).u64(*yours).bytes(set_up);
            }
            LinkFrame::Confirm { mine, yours } => {
                to = begin(19);
                to.u64(*mine).u64(*yours);
            }
            LinkFrame::Tell { yours, bytes } => {
                debug_assert!(bytes.len() <= TELL_BYTES);
                to = begin(20);
                to.u64(*yours).bytes(bytes);
            }
            LinkFrame::Close { mine, reason } => {
                to = begin(21);
                to.u64(*mine).reason(reason);
            }
            LinkFrame::Goodbye => to = begin(22),
            LinkFrame::GivenUp => to = begin(23),
        }
        finish(to)
    }

    /// Reads a frame (behind its length), which may hold anything.
    pub(crate) fn decode(bytes: &[u8]) -> Result<LinkFrame, Malformed> {
        let mut from = Reader(bytes);
        let frame = match from.u8()? {
            16 => LinkFrame::Beat,
            17 => {
                let mine = from.u64()?;
                let plane = match from.u8()? {
                    0 => Plane::Tcp,
                    1 => Plane::Verbs,
                    2 => Plane::Choice,
                    _ => return Err(Malformed("an endpoint is of no known fabric")),
                };
                LinkFrame::Offer { mine, plane, tag: from.tag()?, set_up: rest(&mut from, SET_UP_BYTES)? }
            }
            18 => LinkFrame::Accept { mine: from.u64()?, yours: from.u64()?, set_up: rest(&mut from, SET_UP_BYTES)? },
            19 => LinkFrame::Confirm { mine: from.u64()?, yours: from.u64()? },
            20 => LinkFrame::Tell { yours: from.u64()?, bytes: rest(&mut from, TELL_BYTES)? },
            21 => LinkFrame::Close { mine: from.u64()?, reason: from.reason()? },
            22 => LinkFrame::Goodbye,
            23 => LinkFrame::GivenUp,
            _ => return Err(Malformed("it is of no known kind")),
        };
        from.end()?;
        Ok(frame)
    }
}

/// All bytes that are left, if those are not too many.
fn rest(from: &mut Reader<'_>, most: usize) -> Result<Vec<u8>, Malformed> {
    if from.0.len() > most {
        return Err(Malformed("what it carries is too long"));
    }
    from.bytes(from.0.len()).map(<[u8]>::to_vec)
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
