//! The reader's side of the log service.

use std::{
    ops::{Bound, RangeBounds},
    thread,
    time::{Duration, Instant},
};

use squall_fabric::NodeId;
use squall_services::{
    Caller, ControlStream, Service,
    frame::{self, FrameError},
};

use super::{
    Checked, LogError, LogRecord, Page,
    wire::{LogServiceReply, LogServiceRequest, REPLY_BYTES, REQUEST_BYTES, VERSION},
};
use crate::{
    Hlc, LogStatus,
    clients::{client::ClientConfig, contacts::Contacts, wire::Consistency},
    replica::replicated::Logged,
};

/// The limit of an attempt to connect, and of a member's silence beyond the time that it was asked to wait.
const ATTEMPT: Duration = Duration::from_secs(3);

/// The limit of a check of a part of a log.
const CHECK: Duration = Duration::from_secs(60);

/// The longest time that a member waits for a record.
const MOST_WAIT: Duration = Duration::from_secs(1);

/// The size of a page's records, in bytes, except for the last record.
const PAGE_BYTES: u64 = 1 << 20;

/// A reader of a durable group's log, at any member, from any program that a [`ClientConfig`] lets in.
///
/// It talks to one member, and goes to another when that one fails or can't answer. A call ends with an answer, or with
/// [`LogError::Unreachable`] after the configuration's `timeout`. Calls block the thread.
#[derive(Debug)]
pub struct LogClient {
    group: String,
    shard: u32,
    caller: Caller,
    contacts: Contacts,
    timeout: Duration,
    link: Option<ControlStream>,
}

impl LogClient {
    /// Makes a reader of the log of the group of this name. It connects by itself, with the first call and whenever it
    /// must later.
    pub fn new(config: &ClientConfig, group: &str) -> LogClient {
        LogClient {
            group: group.to_owned(),
            shard: 0,
            caller: config.caller().clone(),
            contacts: config.contacts(),
            timeout: config.timeout,
            link: None,
        }
    }

    /// Reads the log of one of the group's shards, by its number, instead of that of shard 0.
    pub fn of_shard(self, shard: u32) -> LogClient {
        LogClient { shard, link: None, ..self }
    }

    /// Returns a reader of the same log at this member alone, which is one of the [`members`](LogClient::members) or
    /// was given by its id.
    pub fn at_member(&self, member: NodeId) -> LogClient {
        LogClient {
            group: self.group.clone(),
            shard: self.shard,
            caller: self.caller.clone(),
            contacts: self.contacts.clone().only(member),
            timeout: self.timeout,
            link: None,
        }
    }

    /// Returns a reader of the same log at the nodes of its [`ClientConfig`] alone: it goes to no other member, however
    /// long they do not answer.
    pub fn at_contacts(self) -> LogClient {
        LogClient { contacts: self.contacts.only_first(), link: None, ..self }
    }

    /// Limits calls made from now on to this time.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Returns the member that it talks to, if there is one.
    pub fn member(&self) -> Option<NodeId> {
        self.link.as_ref().map(|link| link.peer)
    }

    /// Returns the members, as the one that it talks to sees them. Fails as [`status`](LogClient::status) does.
    pub fn members(&mut self) -> Result<Vec<NodeId>, LogError> {
        self.status()?;
        Ok(self.contacts.members().collect())
    }

    /// Reads records of these versions, as many as fit into a mebibyte, or one. Only records that are globally
    /// persisted are read, so that no crash undoes them.
    ///
    /// [`Consistency::Linearizable`] shows all records that any client was told of before this call. It takes a member
    /// that can reach the others.
    ///
    /// Fails if no member could answer within the timeout, if a member refuses, or with [`LogError::Trimmed`] if no
    /// member has records that old.
    pub fn read(&mut self, consistency: Consistency, versions: impl RangeBounds<u64>) -> Result<Page, LogError> {
        let (from, to) = bounds(&versions);
        self.page(from, to, Duration::ZERO, consistency)
    }

