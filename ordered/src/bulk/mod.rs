//! Bulk messages: they travel first, without a turn.
//!
//! A message above the threshold goes by RDMC, in a group of its sender's, into memory that each member reserves for
//! that sender ([`Incoming`], [`reserve`]). Each member's row says how many messages of each sender it holds. Once all
//! members hold a message, its sender puts a record that names it into the ring, where the record takes its turn as any
//! other ([`Outgoing`]). Only later messages of that sender wait for it ([`queue`]). While they wait, the sender gives
//! up its turns as nulls.
//!
//! A sender's group connects when it sends its first bulk message, which the others read in its row. Most views see no
//! bulk message, and are connected sooner without these groups.
//!
//! So every member held each message within a trim, and the end of a view needs nothing besides. A message that has no
//! turn by then is delivered by no member.
//!
//! When a member fails, so do the groups. The members that see it suspect it, and the view ends; those that only hear
//! that a group has failed suspect nobody. If the view does not end all the same, someone has lied ([`hearsay`]).

mod hearsay;
mod incoming;
mod outgoing;
mod queue;
mod reserve;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crossbeam::queue::SegQueue;
use squall_fabric::{BreakReason, Completion, EndpointId, Fabric, NodeId, RegionKind, Time};
use squall_membership::{Epoch, ShardView};
use squall_rdmc::{Buffer, Event, GroupConfig, GroupId, Rdmc};
use squall_sst::{
    Counters, Table,
    ring::{self, Ring},
};

use self::{
    hearsay::HearsayWatch,
    incoming::{Breach, Incoming},
    outgoing::Outgoing,
    reserve::Reserve,
};
use crate::{BulkPath, CreateError, ShardConfig};

pub(crate) use queue::{BulkQueue, Queued};

/// The bulk messages of one sender that this member holds, in their order, for the deliverer to take.
pub(crate) type Arrivals = SegQueue<Arrived>;

/// A bulk message that has come whole.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) number: u64,
    pub(crate) message: Arc<Buffer>,
    pub(crate) len: usize,
}

impl Arrived {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.message[..self.len]
    }
}

/// One member's part in the bulk messages of a shard; by default, of one that has none.
#[derive(Debug, Default)]
pub(crate) struct ShardBulk {
    rdmc: Rdmc,
    /// The lanes, by rank among senders.
    lanes: Vec<SenderLane>,
    /// This node's lane, if it is a sender.
    own: Option<usize>,
    /// The lane that each endpoint belongs to, by rank among senders.
    endpoints: BTreeMap<EndpointId, usize>,
    /// Whether `endpoints` has grown since [`has_new_endpoints`](ShardBulk::has_new_endpoints) was last called.
    has_new_endpoints: bool,
    /// The number of lanes whose group has not begun to connect.
    unconnected: usize,
    /// The number of messages that some group has not released. Until then, its counters, which peers write, must be
    /// polled.
    active: u64,
    /// Whether something happened on an endpoint since the last transfer.
    woken: bool,
    /// Whether a message left the queue, so that there is more room, and [`free`](ShardBulk::free) has not said so yet.
    freed: bool,
    /// The time of the next look for memory that may go back to the system; `Time::MAX` if none does.
    tidy_at: Time,
    hearsay: HearsayWatch,
    events: Vec<(GroupId, Event)>,
}

/// The interval between looks for unused memory: memory goes back to the system after one to two of them.
const TIDY: Duration = Duration::from_secs(1);

/// One sender's part.
#[derive(Debug)]
struct SenderLane {
    sender: NodeId,
    /// The sender's place among the members.
    member: usize,
    group: LaneGroup,
    way: LaneDirection,
    /// Whether the group failed because a member did something on it here that it must not.
    breached: bool,
}

#[derive(Debug)]
enum LaneGroup {
    /// The sender is the only member, or this member could not take part.
    None,
    /// The group connects once the sender has a message for it.
    Later(Box<GroupConfig>),
    There(GroupId),
}

impl LaneGroup {
    fn id(&self) -> Option<GroupId> {
        match self {
            LaneGroup::There(id) => Some(*id),
            LaneGroup::None | LaneGroup::Later(_) => None,
        }
    }
}

#[derive(Debug)]
enum LaneDirection {
    Out(Outgoing),
    In(Incoming),
}

/// A [`ShardBulk`], with the parts of it that the submitter and the deliverer share.
pub(crate) struct BulkParts {
    pub(crate) bulk: ShardBulk,
    pub(crate) queue: Option<Arc<BulkQueue>>,
    /// The arrivals, by rank among senders.
    pub(crate) arrivals: Vec<Arc<Arrivals>>,
}

