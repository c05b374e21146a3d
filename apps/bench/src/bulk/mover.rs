//! One node of `squall-bench bulk`: it runs rounds, in each of which every group moves one message.
//!
//! Nodes signal over groups of their own that they are ready, and that they have everything: each other node tells node
//! 0, and node 0 tells all. Comparing the received bytes takes a core, so no node does it before all have received. A
//! round begins once all receivers have given memory for it.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        mpsc::{Receiver, TryRecvError},
    },
    time::Duration,
};

use squall::{
    Time,
    bulk::Bulk,
    rdmc::{Buffer, Event, Failure, GroupConfig, GroupId, schedule::Algorithm},
};
use squall_fabric::{NodeId, Wait, mixed::MixedFabric, shm::ShmFabric};

use super::{contents::MessageContents, sharing::Sharing};
use crate::{
    job::{BulkJob, BulkRound, Go},
    parent::Stopped,
    processor::processor_seconds,
};

/// The first of the groups over which a node signals to node 0. Node 0's own group, with this number, goes to all.
const SIGNALS: u32 = 1 << 16;

/// The interval at which a waiting node checks whether it is to stop.
const ASKS: Duration = Duration::from_millis(100);

pub(crate) struct Mover<'a> {
    job: &'a BulkJob,
    told: &'a Receiver<Go>,
    bulk: Bulk<MixedFabric>,
    events: Vec<(GroupId, Event)>,
    /// The number of groups that are not connected yet.
    connecting: usize,
    /// The messages, by group; empty if the message is shared.
    messages: Vec<GroupMessage>,
    sharing: Option<Sharing>,
    /// An empty message, for signals.
    nothing: Arc<Buffer>,
    /// Memory of received signals, until their groups have released it.
    signals: VecDeque<(GroupId, Arc<Buffer>)>,
    /// The number of signals that were received and not yet waited for.
    heard: u32,
    /// The number of this node's signals that have not reached all yet.
    saying: u32,
}

/// A group's message of this round.
#[derive(Debug)]
struct GroupMessage {
    group: GroupId,
    sends: bool,
    /// The root's memory; at a receiver, the message once it has arrived.
    buffer: Option<Arc<Buffer>>,
    received: Option<u64>,
    released: bool,
}

impl GroupMessage {
    fn is_done(&self) -> bool {
        self.released && (self.sends || self.received.is_some())
    }
}

