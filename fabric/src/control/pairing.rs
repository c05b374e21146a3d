//! The meeting of endpoints with their counterparts, and their parting.
//!
//! Of the two sides of a link, one *offers* its endpoints. The other one *accepts* an offer once it has an endpoint of
//! that tag itself, and the offering side *confirms*:
//!
//! ```text
//! offering side      accepting side
//!   │── Offer(b) ──────▶│         b waits here until a is connected too
//!   │◀── Accept(a, b) ──│
//!   │── Confirm(b, a) ─▶│         b is matched with a at its Accept, and a with b at its Confirm
//! ```
//!
//! One side decides which endpoints meet, so a tag that is closed and connected again never meets its earlier
//! counterpart. If `b` was closed in the meantime, its `Close` comes instead of the `Confirm`, and `a` waits for
//! another offer. `a` can't have been used by then, so it is as new.
//!
//! [`Pairing`] has no socket and no clock. Its owner tells it of commands, links and frames, and then carries out the
//! [`PairingEffect`]s in their order, before it tells of anything else.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Instant,
};

use super::Refusals;
use crate::{BreakReason, EndpointId, NodeId, wire::Malformed};

/// The number of offers of endpoints that a peer may have waiting here.
pub(crate) const MAX_OFFERS: usize = 4096;

/// The name of a link within this process. It is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LinkId(pub(crate) u64);

/// The kinds of data that endpoints of a medium meet with.
pub(crate) trait Medium {
    /// The name of a connection among those of two nodes.
    type Tag: Copy + Ord;
    /// The message of an endpoint to its counterpart, as it goes.
    type SetUp: Clone;
    /// The message of the counterpart, as it came.
    type PeerSetUp;
}

/// A frame to the peer of a link. `mine` is an endpoint of this side, `yours` one of the peer's.
pub(crate) enum PairingMessage<M: Medium> {
    Offer { mine: EndpointId, tag: M::Tag, set_up: M::SetUp },
    Accept { mine: EndpointId, yours: u64, set_up: M::SetUp },
    Confirm { mine: EndpointId, yours: u64 },
    Close { mine: EndpointId, reason: BreakReason },
}

/// An order to the owner of a [`Pairing`].
pub(crate) enum PairingEffect<M: Medium> {
    Send(LinkId, PairingMessage<M>),
    /// The endpoint and its counterpart know of each other. [`Pairing::complete`] is next, once the medium has
    /// everything else that they need.
    Matched(EndpointId),
    /// The endpoint is not matched any more, before it was complete: it waits again, or ends.
    Unmatched(EndpointId),
    /// The endpoint has ended, for another reason than a command.
    Broken {
        endpoint: EndpointId,
        tag: M::Tag,
        reason: BreakReason,
    },
}

/// An endpoint of this node.
struct LocalEndpoint<M: Medium> {
    peer: NodeId,
    tag: M::Tag,
    set_up: M::SetUp,
    stage: PairingStage<M::PeerSetUp>,
}

/// An endpoint of the peer at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counterpart {
    pub(crate) link: LinkId,
    pub(crate) theirs: u64,
}

enum PairingStage<P> {
    /// An endpoint that waits for a link with its peer, or for an offer of its tag.
    Waiting,
    Offered(LinkId),
    Accepted(Counterpart, P),
    Matched(Counterpart, P),
    Paired(Counterpart),
}

impl<P> PairingStage<P> {
    fn counterpart(&self) -> Option<Counterpart> {
        match self {
            PairingStage::Waiting | PairingStage::Offered(_) => None,
            PairingStage::Accepted(counterpart, _)
            | PairingStage::Matched(counterpart, _)
            | PairingStage::Paired(counterpart) => Some(*counterpart),
        }
    }

    fn link(&self) -> Option<LinkId> {
        match self {
            PairingStage::Offered(link) => Some(*link),
            _ => self.counterpart().map(|counterpart| counterpart.link),
        }
    }
}

