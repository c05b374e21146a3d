//! The table of sessions.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use squall_fabric::share::for_others;

/// The widest window that a session may have, in requests.
pub(crate) const MAX_WINDOW: u32 = 1 << 16;

/// The name of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct SessionId {
    /// The number of sessions that had been opened when this one was opened, itself included, since the group began.
    pub(crate) number: u64,
    /// A number that its client drew at random: a session of a group that began anew is not taken for one of the same
    /// number.
    pub(crate) key: u64,
}

/// The parameters with which a session opens. The limits come with the message, so that replicas agree even where their
/// configurations do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    /// The client's part of the name.
    pub(crate) key: u64,
    /// The number of sessions that may be open, this one included.
    pub(crate) sessions: u32,
    /// The [number](squall_fabric::share::Holder::number) of the party for which the session counts.
    pub(crate) holder: u64,
    /// The window, in requests.
    pub(crate) window: u32,
    /// The limit of kept replies, in bytes. Once a session keeps that much, a further request is applied only if it is
    /// the first that is missing. A longer reply is not kept. With both rules together a session keeps less than three
    /// times as much.
    pub(crate) reply_bytes: u32,
}

/// The error that as many sessions are open as may be, or as many of this holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    /// Applied, with the reply's bytes.
    Reply(Arc<[u8]>),
    /// A command that was not applied: its bytes are no command.
    NoCommand,
    /// Applied, but the reply is longer than a session may keep, or could not be serialized.
    NoReply,
    /// A command that was not applied: an operator has said so.
    Skipped,
}

impl RequestOutcome {
    fn bytes(&self) -> usize {
        match self {
            RequestOutcome::Reply(bytes) => bytes.len(),
            RequestOutcome::NoCommand | RequestOutcome::NoReply | RequestOutcome::Skipped => 0,
        }
    }
}

/// A reason for which a request was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// The session is unknown, or has ended.
    Unknown,
    /// The request's number lies beyond the window.
    Window,
    /// The kept replies take too many bytes, and requests before this one are missing.
    Replies,
}

/// A decision on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestVerdict {
    /// The request is to be applied, and its answer [kept](Sessions::keep).
    New,
    /// The request was applied before, with this answer.
    Known(RequestOutcome),
    /// The client has the reply, or does not want it any more: no answer is sent.
    Past,
    /// The request is not applied.
    Refused(Refusal),
}

/// The sessions of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sessions {
    /// The number of sessions that were ever opened.
    pub(super) opened: u64,
    /// The open sessions, by number.
    pub(super) open: BTreeMap<u64, Session>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) key: u64,
    pub(super) holder: u64,
    pub(super) window: u32,
    pub(super) reply_bytes: u32,
    /// The first number whose reply the client may not have.
    pub(super) acknowledged: u64,
    /// The answers by number, from `acknowledged` on. The last entry is always an answer.
    pub(super) answers: VecDeque<Option<RequestOutcome>>,
    /// The size of the kept answers, in bytes.
    pub(super) kept_bytes: u64,
    /// The number of the session's messages that were delivered.
    pub(super) acts: u64,
}

impl Session {
    fn acknowledge(&mut self, acknowledged: u64) {
        let passed = acknowledged.saturating_sub(self.acknowledged);
        let passed_here = self.answers.len().min(usize::try_from(passed).unwrap_or(usize::MAX));
        for answer in self.answers.drain(..passed_here).flatten() {
            self.kept_bytes -= answer.bytes() as u64;
        }
        self.acknowledged += passed;
    }

    /// Returns the kept answers, with their numbers.
    pub(super) fn kept(&self) -> impl Iterator<Item = (u64, &RequestOutcome)> {
        (self.acknowledged..).zip(&self.answers).filter_map(|(number, answer)| Some((number, answer.as_ref()?)))
    }

    fn admit(&self, number: u64) -> RequestVerdict {
        let Some(index) = number.checked_sub(self.acknowledged) else { return RequestVerdict::Past };
        if index >= u64::from(self.window) {
            return RequestVerdict::Refused(Refusal::Window);
        }
        match self.answers.get(index as usize) {
            Some(Some(answer)) => RequestVerdict::Known(answer.clone()),
            // If the first were refused as well, nothing would ever be acknowledged again.
            _ if index > 0 && self.kept_bytes >= u64::from(self.reply_bytes) => {
                RequestVerdict::Refused(Refusal::Replies)
            }
            _ => RequestVerdict::New,
        }
    }

    /// Tells whether [`admit`](Session::admit) would find the request new, once the numbers before `acknowledged` are
    /// acknowledged.
    fn would_admit(&self, number: u64, acknowledged: u64) -> bool {
        let Some(index) = number.checked_sub(self.acknowledged.max(acknowledged)) else { return false };
        let answer = self.answers.get((number - self.acknowledged) as usize);
        let freed = || {
            let passed = acknowledged.saturating_sub(self.acknowledged) as usize;
            self.answers.iter().take(passed).flatten().map(|answer| answer.bytes() as u64).sum::<u64>()
        };
        let has_room = || self.kept_bytes - freed() < u64::from(self.reply_bytes);
        index < u64::from(self.window) && !matches!(answer, Some(Some(_))) && (index == 0 || has_room())
    }
}

