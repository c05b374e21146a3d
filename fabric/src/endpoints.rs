//! A fabric's endpoints, found by id without a search, and those that never come to life.

use std::collections::HashMap;

use crate::{BreakReason, Completion, EndpointId, Flushed, GroupTag, NodeId, Token, recvs::RecvQueue};

/// The width of a slot's index, the lowest part of an id. Above it stands the number of the slot's earlier uses, and
/// above that the fabric's number. So an id never comes twice, nor in two fabrics of one process that are used as one.
const INDEX_BITS: u32 = 32;

/// The position of the fabric's number in an id.
const SPACE_SHIFT: u32 = 61;

/// The number of uses after which a slot is not used again.
const MAX_USES: u32 = (1 << (SPACE_SHIFT - INDEX_BITS)) - 1;

/// The numbers of the fabrics that may be used as one.
pub(crate) const SHM: u8 = 0;
pub(crate) const TCP: u8 = 1;
#[cfg(feature = "verbs")]
pub(crate) const VERBS: u8 = 2;

struct Slot<E> {
    uses: u32,
    entry: Option<SlotEntry<E>>,
}

struct SlotEntry<E> {
    id: EndpointId,
    /// Its peer and tag, which also name its counterpart at the peer.
    name: (NodeId, GroupTag),
    endpoint: E,
}

/// All endpoints that have not ended.
pub(crate) struct Endpoints<E> {
    /// The fabric's number, in its place in an id.
    space: u64,
    slots: Vec<Slot<E>>,
    /// Indices of slots without an endpoint.
    free: Vec<u32>,
    by_name: HashMap<(NodeId, GroupTag), EndpointId>,
    /// Endpoints that the next poll announces.
    new: Vec<EndpointId>,
    /// Endpoints that never came to life, for the next poll to report.
    stillborn: Vec<(EndpointId, NodeId, BreakReason)>,
}

impl<E> Endpoints<E> {
    /// Makes an empty table; `space` (below 8) tells the endpoints' ids from those of other fabrics.
    pub(crate) fn new(space: u8) -> Endpoints<E> {
        assert!(space < 8, "an id has room for 8 fabrics");
        Endpoints {
            space: u64::from(space) << SPACE_SHIFT,
            slots: Vec::new(),
            free: Vec::new(),
            by_name: HashMap::new(),
            new: Vec::new(),
            stillborn: Vec::new(),
        }
    }

    /// A new id, for an endpoint that may be `put`.
    pub(crate) fn reserve(&mut self) -> EndpointId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { uses: 0, entry: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.uses += 1;
        EndpointId(self.space | u64::from(slot.uses) << INDEX_BITS | u64::from(index))
    }

    /// Checks that an endpoint of this node may lead to a peer under a tag.
    pub(crate) fn check(&self, node: NodeId, peer: NodeId, tag: GroupTag) -> Result<(), BreakReason> {
        if peer == node {
            return Err(BreakReason::Failed("a node can't connect to itself".to_owned()));
        }
        if self.by_name.contains_key(&(peer, tag)) { Err(BreakReason::TagInUse) } else { Ok(()) }
    }

    /// Stores an endpoint under the id that was reserved for it; or the reason for which there is none, for the next
    /// poll to report.
    pub(crate) fn put(
        &mut self,
        id: EndpointId,
        name: (NodeId, GroupTag),
        endpoint: Result<E, BreakReason>,
    ) -> EndpointId {
        match endpoint {
            Ok(endpoint) => {
                self.by_name.insert(name, id);
                let before = self.slots[index_of(id)].entry.replace(SlotEntry { id, name, endpoint });
                debug_assert!(before.is_none(), "an id is given out once");
                self.new.push(id);
            }
            Err(reason) => self.stillborn.push((id, name.0, reason)),
        }
        id
    }

