//! The ends of calls that a group refuses.

use std::collections::VecDeque;

use squall_fabric::Time;

use super::{Ask, ClientCore, ClientEffect, ClientError, ClientSession, OutstandingCall};

impl ClientCore {
    /// Reports that the client's certificate permits it no commands, or nothing.
    pub(super) fn denied(&mut self, now: Time, only_commands: bool, why: String, out: &mut Vec<ClientEffect>) {
        self.deny(only_commands, &why, out);
        if only_commands {
            // The next command asks again, and is told at once.
            self.session = ClientSession::None;
            return self.tick(now, out);
        }
        out.push(ClientEffect::HangUp);
        self.broken(now, why, out);
    }

    /// Ends the calls that the client's certificate does not permit: other members would not permit them, either.
    fn deny(&mut self, only_commands: bool, why: &str, out: &mut Vec<ClientEffect>) {
        if !only_commands {
            self.watches.end_all(&ClientError::Denied(why.to_owned()), out);
        }
        let is_command = |ask: &Ask| matches!(ask, Ask::Command(_) | Ask::All(_) | Ask::Answer(..));
        let is_denied = |call: &OutstandingCall| !only_commands || is_command(&call.ask);
        let denied: Vec<_> = self.calls.iter().filter(|(_, call)| is_denied(call)).map(|(&id, _)| id).collect();
        for id in denied {
            // A command that was sent before, over another connection, may have been applied.
            let was_sent = self.calls.get(&id).and_then(|call| call.number);
            self.sent.retain(|_, sent| sent.call != id);
            self.queued.retain(|queued| *queued != id);
            let error = match was_sent {
                None => ClientError::Denied(why.to_owned()),
                Some(_) => ClientError::Unknown(why.to_owned()),
            };
            self.resolve(id, Err(error), out);
        }
    }

    /// Ends a command of which no member takes this copy.
    pub(super) fn rejected(&mut self, number: u64, why: String, out: &mut Vec<ClientEffect>) {
        if let Some(sent) = self.sent.remove(&number) {
            let is_known = sent.copies == 1;
            let error = if is_known { ClientError::Rejected(why) } else { ClientError::Unknown(why) };
            self.resolve(sent.call, Err(error), out);
        }
    }

    /// Handles the refusal of a copy of `number` after the session has ended.
    pub(super) fn lose_session(&mut self, number: u64, out: &mut Vec<ClientEffect>) {
        if self.pinned.is_some() {
            return self.lose_session_here(number, out);
        }
        if !self.sent.contains_key(&number) {
            return;
        }
        self.session = ClientSession::None;
        self.resend.stop();
        let mut unsent = VecDeque::new();
        for (other, sent) in std::mem::take(&mut self.sent) {
            // A connection's requests are ordered as they were sent. So a request that was sent once, and behind the
            // refused one, is refused as well.
            let is_refused = sent.copies == 1 && other >= number && !sent.is_answered;
            match self.calls.get_mut(&sent.call) {
                // Its members wait for the number that it has.
                Some(OutstandingCall { ask: Ask::All(_), .. }) if is_refused => {
                    let why = "the session ended before it was applied: submit it again";
                    self.resolve(sent.call, Err(ClientError::Rejected(why.to_owned())), out);
                }
                Some(call) if is_refused => {
                    call.number = None;
                    unsent.push_back(sent.call);
                }
                _ => self.resolve(sent.call, Err(ClientError::SessionEnded), out),
            }
        }
        unsent.append(&mut self.queued);
        self.queued = unsent;
    }
}
