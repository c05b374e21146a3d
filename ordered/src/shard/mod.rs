//! The part of a shard that the node's own thread drives.

mod columns;
mod durable;
mod ending;
mod owed;
mod turns;

use std::{sync::Arc, time::Duration};

use squall_fabric::{
    BreakReason, Completion, EndpointId, Fabric, GroupTag, NodeId, Region, RegionKey, RegionKind, RegisterError,
    RemoteRegion, Time,
};
use squall_membership::{Epoch, Rank, Seq, ShardId, ShardView};
use squall_sst::{
    ColumnSet, Counter, Counters, Fingerprint, Layout, Mesh, MeshEvent, Table,
    ring::{self, Outbox, Ring},
};

use self::{
    columns::{Columns, OrderColumns},
    durable::Durable,
    turns::TakenTurns,
};
pub use self::{ending::Undelivered, owed::Owed};
use crate::{
    bulk::ShardBulk,
    config::{Mode, ShardConfig},
    order,
    progress::Progress,
    reads::Reads,
};

/// The layer's number in a [`GroupTag`].
const LAYER: u32 = 2;

/// The outcome of a [`Shard::step`], for the caller that drives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stepped {
    /// Whether anything changed, so that the next step may find more to do.
    pub busy: bool,
    /// Whether the [`Deliverer`](crate::Deliverer) may have more to do.
    pub deliver: bool,
    /// Whether the own ring has more room.
    pub freed: bool,
    /// Whether [`endpoints`](Shard::endpoints) has more than before.
    pub connecting: bool,
    /// Whether the own reserve for bulk messages has more room, or the queue of small messages behind them.
    pub freed_bulk: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShardPhase {
    Running,
    /// A shard that neither sends nor receives any more, and goes on delivering stable messages.
    Wedged,
    /// A shard that delivers up to this place of the order, and nothing beyond; `short` if the view delivers more
    /// elsewhere.
    CleaningUp {
        to: Seq,
        short: bool,
    },
    /// A shard that delivers the messages that were found to be stable so far, and nothing beyond.
    Abandoned,
}

/// One member's part in a shard, in one view.
#[derive(Debug)]
pub struct Shard {
    id: ShardId,
    mode: Mode,
    state: ShardPhase,
    mesh: Mesh,
    table: Table,
    columns: Columns,
    /// The index among the members of each sender, by rank among senders.
    senders: Vec<usize>,
    /// This node's part as a sender, if it is one.
    own: Option<Own>,
    /// The regions in which each member keeps its copies of this node's row and ring.
    remote: Vec<Option<RemoteRegions>>,
    /// The senders' rings, by rank among senders.
    rings: Vec<Region>,
    bulk: ShardBulk,
    /// The most turns that all senders together have in their rings.
    ring_turns: u64,
    /// The turns of each sender that have been taken, by rank among senders.
    turns: Vec<TakenTurns>,
    /// The members that broke the protocol, until [`take_faulty`](Shard::take_faulty) returns them.
    faulty: Vec<(NodeId, String)>,
    progress: Arc<Progress>,
    durable: Option<Durable>,
    reads: Reads,
    /// Whether this member has echoed a stamp of another, by member.
    leased: Vec<bool>,
    delivered: u64,
    /// The count of reads that were asked for, as of the last step.
    asked: u64,
}

#[derive(Debug)]
struct Own {
    rank: usize,
    outbox: Outbox,
}

#[derive(Clone, Copy, Debug)]
struct RemoteRegions {
    row: RegionKey,
    ring: Option<RegionKey>,
}

