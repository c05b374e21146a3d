//! A member's own use of a group that serves clients.

use super::served::Served;
use crate::clients::query::QueryService;
use crate::{
    calls::{
        envelope::Envelope,
        error::SubmitError,
        session::Trailer,
        submit::{Sending, Submit},
    },
    group::handle::Group,
};

fn encode<R: QueryService>(command: &R::Command) -> Result<Envelope, SubmitError> {
    Ok(Envelope::command(command)?.with_trailer(&Trailer::Plain))
}

impl<R: QueryService> Group<Served<R>> {
    /// Submits this member's own command, without a session: as [`submit`](Group::submit) of a group that serves no
    /// clients.
    pub fn submit(&self, command: &R::Command) -> Submit<R::Reply> {
        Submit::new(self.shared(), encode::<R>(command))
    }

    /// Submits a command if there is room, and fails with [`SubmitError::Full`] if there is none.
    pub fn try_submit(&self, command: &R::Command) -> Result<Submit<R::Reply>, SubmitError> {
        let shared = self.shared();
        Ok(Submit::accepted(shared, shared.accept(&encode::<R>(command)?)?))
    }

    /// Sends a command whose reply the caller does not need. The returned future resolves once the command is accepted.
    pub fn send(&self, command: &R::Command) -> Sending {
        Sending::new(&self.shared().admission, encode::<R>(command))
    }

    /// Sends a command whose reply is not needed if there is room, and fails with [`SubmitError::Full`] if there is
    /// none.
    pub fn try_send(&self, command: &R::Command) -> Result<(), SubmitError> {
        self.shared().admission.try_send(encode::<R>(command)?)
    }
}
