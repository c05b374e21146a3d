//! The node's side of the log service: a thread for each reader, beside the threads that deliver and write.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use squall_fabric::net::{Call, CallerAccess};
use squall_membership::{ShardId, View};
use squall_ordered::log::Hlc;
use squall_runtime::blocking;
use squall_services::{
    ControlStream,
    frame::{self, FrameError},
};

use super::{
    LogRecord, Page,
    check::check,
    wire::{LogServiceReply, LogServiceRequest, REPLY_BYTES, REQUEST_BYTES, VERSION},
};
use crate::{
    clients::wire::{Consistency, Members},
    durable::history::{EntryBody, HistoryError, LogFollower, Next},
    group::{
        control::{Controls, GroupControl},
        log_source::LogSource,
    },
};

/// The time for which a reader may be silent.
const IDLE: Duration = Duration::from_secs(60);

/// The time after which a reader that takes nothing of an answer is given up.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// The longest page, in bytes, except for its last record.
const MAX_PAGE_BYTES: u64 = 8 << 20;

/// The most that a check reads at a time, in bytes, except for its last record.
const MAX_CHECK_BYTES: u64 = 64 << 20;

/// The longest wait of a reader at a time: a node that ends waits for its readers.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The time that the other members have to confirm that this node shows the latest.
const CATCH_UP: Duration = Duration::from_secs(2);

/// A node's logs.
pub(crate) struct Logs {
    pub(crate) controls: Arc<Controls>,
    /// Returns the node's view, if it has one.
    pub(crate) view: Box<dyn Fn() -> Option<Arc<View>> + Send + Sync>,
}

/// Answers a call of [`Service::Log`](squall_services::Service::Log), until the call ends.
pub(crate) fn serve(stream: ControlStream, logs: &Logs) {
    let reader = stream.peer_name();
    match converse(stream, logs) {
        Ok(()) | Err(FrameError::Closed) => {}
        Err(error) => tracing::debug!(%reader, %error, "the call of a log's reader has ended"),
    }
}

fn converse(stream: ControlStream, logs: &Logs) -> Result<(), FrameError> {
    stream.reader.set_timeout(Some(IDLE))?;
    stream.writer.set_timeout(Some(WRITE_LIMIT))?;
    let ControlStream { access, mut reader, mut writer, .. } = stream;
    let mut conversation = match logs.find(&access, frame::read(&mut reader, REQUEST_BYTES)?) {
        Ok(conversation) => conversation,
        Err(why) => return frame::write(&mut writer, &LogServiceReply::Refused(why), REPLY_BYTES),
    };
    frame::write(&mut writer, &LogServiceReply::Welcome(logs.members()), REPLY_BYTES)?;
    loop {
        let request = frame::read(&mut reader, REQUEST_BYTES)?;
        let reply = conversation.answer(request).unwrap_or_else(|error| sorry(&error));
        frame::write(&mut writer, &reply, REPLY_BYTES)?;
    }
}

impl Logs {
    /// Returns the conversation about the log that a reader names, or the reason for which there is none.
    fn find(&self, access: &CallerAccess, hello: LogServiceRequest) -> Result<LogConversation, String> {
        let LogServiceRequest::Hello { version, group, shard } = hello else {
            return Err("the first message is no hello".to_owned());
        };
        if version != VERSION {
            return Err(format!(
                "logs are read by version {VERSION} here, not {version}: run one version of squall everywhere"
            ));
        }
        access.check(Call::Log, Some(&group)).map_err(|denied| denied.to_string())?;
        // A group's shards are numbered one after the other.
        let mut shards = self.controls.iter().filter(|(_, control)| control.name() == group);
        let Some((&ShardId(first), _)) = shards.clone().next() else {
            return Err(format!("this node has no group {group:?}: give the name of one that it has"));
        };
        let Some((_, control)) = shards.find(|(number, _)| number.0 - first == shard) else {
            return Err(format!("group {group:?} has no shard {shard}"));
        };
        let source = control
            .log_source()
            .ok_or_else(|| format!("group {group:?} has no log: give it `mode = \"durable\"` in its configuration"))?;
        Ok(LogConversation { source, control: Arc::clone(control), follower: None })
    }

    fn members(&self) -> Members {
        let Some(view) = (self.view)() else { return Members::default() };
        let members = view.members.iter().map(|member| (member.node.0, member.addresses.clone()));
        Members { epoch: view.epoch.0, members: members.collect() }
    }
}