impl Shard {
    #[expect(clippy::too_many_arguments, reason = "called in one place, which has just made all of them")]
    pub(crate) fn connect(
        fabric: &mut impl Fabric,
        epoch: Epoch,
        members: &ShardView,
        me: Rank,
        config: &ShardConfig,
        rings: &[Region],
        own: Option<Arc<Ring>>,
        progress: Arc<Progress>,
    ) -> Result<Shard, RegisterError> {
        let senders = members.senders.len();
        let bulk_senders = if config.bulk_reserve_bytes > 0 { senders } else { 0 };
        let (columns, layout) = Columns::declare(config.mode, members.members.len(), senders, bulk_senders);
        let rows = members.members.len();
        let durable = columns.durable().map(|columns| Durable::new(columns, members));
        let hello = hello(&layout, members, config);
        let table = Table::register(fabric, layout, rows, me.index())?;
        let tag = GroupTag { layer: LAYER, group: members.shard.0, epoch: epoch.0 };
        let mesh = Mesh::connect(fabric, &members.members, me.index(), tag, &hello, |peer| {
            let ring = members.sender_rank_of(members.members[peer]).map(|s| rings[s.index()].clone());
            [Some(table.row(peer).clone()), ring].into_iter().flatten().collect()
        });
        let senders = members
            .senders
            .iter()
            .map(|&node| members.rank_of(node).expect("a sender is a member").index())
            .collect::<Vec<_>>();
        let own = own.map(|ring| Own {
            rank: senders.iter().position(|&member| member == me.index()).expect("a member with a ring is a sender"),
            outbox: Outbox::new(ring, rows),
        });
        Ok(Shard {
            id: members.shard,
            mode: config.mode,
            state: ShardPhase::Running,
            mesh,
            table,
            columns,
            senders,
            own,
            ring_turns: ring::max_records(config.ring_bytes) * rings.len() as u64,
            turns: rings.iter().map(TakenTurns::new).collect(),
            remote: vec![None; rows],
            rings: rings.to_vec(),
            bulk: ShardBulk::default(),
            faulty: Vec::new(),
            progress,
            durable,
            reads: Reads::new(if config.reads_alone { config.read_lease } else { Duration::ZERO }),
            leased: vec![false; rows],
            delivered: 0,
            asked: 0,
        })
    }

    /// Adds the shard's part for bulk messages, once.
    pub(crate) fn add_bulk(&mut self, bulk: ShardBulk) {
        self.bulk = bulk;
    }

    /// Returns the shard's id.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// Returns the endpoints whose completions belong to this shard. A [step](Stepped::connecting) may add some.
    pub fn endpoints(&self) -> impl Iterator<Item = EndpointId> {
        self.mesh.endpoints().chain(self.bulk.endpoints())
    }

    /// Returns whether all other members are connected, with memory that fits. The endpoints for bulk messages do not
    /// count: they are connected when a sender sends its first one.
    pub fn is_complete(&self) -> bool {
        let fit = |(peer, remote): (usize, &Option<RemoteRegions>)| peer == self.mesh.me() || remote.is_some();
        self.mesh.is_complete() && self.remote.iter().enumerate().all(fit)
    }

    /// Returns whether this member has on its disk the state that it was given, with all messages that it delivered
    /// before it had that state. Always true if the shard is not durable.
    pub fn is_kept(&self) -> bool {
        self.durable.is_none() || self.progress.versions.to_publish().is_some()
    }

    /// Takes note of a completion of one of this shard's endpoints. Returns a member that is lost, or that can't take
    /// part; the layer above decides what to do about it.
    pub fn on_completion(
        &mut self,
        fabric: &mut impl Fabric,
        completion: &Completion,
    ) -> Option<(NodeId, BreakReason)> {
        if completion.endpoint().is_some_and(|endpoint| self.bulk.owns(endpoint)) {
            return self.bulk.on_completion(fabric, completion);
        }
        match self.mesh.on_completion(fabric, completion)? {
            MeshEvent::Up(peer) => match self.remote_of(peer) {
                Some(remote) => {
                    self.remote[peer] = Some(remote);
                    None
                }
                None => {
                    let why = "the memory that it exposed is not that of this shard".into();
                    Some((self.mesh.node(peer), BreakReason::Refused(why)))
                }
            },
            MeshEvent::Down(peer, reason) => Some((self.mesh.node(peer), reason)),
            MeshEvent::Room(_) => None,
        }
    }

    /// Returns the regions that a peer exposed, if they are those that a member of this shard exposes to this node.
    fn remote_of(&self, peer: usize) -> Option<RemoteRegions> {
        let (_, remote) = self.mesh.link(peer)?;
        let row = remote.first().filter(|row| self.table.is_copy(row))?.key;
        let fits = |ring: &RemoteRegion, like: &Region| ring.kind == RegionKind::Polled && ring.bytes == like.len();
        match (&remote[1..], &self.own) {
            ([ring], Some(own)) if fits(ring, &self.rings[own.rank]) => {
                Some(RemoteRegions { row, ring: Some(ring.key) })
            }
            ([], None) => Some(RemoteRegions { row, ring: None }),
            _ => None,
        }
    }

