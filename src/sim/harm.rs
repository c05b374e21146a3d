//! Members that do harm.

use std::time::Duration;

use squall_fabric::{NodeId, Time, hostile::Hostility};

use super::cluster::Cluster;

impl Cluster {
    /// Has a node do harm from now on, with pauses of at most `pause`, until its process ends.
    pub fn turn_hostile(&mut self, node: NodeId, hostility: Hostility, pause: Duration) {
        let seed = self.rng.u64(..);
        self.with_core(node, |core, _| core.fabric().turn(hostility, Time::ZERO, pause, seed));
    }
}
