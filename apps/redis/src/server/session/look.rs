//! Reads that follow each other, as one look at the replica.

use std::collections::VecDeque;

use crate::{Reply, Store};

/// The most bytes of the requests in one look, about, and the most weight: a look holds up the delivering thread.
const MAX_BYTES: usize = 1 << 20;
const MAX_WEIGHT: usize = 512;

/// The weight of a read that may take long.
const SLOW: usize = 64;

/// The bytes of answers after which the other requests are left for later.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// The most memory of a look that is kept for the next one, in bytes.
const KEPT_BYTES: usize = 64 << 10;

/// Requests that only look, and then their answers. It is used again and again, so that few looks allocate memory.
#[derive(Debug, Default)]
pub(in crate::server) struct Look {
    pub(in crate::server) clock_ms: u64,
    requests: Vec<u8>,
    /// The end of each request.
    ends: Vec<usize>,
    weight: usize,
    /// The number of requests that were answered, whether or not their answers were taken.
    answered: usize,
    pub(super) answers: VecDeque<Reply>,
}

impl Look {
    pub(super) fn push(&mut self, request: &[u8], is_fast: bool) {
        self.requests.extend_from_slice(request);
        self.ends.push(self.requests.len());
        self.weight += if is_fast { 1 } else { SLOW };
    }

    pub(super) fn is_full(&self) -> bool {
        self.weight >= MAX_WEIGHT || self.requests.len() >= MAX_BYTES
    }

    /// The number of requests that were not answered yet.
    pub(super) fn left(&self) -> usize {
        self.ends.len() - self.answered
    }

    /// Answers the requests, up to the first whose answer makes them large.
    pub(in crate::server) fn answer(&mut self, store: &Store) {
        self.answer_by(|request, clock_ms| store.look(request, clock_ms));
    }

    /// The requests that were not answered yet.
    pub(in crate::server) fn unanswered(&self) -> Vec<Vec<u8>> {
        let begin = |at: usize| at.checked_sub(1).map_or(0, |last| self.ends[last]);
        (self.answered..self.ends.len()).map(|at| self.requests[begin(at)..self.ends[at]].to_vec()).collect()
    }

    /// Takes answers to the first unanswered requests. Returns whether their number can be right: at least one, and no
    /// more than there are requests.
    pub(in crate::server) fn take_answers(&mut self, answers: Vec<Reply>) -> bool {
        let can_be_right = (1..=self.left()).contains(&answers.len());
        if can_be_right {
            self.answered += answers.len();
            self.answers.extend(answers);
        }
        can_be_right
    }

    pub(super) fn answer_by(&mut self, look: impl Fn(&[u8], u64) -> Reply) {
        let mut from = self.answered.checked_sub(1).map_or(0, |last| self.ends[last]);
        let mut bytes = 0;
        for &end in &self.ends[self.answered..] {
            let answer = look(&self.requests[from..end], self.clock_ms);
            bytes += answer.payload_bytes();
            self.answers.push_back(answer);
            self.answered += 1;
            if bytes >= MAX_ANSWER_BYTES {
                break;
            }
            from = end;
        }
    }

    pub(super) fn clear(&mut self) {
        if self.requests.capacity() > KEPT_BYTES {
            *self = Look::default();
        }
        self.requests.clear();
        self.ends.clear();
        (self.weight, self.answered) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_answers_come_a_few_at_a_time() {
        let mut look = Look::default();
        (0..5).for_each(|_| look.push(b"request", true));
        let mut times = 0;
        while look.left() > 0 {
            look.answer_by(|_, _| Reply::Bytes(vec![0; MAX_ANSWER_BYTES / 2].into()));
            assert!(look.answers.len() <= 2);
            look.answers.clear();
            times += 1;
        }
        assert_eq!(times, 3);
    }

    #[test]
    fn few_slow_reads_fill_a_look() {
        let fill = |is_fast| {
            let mut look = Look::default();
            while !look.is_full() {
                look.push(b"", is_fast);
            }
            look.left()
        };
        assert_eq!([fill(true), fill(false)], [512, 8]);
    }
}
