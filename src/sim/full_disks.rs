//! Disks without room.

use std::time::Duration;

use squall_fabric::NodeId;
use squall_membership::{Input, ShardId};

use super::{
    cluster::Cluster,
    node::{Home, SimNode},
};

/// The interval at which a log whose disk has no room looks for room.
pub(super) const FULL: Duration = Duration::from_millis(1);

impl Home {
    /// Whether what was appended to its log waits for room.
    pub(super) fn is_full(&self) -> bool {
        self.logging.as_ref().is_some_and(|logging| logging.log_writer.no_room().is_some())
    }

    /// Whether it is so once its log has tried to write all that was appended.
    pub(super) fn is_full_now(&self) -> bool {
        self.logging.iter().for_each(|logging| _ = logging.log_writer.run_at_once(|_| ()));
        self.is_full()
    }
}

impl SimNode {
    /// Reports what its logs have.
    pub(super) fn report_held(&mut self) {
        let held = self.groups.iter().filter_map(|(&shard, group)| Some((shard, group.control.held()?)));
        let held = Input::Held(held.collect());
        self.core.input(held, &mut Vec::new());
    }
}

impl Cluster {
    /// Reports what a node's logs have, as a thread of its own would.
    pub(super) fn gather(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        // Fetches begin anew afterwards.
        node.groups.values_mut().for_each(|group| group.transfer = None);
        let shards: Vec<ShardId> = node.groups.keys().copied().collect();
        shards.into_iter().for_each(|shard| self.let_deliver(id, shard));
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.gathers.take().is_some() {
            node.report_held();
        }
        self.schedule_deliveries(id);
        self.step_within(id, self.options.step_delay);
    }

    /// Lets a node's disk take only `more` bytes more for a shard; any number if None.
    pub fn limit_disk(&mut self, node: NodeId, shard: u32, more: Option<u64>) {
        if let Some(storage) = self.storage(node, shard) {
            storage.limit(more.map_or(u64::MAX, |more| storage.used() + more));
        }
    }

    /// Tells a node, as the thread that looks at the file system does, whether its storage is short of room.
    pub fn set_short_of_room(&mut self, node: NodeId, is_short: bool) {
        self.with_core(node, |core, effects| core.input(Input::ShortOfRoom(is_short), effects));
    }

    /// Whether what a node has appended to a shard's log waits for room on its disk.
    pub fn waits_for_room(&self, node: NodeId, shard: u32) -> bool {
        let node = self.nodes.get(&node).map(|node| &node.groups);
        node.and_then(|groups| groups.get(&ShardId(shard))).is_some_and(Home::is_full)
    }
}
