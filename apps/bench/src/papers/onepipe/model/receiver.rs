//! Hosts as receivers: they deliver in order.
//!
//! The processes of a host receive the same scatterings at the same times, so one receiving thread and one barrier
//! stand for all.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{
    OrderProtocol, Scenario, Switches,
    figures::{Latencies, Sum},
    packet::{Barriers, Content, Packet, Train, count},
    world::{ModelEvent, World},
};
use squall_onepipe::Tournament;

/// A host's receiving side.
#[derive(Debug, Default)]
pub(super) struct ReceivingHost {
    /// The amount by which the host's clock is off, in nanoseconds.
    pub(super) skew: i64,
    pub(super) down: bool,
    /// The time at which its receiving threads are free.
    free_at: u64,
    /// The time at which all packets that came will have been handled.
    handled_at: u64,
    pub(super) barriers: Barriers,
    /// The messages that wait for their turn: for the barrier, or for the number before it.
    waiting: Waiting,
    /// The same for reliable messages, which have a barrier of their own.
    pub(super) prepared: Waiting,
    /// The number of the next scattering.
    next_number: u64,
    /// The latest of Lamport's stamps that came.
    pub(super) seen: u64,
    /// The known reading of each process's clock, by Lamport's rule.
    clocks: Tournament,
    /// Whether the commit barrier is not heeded, while failures are being settled.
    pub(super) wedged: bool,
    /// Whether this host was told that another has failed, by host.
    pub(super) gone: Vec<bool>,
    /// The messages that were delivered last, by stamp and sender.
    last: [(u64, usize); 2],
    /// The times for which messages that its processes sent waited for their turn, at the hosts farthest from it.
    pub(super) ordering: Sum,
}

/// Messages of one scattering to the processes of a host, ordered by their place, a stamp or number, and their sender.
pub(super) type Waiting = BinaryHeap<Reverse<Arrived>>;

/// Messages that wait for their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Arrived {
    pub(super) place: u64,
    pub(super) sender: usize,
    since: u64,
    received: u64,
    messages: u64,
    pub(super) serial: u64,
}

impl ReceivingHost {
    pub(super) fn new(skew: i64, processes: usize) -> ReceivingHost {
        ReceivingHost { skew, clocks: Tournament::new(processes, 0), ..ReceivingHost::default() }
    }
}

impl World {
    /// Queues a packet that reaches a host's interface for the thread that handles it.
    pub(super) fn arrive_at_host(&mut self, host: usize, packet: Packet) {
        let Scenario { profile, .. } = self.scenario;
        // The time for which the threads are busy, all together, and the time that the packet takes.
        let (work, takes) = match &packet {
            Packet::Train(train) => {
                // Each process has a thread, so one message for each takes no longer than one for one of them.
                let (cpu, messages) = (self.scenario.cpu_ns(), count(train.messages));
                let share = self.scenario.share() as u64;
                ((cpu * messages).div_ceil(share), cpu * messages.div_ceil(share))
            }
            Packet::Beacon(_) if self.loses() => return,
            Packet::Beacon(_) | Packet::Beacons(_) => (0, 0),
            Packet::Token(_) => (profile.message_cpu_ns, profile.message_cpu_ns),
            &Packet::Acknowledgement { serial, host, messages } => {
                let messages = self.left_of(messages);
                self.acknowledged(serial, host, messages);
                return;
            }
        };
        let at = &mut self.hosts[host];
        let begin = at.free_at.max(self.now);
        at.free_at = begin + work;
        // A barrier is behind the packets that came before it.
        at.handled_at = at.handled_at.max(begin + takes);
        let done = at.handled_at;
        self.queue.at(done, ModelEvent::Handled(host, packet));
    }

    pub(super) fn handled(&mut self, host: usize, packet: Packet) {
        match packet {
            Packet::Train(train) => match train.content {
                Content::Messages(serial) => self.receive(host, &train, serial),
                Content::Clock => self.hear_clock(host, &train),
            },
            Packet::Beacon(barriers) => self.pass(host, barriers),
            Packet::Token(process) => self.take_token(process),
            Packet::Beacons(_) | Packet::Acknowledgement { .. } => {}
        }
    }

    fn receive(&mut self, host: usize, train: &Train, serial: u64) {
        let messages = self.left_of(train.messages);
        if self.measuring() {
            self.figures.lost += count(train.messages & !messages);
        }
        let Some(scattering) = self.scatterings.get(serial) else { return };
        let new = messages & scattering.lacking[host];
        scattering.lacking[host] &= !new;
        let (since, recalled) = (scattering.since, scattering.recalled);
        if messages != 0 {
            let to = self.processes[train.sender].host;
            self.transmit_express(host, to, Packet::Acknowledgement { serial, host, messages });
        }
        if new != 0 && !recalled {
            let (place, sender, received) = (train.stamp, train.sender, self.now);
            let arrived = Arrived { place, sender, since, received, messages: count(new), serial };
            if train.attempt == 0 {
                self.record(host, &arrived, |figures| &mut figures.unordered, 0);
            }
            self.keep(host, train, arrived);
        }
        match self.scenario.order {
            // A packet that is lost tells nothing either.
            OrderProtocol::OnePipe { switches: Switches::Chip, .. } if messages != 0 => self.pass(host, train.barriers),
            // Messages move clocks; only the exchange tells their readings.
            OrderProtocol::Lamport { .. } => self.hosts[host].seen = self.hosts[host].seen.max(train.stamp + 1),
            _ => {}
        }
    }