impl<'a> Mover<'a> {
    /// Takes the fabric, and begins to connect all groups.
    pub(crate) fn new(job: &'a BulkJob, mut fabric: MixedFabric, told: &'a Receiver<Go>) -> Result<Mover<'a>, Stopped> {
        let rest = |fabric: &mut ShmFabric| {
            fabric.wait(Time::boot_clock() + ASKS);
            go_on(told)
        };
        // Before any group exists: the fabric then reports completions of these endpoints only.
        let sharing = match fabric.shm_mut() {
            Some(shm) if job.share => Some(Sharing::connect(job, shm, rest)?),
            _ => None,
        };
        let mut bulk = Bulk::new(fabric, job.spin.into(), job.nodes as usize);
        let nothing = Arc::new(memory(&mut bulk, 1)?);
        let mut mover = Mover {
            job,
            told,
            bulk,
            events: Vec::new(),
            connecting: 0,
            messages: Vec::new(),
            sharing,
            nothing,
            signals: VecDeque::new(),
            heard: 0,
            saying: 0,
        };
        for number in 0..if job.share { 0 } else { job.groups } {
            let sends = job.root(number) == job.node;
            let config = job.group(number);
            let group = config.id;
            mover.create(config)?;
            // A receiver does not know that the last block is short.
            let bytes = if sends { job.size_bytes } else { job.size_bytes.next_multiple_of(job.block_bytes) };
            let memory = memory(&mut mover.bulk, bytes)?;
            let buffer = if sends {
                Some(Arc::new(memory))
            } else {
                mover.provide(group, memory);
                None
            };
            mover.messages.push(GroupMessage { group, sends, buffer, received: None, released: false });
        }
        for from in (0..job.nodes).filter(|&from| from == 0 || job.node == 0 || from == job.node) {
            mover.create(signals(from, job.nodes))?;
            for _ in 0..if from == job.node { 0 } else { SIGNALS_AHEAD } {
                let buffer = memory(&mut mover.bulk, 1)?;
                mover.provide(signals(from, job.nodes).id, buffer);
            }
        }
        Ok(mover)
    }

    fn create(&mut self, config: GroupConfig) -> Result<(), String> {
        self.connecting += 1;
        self.bulk.create(config).map_err(|error| error.to_string())
    }

    fn provide(&mut self, group: GroupId, buffer: Buffer) {
        self.bulk.group(group).expect("groups stay").provide(buffer);
    }

    fn send(&mut self, group: GroupId, message: Arc<Buffer>, len: usize) -> Result<(), String> {
        let sent = self.bulk.group(group).expect("groups stay").send(message, len);
        sent.map(drop).map_err(|error| error.to_string())
    }

    /// Waits until all groups are connected.
    pub(crate) fn connect(&mut self) -> Result<(), Stopped> {
        self.until(|mover| mover.connecting == 0)
    }

    /// Runs all rounds, and returns the measurements of those that count.
    pub(crate) fn run(&mut self) -> Result<Vec<BulkRound>, Stopped> {
        let before = 1 + self.job.warm_up;
        let rounds = (0..before + self.job.iterations).map(|number| self.round(number));
        let rounds = rounds.collect::<Result<Vec<_>, _>>()?.split_off(before as usize);
        self.until(|mover| mover.saying == 0)?;
        Ok(rounds)
    }

    fn round(&mut self, number: u32) -> Result<BulkRound, Stopped> {
        for message in &mut self.messages {
            (message.received, message.released) = (None, false);
            if !message.sends {
                continue;
            }
            let buffer = message.buffer.as_mut().and_then(Arc::get_mut).expect("the last round is over");
            MessageContents::of(message.group.group, number).write(buffer);
        }
        if let Some(sharing) = &mut self.sharing {
            sharing.renew(shared(&mut self.bulk), (self.job.node == 0).then(|| MessageContents::of(0, number)))?;
        }
        let before = processor_seconds();
        // Roots other than node 0 must be told that all are ready.
        self.meet(self.job.roots > 1)?;
        let sent = Time::boot_clock().as_nanos();
        for at in 0..self.messages.len() {
            if let GroupMessage { group, sends: true, buffer: Some(buffer), .. } = &self.messages[at] {
                let (group, buffer) = (*group, Arc::clone(buffer));
                self.send(group, buffer, self.job.size_bytes)?;
            }
        }
        let sealed = match &mut self.sharing {
            Some(sharing) => sharing.share(shared(&mut self.bulk))?,
            None => None,
        };
        self.until(|mover| {
            mover.messages.iter().all(GroupMessage::is_done) && mover.sharing.iter().all(Sharing::is_done)
        })?;
        let mut after = processor_seconds();
        self.meet(true)?;
        if self.sharing.is_some() {
            // A root that shares is done before its receivers are. Its processor time of the round ends here.
            after = processor_seconds();
        }
        // Every byte of the first message is compared, so none may be written before.
        let touched = if number > 0 { self.job.touch.of(self.held().map(|(_, message)| message)) } else { None };
        self.compare(number)?;
        if number == 0 {
            self.write_apart()?;
        }
        let received = match &self.sharing {
            Some(sharing) => vec![sharing.received()],
            None => self.messages.iter().map(|message| message.received).collect(),
        };
        self.give_memory();
        let sends = sealed.is_some() || self.messages.iter().any(|message| message.sends);
        let cpu_seconds = after - before;
        Ok(BulkRound { sent: sends.then_some(sent), sealed, received, cpu_seconds, touched })
    }

    /// The messages that this node received in this round, with their groups' numbers.
    fn held(&mut self) -> impl Iterator<Item = (u32, &mut [u8])> {
        let size = self.job.size_bytes;
        let copies = self.messages.iter_mut().filter(|message| !message.sends).map(move |message| {
            let buffer = message.buffer.as_mut().expect("it was received");
            (message.group.group, &mut Arc::get_mut(buffer).expect("its group has released it")[..size])
        });
        copies.chain(self.sharing.iter_mut().filter_map(Sharing::copy).map(|copy| (0, copy)))
    }

    /// Checks that the received messages are the ones that were sent.
    fn compare(&mut self, number: u32) -> Result<(), String> {
        for (group, message) in self.held() {
            if let Some(at) = MessageContents::of(group, number).first_difference(message) {
                return Err(format!(
                    "round {number} of group {group} brought other bytes than were sent, at {at}: this is a bug of Squall"
                ));
            }
        }
        Ok(())
    }

    /// Lets all nodes that hold a shared message, the root included, write it at the same time. No node may see
    /// another's writes.
    fn write_apart(&mut self) -> Result<(), Stopped> {
        let Some(sharing) = &mut self.sharing else { return Ok(()) };
        let own = MessageContents::of(1 + self.job.node, 0);
        sharing.write(own)?;
        self.meet(true)?;
        match self.sharing.as_ref().and_then(|sharing| sharing.first_change(own, MessageContents::of(0, 0))) {
            None => Ok(()),
            Some(at) => Err(format!(
                "a shared message changed, at {at}, when another node wrote its copy: this is a bug of Squall"
            )
            .into()),
        }
    }

    /// Gives the groups memory for their next messages.
    fn give_memory(&mut self) {
        for message in self.messages.iter_mut().filter(|message| !message.sends) {
            let buffer = message.buffer.take().expect("it was received");
            let buffer = Arc::into_inner(buffer).expect("its group has released it");
            self.bulk.group(message.group).expect("groups stay").provide(buffer);
        }
    }

    /// Lets node 0 wait until all nodes are here; the other nodes wait too if `told` is set.
    fn meet(&mut self, told: bool) -> Result<(), Stopped> {
        let await_signals = |mover: &mut Self, count| {
            mover.until(|mover| mover.heard >= count)?;
            mover.heard -= count;
            Ok::<_, Stopped>(())
        };
        if self.job.node == 0 {
            await_signals(self, self.job.nodes - 1)?;
        }
        if self.job.node > 0 || told {
            self.saying += 1;
            self.send(signals(self.job.node, self.job.nodes).id, Arc::clone(&self.nothing), 0)?;
        }
        if self.job.node > 0 && told {
            await_signals(self, 1)?;
        }
        Ok(())
    }

    /// Drives the groups until `holds` is true.
    fn until(&mut self, holds: impl Fn(&Mover<'_>) -> bool) -> Result<(), Stopped> {
        while !holds(self) {
            let mut events = std::mem::take(&mut self.events);
            let is_busy = self.bulk.turn(&mut events);
            if let Some(sharing) = &mut self.sharing {
                sharing.take(shared(&mut self.bulk))?;
            }
            if !is_busy {
                go_on(self.told)?;
                self.bulk.rest(Time::boot_clock() + ASKS);
            }
            for (group, event) in events.drain(..) {
                self.on_event(group, event)?;
            }
            self.events = events;
        }
        Ok(())
    }

    fn on_event(&mut self, group: GroupId, event: Event) -> Result<(), String> {
        let message = self.messages.get_mut(group.group as usize);
        match (event, message) {
            (Event::Connected, _) => self.connecting -= 1,
            (Event::Received { buffer, len, .. }, Some(message)) => {
                message.received = Some(Time::boot_clock().as_nanos());
                message.buffer = Some(buffer);
                if len != self.job.size_bytes {
                    return Err(format!("a message of {len} bytes came: this is a bug of Squall"));
                }
            }
            (Event::Released { .. }, Some(message)) => message.released = true,
            (Event::Received { buffer, .. }, None) => {
                self.heard += 1;
                self.signals.push_back((group, buffer));
            }
            (Event::Released { .. }, None) if group.group == SIGNALS + self.job.node => self.saying -= 1,
            (Event::Released { .. }, None) => {
                if let Some(at) = self.signals.iter().position(|(of, _)| *of == group) {
                    let (_, buffer) = self.signals.remove(at).expect("it is there");
                    self.provide(group, Arc::into_inner(buffer).expect("its group has released it"));
                }
            }
            (Event::Failed(Failure { suspect: Some(node), reason, .. }), _) => return Err(format!("{node}: {reason}")),
            (Event::Failed(failure), _) => return Err(failure.reason),
            (Event::Incoming { .. } | Event::Destroyed, _) => {
                return Err(format!("{group:?} wants memory, or has ended: this is a bug of Squall"));
            }
        }
        Ok(())
    }
}

