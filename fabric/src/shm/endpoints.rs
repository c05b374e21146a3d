//! A fabric's endpoints, found by id without a search.

use super::endpoint::Endpoint;
use crate::EndpointId;

/// An id is a slot's index, and above it how often the slot was used before: ids never come twice.
const INDEX_BITS: u32 = 32;

#[derive(Default)]
struct Slot {
    uses: u32,
    endpoint: Option<Endpoint>,
}

/// All endpoints that have not ended.
#[derive(Default)]
pub(super) struct Endpoints {
    slots: Vec<Slot>,
    /// Indices of slots without an endpoint.
    free: Vec<u32>,
    /// Where a walk over all of them begins.
    first: usize,
}

impl Endpoints {
    /// A new id, for an endpoint that may be `put`.
    pub(super) fn reserve(&mut self) -> EndpointId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.uses += 1;
        EndpointId(u64::from(slot.uses) << INDEX_BITS | u64::from(index))
    }

    /// Takes an endpoint in, under the id that was reserved for it.
    pub(super) fn put(&mut self, endpoint: Endpoint) {
        let slot = &mut self.slots[index_of(endpoint.id)];
        debug_assert!(slot.endpoint.is_none());
        slot.endpoint = Some(endpoint);
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        self.slots.get_mut(index_of(id))?.endpoint.as_mut().filter(|endpoint| endpoint.id == id)
    }

    pub(super) fn remove(&mut self, id: EndpointId) -> Option<Endpoint> {
        self.get_mut(id)?;
        let endpoint = self.slots[index_of(id)].endpoint.take();
        self.release(id);
        endpoint
    }

    /// Gives back an id under which no endpoint was put.
    pub(super) fn release(&mut self, id: EndpointId) {
        let index = index_of(id);
        // A slot whose count is used up is not used again.
        if self.slots[index].uses < u32::MAX {
            self.free.push(index as u32);
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Endpoint> {
        self.slots.iter().filter_map(|slot| slot.endpoint.as_ref())
    }

    pub(super) fn ids(&self) -> Vec<EndpointId> {
        self.all().map(|endpoint| endpoint.id).collect()
    }

    /// All of them, from the one that is first this time.
    #[inline]
    pub(super) fn rotated(&mut self) -> impl Iterator<Item = &mut Endpoint> {
        let (before, from) = self.slots.split_at_mut(self.first);
        from.iter_mut().chain(before).filter_map(|slot| slot.endpoint.as_mut())
    }

    /// Lets another be first.
    pub(super) fn rotate(&mut self) {
        self.first = if self.first + 1 < self.slots.len() { self.first + 1 } else { 0 };
    }
}

#[inline]
fn index_of(id: EndpointId) -> usize {
    (id.0 & ((1 << INDEX_BITS) - 1)) as usize
}
