//! Carrying out the peer's descriptors: checking them, pulling their bytes, and completing receives.

use super::{
    copy::{End, EndKind, copy},
    endpoint::{Endpoint, Up},
    fabric::Core,
    memory::local_end,
    peer::Peer,
    ring::{Descriptor, Kind, Origin},
    share::SharedCopy,
};
use crate::{BreakReason, Completion, Region, RegionKey, recvs::Recv, region::PeerAccess};

/// The cost of a descriptor against a poll's budget besides its bytes, so that a peer that posts as fast as this side
/// pulls can't keep a poll from returning.
const DESCRIPTOR_COST: usize = 64;

/// A descriptor that is being carried out.
#[derive(Clone, Copy)]
pub(super) struct Pull {
    descriptor: Descriptor,
    place: Destination,
    /// The number of bytes that are in place.
    done: usize,
}

/// The destination of a descriptor's bytes.
#[derive(Clone, Copy)]
enum Destination {
    /// The index among the exposed regions, and the offset there.
    Exposed(usize, usize),
    /// The oldest receive.
    Recv,
    /// The lack of bytes to place.
    Nowhere,
}

/// The reason for which a descriptor is not complete.
enum Stop {
    /// Its source has not been handed over yet.
    NoSource,
    /// The peer has closed the endpoint, and may have used the source again. The packet that says so is on its way.
    Withdrawn,
    /// The poll has copied as much as it may.
    Budget,
    Break(BreakReason),
}

impl Endpoint {
    /// Carries out the work that the peer has handed over, copying `budget` bytes at most. An error breaks the
    /// endpoint.
    #[inline]
    pub(super) fn pull(
        &mut self,
        core: &mut Core,
        budget: &mut usize,
        out: &mut Vec<Completion>,
    ) -> Result<(), BreakReason> {
        let Some(up) = &mut self.up else { return Ok(()) };
        let Some(peer) = core.peers.get_mut(up.peer) else { return Ok(()) };
        let mut result = Ok(());
        loop {
            let mut pull = match up.pulling.take() {
                Some(pull) => pull,
                None => match up.ring.peek() {
                    Ok(None) => break,
                    Ok(Some(_)) if *budget < DESCRIPTOR_COST => {
                        core.unfinished = true;
                        break;
                    }
                    Ok(Some(descriptor)) => match place(&descriptor, &self.exposed, self.recvs.queue.front()) {
                        Ok(place) => Pull { descriptor, place, done: 0 },
                        Err(reason) => {
                            result = Err(reason);
                            break;
                        }
                    },
                    Err(error) => {
                        result = Err(BreakReason::Failed(format!("{}: {error}", peer.node)));
                        break;
                    }
                },
            };
            let before = *budget;
            let copied = pull.go_on(up, peer, &self.exposed, self.recvs.queue.front(), budget);
            core.stats.bytes_pulled += (before - *budget) as u64;
            *budget = budget.saturating_sub(DESCRIPTOR_COST);
            match copied {
                Ok(()) => {}
                Err(Stop::Break(reason)) => {
                    result = Err(reason);
                    break;
                }
                Err(stop) => {
                    core.unfinished |= matches!(stop, Stop::Budget);
                    up.pulling = Some(pull);
                    break;
                }
            }
            let descriptor = pull.descriptor;
            let received = match descriptor.kind {
                Kind::Send { imm } => Some((descriptor.len as usize, imm)),
                Kind::Write { imm: imm @ Some(_), .. } | Kind::Share { imm } => Some((0, imm)),
                Kind::Write { .. } => None,
            };
            if let Some((bytes, imm)) = received
                && let Some(recv) = self.recvs.queue.pop_front()
            {
                if let Kind::Share { .. } = descriptor.kind
                    && let Some(copy) = peer.take_share(&descriptor)
                {
                    core.shared.push((self.id, recv.token, copy));
                }
                out.push(Completion::Received { endpoint: self.id, token: recv.token, bytes, imm });
            }
            up.ring.advance(&descriptor);
        }
        if up.ring.publish() {
            core.peers.touch(up.peer);
        }
        result
    }
}

impl Peer {
    /// Checks that the memory which a descriptor shares has come.
    fn check_share(&self, descriptor: &Descriptor) -> Result<(), Stop> {
        let failed = |text: &str| Err(Stop::Break(BreakReason::Failed(format!("{}: {text}", self.node))));
        match share_of(descriptor).map(|key| self.shares.get(&key)) {
            Some(Some(Ok(copy))) if copy.len() as u64 == descriptor.len => Ok(()),
            Some(Some(Ok(_))) => failed("it shared memory of another size than it said"),
            Some(Some(Err(text))) => failed(text),
            _ => Err(Stop::NoSource),
        }
    }

