//! The shards of one view.

use std::collections::{BTreeMap, BTreeSet};

use squall_fabric::{BreakReason, Completion, EndpointId, Fabric, NodeId, Time};
use squall_membership::{
    EndReason, Progress, Rank, Seq, ShardId, ShardView, Trims, View, Waits, WaitsFor, WatchedMembers,
};
use squall_ordered::{Owed, Row, Shard, Undelivered};

use super::effect::CoreEffect;

/// This node's shards in one view.
#[derive(Debug, Default)]
pub(super) struct ViewShards {
    shards: Vec<ViewShard>,
    /// The members that broke a protocol, until the core takes them.
    pub(super) faulty: Vec<(NodeId, String)>,
    /// The endpoints of shards that have got more endpoints, until the core takes them.
    pub(super) connecting: Vec<(EndpointId, ShardId)>,
}

#[derive(Debug)]
struct ViewShard {
    shard: Shard,
    /// The reason for which its deliverer goes no further.
    stuck: Option<EndReason>,
    /// Whether this node holds its whole state: a durable shard's on its disk.
    complete: bool,
    /// Whether the others are told that, and that its disk has all of the views before.
    told: bool,
    /// Whether it is to deliver up to a trim.
    cleans_up: bool,
    /// The messages that it has handed out. It is not stepped any more: a message that it delivered from then on would
    /// be delivered twice.
    handed_out: Option<Vec<Undelivered>>,
    /// Whether these were taken from here.
    is_taken: bool,
}

/// The remainder of a shard whose view is over.
#[derive(Debug, Default)]
pub(super) struct ShardRemainder {
    /// The messages that it has not delivered, in order.
    pub(super) undelivered: Vec<Undelivered>,
    /// Whether it lacks the end of its view.
    pub(super) fell_short: bool,
    /// The end of the part of its view's order that it has received, if this node had the shard's whole state.
    pub(super) received: Option<Seq>,
}

impl ViewShards {
    /// Takes a shard of a new view. `complete` says whether this node holds its whole state.
    pub(super) fn add(&mut self, shard: Shard, complete: bool) {
        self.shards.push(ViewShard {
            shard,
            stuck: None,
            complete,
            told: false,
            cleans_up: false,
            handed_out: None,
            is_taken: false,
        });
    }

    /// Notes that this node holds the shard's whole state in memory. Returns whether the others are to be told now that
    /// it is complete: for a durable shard once its disk has that state, too.
    pub(super) fn complete(&mut self, shard: ShardId) -> bool {
        let entry = self.entry(shard).filter(|entry| entry.shard.is_kept());
        entry.is_some_and(|entry| {
            entry.complete = true;
            !std::mem::replace(&mut entry.told, true)
        })
    }

    pub(super) fn get(&self, shard: ShardId) -> Option<&Shard> {
        self.shards.iter().map(|entry| &entry.shard).find(|part| part.id() == shard)
    }

    /// The progress of a shard's members, as their rows say.
    pub(super) fn watched(&self, members: &ShardView) -> Option<WatchedMembers> {
        let part = self.get(members.shard)?;
        let rows = members.members.iter().enumerate().flat_map(|(rank, &node)| {
            let rank = Rank(rank as u32);
            let Owed { receipts, turns } = part.owed(rank);
            let messages = receipts.map(|at| Waits { waits_for: WaitsFor::Messages, at });
            let turns = turns.map(|at| Waits { waits_for: WaitsFor::Turns, at });
            [progress(part.row(rank)).waits(), messages, turns].map(|waits| (members.shard, node, waits))
        });
        let rows = rows.collect();
        Some(WatchedMembers { members: members.members.len(), rows })
    }

    /// The remaining work of this node's shards that have not delivered all that their view delivers.
    pub(super) fn unended(&self, view: &View, node: NodeId) -> WatchedMembers {
        let unended = self.shards.iter().map(|entry| &entry.shard).filter(|shard| !shard.is_ended());
        let row = |shard: &Shard| {
            let own = progress(shard.row(view.shard(shard.id())?.rank_of(node)?));
            // The others' rows no longer say how much it could deliver.
            Some((shard.id(), node, Progress { deliverable: u64::MAX, ..own }.waits()))
        };
        WatchedMembers { members: 1, rows: unended.filter_map(row).collect() }
    }

    fn entry(&mut self, shard: ShardId) -> Option<&mut ViewShard> {
        self.shards.iter_mut().find(|entry| entry.shard.id() == shard)
    }

    /// Steps all shards, reports what follows for their surroundings, and returns whether anything changed.
    pub(super) fn step<F: Fabric>(&mut self, fabric: &mut F, now: Time, out: &mut Vec<CoreEffect>) -> bool {
        let mut busy = false;
        for entry in self.shards.iter_mut().filter(|entry| entry.handed_out.is_none()) {
            let (id, stepped) = (entry.shard.id(), entry.shard.step(fabric, now));
            busy |= stepped.busy;
            if stepped.connecting {
                self.connecting.extend(entry.shard.endpoints().map(|endpoint| (endpoint, id)));
            }
            if stepped.deliver {
                out.push(CoreEffect::Deliver(id));
            }
            if stepped.freed {
                out.push(CoreEffect::Freed(id));
            }
            if stepped.freed_bulk {
                out.push(CoreEffect::FreedBulk(id));
            }
            self.faulty.extend(entry.shard.take_faulty());
        }
        busy
    }