    /// Reads records as [`read`](LogClient::read) does, and waits for the first one for `wait`, a second at most: the
    /// page may be empty. Called again and again, from [`Page::next`] on, it shows each record once, in order,
    /// whichever members fail meanwhile. Fails as `read` does.
    pub fn follow(&mut self, versions: impl RangeBounds<u64>, wait: Duration) -> Result<Page, LogError> {
        let (from, to) = bounds(&versions);
        self.page(from, to, wait, Consistency::Local)
    }

    fn page(&mut self, from: u64, to: u64, wait: Duration, consistency: Consistency) -> Result<Page, LogError> {
        let wait = wait.min(MOST_WAIT);
        let wait_ms = wait.as_millis() as u64;
        let request = LogServiceRequest::Read { from: from.max(1), to, max_bytes: PAGE_BYTES, wait_ms, consistency };
        match self.ask(&request, ATTEMPT + wait)? {
            (_, LogServiceReply::Page(page)) => Ok(page),
            (node, _) => Err(LogError::Unexpected { node }),
        }
    }

    /// Returns the last `count` records up to a version, and the version from which to read on behind them. There are
    /// fewer records where the log has no more, or they were trimmed. Fails as [`read`](LogClient::read) does.
    pub fn last(&mut self, count: usize, upto: Option<u64>) -> Result<(Vec<LogRecord>, u64), LogError> {
        // The range is empty, so that the answer is only the log's end.
        let end = match upto {
            Some(upto) => upto,
            None => self.read(Consistency::Linearizable, u64::MAX..)?.globally_persisted,
        };
        let mut first_there = 1;
        let mut span = count as u64;
        loop {
            let from = end.saturating_sub(span).max(first_there - 1) + 1;
            match self.tail_of(from, end, count) {
                // Other members may have less than the first one that was asked.
                Err(LogError::Trimmed { first }) if first > first_there => first_there = first,
                Ok(records) if records.len() < count && from > first_there => span = span.saturating_mul(4),
                other => return Ok((other?, end + 1)),
            }
        }
    }

    /// Returns the last `count` records of a range.
    fn tail_of(&mut self, from: u64, to: u64, count: usize) -> Result<Vec<LogRecord>, LogError> {
        let mut records = Vec::new();
        let mut next = from;
        while count > 0 && next <= to {
            // Another member may learn a little later that all of it is globally persisted.
            let page = self.page(next, to, MOST_WAIT, Consistency::Local)?;
            records.extend(page.records);
            records.drain(..records.len().saturating_sub(count));
            if page.next == next {
                break;
            }
            next = page.next;
        }
        Ok(records)
    }

    /// Returns the last version that is not later than `time`, and its own time; version 0 if all are later. The answer
    /// is final if a later version is globally persisted; else one that was submitted earlier may still come. Fails as
    /// [`read`](LogClient::read) does.
    pub fn version_at(&mut self, consistency: Consistency, time: Hlc) -> Result<Logged, LogError> {
        match self.ask(&LogServiceRequest::At { time_ns: time.0, consistency }, ATTEMPT)? {
            (_, LogServiceReply::At { version, time_ns }) => Ok(Logged { version, time: Hlc(time_ns) }),
            (node, _) => Err(LogError::Unexpected { node }),
        }
    }

    /// Returns the status of the log at the member that is asked. Fails if no member could answer within the timeout,
    /// or if a member refuses.
    pub fn status(&mut self) -> Result<LogStatus, LogError> {
        match self.ask(&LogServiceRequest::Status, ATTEMPT)? {
            (_, LogServiceReply::Status(status)) => Ok(*status),
            (node, _) => Err(LogError::Unexpected { node }),
        }
    }

    /// Makes the member check its records of these versions, as they are on its disk: all of them, or at most some 64
    /// MiB at a time. Fails as [`status`](LogClient::status) does.
    pub fn check(&mut self, from: u64, to: u64) -> Result<Checked, LogError> {
        match self.ask(&LogServiceRequest::Check { from: from.max(1), to, max_bytes: u64::MAX }, CHECK)? {
            (_, LogServiceReply::Checked(checked)) => Ok(checked),
            (node, _) => Err(LogError::Unexpected { node }),
        }
    }
}

