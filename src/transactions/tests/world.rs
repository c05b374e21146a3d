//! Shards, coordinators and messages in virtual time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fastrand::Rng;
use squall_fabric::{NodeId, Time};
use squall_membership::{Epoch, Seq};
use squall_ordered::log::Hlc;

use crate::{
    clients::{client::ClientError, query::QueryService, wire::Consistency},
    replica::replicated::{Applied, Replicated},
    sim::{Ledger, LedgerAnswer, LedgerCommand, LedgerFate, LedgerQuery, LedgerRecord, LedgerState},
    transactions::{
        Refusal, TransactionAnswer, TransactionCommand, TransactionQuery, TransactionReply, Transactional,
        coordinator::{Coordinator, Effect},
        request::{Ask, RequestFailure, RequestSuccess, ShardCommands},
        script::decode,
    },
};

/// The wall clock's time at the beginning, in nanoseconds.
const EPOCH: u64 = 1_700_000_000_000_000_000;

/// A fault of the protocol, to show that the check notices it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Harm {
    None,
    /// Keys that are read are not locked.
    UnlockedReads,
    /// A shard that has not voted says that it votes against a transaction, and does not remember it.
    ForgottenVotes,
    /// A shard that has voted for a transaction tells some that it has voted against it.
    LyingSettle,
    /// A shard forgets that it has carried a transaction out as soon as it has.
    EarlyForget,
}

struct ShardReplica {
    replica: Transactional<Ledger>,
    time: u64,
    /// The difference of its senders' clocks from the true time.
    ahead: i64,
    /// The time until which it is suspended: what is sent to it waits.
    silent_until: Time,
}

enum Event {
    Command { client: usize, life: u64, call: u64, shard: usize, command: TransactionCommand, is_answered: bool },
    Query { client: usize, life: u64, call: u64, shard: usize, query: TransactionQuery },
    Reply { client: usize, life: u64, call: u64, reply: Result<TransactionReply, ClientError> },
    Answer { client: usize, life: u64, call: u64, answer: Result<TransactionAnswer, ClientError> },
}

/// A request, as the record of its end needs it.
struct Asked {
    writer: u64,
    submitted: Time,
    parts: Vec<(u32, Vec<LedgerCommand>)>,
}

struct ClientSide {
    coordinator: Coordinator,
    life: u64,
    asked: BTreeMap<u64, Asked>,
}

pub(super) struct World {
    rng: Rng,
    harm: Harm,
    now: Time,
    shards: Vec<ShardReplica>,
    /// The coordinators. The first makes no transactions of its own, and watches as members do.
    clients: Vec<ClientSide>,
    events: BTreeMap<(Time, u64), Event>,
    made: u64,
    records: Vec<LedgerRecord>,
}

/// The key of a shard's key, which no other shard has.
fn global(shard: u32, key: u64) -> u64 {
    u64::from(shard) << 32 | key
}

impl World {
    pub(super) fn new(seed: u64, harm: Harm) -> World {
        let mut rng = Rng::with_seed(seed);
        let far = rng.u8(0..4) == 0;
        let shards = (0..rng.u32(2..=4))
            .map(|shard| {
                // Mostly the clocks are some milliseconds apart, and sometimes some ten seconds.
                let most = if far { 20_000_000_000 } else { 5_000_000 };
                let replica = Transactional::new(shard, Ledger::default());
                ShardReplica { replica, time: 0, ahead: rng.i64(-most..=most), silent_until: Time::ZERO }
            })
            .collect();
        let (clients, records) = (Vec::new(), Vec::new());
        let mut world =
            World { rng, harm, now: Time::ZERO, shards, clients, events: BTreeMap::new(), made: 0, records };
        (0..world.rng.usize(2..=5)).for_each(|_| {
            let client = world.new_client();
            world.clients.push(client);
        });
        world
    }

