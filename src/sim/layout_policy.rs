//! The application's say in where the shards of a simulated cluster lie.

use squall_membership::Member;

use super::cluster::Cluster;
use crate::node::placements::{NodePolicy, Placements};

impl Cluster {
    /// Sets the application's say in where shards lie, as
    /// [`NodeBuilder::layout_policy`](crate::NodeBuilder::layout_policy) does, for nodes that start from now on.
    pub fn layout_policy(&mut self, policy: impl Fn(&[Member], &mut Placements<'_>) + Send + Sync + 'static) {
        self.policy = NodePolicy::new(policy);
    }
}
