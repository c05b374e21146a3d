//! The acts of a node that wait: for its disk, or for its applications.

use squall_fabric::NodeId;
use squall_membership::ShardId;

use super::{cluster::Cluster, node::Act};

impl Cluster {
    /// Whether an act waits for what it asks of a log, or for a replica.
    pub(super) fn is_held_up(&self, id: NodeId, act: Act) -> bool {
        let (node, hangs) = (&self.nodes[&id], self.disks.hangs(id));
        match act {
            Act::Fetch(shard) | Act::Restore(shard) | Act::Cut(shard) | Act::Snapshot(shard)
                if hangs || node.hung.contains(&shard) || node.groups[&shard].is_full() =>
            {
                true
            }
            // One that can't wait in the midst of it would end the node.
            Act::Cut(shard) => node.groups[&shard].is_full_now(),
            Act::Gather => hangs || !node.hung.is_empty(),
            _ => false,
        }
    }

    /// Lets no call of a node's applications return while `hangs` is set. Its engine goes on.
    pub fn hang_application(&mut self, id: NodeId, hangs: bool) {
        let shards: Vec<ShardId> = self.nodes.get(&id).iter().flat_map(|node| node.groups.keys().copied()).collect();
        shards.into_iter().for_each(|shard| self.hang_shard(id, shard.0, hangs));
    }

    /// Lets no call of the application of one shard return while `hangs` is set.
    pub fn hang_shard(&mut self, id: NodeId, shard: u32, hangs: bool) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.hung.retain(|other| *other != ShardId(shard));
            node.hung.extend(hangs.then_some(ShardId(shard)));
            self.schedule_deliveries(id);
        }
    }
}
