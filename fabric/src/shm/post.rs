//! Posting work: the checks, and the shortest way for it.
//!
//! Bytes for polled memory are *pushed*: this side stores them into the peer's memory at once. All else is handed over
//! as a descriptor, and the peer *pulls* the bytes. While descriptors are outstanding, later work goes the same way, so
//! that everything takes effect in the order of posts (G1). Reads, which only this side can carry out, wait until none
//! is outstanding, and work behind a read waits for it.

use super::{
    control::Command,
    copy::{End, EndKind, copy},
    endpoint::{Deferred, DeferredWork, Endpoint, Keep, Pending, Sending, Up},
    fabric::Core,
    memory::{OwnMemory, PeerMemory, local_end},
    ring::{Descriptor, Kind, MAX_SLOTS, Origin},
    share::Share,
};
use crate::{
    BreakReason, INLINE_BYTES, Op, PostError, RegionKind, Slice, Source, Target, Token,
    check::{check_op, check_slice},
    graph::{Bytes, OwnedSlice},
    region::PeerAccess,
};

/// The destination of a transfer's bytes.
#[derive(Clone, Copy)]
pub(super) enum Dest {
    Write(Target),
    WriteWithImm(Target, u32),
    WriteThenWord(Target, u64, Target),
    Send(Option<u32>),
}

/// The outcome of work that was to be handed over.
enum Issued {
    Yes,
    /// A post that must wait.
    NotYet,
    Break(BreakReason),
}

impl Endpoint {
    /// Posts work.
    #[inline]
    pub(super) fn post(&mut self, core: &mut Core, op: Op<'_>, token: Token) -> Result<(), PostError> {
        let posted = self.post_work(core, op, token);
        self.note_own_work(core);
        posted
    }

    /// Has the next poll look at this endpoint if it has work left.
    #[inline]
    fn note_own_work(&mut self, core: &mut Core) {
        if self.has_own_work() {
            core.due.add(self);
        }
    }

    #[inline]
    fn post_work(&mut self, core: &mut Core, op: Op<'_>, token: Token) -> Result<(), PostError> {
        if let Op::Recv { into } = op {
            return self.recvs.post(core.depth, into, token);
        }
        let up = self.up.as_ref().ok_or(PostError::NotConnected)?;
        check_op(op, check_slice, |key| up.remote(key).map(|memory| memory.describe.kind))?;
        if self.sending.outstanding() >= core.depth {
            self.sending.was_full = true;
            return Err(PostError::Full);
        }
        let (source, into) = match op {
            Op::Write { source, target } => (source, Dest::Write(target)),
            Op::WriteWithImm { source, target, imm } => (source, Dest::WriteWithImm(target, imm)),
            Op::WriteThenWord { source, target, word, word_target } => {
                (source, Dest::WriteThenWord(target, word, word_target))
            }
            Op::Send { source, imm } => (source, Dest::Send(imm)),
            Op::Read { from, into } => {
                self.post_read(core, from, into, token);
                return Ok(());
            }
            Op::Recv { .. } => unreachable!("taken above"),
        };
        let issued = match self.sending.backlog.is_empty() {
            true => self.sending.issue(up, core, source, into, token),
            false => Issued::NotYet,
        };
        let work = match issued {
            Issued::Yes => return Ok(()),
            Issued::NotYet => DeferredWork::Transfer { source: Bytes::of(source), into },
            Issued::Break(reason) => DeferredWork::Break(reason),
        };
        self.sending.backlog.push_back(Deferred { work, token });
        Ok(())
    }

    /// Posts a share.
    pub(super) fn share(
        &mut self,
        core: &mut Core,
        share: Share,
        imm: Option<u32>,
        token: Token,
    ) -> Result<(), PostError> {
        let up = self.up.as_ref().ok_or(PostError::NotConnected)?;
        if self.sending.outstanding() >= core.depth {
            self.sending.was_full = true;
            return Err(PostError::Full);
        }
        let issued = match self.sending.backlog.is_empty() {
            true => self.sending.hand_over_share(up, core, &share, imm, token),
            false => Issued::NotYet,
        };
        if let Issued::NotYet = issued {
            self.sending.backlog.push_back(Deferred { work: DeferredWork::Share { share, imm }, token });
        }
        self.note_own_work(core);
        Ok(())
    }

    fn post_read(&mut self, core: &mut Core, from: Target, into: Slice<'_>, token: Token) {
        let work = DeferredWork::Read { from, into: into.into(), done: 0 };
        self.sending.backlog.push_back(Deferred { work, token });
        // A short read is over at once, if nothing is ahead of it.
        if self.sending.backlog.len() == 1 && into.len <= READ_AT_ONCE {
            let mut budget = READ_AT_ONCE;
            // A reason that would break the endpoint now does so at the next poll.
            let _ = self.pump(core, &mut budget);
        }
    }