impl LogClient {
    /// Asks any member that answers. Requests change nothing, so they may be repeated.
    fn ask(&mut self, request: &LogServiceRequest, patience: Duration) -> Result<(NodeId, LogServiceReply), LogError> {
        let begun = Instant::now();
        self.contacts.succeed();
        let mut trimmed: Option<u64> = None;
        let mut trouble = String::new();
        let mut asked = 0;
        loop {
            asked += 1;
            match self.ask_one(request, patience) {
                Ok((node, LogServiceReply::Refused(why))) => return Err(LogError::Refused { node, why }),
                Ok((node, LogServiceReply::Away(why))) => trouble = format!("{node}: {why}"),
                Ok((_, LogServiceReply::Trimmed { first })) => {
                    trimmed = Some(trimmed.map_or(first, |least| least.min(first)));
                }
                Ok(answer) => return Ok(answer),
                Err(Trouble::Denied(why)) => return Err(LogError::Denied { why }),
                Err(Trouble::Passing(why)) => trouble = why,
            }
            self.link = None;
            let pause = self.contacts.fail();
            let left = self.timeout.saturating_sub(begun.elapsed());
            // Another member may have what this one has trimmed.
            if let Some(first) = trimmed.filter(|_| asked >= self.contacts.count() || left.is_zero()) {
                return Err(LogError::Trimmed { first });
            }
            if left.is_zero() {
                return Err(LogError::Unreachable { group: self.group.clone(), limit: self.timeout, trouble });
            }
            thread::sleep(pause.unwrap_or_default().min(left));
        }
    }

    fn ask_one(
        &mut self,
        request: &LogServiceRequest,
        patience: Duration,
    ) -> Result<(NodeId, LogServiceReply), Trouble> {
        // A connection that was idle may have ended long ago, which says nothing about its member.
        // It is dropped if it fails: its answer may still come, and would be taken for that of the next request.
        if let Some(mut link) = self.link.take()
            && let Ok(answer) = exchange(&mut link, request, patience)
        {
            self.link = Some(link);
            return Ok(answer);
        }
        let contact = self.contacts.next()?;
        let mut link = self.caller.dial(&contact, Service::Log, ATTEMPT).map_err(|error| match error.denied() {
            Some(why) => Trouble::Denied(why.to_owned()),
            None => Trouble::Passing(error.to_string()),
        })?;
        link.writer.set_timeout(Some(ATTEMPT)).map_err(|error| error.to_string())?;
        let hello = LogServiceRequest::Hello { version: VERSION, group: self.group.clone(), shard: self.shard };
        match exchange(&mut link, &hello, ATTEMPT)? {
            (_, LogServiceReply::Welcome(members)) => self.contacts.learn(members),
            refusal => return Ok(refusal),
        }
        Ok(exchange(self.link.insert(link), request, patience)?)
    }
}

/// A reason for which a member was not asked, or did not answer.
enum Trouble {
    /// The reader's certificate does not permit it to read logs.
    Denied(String),
    /// Another member, or a later attempt, may succeed.
    Passing(String),
}

impl From<String> for Trouble {
    fn from(why: String) -> Trouble {
        Trouble::Passing(why)
    }
}

fn exchange(
    link: &mut ControlStream,
    request: &LogServiceRequest,
    patience: Duration,
) -> Result<(NodeId, LogServiceReply), String> {
    let node = link.peer;
    let cut = |error: FrameError| match error {
        error if error.is_late() => format!("{node} did not answer within {} s", patience.as_secs_f64()),
        error => format!("{node} did not answer: {error}"),
    };
    link.reader.set_timeout(Some(patience)).map_err(|error| cut(error.into()))?;
    frame::write(&mut link.writer, request, REQUEST_BYTES).map_err(cut)?;
    Ok((node, frame::read(&mut link.reader, REPLY_BYTES).map_err(cut)?))
}

/// Returns the first version of a range, and the last.
fn bounds(versions: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match versions.start_bound() {
        Bound::Included(&version) => version,
        Bound::Excluded(&version) => version.saturating_add(1),
        Bound::Unbounded => 1,
    };
    let to = match versions.end_bound() {
        Bound::Included(&version) => version,
        Bound::Excluded(&version) => version.saturating_sub(1),
        Bound::Unbounded => u64::MAX,
    };
    (from, to)
}