/// A peer's endpoint that waits for its counterpart.
struct Offer<M: Medium> {
    theirs: u64,
    tag: M::Tag,
    set_up: M::PeerSetUp,
}

/// The endpoints at the other end of a link.
struct PeerEndpoints<M: Medium> {
    node: NodeId,
    /// Whether this side accepts offers, in place of making them.
    accepts: bool,
    /// The endpoints that have no counterpart here yet (at the side that accepts).
    offers: Vec<Offer<M>>,
    /// The endpoints of this side, by their counterparts.
    by_theirs: BTreeMap<u64, EndpointId>,
}

/// All endpoints of this node that have not ended, and the links over which they meet.
pub(crate) struct Pairing<M: Medium> {
    endpoints: BTreeMap<EndpointId, LocalEndpoint<M>>,
    by_tag: BTreeMap<(NodeId, M::Tag), EndpointId>,
    links: BTreeMap<LinkId, PeerEndpoints<M>>,
    by_node: BTreeMap<NodeId, LinkId>,
    refusals: Refusals,
    effects: VecDeque<PairingEffect<M>>,
}

impl<M: Medium> Pairing<M> {
    pub(crate) fn new() -> Pairing<M> {
        Pairing {
            endpoints: BTreeMap::new(),
            by_tag: BTreeMap::new(),
            links: BTreeMap::new(),
            by_node: BTreeMap::new(),
            refusals: Refusals::default(),
            effects: VecDeque::new(),
        }
    }

    /// The next effect that is to be carried out.
    pub(crate) fn next_effect(&mut self) -> Option<PairingEffect<M>> {
        self.effects.pop_front()
    }

    /// The link with a node, if there is one.
    pub(crate) fn link_with(&self, node: NodeId) -> Option<LinkId> {
        self.by_node.get(&node).copied()
    }

    /// The peers with which there is no link, but an endpoint that waits for one.
    pub(crate) fn unlinked_peers(&self) -> BTreeSet<NodeId> {
        let waiting = self.endpoints.values().filter(|local| matches!(local.stage, PairingStage::Waiting));
        waiting.map(|local| local.peer).filter(|peer| !self.by_node.contains_key(peer)).collect()
    }

    pub(crate) fn tag(&self, endpoint: EndpointId) -> Option<M::Tag> {
        self.endpoints.get(&endpoint).map(|local| local.tag)
    }

    /// The counterpart of an endpoint that is matched and not complete.
    pub(crate) fn matched(&self, endpoint: EndpointId) -> Option<Counterpart> {
        match self.endpoints.get(&endpoint)?.stage {
            PairingStage::Matched(counterpart, _) => Some(counterpart),
            _ => None,
        }
    }

    /// The message of that counterpart.
    pub(crate) fn matched_set_up(&mut self, endpoint: EndpointId) -> Option<&mut M::PeerSetUp> {
        match &mut self.endpoints.get_mut(&endpoint)?.stage {
            PairingStage::Matched(_, set_up) => Some(set_up),
            _ => None,
        }
    }

    /// The counterpart of an endpoint that is complete.
    pub(crate) fn paired(&self, endpoint: EndpointId) -> Option<Counterpart> {
        match self.endpoints.get(&endpoint)?.stage {
            PairingStage::Paired(counterpart) => Some(counterpart),
            _ => None,
        }
    }

    /// Has an endpoint meet its counterpart.
    pub(crate) fn connect(&mut self, endpoint: EndpointId, peer: NodeId, tag: M::Tag, set_up: M::SetUp, now: Instant) {
        self.assert_settled();
        if self.by_tag.contains_key(&(peer, tag)) {
            return self.effects.push_back(PairingEffect::Broken { endpoint, tag, reason: BreakReason::TagInUse });
        }
        self.by_tag.insert((peer, tag), endpoint);
        self.endpoints.insert(endpoint, LocalEndpoint { peer, tag, set_up, stage: PairingStage::Waiting });
        if self.by_node.contains_key(&peer) {
            self.advance(endpoint);
        } else if let Some(sentence) = self.refusals.get(peer, now) {
            self.break_local(endpoint, BreakReason::Refused(sentence));
        }
    }

