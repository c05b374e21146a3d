//! An endpoint's send queue: requests that are staged, requests that the device has, and work that waits for room in
//! it.
//!
//! Requests are staged until the next poll and handed to the device together. Only the last of them is signaled, and
//! some between, so that a completion vouches for many (RC completes in order) and the queue's room is never lost track
//! of.

use std::{collections::VecDeque, io};

use super::{
    fabric::Core,
    queue::{Local, Piece, Qp, Remote, Request, Verb},
};
use crate::{BreakReason, Completion, EndpointId, Flushed, INLINE_BYTES, Region, RegionKind, Token};

#[derive(Default)]
pub(super) struct Sending {
    /// Requests for the device, and their captured bytes.
    staged: Vec<Request>,
    captured: Vec<u8>,
    /// The number of requests that were staged so far, and of those that are known to be complete.
    issued: u64,
    pub(super) completed: u64,
    /// The value of `issued` behind each signaled request that is not complete.
    signaled: VecDeque<u64>,
    /// The last request that is signaled.
    last_signaled: u64,
    /// The last request that wrote polled memory.
    pub(super) last_polled: u64,
    /// Work of which all requests were staged, in the order of posts.
    pending: VecDeque<Pending>,
    /// Work that waits for room.
    backlog: VecDeque<Deferred>,
    /// The reason for which the endpoint breaks when the work ahead is complete, and the posts since.
    doom: Option<(BreakReason, VecDeque<Token>)>,
    /// Whether a post found the queue full, so that `Room` is owed.
    pub(super) was_full: bool,
    /// A place for each request of the queue, for captured bytes that are too long for the device to capture.
    bounce: Option<Region>,
}

/// Work that is complete when the requests up to `end` are.
struct Pending {
    end: u64,
    token: Token,
    /// The memory that the device reads or writes.
    _keep: Option<Region>,
}

/// Work that is on its way into the queue.
pub(super) struct Work {
    pub(super) verb: Verb,
    /// Whether it writes polled memory, whose owner is to be told.
    pub(super) polled: bool,
    /// The place of the local bytes; captured ones come along.
    pub(super) memory: Option<Piece64>,
    pub(super) len: usize,
    /// The number of bytes that are staged.
    done: usize,
    begun: bool,
    /// A word that is to follow.
    pub(super) then: Option<(u64, Remote)>,
    pub(super) token: Token,
    pub(super) keep: Option<Region>,
}

/// A piece of local memory of any length.
#[derive(Clone, Copy)]
pub(super) struct Piece64 {
    pub(super) addr: u64,
    pub(super) key: u32,
}

struct Deferred {
    work: Work,
    captured: Box<[u8]>,
}

impl Work {
    pub(super) fn new(verb: Verb, len: usize, token: Token) -> Work {
        Work { verb, polled: false, memory: None, len, done: 0, begun: false, then: None, token, keep: None }
    }
}

/// The most requests that are staged before the device gets them.
const STAGED: usize = 64;

/// The number of requests that the fabric itself may need: see `watch`.
pub(super) const RESERVED: usize = 2;

impl Sending {
    /// The number of posts that count against the queue's depth.
    #[inline]
    pub(super) fn outstanding(&self) -> usize {
        self.pending.len() + self.backlog.len() + self.doom.as_ref().map_or(0, |(_, tokens)| tokens.len())
    }

    /// The tokens of posts that are not complete, in the order of posts.
    pub(super) fn tokens(&self) -> impl Iterator<Item = Token> {
        let pending = self.pending.iter().map(|pending| pending.token);
        let backlog = self.backlog.iter().map(|deferred| deferred.work.token);
        pending.chain(backlog).chain(self.doom.iter().flat_map(|(_, tokens)| tokens.iter().copied()))
    }

    /// Stops handing work over: the endpoint breaks once the earlier posts are complete.
    pub(super) fn doom(&mut self, reason: BreakReason, token: Token) {
        self.doom.get_or_insert((reason, VecDeque::new())).1.push_back(token);
    }

