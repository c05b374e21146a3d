//! The password of a session's client, and the wait before it is looked at.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{Replica, Session};
use crate::{
    Error, Reply,
    command::Spec,
    server::auth_delay::{AuthTurn, AuthWait},
};

const WRONG_PASSWORD: Error = Error::fixed("WRONGPASS invalid username-password pair or user is disabled.");

const TOO_MANY_WRONG: Error = Error::fixed("ERR too many wrong passwords came from this address: try again later");

/// The attempts of a client to give the password.
pub(super) struct Authentication<R: Replica> {
    /// The wrong passwords that it has given.
    failures: u32,
    /// The attempt that waits.
    waiting: Option<(R::Timer, AuthWait)>,
}

impl<R: Replica> Default for Authentication<R> {
    fn default() -> Self {
        Authentication { failures: 0, waiting: None }
    }
}

impl<R: Replica> Session<R> {
    /// Whether a request gives a password.
    fn gives_password(&self, spec: &Spec, words: &[&[u8]]) -> bool {
        let gives = match spec.name {
            "auth" => true,
            "hello" => words.iter().any(|word| word.eq_ignore_ascii_case(b"auth")),
            _ => false,
        };
        gives && self.replica.wants_password()
    }

    /// Whether a request may be carried out as far as the passwords are concerned that came before. Ready with false
    /// ends the connection.
    pub(super) fn poll_turn(&mut self, spec: &Spec, words: &[&[u8]], context: &mut Context<'_>) -> Poll<bool> {
        if self.authentication.waiting.is_none() {
            if !self.gives_password(spec, words) {
                return Poll::Ready(true);
            }
            match self.replica.auth_turn(&self.client, self.authentication.failures) {
                AuthTurn::Now => return Poll::Ready(true),
                AuthTurn::Never => {
                    self.end(Some(Reply::Error(TOO_MANY_WRONG)));
                    return Poll::Ready(false);
                }
                AuthTurn::After(delay, wait) => {
                    self.authentication.waiting = Some((self.replica.timer(delay), wait));
                }
            }
        }
        if let Some((timer, _)) = &mut self.authentication.waiting {
            ready!(Pin::new(timer).poll(context));
        }
        self.authentication.waiting = None;
        Poll::Ready(true)
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
        if !self.replica.admits(&self.client, user, password) {
            self.authentication.failures = self.authentication.failures.saturating_add(1);
            return Err(WRONG_PASSWORD);
        }
        self.is_trusted = true;
        Ok(())
    }
}
