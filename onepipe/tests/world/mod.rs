//! A simulated cluster whose nodes are the ranks of one 1Pipe group.

pub(crate) mod check;
pub(crate) mod court;
pub(crate) mod fickle;
pub(crate) mod plan;

use std::{sync::Arc, time::Duration};

use squall_fabric::{
    BreakReason, Completion, Fabric, GroupTag, NodeId, Time,
    sim::{SimConfig, SimNet},
};
use squall_onepipe::{Message, Mode, OnePipe, OnePipeConfig, PipeEvent, ScatterError, SkewedClock, Topology};

use court::Court;
use fickle::Fickle;

/// A scattering, as its sender remembers it.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) mode: Mode,
    pub(crate) to: Vec<usize>,
    /// Whether its messages are empty.
    pub(crate) is_empty: bool,
    /// The reading of the sender's clock.
    pub(crate) clock: u64,
    /// The greatest timestamp of the mode that any rank had delivered.
    pub(crate) above: Option<u64>,
    /// The timestamps with which it was given back.
    pub(crate) given_back: Vec<Option<u64>>,
}

/// The number that stands for a scattering of empty messages.
pub(crate) const NAMELESS: u64 = u64::MAX;

/// A message, as its receiver remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) stamp: u64,
    pub(crate) sender: usize,
    /// The scattering's number; [`NAMELESS`] if the message is empty.
    pub(crate) id: u64,
}

/// The record of a rank, which stays even if it crashes.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// The scatterings, by number.
    pub(crate) sent: Vec<Sent>,
    /// The received messages by mode, in order.
    pub(crate) received: [Vec<Received>; 2],
    pub(crate) removed: Vec<usize>,
    pub(crate) has_ended: bool,
}

pub(crate) struct Rank {
    pub(crate) fabric: Fickle,
    pub(crate) pipe: OnePipe<SkewedClock>,
    pub(crate) clock: SkewedClock,
}

pub(crate) struct World {
    pub(crate) net: SimNet,
    pub(crate) random: fastrand::Rng,
    /// None where the node has crashed.
    pub(crate) ranks: Vec<Option<Rank>>,
    pub(crate) logs: Vec<Log>,
    pub(crate) court: Court,
    /// Whether applications take all that they can at once.
    pub(crate) is_draining: bool,
    /// A rank that does not keep the protocol.
    liar: Option<usize>,
    /// The number of times that a rank was found not to keep the protocol.
    pub(crate) accusations: usize,
    /// By mode: the greatest timestamp that any rank has delivered.
    greatest: [Option<u64>; 2],
}

/// A small group.
pub(crate) fn config(n: usize) -> OnePipeConfig {
    let nodes = (0..n as u32).map(|rank| NodeId((rank ^ 1) + 3)).collect();
    let config = OnePipeConfig::new(nodes, GroupTag { layer: 20, group: 1, epoch: 1 });
    OnePipeConfig { ring_bytes: 1024, waiting_bytes: 4096, ..config }
}

/// A network that is as fast as it can be, on which failures are found soon.
pub(crate) fn fast() -> SimConfig {
    SimConfig { failure_timeout: Duration::from_millis(3), ..SimConfig::fast() }
}

impl World {
    /// A cluster with these clocks, all of whose ranks have reached each other.
    pub(crate) fn new(sim: SimConfig, seed: u64, config: &OnePipeConfig, clocks: &[SkewedClock]) -> World {
        let mut world = World::create(sim, seed, config, clocks);
        world.connect();
        world
    }

    /// A cluster with these clocks, none of whose ranks has reached another.
    pub(crate) fn create(sim: SimConfig, seed: u64, config: &OnePipeConfig, clocks: &[SkewedClock]) -> World {
        let net = SimNet::new(sim, seed);
        let court = Court::new(config.nodes.len(), config.epoch, seed);
        let ranks = config.nodes.iter().zip(clocks).zip(&court.gates).map(|((&node, &clock), gate)| {
            // Queues that are never full would leave half of the code untested.
            let mut fabric = Fickle::new(net.fabric(node), seed, [0, 3, 30][(seed % 3) as usize]);
            let pipe = OnePipe::with_gate(&mut fabric, config.clone(), clock, Arc::clone(gate));
            let pipe = pipe.expect("a sound configuration");
            Some(Rank { fabric, pipe, clock })
        });
        let ranks: Vec<Option<Rank>> = ranks.collect();
        let n = ranks.len();
        World {
            net,
            random: fastrand::Rng::with_seed(seed),
            ranks,
            logs: (0..n).map(|_| Log::default()).collect(),
            court,
            is_draining: false,
            liar: None,
            accusations: 0,
            greatest: [None; 2],
        }
    }

    /// Lets a rank lie to others from now on. What it delivers itself does not count.
    pub(crate) fn lie(&mut self, liar: usize) {
        let now = self.net.now();
        self.liar = Some(liar);
        self.ranks[liar].as_mut().expect("it is alive").fabric.lie(now);
    }

