//! The queue of messages for one client, on their way to the thread that writes.

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use squall_fabric::{
    Time,
    share::Holder,
    sync::{Condition, Lock},
};

use super::{budget::Budget, watch_limit::WatchPermit, watch_signal::WatchSignal};
use crate::clients::{
    query::JsonForm,
    wire::{ToClient, WatchEnd, WireOutcome},
};
use squall_services::HangUp;

/// A bounded queue. Adding to it never waits: the connection of a client that does not read is closed.
#[derive(Debug)]
pub(crate) struct Outbox {
    state: Lock<OutboxState>,
    changed: Condition,
    max_bytes: usize,
    holder: Holder,
    budget: Arc<Budget>,
    stream: OnceLock<HangUp>,
    /// The client's form of the application's bytes, if it is not rkyv's.
    form: OnceLock<JsonForm>,
    /// The number of queries that are not answered yet.
    asked: AtomicUsize,
    /// The time of the client's last message, in nanoseconds.
    heard: AtomicU64,
    /// The signal to give when there is room again for changes, once the client watches.
    room: OnceLock<Arc<WatchSignal>>,
}

#[derive(Debug, Default)]
struct OutboxState {
    messages: VecDeque<ToClient>,
    bytes: usize,
    /// The bytes that were taken and are being written.
    writing: usize,
    /// The bytes of answers that wait for the beginnings of their watches.
    held: usize,
    /// Whether changes wait for room.
    is_short: bool,
    closed: bool,
}

/// The number of a client's queries that may wait for answers; further ones are refused at once.
pub(super) const MAX_QUERIES: usize = 1024;

/// The refusal of a query beyond [`MAX_QUERIES`].
pub(super) fn too_many_queries() -> String {
    format!("{MAX_QUERIES} queries of this client wait for answers already: ask fewer at once")
}

/// The approximate size of a message beside its contents, in bytes.
const MESSAGE_BYTES: usize = 64;

fn bytes(message: &ToClient) -> usize {
    MESSAGE_BYTES
        + match message {
            ToClient::Answered { result: WireOutcome::Reply(bytes), .. }
            | ToClient::Told { answer: Ok(bytes), .. }
            | ToClient::Watching { answer: Some(bytes), .. } => bytes.len(),
            // A sentence may quote what the client has sent.
            ToClient::Told { answer: Err(why), .. }
            | ToClient::Rejected { why, .. }
            | ToClient::NotOpened { why, .. }
            | ToClient::Away { why, .. }
            | ToClient::Denied { why, .. }
            | ToClient::WatchEnded { why: WatchEnd::Refused(why), .. } => why.len(),
            ToClient::Changes { changes, .. } => changes.iter().map(|change| change.cost() as usize).sum(),
            _ => 0,
        }
}

impl Outbox {
    pub(crate) fn new(max_bytes: usize, now: Time, holder: Holder, budget: Arc<Budget>) -> Outbox {
        Outbox {
            state: Lock::default(),
            changed: Condition::new(),
            max_bytes,
            holder,
            budget,
            stream: OnceLock::new(),
            form: OnceLock::new(),
            asked: AtomicUsize::new(0),
            heard: AtomicU64::new(now.as_nanos()),
            room: OnceLock::new(),
        }
    }

    /// The party for which the client's bytes count.
    pub(super) fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Notes that the client said something.
    pub(crate) fn hear(&self, now: Time) {
        self.heard.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Tells whether the client has said nothing for `limit`.
    pub(crate) fn is_silent(&self, now: Time, limit: Duration) -> bool {
        now.since(Time::from_nanos(self.heard.load(Ordering::Relaxed))) >= limit
    }

    /// Sets the stream on which the queue is written.
    pub(super) fn set_stream(&self, stream: HangUp) {
        // An outbox gets one stream, so this succeeds.
        let _ = self.stream.set(stream);
    }

    /// Sets the client's form of the application's bytes.
    pub(super) fn set_form(&self, form: JsonForm) {
        // A client names its form once.
        let _ = self.form.set(form);
    }

    /// Returns the client's form of the application's bytes, if it is not rkyv's.
    pub(super) fn form(&self) -> Option<&JsonForm> {
        self.form.get()
    }

    /// Puts the application's bytes in a message that was taken into the client's form.
    pub(super) fn in_form(&self, message: ToClient) -> ToClient {
        let Some(form) = self.form() else { return message };
        match message {
            ToClient::Answered { number, result: WireOutcome::Reply(bytes) } => {
                let result = (form.reply)(&bytes).map_or(WireOutcome::NoReply, WireOutcome::Reply);
                ToClient::Answered { number, result }
            }
            ToClient::Told { number, answer: Ok(bytes) } => ToClient::Told { number, answer: (form.answer)(&bytes) },
            other => other,
        }
    }

    /// Queues a message. A message that no longer fits closes the queue.
    pub(crate) fn push(&self, message: ToClient) {
        let bytes = bytes(&message);
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        // A single message always fits.
        if state.bytes + bytes > self.max_bytes && !state.messages.is_empty() {
            drop(state);
            return self.hang_up();
        }
        state.bytes += bytes;
        state.messages.push_back(message);
        let is_too_much = self.budget.add_unread(bytes);
        drop(state);
        self.changed.notify_one();
        if is_too_much {
            self.budget.shed();
        }
    }

    /// Accepts no further message. Queued ones are still written.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_one();
        self.budget.nudge();
    }

    /// Ends the connection at once: queued messages are not written.
    pub(super) fn hang_up(&self) {
        let mut state = self.state.lock();
        state.messages.clear();
        self.budget.sub_unread(std::mem::take(&mut state.bytes));
        drop(state);
        self.close();
        // Without this the thread that writes would go on with the messages that it has taken.
        self.stream.get().into_iter().for_each(HangUp::now);
    }

