//! Links that are tried before an endpoint waits for them: whether memory can be shared with a process is found out by
//! doing so.

use std::time::{Duration, Instant};

use super::{Event, LinkAttempt, thread::Thread};
use crate::NodeId;

/// The time after which an attempt has failed. A process that runs answers at once, and a host may be busy.
const PATIENCE: Duration = Duration::from_secs(3);

/// An attempt to link with a process that is alive, as is known from elsewhere.
pub(super) struct Attempt {
    incarnation: u64,
    pub(super) deadline: Instant,
    /// The obstacle so far.
    problem: String,
}

impl Thread {
    /// Begins to link with the process of a node that has that incarnation, unless there is a link.
    pub(super) fn try_link(&mut self, peer: NodeId, incarnation: u64, now: Instant) {
        let problem = "it did not answer in time".to_owned();
        self.attempts.insert(peer, Attempt { incarnation, deadline: now + PATIENCE, problem });
        if let Some(id) = self.pairing.link_with(peer)
            && self.links.get(&id).is_some_and(|link| link.incarnation == incarnation)
        {
            self.end_attempt(peer, Ok(()));
        }
    }

    /// Takes note of a new link. Returns whether it is with another process than the one that is tried.
    pub(super) fn is_other_process(&mut self, peer: NodeId, incarnation: u64) -> bool {
        match self.attempts.get_mut(&peer) {
            Some(attempt) if attempt.incarnation != incarnation => {
                attempt.problem = "another process has its name on this host".to_owned();
                true
            }
            Some(_) => {
                self.end_attempt(peer, Ok(()));
                false
            }
            None => false,
        }
    }

    /// Takes note of a problem that may pass.
    pub(super) fn note_problem(&mut self, peer: NodeId, problem: &str) {
        if let Some(attempt) = self.attempts.get_mut(&peer) {
            problem.clone_into(&mut attempt.problem);
        }
    }

    /// Ends an attempt, if there is one.
    pub(super) fn end_attempt(&mut self, peer: NodeId, result: Result<(), String>) {
        if let Some(Attempt { incarnation, .. }) = self.attempts.remove(&peer) {
            self.events.send(Event::Tried(LinkAttempt { peer, incarnation, result }));
        }
    }

    /// Ends the attempts that took too long.
    pub(super) fn expire_attempts(&mut self, now: Instant) {
        let late = self.attempts.iter().filter(|(_, attempt)| attempt.deadline <= now);
        for (peer, problem) in late.map(|(peer, attempt)| (*peer, attempt.problem.clone())).collect::<Vec<_>>() {
            self.end_attempt(peer, Err(problem));
        }
    }
}
