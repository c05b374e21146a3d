//! The time from each request to its answer, for the server's statistics and `SLOWLOG`; and the view of `MONITOR`.
//!
//! The clock is read once for the requests that arrive together, and once for the answers that are known together. So
//! requests of one pipeline are measured and counted together. If they are slow, `SLOWLOG` lists one of each command in
//! a row: the others would say the same, push out other entries, and cost time where there is too little already.

use std::{
    collections::VecDeque,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{Replica, Session, SessionStep, Taken, answered::error_of};
use crate::{
    Reply,
    command::Spec,
    server::{mail::MAX_MAIL_BYTES, monitor, operations::Excerpt, subscriptions::CutOff},
    words,
};

/// The requests whose answers are owed.
#[derive(Debug, Default)]
pub(super) struct PendingAnswers {
    /// One for each owed answer. `None` if the answer is a further one of the request before, or of none that was
    /// carried out.
    asked: VecDeque<Option<Asked>>,
    /// The excerpts of all of them, and the number of bytes that are no longer needed.
    excerpts: Vec<u8>,
    answered_bytes: usize,
    /// The commands of each transaction whose answer is owed.
    transactions: VecDeque<Vec<&'static Spec>>,
    /// The request that is being taken.
    current: Option<Asked>,
    /// Its line, if there are monitors; `None` if it is too long for any.
    line: Option<Option<String>>,
    /// The time of the requests taken in this batch.
    batch: Option<Duration>,
}

#[derive(Debug)]
struct Asked {
    spec: &'static Spec,
    excerpt: Excerpt,
    at: Duration,
}

/// The bytes of excerpts beyond which those that are no longer needed are removed, though others follow.
const KEPT_BYTES: usize = 16 << 10;

impl PendingAnswers {
    /// The bytes of the excerpts.
    pub(super) fn bytes(&self) -> usize {
        self.excerpts.len()
    }

    pub(super) fn begin_batch(&mut self) {
        self.batch = None;
    }

    /// Takes out the line of the request that is being taken, if there are monitors.
    pub(super) fn take_line(&mut self) -> Option<Option<String>> {
        self.line.take()
    }

    /// Notes that a transaction's answer is owed.
    pub(super) fn push_transaction(&mut self, specs: Vec<&'static Spec>) {
        self.transactions.push_back(specs);
    }

    /// Notes that so many answers are owed, of which no new one belongs to a request.
    #[inline]
    fn follow(&mut self, owed: usize) {
        if self.asked.len() < owed {
            self.asked.resize_with(owed, || None);
        }
    }

    /// Notes that so many answers are owed. The first new one belongs to the request that is being taken. If there is
    /// none, it is forgotten.
    #[inline]
    fn finish(&mut self, owed: usize) {
        let current = self.current.take();
        if self.asked.len() < owed {
            self.asked.push_back(current);
            self.follow(owed);
        } else if let Some(asked) = current {
            self.excerpts.truncate(self.excerpts.len() - asked.excerpt.bytes as usize);
        }
    }

    /// Removes the first excerpt.
    #[inline]
    fn remove(&mut self, excerpt: Excerpt) {
        self.answered_bytes += excerpt.bytes as usize;
        if self.answered_bytes == self.excerpts.len() {
            self.excerpts.clear();
        } else if self.answered_bytes > KEPT_BYTES && self.answered_bytes > self.excerpts.len() / 2 {
            // At least as much is removed as is moved.
            self.excerpts.drain(..self.answered_bytes);
        } else {
            return;
        }
        self.answered_bytes = 0;
    }
}

impl<R: Replica> Session<R> {
    /// Takes the next request, unless it must wait for earlier ones. The buffer may be used again afterwards.
    pub(in crate::server) fn take(&mut self, request: &mut Vec<u8>, context: &mut Context<'_>) -> Taken {
        if !self.is_open() {
            return Taken::NotYet;
        }
        self.pending.follow(self.owed.len());
        let taken = self.take_request(request, context);
        self.pending.finish(self.owed.len());
        if let Some(line) = self.pending.line.take()
            && taken == Taken::Yes
        {
            self.subscriptions.hub().show(line);
        }
        taken
    }

    /// The next answer that the client is owed, once it is known.
    pub(in crate::server) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<SessionStep> {
        let owed = self.owed.len();
        let step = ready!(self.poll_answer(context));
        if let SessionStep::Answer(answer) = &step {
            self.pending.follow(owed);
            self.measure(answer);
        }
        Poll::Ready(step)
    }

    /// Appends messages of channels, and requests for a monitor, to the connection's output, until there are `max`
    /// bytes.
    pub(in crate::server) fn deliver_mail(&mut self, max: usize, out: &mut Vec<u8>) -> Result<bool, CutOff> {
        if self.subscriptions.has_no_mail() {
            return Ok(false);
        }
        self.subscriptions.deliver(self.protocol, max, out)
    }

    /// Begins to take a request.
    pub(super) fn begin(&mut self, spec: &'static Spec, request: &[u8], words: &[&[u8]]) {
        let at = self.batch_time();
        // A queued request is called once its transaction is carried out.
        if self.is_queued(spec) {
            return;
        }
        let redacted = monitor::redacted(spec, words);
        if self.subscriptions.hub().is_monitored() && !spec.flags.is_admin {
            let words = redacted.as_deref().unwrap_or(words);
            self.pending.line = Some(monitor::line(self.replica.now_us(), self.client.peer(), words));
        }
        let excerpts = &mut self.pending.excerpts;
        let excerpt = match &redacted {
            _ if self.operations.slow_log.slower_than_us() < 0 => Excerpt::NONE,
            Some(words) => Excerpt::write(&words::join(words), words, excerpts),
            None => Excerpt::write(request, words, excerpts),
        };
        self.pending.current = Some(Asked { spec, excerpt, at });
    }

    /// The server's time when the present batch of requests arrived.
    pub(super) fn batch_time(&mut self) -> Duration {
        *self.pending.batch.get_or_insert_with(|| self.replica.uptime())
    }

    /// The lines of the requests in the open transaction, if there are monitors; `None` for those that are too long for
    /// any.
    pub(super) fn queued_lines(&self) -> Vec<Option<String>> {
        if !self.subscriptions.hub().is_monitored() {
            return Vec::new();
        }
        let (now_us, mut lines, mut bytes) = (self.replica.now_us(), Vec::new(), 0);
        for (spec, request) in self.transaction.requests().filter(|(spec, _)| !spec.flags.is_admin) {
            let words = words::split(request).expect("the request was made of words");
            let shown = monitor::redacted(spec, &words);
            let line = monitor::line(now_us, self.client.peer(), shown.as_deref().unwrap_or(&words));
            bytes += line.as_ref().map_or(MAX_MAIL_BYTES, String::len);
            lines.push(line);
            if bytes >= MAX_MAIL_BYTES {
                // No monitor may lag behind so far.
                return vec![None];
            }
        }
        lines
    }

    /// Shows monitors a transaction: its requests, if they were carried out, and then `EXEC`.
    pub(super) fn show_executed(&self, mut lines: Vec<Option<String>>, answer: &Reply) {
        if !matches!(answer, Reply::Array(_)) {
            lines.drain(..lines.len().saturating_sub(1));
        }
        lines.into_iter().for_each(|line| self.subscriptions.hub().show(line));
    }

    /// Notes the answer that is owed first, and the time that it took.
    fn measure(&mut self, answer: &Reply) {
        let error = error_of(answer);
        if let Some(error) = error {
            self.answered.add_error(error);
        }
        let Some(Some(Asked { spec, excerpt, at })) = self.pending.asked.pop_front() else { return };
        let excerpts = &self.pending.excerpts[self.pending.answered_bytes..];
        let now = || self.replica.uptime();
        let took = self.answered.add((spec, at), error.is_some(), (excerpt, excerpts), &self.operations, now);
        if !self.pending.transactions.is_empty() && spec.name == "exec" {
            self.measure_transaction(took, answer);
        }
        self.pending.remove(excerpt);
    }

    /// Counts the requests of a transaction.
    fn measure_transaction(&mut self, took: Duration, answer: &Reply) {
        let Some(specs) = self.pending.transactions.pop_front() else { return };
        let Reply::Array(answers) = answer else { return };
        // Nothing tells the requests' times apart.
        let each = took / (specs.len().max(1) as u32);
        for (spec, answer) in specs.iter().zip(answers) {
            let error = error_of(answer);
            self.operations.statistics.count(spec, each, 1, u64::from(error.is_some()));
            error.into_iter().for_each(|error| self.answered.add_error(error));
        }
    }

    /// Counts the answers so far, so that all clients see them in the server's statistics.
    pub(in crate::server) fn count_answers(&mut self) {
        let Session { answered, operations, replica, client, .. } = self;
        answered.count(operations, || {
            let since_1970 = Duration::from_millis(replica.now_ms());
            (since_1970, (client.peer().to_string(), client.details().name.clone()))
        });
    }
}
