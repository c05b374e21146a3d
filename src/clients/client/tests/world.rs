//! A simulated group, in virtual time: one order of messages, members that deliver it each at its own pace, and one
//! client that is connected to one of them at a time.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use squall_fabric::{NodeId, Time};
use squall_services::DialTarget;

use super::super::{
    core::ClientCore,
    effect::{Ask, CallId, ClientEffect},
    error::ClientError,
};
use crate::{
    calls::session::{Opening, RequestOutcome, RequestVerdict, SessionId, Sessions},
    clients::{
        contacts::Contacts,
        wire::{Members, ToClient, ToNode, WireOutcome},
    },
};

/// An entry of the group's order.
#[derive(Clone, Debug)]
enum Entry {
    Open(u64),
    Request { session: SessionId, number: u64, acknowledged: u64, command: Vec<u8> },
    Touch { session: SessionId, acknowledged: u64 },
    Close(SessionId),
    Expire,
}

/// A member.
#[derive(Default)]
struct Member {
    sessions: Sessions,
    /// The number of entries of the order that it has delivered.
    delivered: usize,
    /// The commands that it has applied.
    applied: Vec<Vec<u8>>,
    /// The session whose answers go to the client, if it is connected here.
    attached: Option<u64>,
    /// Entries that were accepted here and are not ordered yet: they are lost with the member.
    accepted: VecDeque<Entry>,
    /// Messages on their way to the client.
    said: VecDeque<ToClient>,
}

/// The limits of sessions.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) window: u32,
    pub(super) reply_bytes: u32,
}

pub(super) struct World {
    pub(super) core: ClientCore,
    pub(super) now: Time,
    pub(super) random: fastrand::Rng,
    limits: Limits,
    order: Vec<Entry>,
    members: Vec<Member>,
    /// The member to which the client is connected.
    at: Option<usize>,
    /// The member that the client is about to reach.
    dialing: Option<usize>,
    effects: Vec<ClientEffect>,
    /// The result of each call, and its time.
    pub(super) results: BTreeMap<CallId, (Time, Result<Vec<u8>, ClientError>)>,
}

const MEMBERS: usize = 3;

impl World {
    pub(super) fn new(seed: u64, limits: Limits) -> World {
        let first = (0..MEMBERS).map(|node| DialTarget::on_host(NodeId(node as u32))).collect();
        World {
            core: ClientCore::new(
                "store".to_owned(),
                Contacts::new(first, seed as usize),
                fastrand::Rng::with_seed(seed),
            ),
            now: Time::ZERO,
            random: fastrand::Rng::with_seed(seed),
            limits,
            order: Vec::new(),
            members: (0..MEMBERS).map(|_| Member::default()).collect(),
            at: None,
            dialing: None,
            effects: Vec::new(),
            results: BTreeMap::new(),
        }
    }

    pub(super) fn call(&mut self, id: u64, ask: Ask, limit: Duration) {
        self.core.call(self.now, CallId(id), ask, self.now + limit, &mut self.effects);
        self.carry_out();
    }

    pub(super) fn submit(&mut self, id: u64, limit: Duration) {
        self.call(id, Ask::Command(id.to_le_bytes().to_vec()), limit);
    }

    pub(super) fn query(&mut self, id: u64, limit: Duration) {
        self.call(id, Ask::Query(Default::default(), id.to_le_bytes().to_vec()), limit);
    }

    /// Takes one random step.
    pub(super) fn step(&mut self) {
        match self.random.u32(..100) {
            0..30 => self.order_one(),
            30..60 => self.deliver_one(),
            60..85 => self.say_one(),
            _ => self.reach(),
        }
        let pass = Duration::from_micros(self.random.u64(..2000));
        self.pass(pass);
    }

    /// Lets everything arrive that is under way, and nothing else happen.
    pub(super) fn settle(&mut self) {
        for _ in 0..10_000 {
            self.reach();
            for _ in 0..4 {
                self.order_one();
            }
            while self.members.iter().any(|member| member.delivered < self.order.len()) {
                self.deliver_one();
            }
            while self.at.is_some_and(|at| !self.members[at].said.is_empty()) {
                self.say_one();
            }
            self.pass(Duration::from_millis(1));
        }
    }

    /// Breaks the client's connection. If its member dies with it, the entries that it has not sent are lost.
    pub(super) fn cut(&mut self, dies: bool) {
        let Some(at) = self.at.take() else { return };
        self.members[at].said.clear();
        self.members[at].attached = None;
        if dies {
            self.members[at].accepted.clear();
        }
        self.core.broken(self.now, "cut".to_owned(), &mut self.effects);
        self.carry_out();
    }

    /// Lets the client's member refuse to serve it.
    pub(super) fn send_away(&mut self) {
        if let Some(at) = self.at {
            let away = ToClient::Away { why: "no quorum".to_owned(), members: Members::default() };
            self.members[at].said.push_back(away);
        }
    }

    /// Ends all sessions.
    pub(super) fn expire(&mut self) {
        self.order.push(Entry::Expire);
    }