    fn new_client(&mut self) -> ClientSide {
        // Also clients have wrong clocks.
        let ahead = if self.rng.u8(0..8) == 0 { 3_600_000_000_000 } else { 1_000_000 };
        let wall = EPOCH.saturating_add_signed(self.rng.i64(-ahead..=ahead)) + self.now.as_nanos();
        let rng = Rng::with_seed(self.rng.u64(..));
        self.made += 1;
        let (id, shards) = (self.rng.u128(..), self.shards.len() as u32);
        let coordinator = Coordinator::new(id, shards, self.now, Hlc(wall), rng);
        ClientSide { coordinator, life: self.made, asked: BTreeMap::new() }
    }

    /// Lets so much time pass, with requests and faults, or with none.
    pub(super) fn run(&mut self, duration: Duration, is_busy: bool) {
        let until = self.now + duration;
        let mut step = self.now;
        while step < until {
            // When nothing is asked for any more, time may pass in longer steps.
            step = step + if is_busy { Duration::from_millis(2) } else { Duration::from_millis(20) };
            if is_busy {
                self.act();
            }
            self.run_until(step);
            self.wake_shards();
            if self.rng.u8(0..10) == 0 {
                (0..self.shards.len() as u32).for_each(|shard| self.clients[0].coordinator.watch(shard));
            }
        }
    }

    /// Lets time pass in which nothing happens.
    pub(super) fn skip(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    fn run_until(&mut self, until: Time) {
        loop {
            (0..self.clients.len()).for_each(|client| self.carry_out(client));
            let timer = self.clients.iter().filter_map(|client| client.coordinator.wake_at()).min();
            let event = self.events.keys().next().map(|(at, _)| *at);
            let Some(next) = timer.into_iter().chain(event).min().filter(|at| *at <= until) else { break };
            self.now = self.now.max(next);
            let now = self.now;
            self.clients.iter_mut().for_each(|client| client.coordinator.tick(now));
            while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= now) {
                let event = entry.remove();
                self.take(event);
            }
        }
        self.now = until;
    }

    /// Lets clients ask, or makes something go wrong.
    fn act(&mut self) {
        let client = self.rng.usize(0..self.clients.len());
        match self.rng.u8(0..40) {
            0 => {
                let mut gone = self.new_client();
                std::mem::swap(&mut gone, &mut self.clients[client]);
                gone.asked.into_values().for_each(|asked| self.record(&asked, None, LedgerFate::Unknown));
            }
            1 => self.replace_replica(),
            2 => {
                let shard = self.rng.usize(0..self.shards.len());
                self.shards[shard].ahead += self.rng.i64(-3_000_000..=300_000_000);
            }
            3..=27 if client > 0 => self.ask(client),
            28..=32 if client > 0 => self.query(client),
            // Its rounds are given up after 40 s.
            33 if self.rng.u8(0..128) == 0 => {
                let (shard, seconds) = (self.rng.usize(0..self.shards.len()), self.rng.u64(35..=60));
                self.shards[shard].silent_until = self.now + Duration::from_secs(seconds);
            }
            _ => {}
        }
    }

    /// Replaces a shard's replica by one that gets its state.
    fn replace_replica(&mut self) {
        let shard = self.rng.usize(0..self.shards.len());
        let replica = self.copy_of(shard);
        assert_eq!(format!("{replica:?}"), format!("{:?}", self.shards[shard].replica));
        self.shards[shard].replica = replica;
    }

    fn ask(&mut self, client: usize) {
        self.made += 1;
        let writer = self.made;
        let mut keys = BTreeSet::new();
        for _ in 0..self.rng.usize(1..=4) {
            keys.insert((self.rng.u32(0..self.shards.len() as u32), self.rng.u64(0..6)));
        }
        let mut parts: BTreeMap<u32, Vec<LedgerCommand>> = BTreeMap::new();
        for (shard, key) in keys {
            let writes = self.rng.bool();
            let expects = (self.rng.u8(0..16) == 0).then(|| self.rng.u64(0..4));
            let is_careless = self.harm == Harm::UnlockedReads && !writes;
            let command = LedgerCommand { key, writer: writes.then_some(writer), expects, is_careless };
            parts.entry(shard).or_default().push(command);
        }
        let parts: Vec<_> = parts.into_iter().collect();
        let encoded = |commands: &Vec<LedgerCommand>| {
            let encode = |command| rkyv::to_bytes::<rkyv::rancor::Error>(command).expect("it is encoded").to_vec();
            commands.iter().map(encode).collect()
        };
        let asks = parts
            .iter()
            .map(|(shard, commands)| ShardCommands { shard: *shard, commands: encoded(commands) })
            .collect();
        let limit = Duration::from_millis([5, 50, 1000, 5000][self.rng.usize(0..4)]);
        let number = self.clients[client].coordinator.request(self.now, Ask::Commands(asks), limit);
        self.clients[client].asked.insert(number, Asked { writer, submitted: self.now, parts });
    }