    fn take_share(&mut self, descriptor: &Descriptor) -> Option<SharedCopy> {
        self.shares.remove(&share_of(descriptor)?)?.ok()
    }
}

fn share_of(descriptor: &Descriptor) -> Option<RegionKey> {
    match descriptor.from {
        Origin::Region { key, .. } => Some(key),
        Origin::Inline => None,
    }
}

/// The destination of a descriptor's bytes, if it may be carried out. Each of its fields is checked.
fn place(descriptor: &Descriptor, exposed: &[Region], recv: Option<&Recv>) -> Result<Destination, BreakReason> {
    let Ok(len) = usize::try_from(descriptor.len) else { return Err(BreakReason::Access) };
    match descriptor.kind {
        Kind::Send { .. } => match recv {
            Some(recv) if len <= recv.len => Ok(Destination::Recv),
            _ => Err(BreakReason::ReceiverNotReady),
        },
        Kind::Share { .. } if recv.is_some() => Ok(Destination::Nowhere),
        Kind::Share { .. } => Err(BreakReason::ReceiverNotReady),
        Kind::Write { imm: Some(_), .. } if recv.is_none() => Err(BreakReason::ReceiverNotReady),
        Kind::Write { .. } if len == 0 => Ok(Destination::Nowhere),
        Kind::Write { to, offset, .. } => exposed_at(exposed, to, offset, len).ok_or(BreakReason::Access),
    }
}

/// The place of a range that a peer names in the memory that it was given.
fn exposed_at(exposed: &[Region], key: RegionKey, offset: u64, len: usize) -> Option<Destination> {
    let index = exposed.iter().position(|region| region.key() == key)?;
    let region = &exposed[index];
    let offset = usize::try_from(offset).ok()?;
    region.describe().admits(PeerAccess::Write, offset, len).then_some(Destination::Exposed(index, offset))
}

impl Pull {
    /// Copies bytes until all are in place.
    fn go_on(
        &mut self,
        up: &Up,
        peer: &Peer,
        exposed: &[Region],
        recv: Option<&Recv>,
        budget: &mut usize,
    ) -> Result<(), Stop> {
        let len = self.descriptor.len as usize;
        if let Kind::Share { .. } = self.descriptor.kind {
            return peer.check_share(&self.descriptor);
        }
        let to = match self.place {
            Destination::Nowhere => return Ok(()),
            Destination::Exposed(index, offset) => local_end(&exposed[index], offset + self.done),
            Destination::Recv => {
                let recv = recv.expect("a receive that a send has begun to fill stays the oldest");
                local_end(&recv.region, recv.offset + self.done)
            }
        };
        match self.descriptor.from {
            Origin::Inline => {
                let words = up.ring.inline(len);
                let from = End { at: words.as_ptr().cast_mut().cast(), kind: EndKind::Own };
                // SAFETY: `place` made sure that `len` bytes fit, and of inline bytes `peek` that they are no more than
                // `words` holds. `copy` only reads from its source.
                unsafe { copy(from, to, len) };
                *budget = budget.saturating_sub(len);
                Ok(())
            }
            Origin::Region { key, offset } => {
                let source = match peer.sources.get(&key) {
                    None => return Err(Stop::NoSource),
                    Some(Ok(source)) => source,
                    Some(Err(text)) => {
                        return Err(Stop::Break(BreakReason::Failed(format!("{}: {text}", peer.node))));
                    }
                };
                let offset = usize::try_from(offset).map_err(|_| Stop::Break(BreakReason::Access))?;
                if !source.describe.admits(PeerAccess::Read, offset, len) {
                    return Err(Stop::Break(BreakReason::Access));
                }
                if up.ring.is_withdrawn() {
                    return Err(Stop::Withdrawn);
                }
                // Whole words, so that the rest stays aligned.
                let piece = (len - self.done).min(*budget & !7);
                // SAFETY: the source holds `len` bytes at `offset`, aligned if it is polled, and `place` made sure of
                // the same for the target. The source is mapped apart from all regions.
                unsafe { copy(source.end(offset + self.done), to, piece) };
                // Bytes that were copied meanwhile may be anything, and are not reported.
                if up.ring.is_withdrawn() {
                    return Err(Stop::Withdrawn);
                }
                self.done += piece;
                *budget -= piece;
                if self.done < len { Err(Stop::Budget) } else { Ok(()) }
            }
        }
    }
}
