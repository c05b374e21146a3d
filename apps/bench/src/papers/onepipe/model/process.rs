//! Processes: their scatterings, and the acknowledgements that they still wait for.

use std::collections::VecDeque;

use super::{
    Destinations, OrderProtocol, Traffic,
    packet::{Barriers, Content, Members, Packet, Train, count, first_members},
    world::{ModelEvent, World},
};

/// One process's sending side.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) host: usize,
    /// The last stamp.
    pub(super) last: u64,
    /// The serial numbers of scatterings that were not all acknowledged, and perhaps of some that were; the earliest
    /// first.
    pub(super) outstanding: VecDeque<u64>,
    /// The number of messages that were not acknowledged.
    under_way: u64,
    /// The time since which a scattering is ready to be sent.
    ready: Option<u64>,
    /// The times at which the next scattering is due, and the next exchange of clocks.
    due: u64,
    exchange_due: u64,
}

impl Process {
    pub(super) fn new(host: usize, due: u64) -> Process {
        Process { host, last: 0, outstanding: VecDeque::new(), under_way: 0, ready: None, due, exchange_due: due }
    }
}

/// One scattering.
#[derive(Debug)]
pub(super) struct Scattering {
    pub(super) sender: usize,
    pub(super) stamp: u64,
    /// The time since which it was ready to be sent.
    pub(super) since: u64,
    /// Messages that the sender knows no acknowledgement of, and those that have not come, by host.
    pub(super) awaited: Box<[Members]>,
    pub(super) lacking: Box<[Members]>,
    /// The number of messages in `awaited`.
    pub(super) missing: u64,
    /// The number that the sequencer gave it.
    pub(super) number: Option<u64>,
    /// Whether it is not to be delivered, because one of its receivers has failed.
    pub(super) recalled: bool,
}

/// Scatterings by serial number. An acknowledged one is dropped when all before it are.
#[derive(Debug, Default)]
pub(super) struct Scatterings {
    first: u64,
    entries: VecDeque<Scattering>,
}

impl Scatterings {
    fn push(&mut self, scattering: Scattering) -> u64 {
        self.entries.push_back(scattering);
        self.first + self.entries.len() as u64 - 1
    }

    pub(super) fn get(&mut self, serial: u64) -> Option<&mut Scattering> {
        let index = usize::try_from(serial.checked_sub(self.first)?).ok()?;
        self.entries.get_mut(index)
    }

    fn drop_complete(&mut self) {
        while self.entries.front().is_some_and(|scattering| scattering.missing == 0) {
            self.entries.pop_front();
            self.first += 1;
        }
    }
}

impl World {
    /// Starts the next work of a process's sending thread.
    pub(super) fn prepare(&mut self, p: usize) {
        let interval = self.scenario.interval_ns();
        let everybody = self.scenario.processes as u64 * self.scenario.profile.message_cpu_ns;
        let process = &mut self.processes[p];
        if let OrderProtocol::Lamport { exchange_percent } = self.scenario.order
            && process.exchange_due <= process.due.max(self.now)
        {
            let begin = process.exchange_due.max(self.now);
            process.exchange_due = begin.max(process.exchange_due + everybody * 100 / exchange_percent);
            self.queue.at(begin + everybody, ModelEvent::Exchanged(p));
            return;
        }
        let begin = process.due.max(self.now);
        let gap = match self.scenario.traffic {
            // No process keeps so exact a pace.
            Traffic::Broadcast { .. } => interval * self.rng.u64(95..=105) / 100,
            Traffic::Scattered { .. } => (-(1.0 - self.rng.f64()).ln() * interval as f64) as u64,
        };
        process.due = match self.scenario.traffic {
            Traffic::Broadcast { load_percent: 100.. } => begin,
            _ => begin + gap,
        };
        let work = self.scenario.width() as u64 * self.scenario.cpu_ns();
        self.queue.at(begin + work, ModelEvent::Ready(p));
    }

    pub(super) fn ready(&mut self, p: usize) {
        self.processes[p].ready = Some(self.now);
        self.try_send(p);
    }