    /// Goes on with work that waited, copying `budget` bytes at most. A returned reason breaks the endpoint.
    pub(super) fn pump(&mut self, core: &mut Core, budget: &mut usize) -> Option<BreakReason> {
        let up = self.up.as_ref()?;
        let sending = &mut self.sending;
        while let Some(mut first) = sending.backlog.pop_front() {
            let issued = match &mut first.work {
                DeferredWork::Transfer { source, into } => sending.issue(up, core, source.source(), *into, first.token),
                DeferredWork::Share { share, imm } => sending.hand_over_share(up, core, share, *imm, first.token),
                DeferredWork::Read { from, into, done } => {
                    sending.read(up, core, *from, into, done, budget, first.token)
                }
                DeferredWork::Break(reason) if sending.ring.is_idle() => Issued::Break(reason.clone()),
                DeferredWork::Break(_) => Issued::NotYet,
            };
            match issued {
                Issued::Yes => {}
                Issued::NotYet => {
                    sending.backlog.push_front(first);
                    return None;
                }
                Issued::Break(reason) => {
                    // The work is flushed with the others.
                    sending.backlog.push_front(first);
                    return Some(reason);
                }
            }
        }
        None
    }
}

/// The longest read that a post carries out itself, in bytes.
const READ_AT_ONCE: usize = 16 * 1024;

impl Sending {
    /// Notes work that is complete once the ring is consumed as far as it is filled now.
    #[inline]
    fn note(&mut self, token: Token, keep: Option<Keep>, always: bool) {
        if always || token != Token::UNSIGNALED {
            self.pending.push_back(Pending { end: self.ring.tail(), token, _keep: keep });
        }
    }

    /// Notes work for a peer that is done with this endpoint, while the news of that is on its way.
    fn note_lost(&mut self, token: Token) -> Issued {
        self.pending.push_back(Pending { end: u64::MAX, token, _keep: None });
        Issued::Yes
    }

    /// Hands work over, or carries it out.
    #[inline]
    fn issue(&mut self, up: &Up, core: &mut Core, source: Source<'_>, into: Dest, token: Token) -> Issued {
        if self.ring.is_closed() {
            return self.note_lost(token);
        }
        let len = source.len();
        match into {
            Dest::Write(target) => {
                let Some(remote) = find(up, PeerAccess::Write, target, len) else {
                    return Issued::Break(BreakReason::Access);
                };
                if remote.is_polled_or_none() && self.ring.is_idle() {
                    remote.push(core, source);
                    self.note(token, None, false);
                    core.peers.touch(up.peer);
                    return Issued::Yes;
                }
                let kind = Kind::Write { to: target.region, offset: target.offset as u64, imm: None };
                self.hand_over(up, core, source, kind, None, token)
            }
            Dest::WriteThenWord(target, word, word_target) => {
                let Some(remote) = find(up, PeerAccess::Write, target, len) else {
                    return Issued::Break(BreakReason::Access);
                };
                let Some(PeerPlace::At(word_memory, offset)) = find(up, PeerAccess::Write, word_target, 8) else {
                    return Issued::Break(BreakReason::Access);
                };
                if word_memory.describe.kind != RegionKind::Polled {
                    return Issued::Break(BreakReason::Access);
                }
                let word = word.to_ne_bytes();
                if remote.is_polled_or_none() && self.ring.is_idle() {
                    remote.push(core, source);
                    PeerPlace::At(word_memory, offset).push(core, Source::Inline(&word));
                    self.note(token, None, false);
                    core.peers.touch(up.peer);
                    return Issued::Yes;
                }
                let kind = Kind::Write { to: target.region, offset: target.offset as u64, imm: None };
                self.hand_over(up, core, source, kind, Some((word, word_target)), token)
            }
            Dest::WriteWithImm(target, imm) => {
                if find(up, PeerAccess::Write, target, len).is_none() {
                    return Issued::Break(BreakReason::Access);
                }
                let kind = Kind::Write { to: target.region, offset: target.offset as u64, imm: Some(imm) };
                self.hand_over(up, core, source, kind, None, token)
            }
            Dest::Send(imm) => self.hand_over(up, core, source, Kind::Send { imm }, None, token),
        }
    }

    /// Hands a descriptor to the peer, and behind it another that stores an announcing word.
    fn hand_over(
        &mut self,
        up: &Up,
        core: &mut Core,
        source: Source<'_>,
        kind: Kind,
        then: Option<([u8; 8], Target)>,
        token: Token,
    ) -> Issued {
        let len = source.len();
        if !self.ring.has_room(MAX_SLOTS + 1) {
            return Issued::NotYet;
        }
        let mut copied = [0; INLINE_BYTES];
        let (from, inline, keep): (_, &[u8], _) = match source {
            Source::Inline(bytes) => (Origin::Inline, bytes, None),
            // Short bytes travel in the ring: the peer needs no mapping for them.
            Source::Region(slice) if len <= INLINE_BYTES => {
                slice.region.read(slice.offset, &mut copied[..len]);
                (Origin::Inline, &copied[..len], None)
            }
            Source::Region(Slice { region, offset, .. }) => {
                let Some(memory) = OwnMemory::of(region, core.incarnation) else {
                    let text =
                        "bytes beyond the inline limit must lie in a region that was registered with this fabric";
                    return Issued::Break(BreakReason::Failed(text.to_owned()));
                };
                if let Some(peer) = core.peers.get(up.peer)
                    && memory.lend(peer.link)
                {
                    core.commands.push(Command::Lend { link: peer.link, memory: memory.clone() });
                }
                (Origin::Region { key: region.key(), offset: offset as u64 }, &[], Some(Keep::Region(region.clone())))
            }
        };
        self.ring.push(&Descriptor { kind, from, len: len as u64 }, inline);
        if let Some((word, Target { region, offset })) = then {
            let kind = Kind::Write { to: region, offset: offset as u64, imm: None };
            self.ring.push(&Descriptor { kind, from: Origin::Inline, len: 8 }, &word);
        }
        core.stats.descriptors += 1 + u64::from(then.is_some());
        core.stats.sends += u64::from(matches!(kind, Kind::Send { .. }));
        self.note(token, keep, true);
        core.peers.hand(up.peer);
        Issued::Yes
    }