    /// Whether the next poll has something to announce or to report.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        !self.new.is_empty() || !self.stillborn.is_empty()
    }

    /// Whether an endpoint never came to life, and that is not reported yet.
    pub(crate) fn is_stillborn(&self, id: EndpointId) -> bool {
        self.stillborn.iter().any(|(stillborn, ..)| *stillborn == id)
    }

    /// Takes the endpoints that were put since the last call.
    pub(crate) fn take_new(&mut self) -> Vec<EndpointId> {
        std::mem::take(&mut self.new)
    }

    /// Reports the endpoints that never came to life.
    #[inline]
    pub(crate) fn report_stillborn(&mut self, out: &mut Vec<Completion>) {
        for (endpoint, peer, reason) in std::mem::take(&mut self.stillborn) {
            self.release(endpoint);
            out.push(Completion::Broken { endpoint, peer, reason });
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: EndpointId) -> Option<&mut E> {
        let entry = self.slots.get_mut(index_of(id))?.entry.as_mut()?;
        (entry.id == id).then_some(&mut entry.endpoint)
    }

    /// The endpoint at a place of the table, whatever its id.
    #[cfg(feature = "verbs")]
    pub(crate) fn at_mut(&mut self, slot: u32) -> Option<&mut E> {
        Some(&mut self.slots.get_mut(slot as usize)?.entry.as_mut()?.endpoint)
    }

    /// Takes an endpoint out, or forgets one that never came to life.
    pub(crate) fn remove(&mut self, id: EndpointId) -> Option<E> {
        let slot = self.slots.get_mut(index_of(id));
        let Some(SlotEntry { name, endpoint, .. }) = slot.and_then(|slot| slot.entry.take_if(|entry| entry.id == id))
        else {
            if let Some(at) = self.stillborn.iter().position(|(stillborn, ..)| *stillborn == id) {
                self.stillborn.remove(at);
                self.release(id);
            }
            return None;
        };
        // Of endpoints that wait for a network, a later one may have taken the name over.
        if self.by_name.get(&name) == Some(&id) {
            self.by_name.remove(&name);
        }
        self.release(id);
        Some(endpoint)
    }

    /// Gives back the id of an endpoint that is no more.
    fn release(&mut self, id: EndpointId) {
        let index = index_of(id);
        if self.slots[index].uses < MAX_USES {
            self.free.push(index as u32);
        }
    }

    /// The living endpoint of a peer and tag.
    pub(crate) fn get_named(&self, name: (NodeId, GroupTag)) -> Option<(EndpointId, &E)> {
        let id = *self.by_name.get(&name)?;
        Some((id, &self.slots.get(index_of(id))?.entry.as_ref()?.endpoint))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &E> {
        self.slots.iter().filter_map(|slot| Some(&slot.entry.as_ref()?.endpoint))
    }

    #[cfg(feature = "verbs")]
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut E> {
        self.slots.iter_mut().filter_map(|slot| Some(&mut slot.entry.as_mut()?.endpoint))
    }

    pub(crate) fn ids(&self) -> Vec<EndpointId> {
        self.slots.iter().filter_map(|slot| Some(slot.entry.as_ref()?.id)).collect()
    }
}

/// Reports the end of an endpoint: the work that is outstanding, and then the reason.
pub(crate) fn report_end(
    endpoint: EndpointId,
    (peer, tag): (NodeId, GroupTag),
    sends: impl Iterator<Item = Token>,
    recvs: &RecvQueue,
    reason: BreakReason,
    out: &mut Vec<Completion>,
) {
    for token in sends.filter(|token| *token != Token::UNSIGNALED).chain(recvs.tokens()) {
        out.push(Completion::Done { endpoint, token, result: Err(Flushed) });
    }
    tracing::debug!(%peer, ?tag, endpoint = endpoint.0, "broken: {reason}");
    out.push(Completion::Broken { endpoint, peer, reason });
}

/// The number of the fabric that an endpoint belongs to.
#[inline]
pub(crate) fn space_of(id: EndpointId) -> u8 {
    (id.0 >> SPACE_SHIFT) as u8
}

/// The place of an endpoint in its table.
#[cfg(feature = "verbs")]
pub(crate) fn slot_of(id: EndpointId) -> u32 {
    index_of(id) as u32
}

#[inline]
fn index_of(id: EndpointId) -> usize {
    (id.0 & ((1 << INDEX_BITS) - 1)) as usize
}
