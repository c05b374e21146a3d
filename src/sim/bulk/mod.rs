//! Simulated clusters of nodes that multicast large messages: the real RDMC engine on more machines than are at hand.
//!
//! Memory is [phantom](squall_fabric::RegionKind::Phantom), so hundreds of nodes with gigabytes each fit. A node is one
//! thread, as a real one is. It looks at what has completed, and posts what follows from that
//! [one turn](BulkCluster::new) later.
//!
//! ```
//! use std::time::Duration;
//! use squall::{NodeId, sim::{SimConfig, bulk::{BulkCluster, BulkGroup}}};
//! use squall_rdmc::schedule::Algorithm;
//!
//! # fn main() -> Result<(), squall::sim::bulk::BulkError> {
//! // 64 nodes with 100 Gb/s, and software that takes a microsecond.
//! let net = SimConfig::ideal(12_500_000_000, Duration::from_micros(2));
//! let mut cluster = BulkCluster::new(64, net, Duration::from_micros(1), 42);
//! let group = cluster.create(BulkGroup {
//!     members: (0..64).map(NodeId).collect(),
//!     algorithm: Algorithm::BinomialPipeline,
//!     block_bytes: 1 << 20,
//!     windows: None,
//!     largest_bytes: 1 << 30,
//! })?;
//! cluster.settle()?;
//! cluster.send(group, 1 << 30)?;
//! let gigabyte = cluster.settle()?[0];
//! assert!(gigabyte.latency() < Duration::from_millis(100));
//! # Ok(())
//! # }
//! ```

#[cfg(test)]
mod tests;

use std::{
    cell::RefCell,
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, BinaryHeap},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use squall_fabric::{
    Completion, Fabric, NodeId, Time,
    sim::{SimConfig, SimFabric, SimNet, TraceEvent},
};
use squall_rdmc::{Buffer, Event, GroupConfig, GroupId, Rdmc, schedule::Algorithm};

/// The bound on the number of a member's first block, which is below it: in a pipeline of 2ˡ members, it is below l.
const MOST_STEPS_TO_FIRST: usize = 32;

/// A group of a [`BulkCluster`].
#[derive(Clone, Debug)]
pub struct BulkGroup {
    /// The members by rank: the first is the root, and the only sender.
    pub members: Vec<NodeId>,
    /// The way that messages take from the root to the others.
    pub algorithm: Algorithm,
    /// The size of a block, in bytes.
    pub block_bytes: usize,
    /// The bounds on how far a member may be ahead of the step that it is in. None leaves them to the engine.
    pub windows: Option<Windows>,
    /// The length of the largest message, in bytes. Receivers have memory for two of these at any time, and never let
    /// the root wait for it.
    pub largest_bytes: usize,
}

/// The fields of the same names of a [`GroupConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// The largest number of receives that a member has posted.
    pub receives_ahead: usize,
    /// The largest number of sends that a member has outstanding.
    pub sends_in_flight: usize,
    /// The number of steps by which a member's sends may be ahead.
    pub steps_ahead: u64,
}

/// A message that all members of its group have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multicast {
    /// Its group, as numbered by [`BulkCluster::create`].
    pub group: u32,
    /// Its number in the group, from 0.
    pub message: u64,
    /// Its length, in bytes.
    pub bytes: usize,
    /// The time at which the root sent it.
    pub sent: Time,
    /// The time at which the first receiver had all of it.
    pub first: Time,
    /// The time at which the last receiver had all of it.
    pub last: Time,
}

impl Multicast {
    /// The time from the send until the last receiver has it.
    pub fn latency(&self) -> Duration {
        self.last.since(self.sent)
    }

    /// The time from the first receiver to the last.
    pub fn skew(&self) -> Duration {
        self.last.since(self.first)
    }
}

/// All bytes that nodes sent and received, data and control.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The bytes that each node sent, by node.
    pub sent: Vec<u64>,
    /// The bytes that each node received, by node.
    pub received: Vec<u64>,
    /// The bytes from one rack to another; 0 where there are no racks.
    pub between_racks: u64,
}