impl Sessions {
    /// Returns the number of open sessions.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn open(&mut self, opening: &Opening) -> Result<SessionId, TooMany> {
        if self.open.len() >= opening.sessions as usize || !self.is_within_share(opening) {
            return Err(TooMany);
        }
        self.opened += 1;
        let session = Session {
            key: opening.key,
            holder: opening.holder,
            window: opening.window.clamp(1, MAX_WINDOW),
            reply_bytes: opening.reply_bytes,
            acknowledged: 0,
            answers: VecDeque::new(),
            kept_bytes: 0,
            acts: 0,
        };
        self.open.insert(self.opened, session);
        Ok(SessionId { number: self.opened, key: opening.key })
    }

    /// Whether a holder may have one more session: by the rule of [shares](squall_fabric::share).
    fn is_within_share(&self, opening: &Opening) -> bool {
        if opening.holder == 0 {
            return true;
        }
        let others = self.open.values().filter(|session| session.holder != 0).count();
        let own = self.open.values().filter(|session| session.holder == opening.holder).count();
        let left = for_others(opening.sessions as usize).saturating_sub(others);
        left > own
    }

    /// Decides on a request whose client has all replies before `acknowledged`.
    pub(crate) fn admit(&mut self, id: SessionId, number: u64, acknowledged: u64) -> RequestVerdict {
        match self.act(id, acknowledged) {
            Some(session) => session.admit(number),
            None => RequestVerdict::Refused(Refusal::Unknown),
        }
    }

    /// Tells whether [`admit`](Sessions::admit) would say that the request is new. If not, admitting it would do no
    /// more than [`touch`](Sessions::touch) does.
    pub(crate) fn would_admit(&self, id: SessionId, number: u64, acknowledged: u64) -> bool {
        self.get(id).is_some_and(|session| session.would_admit(number, acknowledged))
    }

    /// Keeps the answer to a request that was [new](RequestVerdict::New), and returns the kept answer: every copy of
    /// the request gets the same one.
    ///
    /// # Panics
    ///
    /// If the request was not new.
    pub(crate) fn keep(&mut self, id: SessionId, number: u64, answer: RequestOutcome) -> RequestOutcome {
        let session = self.open.get_mut(&id.number).expect("it was admitted");
        assert_eq!(session.admit(number), RequestVerdict::New, "request {number} is applied once");
        let answer = match answer {
            RequestOutcome::Reply(bytes) if bytes.len() > session.reply_bytes as usize => RequestOutcome::NoReply,
            answer => answer,
        };
        let index = (number - session.acknowledged) as usize;
        if session.answers.len() <= index {
            session.answers.resize(index + 1, None);
        }
        session.answers[index] = Some(answer.clone());
        session.kept_bytes += answer.bytes() as u64;
        answer
    }

    /// Notes that a client is alive and has all replies before `acknowledged`. Returns whether the session exists.
    pub(crate) fn touch(&mut self, id: SessionId, acknowledged: u64) -> bool {
        self.act(id, acknowledged).is_some()
    }

    /// Ends a session at its client's wish.
    pub(crate) fn close(&mut self, id: SessionId) {
        if self.get(id).is_some() {
            self.open.remove(&id.number);
        }
    }

    /// Ends a session if none of its messages was delivered beyond the first `acts`. Returns whether it was ended.
    pub(crate) fn expire(&mut self, id: SessionId, acts: u64) -> bool {
        let idle = self.get(id).is_some_and(|session| session.acts == acts);
        if idle {
            self.open.remove(&id.number);
        }
        idle
    }

    /// Returns each session with the number of its messages that were delivered.
    pub(crate) fn acts(&self) -> impl Iterator<Item = (SessionId, u64)> {
        self.open.iter().map(|(&number, session)| (SessionId { number, key: session.key }, session.acts))
    }

    /// Returns the kept answers of a session from a number on, with their numbers. None if there is no such session.
    pub(crate) fn kept(&self, id: SessionId, first: u64) -> Option<impl Iterator<Item = (u64, &RequestOutcome)>> {
        self.get(id).map(|session| session.kept().filter(move |(number, _)| *number >= first))
    }

    /// Returns the numbers of all sessions and of the requests in them whose answers are kept.
    pub(crate) fn all_kept(&self) -> impl Iterator<Item = (u64, u64)> {
        self.open.iter().flat_map(|(&number, session)| session.kept().map(move |(request, _)| (number, request)))
    }

    /// A session's window, in requests.
    pub(crate) fn window(&self, id: SessionId) -> Option<u32> {
        self.get(id).map(|session| session.window)
    }

    fn get(&self, id: SessionId) -> Option<&Session> {
        self.open.get(&id.number).filter(|session| session.key == id.key)
    }

    fn act(&mut self, id: SessionId, acknowledged: u64) -> Option<&mut Session> {
        let session = self.open.get_mut(&id.number).filter(|session| session.key == id.key)?;
        session.acts += 1;
        session.acknowledge(acknowledged);
        Some(session)
    }
}
