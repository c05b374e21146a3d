//! The table.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

/// The widest window that a session may have, in requests.
pub(crate) const MAX_WINDOW: u32 = 1 << 16;

/// Names a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct SessionId {
    /// How many sessions had been opened with it, since the group began.
    pub(crate) number: u64,
    /// What its client drew at random: a session of a group that began anew is not taken for one of the same number.
    pub(crate) key: u64,
}

/// What opens a session. The limits come with it, so that replicas agree even where their configurations do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    /// The client's part of the name.
    pub(crate) key: u64,
    /// So many sessions may be open with it.
    pub(crate) sessions: u32,
    /// The window, in requests.
    pub(crate) window: u32,
    /// Once so many bytes of replies are kept, no further request is applied but the first that is missing. No longer reply is
    /// kept. With both together a session keeps less than three times as much.
    pub(crate) reply_bytes: u32,
}

/// There are as many sessions as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// What a request led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Applied; the reply's bytes.
    Reply(Arc<[u8]>),
    /// Not applied: it is no command.
    NoCommand,
    /// Applied, but the reply is longer than what is kept, or could not be serialized.
    NoReply,
    /// Not applied: an operator has said so.
    Skipped,
}

impl Answer {
    fn bytes(&self) -> usize {
        match self {
            Answer::Reply(bytes) => bytes.len(),
            Answer::NoCommand | Answer::NoReply | Answer::Skipped => 0,
        }
    }
}

/// Why a request was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// There is no such session, or no more.
    Unknown,
    /// Its number lies beyond the window.
    Window,
    /// The replies that are kept take too much, and requests before it are missing.
    Replies,
}

/// What to do with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Apply it, and [keep](Sessions::keep) what comes of it.
    New,
    /// It was applied before.
    Known(Answer),
    /// Its client has the reply, or does not want it any more: nobody is to be told.
    Past,
    /// It is not applied.
    Refused(Refusal),
}

/// The sessions of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sessions {
    /// How many were ever opened.
    pub(super) opened: u64,
    /// By number.
    pub(super) open: BTreeMap<u64, Session>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) key: u64,
    pub(super) window: u32,
    pub(super) reply_bytes: u32,
    /// The first number whose reply the client may not have.
    pub(super) acknowledged: u64,
    /// By number, from `acknowledged` on. The last is there.
    pub(super) answers: VecDeque<Option<Answer>>,
    /// What the answers take, in bytes.
    pub(super) kept_bytes: u64,
    /// How many messages of it were delivered.
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

    fn admit(&self, number: u64) -> Admission {
        let Some(index) = number.checked_sub(self.acknowledged) else { return Admission::Past };
        if index >= u64::from(self.window) {
            return Admission::Refused(Refusal::Window);
        }
        match self.answers.get(index as usize) {
            Some(Some(answer)) => Admission::Known(answer.clone()),
            // Were the first refused as well, nothing would ever be acknowledged again.
            _ if index > 0 && self.kept_bytes >= u64::from(self.reply_bytes) => Admission::Refused(Refusal::Replies),
            _ => Admission::New,
        }
    }

    /// Whether [`admit`](Session::admit) would find it new, once these are acknowledged.
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
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Opens a session.
    pub(crate) fn open(&mut self, opening: &Opening) -> Result<SessionId, TooMany> {
        if self.open.len() >= opening.sessions as usize {
            return Err(TooMany);
        }
        self.opened += 1;
        let session = Session {
            key: opening.key,
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

    /// Decides what to do with a request whose client has all replies before `acknowledged`.
    pub(crate) fn admit(&mut self, id: SessionId, number: u64, acknowledged: u64) -> Admission {
        match self.act(id, acknowledged) {
            Some(session) => session.admit(number),
            None => Admission::Refused(Refusal::Unknown),
        }
    }

    /// Whether [`admit`](Sessions::admit) would say that the request is new. If not, admitting it would do no more than
    /// [`touch`](Sessions::touch) does.
    pub(crate) fn would_admit(&self, id: SessionId, number: u64, acknowledged: u64) -> bool {
        let session = self.open.get(&id.number).filter(|session| session.key == id.key);
        session.is_some_and(|session| session.would_admit(number, acknowledged))
    }

    /// Keeps what came of a request that was [new](Admission::New), and says what is kept: every copy of the request gets
    /// the same answer.
    ///
    /// # Panics
    ///
    /// If the request was not.
    pub(crate) fn keep(&mut self, id: SessionId, number: u64, answer: Answer) -> Answer {
        let session = self.open.get_mut(&id.number).expect("it was admitted");
        assert_eq!(session.admit(number), Admission::New, "request {number} is applied once");
        let answer = match answer {
            Answer::Reply(bytes) if bytes.len() > session.reply_bytes as usize => Answer::NoReply,
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

    /// Notes that a client is alive and has all replies before `acknowledged`. Returns whether there is such a session.
    pub(crate) fn touch(&mut self, id: SessionId, acknowledged: u64) -> bool {
        self.act(id, acknowledged).is_some()
    }

    /// Ends a session, as its client wishes.
    pub(crate) fn close(&mut self, id: SessionId) {
        if self.find(id).is_some() {
            self.open.remove(&id.number);
        }
    }

    /// Ends a session of which no message was delivered beyond the first `acts`. Returns whether that is so.
    pub(crate) fn expire(&mut self, id: SessionId, acts: u64) -> bool {
        let idle = self.find(id).is_some_and(|session| session.acts == acts);
        if idle {
            self.open.remove(&id.number);
        }
        idle
    }

    /// For each session how many of its messages were delivered.
    pub(crate) fn acts(&self) -> impl Iterator<Item = (SessionId, u64)> {
        self.open.iter().map(|(&number, session)| (SessionId { number, key: session.key }, session.acts))
    }

    /// A session's window, in requests.
    pub(crate) fn window(&self, id: SessionId) -> Option<u32> {
        self.open.get(&id.number).filter(|session| session.key == id.key).map(|session| session.window)
    }

    fn find(&mut self, id: SessionId) -> Option<&mut Session> {
        self.open.get_mut(&id.number).filter(|session| session.key == id.key)
    }

    fn act(&mut self, id: SessionId, acknowledged: u64) -> Option<&mut Session> {
        let session = self.find(id)?;
        session.acts += 1;
        session.acknowledge(acknowledged);
        Some(session)
    }
}
