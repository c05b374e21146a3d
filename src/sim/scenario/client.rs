//! The operations of a scenario's clients, and the answers that they get.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use squall_fabric::NodeId;

use super::{
    Scenario,
    ledger::{Append, Ledger, Log, padding},
};
use crate::{
    calls::error::{Outcome, SubmitError},
    sim::check::Applied,
};

/// The number of clients that submit at each sender, each one message at a time.
const CLIENTS: u32 = 10;

/// The reason for which an operation has no answer.
pub(super) struct Failed {
    fate: Fate,
    why: String,
}

/// The fate of an operation that has no answer, as its error tells it.
enum Fate {
    /// Members apply it.
    Delivered,
    /// An operation that no member applies.
    NotApplied,
    Unknown,
}

impl From<SubmitError> for Failed {
    fn from(error: SubmitError) -> Failed {
        let outcome = match &error {
            SubmitError::Ended { outcome, .. }
            | SubmitError::Unavailable { outcome, .. }
            | SubmitError::ViewEnded { outcome, .. } => Some(outcome),
            _ => None,
        };
        let fate = match outcome {
            Some(Outcome::Delivered) => Fate::Delivered,
            _ if error.is_not_applied() => Fate::NotApplied,
            _ => Fate::Unknown,
        };
        Failed { fate, why: error.to_string() }
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<u64, Failed>>>>;

/// An operation that a client waits for.
pub(super) struct WaitingOperation {
    pub(super) node: NodeId,
    pub(super) what: ClientOperation,
    /// The length of the longest log that any client had seen when it began.
    floor: u64,
    /// The number of messages that were [said to be delivered](Scenario::delivered) then. Its answer must show them
    /// all.
    behind: usize,
    answer: Answer,
    /// The record of the replica that answers.
    log: Log,
    /// Whether its node was a member like any other when it began, and had not been disturbed before.
    served: bool,
}

/// An answer to an operation that began after messages were said to be delivered without a word on where they are.
pub(super) struct Later {
    pub(super) node: NodeId,
    pub(super) what: ClientOperation,
    /// The number of those messages.
    pub(super) behind: usize,
    /// The length of the log that it showed.
    pub(super) len: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ClientOperation {
    Append { client: u32, number: u64 },
    Read,
}

impl Scenario<'_> {
    /// Lets some client begin an operation.
    pub(super) fn begin(&mut self) {
        let peer = &self.peers[self.rng.usize(0..self.peers.len())];
        let node = peer.node;
        let over = self.cluster.end_reason(node).is_some();
        if peer.is_paused || !peer.is_up || peer.leaves || over || self.waiting.len() > 100 {
            return;
        }
        let sends = self.senders.contains(&node);
        if self.ordered && (!sends || self.rng.u8(0..3) == 0) {
            self.read(node);
        } else if sends {
            for _ in 0..self.rng.usize(1..=8) {
                let client = self.rng.u32(0..CLIENTS);
                self.append(node, client);
            }
        }
    }

    pub(super) fn read(&mut self, node: NodeId) {
        let (served, floor, behind) = (self.cluster.serves(node), self.seen, self.delivered.len());
        let Some(peer) = self.peer(node) else { return };
        let (read, log) = (peer.group.read(Ledger::len), peer.log.clone());
        let answer =
            Box::pin(async move { read.await.map_err(|error| Failed { fate: Fate::Unknown, why: error.to_string() }) });
        self.waiting.push(WaitingOperation { node, what: ClientOperation::Read, floor, behind, answer, log, served });
    }

    /// Returns whether the client was free to submit something.
    pub(super) fn append(&mut self, node: NodeId, client: u32) -> bool {
        // A client that waits for room must not submit the next message: that one could be accepted first.
        let waits = |w: &WaitingOperation| {
            w.node == node && matches!(w.what, ClientOperation::Append { client: c, .. } if c == client)
        };
        if self.waiting.iter().any(waits) {
            return false;
        }
        let (served, floor, len) = (self.cluster.serves(node), self.seen, self.sizes.length(&mut self.rng));
        let behind = self.delivered.len();
        let number = self.numbers.entry((node, client)).or_default();
        let append = Append { client, number: *number, padding: padding(node, client, *number, len) };
        let what = ClientOperation::Append { client, number: *number };
        *number += 1;
        let Some(peer) = self.peer(node) else { return false };
        let (submit, log) = (peer.group.submit(&append), peer.log.clone());
        let answer = Box::pin(async move { submit.await.map_err(Failed::from) });
        self.waiting.push(WaitingOperation { node, what, floor, behind, answer, log, served });
        true
    }

    pub(super) fn answer(&mut self) -> Result<(), String> {
        let mut context = Context::from_waker(Waker::noop());
        for mut waiting in std::mem::take(&mut self.waiting) {
            // A paused process sees no answers.
            if self.peer(waiting.node).is_some_and(|peer| peer.is_paused) {
                self.waiting.push(waiting);
                continue;
            }
            match waiting.answer.as_mut().poll(&mut context) {
                Poll::Pending => self.waiting.push(waiting),
                Poll::Ready(answer) => self.on_answer(&waiting, answer)?,
            }
        }
        Ok(())
    }

    fn on_answer(&mut self, waiting: &WaitingOperation, answer: Result<u64, Failed>) -> Result<(), String> {
        let &WaitingOperation { node, what, floor, .. } = waiting;
        let told = answer.as_ref().map_err(|failed| failed.why.clone());
        self.tell(|| format!("{node}: {what:?} -> {told:?}"));
        let entry = |client, number| Applied { sender: node, client, number, intact: true };
        match (what, answer) {
            (_, Err(Failed { why, .. })) if self.calm => {
                return Err(format!("{node}: {what:?} failed without a fault: {why}"));
            }
            // Callers must not notice a view change.
            (_, Err(Failed { why, .. })) if self.ordered && waiting.served && self.cluster.serves(node) => {
                return Err(format!("{node}: {what:?} failed at a member that stayed: {why}"));
            }
            (ClientOperation::Append { client, number }, Err(Failed { fate, .. })) => {
                let entry = entry(client, number);
                match fate {
                    // An acknowledgement without the place.
                    Fate::Delivered => self.delivered.push(entry),
                    Fate::NotApplied => _ = self.refused.insert(entry),
                    Fate::Unknown => _ = self.unknown.insert(entry),
                }
            }
            (ClientOperation::Read, Err(_)) => {}
            (ClientOperation::Append { client, number }, Ok(len)) => {
                self.acknowledged.push((len, entry(client, number)));
                self.show(waiting, len)?;
                self.note(waiting, len);
            }
            (ClientOperation::Read, Ok(len)) if len < floor => {
                return Err(format!("{node} read a log of {len} entries, after {floor} had been seen"));
            }
            (ClientOperation::Read, Ok(len)) => {
                self.reads += 1;
                self.show(waiting, len)?;
                self.note(waiting, len);
            }
        }
        Ok(())
    }

    /// Takes note that a durable group's answer shows a log of `len` entries. Nothing may undo that log, so it must be
    /// part of all that other clients were shown, or go on from that.
    fn show(&mut self, WaitingOperation { node, log, .. }: &WaitingOperation, len: u64) -> Result<(), String> {
        if !self.durable {
            return Ok(());
        }
        let mut book = log.book();
        book.told = book.told.max(Some(len as usize));
        let (has, len) = (book.entries.len(), len as usize);
        let Some(entries) = book.entries.get(..len) else {
            return Err(format!("{node} showed a log of {len} entries, and has only {has}"));
        };
        let both = len.min(self.shown.len());
        // Each entry was compared with the one before when it came.
        if both > 0 && entries[both - 1] != self.shown[both - 1] {
            let (other, this) = (self.shown[both - 1], entries[both - 1]);
            return Err(format!("{node} showed {this:?} at {}, where {other:?} had been shown", both - 1));
        }
        self.shown.extend_from_slice(&entries[both..]);
        Ok(())
    }

    fn note(&mut self, &WaitingOperation { node, what, behind, .. }: &WaitingOperation, len: u64) {
        self.digest.number(u64::from(node.0)).number(len);
        if behind > 0 {
            self.later.push(Later { node, what, behind, len });
        }
        // Places of different replicas mean the same only where there is one order.
        self.seen = self.seen.max(if self.ordered { len } else { 0 });
    }
}
