//! The application's say in where shards lie, by the names of groups.

use std::{fmt, sync::Arc};

use squall_fabric::NodeId;
use squall_membership::{Layout, LayoutPolicy, Member, Preferred, ShardId};

/// The nodes that shards prefer, as a [layout policy](crate::NodeBuilder::layout_policy) says for a view.
#[derive(Debug)]
pub struct Placements<'a> {
    layout: &'a Layout,
    members: &'a [Member],
    preferred: Preferred,
}

impl Placements<'_> {
    /// Says that these nodes hold a shard of a group before others do. Nodes that are no members of the view, and
    /// shards of other groups than the node has declared, are left out of account.
    ///
    /// The shard's number is that within the group, from 0 on. The order of the nodes means nothing. A second call for
    /// the same shard adds nodes.
    pub fn prefer(&mut self, group: &str, shard: u32, nodes: impl IntoIterator<Item = NodeId>) {
        let mut first = 0;
        for layout in &self.layout.groups {
            if layout.name == group && shard < layout.shards {
                let preferred = self.preferred.entry(ShardId(first + shard)).or_default();
                for node in nodes {
                    if !preferred.contains(&node) && self.members.iter().any(|member| member.node == node) {
                        preferred.push(node);
                    }
                }
                return;
            }
            first += layout.shards;
        }
        tracing::warn!(group, shard, "the layout policy names a shard that there is not");
    }
}

/// The policy of a node, before the layout is known.
#[derive(Clone, Default)]
pub(crate) struct NodePolicy(Option<Arc<PolicyFn>>);

type PolicyFn = dyn Fn(&[Member], &mut Placements<'_>) + Send + Sync;

impl fmt::Debug for NodePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NodePolicy").field(&self.0.is_some()).finish()
    }
}

impl NodePolicy {
    pub(crate) fn new(policy: impl Fn(&[Member], &mut Placements<'_>) + Send + Sync + 'static) -> NodePolicy {
        NodePolicy(Some(Arc::new(policy)))
    }

    /// The policy for this layout.
    pub(crate) fn of(&self, layout: &Layout) -> LayoutPolicy {
        let Some(policy) = self.0.clone() else { return LayoutPolicy::default() };
        let layout = layout.clone();
        LayoutPolicy::new(move |members| {
            let mut placements = Placements { layout: &layout, members, preferred: Preferred::new() };
            policy(members, &mut placements);
            placements.preferred
        })
    }
}
