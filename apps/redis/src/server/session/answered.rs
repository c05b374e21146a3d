//! The answers that are known together, until they are counted: the shared counts are reached once for all of them.

use std::{mem, ptr, time::Duration};

use smallvec::SmallVec;

use crate::{
    Error, Reply,
    command::Spec,
    server::operations::{Excerpt, Operations, SlowRequests},
};

/// The most runs of answers that are kept apart.
const MAX_RUNS: usize = 8;

/// The events of `LATENCY`, for commands that may take long and for those that do not.
const EVENTS: [&str; 2] = ["command", "fast-command"];

/// The answers to requests of one command that arrived together. All of them took the same time.
#[derive(Debug)]
struct Run {
    spec: &'static Spec,
    arrived: Duration,
    took: Duration,
    is_slow: bool,
    calls: u64,
    failed: u64,
}

/// Answers that were given since they were last counted.
#[derive(Debug, Default)]
pub(super) struct AnsweredBatch {
    /// The time of the answers. It is read once.
    now: Option<Duration>,
    runs: SmallVec<[Run; MAX_RUNS]>,
    /// The run of the last answer.
    last: usize,
    errors: Vec<(Error, u64)>,
    slow: SlowRequests,
    /// The place of the command of the last slow request.
    last_slow: Option<usize>,
    /// The longest time of each event.
    longest: [Duration; EVENTS.len()],
}

impl AnsweredBatch {
    /// Begins another batch. The one before was counted.
    pub(super) fn begin(&mut self) {
        (self.now, self.last_slow) = (None, None);
    }

    /// Notes an error among the answers.
    pub(super) fn add_error(&mut self, error: &Error) {
        match self.errors.last_mut() {
            Some((last, count)) if last == error => *count += 1,
            _ => self.errors.push((error.clone(), 1)),
        }
    }

    /// Notes an answer to a request that arrived at `arrived`. `excerpts` begins with the request's. Returns the time
    /// that it took. `now` reads the clock.
    #[inline]
    pub(super) fn add(
        &mut self,
        (spec, arrived): (&'static Spec, Duration),
        failed: bool,
        (excerpt, excerpts): (Excerpt, &[u8]),
        operations: &Operations,
        now: impl FnOnce() -> Duration,
    ) -> Duration {
        let is_of = |run: &Run| ptr::eq(run.spec, spec) && run.arrived == arrived;
        if !self.runs.get(self.last).is_some_and(is_of) {
            self.last =
                self.runs.iter().position(is_of).unwrap_or_else(|| self.begin_run(spec, arrived, operations, now));
        }
        let run = &mut self.runs[self.last];
        run.calls += 1;
        run.failed += u64::from(failed);
        // Of requests of one command in a row, the log has the first.
        if run.is_slow && self.last_slow != Some(spec.place) {
            self.last_slow = Some(spec.place);
            self.slow.push(run.took, excerpt, excerpts);
        }
        run.took
    }

    fn begin_run(
        &mut self,
        spec: &'static Spec,
        arrived: Duration,
        operations: &Operations,
        now: impl FnOnce() -> Duration,
    ) -> usize {
        if self.runs.len() == MAX_RUNS {
            self.count_runs(operations);
        }
        let took = self.now.get_or_insert_with(now).saturating_sub(arrived);
        if operations.latency.is_long(took) && !spec.flags.is_blocking {
            let longest = &mut self.longest[usize::from(spec.is_fast)];
            *longest = took.max(*longest);
        }
        let is_slow = operations.slow_log.is_slow(spec, took);
        self.runs.push(Run { spec, arrived, took, is_slow, calls: 0, failed: 0 });
        self.runs.len() - 1
    }

    fn count_runs(&mut self, operations: &Operations) {
        for Run { spec, took, calls, failed, .. } in self.runs.drain(..) {
            operations.statistics.count(spec, took, calls, failed);
        }
    }

    /// Counts all answers. `client` gives the time since 1970, and the client's address and name.
    pub(super) fn count(&mut self, operations: &Operations, client: impl FnOnce() -> (Duration, (String, String))) {
        if self.runs.is_empty() && self.errors.is_empty() {
            return;
        }
        self.count_runs(operations);
        if !self.errors.is_empty() {
            operations.statistics.count_errors(self.errors.drain(..));
        }
        let is_long = self.longest.iter().any(|longest| !longest.is_zero());
        if self.slow.is_empty() && !is_long {
            return;
        }
        let (at, client) = client();
        for (event, longest) in EVENTS.into_iter().zip(mem::take(&mut self.longest)) {
            operations.latency.note(event, at, longest);
        }
        if !self.slow.is_empty() {
            operations.slow_log.add(at, mem::take(&mut self.slow), client);
        }
    }
}

/// The error that an answer is, if it is one.
pub(super) fn error_of(answer: &Reply) -> Option<&Error> {
    if let Reply::Error(error) = answer { Some(error) } else { None }
}