/// Why a simulated multicast came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BulkError {
    /// The engine refused a group or a message.
    #[error("group {group} on {node}: {reason}")]
    Refused {
        /// The group's number.
        group: u32,
        /// The node on which it was refused.
        node: NodeId,
        /// The engine's reason.
        reason: String,
    },
    /// A group failed.
    #[error("group {group} failed on {node}: {reason}")]
    Failed {
        /// The group's number.
        group: u32,
        /// The node that noticed.
        node: NodeId,
        /// The engine's reason.
        reason: String,
    },
    /// A state in which nothing is left to happen, but messages are missing: an error in the engine, since nothing is
    /// lost here.
    #[error("nothing more happens, and {missing} of the messages sent are not everywhere")]
    Stuck {
        /// The number of messages that are missing somewhere.
        missing: usize,
    },
}

/// A cluster in virtual time, from one seed: the same calls with the same seed give the same times.
pub struct BulkCluster {
    net: SimNet,
    turn: Duration,
    nodes: Vec<BulkNode>,
    groups: Vec<GroupState>,
    agenda: BinaryHeap<Reverse<(Time, u64, usize)>>,
    /// Breaks ties of the agenda in the order of its entries.
    entries: u64,
    under_way: BTreeMap<(u32, u64), UnderWay>,
    complete: Vec<Multicast>,
    failed: Option<BulkError>,
    traffic: Option<Rc<RefCell<Traffic>>>,
    ready: Vec<NodeId>,
    completions: Vec<Completion>,
    events: Vec<(GroupId, Event)>,
}

struct BulkNode {
    fabric: SimFabric,
    rdmc: Rdmc,
    /// Whether a turn of it is on the agenda.
    scheduled: bool,
    /// The time until which its thread is busy, or does not run.
    free_at: Time,
}

struct GroupState {
    spec: BulkGroup,
    /// The memory that the root sends from, the same for all messages.
    source: Arc<Buffer>,
}

struct UnderWay {
    bytes: usize,
    sent: Time,
    first: Option<Time>,
    missing: usize,
}

impl BulkCluster {
    /// A cluster of `nodes` nodes with ids from 0, on the network of `net`. A node's thread takes `turn` from the
    /// moment that something completes to what it posts in answer.
    pub fn new(nodes: u32, net: SimConfig, turn: Duration, seed: u64) -> BulkCluster {
        let net = SimNet::new(net, seed);
        let node =
            |id| BulkNode { fabric: net.fabric(NodeId(id)), rdmc: Rdmc::new(), scheduled: false, free_at: Time::ZERO };
        let nodes = (0..nodes).map(node).collect();
        BulkCluster {
            net,
            turn,
            nodes,
            groups: Vec::new(),
            agenda: BinaryHeap::new(),
            entries: 0,
            under_way: BTreeMap::new(),
            complete: Vec::new(),
            failed: None,
            traffic: None,
            ready: Vec::new(),
            completions: Vec::new(),
            events: Vec::new(),
        }
    }

    /// The network: for slow links and the like.
    pub fn net(&self) -> &SimNet {
        &self.net
    }

    /// Virtual time.
    pub fn now(&self) -> Time {
        self.net.now()
    }

    /// Creates a group at all its members, and numbers it: 0, 1, .. The group is ready for messages once
    /// [`settle`](Self::settle) returns.
    ///
    /// # Panics
    ///
    /// If a member is not one of this cluster's nodes.
    pub fn create(&mut self, spec: BulkGroup) -> Result<u32, BulkError> {
        let group = self.groups.len() as u32;
        let refused = |node: NodeId, reason: String| BulkError::Refused { group, node, reason };
        for (rank, &id) in spec.members.iter().enumerate() {
            let node = &mut self.nodes[id.0 as usize];
            let mut config = GroupConfig::new(group_id(group), spec.members.clone());
            config.algorithm = spec.algorithm.clone();
            config.block_bytes = spec.block_bytes;
            config.phantom = true;
            if let Some(Windows { receives_ahead, sends_in_flight, steps_ahead }) = spec.windows {
                config.receives_ahead = receives_ahead;
                config.sends_in_flight = sends_in_flight;
                config.steps_ahead = steps_ahead;
            }
            node.rdmc.create(&mut node.fabric, config).map_err(|error| refused(id, error.to_string()))?;
            // The engine takes one for the message that comes next, and one for the message after it.
            for _ in 0..if rank == 0 { 0 } else { 2 } {
                provide(node, group, &spec).map_err(|reason| refused(id, reason))?;
            }
            self.wake(id.0 as usize);
        }
        let root = spec.members[0];
        let source = Buffer::phantom(&mut self.nodes[root.0 as usize].fabric, spec.largest_bytes);
        let source = Arc::new(source.map_err(|error| refused(root, error.to_string()))?);
        self.groups.push(GroupState { spec, source });
        Ok(group)
    }

