//! A replica that serves clients: the application's, and the table of their sessions.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    io::{self, BufReader, Read},
    mem,
    ops::{Deref, Range},
    sync::Arc,
};

use rkyv::{Archived, api::high::to_bytes_in, rancor, rancor::Source, util::AlignedVec};
use squall_ordered::{Message, log::Hlc};

use super::{clients::Clients, history::ChangeHistory};
use crate::{
    calls::{
        envelope::Envelope,
        session::{Refusal, RequestOutcome, RequestVerdict, SessionId, Sessions, TICK, Trailer},
    },
    clients::{
        changes::{ChangePlace, Changes},
        query::QueryService,
        wire::{ToClient, WireOutcome},
    },
    replica::{
        replicated::{Applied, Replicated, Stamp},
        schema::Schema,
        service::{Invalid, Service, settled, wake},
        snapshot::Snapshot,
        view_change::ViewChange,
    },
};

/// The answer to a client that opens one session more than there may be.
const TOO_MANY_SESSIONS: &str = "the group has as many sessions of clients as it may have, or as many of this client";

/// The size of the reply buffer that is kept, in bytes: a larger one is freed.
const KEPT_BYTES: usize = 64 << 10;

/// The replica of a group that serves clients. It derefs to the application's replica.
pub struct Served<R> {
    replica: R,
    sessions: Sessions,
    clients: Arc<Clients>,
    /// The stamp of the last message.
    last: Stamp,
    /// The changes that the application is reporting.
    changes: Changes,
    /// The messages for clients that wait until their version can't be undone, in a durable group.
    held: VecDeque<HeldMessage>,
    /// The requests that this replica has not applied itself, since their answers came with the state: the numbers of
    /// their sessions, and their own. No number is given twice, so they stay until there is another state.
    not_applied: BTreeSet<(u64, u64)>,
    /// The buffer for the reply that is being encoded.
    encoded: AlignedVec,
}

/// A message for a client that waits until its version can't be undone.
struct HeldMessage {
    version: u64,
    /// The key of the client's session.
    key: u64,
    audience: Audience,
    message: ToClient,
}

/// The connections to which a message about a session goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Audience {
    /// The session's client, if it talks to this node.
    Client,
    /// Those that listen to this node's answers, too.
    AndListeners,
}

impl<R: QueryService> Served<R> {
    pub(crate) fn new(replica: R, clients: Arc<Clients>) -> Served<R> {
        let mut served = Served {
            replica,
            sessions: Sessions::default(),
            clients,
            last: Stamp { time: Hlc(0), version: None },
            changes: Changes::default(),
            held: VecDeque::new(),
            not_applied: BTreeSet::new(),
            encoded: AlignedVec::new(),
        };
        served.drop_changes();
        served
    }

    /// Makes a replica to which no client is connected: for [earlier states](crate::Group::at_version) of a group that
    /// serves clients.
    pub fn blank(replica: R) -> Served<R> {
        Served::new(replica, Arc::default())
    }

    /// Drops the changes that the application has to report of a state that it was given. This replica alone was given
    /// it here, and the others would not count them.
    fn drop_changes(&mut self) {
        self.replica.take_changes(&mut self.changes);
        drop(self.changes.take());
    }
}

impl<R> Served<R> {
    /// Returns what a listener is told of the requests of a session, from a number on, that have answers already.
    pub(super) fn answers(&self, session: SessionId, first: u64) -> Vec<ToClient> {
        let Some(kept) = self.sessions.kept(session, first) else {
            return vec![ToClient::Refused { number: first, why: Refusal::Unknown }];
        };
        let told = kept.map(|(number, answer)| match self.not_applied.contains(&(session.number, number)) {
            true => ToClient::NotApplied { number },
            false => ToClient::Answered { number, result: WireOutcome::from(answer) },
        });
        told.collect()
    }

    /// Returns the table.
    pub(super) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Returns the place of the last change.
    pub(super) fn place(&self) -> ChangePlace {
        self.clients.changes.place()
    }

    fn note(&mut self, stamp: Stamp) {
        self.last = stamp;
        self.clients.changes.pass(stamp.time);
    }
}

impl<R> Deref for Served<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.replica
    }
}

impl<R> fmt::Debug for Served<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("sessions", &self.sessions.len()).finish_non_exhaustive()
    }
}

impl<R: QueryService> Service for Served<R> {
    type Reply = R::Reply;

