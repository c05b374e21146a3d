//! The fabrics of a node, and the assignment of endpoints to them.

use super::held_endpoints::{HELD, HeldEndpoints};
use crate::{
    BreakReason, Completion, EndpointId, Flushed, NodeId, Op, PostError, Slice, Token,
    endpoints::{SHM, TCP, space_of},
    graph::{Host, Queue, Work},
    mixed_part::MixedPart,
    recvs::Recv,
    shm::ShmFabric,
    tcp::TcpFabric,
};
#[cfg(feature = "verbs")]
use crate::{endpoints::VERBS, verbs::VerbsFabric};

/// The fabrics that were added.
#[derive(Default)]
pub(super) struct Fabrics {
    pub(super) shm: Option<ShmFabric>,
    pub(super) tcp: Option<TcpFabric>,
    #[cfg(feature = "verbs")]
    pub(super) verbs: Option<VerbsFabric>,
}

impl Fabrics {
    #[inline]
    pub(super) fn get_mut(&mut self, space: u8) -> Option<&mut dyn MixedPart> {
        match space {
            SHM => self.shm.as_mut().map(|part| part as &mut dyn MixedPart),
            TCP => self.tcp.as_mut().map(|part| part as &mut dyn MixedPart),
            #[cfg(feature = "verbs")]
            VERBS => self.verbs.as_mut().map(|part| part as &mut dyn MixedPart),
            _ => None,
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &dyn MixedPart> {
        let shm = self.shm.as_ref().map(|part| part as &dyn MixedPart);
        let tcp = self.tcp.as_ref().map(|part| part as &dyn MixedPart);
        #[cfg(feature = "verbs")]
        let tcp = tcp.into_iter().chain(self.verbs.as_ref().map(|part| part as &dyn MixedPart));
        shm.into_iter().chain(tcp)
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut dyn MixedPart> {
        let shm = self.shm.as_mut().map(|part| part as &mut dyn MixedPart);
        let tcp = self.tcp.as_mut().map(|part| part as &mut dyn MixedPart);
        #[cfg(feature = "verbs")]
        let tcp = tcp.into_iter().chain(self.verbs.as_mut().map(|part| part as &mut dyn MixedPart));
        shm.into_iter().chain(tcp)
    }

    /// Whether there is an RDMA device.
    pub(super) fn has_verbs(&self) -> bool {
        #[cfg(feature = "verbs")]
        return self.verbs.is_some();
        #[cfg(not(feature = "verbs"))]
        false
    }
}

/// The fabrics, and the endpoints that are not in one yet.
pub(super) struct EndpointRouter {
    pub(super) fabrics: Fabrics,
    pub(super) held: HeldEndpoints,
    /// Whether the last poll left requests of work graphs with the fabrics, which send them in their next one.
    pub(super) unfinished: bool,
}

impl EndpointRouter {
    /// The fabric that an endpoint belongs to, and its id there.
    #[inline]
    pub(super) fn of(&mut self, endpoint: EndpointId) -> Option<(&mut dyn MixedPart, EndpointId)> {
        let mut inner = endpoint;
        if space_of(endpoint) == HELD {
            inner = self.held.get_mut(endpoint)?.inner?;
        }
        Some((self.fabrics.get_mut(space_of(inner))?, inner))
    }

    /// The number of receives that an endpoint may have outstanding, whatever transport is chosen for it.
    pub(super) fn recv_depth(&self) -> usize {
        self.fabrics.all().map(MixedPart::depth).min().unwrap_or(0)
    }

    /// Posts to an endpoint that is in no fabric yet, which takes receives only.
    #[cold]
    pub(super) fn post_held(&mut self, on: EndpointId, op: Op<'_>, token: Token) -> Result<(), PostError> {
        let (depth, is_stillborn) = (self.recv_depth(), self.held.endpoints.is_stillborn(on));
        match (self.held.get_mut(on), op) {
            (Some(held), Op::Recv { into }) => held.recvs.post(depth, into, token),
            (None, _) if !is_stillborn => Err(PostError::Broken),
            _ => Err(PostError::NotConnected),
        }
    }

    /// Connects the endpoints that waited for a peer's transport, now chosen, and posts their requests.
    pub(super) fn resolve(&mut self, peer: NodeId, space: u8, out: &mut Vec<Completion>) {
        let EndpointRouter { fabrics, held: endpoints, .. } = self;
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

    /// Ends the endpoints of a peer for which no transport will be chosen.
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

impl Host for EndpointRouter {
    fn room(&mut self, on: EndpointId, queue: Queue) -> Option<usize> {
        if let Some((part, inner)) = self.of(on) {
            return part.room(inner, queue);
        }
        let depth = self.recv_depth();
        let held = self.held.get_mut(on)?;
        Some(if queue == Queue::Recv { held.recvs.room(depth) } else { 0 })
    }

    fn post_request(&mut self, on: EndpointId, work: &Work, token: Token) -> Result<(), PostError> {
        self.unfinished = true;
        match self.of(on) {
            Some((part, inner)) => part.post_request(inner, work, token),
            None => self.post_held(on, work.op(), token),
        }
    }
}
