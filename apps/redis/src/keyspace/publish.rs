//! The parts of a replica's server that the state tells of its changes.

use super::WaitEnd;

/// The destination of published messages, of counts, and of the answers to requests that waited, at one replica.
pub trait Publish: Send + Sync {
    /// Hands a message to this replica's subscribers. Returns their number.
    fn publish(&self, channel: &[u8], message: &[u8]) -> usize;

    /// Notes that messages were published, and waits ended, of which this replica will not learn: it got the state
    /// behind them from another.
    fn tell_of_gap(&self) {}

    /// Notes that requests that only look found so many keys, and did not find so many others.
    fn count_lookups(&self, _hits: u64, _misses: u64) {}

    /// Notes that so many keys were removed because they had expired.
    fn count_expired(&self, _keys: usize) {}

    /// Whether the server has more memory in use than its limit.
    fn is_out_of_memory(&self) -> bool {
        false
    }

    /// Notes that the request of one of this replica's clients waits no more.
    fn end_wait(&self, _ticket: u64, _end: WaitEnd) {}
}