    /// Goes on until all ranks have reached each other.
    pub(crate) fn connect(&mut self) {
        self.until("connecting", |world| world.alive().all(|rank| world.pipe(rank).is_connected()));
    }

    pub(crate) fn pipe(&self, rank: usize) -> &OnePipe<SkewedClock> {
        &self.ranks[rank].as_ref().expect("it is alive").pipe
    }

    /// Ranks whose processes exist.
    pub(crate) fn alive(&self) -> impl Iterator<Item = usize> {
        (0..self.ranks.len()).filter(|&rank| self.ranks[rank].is_some())
    }

    /// Ranks that are in the group to the end.
    pub(crate) fn survivors(&self) -> Vec<usize> {
        self.alive().filter(|rank| !self.court.removed.contains(rank)).collect()
    }

    /// Whether the group goes on without a rank.
    pub(crate) fn others_stay(&self, rank: usize) -> bool {
        self.alive().any(|other| other != rank && self.court.stays(other))
    }

    /// Whether a rank's process runs.
    pub(crate) fn runs(&self, rank: usize) -> bool {
        self.ranks[rank].as_ref().is_some_and(|alive| self.net.runs(alive.fabric.node()))
    }

    pub(crate) fn node(&self, rank: usize) -> NodeId {
        self.pipe(rank).config().nodes[rank]
    }

    /// Sends a scattering of messages that name their sender and receiver, each of at least `bytes` bytes; of empty
    /// ones, if `bytes` is 0.
    pub(crate) fn scatter(&mut self, from: usize, mode: Mode, to: &[usize], bytes: usize) -> Result<u64, ScatterError> {
        let now = self.net.now();
        let number = self.logs[from].sent.len() as u64;
        let payload = |to: usize| {
            let head = [from as u64, to as u64, mode as u64, number].map(u64::to_le_bytes).concat();
            let head = if bytes == 0 { Vec::new() } else { head };
            let fill = (head.len()..bytes).map(|at| (at as u64 ^ number) as u8);
            head.iter().copied().chain(fill).collect::<Vec<u8>>()
        };
        let payloads: Vec<Vec<u8>> = to.iter().map(|&to| payload(to)).collect();
        let messages: Vec<Message<'_>> =
            to.iter().zip(&payloads).map(|(&to, bytes)| Message { to, bytes: bytes.as_slice() }).collect();
        let rank = self.ranks[from].as_mut().expect("it is alive");
        let id = rank.pipe.scatter(now, mode, &messages)?;
        assert_eq!(id.0, number, "scatterings are numbered in their order");
        let clock = squall_onepipe::Clock::now(&mut rank.clock, now);
        let above = self.greatest[mode as usize];
        self.logs[from].sent.push(Sent {
            mode,
            to: to.to_vec(),
            is_empty: bytes == 0,
            clock,
            above,
            given_back: Vec::new(),
        });
        Ok(number)
    }

    /// Steps a rank once.
    pub(crate) fn step(&mut self, rank: usize) {
        if !self.runs(rank) {
            return;
        }
        let now = self.net.now();
        self.court.close_gates(self.is_draining);
        let Some(Rank { fabric, pipe, .. }) = &mut self.ranks[rank] else { return };
        let mut completions: Vec<Completion> = Vec::new();
        fabric.poll(now, &mut completions);
        for completion in &completions {
            assert!(pipe.on_completion(fabric, now, completion), "only it has endpoints");
        }
        pipe.step(fabric, now);
        self.court.close_gates(self.is_draining);
        self.deliver(rank);
        self.court.close_gates(self.is_draining);
        let Some(Rank { fabric, pipe, .. }) = &mut self.ranks[rank] else { return };
        pipe.attend(fabric, now, &mut self.court.side(rank, self.is_draining));
        self.take_events(rank);
    }

    /// Whether a rank is to be stepped, though the network has no event for it.
    fn has_news(&self, rank: usize) -> bool {
        let is_owing = self.ranks[rank].as_ref().is_some_and(|alive| alive.fabric.is_owing());
        is_owing || self.court.has_news_for(rank)
    }

