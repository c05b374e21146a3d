//! The replica to which a session hands requests.

use std::time::Duration;

use super::Look;
use crate::{
    Error, Reply,
    command::Spec,
    message::{AnsweredBy, StoreCommand, WatchedKey},
    server::connected_client::ConnectedClient,
};

/// The replica of a session. Failures are answers to the client.
pub(in crate::server) trait Replica {
    type Write: Write;
    type Look: Future<Output = Result<Look, Error>> + Unpin;
    type Watch: Future<Output = Result<Vec<WatchedKey>, Error>> + Unpin;
    type Info: Future<Output = Reply> + Unpin;
    type Timer: Future<Output = ()> + Unpin;

    /// The clock, in milliseconds since 1970.
    fn now_ms(&self) -> u64;

    /// The clock, in microseconds since 1970.
    fn now_us(&self) -> u64;

    /// The time since the server started, on a clock that never goes back.
    fn uptime(&self) -> Duration;

    /// The replicas that answer requests that only look but take a turn in the order.
    fn answered_by(&self) -> AnsweredBy {
        AnsweredBy::Sender
    }

    /// Resolves after a time.
    fn timer(&self, after: Duration) -> Self::Timer;

    /// Whether a request may wait here until there is something to take.
    fn may_wait(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Whether a loss of power of all replicas could undo what this one has applied, until a look was answered.
    fn is_durable(&self) -> bool {
        false
    }

    /// Hands a command to the group.
    fn write(&self, command: &StoreCommand) -> Self::Write;

    /// Hands over a command that takes a while to copy.
    fn write_large(&self, command: StoreCommand) -> Self::Write {
        self.write(&command)
    }

    /// Fills in the answers of a look, all of one state, linearizably.
    fn look(&self, look: Look) -> Self::Look;

    /// Notes the state of keys, linearizably.
    fn watch(&self, keys: Vec<Vec<u8>>, clock_ms: u64) -> Self::Watch;

    /// Describes the replica as it is when this is called.
    fn info(&self, report: ServerReport) -> Self::Info;

    /// Answers a request that concerns neither the store nor the session.
    fn local(&self, client: &ConnectedClient, spec: &Spec, words: &[&[u8]]) -> Reply;

    /// Whether the group goes on without this replica, which may come back.
    fn is_outside(&self) -> bool {
        false
    }

    /// Whether the replicas take no more writes that need memory.
    fn is_out_of_memory(&self) -> bool {
        false
    }

    /// The number of replicas besides this one.
    fn others(&self) -> usize;

    /// The reason why no messages of channels arrive here any more, if none do.
    fn has_no_messages(&self) -> Option<Error>;

    /// Whether clients must give a password.
    fn wants_password(&self) -> bool;

    /// The time for which a password of a client waits before it is looked at, or once more if it `has_waited`.
    fn auth_wait(&self, client: &ConnectedClient, has_waited: bool) -> Option<Duration>;

    /// Whether a user and a password are right. If not, the answer is held for the time that is returned, and the
    /// client has given so many wrong ones, this one included.
    fn admits(&self, client: &ConnectedClient, failures: u32, user: &[u8], password: &[u8]) -> Result<(), Duration>;
}

/// A command on its way.
pub(in crate::server) trait Write: Future<Output = Result<Reply, Error>> + Unpin {
    /// Whether later commands keep their place behind it.
    fn is_accepted(&self) -> bool;
}

/// The descriptions of a replica for which it looks at its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::server) enum ServerReport {
    /// `INFO`, of these sections, in small letters.
    Info(Vec<String>),
    /// `MEMORY STATS`.
    Memory,
}