    /// Ends an endpoint, and tells its counterpart the reason.
    pub(crate) fn close(&mut self, endpoint: EndpointId, reason: BreakReason) {
        self.assert_settled();
        self.remove_and_tell(endpoint, reason);
    }

    /// Ends an endpoint on both sides.
    pub(crate) fn break_both(&mut self, endpoint: EndpointId, reason: BreakReason) {
        self.assert_settled();
        if let Some(tag) = self.tag(endpoint) {
            self.remove_and_tell(endpoint, reason.clone());
            self.effects.push_back(PairingEffect::Broken { endpoint, tag, reason });
        }
    }

    /// Ends all endpoints that wait for a peer which they can't have.
    pub(crate) fn fail_waiting(&mut self, peer: NodeId, reason: &BreakReason) {
        self.assert_settled();
        for endpoint in self.waiting_for(peer) {
            self.break_local(endpoint, reason.clone());
        }
    }

    /// Ends all endpoints that have not met their counterparts at a peer, on both sides.
    pub(crate) fn break_unmet(&mut self, peer: NodeId, reason: &BreakReason) {
        self.assert_settled();
        for endpoint in self.select(|local| local.peer == peer && local.stage.counterpart().is_none()) {
            let Some(tag) = self.tag(endpoint) else { continue };
            self.remove_and_tell(endpoint, reason.clone());
            self.effects.push_back(PairingEffect::Broken { endpoint, tag, reason: reason.clone() });
        }
    }

    /// Ends the endpoint that waits for a peer with a tag under which it can't have a counterpart.
    pub(crate) fn fail_tag(&mut self, peer: NodeId, tag: M::Tag, reason: BreakReason) {
        self.assert_settled();
        if let Some(endpoint) = self.by_tag.get(&(peer, tag)).copied()
            && matches!(self.endpoints[&endpoint].stage, PairingStage::Waiting)
        {
            self.break_local(endpoint, reason);
        }
    }

    /// Fails as [`fail_waiting`](Pairing::fail_waiting) does, and remembers the refusal for a moment.
    pub(crate) fn refuse(&mut self, peer: NodeId, sentence: String, now: Instant) {
        self.assert_settled();
        self.refusals.note(peer, &sentence, now);
        self.fail_waiting(peer, &BreakReason::Refused(sentence));
    }

    /// Takes a link with a node, over which this side accepts offers or makes them.
    pub(crate) fn link_up(&mut self, id: LinkId, node: NodeId, accepts: bool) {
        self.assert_settled();
        self.refusals.forget(node);
        self.links.insert(id, PeerEndpoints { node, accepts, offers: Vec::new(), by_theirs: BTreeMap::new() });
        self.by_node.insert(node, id);
        for endpoint in self.waiting_for(node) {
            self.advance(endpoint);
        }
    }

    /// Ends all complete endpoints of a link that is no more; the others wait for another link.
    pub(crate) fn link_down(&mut self, id: LinkId, reason: &BreakReason) {
        self.assert_settled();
        let Some(link) = self.links.remove(&id) else { return };
        self.by_node.remove(&link.node);
        for endpoint in self.select(|local| local.stage.link() == Some(id)) {
            match self.paired(endpoint) {
                Some(_) => self.break_local(endpoint, reason.clone()),
                None => self.wait_again(endpoint),
            }
        }
    }

    /// Whether the rules permit a peer to offer that endpoint.
    pub(crate) fn check_offer(&self, from: Counterpart) -> Result<(), Malformed> {
        let Some(link) = self.links.get(&from.link) else { return Ok(()) };
        if link.offers.len() >= MAX_OFFERS {
            return Err(Malformed("it offers more endpoints than a node may"));
        }
        if link.by_theirs.contains_key(&from.theirs) || link.offers.iter().any(|offer| offer.theirs == from.theirs) {
            return Err(Malformed("it offers an endpoint twice"));
        }
        Ok(())
    }

