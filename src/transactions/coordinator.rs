//! The rules by which transactions are carried out and settled, without threads, sockets and clocks.
//!
//! A [`Coordinator`] takes requests, answers and the time, and tells its [effects](Effect).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fastrand::Rng;
use squall_fabric::Time;
use squall_ordered::log::Hlc;

use super::{
    message::{
        Holder, Refusal, Scope, TransactionAnswer, TransactionCommand, TransactionId, TransactionQuery,
        TransactionReply,
    },
    request::{Ask, RequestFailure, RequestSuccess, ShardCommands},
    round::{Next, Round, Trouble},
    table::{LIFE, STALE},
};
use crate::clients::{client::ClientError, wire::Consistency};

/// The limits of messages that settle and decide, which are sent again.
const MESSAGE_LIMIT: Duration = Duration::from_secs(2);

/// The time after which a transaction that can't be ended is left to others.
const GIVE_UP: Duration = Duration::from_secs(40);

/// The longest pause before another attempt, and the shortest.
const PAUSES: [Duration; 2] = [Duration::from_micros(500), Duration::from_millis(20)];

/// The first pause before a message without an answer is sent again, and the longest.
const AGAIN: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];

/// The number of others' transactions up to which those that shards name as stale are settled at once.
const MOST_SETTLED: usize = 256;

/// The number of attempts that fail by the shards' times, until the request does.
const MOST_EXPIRED: u32 = 3;

/// The transactions that one message has forgotten, and the time for which they are gathered.
const FORGET_AT_ONCE: usize = 64;
const FORGET_AFTER: Duration = Duration::from_millis(20);

/// A thing to do for the coordinator.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    /// Submit a command, and tell the reply: [`Coordinator::replied`].
    Command { call: u64, shard: u32, command: TransactionCommand, limit: Duration },
    /// Ask a query, and tell the answer: [`Coordinator::answered`].
    Query { call: u64, shard: u32, query: TransactionQuery, consistency: Consistency, limit: Duration },
    /// Tell a caller the result.
    Resolve { request: u64, result: Result<RequestSuccess, RequestFailure> },
}

#[derive(Debug)]
struct CallerRequest {
    ask: Ask,
    deadline: Time,
    attempts: u32,
    expired: u32,
    /// The round of the current attempt.
    round: Option<TransactionId>,
}

/// The purpose of a call under way.
#[derive(Debug)]
enum Purpose {
    Request(u64),
    Round(TransactionId, usize),
    Watch,
    Forget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Retry(u64),
    Deadline(u64),
    Again(TransactionId, usize),
    GiveUp(TransactionId),
    Forget,
}

/// The transactions of one client, and those of others that it settles.
#[derive(Debug)]
pub(crate) struct Coordinator {
    id: u128,
    /// The number of the group's shards.
    shards: u32,
    rng: Rng,
    /// The wall clock's time at the clock's origin, corrected by what shards have said.
    origin: i128,
    next: u64,
    requests: BTreeMap<u64, CallerRequest>,
    rounds: BTreeMap<TransactionId, Round>,
    calls: BTreeMap<u64, Purpose>,
    timers: BTreeSet<(Time, Timer)>,
    /// The transactions that all of their shards have carried out, by shard that is to forget them.
    forget: BTreeMap<u32, Vec<TransactionId>>,
    effects: Vec<Effect>,
}

