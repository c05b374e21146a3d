//! Endpoints whose network is not chosen yet: their requests are kept until it is.

use std::collections::{HashMap, VecDeque};

use super::parts::Parts;
use crate::{
    BreakReason, Completion, EndpointId, Flushed, GroupTag, HELLO_BYTES, NodeId, Op, PostError, Region, Slice, Token,
    check::check_slice,
    endpoints::{Endpoints, Identified},
    graph::Work,
};

/// An endpoint that was connected before its network was known. It keeps its id.
pub(super) struct HeldEndpoint {
    id: EndpointId,
    pub(super) peer: NodeId,
    tag: GroupTag,
    expose: Vec<Region>,
    hello: Vec<u8>,
    recvs: VecDeque<(Region, usize, usize, Token)>,
    /// Whether a receive found no room, so that `Room` is owed.
    was_full: bool,
    /// The endpoint of a fabric that it has become.
    pub(super) inner: Option<EndpointId>,
}

impl Identified for HeldEndpoint {
    fn id(&self) -> EndpointId {
        self.id
    }
}

/// All such endpoints, until they end.
pub(super) struct HeldEndpoints {
    endpoints: Endpoints<HeldEndpoint>,
    /// Their ids by the endpoints that they have become.
    outer: HashMap<EndpointId, EndpointId>,
    /// Peers of endpoints that are new.
    new: Vec<NodeId>,
}

/// The fabric number in their ids.
pub(super) const HELD: u8 = 3;

impl HeldEndpoints {
    pub(super) fn new() -> HeldEndpoints {
        HeldEndpoints { endpoints: Endpoints::new(HELD), outer: HashMap::new(), new: Vec::new() }
    }

    /// Whether another endpoint that waits has the tag.
    pub(super) fn has(&self, peer: NodeId, tag: GroupTag) -> bool {
        self.endpoints.all().any(|held| held.inner.is_none() && (held.peer, held.tag) == (peer, tag))
    }

    /// The peers of endpoints that were held since the last call.
    pub(super) fn waits(&mut self) -> std::vec::Drain<'_, NodeId> {
        self.new.drain(..)
    }

    pub(super) fn hold(&mut self, peer: NodeId, tag: GroupTag, expose: &[Region], hello: &[u8]) -> EndpointId {
        let id = self.endpoints.reserve();
        let hello = hello[..hello.len().min(HELLO_BYTES)].to_vec();
        let recvs = VecDeque::new();
        self.new.push(peer);
        self.endpoints.put(HeldEndpoint {
            id,
            peer,
            tag,
            expose: expose.to_vec(),
            hello,
            recvs,
            was_full: false,
            inner: None,
        });
        id
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
        self.endpoints.all().filter(|held| held.peer == peer && held.inner.is_none()).map(HeldEndpoint::id).collect()
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

impl HeldEndpoint {
    /// Keeps a receive.
    pub(super) fn post_recv(&mut self, depth: usize, into: Slice<'_>, token: Token) -> Result<(), PostError> {
        check_slice(into)?;
        if self.recvs.len() >= depth {
            self.was_full = true;
            return Err(PostError::Full);
        }
        self.recvs.push_back((into.region.clone(), into.offset, into.len, token));
        Ok(())
    }

    /// The number of further receives that it takes.
    pub(super) fn recv_room(&self, depth: usize) -> usize {
        depth.saturating_sub(self.recvs.len())
    }
}

impl Parts {
    /// Connects the endpoints that waited for a peer's network, now chosen, and posts their requests.
    pub(super) fn resolve(&mut self, peer: NodeId, space: u8, out: &mut Vec<Completion>) {
        let Parts { fabrics, held: endpoints } = self;
        for id in endpoints.waiting_for(peer) {
            let (Some(held), Some(part)) = (endpoints.endpoints.get_mut(id), fabrics.get_mut(space)) else { continue };
            let inner = part.connect(peer, held.tag, &held.expose, &held.hello);
            for (region, offset, len, token) in held.recvs.drain(..) {
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
            if std::mem::take(&mut held.was_full) {
                out.push(Completion::Room { endpoint: id });
            }
            held.inner = Some(inner);
            endpoints.outer.insert(inner, id);
        }
    }

    /// Ends the endpoints of a peer for which no network will be chosen.
    pub(super) fn abandon(&mut self, peer: NodeId, reason: &BreakReason, out: &mut Vec<Completion>) {
        for id in self.held.waiting_for(peer) {
            let Some(held) = self.held.remove(id) else { continue };
            for (.., token) in held.recvs {
                out.push(Completion::Done { endpoint: id, token, result: Err(Flushed) });
            }
            out.push(Completion::Broken { endpoint: id, peer, reason: reason.clone() });
        }
    }
}
