//! The configuration that all ranks of a group share.

use std::time::Duration;

use squall_fabric::{Fingerprint, GroupTag, NodeId};

use crate::{CreateError, layout::Layout};

/// A group's configuration. All ranks give the same.
#[derive(Clone, Debug)]
pub struct OnePipeConfig {
    /// The nodes, in rank order.
    pub nodes: Vec<NodeId>,
    /// The name under which the ranks meet, used by no other group of theirs.
    pub tag: GroupTag,
    /// The epoch that the first [settlement](crate::Settlement) ends.
    pub epoch: u64,
    /// The topology by which barriers get from all ranks to all others.
    pub topology: Topology,
    /// The size of the ring in which messages of one mode wait from one rank to another: a power of two, 1 KiB to 1
    /// GiB. A rank has four rings of this size for each rank, in registered memory. A message with its header of 16
    /// bytes takes a quarter of a ring at most.
    pub ring_bytes: usize,
    /// The bytes of messages that may wait at a sender for room at their receivers, in each mode.
    pub waiting_bytes: usize,
    /// The interval at which a rank tells its barrier while it is active.
    pub beacon_interval: Duration,
    /// The time after the last message for which a rank is active. Later it tells its barrier only if a rank waits for
    /// it.
    pub activity: Duration,
}

/// The way of barriers from all ranks to all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// A flat topology, in which every rank tells every other. For small groups.
    Flat,
    /// A hierarchy, in which the members of a rack tell its representative, which is its lowest rank that is alive.
    /// Representatives form a tree, in which minima go up, and the minimum of all comes down (the paper's §6.2.3).
    Hierarchy {
        /// The ranks of each rack; each rank is in one.
        racks: Vec<Vec<usize>>,
        /// The largest number of other representatives below one; at least 1.
        degree: usize,
    },
}

impl OnePipeConfig {
    /// A flat group, with rings of 256 KiB, 256 KiB of messages that wait, and a beacon every 10 µs until 1 ms after
    /// the last message.
    pub fn new(nodes: Vec<NodeId>, tag: GroupTag) -> OnePipeConfig {
        OnePipeConfig {
            nodes,
            tag,
            epoch: tag.epoch,
            topology: Topology::Flat,
            ring_bytes: 256 << 10,
            waiting_bytes: 256 << 10,
            beacon_interval: Duration::from_micros(10),
            activity: Duration::from_millis(1),
        }
    }

    /// Checks the configuration. Returns the rank of `node`.
    pub(crate) fn check(&self, node: NodeId) -> Result<usize, CreateError> {
        let ranks = self.nodes.len();
        let mut distinct = self.nodes.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let me = self.nodes.iter().position(|&rank| rank == node);
        let (Some(me), true) = (me, distinct.len() == ranks) else {
            return Err(CreateError::Nodes { node, nodes: ranks });
        };
        if !self.ring_bytes.is_power_of_two() || !(1 << 10..=1 << 30).contains(&self.ring_bytes) {
            return Err(CreateError::Ring { ring_bytes: self.ring_bytes });
        }
        if let Topology::Hierarchy { racks, degree } = &self.topology {
            let mut placed = racks.concat();
            placed.sort_unstable();
            if !placed.into_iter().eq(0..ranks) || *degree == 0 {
                return Err(CreateError::Racks { ranks, degree: *degree });
            }
        }
        Ok(me)
    }

    pub(crate) fn layout(&self) -> Layout {
        Layout { ring_bytes: self.ring_bytes }
    }

    /// A number that differs where two ranks were configured differently, or run different protocols.
    pub(crate) fn fingerprint(&self, protocol: &str) -> u64 {
        let mut print = Fingerprint::default();
        print.text(protocol).number(self.epoch).number(self.ring_bytes as u64).text(&format!("{:?}", self.topology));
        for node in &self.nodes {
            print.number(node.0.into());
        }
        print.value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> OnePipeConfig {
        let nodes = [7, 3, 5].map(NodeId).to_vec();
        OnePipeConfig::new(nodes, GroupTag { layer: 1, group: 2, epoch: 3 })
    }

    #[test]
    fn a_rank_is_its_place_among_the_nodes() {
        assert_eq!(config().check(NodeId(3)), Ok(1));
        assert_eq!(config().check(NodeId(4)), Err(CreateError::Nodes { node: NodeId(4), nodes: 3 }));
        let twice = OnePipeConfig { nodes: vec![NodeId(3), NodeId(3)], ..config() };
        assert_eq!(twice.check(NodeId(3)), Err(CreateError::Nodes { node: NodeId(3), nodes: 2 }));
    }

    #[test]
    fn rings_have_sizes_that_positions_wrap_around_in() {
        for ring_bytes in [0, 512, 1000, 1025, 2 << 30] {
            let config = OnePipeConfig { ring_bytes, ..config() };
            assert_eq!(config.check(NodeId(3)), Err(CreateError::Ring { ring_bytes }));
        }
    }

    #[test]
    fn every_rank_stands_in_one_rack() {
        let check = |racks: &[&[usize]], degree| {
            let racks = racks.iter().map(|rack| rack.to_vec()).collect();
            let topology = Topology::Hierarchy { racks, degree };
            OnePipeConfig { topology, ..config() }.check(NodeId(3))
        };
        assert_eq!(check(&[&[2, 0], &[1]], 1), Ok(1));
        for racks in [&[&[0, 1][..]][..], &[&[0, 1, 2], &[2]], &[&[0, 1, 3]], &[]] {
            assert_eq!(check(racks, 2), Err(CreateError::Racks { ranks: 3, degree: 2 }), "{racks:?}");
        }
        assert_eq!(check(&[&[0, 1, 2]], 0), Err(CreateError::Racks { ranks: 3, degree: 0 }));
    }

    #[test]
    fn whatever_ranks_must_agree_on_shows_in_the_fingerprint() {
        let print = |change: fn(&mut OnePipeConfig)| {
            let mut config = config();
            change(&mut config);
            config.fingerprint("a protocol")
        };
        let same = print(|_| {});
        assert_eq!(print(|config| config.waiting_bytes = 5), same);
        assert_ne!(print(|config| config.nodes.swap(0, 1)), same);
        assert_ne!(print(|config| config.ring_bytes = 1024), same);
        assert_ne!(print(|config| config.epoch += 1), same);
        let racks = vec![vec![0, 1, 2]];
        assert_ne!(config().fingerprint("another"), same);
        let hierarchy = OnePipeConfig { topology: Topology::Hierarchy { racks, degree: 1 }, ..config() };
        assert_ne!(hierarchy.fingerprint("a protocol"), same);
    }
}