    /// Sends the scattering that is ready, if the process may.
    fn try_send(&mut self, p: usize) {
        let window = match self.scenario.traffic {
            Traffic::Broadcast { .. } => self.scenario.profile.window,
            Traffic::Scattered { .. } => u64::MAX,
        };
        let width = self.scenario.width() as u64;
        let waits = self.scenario.order == OrderProtocol::Token && self.token != p;
        let process = &mut self.processes[p];
        if process.under_way + width > window || waits || self.hosts[process.host].down {
            return;
        }
        if let Some(since) = process.ready.take() {
            self.send(p, since);
            self.prepare(p);
        }
    }

    /// Stamps a scattering and hands it to the interface.
    fn send(&mut self, p: usize, since: u64) {
        let (hosts, share) = (self.hosts.len(), self.scenario.share());
        let host = self.processes[p].host;
        let (begin, destinations, width) = match self.scenario.traffic {
            Traffic::Scattered { to: Destinations::OneHost(_), .. } => {
                (self.rng.usize(..hosts), 1, self.scenario.width())
            }
            // Each host begins with another, so that not all meet at one receiver.
            _ => (host + 1, hosts, share),
        };
        let messages = first_members(width);
        let stamp = self.stamp(p);
        let mut awaited = vec![0; hosts].into_boxed_slice();
        for to in (begin..begin + destinations).map(|to| to % hosts) {
            let gone = self.hosts[host].gone.get(to).is_some_and(|gone| *gone);
            awaited[to] = if gone { 0 } else { messages };
        }
        let missing = awaited.iter().map(|&messages| count(messages)).sum();
        let number = (self.scenario.order == OrderProtocol::Token).then(|| self.next_number());
        let serial = self.scatterings.push(Scattering {
            sender: p,
            stamp,
            since,
            lacking: awaited.clone(),
            awaited: awaited.clone(),
            missing,
            number,
            recalled: false,
        });
        self.processes[p].outstanding.push_back(serial);
        self.processes[p].under_way += missing;
        let commit = self.commit_barrier(p, stamp);
        for to in (begin..begin + destinations).map(|to| to % hosts) {
            if awaited[to] == 0 {
                continue;
            }
            let (content, barriers) = (Content::Messages(serial), Barriers { best_effort: stamp, commit });
            let train = Train { content, sender: p, to, messages, attempt: 0, stamp, barriers, number };
            self.transmit(self.hosts_link(host), Packet::Train(train));
        }
        self.watch(serial, 0);
    }

    fn stamp(&mut self, p: usize) -> u64 {
        let host = self.processes[p].host;
        let clock = match self.scenario.order {
            OrderProtocol::Lamport { .. } => self.hosts[host].seen,
            _ => self.clock(host),
        };
        let stamp = clock.max(self.processes[p].last + 1);
        self.processes[p].last = stamp;
        stamp
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number - 1
    }

    /// Tells a process's clock to all processes.
    pub(super) fn exchange(&mut self, p: usize) {
        let (hosts, host) = (self.hosts.len(), self.processes[p].host);
        let stamp = self.stamp(p);
        let messages = first_members(self.scenario.share());
        for to in host + 1..=host + hosts {
            let (to, barriers) = (to % hosts, Barriers::default());
            let train =
                Train { content: Content::Clock, sender: p, to, messages, attempt: 0, stamp, barriers, number: None };
            self.transmit(self.hosts_link(host), Packet::Train(train));
        }
        self.prepare(p);
    }

    /// Brings the token to a process. It sends, if it can, and hands the token on behind the scattering.
    pub(super) fn take_token(&mut self, p: usize) {
        self.token = p;
        self.try_send(p);
        let next = (p + 1) % self.processes.len();
        // No process has the token on its way.
        self.token = usize::MAX;
        self.transmit_express(self.processes[p].host, self.processes[next].host, Packet::Token(next));
    }