    fn schema() -> Schema {
        R::SCHEMA.of_commands::<R::Command>()
    }

    fn take(
        &mut self,
        message: &Message<'_>,
        stamp: Stamp,
        scratch: &mut AlignedVec,
    ) -> Result<Option<R::Reply>, Invalid> {
        self.note(stamp);
        let (bytes, trailer) = Trailer::split(settled(&message.payload, scratch)).map_err(rancor::Error::new)?;
        let at = stamp.of(message);
        match trailer {
            Trailer::Plain => return self.apply(bytes, &at).map(Some),
            Trailer::Request { session, number, acknowledged } => {
                self.request(session, number, acknowledged, bytes, &at);
            }
            Trailer::Open(opening) => {
                let told = match self.sessions.open(&opening) {
                    Ok(session) => {
                        ToClient::Opened { session, window: self.sessions.window(session).unwrap_or_default() }
                    }
                    Err(_) => ToClient::NotOpened { key: opening.key, why: TOO_MANY_SESSIONS.to_owned() },
                };
                self.tell(stamp.version, opening.key, Audience::Client, || told);
            }
            Trailer::Touch { session, acknowledged } => _ = self.sessions.touch(session, acknowledged),
            Trailer::Close(session) => self.sessions.close(session),
            Trailer::Expire { session, acts } => _ = self.sessions.expire(session, acts),
            Trailer::FollowUp { number } if self.replica.follow_ups().next() == Some(number) => {
                self.apply(bytes, &Applied { follow_up: Some(number), ..at })?;
            }
            // One that is not the first that is due carries the time, and no command.
            Trailer::Tick | Trailer::FollowUp { .. } => {
                wake(&mut self.replica, &at);
                self.report(stamp.version);
            }
        }
        Ok(None)
    }

    /// Handles a message that is skipped. A message about sessions changes no replica of the application's, and is
    /// carried out. A client's request gets an answer that says that it was skipped, so that it is not applied when it
    /// comes again.
    fn skip(&mut self, message: &Message<'_>, stamp: Stamp, scratch: &mut AlignedVec) -> Result<(), Invalid> {
        self.note(stamp);
        scratch.resize(message.payload.len(), 0);
        message.payload.read(scratch);
        match Trailer::split(scratch).map_err(rancor::Error::new)? {
            (_, Trailer::Plain | Trailer::Tick | Trailer::FollowUp { .. }) => {}
            (_, Trailer::Request { session, number, acknowledged }) => {
                if self.sessions.admit(session, number, acknowledged) == RequestVerdict::New {
                    self.sessions.keep(session, number, RequestOutcome::Skipped);
                }
            }
            _ => _ = self.take(message, stamp, &mut AlignedVec::new())?,
        }
        Ok(())
    }

    /// Returns a touch in place of a request that will not be applied, and a tick in place of such a follow-up, so that
    /// a reader of the log sees each command once.
    fn logged_as(&self, message: &[u8]) -> Option<Vec<u8>> {
        let instead = match Trailer::split(message).ok()?.1 {
            Trailer::Request { session, number, acknowledged }
                if !self.sessions.would_admit(session, number, acknowledged) =>
            {
                Trailer::Touch { session, acknowledged }
            }
            Trailer::FollowUp { number } if self.replica.follow_ups().next() != Some(number) => Trailer::Tick,
            _ => return None,
        };
        let (bytes, len) = instead.bytes();
        Some(bytes[..len].to_vec())
    }

    fn command_of(message: &[u8]) -> Option<&[u8]> {
        match Trailer::split(message) {
            Ok((command, Trailer::Plain | Trailer::Request { .. } | Trailer::FollowUp { .. })) => Some(command),
            _ => None,
        }
    }