/// Reserves the memory for all senders. `own` is this node's ring, if it is a sender.
pub(crate) fn reserve(
    fabric: &mut impl Fabric,
    epoch: Epoch,
    members: &ShardView,
    config: &ShardConfig,
    own: Option<&Arc<Ring>>,
) -> Result<BulkParts, CreateError> {
    let node = fabric.node();
    let mut parts = BulkParts { bulk: ShardBulk::default(), queue: None, arrivals: Vec::new() };
    if config.bulk_reserve_bytes == 0 {
        parts.arrivals.resize_with(members.senders.len(), Arc::default);
        return Ok(parts);
    }
    parts.bulk.hearsay = HearsayWatch::new(config.bulk_patience);
    if config.bulk_path == BulkPath::Rdma {
        parts.bulk.tidy_at = Time::MAX;
    }
    for (rank, &sender) in members.senders.iter().enumerate() {
        let arrivals = Arc::new(Arrivals::new());
        let region = fabric.register(RegionKind::Bulk, config.reserve_bytes())?;
        let reserve = Reserve::new(region, config.bulk_block_bytes);
        let way = match own {
            Some(ring) if sender == node => {
                let queue = Arc::new(BulkQueue::new(reserve, config.ring_bytes));
                parts.queue = Some(Arc::clone(&queue));
                parts.bulk.own = Some(rank);
                LaneDirection::Out(Outgoing::new(queue, Arc::clone(ring), Arc::clone(&arrivals)))
            }
            _ => LaneDirection::In(Incoming::new(reserve, Arc::clone(&arrivals))),
        };
        let group = match members.members.len() {
            1 => LaneGroup::None,
            _ => {
                let others = members.members.iter().copied().filter(|&member| member != sender);
                let all = [sender].into_iter().chain(others).collect();
                let mut group = GroupConfig::new(group_id(members, rank, epoch), all);
                group.block_bytes = config.bulk_block_bytes;
                config.bulk_path.apply(&mut group);
                parts.bulk.unconnected += 1;
                LaneGroup::Later(Box::new(group))
            }
        };
        let member = members.rank_of(sender).expect("a sender is a member").index();
        parts.bulk.lanes.push(SenderLane { sender, member, group, way, breached: false });
        parts.arrivals.push(arrivals);
    }
    Ok(parts)
}