    pub(super) fn on_completion<F: Fabric>(
        &mut self,
        fabric: &mut F,
        shard: ShardId,
        completion: &Completion,
    ) -> Option<(NodeId, BreakReason)> {
        self.entry(shard)?.shard.on_completion(fabric, completion)
    }

    /// Whether every shard's members are connected.
    pub(super) fn are_connected(&self) -> bool {
        self.shards.iter().all(|entry| entry.shard.is_complete())
    }

    /// Notes that a shard's deliverer goes no further.
    pub(super) fn stuck(&mut self, shard: ShardId, why: EndReason) {
        if let Some(entry) = self.entry(shard) {
            entry.stuck.get_or_insert(why);
        }
    }

    /// The reason for which some deliverer goes no further, if one does.
    pub(super) fn is_stuck(&self) -> Option<&EndReason> {
        self.shards.iter().find_map(|entry| entry.stuck.as_ref())
    }

    /// Wedges all shards. Returns for each its final count, and the members for which this node has vouched.
    pub(super) fn wedge(&mut self) -> Vec<(ShardId, [Seq; 2], Vec<NodeId>)> {
        let wedge = |entry: &mut ViewShard| {
            let count = entry.shard.wedge();
            (entry.shard.id(), [count, entry.shard.stable()], entry.shard.leased().collect())
        };
        self.shards.iter_mut().map(wedge).collect()
    }

    /// Lets delivery go up to the trims. A trim of a shard in `counted`, which took this node's final count into
    /// account, is no larger than that count. A shard without a trim has delivered all that its view delivers.
    ///
    /// Fails if a trim makes no sense here, and does nothing then.
    pub(super) fn clean_up(&mut self, trims: &Trims, counted: &BTreeSet<ShardId>) -> Result<(), String> {
        for shard in self.shards.iter().map(|entry| &entry.shard) {
            let trim = trims.get(&shard.id());
            trim.map_or(Ok(()), |&trim| shard.check_trim(trim, counted.contains(&shard.id())))?;
        }
        for entry in &mut self.shards {
            if let Some(&trim) = trims.get(&entry.shard.id()) {
                entry.cleans_up = true;
                entry.shard.clean_up(trim, counted.contains(&entry.shard.id()));
            }
        }
        Ok(())
    }

    /// Lets delivery go no further than it may already.
    pub(super) fn abandon(&mut self) {
        for entry in &mut self.shards {
            entry.shard.wedge();
            entry.shard.abandon();
        }
    }

    pub(super) fn cleaned_up(&self) -> Vec<ShardId> {
        self.shards.iter().filter(|entry| entry.cleans_up).map(|entry| entry.shard.id()).collect()
    }

    /// Whether all shards have delivered what their view delivers.
    pub(super) fn are_ended(&self) -> bool {
        self.shards.iter().all(|entry| entry.shard.is_ended())
    }

    /// Makes all shards refuse new messages.
    pub(super) fn close(&mut self) {
        self.shards.iter_mut().for_each(|entry| entry.shard.close());
    }

    /// The rest of all shards, except what was taken before. None while one delivers, or a thread is completing a
    /// message; the caller must ask again.
    pub(super) fn hand_out(&mut self) -> Option<BTreeMap<ShardId, ShardRemainder>> {
        self.let_go();
        self.shards.iter().all(|entry| entry.handed_out.is_some()).then(|| self.take())
    }

    /// The rest of the shards that have ended, except what was taken before.
    pub(super) fn hand_out_ended(&mut self) -> BTreeMap<ShardId, ShardRemainder> {
        self.let_go();
        self.take()
    }

    /// The shards whose rest was not taken.
    pub(super) fn not_taken(&self) -> impl Iterator<Item = ShardId> {
        self.shards.iter().filter(|entry| !entry.is_taken).map(|entry| entry.shard.id())
    }

    fn let_go(&mut self) {
        for entry in self.shards.iter_mut().filter(|entry| entry.handed_out.is_none()) {
            entry.shard.wedge();
            if entry.stuck.is_some() || entry.shard.is_ended() {
                entry.handed_out = entry.shard.undelivered();
            }
        }
    }

    fn take(&mut self) -> BTreeMap<ShardId, ShardRemainder> {
        let take = |entry: &mut ViewShard| {
            let undelivered = std::mem::take(entry.handed_out.as_mut().filter(|_| !entry.is_taken)?);
            entry.is_taken = true;
            let received = (entry.complete && entry.stuck.is_none()).then(|| entry.shard.wedge());
            Some((entry.shard.id(), ShardRemainder { undelivered, fell_short: entry.shard.is_short(), received }))
        };
        self.shards.iter_mut().filter_map(take).collect()
    }

    /// Closes all endpoints.
    pub(super) fn disconnect<F: Fabric>(&mut self, fabric: &mut F) {
        self.shards.iter_mut().for_each(|entry| entry.shard.disconnect(fabric));
    }
}

fn progress(row: Row) -> Progress {
    let Row { delivered, deliverable, logged, persisted, .. } = row;
    Progress { delivered, deliverable, logged, persisted }
}
