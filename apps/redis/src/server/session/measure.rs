//! The time from each request to its answer, for the server's statistics and `SLOWLOG`; and the view of `MONITOR`.
//!
//! The clock is read once for the requests that arrive together, and once for the answers that are known together. So
//! requests of one pipeline are measured together. If they are slow, `SLOWLOG` lists one of each command in a row: the
//! others would say the same, push out other entries, and cost time where there is too little already.

use std::{
    collections::VecDeque,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{Replica, Session, SessionStep, Taken};
use crate::{
    Reply,
    command::Spec,
    server::{
        monitor,
        operations::{Excerpt, Operations},
        subscriptions::CutOff,
    },
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
    /// The times of the requests taken, and of the answers known, in this batch.
    batch: Option<Duration>,
    answers: Option<Duration>,
    /// The place of the command of the last slow request among these answers.
    slow: Option<usize>,
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
        (self.batch, self.answers, self.slow) = (None, None, None);
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
        let redacted = monitor::redacted(spec, words);
        if self.subscriptions.hub().is_monitored() && !spec.flags.is_admin {
            let words = redacted.as_deref().unwrap_or(words);
            self.pending.line = Some(monitor::line(self.replica.now_us(), self.client.peer(), words));
        }
        // A queued request is called once its transaction is carried out.
        if self.is_queued(spec) {
            return;
        }
        let excerpts = &mut self.pending.excerpts;
        let excerpt = match &redacted {
            _ if self.operations.slow_log.slower_than_us() < 0 => Excerpt::NONE,
            Some(words) => Excerpt::write(&crate::words::join(words), words, excerpts),
            None => Excerpt::write(request, words, excerpts),
        };
        self.pending.current = Some(Asked { spec, excerpt, at });
    }

    /// The server's time when the present batch of requests arrived.
    pub(super) fn batch_time(&mut self) -> Duration {
        *self.pending.batch.get_or_insert_with(|| self.replica.uptime())
    }

    /// Counts the answer that is owed first, and the time that it took.
    fn measure(&mut self, answer: &Reply) {
        let Some(Some(Asked { spec, excerpt, at })) = self.pending.asked.pop_front() else {
            if let Reply::Error(error) = answer {
                self.operations.statistics.error(error);
            }
            return;
        };
        let now = *self.pending.answers.get_or_insert_with(|| self.replica.uptime());
        let took = now.saturating_sub(at);
        let Operations { statistics, slow_log, latency, .. } = &*self.operations;
        statistics.call(spec, took, answer);
        if spec.name == "exec"
            && let Some(specs) = self.pending.transactions.pop_front()
            && let Reply::Array(answers) = answer
        {
            // Nothing tells the requests' times apart.
            let each = took / (specs.len().max(1) as u32);
            specs.iter().zip(answers).for_each(|(spec, answer)| statistics.call(spec, each, answer));
        }
        if slow_log.is_slow(spec, took) && self.pending.slow.replace(spec.place) != Some(spec.place) {
            let since_1970 = Duration::from_millis(self.replica.now_ms());
            let client = (self.client.peer().to_string(), self.client.details().name.clone());
            let from = &self.pending.excerpts[self.pending.answered_bytes..];
            slow_log.add(since_1970, took, (excerpt, from), client);
        }
        if latency.is_long(took) && !spec.flags.is_blocking {
            let event = if spec.is_fast { "fast-command" } else { "command" };
            latency.note(event, Duration::from_millis(self.replica.now_ms()), took);
        }
        self.pending.remove(excerpt);
    }
}
