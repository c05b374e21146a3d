//! The counters of a node's port.

use std::sync::atomic::{AtomicU64, Ordering};

/// The reason for which a connection was refused before it was known to be a node's, or a node's request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stranger {
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
    NoService,
}

/// Connections that were refused, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StrangerStats {
    /// Closed for one more, while [`max_strangers`](super::NetConfig::max_strangers) had not introduced themselves.
    pub too_many: u64,
    /// Did not introduce themselves within the [`handshake_timeout`](super::NetConfig::handshake_timeout).
    pub too_slow: u64,
    /// Left before they introduced themselves.
    pub left: u64,
    /// Sent something else than a node would.
    pub malformed: u64,
    /// Did not speak TLS as nodes do.
    pub tls: u64,
    /// Showed a certificate of another CA or node, or an old one, or none.
    pub certificate: u64,
    /// Sent a greeting that was made for another connection.
    pub replayed: u64,
    /// Belong to another cluster.
    pub other_cluster: u64,
    /// Speak another version of the protocol.
    pub other_version: u64,
    /// Looked for another node, or should be dialed instead of dialing.
    pub other_node: u64,
    /// Asked for a service that there is not, or an endpoint that is no more.
    pub no_service: u64,
}

impl StrangerStats {
    /// The sum of all.
    pub fn total(&self) -> u64 {
        self.too_many
            + self.too_slow
            + self.left
            + self.malformed
            + self.tls
            + self.certificate
            + self.replayed
            + self.other_cluster
            + self.other_version
            + self.other_node
            + self.no_service
    }
}

/// Counts since the port was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetStats {
    /// Connections that were refused.
    pub strangers: StrangerStats,
    /// Links that came about.
    pub links_up: u64,
    /// Links that ended.
    pub links_down: u64,
    /// Heartbeats that were sent.
    pub beats: u64,
    /// Connections that were dialed, whether they came about or not.
    pub dials: u64,
}

/// The counters, as threads share them.
#[derive(Default)]
pub(super) struct Counters {
    strangers: [AtomicU64; 11],
    pub(super) links_up: AtomicU64,
    pub(super) links_down: AtomicU64,
    pub(super) beats: AtomicU64,
    pub(super) dials: AtomicU64,
}

impl Counters {
    pub(super) fn stranger(&self, why: Stranger) {
        count(&self.strangers[why as usize]);
    }

    pub(super) fn read(&self) -> NetStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let stranger = |why: Stranger| of(&self.strangers[why as usize]);
        NetStats {
            strangers: StrangerStats {
                too_many: stranger(Stranger::TooMany),
                too_slow: stranger(Stranger::TooSlow),
                left: stranger(Stranger::Left),
                malformed: stranger(Stranger::Malformed),
                tls: stranger(Stranger::Tls),
                certificate: stranger(Stranger::Certificate),
                replayed: stranger(Stranger::Replayed),
                other_cluster: stranger(Stranger::OtherCluster),
                other_version: stranger(Stranger::OtherVersion),
                other_node: stranger(Stranger::OtherNode),
                no_service: stranger(Stranger::NoService),
            },
            links_up: of(&self.links_up),
            links_down: of(&self.links_down),
            beats: of(&self.beats),
            dials: of(&self.dials),
        }
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