    /// Handles arrivals, sends messages and counters, and finds out which messages may be delivered. `now` is this
    /// node's clock, read before this is called and after the last step.
    pub fn step(&mut self, fabric: &mut impl Fabric, now: Time) -> Stepped {
        let mut stepped = Stepped::default();
        self.table.refresh();
        self.take_turns();
        if self.state == ShardPhase::Running && !self.bulk.is_empty() {
            stepped.busy |= self.bulk.step(fabric, now, &mut self.table, self.columns.bulk, &mut self.faulty);
            stepped.connecting = self.bulk.has_new_endpoints();
        }
        match self.columns.order {
            OrderColumns::Ordered { received, delivered, stamp, echo, .. } => {
                self.step_ordered(now, received, delivered, stamp, echo, &mut stepped);
            }
            OrderColumns::Unordered { held, taken } => self.step_unordered(held, taken, &mut stepped),
        }
        if let Some(durable) = &mut self.durable {
            stepped.deliver |= durable.step(&mut self.table, &self.progress.versions);
        }
        if let Some(own) = &self.own {
            stepped.freed_bulk = self.bulk.free(own.outbox.freed_bulk());
        }
        stepped.busy |= self.table.take_changes() != ColumnSet::EMPTY;
        self.push(fabric);
        stepped
    }

    /// Finds new messages of this node, and gives up turns so that others need not wait for it.
    fn send(&mut self) {
        let senders = self.senders.len();
        let Some(rank) = self.own.as_ref().map(|own| own.rank) else { return };
        let due = match self.mode {
            Mode::Ordered | Mode::Durable => order::turns_due(senders, rank, |s| self.turns(s)),
            Mode::Unordered => 0,
        };
        // A sender that lies to this member alone would have it give up turns for which the others blame it.
        let due = due.min(self.progress.delivered(0) / senders as u64 + self.ring_turns + 2);
        let own = self.own.as_mut().expect("was just there");
        // A full ring holds messages that can be delivered without these turns, which makes room for them.
        own.outbox.fill(due);
        self.table.set(self.columns.sent, own.outbox.turns());
    }

    fn step_ordered(
        &mut self,
        now: Time,
        received: Counter,
        delivered: Counter,
        stamp: Counter,
        echo: Counters,
        stepped: &mut Stepped,
    ) {
        let me = self.table.me();
        let now_delivered = self.progress.delivered(0);
        if now_delivered > self.delivered {
            self.delivered = now_delivered;
            self.table.set(delivered, now_delivered);
        }
        // Loaded before `received` is noted, so that these reads came in before.
        let asked = self.progress.asked();
        stepped.busy |= asked != self.asked;
        let before = std::mem::replace(&mut self.asked, asked);
        if self.state == ShardPhase::Running {
            self.send();
            let prefix = order::prefix(self.senders.len(), |s| self.turns(s));
            self.table.set(received, prefix);
            self.progress.set_received(prefix);
            let mut echoed = None;
            for member in (0..self.table.rows()).filter(|&member| member != me) {
                let raised = self.table.get(member, stamp);
                self.leased[member] |= raised > 0;
                self.table.set(echo.nth(member), raised);
                let echo = self.table.get(member, echo.nth(me));
                echoed = Some(echoed.map_or(echo, |least: u64| least.min(echo)));
            }
            self.reads.echo(echoed);
            if let Some(raised) = self.reads.take(now, before, asked, self.progress.take_renewal(), prefix) {
                self.table.set(stamp, raised);
            }
            self.progress.set_lease(self.reads.lease_until(), self.reads.renew_at());
        }
        let limit = match self.state {
            ShardPhase::Running | ShardPhase::Wedged => self.table.min(received),
            ShardPhase::CleaningUp { to, .. } => to.0,
            ShardPhase::Abandoned => 0,
        };
        if limit > self.progress.limit(0) {
            self.progress.set_limit(0, limit);
            stepped.deliver = true;
        }
        // No member delivered anything beyond the trim, so the state at the trim answers every confirmed read.
        let cleaned_up = matches!(self.state, ShardPhase::CleaningUp { short: false, .. }) && self.is_ended();
        let reached = if cleaned_up { u64::MAX } else { self.delivered };
        if let Some(upto) = self.reads.answerable(reached) {
            self.progress.set_answerable(upto);
            stepped.deliver = true;
        }
        if let Some(own) = &mut self.own {
            let everywhere = self.table.min(delivered);
            stepped.freed = own.outbox.free(order::turns_within(self.senders.len(), own.rank, everywhere));
        }
    }

    fn step_unordered(&mut self, held: Counters, taken: Counters, stepped: &mut Stepped) {
        for sender in 0..self.senders.len() {
            let delivered = self.progress.delivered(sender);
            self.table.set(taken.nth(sender), delivered);
        }
        if self.state == ShardPhase::Running {
            self.send();
            for sender in 0..self.senders.len() {
                let turns = self.turns(sender);
                self.table.set(held.nth(sender), turns);
            }
        }
        for sender in (0..self.senders.len()).filter(|_| self.state != ShardPhase::Abandoned) {
            let own = self.own.as_ref().is_some_and(|own| own.rank == sender);
            let limit =
                if own { self.table.min(held.nth(sender)) } else { self.table.get(self.table.me(), held.nth(sender)) };
            if limit > self.progress.limit(sender) {
                self.progress.set_limit(sender, limit);
                stepped.deliver = true;
            }
        }
        if let Some(own) = &mut self.own {
            stepped.freed = own.outbox.free(self.table.min(taken.nth(own.rank)));
        }
    }

