//! The networks where nodes and operators are, as far as this node knows: their connections have room of their own
//! before they have shown a certificate.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, SocketAddr},
};

use crate::{
    NodeId,
    share::{CallerNetwork, Holder},
};

/// The number of networks from which certificates of nodes and operators came that are remembered.
const MAX_PROVEN: usize = 256;

/// The networks of peers, and those from which a node or an operator has shown its certificate.
#[derive(Default)]
pub(super) struct KnownNetworks {
    peers: BTreeMap<NodeId, Vec<CallerNetwork>>,
    /// The latest last.
    proven: VecDeque<CallerNetwork>,
}

impl KnownNetworks {
    /// Sets the addresses of a peer, as they were given. Host names stand for nothing here.
    pub(super) fn set_peer(&mut self, node: NodeId, texts: &[String]) {
        let addresses = texts.iter().filter_map(|text| text.parse::<SocketAddr>().ok());
        self.resolved(node, &addresses.collect::<Vec<_>>());
    }

    /// Sets the addresses of a peer.
    pub(super) fn resolved(&mut self, node: NodeId, addresses: &[SocketAddr]) {
        self.peers.insert(node, addresses.iter().map(|address| CallerNetwork::of(address.ip())).collect());
    }

    /// Notes that a node or an operator has shown its certificate.
    pub(super) fn prove(&mut self, from: IpAddr) {
        let network = CallerNetwork::of(from);
        self.proven.retain(|other| *other != network);
        self.proven.push_back(network);
        if self.proven.len() > MAX_PROVEN {
            self.proven.pop_front();
        }
    }

    /// The holder of a connection from an address whose other end has shown no certificate.
    pub(super) fn holder(&self, from: IpAddr) -> Holder {
        let network = CallerNetwork::of(from);
        let is_known = self.proven.contains(&network) || self.peers.values().any(|peer| peer.contains(&network));
        if is_known { Holder::Known(network) } else { Holder::Network(network) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_peers_and_of_certificates_are_known() {
        let mut known = KnownNetworks::default();
        let is_known =
            |known: &KnownNetworks, text: &str| matches!(known.holder(text.parse().unwrap()), Holder::Known(_));
        known.set_peer(NodeId(1), &["192.0.2.1:7700".to_owned(), "host:7700".to_owned()]);
        assert!(is_known(&known, "::ffff:192.0.2.1") && !is_known(&known, "192.0.2.2"));
        known.resolved(NodeId(1), &["192.0.2.2:7700".parse().unwrap()]);
        assert!(is_known(&known, "192.0.2.2") && !is_known(&known, "192.0.2.1"), "it has moved");
        known.prove("2001:db8::1".parse().unwrap());
        assert!(is_known(&known, "2001:db8::2"));
        for host in 0..MAX_PROVEN as u32 {
            known.prove(IpAddr::V4(host.into()));
        }
        assert!(!is_known(&known, "2001:db8::2"), "the oldest is forgotten");
    }
}
