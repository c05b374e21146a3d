//! A fabric's endpoints, found by id without a search.

use crate::EndpointId;

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
    endpoint: Option<E>,
}

/// An item that is found by its id.
pub(crate) trait Identified {
    fn id(&self) -> EndpointId;
}

/// All endpoints that have not ended.
pub(crate) struct Endpoints<E> {
    /// The fabric's number, in its place in an id.
    space: u64,
    slots: Vec<Slot<E>>,
    /// Indices of slots without an endpoint.
    free: Vec<u32>,
}

impl<E: Identified> Endpoints<E> {
    /// No endpoints yet; `space` (below 8) tells their ids from those of other fabrics.
    pub(crate) fn new(space: u8) -> Endpoints<E> {
        assert!(space < 8, "an id has room for 8 fabrics");
        Endpoints { space: u64::from(space) << SPACE_SHIFT, slots: Vec::new(), free: Vec::new() }
    }

    /// A new id, for an endpoint that may be `put`.
    pub(crate) fn reserve(&mut self) -> EndpointId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { uses: 0, endpoint: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.uses += 1;
        EndpointId(self.space | u64::from(slot.uses) << INDEX_BITS | u64::from(index))
    }

    /// Stores an endpoint under the id that was reserved for it.
    pub(crate) fn put(&mut self, endpoint: E) {
        let slot = &mut self.slots[index_of(endpoint.id())];
        debug_assert!(slot.endpoint.is_none());
        slot.endpoint = Some(endpoint);
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: EndpointId) -> Option<&mut E> {
        self.slots.get_mut(index_of(id))?.endpoint.as_mut().filter(|endpoint| endpoint.id() == id)
    }

    pub(crate) fn remove(&mut self, id: EndpointId) -> Option<E> {
        self.get_mut(id)?;
        let endpoint = self.slots[index_of(id)].endpoint.take();
        self.release(id);
        endpoint
    }

    /// Gives back an id under which no endpoint was put.
    pub(crate) fn release(&mut self, id: EndpointId) {
        let index = index_of(id);
        if self.slots[index].uses < MAX_USES {
            self.free.push(index as u32);
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &E> {
        self.slots.iter().filter_map(|slot| slot.endpoint.as_ref())
    }

    #[cfg(feature = "verbs")]
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut E> {
        self.slots.iter_mut().filter_map(|slot| slot.endpoint.as_mut())
    }

    pub(crate) fn ids(&self) -> Vec<EndpointId> {
        self.all().map(E::id).collect()
    }
}

/// The number of the fabric that an endpoint belongs to.
#[inline]
pub(crate) fn space_of(id: EndpointId) -> u8 {
    (id.0 >> SPACE_SHIFT) as u8
}

#[inline]
fn index_of(id: EndpointId) -> usize {
    (id.0 & ((1 << INDEX_BITS) - 1)) as usize
}
