//! The watches of one connection.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    budget::Permit,
    change_hub::WatchKey,
    clients::Clients,
    outbox::{HeldAnswer, MAX_QUERIES, Outbox, too_many_queries},
    server::ServedEntry,
    watch_limit::WatchPermit,
};
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
        let admitted = match self.admit(outbox, &prefix, &start) {
            Ok(admitted) => admitted,
            Err(why) => return outbox.push(ToClient::WatchEnded { number, why: WatchEnd::Refused(why) }),
        };
        let changes = &self.clients.changes;
        let key = changes.watch(outbox, number, prefix, &start, credit, admitted);
        self.keys.insert(number, key);
        let WatchStart::Query(query) = start else { return };
        let (clients, outbox) = (Arc::clone(&self.clients), Arc::clone(outbox));
        let refuse = move |clients: &Clients, outbox: &Outbox, why| {
            outbox.end_ask();
            clients.changes.unwatch(key);
            outbox.push(ToClient::WatchEnded { number, why: WatchEnd::Refused(why) });
        };
        entry.backend.query_at_place(
            query,
            Box::new(move |answer| {
                drop(permit);
                match answer {
                    Ok((Ok(answer), place)) => {
                        clients.changes.answered(key, place, HeldAnswer::new(&outbox, answer));
                    }
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

    /// Admits a watch, and counts its query. Fails with the reason for which it is refused.
    fn admit(&mut self, outbox: &Outbox, prefix: &[u8], start: &WatchStart) -> Result<WatchPermit, String> {
        if prefix.len() > MAX_PREFIX_BYTES {
            return Err(format!("a prefix has {MAX_PREFIX_BYTES} bytes at most: watch with a shorter one"));
        }
        if self.keys.len() >= MAX_WATCHES {
            self.clients.changes.forget_ended(&mut self.keys);
        }
        if self.keys.len() >= MAX_WATCHES {
            return Err(format!("this client has {MAX_WATCHES} watches already: watch fewer, with shorter prefixes"));
        }
        let permit = outbox.admit_watch().ok_or("the node has no room for more watches of this client: watch fewer")?;
        if matches!(start, WatchStart::Query(_)) && !outbox.ask(MAX_QUERIES) {
            return Err(too_many_queries());
        }
        Ok(permit)
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
