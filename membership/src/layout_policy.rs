//! The application's say in where shards lie.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use squall_fabric::NodeId;

use crate::{
    layout::Layout,
    view::{Member, Preferred},
};

/// A function of the application from the members of a view to the nodes that its shards prefer.
///
/// The member that proposes a view calls it, and the result stands in the view. So other members, and witnesses, need
/// not have the function, and it may differ between them.
#[derive(Clone, Default)]
pub struct LayoutPolicy(Option<Arc<PolicyFn>>);

type PolicyFn = dyn Fn(&[Member]) -> Preferred + Send + Sync;

impl fmt::Debug for LayoutPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LayoutPolicy").field(&self.0.is_some()).finish()
    }
}

impl LayoutPolicy {
    /// A policy that is this function of a view's members, in the order of their ranks. It must be quick, and depend on
    /// nothing else: it is called for each view that is proposed, and for some more than once.
    pub fn new(policy: impl Fn(&[Member]) -> Preferred + Send + Sync + 'static) -> LayoutPolicy {
        LayoutPolicy(Some(Arc::new(policy)))
    }

    /// The nodes that shards prefer in a view of these members. Where the function panics, or says what
    /// [can't be](Layout::check_preferred), none does, and the log says why.
    pub fn preferred(&self, layout: &Layout, members: &[Member]) -> Preferred {
        let Some(policy) = &self.0 else { return Preferred::new() };
        let preferred = catch_unwind(AssertUnwindSafe(|| policy(members))).map_err(|_| "it panicked".to_owned());
        let checked = preferred.and_then(|preferred| {
            layout.check_preferred(members, &preferred)?;
            Ok(preferred)
        });
        checked.unwrap_or_else(|why| {
            tracing::error!(why, "the layout policy is left out of account for the next view");
            Preferred::new()
        })
    }
}

impl Layout {
    /// Checks that shards can prefer these nodes: there are such shards, and members of the view, each once.
    pub fn check_preferred(&self, members: &[Member], preferred: &Preferred) -> Result<(), String> {
        let shards: u32 = self.groups.iter().map(|group| group.shards).sum();
        for (shard, nodes) in preferred {
            if shard.0 >= shards {
                return Err(format!("{shard} prefers nodes, and there are {shards} shards"));
            }
            let is_member = |node: &NodeId| members.iter().any(|member| member.node == *node);
            if let Some(stranger) = nodes.iter().find(|node| !is_member(node)) {
                return Err(format!("{shard} prefers {stranger}, which is no member"));
            }
            if let Some(twice) = (1..nodes.len()).find(|&at| nodes[..at].contains(&nodes[at])) {
                return Err(format!("{shard} prefers {} twice", nodes[twice]));
            }
        }
        Ok(())
    }
}
