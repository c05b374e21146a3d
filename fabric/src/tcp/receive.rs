//! The peer's stream: frames are checked, and their bytes put in place, in whatever pieces they come.
//!
//! Pure: it is fed with bytes and knows no socket. Every field of a peer's frame is checked, and no byte of a frame is
//! placed before the frame is known to be allowed.

use std::collections::VecDeque;

use super::frame::{HEADER_BYTES, Header, Kind};
use crate::{
    BreakReason, Completion, EndpointId, Region, RegionKind, Slice, Target, graph::OwnedSlice, recvs::Recv,
    region::PeerAccess,
};

/// The state that the peer's frames act on.
pub(super) struct Local<'a> {
    pub(super) endpoint: EndpointId,
    /// The regions that the peer may reach.
    pub(super) exposed: &'a [Region],
    /// Receives, oldest first.
    pub(super) recvs: &'a mut VecDeque<Recv>,
    /// Reads that the peer has not answered, oldest first.
    pub(super) reads: &'a mut VecDeque<OwnedSlice>,
    /// The number of reads that it has answered.
    pub(super) answered: &'a mut u64,
    /// The list to which answers that the peer asks for are appended.
    pub(super) asked: &'a mut Vec<Option<OwnedSlice>>,
    /// The number of answers that the peer may have outstanding besides.
    pub(super) may_ask: usize,
    pub(super) out: &'a mut Vec<Completion>,
}

/// The position in the peer's stream.
#[derive(Default)]
pub(super) struct Receiver {
    /// A header of which only a part has come.
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    body: Option<Body>,
    /// Frames whose headers have come.
    pub(super) frames: u64,
    /// Bytes that have come for bulk memory.
    pub(super) bulk: u64,
}

/// Bytes of a frame that are still to come.
struct Body {
    into: Region,
    offset: usize,
    left: usize,
    /// The beginning of a word for polled memory, which is stored whole.
    word: [u8; 8],
    word_bytes: usize,
    then: Then,
}

/// A destination of bytes: a region, and an offset there.
type RegionOffset<'a> = (&'a Region, usize);

/// The effect of a frame once its bytes are in place.
#[derive(Clone, Copy)]
enum Then {
    Nothing,
    /// Completes the oldest receive.
    Receive {
        bytes: usize,
        imm: Option<u32>,
    },
    /// Completes the oldest read.
    Read,
}

impl Receiver {
    /// Whether the stream may end here.
    pub(super) fn is_between_frames(&self) -> bool {
        self.body.is_none() && self.header_bytes == 0
    }

    /// The place to which the next bytes of the stream go as they are, if there is one: bulk memory of a frame that has
    /// begun.
    pub(super) fn place(&self) -> Option<(&Region, usize, usize)> {
        let body = self.body.as_ref()?;
        body.into.kind().is_bulk().then_some((&body.into, body.offset, body.left))
    }

    /// Takes note that the next `bytes` of the stream are in their place.
    pub(super) fn placed(&mut self, bytes: usize, local: &mut Local<'_>) {
        let Some(body) = &mut self.body else { return };
        body.offset += bytes;
        body.left -= bytes;
        self.bulk += bytes as u64;
        self.end_body(local);
    }

    /// Takes the next bytes of the stream. An error breaks the endpoint, and nothing more may be fed.
    pub(super) fn feed(&mut self, mut bytes: &[u8], local: &mut Local<'_>) -> Result<(), BreakReason> {
        loop {
            if let Some(body) = &mut self.body {
                let (now, rest) = bytes.split_at(body.left.min(bytes.len()));
                bytes = rest;
                body.take(now);
                self.bulk += bulk_bytes(&body.into, now.len());
                if !self.end_body(local) {
                    return Ok(());
                }
            }
            let header = if self.header_bytes == 0
                && let Some((header, rest)) = bytes.split_first_chunk()
            {
                bytes = rest;
                Header::decode(header)
            } else {
                let missing = HEADER_BYTES - self.header_bytes;
                let (now, rest) = bytes.split_at(missing.min(bytes.len()));
                self.header[self.header_bytes..][..now.len()].copy_from_slice(now);
                self.header_bytes += now.len();
                bytes = rest;
                if self.header_bytes < HEADER_BYTES {
                    return Ok(());
                }
                self.header_bytes = 0;
                Header::decode(&self.header)
            };
            self.frames += 1;
            let header = header.ok_or_else(|| failed("it sent a frame that no node sends"))?;
            if let Kind::Read(from) = header.kind {
                local.asked(from, header.len)?;
                continue;
            }
            let (into, then) = local.admit(&header)?;
            let Some((into, offset)) = into else {
                local.end(then);
                continue;
            };
            match bytes.split_at_checked(header.len) {
                // A frame that has come as a whole needs no state.
                Some((now, rest)) => {
                    into.write(offset, now);
                    self.bulk += bulk_bytes(into, now.len());
                    bytes = rest;
                    local.end(then);
                }
                None => {
                    let into = into.clone();
                    self.body = Some(Body { into, offset, left: header.len, word: [0; 8], word_bytes: 0, then });
                }
            }
        }
    }

