//! The protocol of a client, without threads, sockets or a clock.
//!
//! A command gets its number when it is first sent. Until it is answered it is sent again over every new connection,
//! under the same session and number; so it is applied once, however many copies arrive. A command that is given up at
//! its deadline no longer holds the acknowledged mark back: once the mark has passed it, no copy of it is applied any
//! more.

mod everyone;
mod pinned;
mod refusals;
mod resend;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use squall_fabric::Time;
use squall_membership::MAX_SHARDS;

use self::{everyone::Everyone, pinned::Pinned, resend::Resend};
use super::{
    effect::{Ask, CallId, ClientEffect},
    error::ClientError,
    watches::Watches,
};
use crate::{
    calls::session::{Refusal, SessionId},
    clients::{
        contacts::{Contacts, MOST_BACK_OFF},
        wire::{Members, ToClient, ToNode, VERSION, WireOutcome},
    },
};

/// The time of silence after which a connection is given up, unless another one is set.
pub(crate) const SILENCE: Duration = Duration::from_secs(3);

/// The number of pings in that time.
const PINGS: u32 = 3;

#[derive(Debug)]
enum ConnectionState {
    /// No connection. The next attempt is due at this time.
    Down(Time),
    Dialing,
    /// The hello was sent.
    Greeting,
    Up,
}

#[derive(Debug)]
enum ClientSession {
    None,
    /// A session was requested with this key.
    Opening(u64),
    /// A refusal, since as many sessions were open as may be; the next try is due at this time.
    Refused(Time),
    Open {
        id: SessionId,
        window: u64,
    },
}

#[derive(Debug)]
struct OutstandingCall {
    ask: Ask,
    deadline: Time,
    /// The command's number, once it was sent.
    number: Option<u64>,
}

#[derive(Debug)]
struct Sent {
    call: CallId,
    /// The number of copies that were sent.
    copies: u32,
    /// Whether a copy was refused, so that another is to be sent.
    again: bool,
    /// Whether it was answered, and is kept until all members have answered.
    is_answered: bool,
}

/// The client.
#[derive(Debug)]
pub(crate) struct ClientCore {
    group: String,
    contacts: Contacts,
    /// The number of the group's shards, once a node has told it.
    shards: Option<u32>,
    /// The time of silence after which a connection is given up.
    silence: Duration,
    link: ConnectionState,
    /// The time at which the connection last brought something; and the time of the next ping.
    heard: Time,
    ping_at: Time,
    session: ClientSession,
    session_timeout: Duration,
    /// The time of the last message in the session.
    acted: Time,
    request_bytes: usize,
    calls: BTreeMap<CallId, OutstandingCall>,
    deadlines: BTreeSet<(Time, CallId)>,
    /// The commands that have no number.
    queued: VecDeque<CallId>,
    /// The commands that have one, by number.
    sent: BTreeMap<u64, Sent>,
    next_number: u64,
    /// The pace at which commands that were refused are sent again.
    resend: Resend,
    pub(super) watches: Watches,
    random: fastrand::Rng,
    /// The reason for which there is no connection, or no session.
    trouble: String,
    everyone: Everyone,
    /// The state of a client that talks to one member alone, beside another client's commands.
    pinned: Option<Pinned>,
}

impl ClientCore {
    pub(crate) fn new(group: String, contacts: Contacts, random: fastrand::Rng) -> ClientCore {
        ClientCore {
            group,
            contacts,
            shards: None,
            silence: SILENCE,
            link: ConnectionState::Down(Time::ZERO),
            heard: Time::ZERO,
            ping_at: Time::ZERO,
            session: ClientSession::None,
            session_timeout: Duration::MAX,
            acted: Time::ZERO,
            request_bytes: usize::MAX,
            calls: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            queued: VecDeque::new(),
            sent: BTreeMap::new(),
            next_number: 0,
            resend: Resend::default(),
            watches: Watches::default(),
            random,
            trouble: "no member has been reached yet".to_owned(),
            everyone: Everyone::default(),
            pinned: None,
        }
    }

    /// Sets the time of silence after which a connection is given up.
    pub(crate) fn with_silence(self, silence: Duration) -> ClientCore {
        ClientCore { silence, ..self }
    }

