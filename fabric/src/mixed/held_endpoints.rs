//! Endpoints whose network is not chosen yet: their requests are kept until it is.

use std::collections::HashMap;

use super::parts::Parts;
use crate::{
    BreakReason, Completion, EndpointId, Flushed, GroupTag, HELLO_BYTES, NodeId, Op, PostError, Region, Slice,
    endpoints::Endpoints,
    graph::Work,
    recvs::{Recv, RecvQueue},
};

/// An endpoint that was connected before its network was known. It keeps its id.
pub(super) struct HeldEndpoint {
    id: EndpointId,
    pub(super) peer: NodeId,
    tag: GroupTag,
    expose: Vec<Region>,
    hello: Vec<u8>,
    pub(super) recvs: RecvQueue,
    /// The endpoint of a fabric that it has become.
    pub(super) inner: Option<EndpointId>,
}

/// All such endpoints, until they end.
pub(super) struct HeldEndpoints {
    pub(super) endpoints: Endpoints<HeldEndpoint>,
    /// Their ids by the endpoints that they have become.
    outer: HashMap<EndpointId, EndpointId>,
}

/// The fabric number in their ids.
pub(super) const HELD: u8 = 3;

impl HeldEndpoints {
    pub(super) fn new() -> HeldEndpoints {
        HeldEndpoints { endpoints: Endpoints::new(HELD), outer: HashMap::new() }
    }

    /// Keeps an endpoint until a network is chosen for its peer.
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

    fn waiting_for(&self, peer: NodeId) -> Vec<EndpointId> {
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

impl Parts {
    /// Connects the endpoints that waited for a peer's network, now chosen, and posts their requests.
    pub(super) fn resolve(&mut self, peer: NodeId, space: u8, out: &mut Vec<Completion>) {
        let Parts { fabrics, held: endpoints, .. } = self;
        for id in endpoints.waiting_for(peer) {
            let (Some(held), Some(part)) = (endpoints.endpoints.get_mut(id), fabrics.get_mut(space)) else { continue };
            let inner = part.connect(peer, held.tag, &held.expose, &held.hello);
            for Recv { region, offset, len, token } in held.recvs.queue.drain(..) {
                let into = Slice { region: &region, offset, len };
                let posted = match token.is_reserved() {
                    true => part.post_request(inner, &Work::Recv { into: into.into() }, token),
                    false => part.post(inner, Op::Recv { into }, token),
                };
                debug_assert!(!matches!(posted, Err(PostError::Full)), "no more are held than any queue takes");
                if posted.is_err() {
                    out.push(Completion::Done { endpoint: id, token, result: Err(Flushed) });
                }
            }
            held.recvs.report_room(usize::MAX, id, out);
            held.inner = Some(inner);
            endpoints.outer.insert(inner, id);
        }
    }

    /// Ends the endpoints of a peer for which no network will be chosen.
    pub(super) fn abandon(&mut self, peer: NodeId, reason: &BreakReason, out: &mut Vec<Completion>) {
        for id in self.held.waiting_for(peer) {
            let Some(held) = self.held.remove(id) else { continue };
            for token in held.recvs.tokens() {
                out.push(Completion::Done { endpoint: id, token, result: Err(Flushed) });
            }
            out.push(Completion::Broken { endpoint: id, peer, reason: reason.clone() });
        }
    }
}