    pub(super) fn is_doomed(&self) -> bool {
        self.doom.is_some()
    }

    /// The reason for which the endpoint breaks, once that may be.
    pub(super) fn due(&self) -> Option<BreakReason> {
        let (reason, _) = self.doom.as_ref()?;
        (self.issued == self.completed && self.backlog.is_empty()).then(|| reason.clone())
    }

    fn used(&self) -> usize {
        (self.issued - self.completed) as usize
    }

    /// Takes work; `captured` are its bytes if they are not in memory. Work that finds no room waits.
    #[inline]
    pub(super) fn take(
        &mut self,
        qp: &Qp,
        id: EndpointId,
        core: &mut Core,
        mut work: Work,
        captured: &[u8],
    ) -> io::Result<()> {
        let staged = if self.backlog.is_empty() { self.stage(qp, id, core, &mut work, captured) } else { Ok(false) };
        // The device may have a part of work that failed, so its memory is kept.
        if !matches!(staged, Ok(true)) {
            self.backlog.push_back(Deferred { work, captured: captured.into() });
        }
        staged.map(|_| ())
    }

    /// Takes the requests that bind the queue pair's windows, before any others.
    pub(super) fn bind(&mut self, qp: &Qp, id: EndpointId, core: &mut Core) -> io::Result<()> {
        (0..qp.windows())
            .try_for_each(|window| self.take(qp, id, core, Work::new(Verb::Bind { window }, 0, Token::UNSIGNALED), &[]))
    }

    /// Whether the queue pair's windows are bound.
    pub(super) fn has_bound(&self, qp: &Qp) -> bool {
        self.completed >= qp.windows() as u64
    }

    /// Goes on with work that waits, and hands over staged requests.
    #[inline]
    pub(super) fn pump(&mut self, qp: &Qp, id: EndpointId, core: &mut Core) -> io::Result<()> {
        while let Some(mut first) = self.backlog.pop_front() {
            let staged = self.stage(qp, id, core, &mut first.work, &first.captured);
            if !matches!(staged, Ok(true)) {
                self.backlog.push_front(first);
                staged?;
                break;
            }
        }
        self.flush(qp, id, core)
    }

    /// Stages as much of some work as there is room for. Returns whether all of it was.
    fn stage(
        &mut self,
        qp: &Qp,
        id: EndpointId,
        core: &mut Core,
        work: &mut Work,
        captured: &[u8],
    ) -> io::Result<bool> {
        let room = qp.room.sends as usize - RESERVED;
        while !work.begun || work.done < work.len {
            if self.used() >= room {
                return Ok(false);
            }
            let len = (work.len - work.done).min(core.max_message);
            let last = work.done + len == work.len;
            let local = match work.memory {
                None => self.capture(qp, core, captured)?,
                Some(Piece64 { addr, key }) => {
                    Local::Memory(Piece { addr: addr + work.done as u64, len: len as u32, key })
                }
            };
            let ahead = |place: Remote| Remote { addr: place.addr + work.done as u64, ..place };
            let verb = match work.verb {
                Verb::Write { to, imm } => Verb::Write { to: ahead(to), imm: imm.filter(|_| last) },
                Verb::Read { from } => Verb::Read { from: ahead(from) },
                other @ (Verb::Send { .. } | Verb::Bind { .. }) => other,
            };
            self.push(qp, id, core, verb, local)?;
            (work.begun, work.done) = (true, work.done + len);
        }
        if let Some((word, to)) = work.then {
            if self.used() >= room {
                return Ok(false);
            }
            let local = self.capture(qp, core, &word.to_ne_bytes())?;
            self.push(qp, id, core, Verb::Write { to, imm: None }, local)?;
        }
        if work.polled {
            self.last_polled = self.issued;
        }
        self.pending.push_back(Pending { end: self.issued, token: work.token, _keep: work.keep.take() });
        Ok(true)
    }

