//! Posting work: the checks, and the translation into requests for the device.
//!
//! Keys and bounds are checked here, against the regions that the peer exposed: a breach never leaves this node (G7).

use std::io;

use super::{
    endpoint::{Endpoint, find},
    fabric::Core,
    queue::{Remote, Verb},
    sending::{Piece64, Work},
    setup::{Exposed, SetUp},
};
use crate::{
    BreakReason, Op, PostError, Region, RegionKind, Slice, Source, Target, Token,
    check::{check_op, check_slice},
    region::PeerAccess,
};

/// Work after the checks for a caller's errors.
enum Checked<'a> {
    Work(Work, &'a [u8]),
    /// The work breaks the endpoint.
    Breach(BreakReason),
}

impl Endpoint {
    #[inline]
    pub(super) fn post(&mut self, core: &mut Core, op: Op<'_>, token: Token) -> Result<(), PostError> {
        if let Op::Recv { into } = op {
            return self.post_receive(core, into, token);
        }
        self.activate(core);
        let theirs = self.up().ok_or(PostError::NotConnected)?;
        check_op(op, check_slice, |key| find(theirs, key).map(|exposed| exposed.describe.kind))?;
        if self.sending.outstanding() >= core.depth {
            self.sending.was_full = true;
            return Err(PostError::Full);
        }
        // An endpoint that is about to break takes work, which it flushes.
        let reason = if self.sending.is_doomed() || self.ending.is_some() {
            BreakReason::PeerClosed
        } else {
            match translate(theirs, core, op, token) {
                Ok(Checked::Work(work, captured)) => {
                    if let Err(error) = self.sending.take(&self.qp, self.id, core, work, captured) {
                        self.fail(core, failed(&error));
                    }
                    return Ok(());
                }
                Ok(Checked::Breach(reason)) => reason,
                Err(error) => {
                    let reason = failed(&error);
                    self.fail(core, reason.clone());
                    reason
                }
            }
        };
        self.sending.doom(reason, token);
        core.unfinished = true;
        Ok(())
    }

    #[inline]
    fn post_receive(&mut self, core: &mut Core, into: Slice<'_>, token: Token) -> Result<(), PostError> {
        self.recvs.post(core.depth, into, token)?;
        // If that fails, the receive is reported as flushed with the others.
        if let Err(error) = self.hand_over_recv(core, into) {
            self.fail(core, failed(&error));
        }
        Ok(())
    }
}

/// The reason for which an endpoint breaks when the device or the system refused a post.
pub(super) fn failed(error: &io::Error) -> BreakReason {
    BreakReason::Failed(format!("work could not be posted: {error}{}", super::memory::hint(error)))
}

/// The work for the device.
#[inline]
fn translate<'a>(theirs: &SetUp, core: &mut Core, op: Op<'a>, token: Token) -> io::Result<Checked<'a>> {
    const ACCESS: Checked<'_> = Checked::Breach(BreakReason::Access);
    let (verb, source, polled, then) = match op {
        Op::Write { source, target } => {
            let Some((to, polled)) = place(theirs, PeerAccess::Write, target, source.len()) else { return Ok(ACCESS) };
            (Verb::Write { to, imm: None }, source, polled, None)
        }
        Op::WriteWithImm { source, target, imm } => {
            let Some((to, polled)) = place(theirs, PeerAccess::Write, target, source.len()) else { return Ok(ACCESS) };
            (Verb::Write { to, imm: Some(imm) }, source, polled, None)
        }
        Op::WriteThenWord { source, target, word, word_target } => {
            let (Some((to, _)), Some((word_to, true))) = (
                place(theirs, PeerAccess::Write, target, source.len()),
                place(theirs, PeerAccess::Write, word_target, 8),
            ) else {
                return Ok(ACCESS);
            };
            (Verb::Write { to, imm: None }, source, true, Some((word, word_to)))
        }
        Op::Send { source, imm } => {
            if source.len() > core.max_message {
                let text = format!(
                    "a message of {} bytes can't be sent on this device, whose messages have at most {}: send shorter ones \
                     (for RDMC: smaller blocks)",
                    source.len(),
                    core.max_message
                );
                return Ok(Checked::Breach(BreakReason::Failed(text)));
            }
            (Verb::Send { imm }, source, false, None)
        }
        Op::Read { from, into } => {
            let Some((from, _)) = place(theirs, PeerAccess::Read, from, into.len) else { return Ok(ACCESS) };
            // A write of nothing keeps the order where there is nothing to read.
            let verb = if into.len > 0 { Verb::Read { from } } else { Verb::Write { to: NOWHERE, imm: None } };
            (verb, Source::Region(into), false, None)
        }
        Op::Recv { .. } => return Err(io::ErrorKind::Unsupported.into()),
    };
    let mut work = Work::new(verb, source.len(), token);
    (work.polled, work.then) = (polled, then);
    let captured: &[u8] = match source {
        Source::Inline(bytes) => bytes,
        Source::Region(Slice { len: 0, .. }) => &[],
        Source::Region(Slice { region, offset, len }) => {
            let key = core.memories.local_key(region)?;
            work.memory = Some(Piece64 { addr: address(region, offset, len), key });
            work.keep = Some(region.clone());
            &[]
        }
    };
    Ok(Checked::Work(work, captured))
}

/// The destination of a write of no bytes.
const NOWHERE: Remote = Remote { addr: 0, key: 0 };

/// The place of `len` bytes at a target, and whether it is polled, if the peer lets this endpoint reach it.
#[inline]
fn place(theirs: &SetUp, access: PeerAccess, target: Target, len: usize) -> Option<(Remote, bool)> {
    if len == 0 {
        return Some((NOWHERE, false));
    }
    let exposed = find(theirs, target.region).filter(|exposed| exposed.describe.admits(access, target.offset, len))?;
    let Exposed { describe, addr, key } = *exposed;
    Some((Remote { addr: addr.wrapping_add(target.offset as u64), key }, describe.kind == RegionKind::Polled))
}

/// The address of bytes of a region, for the device.
#[inline]
pub(super) fn address(region: &Region, offset: usize, len: usize) -> u64 {
    region.address(offset, len).as_ptr().expose_provenance() as u64
}