/// The fabric of a shared message.
fn shared(bulk: &mut Bulk<MixedFabric>) -> &mut ShmFabric {
    bulk.fabric().shm_mut().expect("only shared memory shares")
}

/// Fails once the parent wants no more.
fn go_on(told: &Receiver<Go>) -> Result<(), Stopped> {
    match told.try_recv() {
        Err(TryRecvError::Disconnected) => Err(Stopped::Told),
        _ => Ok(()),
    }
}

/// The room for signals: at most one of a group has no answer yet.
const SIGNALS_AHEAD: usize = 2;

/// The group over which a node signals to node 0; node 0's group goes to all.
fn signals(from: u32, nodes: u32) -> GroupConfig {
    let others = if from == 0 { 1..nodes } else { 0..1 };
    let members = [from].into_iter().chain(others).map(NodeId).collect();
    let id = GroupId { group: SIGNALS + from, instance: 1 };
    GroupConfig { algorithm: Algorithm::Sequential, block_bytes: 1, ..GroupConfig::new(id, members) }
}

/// Registered memory whose pages are present.
fn memory(bulk: &mut Bulk<MixedFabric>, bytes: usize) -> Result<Buffer, String> {
    let mut buffer = Buffer::register(bulk.fabric(), bytes).map_err(|error| error.to_string())?;
    buffer.fill(0);
    Ok(buffer)
}