    /// Pushes to each member, first messages, then the counters that announce them.
    ///
    /// A member whose queue takes no more of the messages gets no counters either: they would announce messages that it
    /// lacks.
    fn push(&mut self, fabric: &mut impl Fabric) {
        let me = self.table.me();
        for (peer, remote) in self.remote.iter().enumerate().filter(|&(peer, _)| peer != me) {
            let Some(remote) = remote else { continue };
            if let (Some(own), Some(ring)) = (&mut self.own, remote.ring)
                && !own.outbox.push(fabric, &self.mesh, peer, ring)
            {
                continue;
            }
            if self.table.owes(peer) {
                self.table.push(fabric, &self.mesh, peer, remote.row);
            }
        }
    }

    /// Returns the members that may hold a lease by this member's echo. Once this member is wedged, the set no longer
    /// grows.
    pub fn leased(&self) -> impl Iterator<Item = NodeId> {
        self.leased.iter().enumerate().filter(|(_, leased)| **leased).map(|(member, _)| self.mesh.node(member))
    }

    /// Closes the shard's endpoints.
    pub fn disconnect(&mut self, fabric: &mut impl Fabric) {
        self.mesh.disconnect(fabric);
        self.bulk.disconnect(fabric);
    }

    /// Returns the number of bulk messages of this node that some member has not delivered, and the bytes of the
    /// reserve that they take.
    pub fn bulk_in_flight(&self) -> (usize, usize) {
        self.bulk.in_flight()
    }

    /// Returns the members that broke the protocol of bulk messages since the last call, each with a sentence about its
    /// breach.
    pub fn take_faulty(&mut self) -> Vec<(NodeId, String)> {
        std::mem::take(&mut self.faulty)
    }

    /// Returns a member's row, for status and traces.
    pub fn row(&self, member: Rank) -> Row {
        let row = member.index();
        let (received, delivered, deliverable) = match self.columns.order {
            OrderColumns::Ordered { received, delivered, .. } => {
                (self.table.get(row, received), self.table.get(row, delivered), self.table.min(received))
            }
            OrderColumns::Unordered { held, taken } => {
                // Saturates, since the counts come from a peer.
                let sum = |columns: Counters| {
                    (0..columns.len()).map(|s| self.table.get(row, columns.nth(s))).fold(0, u64::saturating_add)
                };
                let own = self.senders.iter().position(|&sender| sender == row);
                let waits =
                    own.map_or(0, |s| self.table.get(row, held.nth(s)).saturating_sub(self.table.min(held.nth(s))));
                (sum(held), sum(taken), sum(held).saturating_sub(waits))
            }
        };
        let get = |(persisted, logged)| (self.table.get(row, persisted), self.table.get(row, logged));
        let (persisted, logged) = self.columns.durable().map_or((0, 0), get);
        Row { sent: self.table.get(row, self.columns.sent), received, delivered, deliverable, logged, persisted }
    }
}

/// A member's progress, as its row says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The turns that it has used as a sender.
    pub sent: u64,
    /// The places of the order that it has received; in unordered mode, the turns of all senders together.
    pub received: u64,
    /// The places of the order that it has delivered; in unordered mode, the turns of all senders together.
    pub delivered: u64,
    /// The number of places that it could have delivered, as far as this node knows.
    pub deliverable: u64,
    /// Durable mode: the version up to which it has given the order to its log; 0 as long as it is not complete.
    pub logged: u64,
    /// Durable mode: the version up to which it has the order on disk; 0 as long as it is not complete.
    pub persisted: u64,
}

/// Returns the words that all members must agree on: 8 bytes each of the table's layout, and of the members, the
/// senders and the sizes.
fn hello(layout: &Layout, members: &ShardView, config: &ShardConfig) -> Vec<u8> {
    let mut rest = Fingerprint::default();
    rest.number(ring::FORMAT).number(config.ring_bytes as u64).number(config.read_lease.as_nanos() as u64);
    for bytes in [config.bulk_threshold, config.bulk_reserve_bytes, config.bulk_block_bytes] {
        rest.number(bytes as u64);
    }
    for nodes in [&members.members, &members.senders] {
        rest.number(nodes.len() as u64);
        for node in nodes {
            rest.number(u64::from(node.0));
        }
    }
    [layout.fingerprint(), rest.value()].iter().flat_map(|word| word.to_le_bytes()).collect()
}
