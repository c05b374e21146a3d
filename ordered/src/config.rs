//! What a shard is configured with, alike at all of its members.

use std::time::Duration;

/// In which order, and when, messages are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Atomic multicast: one order at all members, each message once all have received it.
    #[default]
    Ordered,
    /// Each sender's messages in their order, at most once, as they arrive. No order between senders, no nulls, no trim, no
    /// linearizable reads. A sender delivers its own message once every other member holds it.
    Unordered,
}

/// A shard's configuration. All members must have the same: others are refused when they connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardConfig {
    /// The delivery mode.
    pub mode: Mode,
    /// The size of each sender's ring in bytes, a power of two. A member keeps one ring for each sender, and as much again
    /// for its own. Messages may be a quarter of it.
    pub ring_bytes: usize,
    /// How long a member that all others have vouched for answers reads by itself. When a member is dropped, the others wait
    /// as long before they go on. 0 for never.
    pub read_lease: Duration,
}

impl Default for ShardConfig {
    fn default() -> ShardConfig {
        ShardConfig { mode: Mode::Ordered, ring_bytes: 1 << 20, read_lease: Duration::from_millis(15) }
    }
}