    /// Sends a message of `bytes` bytes from the group's root, now. Returns its number in the group.
    pub fn send(&mut self, group: u32, bytes: usize) -> Result<u64, BulkError> {
        let GroupState { spec, source } = &self.groups[group as usize];
        let (root, receivers) = (spec.members[0], spec.members.len() - 1);
        let refused = |reason: String| BulkError::Refused { group, node: root, reason };
        let node = &mut self.nodes[root.0 as usize];
        let engine = node.rdmc.group(group_id(group)).ok_or_else(|| refused("it is gone".to_owned()))?;
        let message = engine.send(Arc::clone(source), bytes).map_err(|error| refused(error.to_string()))?;
        let sent = self.net.now();
        if receivers == 0 {
            self.complete.push(Multicast { group, message, bytes, sent, first: sent, last: sent });
        } else {
            self.under_way.insert((group, message), UnderWay { bytes, sent, first: None, missing: receivers });
        }
        self.wake(root.0 as usize);
        Ok(message)
    }

    /// The number of blocks of a message that every receiver of its group has; `u32::MAX` if all have gone on to a
    /// later one.
    pub fn held_by_all(&mut self, group: u32, message: u64) -> u32 {
        let receivers = &self.groups[group as usize].spec.members[1..];
        let held = receivers.iter().map(|id| {
            let engine = self.nodes[id.0 as usize].rdmc.group(group_id(group));
            let progress = engine.map(|engine| engine.progress()).unwrap_or_default();
            match progress.message.cmp(&message) {
                Ordering::Less => 0,
                Ordering::Equal => progress.held,
                Ordering::Greater => u32::MAX,
            }
        });
        held.min().unwrap_or(0)
    }

    /// Stops a node's thread for a while, from now. Its NIC goes on.
    pub fn stall(&mut self, node: NodeId, time: Duration) {
        let node = &mut self.nodes[node.0 as usize];
        node.free_at = node.free_at.max(self.net.now() + time);
    }

    /// Counts traffic from now on, from zero. Node `n` is in rack `n / nodes_per_rack`; None means that there are no
    /// racks.
    pub fn count_traffic(&mut self, nodes_per_rack: Option<u32>) {
        let zero = vec![0; self.nodes.len()];
        let traffic = Rc::new(RefCell::new(Traffic { sent: zero.clone(), received: zero, between_racks: 0 }));
        self.traffic = Some(Rc::clone(&traffic));
        let rack = move |node: NodeId| nodes_per_rack.map(|nodes| node.0 / nodes.max(1));
        self.net.set_trace(Some(Box::new(move |_, event| {
            if let TraceEvent::Landed { from, to, bytes, .. } = event {
                let mut traffic = traffic.borrow_mut();
                traffic.sent[from.0 as usize] += *bytes as u64;
                traffic.received[to.0 as usize] += *bytes as u64;
                if rack(*from) != rack(*to) {
                    traffic.between_racks += *bytes as u64;
                }
            }
        })));
    }

    /// The traffic since [`count_traffic`](Self::count_traffic).
    pub fn traffic(&self) -> Traffic {
        self.traffic.as_ref().map(|traffic| traffic.borrow().clone()).unwrap_or_default()
    }

    /// Runs until nothing is left to happen: groups are connected, and all members have all messages.
    pub fn settle(&mut self) -> Result<Vec<Multicast>, BulkError> {
        while self.advance(Time::MAX)? {}
        match self.under_way.len() {
            0 => Ok(std::mem::take(&mut self.complete)),
            missing => Err(BulkError::Stuck { missing }),
        }
    }

    /// Runs until at least one more message is at all members. Returns the messages that have become so since the last
    /// call.
    pub fn next_complete(&mut self) -> Result<Vec<Multicast>, BulkError> {
        while self.complete.is_empty() {
            if !self.advance(Time::MAX)? {
                return Err(BulkError::Stuck { missing: self.under_way.len() });
            }
        }
        Ok(std::mem::take(&mut self.complete))
    }