    pub(super) fn schedule_tick(&mut self, host: usize, tick: u64) {
        let wait = (tick * self.scenario.profile.beacon_ns).saturating_sub(self.clock(host));
        self.queue.at(self.now + wait, ModelEvent::Tick(host, tick));
    }

    /// Sends beacons from a host when its clock shows a multiple of the interval, as all hosts do. A barrier is as late
    /// as the latest of the beacons, so one that is sent at another time would only make it later.
    pub(super) fn tick(&mut self, host: usize, tick: u64) {
        if self.hosts[host].down {
            return;
        }
        let barrier = tick * self.scenario.profile.beacon_ns;
        let share = self.scenario.share();
        let barriers = (host * share..(host + 1) * share)
            .map(|p| Barriers { best_effort: barrier, commit: self.commit_barrier(p, barrier) });
        let beacons = barriers.collect();
        self.transmit(self.hosts_link(host), Packet::Beacons(beacons));
        self.schedule_tick(host, tick + 1);
    }

    /// The stamp below which all reliable messages of a process are acknowledged: at most `now`, a stamp that it is
    /// past.
    pub(super) fn commit_barrier(&mut self, p: usize, now: u64) -> u64 {
        let outstanding = &mut self.processes[p].outstanding;
        while let Some(&serial) = outstanding.front() {
            if let Some(scattering) = self.scatterings.get(serial)
                && scattering.missing > 0
            {
                return scattering.stamp.min(now);
            }
            outstanding.pop_front();
        }
        now
    }

    /// Takes note that messages of a scattering to a host's processes were acknowledged.
    pub(super) fn acknowledged(&mut self, serial: u64, host: usize, messages: Members) {
        let Some(scattering) = self.scatterings.get(serial) else { return };
        let news = messages & scattering.awaited[host];
        assert_eq!(news & scattering.lacking[host], 0, "what has not come is acknowledged");
        scattering.awaited[host] &= !news;
        self.settled(serial, count(news));
    }

    /// Stops waiting for a number of messages of a scattering.
    pub(super) fn settled(&mut self, serial: u64, messages: u64) {
        let Some(scattering) = self.scatterings.get(serial) else { return };
        scattering.missing -= messages;
        let (sender, complete) = (scattering.sender, scattering.missing == 0);
        self.processes[sender].under_way -= messages;
        if complete {
            self.scatterings.drop_complete();
        }
        self.try_send(sender);
    }

    /// Schedules a check of a scattering, where messages may get lost.
    fn watch(&mut self, serial: u64, attempt: u32) {
        if self.scenario.loss == 0.0 && self.outage.is_none() {
            return;
        }
        let Some(sender) = self.scatterings.get(serial).map(|scattering| scattering.sender) else { return };
        let link = self.hosts_link(self.processes[sender].host);
        let gone = self.links[link].free_at.max(self.now);
        let round_trip = 2 * self.topology.path_ns(self.topology.most_hops());
        self.queue
            .at(gone + round_trip + self.scenario.profile.retransmit_ns, ModelEvent::Overdue(serial, attempt + 1));
    }

    /// Sends the messages again that were not acknowledged.
    pub(super) fn send_again(&mut self, serial: u64, attempt: u32) {
        let Some(scattering) = self.scatterings.get(serial) else { return };
        if scattering.missing == 0 {
            return;
        }
        let (sender, stamp, number) = (scattering.sender, scattering.stamp, scattering.number);
        let overdue: Vec<(usize, Members)> = scattering.awaited.iter().copied().enumerate().collect();
        let host = self.processes[sender].host;
        if self.hosts[host].down {
            return;
        }
        // A message that is sent again is not later than those sent meanwhile: it promises nothing of its own.
        let barriers = Barriers::default();
        for (to, messages) in overdue.into_iter().filter(|&(_, messages)| messages != 0) {
            let content = Content::Messages(serial);
            let train = Train { content, sender, to, messages, attempt, stamp, barriers, number };
            self.transmit(self.hosts_link(host), Packet::Train(train));
        }
        self.watch(serial, attempt);
    }
}