    /// Tells whether it accepts no further message.
    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Returns the number of bytes that the client has not read.
    pub(super) fn unread(&self) -> usize {
        let state = self.state.lock();
        state.bytes + state.writing + state.held
    }

    /// Waits for messages, and takes them all; earlier ones then count as written. Returns None once it is closed and
    /// empty.
    pub(crate) fn take(&self) -> Option<VecDeque<ToClient>> {
        let mut state = self.state.lock();
        self.budget.sub_unread(std::mem::take(&mut state.writing));
        if std::mem::take(&mut state.is_short) {
            self.room.get().into_iter().for_each(|signal| signal.ring());
        }
        loop {
            if !state.messages.is_empty() {
                state.writing = std::mem::take(&mut state.bytes);
                return Some(std::mem::take(&mut state.messages));
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state);
        }
    }

    /// Takes the queued messages without waiting. Returns None once it is closed and empty.
    #[cfg(feature = "sim")]
    pub(crate) fn take_now(&self) -> Option<VecDeque<ToClient>> {
        let mut state = self.state.lock();
        self.budget.sub_unread(std::mem::take(&mut state.bytes));
        let messages = std::mem::take(&mut state.messages);
        (!messages.is_empty() || !state.closed).then_some(messages)
    }

    /// Sets the signal that is given when there is room again for changes.
    pub(super) fn signal_room(&self, signal: &Arc<WatchSignal>) {
        // All watches of a client have one signal.
        let _ = self.room.set(Arc::clone(signal));
    }

    /// Tells whether there is room for so many bytes of changes, which leave half of the box to answers. What is larger
    /// than the box has room once that is empty. If there is none, it is signalled.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        let mut state = self.state.lock();
        let unread = state.bytes + state.writing;
        let is_too_much = unread > 0 && unread + MESSAGE_BYTES + bytes > self.max_bytes;
        state.is_short = unread > self.max_bytes / 2 || is_too_much;
        !state.is_short
    }

    /// Admits one more watch, if the node has room for it.
    pub(super) fn admit_watch(&self) -> Option<WatchPermit> {
        self.budget.watches.admit(&self.holder)
    }

    /// Counts a query that will be [answered](Outbox::answer), unless `max` queries wait already.
    pub(crate) fn ask(&self, max: usize) -> bool {
        let more = |asked| (asked < max).then_some(asked + 1);
        self.asked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Queues the answer to a query.
    pub(crate) fn answer(&self, number: u64, answer: Result<Vec<u8>, String>) {
        self.end_ask();
        self.push(ToClient::Told { number, answer });
    }

    /// Notes that a query that was counted has been answered.
    pub(crate) fn end_ask(&self) {
        self.asked.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The answer to a query that was [counted](Outbox::ask), until its watch begins. It counts among the bytes that its
/// client has not read.
#[derive(Debug)]
pub(super) struct HeldAnswer {
    outbox: Arc<Outbox>,
    answer: Vec<u8>,
}

impl HeldAnswer {
    pub(super) fn new(outbox: &Arc<Outbox>, answer: Vec<u8>) -> HeldAnswer {
        outbox.state.lock().held += answer.len();
        if outbox.budget.add_unread(answer.len()) {
            outbox.budget.shed();
        }
        HeldAnswer { outbox: Arc::clone(outbox), answer }
    }

    /// The number of its bytes.
    pub(super) fn len(&self) -> usize {
        self.answer.len()
    }

    /// Takes the answer, which counts no more.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let answer = std::mem::take(&mut self.answer);
        self.outbox.state.lock().held -= answer.len();
        self.outbox.budget.sub_unread(answer.len());
        answer
    }
}

impl Drop for HeldAnswer {
    fn drop(&mut self) {
        self.take();
        self.outbox.end_ask();
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        let OutboxState { bytes, writing, .. } = *self.state.lock();
        self.budget.sub_unread(bytes + writing);
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    fn outbox() -> Outbox {
        Outbox::new(1000, Time::ZERO, Holder::Trusted, Budget::new(1 << 20))
    }

    fn told(bytes: usize) -> ToClient {
        ToClient::Told { number: 0, answer: Ok(vec![0; bytes]) }
    }

    #[test]
    fn what_was_queued_before_the_end_is_still_written() {
        let outbox = outbox();
        outbox.push(ToClient::Pong);
        outbox.close();
        outbox.push(ToClient::Pong);
        assert_eq!(outbox.take(), Some(VecDeque::from([ToClient::Pong])));
        assert_eq!(outbox.take(), None);
    }

    #[test]
    fn a_client_that_reads_nothing_is_given_up_when_its_box_is_full() {
        let outbox = outbox();
        outbox.push(told(2000));
        assert_eq!(outbox.take().map(|messages| messages.len()), Some(1), "one always fits");
        outbox.push(told(800));
        outbox.push(told(800));
        assert_eq!(outbox.take(), None);
    }

    #[test]
    fn sentences_count_as_what_they_take() {
        let why = "a".repeat(400);
        for message in [
            ToClient::Told { number: 0, answer: Err(why.clone()) },
            ToClient::Rejected { number: 0, why: why.clone() },
            ToClient::NotOpened { key: 0, why: why.clone() },
            ToClient::WatchEnded { number: 0, why: WatchEnd::Refused(why) },
        ] {
            let outbox = outbox();
            (0..3).for_each(|_| outbox.push(message.clone()));
            assert!(outbox.is_closed(), "{message:?}");
        }
    }

    #[test]
    fn queries_that_wait_are_counted() {
        let outbox = outbox();
        assert!(outbox.ask(1));
        assert!(!outbox.ask(1));
        outbox.answer(0, Ok(Vec::new()));
        assert!(outbox.ask(1));
    }
}