    /// The messages of the peer's endpoints that have no counterpart here yet.
    pub(crate) fn offered(&self, id: LinkId) -> impl Iterator<Item = &M::PeerSetUp> {
        self.links.get(&id).into_iter().flat_map(|link| &link.offers).map(|offer| &offer.set_up)
    }

    /// Takes a peer's offer.
    pub(crate) fn on_offer(&mut self, from: Counterpart, tag: M::Tag, set_up: M::PeerSetUp) -> Result<(), Malformed> {
        self.assert_settled();
        self.check_offer(from)?;
        let Some(link) = self.links.get_mut(&from.link) else { return Ok(()) };
        link.offers.push(Offer { theirs: from.theirs, tag, set_up });
        if let Some(endpoint) = self.by_tag.get(&(link.node, tag)).copied() {
            self.advance(endpoint);
        }
        Ok(())
    }

    /// Takes a peer's acceptance of an offer. The message may be one that this side can't use, for a reason.
    pub(crate) fn on_accept(
        &mut self,
        from: Counterpart,
        endpoint: EndpointId,
        set_up: Result<M::PeerSetUp, BreakReason>,
    ) -> Result<(), Malformed> {
        self.assert_settled();
        let Some(local) = self.endpoints.get_mut(&endpoint) else { return Ok(()) };
        let Some(link) = self.links.get_mut(&from.link) else { return Ok(()) };
        if !matches!(local.stage, PairingStage::Offered(link) if link == from.link) {
            return Err(Malformed("it accepts what was not offered"));
        }
        if link.by_theirs.contains_key(&from.theirs) {
            return Err(Malformed("one of its endpoints accepts two"));
        }
        match set_up {
            Ok(set_up) => {
                link.by_theirs.insert(from.theirs, endpoint);
                local.stage = PairingStage::Matched(from, set_up);
                let confirm = PairingMessage::Confirm { mine: endpoint, yours: from.theirs };
                self.effects.extend([PairingEffect::Send(from.link, confirm), PairingEffect::Matched(endpoint)]);
            }
            Err(reason) => self.break_both(endpoint, reason),
        }
        Ok(())
    }

    /// Takes a peer's confirmation of an acceptance.
    pub(crate) fn on_confirm(&mut self, from: Counterpart, endpoint: EndpointId) -> Result<(), Malformed> {
        self.assert_settled();
        let Some(local) = self.endpoints.get_mut(&endpoint) else { return Ok(()) };
        match std::mem::replace(&mut local.stage, PairingStage::Waiting) {
            PairingStage::Accepted(accepted, set_up) if accepted == from => {
                local.stage = PairingStage::Matched(from, set_up);
                self.effects.push_back(PairingEffect::Matched(endpoint));
                Ok(())
            }
            before => {
                local.stage = before;
                Err(Malformed("it confirms what was not accepted"))
            }
        }
    }

    /// Takes note that a peer can't use the message of an endpoint that was offered.
    pub(crate) fn on_reject(&mut self, link: LinkId, endpoint: EndpointId, reason: BreakReason) {
        self.assert_settled();
        let local = self.endpoints.get(&endpoint);
        if local.is_some_and(|local| matches!(local.stage, PairingStage::Offered(on) if on == link)) {
            self.break_local(endpoint, reason);
        }
    }

    /// Takes note that the peer's endpoint is no more.
    pub(crate) fn on_close(&mut self, from: Counterpart, reason: BreakReason) {
        self.assert_settled();
        let Some(link) = self.links.get_mut(&from.link) else { return };
        link.offers.retain(|offer| offer.theirs != from.theirs);
        let Some(endpoint) = link.by_theirs.remove(&from.theirs) else { return };
        if self.paired(endpoint).is_none() && reason == BreakReason::PeerClosed {
            self.wait_again(endpoint);
            self.advance(endpoint);
        } else {
            self.break_local(endpoint, reason);
        }
    }

