//! Replies and reads whose messages a crash of all members could still undo.

use std::{collections::VecDeque, sync::Arc};

use super::{
    apply::{ApplyContext, Wakers},
    fail,
};
use crate::{
    calls::{
        error::{Outcome, ReadError, SubmitError, Unavailable},
        read::Job,
        submit::Unapplied,
    },
    durable::log_writer::LogWriter,
    replica::service::Service,
};

/// The delivering thread's side of a durable group's log. It appends, and holds replies and reads until all members
/// have on disk the messages on which they rest.
pub(super) struct PendingDurable<S: Service> {
    pub(super) log_writer: Arc<LogWriter>,
    /// The pending replies, in the order of versions, each with its version and its ticket.
    pub(super) replies: VecDeque<(u64, u32, Result<S::Reply, Unapplied>)>,
    reads: VecDeque<(u64, Job<S>)>,
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

impl<S: Service> ApplyContext<S> {
    /// Releases the answers that wait for this version: all members have the messages up to it on disk.
    pub(super) fn release(&mut self, version: u64) {
        let ApplyContext { durable, shared, wakers, .. } = self;
        let Some(durable) = durable else { return };
        durable.log_writer.set_globally_persisted(version);
        let globally_persisted = durable.log_writer.globally_persisted();
        while durable.replies.front().is_some_and(|(at, ..)| *at <= globally_persisted) {
            let Some((_, ticket, reply)) = durable.replies.pop_front() else { break };
            shared.complete(ticket, reply, |waker| wakers.push(waker));
        }
        while durable.reads.front().is_some_and(|(at, _)| *at <= globally_persisted) {
            let Some((_, job)) = durable.reads.pop_front() else { break };
            job.answer().into_iter().for_each(|waker| wakers.push(waker));
        }
    }

    /// Fails the pending replies: this node will not learn whether a crash of all members undoes their messages.
    pub(super) fn fail_pending_replies(&mut self, why: &Unavailable) {
        let ApplyContext { durable: Some(durable), shared, wakers, .. } = self else { return };
        for (_, ticket, _) in durable.replies.drain(..) {
            let outcome = Outcome::Unknown { held_by: Vec::new() };
            fail(shared, wakers, ticket, SubmitError::Unavailable { why: why.clone(), outcome });
        }
    }

    pub(super) fn fail_pending_reads(&mut self, error: &ReadError) {
        let ApplyContext { durable: Some(durable), wakers, .. } = self else { return };
        durable.reads.drain(..).for_each(|(_, job)| fail_read(job, error, wakers));
    }
}

/// Fails a read with `error`, for the caller that waits for it.
pub(super) fn fail_read<S>(mut job: Job<S>, error: &ReadError, wakers: &mut Wakers) {
    job.look(Err(error.clone()));
    job.answer().into_iter().for_each(|waker| wakers.push(waker));
}