/// Returns the reply in place of an answer.
fn sorry(error: &HistoryError) -> LogServiceReply {
    match error {
        HistoryError::Trimmed { first, .. } | HistoryError::Before { first } => {
            LogServiceReply::Trimmed { first: *first }
        }
        HistoryError::NotDurable { .. } => LogServiceReply::Refused(error.to_string()),
        _ => LogServiceReply::Away(error.to_string()),
    }
}

/// The state of one reader's conversation.
struct LogConversation {
    source: Arc<dyn LogSource>,
    control: Arc<dyn GroupControl>,
    /// The follower where it stopped last.
    follower: Option<LogFollower>,
}

impl LogConversation {
    fn answer(&mut self, request: LogServiceRequest) -> Result<LogServiceReply, HistoryError> {
        Ok(match request {
            LogServiceRequest::Hello { .. } => LogServiceReply::Refused("a second hello".to_owned()),
            LogServiceRequest::Read { consistency: Consistency::Linearizable, .. }
            | LogServiceRequest::At { consistency: Consistency::Linearizable, .. }
                if let Some(why) = self.is_behind() =>
            {
                LogServiceReply::Away(why)
            }
            LogServiceRequest::Read { from, to, max_bytes, wait_ms, .. } => {
                let page = self.page(from, to, max_bytes.min(MAX_PAGE_BYTES), Duration::from_millis(wait_ms))?;
                // A reader that waits in vain must learn whether it is with a member that would hear of more.
                match (page.records.is_empty() && page.next == from && wait_ms > 0).then(|| self.is_behind()).flatten()
                {
                    Some(why) => LogServiceReply::Away(why),
                    None => LogServiceReply::Page(page),
                }
            }
            LogServiceRequest::At { time_ns, .. } => {
                let at = self.source.version_at(Hlc(time_ns))?;
                LogServiceReply::At { version: at.version, time_ns: at.time.0 }
            }
            LogServiceRequest::Status => match self.control.history().status() {
                Some(status) => LogServiceReply::Status(Box::new(status)),
                None => LogServiceReply::Away("the node has not started yet".to_owned()),
            },
            LogServiceRequest::Check { from, to, max_bytes } => {
                LogServiceReply::Checked(check(&*self.source, from, to, max_bytes.min(MAX_CHECK_BYTES))?)
            }
        })
    }

    /// Returns the reason for which this node can't show the latest, if it can't.
    fn is_behind(&self) -> Option<String> {
        let mut read = self.source.catch_up();
        let until = Instant::now() + CATCH_UP;
        match blocking::block_on(Some(until), |context| Pin::new(&mut read).poll(context)) {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(error.to_string()),
            None => Some(format!("the others did not confirm within {CATCH_UP:?} that it shows the latest")),
        }
    }

    fn page(&mut self, from: u64, to: u64, max_bytes: u64, wait: Duration) -> Result<Page, HistoryError> {
        let from = from.max(1);
        // After an error there is no follower, so that the next page begins anew.
        let before = self.follower.take().filter(|follower| follower.next_version() == from);
        let mut follower = before.map_or_else(|| self.source.follow(from), Ok)?;
        let (mut records, mut bytes) = (Vec::new(), 0);
        let mut wait = wait.min(MAX_WAIT);
        while follower.next_version() <= to && bytes < max_bytes {
            let entry = match follower.wait(std::mem::take(&mut wait)) {
                Ok(Next::Entry(entry)) => entry,
                Ok(Next::Late) => break,
                // The records before the error are shown, and the next page begins anew with the error.
                Err(_) if !records.is_empty() => return Ok(self.shown(records, follower.next_version())),
                Err(error) => return Err(error),
            };
            if let EntryBody::Command { sender, bytes: command } = entry.body {
                bytes += command.len() as u64;
                let (version, time, epoch, is_skipped) = (entry.version, entry.time, entry.epoch, entry.is_skipped);
                records.push(LogRecord { version, time, epoch, sender, is_skipped, command: command.to_vec() });
            }
        }
        let page = self.shown(records, follower.next_version());
        self.follower = Some(follower);
        Ok(page)
    }

    fn shown(&self, records: Vec<LogRecord>, next: u64) -> Page {
        Page {
            records,
            next,
            globally_persisted: self.control.history().status().map_or(0, |log| log.globally_persisted),
        }
    }
}
