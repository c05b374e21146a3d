//! The requests that a session refuses, or lets wait, before they are carried out.

use super::{Replica, Session, requests};
use crate::{
    Error,
    command::{self, CommandFn, Spec},
    encode::Protocol,
    server::operations::is_unpause,
};

const OUT_OF_MEMORY: Error = Error::fixed("OOM command not allowed when used memory > 'maxmemory'.");

impl<R: Replica> Session<R> {
    /// Finds the command of a request that may be carried out now.
    pub(super) fn check(&mut self, words: &[&[u8]]) -> Result<&'static Spec, Error> {
        let checked = command::check(words).and_then(|spec| self.permit(spec).map(|()| spec));
        if checked.is_err()
            && let Some(spec) = words.first().and_then(|name| command::find(name))
        {
            self.operations.statistics.reject(spec);
        }
        let spec = checked?;
        Ok(command::at_server(spec, words))
    }

    fn permit(&mut self, spec: &'static Spec) -> Result<(), Error> {
        if !self.is_trusted && !spec.flags.needs_no_auth {
            return Err(Error::fixed("NOAUTH Authentication required."));
        }
        if self.protocol == Protocol::Resp2 && !self.subscriptions.is_empty() && !requests::is_for_listeners(spec) {
            return Err(Error::new(format!(
                "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this \
                 context",
                spec.name
            )));
        }
        if self.operations.memory.max() > 0 || self.replica.is_out_of_memory() {
            return self.spare_memory(spec);
        }
        Ok(())
    }

    /// Refuses a request that may need memory, if more is in use than the limit. A request that would only be queued
    /// needs some too.
    fn spare_memory(&mut self, spec: &'static Spec) -> Result<(), Error> {
        let is_exec = spec.name == "exec";
        let needs_memory =
            spec.flags.denies_oom || self.is_queued(spec) || (is_exec && self.transaction.needs_memory());
        if !needs_memory {
            return Ok(());
        }
        let now = self.batch_time();
        if !self.operations.memory.is_exceeded(now) && !self.replica.is_out_of_memory() {
            return Ok(());
        }
        if is_exec {
            // It is open, since something was queued.
            let _ = self.transaction.discard();
            let reason = OUT_OF_MEMORY;
            return Err(Error::new(format!("EXECABORT Transaction discarded because of: {reason}")));
        }
        Err(OUT_OF_MEMORY)
    }

    /// Whether a request is queued in the open transaction.
    pub(super) fn is_queued(&self, spec: &Spec) -> bool {
        self.transaction.is_open() && !requests::is_done_in_transaction(spec)
    }

    /// Whether a request waits for the end of a pause as one that may change the state, or as another. `None` if it
    /// does not wait.
    pub(super) fn paused_as(&self, spec: &Spec, words: &[&[u8]]) -> Option<bool> {
        if !self.is_paused(true) {
            return None;
        }
        let is_write = matches!(spec.run, CommandFn::Write(_) | CommandFn::Block(_))
            || (spec.name == "exec" && self.transaction.writes());
        (self.is_paused(is_write) && !is_unpause(words)).then_some(is_write)
    }

    /// Whether a pause holds requests that may change the state, or others.
    pub(in crate::server) fn is_paused(&self, is_write: bool) -> bool {
        self.operations.pause.holds(is_write)
    }
}