impl ShardBulk {
    /// Returns whether the shard has no bulk messages.
    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// The endpoints of all groups.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = EndpointId> {
        self.endpoints.keys().copied()
    }

    /// Returns whether endpoints were added since the last call.
    pub(crate) fn has_new_endpoints(&mut self) -> bool {
        std::mem::take(&mut self.has_new_endpoints)
    }

    /// Returns whether an endpoint belongs to one of the groups.
    pub(crate) fn owns(&self, endpoint: EndpointId) -> bool {
        self.endpoints.contains_key(&endpoint)
    }

    /// Takes note of a completion of one of the groups' endpoints. Returns the member that is lost by it, if any.
    pub(crate) fn on_completion(
        &mut self,
        fabric: &mut impl Fabric,
        completion: &Completion,
    ) -> Option<(NodeId, BreakReason)> {
        let lane = &mut self.lanes[*self.endpoints.get(&completion.endpoint()?)?];
        let group = lane.group.id();
        let has_ended = |rdmc: &mut Rdmc| group.and_then(|id| rdmc.group(id)).is_none_or(|group| group.is_ended());
        let had_ended = has_ended(&mut self.rdmc);
        // After the group's end, it ignores completions that were polled together with that end.
        if !had_ended || matches!(completion, Completion::Broken { .. }) {
            self.rdmc.on_completion(fabric, completion);
        }
        self.woken = true;
        match completion {
            // A peer that has heard of a failure closes the endpoint. If it has seen one, it reports that itself.
            Completion::Broken { endpoint, reason: BreakReason::PeerClosed, .. }
                if group.and_then(|id| self.rdmc.group(id)).is_some_and(|group| group.ends_early(*endpoint)) =>
            {
                None
            }
            Completion::Broken { peer, reason, .. } => Some((*peer, reason.clone())),
            _ => {
                lane.breached |= !had_ended && has_ended(&mut self.rdmc);
                None
            }
        }
    }

    /// Sends and receives, and says in the own row which messages this member holds.
    ///
    /// Returns whether anything changed, and adds to `faulty` the members that broke the protocol.
    pub(crate) fn step(
        &mut self,
        fabric: &mut impl Fabric,
        now: Time,
        table: &mut Table,
        held: Counters,
        faulty: &mut Vec<(NodeId, String)>,
    ) -> bool {
        let is_sending = self.outgoing().is_some_and(|out| out.is_engaged());
        let mut busy = self.unconnected > 0 && self.connect_wanted(fabric, table, held, is_sending, faulty);
        if !is_sending && !self.woken && self.active == 0 && self.hearsay.is_empty() && now < self.tidy_at {
            return busy;
        }
        if now >= self.tidy_at {
            self.tidy_at = now + TIDY;
            self.tidy(fabric);
        }
        if let Some(own) = self.own.filter(|_| is_sending) {
            let lane = &mut self.lanes[own];
            if let LaneDirection::Out(out) = &mut lane.way {
                let group = lane.group.id();
                let sent = out.send(group.and_then(|id| self.rdmc.group(id)));
                self.active += if group.is_some() { sent } else { 0 };
                table.set(held.nth(own), out.sent());
                busy |= sent > 0;
            }
        }
        if self.active > 0 || self.woken {
            self.woken = self.transfer(fabric, table, held, faulty);
            busy |= self.woken;
        }
        self.blame(now, faulty);
        if let (true, Some(own)) = (is_sending, self.own)
            && let Some(out) = self.outgoing()
        {
            let announced = out.announce(table.min(held.nth(own)));
            self.freed |= announced;
            busy |= announced;
        }
        busy
    }

    /// Starts to connect each group whose sender has a message, as the sender's row says. Returns whether there was
    /// any.
    fn connect_wanted(
        &mut self,
        fabric: &mut impl Fabric,
        table: &Table,
        held: Counters,
        is_sending: bool,
        faulty: &mut Vec<(NodeId, String)>,
    ) -> bool {
        let mut any = false;
        for rank in 0..self.lanes.len() {
            let SenderLane { member, group: LaneGroup::Later(_), .. } = self.lanes[rank] else { continue };
            let is_wanted = if self.own == Some(rank) { is_sending } else { table.get(member, held.nth(rank)) > 0 };
            if is_wanted {
                self.connect(fabric, rank, faulty);
                any = true;
            }
        }
        any
    }

    /// Starts to connect a lane's group.
    fn connect(&mut self, fabric: &mut impl Fabric, rank: usize, faulty: &mut Vec<(NodeId, String)>) {
        let group = &mut self.lanes[rank].group;
        let LaneGroup::Later(config) = std::mem::replace(group, LaneGroup::None) else { return };
        let id = config.id;
        self.unconnected -= 1;
        if let Err(error) = self.rdmc.create(fabric, *config) {
            faulty.push((fabric.node(), format!("it could not take part in bulk messages: {error}")));
            return;
        }
        *group = LaneGroup::There(id);
        let created = self.rdmc.group(id).expect("it was just created");
        self.endpoints.extend(created.endpoints().map(|endpoint| (endpoint, rank)));
        self.has_new_endpoints = true;
    }

    /// Gives memory back to the system that was not used for a while.
    fn tidy(&mut self, fabric: &mut impl Fabric) {
        let mut renew = |reserve: &mut Reserve| {
            if reserve.is_idle() {
                match fabric.register(RegionKind::Bulk, reserve.capacity()) {
                    Ok(region) => reserve.renew(region),
                    Err(error) => tracing::debug!(%error, "memory for bulk messages is kept"),
                }
            }
        };
        for lane in &mut self.lanes {
            match &mut lane.way {
                LaneDirection::Out(out) => out.queue().tidy(&mut renew),
                LaneDirection::In(incoming) => incoming.tidy(&mut renew),
            }
        }
    }

    fn transfer(
        &mut self,
        fabric: &mut impl Fabric,
        table: &mut Table,
        held: Counters,
        faulty: &mut Vec<(NodeId, String)>,
    ) -> bool {
        let mut events = std::mem::take(&mut self.events);
        let mut busy = self.rdmc.step(fabric, &mut events);
        for (id, event) in events.drain(..) {
            let Some(rank) = self.lanes.iter().position(|lane| lane.group.id() == Some(id)) else { continue };
            let lane = &mut self.lanes[rank];
            let breach = match (event, &mut lane.way) {
                (Event::Incoming { message, max_bytes, .. }, LaneDirection::In(incoming)) => {
                    self.active += 1;
                    incoming.ask(message, max_bytes)
                }
                (Event::Received { message, buffer, len }, LaneDirection::In(incoming)) => {
                    let received = incoming.received(message, buffer, len);
                    table.set(held.nth(rank), incoming.held());
                    received
                }
                (Event::Released { .. }, _) => {
                    self.active = self.active.saturating_sub(1);
                    Ok(())
                }
                (Event::Failed(failure), _) => {
                    tracing::debug!(sender = %lane.sender, reason = failure.reason, "no more of its bulk messages come");
                    // Any other failure was, or will be, reported by the member at which the group broke.
                    if let (true, Some(suspect)) = (lane.breached, failure.suspect) {
                        faulty.push((suspect, failure.reason));
                    }
                    Ok(())
                }
                (Event::Destroyed, _) => Err(Breach::Ended),
                (Event::Connected | Event::Incoming { .. } | Event::Received { .. }, _) => Ok(()),
            };
            if let Err(breach) = breach {
                faulty.push((lane.sender, breach.to_string()));
            }
        }
        self.events = events;
        for lane in &mut self.lanes {
            if let (LaneDirection::In(incoming), Some(group)) =
                (&mut lane.way, lane.group.id().and_then(|id| self.rdmc.group(id)))
                && incoming.is_asking()
            {
                // The next step posts the receives into this memory.
                busy |= incoming.accept(group) > 0;
            }
        }
        busy
    }

    /// Blames the members that told of failures which the view has outlived.
    fn blame(&mut self, now: Time, faulty: &mut Vec<(NodeId, String)>) {
        self.hearsay.look(now);
        for (rank, lane) in self.lanes.iter().enumerate() {
            let Some(hearsay) = lane.group.id().and_then(|id| self.rdmc.hearsay(id)) else { continue };
            if self.hearsay.is_due(rank, hearsay.turn, now) {
                let why = format!("it broke off the bulk messages of {}, and no member has failed", lane.sender);
                faulty.push((hearsay.teller, why));
            }
        }
    }

    /// Returns whether a bulk message that has a turn is its sender's next, and is here. If so, the one behind it is
    /// the next from then on.
    pub(crate) fn is_next(&mut self, sender: usize, message: ring::Bulk) -> bool {
        match self.lanes.get_mut(sender).map(|lane| &mut lane.way) {
            Some(LaneDirection::In(incoming)) => incoming.is_next(message),
            _ => false,
        }
    }

    /// Takes note that every member has delivered the first `delivered` bulk messages of this node. Returns whether
    /// there is more room than at the last call.
    pub(crate) fn free(&mut self, delivered: u64) -> bool {
        let freed = self.outgoing().is_some_and(|out| out.free(delivered));
        std::mem::take(&mut self.freed) || freed
    }

    /// Returns this node's messages that have no turn, oldest first. None while a thread still copies one.
    pub(crate) fn without_turn(&mut self) -> Option<impl Iterator<Item = &Queued>> {
        let out = self.outgoing().map(Outgoing::without_turn);
        // The outer None: no queue, so no messages. The inner None: the queue does not know yet.
        let known = out.map_or(Some(None), |known| known.map(Some))?;
        Some(known.into_iter().flatten())
    }

    /// Returns the bytes of a message of this node that has a turn, and that some member has not delivered.
    pub(crate) fn announced(&mut self, bulk: ring::Bulk) -> &[u8] {
        self.outgoing().expect("a record of it was in this node's ring").announced(bulk)
    }

    /// Makes the queue of this node refuse further messages.
    pub(crate) fn close(&mut self) {
        if let Some(out) = self.outgoing() {
            out.queue().close();
        }
    }

    /// Returns the number of this node's bulk messages that some member has not delivered, and the bytes of memory that
    /// they take.
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        let own = self.own.map(|own| &self.lanes[own].way);
        match own {
            Some(LaneDirection::Out(out)) => out.queue().in_flight(),
            _ => (0, 0),
        }
    }

    #[inline]
    fn outgoing(&mut self) -> Option<&mut Outgoing> {
        match &mut self.lanes.get_mut(self.own?)?.way {
            LaneDirection::Out(out) => Some(out),
            LaneDirection::In(_) => None,
        }
    }

    /// Closes the groups' endpoints.
    pub(crate) fn disconnect(&mut self, fabric: &mut impl Fabric) {
        for id in self.lanes.iter().filter_map(|lane| lane.group.id()) {
            if let Some(group) = self.rdmc.group(id) {
                group.disconnect(fabric);
            }
        }
    }
}

/// Returns a group's id: the same at all members, and different from every other group's of this view.
fn group_id(members: &ShardView, sender: usize, epoch: Epoch) -> GroupId {
    GroupId { group: members.shard.0 << 6 | sender as u32, instance: epoch.0 }
}

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;
