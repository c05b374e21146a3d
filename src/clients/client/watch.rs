//! The handles of a client's watches.

use std::{
    future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use squall_fabric::Time;
use squall_ordered::log::Hlc;
use squall_runtime::blocking;

use super::{
    Client,
    call::decode,
    driver::Driver,
    effect::{WatchId, WatchRequest},
    encode,
    error::ClientError,
    watch_queue::WatchReader,
};
use crate::clients::{
    changes::ChangePlace,
    query::Watched,
    wire::{ToldChange, WatchStart},
};

/// The cost of the changes that may wait for the application, of each watch: 32 bytes each, and their keys and bytes.
const WATCH_BYTES: u64 = 256 << 10;

/// A change of a service's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<C> {
    /// Its number in its group, or in its shard, from 1 on.
    pub number: u64,
    /// The [group's time](crate::Applied::time) at the change.
    pub time: Hlc,
    /// The key under which the service has reported it.
    pub key: Vec<u8>,
    /// The change.
    pub change: C,
}

impl<R: Watched> Client<R> {
    /// Watches the keys that begin with `prefix`, from now on. Each change behind the watch's beginning is told once
    /// and in order, whatever members fail. Changes shortly before may be told too.
    ///
    /// The watch is served by one member after the other, over this client's connection, and costs the others nothing.
    pub fn watch(&self, prefix: impl AsRef<[u8]>) -> Watching<R> {
        self.begin(prefix.as_ref(), Ok(WatchStart::Now), |_, watch| Ok(watch))
    }

    /// Watches the keys that begin with `prefix`, behind the [place](Watch::place) up to which another watch has told
    /// their changes. It fails with [`ClientError::TooFarBehind`] if the group does not keep the next change any more.
    pub fn watch_from(&self, prefix: impl AsRef<[u8]>, place: ChangePlace) -> Watching<R> {
        self.begin(prefix.as_ref(), Ok(WatchStart::Behind(place)), |_, watch| Ok(watch))
    }

    /// Asks a linearizable query, and watches the keys that begin with `prefix` from the place on at which the answer
    /// was true. So a program that applies the changes to the answer has an exact copy of the state.
    pub fn watch_with_query(&self, prefix: impl AsRef<[u8]>, query: &R::Query) -> Watching<R, (R::Answer, Watch<R>)> {
        self.begin(prefix.as_ref(), encode(query).map(WatchStart::Query), |answer, watch| {
            let answer = answer.ok_or_else(|| ClientError::Reply("it has no answer".to_owned()))?;
            Ok((decode(&answer)?, watch))
        })
    }

    fn begin<T>(&self, prefix: &[u8], start: Result<WatchStart, ClientError>, finish: Finish<R, T>) -> Watching<R, T> {
        let begin_by = Time::boot_clock() + self.timeout.min(Duration::from_secs(u64::from(u32::MAX)));
        let begun = start.and_then(|start| {
            let request = WatchRequest { prefix: prefix.to_vec(), start, window: WATCH_BYTES, begin_by };
            let (reader, feed) = WatchReader::new(WATCH_BYTES);
            let driver = self.driver.get()?;
            let id = driver.watch(request, feed);
            Ok(Watch { reader, driver, id, service: PhantomData })
        });
        Watching { begun: Some(begun), finish }
    }
}

/// A watch that is about to begin, and the [`Watch`] that it becomes.
///
/// It is a future for any executor; a plain thread calls [`wait`](Watching::wait). It resolves by the client's timeout.
#[derive(derive_more::Debug)]
#[debug("Watching")]
#[must_use = "the watch is its result"]
pub struct Watching<R: Watched, T = Watch<R>> {
    begun: Option<Result<Watch<R>, ClientError>>,
    finish: Finish<R, T>,
}

/// The result that becomes of the answer to a watch's query, if it has one, and the watch.
type Finish<R, T> = fn(Option<Vec<u8>>, Watch<R>) -> Result<T, ClientError>;

impl<R: Watched, T> Watching<R, T> {
    /// Blocks this thread until the watch has begun. Inside `apply`, or a read's closure, it fails with
    /// [`ClientError::InsideApply`] instead.
    ///
    /// # Panics
    ///
    /// If it was polled before, and has resolved.
    pub fn wait(mut self) -> Result<T, ClientError> {
        blocking::block_on(None, |context| Pin::new(&mut self).poll(context)).expect("there is no deadline")
    }
}

impl<R: Watched, T> Future for Watching<R, T> {
    type Output = Result<T, ClientError>;

    /// # Panics
    ///
    /// If it is polled again after it has resolved.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, ClientError>> {
        let begun = match self.begun.as_mut().expect("a Watching was polled after it had resolved") {
            Ok(watch) => std::task::ready!(watch.reader.poll_begun(context)),
            Err(error) => Err(error.clone()),
        };
        let watch = self.begun.take().expect("it was just there");
        Poll::Ready(begun.and_then(|(_, answer)| (self.finish)(answer, watch?)))
    }
}

/// A watch of keys of a group, or of one of its shards: the changes, one after the other. When it is dropped, it ends.
///
/// While the program takes no changes, the member that serves the watch sends 256 KiB of them at most. A watch that is
/// not read for so long that the group has dropped the next change fails with [`ClientError::TooFarBehind`].
#[derive(derive_more::Debug)]
#[debug("Watch")]
pub struct Watch<R: Watched> {
    reader: WatchReader,
    driver: Arc<Driver>,
    id: WatchId,
    service: PhantomData<fn() -> R>,
}

impl<R: Watched> Watch<R> {
    /// Waits for the next change. An error is the end of the watch, and returned again; but a change that can't be read
    /// ([`ClientError::Reply`]) is passed over, and the watch goes on behind it.
    pub async fn next(&mut self) -> Result<Change<R::Change>, ClientError> {
        future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Blocks this thread until the next change has come, for `limit` at most. None if none has.
    pub fn wait_next(&mut self, limit: Duration) -> Result<Option<Change<R::Change>>, ClientError> {
        let until = Instant::now().checked_add(limit);
        blocking::block_on(until, |context| self.poll_next(context)).transpose()
    }

    /// Returns the next change if it has come.
    ///
    /// Inside `apply`, or a read's closure, it fails with [`ClientError::InsideApply`] if none has.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Change<R::Change>, ClientError>> {
        let told = self.reader.poll_next(context);
        if let Some(cost) = self.reader.take_due() {
            self.driver.taken(self.id, cost);
        }
        told.map(|told| typed(told?))
    }

    /// The place up to which all changes were returned. A program that stores it goes on
    /// [from there](Client::watch_from) later.
    pub fn place(&mut self) -> ChangePlace {
        self.reader.place()
    }
}

impl<R: Watched> Drop for Watch<R> {
    fn drop(&mut self) {
        self.driver.unwatch(self.id);
    }
}

/// Decodes a change.
pub(crate) fn typed<C: crate::Portable>(told: ToldChange) -> Result<Change<C>, ClientError> {
    let ToldChange { at, key, change } = told;
    Ok(Change { number: at.number, time: Hlc(at.time_ns), key, change: decode(&change)? })
}