    /// Runs until `time`.
    pub fn run_until(&mut self, time: Time) -> Result<(), BulkError> {
        while self.net.now() < time && self.advance(time)? {}
        Ok(())
    }

    /// Goes on to the next thing that happens, at most to `limit`. Returns false if nothing is left.
    fn advance(&mut self, limit: Time) -> Result<bool, BulkError> {
        let due = self.agenda.peek().map_or(Time::MAX, |Reverse((at, ..))| *at);
        if due == Time::MAX && self.net.next_event().is_none() && limit == Time::MAX {
            return Ok(false);
        }
        let mut ready = std::mem::take(&mut self.ready);
        let now = self.net.advance(due.min(limit), &mut ready);
        for id in ready.drain(..) {
            self.wake(id.0 as usize);
        }
        self.ready = ready;
        while let Some(&Reverse((at, _, node))) = self.agenda.peek()
            && at <= now
        {
            self.agenda.pop();
            self.take_turn(node, now);
        }
        self.failed.take().map_or(Ok(true), Err)
    }

    /// Schedules a turn of a node that has something to look at.
    fn wake(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        if !std::mem::replace(&mut state.scheduled, true) {
            let at = state.free_at.max(self.net.now()) + self.turn;
            self.agenda.push(Reverse((at, self.entries, node)));
            self.entries += 1;
        }
    }

    fn take_turn(&mut self, ix: usize, now: Time) {
        let node = &mut self.nodes[ix];
        if node.free_at > now {
            // It was stalled after this turn was set.
            self.agenda.push(Reverse((node.free_at + self.turn, self.entries, ix)));
            self.entries += 1;
            return;
        }
        node.scheduled = false;
        node.free_at = now;
        node.fabric.poll(now, &mut self.completions);
        for completion in self.completions.drain(..) {
            node.rdmc.on_completion(&mut node.fabric, &completion);
        }
        let mut events = std::mem::take(&mut self.events);
        loop {
            let node = &mut self.nodes[ix];
            let more = node.rdmc.step(&mut node.fabric, &mut events);
            for (id, event) in events.drain(..) {
                self.on_event(ix, id.group, event, now);
            }
            if !more {
                break;
            }
        }
        self.events = events;
    }

    fn on_event(&mut self, ix: usize, group: u32, event: Event, now: Time) {
        let id = NodeId(ix as u32);
        match event {
            Event::Received { message, .. } => {
                if let Err(reason) = provide(&mut self.nodes[ix], group, &self.groups[group as usize].spec) {
                    self.failed.get_or_insert(BulkError::Refused { group, node: id, reason });
                }
                self.has_received(group, message, now);
            }
            Event::Failed(failure) => {
                self.failed.get_or_insert(BulkError::Failed { group, node: id, reason: failure.reason });
            }
            Event::Incoming { message, .. } => {
                let reason = format!("message {message} found no memory, though there is some for every message");
                self.failed.get_or_insert(BulkError::Refused { group, node: id, reason });
            }
            Event::Connected | Event::Released { .. } | Event::Destroyed => {}
        }
    }

    fn has_received(&mut self, group: u32, message: u64, now: Time) {
        let Some(under_way) = self.under_way.get_mut(&(group, message)) else { return };
        let first = *under_way.first.get_or_insert(now);
        under_way.missing -= 1;
        if under_way.missing == 0 {
            let UnderWay { bytes, sent, .. } = *under_way;
            self.under_way.remove(&(group, message));
            self.complete.push(Multicast { group, message, bytes, sent, first, last: now });
        }
    }
}

fn group_id(group: u32) -> GroupId {
    GroupId { group, instance: 1 }
}

/// Gives the engine memory for one more message.
fn provide(node: &mut BulkNode, group: u32, spec: &BulkGroup) -> Result<(), String> {
    // So much that the first block has its place, whichever block it is.
    let blocks = spec.largest_bytes.div_ceil(spec.block_bytes).max(MOST_STEPS_TO_FIRST);
    let buffer = Buffer::phantom(&mut node.fabric, blocks * spec.block_bytes).map_err(|error| error.to_string())?;
    node.rdmc.group(group_id(group)).ok_or("it is gone")?.provide(buffer);
    Ok(())
}
