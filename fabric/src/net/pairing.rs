//! The meeting of endpoints over links, and the data connections of those of the `tcp` plane.
//!
//! [`Pairing`](crate::control::Pairing) says which endpoints meet. The side that dialed a link accepts offers. In the
//! `tcp` plane it then dials the data connection, which it can't do before: so data never come for an endpoint that
//! does not wait for them.
//!
//! ```text
//! acceptor           dialer
//!   │── Offer(b) ──────▶│
//!   │◀── Accept(a, b) ──│
//!   │── Confirm(b, a) ─▶│         verbs: both are connected
//!   │◀═ Hello(a, b) ════│         tcp, on a connection of its own: b is connected
//!   │═══ Welcome ══════▶│         and so is a
//! ```

use std::{sync::Arc, time::Instant};

use super::{
    link::NetLink,
    plane::{Command, Connect, DataStream, Event, Paired, Plane, SET_UP_BYTES, TELL_BYTES},
    thread::Thread,
    wire::{LinkFrame, Nonce},
};
use crate::{
    BreakReason, EndpointId, GroupTag, NodeId,
    control::{Counterpart, LinkId, Medium, PairingEffect, PairingMessage},
    wire::Malformed,
};

/// The number of bytes that the set-ups of a peer's offers may take.
const MAX_OFFERED_BYTES: usize = 16 << 20;

/// The number of `Tell`s that may wait before a polling thread takes them.
const MAX_UNTAKEN: usize = 4096;

/// The number of `Tell`s for an endpoint that is not connected on this side yet.
const MAX_EARLY: usize = 16;

/// A network between hosts.
pub(super) struct NetMedium;

impl Medium for NetMedium {
    type Tag = (Plane, GroupTag);
    type SetUp = Arc<[u8]>;
    type PeerSetUp = PeerSetUp;
}

/// A set-up that has come.
pub(super) struct PeerSetUp {
    bytes: Vec<u8>,
    /// The bytes that the counterpart has told: its side of the connection stands a moment earlier.
    told: Vec<Vec<u8>>,
}

impl PeerSetUp {
    fn new(bytes: Vec<u8>) -> PeerSetUp {
        PeerSetUp { bytes, told: Vec::new() }
    }
}

impl From<PairingMessage<NetMedium>> for LinkFrame {
    fn from(message: PairingMessage<NetMedium>) -> LinkFrame {
        match message {
            PairingMessage::Offer { mine, tag: (plane, tag), set_up } => {
                LinkFrame::Offer { mine: mine.0, plane, tag, set_up: set_up.to_vec() }
            }
            PairingMessage::Accept { mine, yours, set_up } => {
                LinkFrame::Accept { mine: mine.0, yours, set_up: set_up.to_vec() }
            }
            PairingMessage::Confirm { mine, yours } => LinkFrame::Confirm { mine: mine.0, yours },
            PairingMessage::Close { mine, reason } => LinkFrame::Close { mine: mine.0, reason },
        }
    }
}

impl Thread {
    /// Carries out a command of a polling thread.
    pub(super) fn carry_out(&mut self, plane: Plane, command: Command) {
        match command {
            Command::Connect(connect) => self.connect(plane, connect),
            Command::Tell { endpoint, bytes } => {
                let Some(Counterpart { link, theirs }) = self.pairing.paired(endpoint) else { return };
                if bytes.len() > TELL_BYTES {
                    debug_assert!(false, "{} bytes are more than can be told", bytes.len());
                } else if let Some(link) = self.links.get_mut(&link) {
                    link.send(&LinkFrame::Tell { yours: theirs, bytes });
                }
            }
            Command::Close { endpoint, reason } => self.pairing.close(endpoint, reason),
        }
        self.settle();
    }

    fn connect(&mut self, plane: Plane, connect: Connect) {
        let Connect { endpoint, peer, tag, set_up } = connect;
        let len = set_up.len();
        let reason = if peer == self.config.node {
            BreakReason::Refused(format!("{peer} is this node: an endpoint leads to another"))
        } else if len > SET_UP_BYTES {
            BreakReason::Failed(format!("a set-up of {len} bytes is too long: expose fewer regions"))
        } else {
            return self.pairing.connect(endpoint, peer, (plane, tag), set_up.into(), Instant::now());
        };
        self.send_event(plane, Event::Broken { endpoint, reason });
    }

    /// Carries out the effects of the last call to `pairing`.
    pub(super) fn settle(&mut self) {
        while let Some(effect) = self.pairing.next_effect() {
            match effect {
                PairingEffect::Send(link, message) => {
                    if let Some(link) = self.links.get_mut(&link) {
                        link.send(&message.into());
                    }
                }
                PairingEffect::Matched(endpoint) => self.matched(endpoint),
                PairingEffect::Unmatched(endpoint) => self.stop_data_dial(endpoint),
                PairingEffect::Broken { endpoint, tag: (plane, _), reason } => {
                    self.send_event(plane, Event::Broken { endpoint, reason });
                }
            }
        }
    }

