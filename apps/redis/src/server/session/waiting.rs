//! Requests that wait for an element. Nothing is taken behind one before it is answered.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{LARGE_BYTES, Owed, Replica, Session};
use crate::{
    Error, Reply,
    command::BlockFn,
    keyspace::WaitEnd,
    message::StoreCommand,
    server::waits::{Ticket, Unblocking},
    words,
};

/// The answer to a client whose wait ended because of this replica, and which got nothing.
const DROPPED: Error =
    Error::fixed("UNBLOCKED this replica was dropped from its group, so the request waits no more: send it again");
const LEAVING: Error = Error::fixed("UNBLOCKED this replica stops: ask another one");
/// The answers to a client whose wait's end is not known.
const OUTSIDE: Error =
    Error::fixed("UNKNOWN the group goes on without this replica, so an element may have been taken for this request");
const LOST: Error = Error::fixed(
    "UNKNOWN this replica missed a part of the group's order, so an element may have been taken for this request",
);

/// A request that may wait.
pub(super) struct Wait<R: Replica> {
    ticket: Ticket,
    timer: Option<R::Timer>,
    phase: WaitPhase<R>,
}

enum WaitPhase<R: Replica> {
    /// It is on its way into the group's order.
    Sent(R::Write),
    /// It waits there.
    Waits,
    /// It is to be taken out of the order, with this answer.
    Cancelled(R::Write, Reply),
    /// It is answered once what it took can't come back.
    Settling(R::Watch, Reply),
}

impl<R: Replica> Session<R> {
    pub(super) fn take_waiting(&mut self, read: BlockFn, request: &mut Vec<u8>) {
        let timeout = {
            let words = words::split(request).expect("the request was made of words");
            self.replica.may_wait().and_then(|()| Ok(read(&words)?.timeout()))
        };
        let timeout = match timeout {
            Ok(timeout) => timeout,
            Err(error) => return self.owe(Reply::Error(error)),
        };
        // A longer one would be copied beside this thread, so that its cancellation could come first.
        if request.len() > LARGE_BYTES {
            return self
                .owe(Reply::Error(Error::fixed("ERR a request that may wait has at most 1 MiB: name fewer keys")));
        }
        let ticket = self.hub.waits.open(self.client.bell());
        let command =
            StoreCommand::Wait { at_ms: self.clock_ms(), ticket: ticket.number(), request: std::mem::take(request) };
        let write = self.replica.write(&command);
        let timer = timeout.map(|timeout| self.replica.timer(timeout));
        self.owed.push_back(Owed::Wait(Wait { ticket, timer, phase: WaitPhase::Sent(write) }));
    }

    /// Whether the oldest request that was not answered waits for an element.
    pub(in crate::server) fn is_waiting(&self) -> bool {
        matches!(self.owed.front(), Some(Owed::Wait(Wait { phase: WaitPhase::Waits, .. })))
    }

    /// The answer to the oldest request, which may wait.
    pub(super) fn poll_wait(&mut self, context: &mut Context<'_>) -> Poll<Reply> {
        let Some(Owed::Wait(wait)) = self.owed.front_mut() else { unreachable!("the oldest request may wait") };
        let answer = loop {
            wait.phase = match &mut wait.phase {
                WaitPhase::Sent(write) => match ready!(Pin::new(write).poll(context)) {
                    Ok(Reply::Waiting) => {
                        self.client.waits.set(true);
                        WaitPhase::Waits
                    }
                    Ok(reply) => {
                        wait.ticket.close();
                        break reply;
                    }
                    // It may have come into the order yet.
                    Err(error) => break Reply::Error(error),
                },
                WaitPhase::Waits => {
                    if let Some(end) = wait.ticket.take_end() {
                        match wait.ended(end, &self.replica) {
                            Ok(phase) => phase,
                            Err(answer) => break answer,
                        }
                    } else if self.client.is_leaving() {
                        wait.cancel(&self.replica, Reply::Error(LEAVING))
                    } else if let Some(how) = self.client.waits.unblocked() {
                        let unblocked = Error::fixed("UNBLOCKED client unblocked via CLIENT UNBLOCK");
                        let answer = if how == Unblocking::Error { Reply::Error(unblocked) } else { Reply::NullArray };
                        wait.cancel(&self.replica, answer)
                    } else {
                        let Some(timer) = &mut wait.timer else { return Poll::Pending };
                        ready!(Pin::new(timer).poll(context));
                        wait.cancel(&self.replica, Reply::NullArray)
                    }
                }
                WaitPhase::Cancelled(write, answer) => match ready!(Pin::new(write).poll(context)) {
                    Ok(Reply::Integer(1..)) => {
                        wait.ticket.close();
                        break std::mem::replace(answer, Reply::Null);
                    }
                    // It had ended before, of which the replica has told.
                    Ok(_) => {
                        let end = wait.ticket.take_end().unwrap_or(WaitEnd::Lost);
                        match wait.ended(end, &self.replica) {
                            Ok(phase) => phase,
                            Err(answer) => break answer,
                        }
                    }
                    Err(error) => break Reply::Error(unknown(&error)),
                },
                WaitPhase::Settling(watch, reply) => match ready!(Pin::new(watch).poll(context)) {
                    Ok(_) => break std::mem::replace(reply, Reply::Null),
                    Err(error) => break Reply::Error(unknown(&error)),
                },
            };
        };
        self.client.waits.set(false);
        Poll::Ready(answer)
    }
}

impl<R: Replica> Wait<R> {
    fn cancel(&self, replica: &R, answer: Reply) -> WaitPhase<R> {
        let (at_ms, tickets) = (replica.now_ms(), vec![self.ticket.number()]);
        WaitPhase::Cancelled(replica.write(&StoreCommand::CancelWaits { at_ms, tickets }), answer)
    }

    /// The phase behind a wait's end, or the answer if it is known.
    fn ended(&mut self, end: WaitEnd, replica: &R) -> Result<WaitPhase<R>, Reply> {
        match end {
            WaitEnd::Served(reply) => {
                self.ticket.close();
                if !replica.is_durable() {
                    return Err(reply);
                }
                // A look that sees the effect is answered once that can't be undone, as a write would be.
                Ok(WaitPhase::Settling(replica.watch(Vec::new(), replica.now_ms()), reply))
            }
            WaitEnd::Dropped => {
                self.ticket.close();
                Err(Reply::Error(DROPPED))
            }
            // The ticket stays open, so that the wait ends in the order too.
            WaitEnd::Outside => Err(Reply::Error(OUTSIDE)),
            WaitEnd::Lost => Err(Reply::Error(LOST)),
        }
    }
}

/// The error for a request for which something may have been taken.
fn unknown(error: &Error) -> Error {
    Error::new(format!("UNKNOWN an element may have been taken for this request: {error}"))
}