    fn deliver(&mut self, rank: usize) {
        let Some(Rank { pipe, .. }) = &mut self.ranks[rank] else { return };
        let (log, greatest, liar) = (&mut self.logs[rank], &mut self.greatest, self.liar);
        for mode in Mode::ALL {
            let max = if self.is_draining { usize::MAX } else { [0, 1, 5, 100][self.random.usize(..4)] };
            let reported = self.court.reported[rank].filter(|(epoch, _)| *epoch >= pipe.epoch());
            let reported = reported.filter(|_| mode == Mode::Reliable).map_or(u64::MAX, |(_, barrier)| barrier);
            let barrier = pipe.barrier(mode).min(reported);
            if liar == Some(rank) {
                pipe.deliver(mode, max, &mut |_| {});
                continue;
            }
            pipe.deliver(mode, max, &mut |delivery| {
                let (stamp, sender) = (delivery.stamp, delivery.sender);
                let words = delivery.bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
                let words: Vec<u64> = words.take(4).collect();
                let is_sound = liar != Some(sender);
                let id = words.get(3).filter(|_| is_sound).map_or(NAMELESS, |&id| id);
                let received = Received { stamp, sender, id };
                assert_eq!(delivery.mode, mode);
                if is_sound && !delivery.bytes.is_empty() {
                    assert_eq!(words, [sender as u64, rank as u64, mode as u64, id], "a message for another");
                }
                let is_filled = |(at, &byte): (usize, &u8)| byte == (at as u64 ^ received.id) as u8;
                let is_whole = delivery.bytes.iter().enumerate().skip(32).all(is_filled);
                assert!(is_whole || !is_sound, "a payload that was not sent");
                assert!(delivery.stamp < barrier, "rank {rank} delivers {received:?} at a barrier of {barrier}");
                log.received[mode as usize].push(received);
                greatest[mode as usize] = greatest[mode as usize].max(Some(received.stamp));
            });
        }
    }

    fn take_events(&mut self, rank: usize) {
        let Some(Rank { pipe, .. }) = &mut self.ranks[rank] else { return };
        let (me, liar, log) = (rank, self.liar, &mut self.logs[rank]);
        let is_flat = pipe.config().topology == Topology::Flat;
        while let Some(event) = pipe.next_event() {
            match event {
                PipeEvent::Undeliverable { id, mode, stamp } => {
                    let sent = &mut log.sent[id.0 as usize];
                    assert_eq!(sent.mode, mode);
                    sent.given_back.push(stamp);
                }
                PipeEvent::Removed { rank, .. } => log.removed.push(rank),
                PipeEvent::Ended => log.has_ended = true,
                PipeEvent::Broken { rank, reason } => {
                    assert_ne!(rank, me, "it accuses itself: {reason}");
                    // In a hierarchy, a liar can have a rank take an honest one's messages for late.
                    let may_be = liar.is_some_and(|liar| [me, rank].contains(&liar) || !is_flat);
                    let is_accused = matches!(reason, BreakReason::Refused(_));
                    self.accusations += usize::from(is_accused);
                    assert!(may_be || !is_accused, "rank {rank} breaks the protocol: {reason}");
                }
            }
        }
    }

    /// Lets the network go on until something has happened, or `limit`, and steps the ranks that it concerns. Returns
    /// false if nothing is left to happen.
    pub(crate) fn advance(&mut self, limit: Time) -> bool {
        let deadline =
            |world: &World, rank: usize| if world.runs(rank) { world.pipe(rank).deadline() } else { Time::MAX };
        let due = self.alive().map(|rank| deadline(self, rank)).min().unwrap_or(Time::MAX);
        let waiting: Vec<usize> = self.alive().filter(|&rank| self.runs(rank) && self.has_news(rank)).collect();
        if self.net.next_event().is_none() && due == Time::MAX && waiting.is_empty() && limit == Time::MAX {
            return false;
        }
        let patience = if waiting.is_empty() { Time::MAX } else { self.net.now() + Duration::from_micros(20) };
        let mut ready = Vec::new();
        let now = self.net.advance(due.min(patience).min(limit).max(self.net.now()), &mut ready);
        for rank in 0..self.ranks.len() {
            let Some(alive) = &self.ranks[rank] else { continue };
            let is_told = waiting.contains(&rank);
            if is_told || ready.contains(&alive.fabric.node()) || alive.pipe.deadline() <= now {
                self.step(rank);
            }
        }
        true
    }

    /// Goes on until `done`, within ten seconds of virtual time.
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut World) -> bool) {
        let limit = self.net.now() + Duration::from_secs(10);
        while !done(self) {
            assert!(self.net.now() < limit, "{what}: not within ten seconds");
            assert!(self.advance(Time::MAX), "{what}: nothing is left to happen");
        }
    }

    /// Lets `time` pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        let limit = self.net.now() + time;
        while self.net.now() < limit {
            self.advance(limit);
        }
    }

    /// Goes on until nothing is left to happen: an idle group writes nothing.
    pub(crate) fn drain(&mut self, what: &str) {
        self.is_draining = true;
        let limit = self.net.now() + Duration::from_secs(10);
        // Messages that applications have left undelivered need no event. No rank is stepped without one.
        for rank in 0..self.ranks.len() {
            if self.runs(rank) {
                self.deliver(rank);
            }
        }
        while self.advance(Time::MAX) {
            assert!(self.net.now() < limit, "{what}: it does not become quiet");
        }
    }

    /// Ends the process of a rank, or its host.
    pub(crate) fn crash(&mut self, rank: usize) {
        let node = self.ranks[rank].take().expect("it is alive").fabric.node();
        self.court.crashed.insert(rank);
        // A rank that never reached it does not miss it.
        if self.alive().any(|other| !self.pipe(other).is_reached(rank)) {
            self.court.accuse(rank);
        }
        if self.random.bool() { self.net.crash(node) } else { self.net.power_off(node) }
    }
}
