//! A fabric whose queues fill and drain at any moment, as a real one's do while its peer takes work off them.

use std::collections::BTreeSet;

use fastrand::Rng;
use squall_fabric::{
    Completion, EndpointId, Fabric, GroupTag, NodeId, Op, PostError, Region, RegionKind, RegisterError, Time, Token,
};

/// A fabric that refuses some posts as [`PostError::Full`], and takes the next one.
pub(crate) struct Reluctant<F> {
    inner: F,
    /// The number of posts, of 256, that are refused.
    refused: u8,
    rng: Rng,
    owes_room: BTreeSet<EndpointId>,
    broken: BTreeSet<EndpointId>,
}

impl<F> Reluctant<F> {
    pub(crate) fn new(inner: F, refused: u8, rng: Rng) -> Reluctant<F> {
        Reluctant { inner, refused, rng, owes_room: BTreeSet::new(), broken: BTreeSet::new() }
    }

    /// Whether the next poll has room to report, of which the network does not know.
    pub(crate) fn owes_room(&self) -> bool {
        !self.owes_room.is_empty()
    }
}

// SAFETY: it calls a fabric that promises the same.
unsafe impl<F: Fabric> Fabric for Reluctant<F> {
    fn node(&self) -> NodeId {
        self.inner.node()
    }

    fn register(&mut self, kind: RegionKind, bytes: usize) -> Result<Region, RegisterError> {
        self.inner.register(kind, bytes)
    }

    fn connect(&mut self, peer: NodeId, tag: GroupTag, expose: &[Region], hello: &[u8]) -> EndpointId {
        self.inner.connect(peer, tag, expose, hello)
    }

    fn disconnect(&mut self, on: EndpointId) {
        self.owes_room.remove(&on);
        self.inner.disconnect(on);
    }

    fn post(&mut self, on: EndpointId, op: Op<'_>, token: Token) -> Result<(), PostError> {
        if self.rng.u8(..) < self.refused && !self.broken.contains(&on) {
            self.owes_room.insert(on);
            return Err(PostError::Full);
        }
        self.inner.post(on, op, token)
    }

    fn poll(&mut self, now: Time, out: &mut Vec<Completion>) {
        let room = std::mem::take(&mut self.owes_room);
        out.extend(room.into_iter().map(|endpoint| Completion::Room { endpoint }));
        self.inner.poll(now, out);
        self.broken.extend(out.iter().filter_map(|completion| match completion {
            Completion::Broken { endpoint, .. } => Some(*endpoint),
            _ => None,
        }));
    }
}
