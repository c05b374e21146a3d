//! The addresses where nodes, operators and clients are, as far as this node knows: their connections have room of
//! their own before they have shown a certificate.
//!
//! An address counts alone, and not with its network: a known one is known exactly, and its neighbours may be anyone's.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, SocketAddr},
};

use crate::{
    NodeId,
    share::{CallerNetwork, Holder},
};

/// The number of addresses from which certificates of nodes and operators came that are remembered, and that of those
/// from which certificates of clients came.
const MAX_PROVEN: usize = 256;

/// The addresses of peers, and those from which an owner of a certificate has shown it.
#[derive(Default)]
pub(super) struct KnownAddresses {
    peers: BTreeMap<NodeId, Vec<IpAddr>>,
    trusted: Recent,
    clients: Recent,
}

/// The last addresses that were noted, the latest last.
#[derive(Default)]
struct Recent(VecDeque<IpAddr>);

impl Recent {
    fn note(&mut self, address: IpAddr) {
        self.0.retain(|other| *other != address);
        self.0.push_back(address);
        if self.0.len() > MAX_PROVEN {
            self.0.pop_front();
        }
    }
}

impl KnownAddresses {
    /// Sets the addresses of a peer, as they were given. Host names stand for nothing here.
    pub(super) fn set_peer(&mut self, node: NodeId, texts: &[String]) {
        let addresses = texts.iter().filter_map(|text| text.parse::<SocketAddr>().ok());
        self.peers.insert(node, addresses.map(|address| address.ip().to_canonical()).collect());
    }

    /// Sets the addresses that a peer's names stand for. A look-up that found none has failed, and changes nothing.
    pub(super) fn resolved(&mut self, node: NodeId, addresses: &[SocketAddr]) {
        if !addresses.is_empty() {
            self.peers.insert(node, addresses.iter().map(|address| address.ip().to_canonical()).collect());
        }
    }

    /// Notes that the owner of a certificate has shown it.
    pub(super) fn prove(&mut self, from: IpAddr, owner: &Holder) {
        match owner {
            Holder::Trusted => self.trusted.note(from.to_canonical()),
            Holder::Client(_) => self.clients.note(from.to_canonical()),
            Holder::Known(_) | Holder::KnownClient(_) | Holder::Network(_) => {}
        }
    }

    /// The holder of a connection from an address whose other end has shown no certificate.
    pub(super) fn holder(&self, from: IpAddr) -> Holder {
        let address = from.to_canonical();
        if self.trusted.0.contains(&address) || self.peers.values().any(|peer| peer.contains(&address)) {
            Holder::Known(address)
        } else if self.clients.0.contains(&address) {
            Holder::KnownClient(address)
        } else {
            Holder::Network(CallerNetwork::of(address))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(known: &KnownAddresses, text: &str) -> Holder {
        known.holder(text.parse().unwrap())
    }

    fn is_known(known: &KnownAddresses, text: &str) -> bool {
        holder(known, text) == Holder::Known(text.parse::<IpAddr>().unwrap().to_canonical())
    }

    #[test]
    fn addresses_of_peers_and_of_certificates_are_known_and_their_neighbours_are_not() {
        let mut known = KnownAddresses::default();
        known.set_peer(NodeId(1), &["192.0.2.1:7700".to_owned(), "host:7700".to_owned()]);
        assert!(is_known(&known, "::ffff:192.0.2.1") && !is_known(&known, "192.0.2.2"));
        known.resolved(NodeId(1), &["192.0.2.2:7700".parse().unwrap()]);
        assert!(is_known(&known, "192.0.2.2") && !is_known(&known, "192.0.2.1"), "it has moved");
        known.prove("2001:db8::1".parse().unwrap(), &Holder::Trusted);
        assert!(is_known(&known, "2001:db8::1") && !is_known(&known, "2001:db8::2"));
        for host in 0..MAX_PROVEN as u32 {
            known.prove(IpAddr::V4(host.into()), &Holder::Trusted);
        }
        assert!(!is_known(&known, "2001:db8::1"), "the oldest is forgotten");
    }

    #[test]
    fn an_address_that_is_noted_again_is_not_the_oldest() {
        let mut known = KnownAddresses::default();
        let numbered = |host: usize| IpAddr::V4((host as u32).into());
        for host in (0..MAX_PROVEN).chain([0, MAX_PROVEN]) {
            known.prove(numbered(host), &Holder::Trusted);
        }
        assert_eq!(known.holder(numbered(0)), Holder::Known(numbered(0)));
        assert_ne!(known.holder(numbered(1)), Holder::Known(numbered(1)));
    }

    #[test]
    fn a_look_up_that_fails_changes_nothing_and_another_address_of_the_peer_does() {
        let mut known = KnownAddresses::default();
        known.resolved(NodeId(1), &["192.0.2.2:7700".parse().unwrap()]);
        known.resolved(NodeId(1), &[]);
        assert!(is_known(&known, "192.0.2.2"));
        known.set_peer(NodeId(1), &["host:7700".to_owned()]);
        assert!(!is_known(&known, "192.0.2.2"));
    }

    #[test]
    fn addresses_of_clients_are_known_as_theirs() {
        let mut known = KnownAddresses::default();
        let web: IpAddr = "192.0.2.7".parse().unwrap();
        known.prove(web, &Holder::Client("web".into()));
        assert_eq!(known.holder(web), Holder::KnownClient(web));
        assert_eq!(holder(&known, "192.0.2.8"), Holder::Network(CallerNetwork::of("192.0.2.8".parse().unwrap())));
        known.prove(web, &Holder::Trusted);
        assert_eq!(known.holder(web), Holder::Known(web));
    }
}