    /// Ends a body whose bytes have all come.
    fn end_body(&mut self, local: &mut Local<'_>) -> bool {
        let Some(body) = self.body.take_if(|body| body.left == 0) else { return false };
        local.end(body.then);
        true
    }
}

impl Body {
    /// Puts the next bytes in place.
    fn take(&mut self, mut bytes: &[u8]) {
        self.left -= bytes.len();
        if self.into.kind() == RegionKind::Polled {
            if self.word_bytes > 0 {
                let (now, rest) = bytes.split_at((8 - self.word_bytes).min(bytes.len()));
                self.word[self.word_bytes..][..now.len()].copy_from_slice(now);
                self.word_bytes += now.len();
                bytes = rest;
                if self.word_bytes < 8 && self.left > 0 {
                    return;
                }
                self.into.write(self.offset, &self.word[..self.word_bytes]);
                self.offset += 8;
                self.word_bytes = 0;
            }
            if self.left > 0 {
                let (whole, part) = bytes.split_at(bytes.len() & !7);
                self.word[..part.len()].copy_from_slice(part);
                self.word_bytes = part.len();
                bytes = whole;
            }
        }
        if !bytes.is_empty() {
            self.into.write(self.offset, bytes);
            self.offset += bytes.len();
        }
    }
}

impl Local<'_> {
    /// Checks that a frame with bytes is allowed. Returns the bytes' place, if there are any, and the frame's effect.
    #[inline]
    fn admit(&self, header: &Header) -> Result<(Option<RegionOffset<'_>>, Then), BreakReason> {
        let len = header.len;
        match header.kind {
            Kind::Write(to) => Ok((self.reach(PeerAccess::Write, to, len)?, Then::Nothing)),
            Kind::WriteWithImm(to, imm) => match self.recvs.front() {
                Some(_) => Ok((self.reach(PeerAccess::Write, to, len)?, Then::Receive { bytes: 0, imm: Some(imm) })),
                None => Err(BreakReason::ReceiverNotReady),
            },
            Kind::Send | Kind::SendWithImm(_) => {
                let imm = if let Kind::SendWithImm(imm) = header.kind { Some(imm) } else { None };
                match self.recvs.front() {
                    Some(recv) if len <= recv.len => {
                        let into = (len > 0).then_some((&recv.region, recv.offset));
                        Ok((into, Then::Receive { bytes: len, imm }))
                    }
                    _ => Err(BreakReason::ReceiverNotReady),
                }
            }
            Kind::Answer => match self.reads.front() {
                Some(read) if len == read.len => Ok(((len > 0).then_some((&read.region, read.offset)), Then::Read)),
                Some(_) => Err(failed("it answered a read with another length than was asked for")),
                None => Err(failed("it answered a read that was not asked for")),
            },
            Kind::Read(_) => unreachable!("it has no bytes"),
        }
    }

    /// The range that a peer names, if it may reach it.
    #[inline]
    fn reach(&self, access: PeerAccess, at: Target, len: usize) -> Result<Option<RegionOffset<'_>>, BreakReason> {
        if len == 0 {
            return Ok(None);
        }
        let region = self.exposed.iter().find(|region| region.key() == at.region).ok_or(BreakReason::Access)?;
        let is_admitted = region.describe().admits(access, at.offset, len);
        if is_admitted { Ok(Some((region, at.offset))) } else { Err(BreakReason::Access) }
    }

    /// Takes a request to read.
    fn asked(&mut self, from: Target, len: usize) -> Result<(), BreakReason> {
        if self.asked.len() >= self.may_ask {
            return Err(failed("it has more reads outstanding than its queue holds"));
        }
        let from =
            self.reach(PeerAccess::Read, from, len)?.map(|(region, offset)| Slice { region, offset, len }.into());
        self.asked.push(from);
        Ok(())
    }

    #[inline]
    fn end(&mut self, then: Then) {
        match then {
            Then::Nothing => {}
            Then::Receive { bytes, imm } => {
                let recv = self.recvs.pop_front().expect("a receive that a frame was admitted for stays the oldest");
                let (endpoint, token) = (self.endpoint, recv.token);
                self.out.push(Completion::Received { endpoint, token, bytes, imm });
            }
            Then::Read => {
                self.reads.pop_front();
                *self.answered += 1;
            }
        }
    }
}

/// The number of the bytes for a region that count as bulk.
fn bulk_bytes(into: &Region, bytes: usize) -> u64 {
    if into.kind().is_bulk() { bytes as u64 } else { 0 }
}

/// The reason for a peer that breaks the rules.
fn failed(text: &str) -> BreakReason {
    BreakReason::Failed(format!("the peer breaks the rules: {text}"))
}