impl Coordinator {
    /// Makes a coordinator of a group with so many shards. `id` is a random number that nobody can guess, and `wall`
    /// the wall clock's time at `now`.
    pub(crate) fn new(id: u128, shards: u32, now: Time, wall: Hlc, rng: Rng) -> Coordinator {
        Coordinator {
            id,
            shards,
            rng,
            origin: i128::from(wall.0) - i128::from(now.as_nanos()),
            next: 0,
            requests: BTreeMap::new(),
            rounds: BTreeMap::new(),
            calls: BTreeMap::new(),
            timers: BTreeSet::new(),
            forget: BTreeMap::new(),
            effects: Vec::new(),
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn wall(&self, now: Time) -> u64 {
        u64::try_from(self.origin + i128::from(now.as_nanos())).unwrap_or_default()
    }

    /// Returns what is to be done, in this order.
    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The time of the next [`tick`](Coordinator::tick).
    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.rounds.is_empty() && self.calls.is_empty()
    }

    /// Takes a request, and returns its number.
    pub(crate) fn request(&mut self, now: Time, ask: Ask, limit: Duration) -> u64 {
        let (number, deadline) = (self.number(), now + limit);
        self.requests.insert(number, CallerRequest { ask, deadline, attempts: 0, expired: 0, round: None });
        self.begin(now, number);
        number
    }

    /// Begins an attempt.
    fn begin(&mut self, now: Time, number: u64) {
        let Some(CallerRequest { ask, deadline, .. }) = self.requests.get(&number) else { return };
        let (ask, deadline) = (ask.clone(), *deadline);
        let limit = deadline.since(now);
        match ask {
            Ask::Commands(parts) if parts.is_empty() => self.resolve(number, Ok(RequestSuccess::Applied(Vec::new()))),
            Ask::Commands(mut parts) if parts.len() == 1 => {
                let ShardCommands { shard, commands } = parts.remove(0);
                self.send(Purpose::Request(number), shard, TransactionCommand::Apply(commands), limit);
            }
            Ask::Commands(parts) => self.attempt(now, number, parts, deadline),
            Ask::Query { shard, query, consistency } => {
                let query = TransactionQuery::Ask { query, ignores_locks: consistency == Consistency::Local };
                let call = self.number();
                self.calls.insert(call, Purpose::Request(number));
                self.effects.push(Effect::Query { call, shard, query, consistency, limit });
            }
        }
    }

    fn attempt(&mut self, now: Time, number: u64, parts: Vec<ShardCommands>, deadline: Time) {
        let id = TransactionId { coordinator: self.id, number: self.number() };
        let expires = self.wall(now).saturating_add(LIFE.as_nanos() as u64);
        let shards = parts.iter().map(|part| part.shard).collect();
        let commands = parts.into_iter().map(|part| part.commands).collect();
        let round = Round::attempt(Scope { id, shards, expires }, commands, number, now + GIVE_UP);
        if let Some(request) = self.requests.get_mut(&number) {
            request.round = Some(id);
        }
        self.timers.insert((deadline, Timer::Deadline(number)));
        // Time is left to ask a shard that does not answer for its vote.
        self.enter(round, (deadline.since(now) * 3 / 4).min(LIFE));
    }

    /// Settles a transaction, unless that is under way. One of shards that do not exist can't be settled.
    fn settle(&mut self, now: Time, scope: Scope) {
        if !self.rounds.contains_key(&scope.id) && scope.shards.iter().all(|shard| *shard < self.shards) {
            self.enter(Round::settlement(scope, now + GIVE_UP), MESSAGE_LIMIT);
        }
    }

    fn enter(&mut self, round: Round, limit: Duration) {
        let (id, places) = (round.scope.id, round.len());
        self.timers.insert((round.give_up, Timer::GiveUp(id)));
        self.rounds.insert(id, round);
        (0..places).for_each(|place| self.send_place(id, place, limit));
    }

    fn send_place(&mut self, id: TransactionId, place: usize, limit: Duration) {
        if let Some((shard, command)) = self.rounds.get(&id).and_then(|round| round.command(place)) {
            self.send(Purpose::Round(id, place), shard, command, limit);
        }
    }

    fn send(&mut self, purpose: Purpose, shard: u32, command: TransactionCommand, limit: Duration) {
        let call = self.number();
        self.calls.insert(call, purpose);
        self.effects.push(Effect::Command { call, shard, command, limit });
    }

    /// Asks a shard for transactions that nobody ends, to settle them.
    pub(crate) fn watch(&mut self, shard: u32) {
        let query = TransactionQuery::Stale { start: self.rng.u64(..) };
        let (call, consistency) = (self.number(), Consistency::Local);
        self.calls.insert(call, Purpose::Watch);
        self.effects.push(Effect::Query { call, shard, query, consistency, limit: MESSAGE_LIMIT });
    }

    /// Takes the reply to a command.
    pub(crate) fn replied(&mut self, now: Time, call: u64, reply: Result<TransactionReply, ClientError>) {
        match self.calls.remove(&call) {
            Some(Purpose::Request(number)) => self.replied_alone(now, number, reply),
            Some(Purpose::Round(id, place)) => self.replied_round(now, id, place, reply),
            _ => {}
        }
    }

    /// Takes the reply to the commands of one shard.
    fn replied_alone(&mut self, now: Time, number: u64, reply: Result<TransactionReply, ClientError>) {
        let Some(shard) = self.shard_of(number) else { return };
        let failure = match reply {
            Ok(TransactionReply::Applied(replies)) => {
                return self.resolve(number, Ok(RequestSuccess::Applied(vec![replies])));
            }
            Ok(TransactionReply::Refused(refusal)) => return self.refused(now, number, shard, refusal),
            Ok(other) => RequestFailure::Unknown(shard, format!("{other:?}")),
            // The reply may be a refusal.
            Err(ClientError::NoReply | ClientError::Reply(_)) => RequestFailure::Unknown(shard, NO_REPLY.to_owned()),
            Err(error) if error.is_not_applied() => RequestFailure::NotApplied(shard, error),
            Err(error) => RequestFailure::Unknown(shard, error.to_string()),
        };
        self.resolve(number, Err(failure));
    }

    /// Takes the answer to a query.
    pub(crate) fn answered(&mut self, now: Time, call: u64, answer: Result<TransactionAnswer, ClientError>) {
        match (self.calls.remove(&call), answer) {
            (Some(Purpose::Watch), Ok(TransactionAnswer::Stale(scopes))) => {
                let under_way = self.rounds.values().filter(|round| !round.is_own).count();
                let scopes = scopes.into_iter().take(MOST_SETTLED.saturating_sub(under_way));
                scopes.for_each(|scope| self.settle(now, scope));
            }
            (Some(Purpose::Request(number)), answer) => {
                let Some(shard) = self.shard_of(number) else { return };
                match answer {
                    Ok(TransactionAnswer::Answered(answer)) => {
                        self.resolve(number, Ok(RequestSuccess::Answered(answer)));
                    }
                    Ok(TransactionAnswer::Busy(holder)) => self.refused(now, number, shard, Refusal::Busy(holder)),
                    Ok(_) => self.resolve(number, Err(RequestFailure::Refused(shard, Refusal::Invalid))),
                    Err(error) => self.resolve(number, Err(RequestFailure::NotApplied(shard, error))),
                }
            }
            _ => {}
        }
    }

    fn shard_of(&self, number: u64) -> Option<u32> {
        match &self.requests.get(&number)?.ask {
            Ask::Commands(parts) => parts.first().map(|part| part.shard),
            Ask::Query { shard, .. } => Some(*shard),
        }
    }

    fn replied_round(
        &mut self,
        now: Time,
        id: TransactionId,
        place: usize,
        reply: Result<TransactionReply, ClientError>,
    ) {
        let Some(round) = self.rounds.get_mut(&id) else { return };
        for next in round.heard(place, reply) {
            match next {
                Next::Send(place) => self.send_place(id, place, MESSAGE_LIMIT),
                Next::Again(place, times) => {
                    let [shortest, longest] = AGAIN;
                    let pause = self.pause((shortest * (1 << times.min(6))).min(longest));
                    self.timers.insert((now + pause, Timer::Again(id, place)));
                }
            }
        }
        self.conclude(now, id);
    }

    /// Tells the caller of a round that has come to its outcome, and ends one that all of its shards know.
    fn conclude(&mut self, now: Time, id: TransactionId) {
        let Some(round) = self.rounds.get_mut(&id) else { return };
        let (is_over, is_own, shards) = (round.is_over(), round.is_own, round.scope.shards.clone());
        let (outcome, give_up) = (round.outcome, round.give_up);
        let request = round.request.filter(|_| outcome == Some(false) || is_over);
        if let Some(number) = request {
            round.request = None;
            let (trouble, replies) = (round.trouble.take(), round.take_replies());
            match (outcome, trouble) {
                (Some(false), Some((shard, trouble))) => self.troubled(now, number, shard, trouble),
                _ => {
                    let result = replies.map(RequestSuccess::Applied).map_err(RequestFailure::NoReplies);
                    self.resolve(number, result);
                }
            }
        }
        if !is_over {
            return;
        }
        self.rounds.remove(&id);
        self.timers.remove(&(give_up, Timer::GiveUp(id)));
        match outcome {
            Some(true) if is_own => shards.into_iter().for_each(|shard| self.forget(now, shard, id)),
            // Those shards by whose time it has not expired pay no heed: its coordinator may ask them still.
            Some(true) => shards.into_iter().for_each(|shard| {
                let command = TransactionCommand::Forget { ids: vec![id], by_coordinator: false };
                self.send(Purpose::Forget, shard, command, MESSAGE_LIMIT);
            }),
            _ => {}
        }
    }

    fn troubled(&mut self, now: Time, number: u64, shard: u32, trouble: Trouble) {
        match trouble {
            Trouble::Refused(refusal) => self.refused(now, number, shard, refusal),
            Trouble::NotApplied(error) => self.resolve(number, Err(RequestFailure::NotApplied(shard, error))),
            Trouble::Unanswered(trouble) => self.resolve(number, Err(RequestFailure::Unknown(shard, trouble))),
        }
    }

    /// Takes note that a shard has refused an attempt, and makes another one where that is of use.
    fn refused(&mut self, now: Time, number: u64, shard: u32, refusal: Refusal) {
        let Some(request) = self.requests.get_mut(&number) else { return };
        match refusal {
            Refusal::Busy(Holder { scope, age }) if u128::from(age) >= STALE.as_nanos() => {
                self.retry(now, number, shard);
                self.settle(now, scope);
            }
            Refusal::Busy(_) | Refusal::Settled => self.retry(now, number, shard),
            Refusal::Expired { time } if request.expired < MOST_EXPIRED => {
                request.expired += 1;
                self.origin = i128::from(time) - i128::from(now.as_nanos());
                self.retry(now, number, shard);
            }
            refusal => self.resolve(number, Err(RequestFailure::Refused(shard, refusal))),
        }
    }

    fn retry(&mut self, now: Time, number: u64, shard: u32) {
        let Some(request) = self.requests.get_mut(&number) else { return };
        let [shortest, longest] = PAUSES;
        let pause = (shortest * (1 << request.attempts.min(6))).min(longest);
        request.attempts += 1;
        request.round = None;
        let deadline = request.deadline;
        let at = now + self.pause(pause);
        if at < deadline {
            self.timers.insert((at, Timer::Retry(number)));
        } else {
            self.resolve(number, Err(RequestFailure::Busy(shard)));
        }
    }

    /// A random pause of about this length.
    fn pause(&mut self, about: Duration) -> Duration {
        about / 2 + Duration::from_nanos(self.rng.u64(0..=about.as_nanos() as u64))
    }

    fn resolve(&mut self, number: u64, result: Result<RequestSuccess, RequestFailure>) {
        if let Some(request) = self.requests.remove(&number) {
            self.timers.remove(&(request.deadline, Timer::Deadline(number)));
            self.effects.push(Effect::Resolve { request: number, result });
        }
    }

    /// Has a shard forget a transaction soon.
    fn forget(&mut self, now: Time, shard: u32, id: TransactionId) {
        if self.forget.is_empty() {
            self.timers.insert((now + FORGET_AFTER, Timer::Forget));
        }
        let ids = self.forget.entry(shard).or_default();
        ids.push(id);
        if ids.len() >= FORGET_AT_ONCE {
            let ids = std::mem::take(ids);
            self.send_forget(shard, ids);
        }
    }

    fn send_forget(&mut self, shard: u32, ids: Vec<TransactionId>) {
        if !ids.is_empty() {
            let command = TransactionCommand::Forget { ids, by_coordinator: true };
            self.send(Purpose::Forget, shard, command, MESSAGE_LIMIT);
        }
    }

    /// Has all shards forget at once what they need not remember for this coordinator.
    pub(crate) fn flush(&mut self) {
        for (shard, ids) in std::mem::take(&mut self.forget) {
            self.send_forget(shard, ids);
        }
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, now: Time) {
        while let Some(&(at, timer)) = self.timers.first().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Retry(number) => self.begin(now, number),
                Timer::Deadline(number) => self.too_late(number),
                Timer::Again(id, place) => self.send_place(id, place, MESSAGE_LIMIT),
                Timer::GiveUp(id) => self.give_up(id),
                Timer::Forget => self.flush(),
            }
        }
    }

    /// Ends a transaction's request at its deadline. Its round goes on, so that its locks are taken back.
    fn too_late(&mut self, number: u64) {
        let Some(CallerRequest { ask, round, .. }) = self.requests.get(&number) else { return };
        let round = round.and_then(|id| self.rounds.get_mut(&id));
        let failure = match (round, ask) {
            (Some(round), _) => {
                round.request = None;
                let shard = round.open().unwrap_or_default();
                match round.outcome {
                    Some(true) => RequestFailure::NoReplies(shard),
                    _ => RequestFailure::Unknown(shard, "the deadline has passed".to_owned()),
                }
            }
            (None, Ask::Commands(parts)) => RequestFailure::Busy(parts.first().map_or(0, |part| part.shard)),
            (None, Ask::Query { shard, .. }) => RequestFailure::Busy(*shard),
        };
        self.resolve(number, Err(failure));
    }

    fn give_up(&mut self, id: TransactionId) {
        let Some(round) = self.rounds.remove(&id) else { return };
        // Another round of the transaction, which may come, must not take their answers for its own.
        self.calls.retain(|_, purpose| !matches!(purpose, Purpose::Round(of, _) if *of == id));
        self.timers.retain(|(_, timer)| !matches!(timer, Timer::Again(of, _) if *of == id));
        if let Some(number) = round.request {
            let shard = round.open().unwrap_or_default();
            let failure = match round.outcome {
                Some(true) => RequestFailure::NoReplies(shard),
                _ => RequestFailure::Unknown(shard, "the shard does not answer".to_owned()),
            };
            self.resolve(number, Err(failure));
        }
    }
}

const NO_REPLY: &str = "its reply is too long to be kept for clients, or could not be read";