    /// Keeps messages until their turn.
    fn keep(&mut self, host: usize, train: &Train, arrived: Arrived) {
        let at = &mut self.hosts[host];
        match self.scenario.order {
            OrderProtocol::OnePipe { .. } => {
                assert!(arrived.place >= at.barriers.commit, "a reliable message comes after its barrier");
                at.prepared.push(Reverse(arrived));
                if train.attempt == 0 {
                    assert!(arrived.place >= at.barriers.best_effort, "a message comes after its barrier");
                    at.waiting.push(Reverse(arrived));
                }
            }
            OrderProtocol::Lamport { .. } => at.waiting.push(Reverse(arrived)),
            OrderProtocol::SwitchSequencer | OrderProtocol::HostSequencer | OrderProtocol::Token => {
                let number = train.number.expect("it was numbered on its way");
                at.waiting.push(Reverse(Arrived { place: number, ..arrived }));
                self.deliver_numbered(host);
            }
        }
    }

    /// Raises a host's barriers.
    pub(super) fn pass(&mut self, host: usize, barriers: Barriers) {
        let at = &mut self.hosts[host];
        let monotonic = at.barriers.best_effort <= barriers.best_effort && at.barriers.commit <= barriers.commit;
        assert!(monotonic, "barriers go back from {:?} to {barriers:?}", at.barriers);
        at.barriers.best_effort = barriers.best_effort;
        if !at.wedged {
            at.barriers.commit = barriers.commit;
        }
        let Barriers { best_effort, commit } = at.barriers;
        while let Some(arrived) = take_below(&mut self.hosts[host].waiting, best_effort) {
            self.deliver(host, &arrived, 0);
        }
        while let Some(arrived) = take_below(&mut self.hosts[host].prepared, commit) {
            self.deliver(host, &arrived, 1);
        }
        self.note_recovery(host);
    }

    /// Takes note that a process's clock has shown a train's stamp: all that it sends later has later stamps.
    fn hear_clock(&mut self, host: usize, train: &Train) {
        let at = &mut self.hosts[host];
        at.seen = at.seen.max(train.stamp + 1);
        if train.stamp > at.clocks.get(train.sender) {
            at.clocks.set(train.sender, train.stamp);
        }
        let least = at.clocks.least();
        while let Some(arrived) = take_below(&mut self.hosts[host].waiting, least) {
            self.deliver(host, &arrived, 0);
        }
    }

    fn deliver_numbered(&mut self, host: usize) {
        loop {
            let at = &mut self.hosts[host];
            let Some(arrived) = take_below(&mut at.waiting, at.next_number + 1) else { break };
            at.next_number += 1;
            self.deliver(host, &arrived, 0);
        }
    }

    /// Delivers messages, with best effort (0) or reliably (1).
    fn deliver(&mut self, host: usize, arrived: &Arrived, mode: usize) {
        let place = (arrived.place, arrived.sender);
        assert!(self.hosts[host].last[mode] <= place, "messages are delivered in order");
        self.hosts[host].last[mode] = place;
        if mode == 0 {
            self.record(host, arrived, |figures| &mut figures.ordered, 1);
            self.note_ordering(host, arrived);
        } else {
            self.record(host, arrived, |figures| &mut figures.reliable, 2);
            self.note_delivery(host, arrived);
        }
    }

    fn record(&mut self, host: usize, arrived: &Arrived, of: fn(&mut super::Figures) -> &mut Latencies, kind: usize) {
        if !self.measuring() {
            return;
        }
        let (nanos, messages) = (self.now - arrived.since, arrived.messages);
        of(&mut self.figures).add(nanos, messages);
        if self.is_farthest(arrived.sender, host) {
            self.figures.farthest[kind].add(nanos, messages);
        }
    }

    fn note_ordering(&mut self, host: usize, arrived: &Arrived) {
        if self.measuring() && self.is_farthest(arrived.sender, host) {
            let from = self.processes[arrived.sender].host;
            self.hosts[from].ordering.add(self.now - arrived.received, arrived.messages);
        }
    }

    /// Whether the distance between the sender's host and this one is the greatest.
    fn is_farthest(&self, sender: usize, host: usize) -> bool {
        self.topology.hops(self.processes[sender].host, host) == self.topology.most_hops()
    }
}

/// The first of the waiting messages, if its place is below `end`.
fn take_below(waiting: &mut Waiting, end: u64) -> Option<Arrived> {
    if waiting.peek()?.0.place >= end {
        return None;
    }
    waiting.pop().map(|Reverse(arrived)| arrived)
}
