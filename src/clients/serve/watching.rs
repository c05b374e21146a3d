//! The watches of one connection.

use std::{collections::BTreeMap, sync::Arc};

use super::{budget::Permit, change_hub::WatchKey, clients::Clients, outbox::Outbox, server::ServedEntry};
use crate::{
    calls::error::ReadError,
    clients::wire::{Members, ToClient, WatchEnd, WatchStart},
};

/// The number of a client's watches over one connection; further ones are refused.
const MAX_WATCHES: usize = 1024;

/// The longest prefix of a watch, in bytes.
const MAX_PREFIX_BYTES: usize = 1024;

/// The watches of a connection, by the client's numbers. They end with it.
pub(super) struct ConnectionWatches {
    clients: Arc<Clients>,
    keys: BTreeMap<u64, WatchKey>,
}

impl ConnectionWatches {
    pub(super) fn new(clients: &Arc<Clients>) -> ConnectionWatches {
        ConnectionWatches { clients: Arc::clone(clients), keys: BTreeMap::new() }
    }

    /// Begins a watch.
    pub(super) fn begin(&mut self, entry: &ServedEntry, outbox: &Arc<Outbox>, watch: AskedWatch) {
        let AskedWatch { number, prefix, start, credit, permit } = watch;
        self.end(number);
        let refused = if prefix.len() > MAX_PREFIX_BYTES {
            Some(format!("a prefix has {MAX_PREFIX_BYTES} bytes at most: watch with a shorter one"))
        } else if self.keys.len() >= MAX_WATCHES {
            Some(format!("this client has {MAX_WATCHES} watches already: watch fewer, with shorter prefixes"))
        } else {
            None
        };
        if let Some(why) = refused {
            return outbox.push(ToClient::WatchEnded { number, why: WatchEnd::Refused(why) });
        }
        let changes = &self.clients.changes;
        let key = changes.watch(outbox, number, prefix, &start, credit);
        self.keys.insert(number, key);
        let WatchStart::Query(query) = start else { return };
        let (clients, outbox) = (Arc::clone(&self.clients), Arc::clone(outbox));
        let refuse = move |clients: &Clients, outbox: &Outbox, why| {
            clients.changes.unwatch(key);
            outbox.push(ToClient::WatchEnded { number, why: WatchEnd::Refused(why) });
        };
        entry.backend.query_at_place(
            query,
            Box::new(move |answer| {
                drop(permit);
                match answer {
                    Ok((Ok(answer), place)) => clients.changes.answered(key, place, answer),
                    Ok((Err(why), _)) => refuse(&clients, &outbox, why),
                    Err(error @ (ReadError::Unordered | ReadError::Panicked)) => {
                        refuse(&clients, &outbox, error.to_string());
                    }
                    // Another member may succeed.
                    Err(error) => {
                        outbox.push(ToClient::Away { why: error.to_string(), members: Members::default() });
                        outbox.close();
                    }
                }
            }),
        );
    }

    pub(super) fn more(&self, number: u64, credit: u64) {
        self.keys.get(&number).into_iter().for_each(|&key| self.clients.changes.more(key, credit));
    }

    pub(super) fn end(&mut self, number: u64) {
        self.keys.remove(&number).into_iter().for_each(|key| self.clients.changes.unwatch(key));
    }
}

impl Drop for ConnectionWatches {
    fn drop(&mut self) {
        self.keys.values().for_each(|&key| self.clients.changes.unwatch(key));
    }
}

/// A watch that a client asks for.
pub(super) struct AskedWatch {
    pub(super) number: u64,
    pub(super) prefix: Vec<u8>,
    pub(super) start: WatchStart,
    pub(super) credit: i64,
    /// Its part of the budget, given back with the answer to its query.
    pub(super) permit: Permit,
}