    /// Stages a request of the fabric's own, for which room is reserved.
    pub(super) fn announce(
        &mut self,
        qp: &Qp,
        id: EndpointId,
        core: &mut Core,
        count: u64,
        to: Remote,
    ) -> io::Result<u64> {
        let local = self.capture(qp, core, &count.to_ne_bytes())?;
        self.push(qp, id, core, Verb::Write { to, imm: None }, local)?;
        self.flush(qp, id, core)?;
        Ok(self.issued)
    }

    /// Hands over a ring of a bell: see `bell`. Most are reported with a later one, so that they do not wake this node.
    pub(super) fn ring(&mut self, qp: &Qp, id: EndpointId, core: &mut Core, slot: u32, token: Token) -> io::Result<()> {
        self.pending.push_back(Pending { end: self.issued + 1, token, _keep: None });
        let nothing = self.capture(qp, core, &[])?;
        self.push(qp, id, core, Verb::Send { imm: Some(slot) }, nothing)?;
        self.hand_over(qp, id, core)
    }

    /// Keeps bytes until the device has them.
    fn capture(&mut self, qp: &Qp, core: &mut Core, bytes: &[u8]) -> io::Result<Local> {
        if bytes.is_empty() {
            return Ok(Local::Memory(Piece { addr: 0, len: 0, key: 0 }));
        }
        if bytes.len() <= qp.room.inline as usize {
            let begin = self.captured.len();
            self.captured.extend_from_slice(bytes);
            return Ok(Local::Captured { begin, len: bytes.len() });
        }
        let places = qp.room.sends as usize;
        if self.bounce.is_none() {
            self.bounce = Some(core.memories.register(RegionKind::Bulk, places * INLINE_BYTES)?);
        }
        let Some(bounce) = &self.bounce else { return Err(io::ErrorKind::OutOfMemory.into()) };
        // No more requests are outstanding than there are places.
        let offset = self.issued as usize % places * INLINE_BYTES;
        bounce.write(offset, bytes);
        core.stats.bounced += 1;
        core.piece(bounce, offset, bytes.len()).map(Local::Memory)
    }

    fn push(&mut self, qp: &Qp, id: EndpointId, core: &mut Core, verb: Verb, local: Local) -> io::Result<()> {
        self.issued += 1;
        let often = u64::from(qp.room.sends / 4).max(1);
        let signaled = self.issued - self.last_signaled >= often;
        if signaled {
            self.note_signaled();
        }
        self.staged.push(Request { verb, local, signaled });
        if self.staged.len() < STAGED { Ok(()) } else { self.flush(qp, id, core) }
    }

    fn note_signaled(&mut self) {
        self.last_signaled = self.issued;
        self.signaled.push_back(self.issued);
    }

    /// Hands over staged requests, and has the success of the last one reported.
    #[inline]
    fn flush(&mut self, qp: &Qp, id: EndpointId, core: &mut Core) -> io::Result<()> {
        let Some(last) = self.staged.last_mut() else { return Ok(()) };
        if !std::mem::replace(&mut last.signaled, true) {
            self.note_signaled();
        }
        self.hand_over(qp, id, core)
    }

    #[inline]
    fn hand_over(&mut self, qp: &Qp, id: EndpointId, core: &mut Core) -> io::Result<()> {
        core.stats.requests += self.staged.len() as u64;
        core.stats.posts += 1;
        // SAFETY: all pieces lie in regions that `pending`, `backlog` or `bounce` holds until the requests are done, or
        // else until the queue pair was destroyed, with which an endpoint's end begins.
        let posted = unsafe { qp.post_send(super::endpoint::request_id(id, false), &self.staged, &self.captured) };
        self.staged.clear();
        self.captured.clear();
        posted
    }

    /// Takes note that the first signaled request is complete, and with it all before it.
    pub(super) fn on_success(&mut self, id: EndpointId, out: &mut Vec<Completion>) {
        let Some(end) = self.signaled.pop_front() else { return };
        self.completed = end;
        while let Some(done) = self.pending.pop_front_if(|first| first.end <= end) {
            if done.token != Token::UNSIGNALED {
                out.push(Completion::Done { endpoint: id, token: done.token, result: Ok::<(), Flushed>(()) });
            }
        }
    }
}
