//! The limits of a group that serves clients.

use std::time::Duration;

/// The limits with which a group serves clients. All members should have the same; replicas stay alike even if they do
/// not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// The number of sessions that may be open at a time, in the whole group, or in each of its shards. A client has
    /// its [share](squall_fabric::share) of them: the sessions of one certificate, or of one address where there are no
    /// certificates, are three eighths at most.
    pub max_sessions: u32,
    /// The number of requests that a client may have under way.
    pub window: u32,
    /// The limit of the replies that a session keeps for its client, in bytes. Once they take as much, no further
    /// request of the client is applied before some are acknowledged, except the oldest. A longer reply is lost. A
    /// session keeps less than three times as much.
    pub reply_bytes: u32,
    /// The time after which a session ends whose client says nothing.
    pub session_timeout: Duration,
    /// The longest command or query of a client, in bytes; a longer one ends its connection. The limit of the group,
    /// [`max_message_bytes`](crate::config::GroupConfig::max_message_bytes), holds for clients' commands as well as for
    /// members', so a higher value here permits no more.
    pub request_bytes: usize,
    /// The number of bytes that a client may leave unread; beyond, its connection ends, and it may come again.
    pub unread_bytes: usize,
    /// The bytes of changes that are kept for clients that [watch](crate::Watched), in the whole group, or in each of
    /// its shards. A watch that is further behind ends. They are part of the replica's state, and so of its copies.
    pub change_bytes: usize,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions {
            max_sessions: 3072,
            window: 1024,
            reply_bytes: 256 << 10,
            session_timeout: Duration::from_secs(60),
            request_bytes: 1 << 20,
            unread_bytes: 4 << 20,
            change_bytes: 4 << 20,
        }
    }
}