    fn query(&mut self, client: usize) {
        let (shard, key) = (self.rng.u32(0..self.shards.len() as u32), self.rng.u64(0..6));
        self.query_of(client, shard, key);
    }

    /// Has a client ask what else a transaction under way has written, whose part in one shard it has seen.
    fn query_rest(&mut self, client: usize, seen: u32, writer: u64) {
        let mut asked = self.clients.iter().flat_map(|client| client.asked.values());
        let Some(asked) = asked.find(|asked| asked.writer == writer) else { return };
        let written = asked.parts.iter().filter(|(shard, _)| *shard != seen);
        let mut written = written.flat_map(|(shard, commands)| commands.iter().map(|one| (*shard, one)));
        if let Some((shard, key)) = written.find(|(_, one)| one.writer.is_some()).map(|(shard, one)| (shard, one.key)) {
            self.query_of(client, shard, key);
        }
    }

    fn query_of(&mut self, client: usize, shard: u32, key: u64) {
        self.made += 1;
        let query = rkyv::to_bytes::<rkyv::rancor::Error>(&LedgerQuery { key: Some(key) }).expect("it is encoded");
        let ask = Ask::Query { shard, query: query.to_vec(), consistency: Consistency::Linearizable };
        // Most messages take a tenth of a second.
        let number = self.clients[client].coordinator.request(self.now, ask, Duration::from_secs(5));
        let read = LedgerCommand { key, writer: None, expects: None, is_careless: false };
        let asked = Asked { writer: self.made, submitted: self.now, parts: vec![(shard, vec![read])] };
        self.clients[client].asked.insert(number, asked);
    }

    fn put(&mut self, after: Duration, event: Event) {
        self.made += 1;
        // Events of one moment would hide what comes first.
        self.events.insert((self.now + after + Duration::from_nanos(1), self.made), event);
    }

    /// The time until a shard gets what is sent now.
    fn way_to(&mut self, shard: usize) -> Duration {
        self.shards[shard].silent_until.since(self.now) + self.delay()
    }

    fn delay(&mut self) -> Duration {
        let most = [100, 1000, 5000, 200_000][self.rng.usize(0..32).min(3)];
        Duration::from_micros(self.rng.u64(0..=most))
    }