    /// Writes the table and the changes first: their end is known from their own bytes.
    fn snapshot(&self) -> Snapshot {
        let (sessions, history, last) = (self.sessions.clone(), self.clients.changes.history(), self.last);
        self.replica.snapshot().behind(move |to| {
            sessions.write(to)?;
            history.write(last, to)
        })
    }

    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let mut from = BufReader::new(from);
        let (sessions, has_changes) = Sessions::read(&mut from).map_err(io::Error::other)?;
        let (last, history) = match has_changes {
            true => self.clients.changes.read(&mut from)?,
            false => (Stamp { time: Hlc(0), version: None }, ChangeHistory::default()),
        };
        self.replica.restore(&mut from)?;
        self.sessions = sessions;
        self.last = last;
        self.drop_changes();
        self.clients.changes.restore(history, last.time);
        self.held.clear();
        self.not_applied = self.sessions.all_kept().collect();
        Ok(())
    }

    fn globally_persisted(&mut self, version: u64) {
        while let Some(held) = self.held.pop_front_if(|held| held.version <= version) {
            self.tell_now(held.key, held.audience, || held.message);
        }
        self.clients.changes.persisted(version);
    }

    fn wake_at(&self) -> Option<Hlc> {
        Replicated::wake_at(&self.replica)
    }

    fn tick() -> &'static [u8] {
        TICK
    }

    fn follow_ups(&self) -> Range<u64> {
        self.replica.follow_ups()
    }

    fn follow_up(&self, number: u64) -> Option<Vec<u8>> {
        let message = Envelope::command(&self.replica.follow_up(number)?);
        match message {
            Ok(message) => Some(message.with_trailer(&Trailer::FollowUp { number }).as_slice().to_vec()),
            Err(error) => {
                tracing::warn!(number, %error, "a follow-up can't be submitted");
                None
            }
        }
    }

    fn view_changed(&mut self, change: &ViewChange) {
        self.replica.view_changed(change);
        // A view has no version of its own: only the message behind it says that it can't be undone.
        self.report(Some(self.last.version.unwrap_or_default() + 1).filter(|_| self.clients.changes.is_durable()));
    }
}

impl<R> Served<R> {
    /// Sends a message to a client that is connected here, as soon as that is permitted.
    fn tell(&mut self, version: Option<u64>, key: u64, audience: Audience, message: impl FnOnce() -> ToClient) {
        match version {
            None => self.tell_now(key, audience, message),
            Some(version) if self.clients.has(key) => {
                self.held.push_back(HeldMessage { version, key, audience, message: message() });
            }
            Some(_) => {}
        }
    }

    fn tell_now(&self, key: u64, audience: Audience, message: impl FnOnce() -> ToClient) {
        if audience == Audience::Client || !self.clients.has_listeners(key) {
            return self.clients.tell(key, message);
        }
        let message = message();
        self.clients.tell_listeners(key, &message);
        self.clients.tell(key, || message);
    }
}

impl<R: QueryService> Served<R> {
    fn apply(&mut self, command: &[u8], at: &Applied) -> Result<R::Reply, Invalid> {
        let command = rkyv::access::<Archived<R::Command>, rancor::Error>(command)?;
        let reply = self.replica.apply(command, at);
        self.report(at.version);
        Ok(reply)
    }

    /// Takes the changes that the application reports. They can be undone as long as this version can.
    fn report(&mut self, version: Option<u64>) {
        self.replica.take_changes(&mut self.changes);
        let changes = self.changes.take();
        if !changes.is_empty() {
            self.clients.changes.append(changes, self.last.time, version.unwrap_or_default());
        }
    }

    fn request(&mut self, session: SessionId, number: u64, acknowledged: u64, command: &[u8], at: &Applied) {
        let (answer, audience) = match self.sessions.admit(session, number, acknowledged) {
            RequestVerdict::New => {
                let answer = match self.apply(command, at) {
                    Ok(reply) => self.encode(&reply),
                    Err(_) => RequestOutcome::NoCommand,
                };
                (self.sessions.keep(session, number, answer), Audience::AndListeners)
            }
            // Listeners were told before, or when they began to listen.
            RequestVerdict::Known(answer) => (answer, Audience::Client),
            RequestVerdict::Past => return,
            RequestVerdict::Refused(why) => {
                return self.tell(at.version, session.key, Audience::Client, || ToClient::Refused { number, why });
            }
        };
        let told = || ToClient::Answered { number, result: WireOutcome::from(&answer) };
        self.tell(at.version, session.key, audience, told);
    }

    fn encode(&mut self, reply: &R::Reply) -> RequestOutcome {
        let mut into = mem::take(&mut self.encoded);
        into.clear();
        // On failure only the buffer is lost.
        let Ok(encoded) = to_bytes_in::<_, rancor::Error>(reply, into) else { return RequestOutcome::NoReply };
        let answer = RequestOutcome::Reply(Arc::from(encoded.as_slice()));
        if encoded.capacity() <= KEPT_BYTES {
            self.encoded = encoded;
        }
        answer
    }
}
