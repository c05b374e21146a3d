//! Endpoints whose transport is not chosen yet: their requests are kept until it is.

use std::collections::BTreeMap;

use crate::{
    BreakReason, Completion, EndpointId, GroupTag, HELLO_BYTES, NodeId, Region, endpoints::Endpoints, recvs::RecvQueue,
};

/// An endpoint that was connected before its transport was known. It keeps its id.
pub(super) struct HeldEndpoint {
    id: EndpointId,
    pub(super) peer: NodeId,
    pub(super) tag: GroupTag,
    pub(super) expose: Vec<Region>,
    pub(super) hello: Vec<u8>,
    pub(super) recvs: RecvQueue,
    /// The endpoint of a fabric that it has become.
    pub(super) inner: Option<EndpointId>,
}

/// All such endpoints, until they end.
pub(super) struct HeldEndpoints {
    pub(super) endpoints: Endpoints<HeldEndpoint>,
    /// Their ids by the endpoints that they have become.
    pub(super) outer: BTreeMap<EndpointId, EndpointId>,
}

/// The fabric number in their ids.
pub(super) const HELD: u8 = 3;

impl HeldEndpoints {
    pub(super) fn new() -> HeldEndpoints {
        HeldEndpoints { endpoints: Endpoints::new(HELD), outer: BTreeMap::new() }
    }

    /// Keeps an endpoint until a transport is chosen for its peer.
    pub(super) fn hold(&mut self, peer: NodeId, tag: GroupTag, expose: &[Region], hello: &[u8]) -> EndpointId {
        if self.endpoints.all().any(|held| held.inner.is_none() && (held.peer, held.tag) == (peer, tag)) {
            return self.refuse((peer, tag), BreakReason::TagInUse);
        }
        let id = self.endpoints.reserve();
        let (expose, hello) = (expose.to_vec(), hello[..hello.len().min(HELLO_BYTES)].to_vec());
        let recvs = RecvQueue::default();
        self.endpoints.put(id, (peer, tag), Ok(HeldEndpoint { id, peer, tag, expose, hello, recvs, inner: None }))
    }

    /// An endpoint to a peer whose fabric is not there, for the next poll to report.
    pub(super) fn refuse(&mut self, name: (NodeId, GroupTag), reason: BreakReason) -> EndpointId {
        let id = self.endpoints.reserve();
        self.endpoints.put(id, name, Err(reason))
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: EndpointId) -> Option<&mut HeldEndpoint> {
        self.endpoints.get_mut(id)
    }

    pub(super) fn remove(&mut self, id: EndpointId) -> Option<HeldEndpoint> {
        let held = self.endpoints.remove(id)?;
        if let Some(inner) = held.inner {
            self.outer.remove(&inner);
        }
        Some(held)
    }

    pub(super) fn waiting_for(&self, peer: NodeId) -> Vec<EndpointId> {
        self.endpoints.all().filter(|held| held.peer == peer && held.inner.is_none()).map(|held| held.id).collect()
    }

    /// Gives completions the ids that the caller knows.
    pub(super) fn rename(&mut self, completions: &mut [Completion]) {
        if self.outer.is_empty() {
            return;
        }
        for completion in completions {
            let (endpoint, ends) = match completion {
                Completion::Broken { endpoint, .. } => (endpoint, true),
                Completion::Connected { endpoint, .. }
                | Completion::Done { endpoint, .. }
                | Completion::Received { endpoint, .. }
                | Completion::Room { endpoint } => (endpoint, false),
                Completion::GraphDone { .. } => continue,
            };
            if let Some(&outer) = self.outer.get(endpoint) {
                *endpoint = outer;
                if ends {
                    self.remove(outer);
                }
            }
        }
    }
}