    /// Goes on with an endpoint whose counterpart is known.
    fn matched(&mut self, endpoint: EndpointId) {
        let Some((link, _)) = self.data_of(endpoint) else { return };
        match self.pairing.tag(endpoint) {
            Some((Plane::Tcp, _)) if link.dialed => self.dial_data(endpoint, Instant::now()),
            Some((Plane::Tcp, _)) => {}
            _ => self.pair(endpoint, None),
        }
    }

    /// Ends an endpoint on both sides.
    pub(super) fn break_both(&mut self, endpoint: EndpointId, reason: BreakReason) {
        self.pairing.break_both(endpoint, reason);
        self.settle();
    }

    /// The endpoint that waits for a data connection of that link with that counterpart.
    pub(super) fn awaits_data(&self, peer: NodeId, nonce: Nonce, theirs: u64, mine: u64) -> Option<EndpointId> {
        let endpoint = EndpointId(mine);
        let (link, expected) = self.data_of(endpoint)?;
        let is_meant = link.node == peer && link.nonce == nonce && !link.dialed && expected == theirs;
        is_meant.then_some(endpoint)
    }

    /// The link and the counterpart that a data connection for an endpoint has to name.
    pub(super) fn data_of(&self, endpoint: EndpointId) -> Option<(&NetLink, u64)> {
        let Counterpart { link, theirs } = self.pairing.matched(endpoint)?;
        Some((self.links.get(&link)?, theirs))
    }

    /// Reports an endpoint that has all that it needs.
    pub(super) fn pair(&mut self, endpoint: EndpointId, stream: Option<DataStream>) {
        let Some((plane, _)) = self.pairing.tag(endpoint) else { return };
        let Some((_, PeerSetUp { bytes: set_up, told })) = self.pairing.complete(endpoint) else {
            debug_assert!(false, "{endpoint:?} was not opening");
            return;
        };
        self.stop_data_dial(endpoint);
        self.send_event(plane, Event::Paired(Box::new(Paired { endpoint, set_up, stream })));
        for bytes in told {
            self.send_told(plane, endpoint, bytes);
        }
    }

    fn send_told(&mut self, plane: Plane, endpoint: EndpointId, bytes: Vec<u8>) {
        let _untaken = self.untaken.entry(plane).or_default().clone();
        self.send_event(plane, Event::Told { endpoint, bytes, _untaken });
    }

    /// Carries out a peer's frame.
    pub(super) fn on_frame(&mut self, id: LinkId, frame: LinkFrame) -> Result<(), Malformed> {
        let Some(link) = self.links.get_mut(&id) else { return Ok(()) };
        let (peer, dialed) = (link.node, link.dialed);
        let from = |theirs| Counterpart { link: id, theirs };
        match frame {
            LinkFrame::Beat => {}
            LinkFrame::Offer { mine, plane, tag, set_up } if dialed => {
                let bytes: usize = self.pairing.offered(id).map(|set_up| set_up.bytes.len()).sum();
                if bytes + set_up.len() > MAX_OFFERED_BYTES {
                    return Err(Malformed("it offers more endpoints than a node may"));
                }
                self.pairing.on_offer(from(mine), (plane, tag), PeerSetUp::new(set_up))?;
            }
            LinkFrame::Accept { mine, yours, set_up } if !dialed => {
                self.pairing.on_accept(from(mine), EndpointId(yours), Ok(PeerSetUp::new(set_up)))?;
            }
            LinkFrame::Confirm { mine, yours } if dialed => self.pairing.on_confirm(from(mine), EndpointId(yours))?,
            LinkFrame::Tell { yours, bytes } => self.on_tell(id, EndpointId(yours), bytes)?,
            LinkFrame::Close { mine, reason } => self.pairing.on_close(from(mine), reason),
            LinkFrame::Goodbye => self.link_down(id, &BreakReason::PeerClosed),
            LinkFrame::GivenUp => {
                tracing::warn!(%peer, "it has given this node up");
                self.link_down(id, &BreakReason::GivenUp);
            }
            _ => return Err(Malformed("it is none that this side expects")),
        }
        self.settle();
        Ok(())
    }

    fn on_tell(&mut self, id: LinkId, endpoint: EndpointId, bytes: Vec<u8>) -> Result<(), Malformed> {
        let Some((plane, _)) = self.pairing.tag(endpoint) else { return Ok(()) };
        let is_here = |counterpart: Option<Counterpart>| counterpart.is_some_and(|counterpart| counterpart.link == id);
        if is_here(self.pairing.paired(endpoint)) {
            if self.untaken.get(&plane).is_some_and(|untaken| untaken.count() >= MAX_UNTAKEN) {
                return Err(Malformed("it tells more than is taken"));
            }
            self.send_told(plane, endpoint, bytes);
            return Ok(());
        }
        if is_here(self.pairing.matched(endpoint))
            && let Some(PeerSetUp { told, .. }) = self.pairing.matched_set_up(endpoint)
            && told.len() < MAX_EARLY
        {
            told.push(bytes);
            return Ok(());
        }
        Err(Malformed("it tells an endpoint that it is not connected with"))
    }
}