    /// Takes note that a matched endpoint has everything that it needs.
    /// Returns its link, and the message of its counterpart.
    pub(crate) fn complete(&mut self, endpoint: EndpointId) -> Option<(LinkId, M::PeerSetUp)> {
        let local = self.endpoints.get_mut(&endpoint)?;
        match std::mem::replace(&mut local.stage, PairingStage::Waiting) {
            PairingStage::Matched(counterpart, set_up) => {
                local.stage = PairingStage::Paired(counterpart);
                Some((counterpart.link, set_up))
            }
            before => {
                local.stage = before;
                None
            }
        }
    }

    /// Checks that the owner has carried out the effects of its last call.
    fn assert_settled(&self) {
        debug_assert!(self.effects.is_empty(), "the effects of the last call are to be carried out before another one");
    }

    fn select(&self, is_wanted: impl Fn(&LocalEndpoint<M>) -> bool) -> Vec<EndpointId> {
        self.endpoints.iter().filter(|(_, local)| is_wanted(local)).map(|(endpoint, _)| *endpoint).collect()
    }

    fn waiting_for(&self, peer: NodeId) -> Vec<EndpointId> {
        self.select(|local| local.peer == peer && matches!(local.stage, PairingStage::Waiting))
    }

    /// Takes an endpoint that waits as far as it can come now.
    fn advance(&mut self, endpoint: EndpointId) {
        let Some(local) = self.endpoints.get_mut(&endpoint) else { return };
        let Some(id) = self.by_node.get(&local.peer).copied() else { return };
        let (PairingStage::Waiting, Some(link)) = (&local.stage, self.links.get_mut(&id)) else { return };
        let tag = local.tag;
        let message = if !link.accepts {
            local.stage = PairingStage::Offered(id);
            PairingMessage::Offer { mine: endpoint, tag, set_up: local.set_up.clone() }
        } else if let Some(at) = link.offers.iter().position(|offer| offer.tag == tag) {
            let Offer { theirs, set_up, .. } = link.offers.remove(at);
            link.by_theirs.insert(theirs, endpoint);
            local.stage = PairingStage::Accepted(Counterpart { link: id, theirs }, set_up);
            PairingMessage::Accept { mine: endpoint, yours: theirs, set_up: local.set_up.clone() }
        } else {
            return;
        };
        self.effects.push_back(PairingEffect::Send(id, message));
    }

    /// Has an endpoint wait for another counterpart.
    fn wait_again(&mut self, endpoint: EndpointId) {
        let Some(local) = self.endpoints.get_mut(&endpoint) else { return };
        if let PairingStage::Matched(..) = std::mem::replace(&mut local.stage, PairingStage::Waiting) {
            self.effects.push_back(PairingEffect::Unmatched(endpoint));
        }
    }

    fn remove(&mut self, endpoint: EndpointId) -> Option<LocalEndpoint<M>> {
        let local = self.endpoints.remove(&endpoint)?;
        self.by_tag.remove(&(local.peer, local.tag));
        if let Some(Counterpart { link, theirs }) = local.stage.counterpart()
            && let Some(link) = self.links.get_mut(&link)
        {
            link.by_theirs.remove(&theirs);
        }
        if let PairingStage::Matched(..) = local.stage {
            self.effects.push_back(PairingEffect::Unmatched(endpoint));
        }
        Some(local)
    }

    fn remove_and_tell(&mut self, endpoint: EndpointId, reason: BreakReason) {
        if let Some(local) = self.remove(endpoint)
            && let Some(link) = local.stage.link()
        {
            self.effects.push_back(PairingEffect::Send(link, PairingMessage::Close { mine: endpoint, reason }));
        }
    }

    /// Ends an endpoint of which the peer knows nothing, or has said that it is over.
    fn break_local(&mut self, endpoint: EndpointId, reason: BreakReason) {
        if let Some(LocalEndpoint { tag, .. }) = self.remove(endpoint) {
            self.effects.push_back(PairingEffect::Broken { endpoint, tag, reason });
        }
    }
}

#[cfg(test)]
#[path = "pairing_tests.rs"]
mod tests;