    /// Hands a share to the peer.
    fn hand_over_share(&mut self, up: &Up, core: &mut Core, share: &Share, imm: Option<u32>, token: Token) -> Issued {
        if self.ring.is_closed() {
            return self.note_lost(token);
        }
        let Some(peer) = core.peers.get(up.peer) else { return self.note_lost(token) };
        if !self.ring.has_room(1) {
            return Issued::NotYet;
        }
        let lease = share.lend(peer.link);
        let from = Origin::Region { key: share.key, offset: 0 };
        self.ring.push(&Descriptor { kind: Kind::Share { imm }, from, len: share.bytes as u64 }, &[]);
        core.stats.descriptors += 1;
        core.stats.shares += 1;
        self.note(token, Some(Keep::Share(lease)), true);
        core.peers.hand(up.peer);
        Issued::Yes
    }

    /// Copies a piece of a read, once everything before it has taken effect.
    #[allow(clippy::too_many_arguments, reason = "the fields of one read")]
    fn read(
        &mut self,
        up: &Up,
        core: &mut Core,
        from: Target,
        into: &OwnedSlice,
        done: &mut usize,
        budget: &mut usize,
        token: Token,
    ) -> Issued {
        if !self.ring.is_idle() || self.ring.is_closed() {
            return Issued::NotYet;
        }
        let len = into.len;
        let memory = match find(up, PeerAccess::Read, from, len) {
            None => return Issued::Break(BreakReason::Access),
            Some(PeerPlace::At(memory, _)) => memory,
            Some(PeerPlace::Nowhere) => {
                self.note(token, None, false);
                return Issued::Yes;
            }
        };
        // Whole words, so that the rest stays aligned.
        let piece = (len - *done).min(*budget & !7);
        // SAFETY: `find` made sure that the peer's memory holds the whole range, `check_slice` that the region does,
        // and that both are aligned where they are polled. Local and remote memory overlap only where this node reads
        // itself, which it can't.
        unsafe { copy(memory.end(from.offset + *done), local_end(&into.region, into.offset + *done), piece) };
        *done += piece;
        *budget -= piece;
        core.stats.bytes_read += piece as u64;
        if *done < len {
            core.unfinished = true;
            return Issued::NotYet;
        }
        // The peer may have used its memory again since.
        if self.ring.is_closed_by_now() {
            return Issued::NotYet;
        }
        self.note(token, None, false);
        Issued::Yes
    }
}

/// A place in a peer's memory.
enum PeerPlace<'a> {
    At(&'a PeerMemory, usize),
    /// The lack of bytes to place.
    Nowhere,
}

impl PeerPlace<'_> {
    fn is_polled_or_none(&self) -> bool {
        match self {
            PeerPlace::At(memory, _) => memory.describe.kind == RegionKind::Polled,
            PeerPlace::Nowhere => true,
        }
    }

    /// Stores a source's bytes into polled memory of a peer.
    #[inline]
    fn push(&self, core: &mut Core, source: Source<'_>) {
        let PeerPlace::At(memory, offset) = self else { return };
        let (from, len) = match source {
            Source::Inline(bytes) => (End { at: bytes.as_ptr().cast_mut(), kind: EndKind::Own }, bytes.len()),
            Source::Region(slice) => (local_end(slice.region, slice.offset), slice.len),
        };
        // SAFETY: `find` made sure that the memory, which is polled and so mapped writable, holds the range, and
        // `check_source` that the source does; both checked the alignment. `copy` only reads from its source.
        unsafe { copy(from, memory.end(*offset), len) };
        core.stats.writes_pushed += 1;
        core.stats.bytes_pushed += len as u64;
    }
}

/// The place of `len` bytes at a target, if the peer lets this endpoint reach it.
#[inline]
fn find(up: &Up, access: PeerAccess, target: Target, len: usize) -> Option<PeerPlace<'_>> {
    if len == 0 {
        return Some(PeerPlace::Nowhere);
    }
    let memory = up.remote(target.region)?;
    memory.describe.admits(access, target.offset, len).then_some(PeerPlace::At(memory, target.offset))
}
