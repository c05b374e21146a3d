//! The counters of a node's port.

use std::sync::Arc;

use super::{
    access::{Call, Denials},
    principal::Role,
};
use crate::sync::Lock;

/// The reason for which a connection was refused before it was known to be a node's, or a node's request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RefusalKind {
    TooMany,
    TooSlow,
    Left,
    Malformed,
    Tls,
    Certificate,
    Replayed,
    OtherCluster,
    OtherVersion,
    OtherNode,
    OtherUser,
    NoService,
    Denied,
    Share,
    Rate,
}

/// Connections that were refused, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusalStats {
    /// Connections closed for one more, while [`max_pending_peers`](super::NetConfig::max_pending_peers) of their kind
    /// had not introduced themselves.
    pub too_many: u64,
    /// Connections that did not introduce themselves within the
    /// [`handshake_timeout`](super::NetConfig::handshake_timeout).
    pub too_slow: u64,
    /// Connections that left before they introduced themselves.
    pub left: u64,
    /// Connections that sent something else than a node would.
    pub malformed: u64,
    /// Connections that did not speak TLS as nodes do.
    pub tls: u64,
    /// Connections that showed a certificate of another CA or node, or an old one, or none.
    pub certificate: u64,
    /// Connections that sent a greeting that was made for another connection.
    pub replayed: u64,
    /// Connections that belong to another cluster.
    pub other_cluster: u64,
    /// Connections that speak another version of the protocol.
    pub other_version: u64,
    /// Connections that looked for another node, or should be dialed instead of dialing.
    pub other_node: u64,
    /// Connections with processes of other users, or of users that the system does not tell, where there are no keys.
    pub other_user: u64,
    /// Connections that asked for a service that there is not, or an endpoint that is no more.
    pub no_service: u64,
    /// Connections whose certificates do not permit what they asked for.
    pub denied: u64,
    /// Streams of callers that had their share of a service's streams already, or of a service that had no room.
    pub over_share: u64,
    /// Connections whose network, or all strangers together, began more TLS handshakes than a node takes part in.
    pub over_rate: u64,
}

impl RefusalStats {
    /// The counts, each with its reason in words.
    pub fn by_reason(&self) -> [(&'static str, u64); 15] {
        [
            ("too many strangers", self.too_many),
            ("too slow", self.too_slow),
            ("left", self.left),
            ("malformed", self.malformed),
            ("no TLS", self.tls),
            ("certificate", self.certificate),
            ("replayed", self.replayed),
            ("another cluster", self.other_cluster),
            ("another version", self.other_version),
            ("another node", self.other_node),
            ("another user", self.other_user),
            ("no such service", self.no_service),
            ("not permitted", self.denied),
            ("over their share", self.over_share),
            ("too many handshakes", self.over_rate),
        ]
    }

    /// The sum of all.
    pub fn total(&self) -> u64 {
        self.by_reason().iter().map(|(_, count)| count).sum()
    }
}

/// Counts since the port was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetStats {
    /// Connections that were refused.
    pub refused: RefusalStats,
    /// Links that came about.
    pub links_up: u64,
    /// Links that ended.
    pub links_down: u64,
    /// Heartbeats that were sent.
    pub beats: u64,
    /// Connections that were dialed, whether they came about or not.
    pub dials: u64,
}

/// A view of a port's counts.
#[derive(Clone, derive_more::Debug)]
#[debug("PortMonitor")]
pub struct PortMonitor(pub(super) Arc<Counters>);

impl PortMonitor {
    /// The counts since the port was opened.
    pub fn stats(&self) -> NetStats {
        self.0.read()
    }

    /// The calls that were denied since then, by the caller's role.
    pub fn denied(&self) -> Vec<(Role, Call, u64)> {
        self.0.denials.read()
    }
}

/// The counts, as threads share them.
#[derive(Default)]
pub(super) struct Counters {
    stats: Lock<NetStats>,
    /// Calls that were denied, before or after the connection was taken.
    pub(super) denials: Arc<Denials>,
}

impl Counters {
    pub(super) fn count(&self, change: impl FnOnce(&mut NetStats)) {
        change(&mut self.stats.lock());
    }

    pub(super) fn refuse(&self, why: RefusalKind) {
        let refused = &mut self.stats.lock().refused;
        *match why {
            RefusalKind::TooMany => &mut refused.too_many,
            RefusalKind::TooSlow => &mut refused.too_slow,
            RefusalKind::Left => &mut refused.left,
            RefusalKind::Malformed => &mut refused.malformed,
            RefusalKind::Tls => &mut refused.tls,
            RefusalKind::Certificate => &mut refused.certificate,
            RefusalKind::Replayed => &mut refused.replayed,
            RefusalKind::OtherCluster => &mut refused.other_cluster,
            RefusalKind::OtherVersion => &mut refused.other_version,
            RefusalKind::OtherNode => &mut refused.other_node,
            RefusalKind::OtherUser => &mut refused.other_user,
            RefusalKind::NoService => &mut refused.no_service,
            RefusalKind::Denied => &mut refused.denied,
            RefusalKind::Share => &mut refused.over_share,
            RefusalKind::Rate => &mut refused.over_rate,
        } += 1;
    }

    pub(super) fn read(&self) -> NetStats {
        *self.stats.lock()
    }
}
