//! Replies and reads whose messages a crash of all members could still undo.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    calls::{read::Job, submit::Unapplied},
    durable::log_writer::LogWriter,
    replica::service::Service,
};

/// The delivering thread's side of a durable group's log. It appends, and holds replies and reads until all members
/// have on disk the messages on which they rest.
pub(super) struct PendingDurable<S: Service> {
    pub(super) log_writer: Arc<LogWriter>,
    /// The pending replies, in the order of versions, each with its version and its ticket.
    pub(super) replies: VecDeque<(u64, u32, Result<S::Reply, Unapplied>)>,
    pub(super) reads: VecDeque<(u64, Job<S>)>,
}

impl<S: Service> PendingDurable<S> {
    pub(super) fn new(log_writer: Arc<LogWriter>) -> PendingDurable<S> {
        PendingDurable { log_writer, replies: VecDeque::new(), reads: VecDeque::new() }
    }

    /// Holds a read of the version with which the log ends. Gives it back if that version is globally persisted.
    pub(super) fn hold_read(&mut self, job: Job<S>) -> Option<Job<S>> {
        let version = self.log_writer.end().version;
        if version <= self.log_writer.globally_persisted() {
            return Some(job);
        }
        self.reads.push_back((version, job));
        None
    }
}
