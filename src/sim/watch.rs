//! Watches of the clients of a simulated cluster.

use std::{
    marker::PhantomData,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{client::Client, cluster::Cluster};
use crate::clients::{
    changes::ChangePlace,
    client::{Change, ClientError, WatchId, WatchReader, WatchRequest, decode, encode, typed},
    query::Watched,
    wire::WatchStart,
};

/// The place at which a simulated client's watch begins.
#[derive(Clone, Copy, Debug)]
pub enum WatchFrom<Q> {
    /// As [`watch`](crate::client::Client::watch) does.
    Now,
    /// As [`watch_from`](crate::client::Client::watch_from) does.
    Place(ChangePlace),
    /// As [`watch_with_query`](crate::client::Client::watch_with_query) does.
    Query(Q),
}

/// The place behind which a watch has begun, and the answer to its query, if it has one.
pub type Begun<T> = Result<(ChangePlace, Option<T>), ClientError>;

/// A watch of a simulated client. See [`Client::watch`].
pub struct SimWatch<R> {
    client: u32,
    id: WatchId,
    reader: WatchReader,
    service: PhantomData<fn() -> R>,
}

impl<R: Watched> Client<R> {
    /// Watches the keys that begin with `prefix`. The watch has the time `limit` to begin. Changes of `window` bytes
    /// may wait for the program, as [`client::Watch`](crate::client::Watch) says.
    ///
    /// # Panics
    ///
    /// If the query can't be serialized.
    pub fn watch(
        &self,
        cluster: &mut Cluster,
        prefix: impl AsRef<[u8]>,
        from: &WatchFrom<R::Query>,
        window: u64,
        limit: Duration,
    ) -> SimWatch<R> {
        let start = match from {
            WatchFrom::Now => WatchStart::Now,
            WatchFrom::Place(place) => WatchStart::Behind(*place),
            WatchFrom::Query(query) => WatchStart::Query(encode(query).expect("the query can be serialized")),
        };
        let (reader, feed) = WatchReader::new(window);
        let id = WatchId(cluster.new_number(self.number));
        cluster.clients[self.number as usize].watches.insert(id, feed);
        cluster.tell_core(self.number, |core, now, effects| {
            let request = WatchRequest { prefix: prefix.as_ref().to_vec(), start, window, begin_by: now + limit };
            core.watch(now, id, request, effects);
        });
        SimWatch { client: self.number, id, reader, service: PhantomData }
    }
}

impl<R: Watched> SimWatch<R> {
    /// Returns the place behind which the watch has begun, and the answer to its query, once it has.
    pub fn take_begun(&mut self) -> Option<Begun<R::Answer>> {
        let begun = ready(self.reader.poll_begun(&Context::from_waker(Waker::noop())))?;
        let (place, answer) = match begun {
            Ok(begun) => begun,
            Err(error) => return Some(Err(error)),
        };
        let answer = answer.map(|answer| decode(&answer)).transpose();
        Some(answer.map(|answer| (place, answer)))
    }

    /// Returns the next change, or the error with which the watch has ended.
    pub fn take_next(&mut self, cluster: &mut Cluster) -> Option<Result<Change<R::Change>, ClientError>> {
        let told = ready(self.reader.poll_next(&Context::from_waker(Waker::noop())))?;
        if let Some(cost) = self.reader.take_due() {
            cluster.tell_core(self.client, |core, _, effects| core.taken(self.id, cost, effects));
        }
        Some(told.and_then(typed))
    }

    /// The place up to which all changes were returned.
    pub fn place(&mut self) -> ChangePlace {
        self.reader.place()
    }

    /// The place up to which changes have come.
    pub fn told(&self) -> ChangePlace {
        self.reader.told()
    }

    /// Ends the watch.
    pub fn end(self, cluster: &mut Cluster) {
        cluster.clients[self.client as usize].watches.remove(&self.id);
        cluster.tell_core(self.client, |core, _, effects| core.unwatch(self.id, effects));
    }
}

fn ready<T>(poll: Poll<T>) -> Option<T> {
    match poll {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}
