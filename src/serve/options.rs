//! The limits of a group that serves clients.

use std::time::Duration;

/// How a group serves clients. All members should have the same; replicas stay alike even if they do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// So many sessions may be open at a time, in the whole group.
    pub max_sessions: u32,
    /// A client may have so many requests under way.
    pub window: u32,
    /// Replies that a session keeps for its client, in bytes. Once they take as much, no further request of the client is
    /// applied before some are acknowledged, but for the oldest; and a longer reply is lost. A session keeps less than three
    /// times as much.
    pub reply_bytes: u32,
    /// A session whose client says nothing for so long ends.
    pub session_timeout: Duration,
    /// A longer command or query of a client ends its connection, in bytes.
    pub request_bytes: usize,
    /// What a client leaves unread may take so many bytes; beyond, its connection ends, and it may come again.
    pub unread_bytes: usize,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions {
            max_sessions: 1024,
            window: 1024,
            reply_bytes: 256 << 10,
            session_timeout: Duration::from_secs(60),
            request_bytes: 1 << 20,
            unread_bytes: 4 << 20,
        }
    }
}