    /// Takes a new call.
    pub(crate) fn call(&mut self, now: Time, id: CallId, ask: Ask, deadline: Time, out: &mut Vec<ClientEffect>) {
        match &ask {
            Ask::Command(_) | Ask::All(_) => self.queued.push_back(id),
            ask if self.is_up() => out.extend(ask.query(id)),
            _ => {}
        }
        let (asks_shards, is_choice) = (matches!(ask, Ask::Shards), matches!(ask, Ask::At(..) | Ask::Nearest(..)));
        self.calls.insert(id, OutstandingCall { ask, deadline, number: None });
        self.deadlines.insert((deadline, id));
        if asks_shards {
            self.tell_shards(out);
        }
        if is_choice {
            self.begin_choice(id, out);
        }
        self.tick(now, out);
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.link, ConnectionState::Up)
    }

    /// Takes the members of a view that the client's own node has installed.
    pub(crate) fn learn(&mut self, members: Members) {
        self.contacts.learn(members);
    }

    /// Reports that the requested connection is established.
    pub(crate) fn connected(&mut self, now: Time, out: &mut Vec<ClientEffect>) {
        self.link = ConnectionState::Greeting;
        self.heard = now;
        self.ping_at = now + self.silence / PINGS;
        out.push(ClientEffect::Send(ToNode::Hello { version: VERSION, group: self.group.clone() }));
    }

    /// Reports that the requested connection was not established, or has ended.
    pub(crate) fn broken(&mut self, now: Time, why: String, out: &mut Vec<ClientEffect>) {
        self.redirected(now, why, Members::default(), out);
    }

    /// Goes on at another node, preferably one of these members.
    fn redirected(&mut self, now: Time, why: String, members: Members, out: &mut Vec<ClientEffect>) {
        self.trouble = why;
        self.cut_off(out);
        if matches!(self.session, ClientSession::Opening(_)) {
            // Whether the session was opened is unknown. If it was, the group ends it when it is idle.
            self.session = ClientSession::None;
        }
        // The pause is random, so that clients that lost the same node do not all come at once.
        let pause = self.contacts.redirect(members).map(|pause| pause.mul_f64(0.5 + self.random.f64()));
        // As for the contacts, an earlier view may be that of a group that was founded anew.
        self.everyone.may_fall |= pause.is_some();
        self.link = ConnectionState::Down(now + pause.unwrap_or_default());
        self.tick(now, out);
    }

    /// Takes a message of the connection.
    pub(crate) fn heard(&mut self, now: Time, message: ToClient, out: &mut Vec<ClientEffect>) {
        self.heard = now;
        match message {
            ToClient::Welcome { members, session_timeout_ms, request_bytes } => {
                self.contacts.learn(members);
                self.session_timeout = Duration::from_millis(session_timeout_ms);
                self.request_bytes = usize::try_from(request_bytes).unwrap_or(usize::MAX);
                self.link = ConnectionState::Up;
                self.hear_shards(None, out);
                self.resume(now, out);
            }
            ToClient::Shards(shards) if (1..=MAX_SHARDS).contains(&shards) => self.hear_shards(Some(shards), out),
            ToClient::Shards(shards) => {
                out.push(ClientEffect::HangUp);
                return self.broken(now, format!("a node says that the group has {shards} shards"), out);
            }
            ToClient::Members(members) => self.contacts.learn(members),
            ToClient::Holders(_) | ToClient::NotApplied { .. } => self.hear_of_members(message, out),
            ToClient::Away { why, members } => {
                if members.epoch > 0 {
                    self.hear_shards(None, out);
                }
                out.push(ClientEffect::HangUp);
                return self.redirected(now, why, members, out);
            }
            ToClient::Opened { session, window } => {
                if matches!(self.session, ClientSession::Opening(key) if key == session.key) {
                    self.session = ClientSession::Open { id: session, window: u64::from(window.max(1)) };
                    self.acted = now;
                    self.contacts.succeed();
                }
            }
            ToClient::NotOpened { key, why } => {
                if matches!(self.session, ClientSession::Opening(asked) if asked == key) {
                    self.trouble = why;
                    self.session = ClientSession::Refused(now + MOST_BACK_OFF);
                }
            }
            ToClient::Answered { number, result } => self.answered(now, number, result, out),
            ToClient::Refused { number, why: Refusal::Unknown } => self.lose_session(number, out),
            ToClient::Refused { number, why: Refusal::Window | Refusal::Replies } => {
                if let Some(sent) = self.sent.get_mut(&number) {
                    sent.again = true;
                    self.resend.refused(now);
                }
            }
            ToClient::Rejected { number, why } => self.rejected(number, why, out),
            ToClient::Told { number, answer } => {
                let id = CallId(number);
                let ask = self.calls.get(&id).map(|call| &call.ask);
                if matches!(ask, Some(Ask::Query(..) | Ask::TryQuery(..))) {
                    self.contacts.succeed();
                    self.resolve(id, answer.map_err(ClientError::Query), out);
                }
            }
            ToClient::Pong => self.ponged(now, out),
            ToClient::Denied { only_commands, why } => return self.denied(now, only_commands, why, out),
            message => match self.watches.heard(message, out) {
                Ok(goes_on) => _ = goes_on.then(|| self.contacts.succeed()),
                Err(why) => {
                    out.push(ClientEffect::HangUp);
                    return self.broken(now, why, out);
                }
            },
        }
        self.tick(now, out);
    }

    fn answered(&mut self, now: Time, number: u64, result: WireOutcome, out: &mut Vec<ClientEffect>) {
        let result = ClientError::of_outcome(result);
        if self.pinned.is_some() {
            return self.answered_here(number, result, out);
        }
        let Some(sent) = self.sent.get_mut(&number) else { return };
        self.contacts.succeed();
        self.resend.answered(now);
        let call = sent.call;
        if matches!(self.calls.get(&call), Some(OutstandingCall { ask: Ask::All(_), .. })) {
            sent.is_answered = true;
        } else {
            self.sent.remove(&number);
            self.resolve(call, result, out);
        }
    }

    /// Does everything that is due.
    pub(crate) fn tick(&mut self, now: Time, out: &mut Vec<ClientEffect>) {
        while let Some(&(deadline, id)) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now) {
            self.deadlines.remove(&(deadline, id));
            let Some(call) = self.calls.get(&id) else { continue };
            let sent = call.number.is_some() || matches!(call.ask, Ask::Answer(..));
            if let Some(number) = call.number {
                self.sent.remove(&number);
            }
            self.resolve(id, Err(ClientError::Deadline { sent, trouble: self.trouble.clone() }), out);
        }
        self.watches.expire(now, self.is_up(), &self.trouble, out);
        match self.link {
            ConnectionState::Down(at) if at <= now && self.is_needed() => self.dial(now, out),
            ConnectionState::Greeting | ConnectionState::Up if now.since(self.heard) >= self.silence => {
                out.push(ClientEffect::HangUp);
                let why = format!("a member said nothing for {:?}", self.silence);
                self.broken(now, why, out);
            }
            ConnectionState::Up => self.go_on(now, out),
            ConnectionState::Down(_) | ConnectionState::Dialing | ConnectionState::Greeting => {}
        }
    }

    /// Returns the time at which the next [`tick`](ClientCore::tick) is due.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let link = match self.link {
            ConnectionState::Down(at) if self.is_needed() => Some(at),
            ConnectionState::Down(_) | ConnectionState::Dialing => None,
            ConnectionState::Greeting => Some(self.heard + self.silence),
            ConnectionState::Up => {
                let session = match self.session {
                    ClientSession::Refused(at) if !self.queued.is_empty() => Some(at),
                    _ => None,
                };
                let is_open = matches!(self.session, ClientSession::Open { .. });
                let again = self.resend.at().filter(|_| is_open);
                [Some(self.heard + self.silence), Some(self.ping_at), again, session, self.rests_at()]
                    .into_iter()
                    .flatten()
                    .min()
            }
        };
        let call = self.deadlines.first().map(|(deadline, _)| *deadline);
        call.into_iter().chain(link).chain(self.watches.deadline()).min()
    }

    /// Ends the client.
    pub(crate) fn close(&mut self, out: &mut Vec<ClientEffect>) {
        if let (ConnectionState::Up, ClientSession::Open { id, .. }) = (&self.link, &self.session) {
            out.push(ClientEffect::Send(ToNode::Close { session: *id }));
        }
        for (id, call) in std::mem::take(&mut self.calls) {
            out.push(ClientEffect::Resolve(id, Err(ClientError::Closed { sent: call.number.is_some() })));
        }
        self.watches.end_all(&ClientError::Closed { sent: false }, out);
        out.push(ClientEffect::HangUp);
    }

    /// Tells whether a connection has any use.
    fn is_needed(&self) -> bool {
        !self.calls.is_empty() || !self.watches.is_empty() || matches!(self.session, ClientSession::Open { .. })
    }

    fn dial(&mut self, now: Time, out: &mut Vec<ClientEffect>) {
        match self.contacts.next() {
            Ok(contact) => {
                self.link = ConnectionState::Dialing;
                out.push(ClientEffect::Dial(contact));
            }
            Err(why) => {
                self.trouble = why;
                self.link = ConnectionState::Down(now + MOST_BACK_OFF);
            }
        }
    }

    /// Returns the first number whose command is not answered.
    fn acknowledged(&self) -> u64 {
        self.sent.first_key_value().map_or(self.next_number, |(&number, _)| number)
    }

    /// Sends everything again that is not answered, on a fresh connection.
    fn resume(&mut self, now: Time, out: &mut Vec<ClientEffect>) {
        if let ClientSession::Open { id, .. } = self.session {
            out.push(ClientEffect::Send(ToNode::Resume { session: id }));
            self.sent.values_mut().for_each(|sent| sent.again = !sent.is_answered);
            self.resend.all(now);
        }
        out.extend(self.calls.iter().filter_map(|(&id, call)| call.ask.query(id)));
        self.watches.resume(out);
        self.choose_all(out);
    }

    /// Sends the messages that are due on an established connection.
    fn go_on(&mut self, now: Time, out: &mut Vec<ClientEffect>) {
        if self.rest(now, out) {
            return;
        }
        self.go_on_pinned(now, out);
        while self.queued.front().is_some_and(|id| !self.calls.contains_key(id)) {
            self.queued.pop_front();
        }
        match self.session {
            ClientSession::Open { id, window } => self.go_on_in(id, window, now, out),
            ClientSession::None if self.queued.is_empty() => {}
            ClientSession::Refused(at) if at > now || self.queued.is_empty() => {}
            ClientSession::None | ClientSession::Refused(_) => {
                // Each attempt has a new key: of two sessions opened with one key, either could be taken for the other.
                let key = self.random.u64(..);
                self.session = ClientSession::Opening(key);
                out.push(ClientEffect::Send(ToNode::Open { key }));
            }
            ClientSession::Opening(_) => {}
        }
        if self.ping_at <= now {
            self.ping_at = now + self.silence / PINGS;
            out.push(ClientEffect::Send(ToNode::Ping));
        }
    }

    fn go_on_in(&mut self, session: SessionId, window: u64, now: Time, out: &mut Vec<ClientEffect>) {
        let acknowledged = self.acknowledged();
        let request = |number, call: Option<&OutstandingCall>| {
            let (Ask::Command(command) | Ask::All(command)) = &call?.ask else { return None };
            let command = command.clone();
            Some(ClientEffect::Send(ToNode::Request { session, number, acknowledged, command }))
        };
        self.resend.pass(now, acknowledged);
        let due = self.resend.due(now);
        if due > 0 {
            for (&number, sent) in self.sent.iter_mut().filter(|(_, sent)| sent.again).take(due) {
                sent.again = false;
                sent.copies += 1;
                out.extend(request(number, self.calls.get(&sent.call)));
                self.acted = now;
            }
            if !self.sent.values().any(|sent| sent.again) {
                self.resend.stop();
            }
        }
        while self.next_number < acknowledged + window {
            let Some(&id) = self.queued.front() else { break };
            if !self.everyone.knows_members() && self.calls.get(&id).is_some_and(|call| call.ask.is_for_all()) {
                break;
            }
            self.queued.pop_front();
            let Some(call) = self.calls.get_mut(&id) else { continue };
            if matches!(&call.ask, Ask::Command(command) | Ask::All(command) if command.len() > self.request_bytes) {
                let error = ClientError::too_long(self.request_bytes);
                self.deadlines.remove(&(call.deadline, id));
                self.calls.remove(&id);
                out.push(ClientEffect::Resolve(id, Err(error)));
                return self.go_on_in(session, window, now, out);
            }
            call.number = Some(self.next_number);
            self.sent.insert(self.next_number, Sent { call: id, copies: 1, again: false, is_answered: false });
            // Members are listened to before they can answer.
            self.gather(id, session, self.next_number, out);
            out.extend(request(self.next_number, self.calls.get(&id)));
            self.next_number += 1;
            self.acted = now;
        }
        if now.since(self.acted) >= self.session_timeout / 3 {
            self.acted = now;
            out.push(ClientEffect::Send(ToNode::Touch { session, acknowledged }));
        }
    }

    /// Takes the number of shards that a node has told; by its silence there is one.
    fn hear_shards(&mut self, shards: Option<u32>, out: &mut Vec<ClientEffect>) {
        self.shards = shards.or(self.shards).or(Some(1));
        self.tell_shards(out);
    }

    /// Resolves the calls that ask for the number of shards, if it is known.
    fn tell_shards(&mut self, out: &mut Vec<ClientEffect>) {
        let Some(shards) = self.shards else { return };
        let asks = |(_, call): &(&CallId, &OutstandingCall)| matches!(call.ask, Ask::Shards);
        let asking: Vec<CallId> = self.calls.iter().filter(asks).map(|(&id, _)| id).collect();
        for id in asking {
            self.contacts.succeed();
            self.resolve(id, Ok(shards.to_le_bytes().to_vec()), out);
        }
    }

    fn resolve(&mut self, id: CallId, result: Result<Vec<u8>, ClientError>, out: &mut Vec<ClientEffect>) {
        if let Some(call) = self.calls.remove(&id) {
            self.deadlines.remove(&(call.deadline, id));
            self.forget_call(id);
            out.push(ClientEffect::Resolve(id, result));
        }
    }
}