    /// Returns the commands that the group has applied, by the member that is furthest.
    pub(super) fn applied(&self) -> &[Vec<u8>] {
        &self.members.iter().max_by_key(|member| member.delivered).expect("there are some").applied
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        if self.core.deadline().is_some_and(|deadline| deadline <= self.now) {
            self.core.tick(self.now, &mut self.effects);
            self.carry_out();
        }
    }

    fn reach(&mut self) {
        let Some(member) = self.dialing.take() else { return };
        self.at = Some(member);
        let welcome =
            ToClient::Welcome { members: Members::default(), session_timeout_ms: 60_000, request_bytes: 1000 };
        self.members[member].said.push_back(welcome);
        self.core.connected(self.now, &mut self.effects);
        self.carry_out();
    }

    fn order_one(&mut self) {
        let member = self.random.usize(..MEMBERS);
        if let Some(entry) = self.members[member].accepted.pop_front() {
            self.order.push(entry);
        }
    }

    fn deliver_one(&mut self) {
        let Limits { window, reply_bytes } = self.limits;
        let index = self.random.usize(..MEMBERS);
        let member = &mut self.members[index];
        let Some(entry) = self.order.get(member.delivered).cloned() else { return };
        member.delivered += 1;
        let (key, told) = match entry {
            Entry::Open(key) => {
                match member.sessions.open(&Opening { key, sessions: 100, holder: 0, window, reply_bytes }) {
                    Ok(session) => (key, ToClient::Opened { session, window }),
                    Err(_) => (key, ToClient::NotOpened { key, why: "there are as many as may be".to_owned() }),
                }
            }
            Entry::Request { session, number, acknowledged, command } => {
                let answer = match member.sessions.admit(session, number, acknowledged) {
                    RequestVerdict::New => {
                        member.applied.push(command.clone());
                        let place = member.applied.len() as u64;
                        let reply = [place.to_le_bytes().as_slice(), &command].concat();
                        Ok(member.sessions.keep(session, number, RequestOutcome::Reply(Arc::from(reply))))
                    }
                    RequestVerdict::Known(answer) => Ok(answer),
                    RequestVerdict::Past => return,
                    RequestVerdict::Refused(why) => Err(why),
                };
                let told = match answer {
                    Ok(answer) => ToClient::Answered { number, result: WireOutcome::from(&answer) },
                    Err(why) => ToClient::Refused { number, why },
                };
                (session.key, told)
            }
            Entry::Touch { session, acknowledged } => {
                member.sessions.touch(session, acknowledged);
                return;
            }
            Entry::Close(session) => return member.sessions.close(session),
            Entry::Expire => {
                for (session, acts) in member.sessions.acts().collect::<Vec<_>>() {
                    member.sessions.expire(session, acts);
                }
                return;
            }
        };
        if member.attached == Some(key) {
            member.said.push_back(told);
        }
    }

    fn say_one(&mut self) {
        let Some(message) = self.at.and_then(|at| self.members[at].said.pop_front()) else { return };
        self.core.heard(self.now, message, &mut self.effects);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                ClientEffect::Dial(contact) => self.dialing = contact.node.map(|node| node.0 as usize),
                ClientEffect::HangUp => {
                    self.dialing = None;
                    if let Some(at) = self.at.take() {
                        self.members[at].said.clear();
                        self.members[at].attached = None;
                    }
                }
                ClientEffect::Resolve(id, result) => {
                    assert!(self.results.insert(id, (self.now, result)).is_none(), "{id:?} was resolved before");
                }
                ClientEffect::Send(message) => self.hear(message),
                // Its members report no holders, and no call is for all.
                ClientEffect::Sent(..)
                | ClientEffect::Reply(..)
                | ClientEffect::AskAt { .. }
                | ClientEffect::Forget(_) => unreachable!("no call is for members"),
                ClientEffect::Watch(id, event) => panic!("{id:?} is none of the test's: {event:?}"),
            }
        }
    }

    fn hear(&mut self, message: ToNode) {
        let Some(at) = self.at else { return };
        let member = &mut self.members[at];
        match message {
            ToNode::Hello { .. } => {}
            ToNode::Open { key } => {
                member.attached = Some(key);
                member.accepted.push_back(Entry::Open(key));
            }
            ToNode::Resume { session } => member.attached = Some(session.key),
            ToNode::Request { session, number, acknowledged, command } => {
                member.accepted.push_back(Entry::Request { session, number, acknowledged, command });
            }
            ToNode::Touch { session, acknowledged } => {
                member.accepted.push_back(Entry::Touch { session, acknowledged });
            }
            ToNode::Close { session } => member.accepted.push_back(Entry::Close(session)),
            ToNode::Query { number, query, .. } => member.said.push_back(ToClient::Told { number, answer: Ok(query) }),
            ToNode::Ping => member.said.push_back(ToClient::Pong),
            ToNode::Listen { .. } => unreachable!("no call is for members"),
            ToNode::Watch { .. } | ToNode::More { .. } | ToNode::Unwatch { .. } => {}
        }
    }
}
