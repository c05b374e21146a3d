//! The password of a session's client, the wait before it is looked at, and that before a wrong one is answered.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{Replica, Session};
use crate::{Error, command::Spec};

pub(super) const WRONG_PASSWORD: Error = Error::fixed("WRONGPASS invalid username-password pair or user is disabled.");

/// The attempts of a client to give the password.
pub(super) struct Authentication<R: Replica> {
    /// The wrong passwords that it has given.
    failures: u32,
    /// The wait before a password is looked at.
    waiting: Option<R::Timer>,
    /// The wait before the wrong password is answered that was just given.
    pub(super) held: Option<R::Timer>,
}

impl<R: Replica> Default for Authentication<R> {
    fn default() -> Self {
        Authentication { failures: 0, waiting: None, held: None }
    }
}

/// Whether a request gives a password.
fn gives_password(spec: &Spec, words: &[&[u8]]) -> bool {
    match spec.name {
        "auth" => true,
        "hello" => words.iter().any(|word| word.eq_ignore_ascii_case(b"auth")),
        _ => false,
    }
}

impl<R: Replica> Session<R> {
    /// Waits until a request may be carried out, if it gives a password and there were too many wrong ones.
    pub(super) fn poll_turn(&mut self, spec: &Spec, words: &[&[u8]], context: &mut Context<'_>) -> Poll<()> {
        let mut has_waited = false;
        while gives_password(spec, words) {
            if let Some(timer) = &mut self.authentication.waiting {
                ready!(Pin::new(timer).poll(context));
                (self.authentication.waiting, has_waited) = (None, true);
            }
            let Some(wait) = self.replica.auth_wait(&self.client, has_waited) else { break };
            self.authentication.waiting = Some(self.replica.timer(wait));
        }
        Poll::Ready(())
    }

    pub(super) fn auth(&mut self, words: &[&[u8]]) -> Result<(), Error> {
        match words {
            [_, _] if !self.replica.wants_password() => Err(Error::fixed(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
            )),
            [_, password] => self.admit(b"default", password),
            [_, user, password] => self.admit(user, password),
            _ => Err(Error::SYNTAX),
        }
    }

    pub(super) fn admit(&mut self, user: &[u8], password: &[u8]) -> Result<(), Error> {
        let failures = self.authentication.failures.saturating_add(1);
        if let Err(delay) = self.replica.admits(&self.client, failures, user, password) {
            self.authentication.failures = failures;
            self.authentication.held = (!delay.is_zero()).then(|| self.replica.timer(delay));
            return Err(WRONG_PASSWORD);
        }
        self.is_trusted = true;
        Ok(())
    }
}