    fn carry_out(&mut self, client: usize) {
        let life = self.clients[client].life;
        loop {
            let effects = self.clients[client].coordinator.take_effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    Effect::Resolve { request, result } => self.resolve(client, request, result),
                    Effect::Command { call, shard, command, limit } => {
                        self.send((client, life, call), shard as usize, command, limit);
                    }
                    Effect::Query { call, shard, query, limit, .. } => {
                        let shard = shard as usize;
                        let (delay, trouble) = (self.way_to(shard), "nobody answers".to_owned());
                        let late = Err(ClientError::Deadline { sent: false, trouble });
                        match delay < limit {
                            true => self.put(delay, Event::Query { client, life, call, shard, query }),
                            false => self.put(limit, Event::Answer { client, life, call, answer: late }),
                        }
                    }
                }
            }
        }
    }

    /// Sends a command, which is applied once at most: soon, late, or never.
    fn send(&mut self, to: (usize, u64, u64), shard: usize, command: TransactionCommand, limit: Duration) {
        let ((client, life, call), mut delay) = (to, self.way_to(shard));
        let kind = self.rng.u8(0..64);
        let sent = kind != 0;
        let is_lost = kind < 2;
        let is_late = kind == 2;
        if is_late {
            delay += Duration::from_millis(self.rng.u64(0..=60_000));
        }
        let is_answered = kind > 4 && delay < limit;
        if !is_answered {
            let reply = Err(ClientError::Deadline { sent, trouble: "nobody answers".to_owned() });
            let after = if self.rng.bool() { limit } else { self.delay().min(limit) };
            self.put(after, Event::Reply { client, life, call, reply });
        }
        if !is_lost {
            self.put(delay, Event::Command { client, life, call, shard, command, is_answered });
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Command { client, life, call, shard, command, is_answered } => {
                let reply = self.apply(shard, &command);
                if is_answered {
                    let delay = self.delay();
                    self.put(delay, Event::Reply { client, life, call, reply: Ok(reply) });
                }
            }
            Event::Query { client, life, call, shard, query } => {
                let bytes = rkyv::to_bytes::<rkyv::rancor::Error>(&query).expect("it is encoded");
                let query = rkyv::access::<rkyv::Archived<TransactionQuery>, rkyv::rancor::Error>(&bytes);
                let answer = Ok(self.shards[shard].replica.answer(query.expect("it is a query")));
                let delay = self.delay();
                self.put(delay, Event::Answer { client, life, call, answer });
            }
            Event::Reply { client, life, call, reply } if self.clients[client].life == life => {
                self.clients[client].coordinator.replied(self.now, call, reply);
            }
            Event::Answer { client, life, call, answer } if self.clients[client].life == life => {
                self.clients[client].coordinator.answered(self.now, call, answer);
            }
            Event::Reply { .. } | Event::Answer { .. } => {}
        }
    }

    fn at(&mut self, shard: usize) -> Applied {
        let wall = EPOCH + self.now.as_nanos();
        let shard = &mut self.shards[shard];
        shard.time = wall.saturating_add_signed(shard.ahead).max(shard.time + 1);
        let (epoch, seq, time) = (Epoch(1), Seq(shard.time), Hlc(shard.time));
        Applied { epoch, seq, sender: NodeId(1), time, version: None, follow_up: None }
    }

    fn apply(&mut self, shard: usize, command: &TransactionCommand) -> TransactionReply {
        let at = self.at(shard);
        let before = match (self.harm, command) {
            (Harm::ForgottenVotes | Harm::LyingSettle, TransactionCommand::Settle(_)) => Some(self.copy_of(shard)),
            _ => None,
        };
        let reply = self.shards[shard].apply(command, &at);
        match (self.harm, command, &reply) {
            (Harm::ForgottenVotes, TransactionCommand::Settle(_), TransactionReply::Refused(_)) => {
                self.shards[shard].replica = before.expect("it was copied");
            }
            (Harm::LyingSettle, TransactionCommand::Settle(_), TransactionReply::Prepared) if self.rng.bool() => {
                return TransactionReply::Refused(Refusal::Settled);
            }
            (Harm::EarlyForget, TransactionCommand::Decide { id, commits: true }, _) => {
                let forget = TransactionCommand::Forget { ids: vec![*id], by_coordinator: true };
                self.shards[shard].apply(&forget, &at);
            }
            _ => {}
        }
        reply
    }

    fn copy_of(&self, shard: usize) -> Transactional<Ledger> {
        let mut bytes = Vec::new();
        let snapshot = self.shards[shard].replica.snapshot();
        snapshot.write.expect("it has a snapshot")(&mut bytes).expect("a vector takes all");
        let mut replica = Transactional::new(shard as u32, Ledger::default());
        replica.restore(&mut &bytes[..]).expect("it is a snapshot");
        replica
    }

    /// Wakes the replicas that wait for the time.
    fn wake_shards(&mut self) {
        for shard in 0..self.shards.len() {
            let wall = (EPOCH + self.now.as_nanos()).saturating_add_signed(self.shards[shard].ahead);
            if self.shards[shard].replica.wake_at().is_some_and(|Hlc(at)| at <= wall) {
                let at = self.at(shard);
                self.shards[shard].replica.woken(&at);
            }
        }
    }

    fn resolve(&mut self, client: usize, request: u64, result: Result<RequestSuccess, RequestFailure>) {
        let Some(asked) = self.clients[client].asked.remove(&request) else { return };
        let state = |shard, key, reply: &[u8]| (global(shard, key), decode::<LedgerState>(reply).expect("a reply"));
        let mut next = None;
        let fate = match result {
            Ok(RequestSuccess::Applied(replies)) => {
                let parts = asked.parts.iter().zip(&replies);
                let seen = parts.flat_map(|((shard, commands), replies)| {
                    assert_eq!(commands.len(), replies.len());
                    commands.iter().zip(replies).map(|(command, reply)| state(*shard, command.key, reply))
                });
                LedgerFate::Applied(seen.collect())
            }
            Err(RequestFailure::Refused(shard, Refusal::Service { command, reply })) => {
                let part = asked.parts.iter().find(|part| part.0 == shard).expect("it has a part");
                LedgerFate::Refused(Some(state(shard, part.1[command as usize].key, &reply)))
            }
            Err(RequestFailure::Refused(..) | RequestFailure::Busy(_) | RequestFailure::NotApplied(..)) => {
                LedgerFate::Refused(None)
            }
            // That it takes effect is then known.
            Err(RequestFailure::NoReplies(_)) => LedgerFate::Applied(Vec::new()),
            Err(RequestFailure::Unknown(..)) => LedgerFate::Unknown,
            Ok(RequestSuccess::Answered(answer)) => {
                let (shard, commands) = &asked.parts[0];
                let answer = decode::<LedgerAnswer>(&answer).expect("an answer");
                next = Some((*shard, answer.state.last));
                LedgerFate::Applied(vec![(global(*shard, commands[0].key), answer.state)])
            }
        };
        let ended = (fate != LedgerFate::Unknown).then_some(self.now);
        self.record(&asked, ended, fate);
        if let Some((shard, writer)) = next {
            self.query_rest(client, shard, writer);
        }
    }

    fn record(&mut self, asked: &Asked, ended: Option<Time>, fate: LedgerFate) {
        let commands = asked.parts.iter().flat_map(|(shard, commands)| commands.iter().map(|one| (*shard, one)));
        let writes = commands.filter(|(_, command)| command.writer.is_some());
        self.records.push(LedgerRecord {
            writer: asked.writer,
            submitted: asked.submitted.as_nanos(),
            ended: ended.map(Time::as_nanos),
            writes: writes.map(|(shard, command)| global(shard, command.key)).collect(),
            fate,
        });
    }

    /// All records, also of what has no end yet.
    pub(super) fn records(&mut self) -> Vec<LedgerRecord> {
        for client in 0..self.clients.len() {
            let open = std::mem::take(&mut self.clients[client].asked);
            open.into_values().for_each(|asked| self.record(&asked, None, LedgerFate::Unknown));
        }
        self.records.clone()
    }

    /// The writers of each key, in their order.
    pub(super) fn writers(&self) -> BTreeMap<u64, Vec<u64>> {
        let mut all = BTreeMap::new();
        for (shard, replica) in (0..).zip(&self.shards) {
            let query = rkyv::to_bytes::<rkyv::rancor::Error>(&LedgerQuery { key: None }).expect("it is encoded");
            let query = rkyv::access::<rkyv::Archived<LedgerQuery>, rkyv::rancor::Error>(&query).expect("a query");
            let answer = (*replica.replica).answer(query);
            all.extend(answer.writers.into_iter().map(|(key, writers)| (global(shard, key), writers)));
        }
        all
    }

    /// Whether no shard remembers a transaction.
    pub(super) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.replica.remembered() == 0)
    }

    pub(super) fn tables(&self) -> Vec<&Transactional<Ledger>> {
        self.shards.iter().map(|shard| &shard.replica).collect()
    }
}

impl ShardReplica {
    fn apply(&mut self, command: &TransactionCommand, at: &Applied) -> TransactionReply {
        let bytes = rkyv::to_bytes::<rkyv::rancor::Error>(command).expect("it is encoded");
        let command = rkyv::access::<rkyv::Archived<TransactionCommand>, rkyv::rancor::Error>(&bytes);
        self.replica.apply(command.expect("it is a command"), at)
    }
}
