//! One node of `squall bench bulk`: rounds, in each of which every group moves one message.
//!
//! Nodes tell each other by groups of their own that they are ready, and that they have everything: each other node tells node
//! 0, node 0 tells all. So nobody looks at what came, which takes a core, before all have received; and a round begins when all
//! receivers have given memory for it.

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
    rdmc::{Buffer, Event, GroupConfig, GroupId, schedule::Algorithm},
};
use squall_fabric::{
    NodeId,
    shm::{ShmConfig, ShmFabric},
};

use super::{
    contents::Contents,
    job::{BulkJob, Round},
};
use crate::bench::{
    job::Go,
    worker::{Stopped, processor_seconds},
};

/// The first of the groups by which a node tells node 0 something; the group of the same number as node 0 goes to all.
const SIGNALS: u32 = 1 << 16;

/// How often a node that waits asks whether it is to stop.
const ASKS: Duration = Duration::from_millis(100);

pub(crate) struct Mover<'a> {
    job: &'a BulkJob,
    told: &'a Receiver<Go>,
    bulk: Bulk<ShmFabric>,
    events: Vec<(GroupId, Event)>,
    /// Groups that are not connected yet.
    connecting: usize,
    messages: Vec<Message>,
    /// An empty message, for signals.
    nothing: Arc<Buffer>,
    /// Memory of signals that came, until their groups are done with them.
    signals: VecDeque<(GroupId, Arc<Buffer>)>,
    /// Signals that came and were not waited for.
    heard: u32,
    /// Signals of this node that have not reached all.
    saying: u32,
}

/// A group's message of this round.
#[derive(Debug)]
struct Message {
    group: GroupId,
    sends: bool,
    /// The root's memory; a receiver's once the message is there.
    buffer: Option<Arc<Buffer>>,
    received: Option<u64>,
    released: bool,
}

impl Message {
    fn is_done(&self) -> bool {
        self.released && (self.sends || self.received.is_some())
    }
}

impl<'a> Mover<'a> {
    /// Opens the fabric, and begins to connect all groups.
    pub(crate) fn new(job: &'a BulkJob, told: &'a Receiver<Go>) -> Result<Mover<'a>, String> {
        let me = NodeId(job.node);
        let fabric = ShmFabric::open(ShmConfig::new(&*job.cluster, me)).map_err(|error| error.to_string())?;
        let mut bulk = Bulk::new(fabric, job.spin.into(), job.nodes as usize);
        let nothing = Arc::new(memory(&mut bulk, 1)?);
        let mut mover = Mover {
            job,
            told,
            bulk,
            events: Vec::new(),
            connecting: 0,
            messages: Vec::new(),
            nothing,
            signals: VecDeque::new(),
            heard: 0,
            saying: 0,
        };
        for number in 0..job.groups {
            let sends = job.root(number) == job.node;
            let config = job.config(number);
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
            mover.messages.push(Message { group, sends, buffer, received: None, released: false });
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

    /// All rounds. Returns what was seen of those that count.
    pub(crate) fn run(&mut self) -> Result<Vec<Round>, Stopped> {
        let before = 1 + self.job.warm_up;
        let rounds = (0..before + self.job.iterations).map(|number| self.round(number));
        let rounds = rounds.collect::<Result<Vec<_>, _>>()?.split_off(before as usize);
        self.until(|mover| mover.saying == 0)?;
        Ok(rounds)
    }

    fn round(&mut self, number: u32) -> Result<Round, Stopped> {
        for message in &mut self.messages {
            (message.received, message.released) = (None, false);
            if !message.sends {
                continue;
            }
            let buffer = message.buffer.as_mut().and_then(Arc::get_mut).expect("the last round is over");
            Contents::of(message.group.group, number).write(buffer);
        }
        let before = processor_seconds();
        // Other roots than node 0 have to be told that all are ready.
        self.meet(self.job.roots > 1)?;
        let sent = Time::boot_clock().as_nanos();
        for at in 0..self.messages.len() {
            if let Message { group, sends: true, buffer: Some(buffer), .. } = &self.messages[at] {
                let (group, buffer) = (*group, Arc::clone(buffer));
                self.send(group, buffer, self.job.size_bytes)?;
            }
        }
        self.until(|mover| mover.messages.iter().all(Message::is_done))?;
        let cpu_seconds = processor_seconds() - before;
        self.meet(true)?;
        self.compare(number)?;
        Ok(Round {
            sent: self.messages.iter().any(|message| message.sends).then_some(sent),
            received: self.messages.iter().map(|message| message.received).collect(),
            cpu_seconds,
        })
    }

    /// Looks at what came, and gives the memory for the next round.
    fn compare(&mut self, number: u32) -> Result<(), Stopped> {
        for at in 0..self.messages.len() {
            let message = &mut self.messages[at];
            if message.sends {
                continue;
            }
            let (group, buffer) = (message.group, message.buffer.take().expect("it was received"));
            if let Some(at) = Contents::of(group.group, number).first_difference(&buffer[..self.job.size_bytes]) {
                return Err(Stopped::Failed(format!(
                    "round {number} of group {} brought other bytes than were sent, at {at}: this is a bug of Squall",
                    group.group
                )));
            }
            let buffer = Arc::into_inner(buffer).expect("its group has released it");
            self.provide(group, buffer);
        }
        Ok(())
    }

    /// Lets node 0 wait until all nodes have come here; and the others too, if they are `told`.
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

    /// Goes on until something holds.
    fn until(&mut self, holds: impl Fn(&Mover<'_>) -> bool) -> Result<(), Stopped> {
        while !holds(self) {
            let mut events = std::mem::take(&mut self.events);
            if !self.bulk.turn(&mut events) {
                if matches!(self.told.try_recv(), Err(TryRecvError::Disconnected)) {
                    return Err(Stopped::Told);
                }
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
            (Event::Failed(failure), _) => return Err(failure.reason),
            (Event::Incoming { .. } | Event::Destroyed, _) => {
                return Err(format!("{group:?} wants memory, or has ended: this is a bug of Squall"));
            }
        }
        Ok(())
    }
}

/// At most one signal of a group is not answered by another one.
const SIGNALS_AHEAD: usize = 2;

/// The group by which a node tells node 0 something; node 0's is for all.
fn signals(from: u32, nodes: u32) -> GroupConfig {
    let others = if from == 0 { 1..nodes } else { 0..1 };
    let members = [from].into_iter().chain(others).map(NodeId).collect();
    let id = GroupId { group: SIGNALS + from, instance: 1 };
    GroupConfig { algorithm: Algorithm::Sequential, block_bytes: 1, ..GroupConfig::new(id, members) }
}

/// Memory whose pages are there.
fn memory(bulk: &mut Bulk<ShmFabric>, bytes: usize) -> Result<Buffer, String> {
    let mut buffer = Buffer::register(bulk.fabric(), bytes).map_err(|error| error.to_string())?;
    buffer.fill(0);
    Ok(buffer)
}
