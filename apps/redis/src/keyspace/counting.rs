//! The counts of looked-up and expired keys, which a replica's publisher is told.

use std::cell::Cell;

use super::Keyspace;

/// The number of looked-up keys that were there, and of those that were not.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    hits: Cell<u64>,
    misses: Cell<u64>,
}

impl Lookups {
    pub(super) fn count(&self, is_there: bool) {
        let count = if is_there { &self.hits } else { &self.misses };
        count.set(count.get() + 1);
    }
}

impl Keyspace {
    /// Tells the publisher how many keys a request looked up.
    pub(crate) fn tell_of_lookups(&self, lookups: &Lookups) {
        let (hits, misses) = (lookups.hits.get(), lookups.misses.get());
        if hits + misses > 0
            && let Some(publisher) = &self.publisher
        {
            publisher.count_lookups(hits, misses);
        }
    }

    /// Tells the publisher how many expired keys were removed.
    pub(super) fn tell_of_expired(&self, keys: usize) {
        if let Some(publisher) = &self.publisher {
            publisher.count_expired(keys);
        }
    }
}
