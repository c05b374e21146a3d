//! Nodes that this one can't work with, and the reasons.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::NodeId;

/// The time for which a node that was refused is remembered, for endpoints that are connected to it a little later.
const MEMORY: Duration = Duration::from_secs(1);

/// The number of refused nodes that are remembered.
const MAX_REFUSALS: usize = 64;

/// The nodes that were refused a moment ago.
#[derive(Default)]
pub(crate) struct Refusals(BTreeMap<NodeId, (Instant, String)>);

impl Refusals {
    pub(crate) fn note(&mut self, node: NodeId, sentence: &str, now: Instant) {
        self.0.retain(|_, (at, _)| is_recent(*at, now));
        if self.0.len() < MAX_REFUSALS {
            self.0.insert(node, (now, sentence.to_owned()));
        }
    }

    pub(crate) fn forget(&mut self, node: NodeId) {
        self.0.remove(&node);
    }

    /// The reason for which a node was refused a moment ago, if it was.
    pub(crate) fn get(&self, node: NodeId, now: Instant) -> Option<String> {
        self.0.get(&node).filter(|(at, _)| is_recent(*at, now)).map(|(_, sentence)| sentence.clone())
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < MEMORY
}

/// The reason for which a node of the version and cluster `own` can't work with another one, which the sentence calls
/// `peer`. The other one's cluster is not known if its version is another.
pub(crate) fn mismatch(own: (u32, &str), peer: &str, version: u32, cluster: Option<&str>) -> Option<String> {
    let (own_version, own_cluster) = own;
    if version != own_version {
        return Some(format!(
            "{peer} speaks protocol {version}, this node {own_version}: run the same release of Squall on both"
        ));
    }
    let cluster = cluster.filter(|cluster| *cluster != own_cluster)?;
    Some(format!(
        "{peer} belongs to cluster {cluster:?}, this node to {own_cluster:?}: give both the same cluster name"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_remembered_for_a_moment() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        refusals.note(NodeId(1), "too old", start);
        refusals.note(NodeId(2), "too new", start);
        refusals.forget(NodeId(2));
        assert_eq!(refusals.get(NodeId(1), start + MEMORY / 2).as_deref(), Some("too old"));
        assert_eq!(refusals.get(NodeId(1), start + MEMORY), None);
        assert_eq!(refusals.get(NodeId(2), start), None);
    }

    #[test]
    fn refusals_take_bounded_memory_and_make_room_as_they_age() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        for node in 0..=MAX_REFUSALS as u32 {
            refusals.note(NodeId(node), "no", start);
        }
        assert_eq!(refusals.get(NodeId(MAX_REFUSALS as u32), start), None);
        refusals.note(NodeId(1000), "no", start + MEMORY);
        assert_eq!(refusals.get(NodeId(1000), start + MEMORY).as_deref(), Some("no"));
    }

    #[test]
    fn nodes_of_other_versions_and_clusters_are_told_apart() {
        let of = |version, cluster| mismatch((3, "here"), "node 7", version, cluster);
        assert_eq!(of(3, Some("here")), None);
        assert!(of(2, None).unwrap().contains("node 7 speaks protocol 2, this node 3"));
        assert!(of(3, Some("there")).unwrap().contains("cluster \"there\", this node to \"here\""));
    }
}
