//! The queue of messages for one peer, and its streams.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::Arc,
    time::{Duration, Instant},
};

use squall_fabric::sync::{Condition, Lock};

use super::{Caller, ControlError, ControlStream, DialTarget, HangUp, Service, StreamWriter, frame};

/// The limits of the queue, in bytes and in messages; the oldest messages are dropped first.
const QUEUE_BYTES: usize = 16 << 20;
const QUEUE_MESSAGES: usize = 1024;

/// The age at which a queued message is dropped: it has been asked for again, or is of no use any more.
const STALE: Duration = Duration::from_secs(1);

/// The time after which a peer that has not answered anything sent may be cut off. It is then dialed anew: a network
/// that has come back carries a new stream at once, and an old one only when it is tried again, up to minutes later.
const SILENCE: Duration = Duration::from_secs(1);

/// The time in which a peer must accept a call, and the time for the whole dialing. A peer that has accepted is there,
/// and a busy host may need long for the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// The time for which a peer may take none of the written bytes.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause after a call that failed: the first, and the longest.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(200)];

/// The time after which a thread ends that had nothing to write.
const IDLE: Duration = Duration::from_secs(60);

/// The approximate number of bytes that are written at once.
const BATCH_BYTES: usize = 64 << 10;

pub(super) struct Peer {
    state: Lock<PeerState>,
    changed: Condition,
}

struct PeerState {
    contact: DialTarget,
    queue: VecDeque<(Instant, Vec<u8>)>,
    queued_bytes: usize,
    /// The streams, of which the last one is written to. There are two when both sides have dialed at once: each side
    /// writes to the one that came last there, so neither may be closed.
    streams: Vec<Stream>,
    next: u64,
    /// The time of the first write after which nothing was heard.
    unanswered: Option<Instant>,
    back_off: Duration,
    /// The time from which the peer may be dialed again.
    dial_at: Option<Instant>,
    has_thread: bool,
    closed: bool,
}

struct Stream {
    number: u64,
    writer: Writer,
    hang_up: HangUp,
}

/// The writing half of a stream, locked by the writing thread alone.
type Writer = Arc<Lock<StreamWriter>>;

impl Peer {
    pub(super) fn new(contact: DialTarget) -> Peer {
        let state = PeerState {
            contact,
            queue: VecDeque::new(),
            queued_bytes: 0,
            streams: Vec::new(),
            next: 0,
            unanswered: None,
            back_off: BACK_OFF[0],
            dial_at: None,
            has_thread: false,
            closed: false,
        };
        Peer { state: Lock::new(state), changed: Condition::new() }
    }

    /// Tells whether the peer has neither a thread nor a stream, so that it can be forgotten.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        !state.has_thread && state.streams.is_empty()
    }

    /// Queues a message. Returns whether a thread must be started, which does the peer's [`work`](Peer::work).
    pub(super) fn push(&self, to: &DialTarget, message: Vec<u8>) -> bool {
        let mut state = self.state.lock();
        if state.closed {
            return false;
        }
        if !to.addresses.is_empty() && state.contact.addresses != to.addresses {
            state.contact.addresses.clone_from(&to.addresses);
            state.dial_at = None;
        }
        state.queued_bytes += message.len();
        state.queue.push_back((Instant::now(), message));
        while state.queue.len() > QUEUE_MESSAGES || state.queued_bytes > QUEUE_BYTES {
            state.drop_oldest();
        }
        self.changed.notify_one();
        !std::mem::replace(&mut state.has_thread, true)
    }

    /// Notes that no thread could be started.
    pub(super) fn no_thread(&self) {
        self.state.lock().has_thread = false;
    }

    /// Writes what is queued, until the peer must be dialed, and returns its contact. Returns None if the thread is to
    /// end.
    pub(super) fn work(&self, caller: &Caller) -> Option<DialTarget> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            let now = Instant::now();
            state.drop_stale(now);
            if state.queue.is_empty() {
                let (woken, waited) = self.changed.wait_timeout(state, IDLE);
                state = woken;
                if waited.timed_out() && state.queue.is_empty() {
                    state.has_thread = false;
                    return None;
                }
                continue;
            }
            let is_silent = state.unanswered.is_some_and(|since| now - since >= SILENCE);
            let may_dial = state.dial_at.is_none_or(|at| at <= now) && caller.can_dial(&state.contact);
            match state.streams.last() {
                Some(stream) if !is_silent || !may_dial => {
                    let (writer, batch) = (Arc::clone(&stream.writer), state.take_batch());
                    drop(state);
                    self.write(&writer, &batch);
                    state = self.state.lock();
                }
                _ if may_dial => return Some(state.contact.clone()),
                _ => {
                    // Waits until the peer may be dialed, or dials, or the queued messages are stale.
                    let until = state.dial_at.filter(|&at| at > now).map_or(STALE, |at| at - now);
                    state = self.changed.wait_timeout(state, until).0;
                }
            }
        }
    }

    /// Writes a batch to a stream.
    fn write(&self, writer: &Writer, bytes: &[u8]) {
        let written = writer.lock().write_all(bytes);
        let mut state = self.state.lock();
        match written {
            Ok(()) => {
                state.unanswered.get_or_insert_with(Instant::now);
            }
            Err(error) => {
                tracing::debug!(contact = ?state.contact, %error, "a stream has broken");
                state.retain(|stream| !Arc::ptr_eq(&stream.writer, writer));
            }
        }
    }

    /// Dials the peer.
    pub(super) fn dial(&self, caller: &Caller, contact: &DialTarget) -> Result<ControlStream, ControlError> {
        let dialed = caller.dial_within(contact, Service::ViewLog, CONNECT_TIMEOUT, DIAL_TIMEOUT);
        let mut state = self.state.lock();
        if dialed.is_ok() {
            (state.back_off, state.dial_at) = (BACK_OFF[0], None);
        } else {
            state.dial_at = Some(Instant::now() + state.back_off);
            state.back_off = BACK_OFF[1].min(2 * state.back_off);
        }
        dialed
    }

    /// Writes to this stream from now on. Returns its number, for [`detach`](Peer::detach).
    pub(super) fn attach(&self, writer: StreamWriter) -> io::Result<u64> {
        writer.set_timeout(Some(WRITE_TIMEOUT))?;
        let hang_up = writer.hang_up();
        let mut state = self.state.lock();
        if state.closed {
            hang_up.now();
            return Err(io::Error::other("this node is ending"));
        }
        state.next += 1;
        let number = state.next;
        if state.streams.len() > 1 {
            state.streams.remove(0).hang_up.now();
        }
        state.streams.push(Stream { number, writer: Arc::new(Lock::new(writer)), hang_up });
        (state.unanswered, state.dial_at) = (None, None);
        self.changed.notify_one();
        Ok(number)
    }

    /// Removes a stream that has ended.
    pub(super) fn detach(&self, number: u64) {
        self.state.lock().retain(|stream| stream.number != number);
    }

    /// Notes that something has come from the peer.
    pub(super) fn heard(&self) {
        self.state.lock().unanswered = None;
    }

    /// Closes all streams, and makes the thread end.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.retain(|_| false);
        self.changed.notify_all();
    }
}

impl PeerState {
    fn retain(&mut self, keep: impl Fn(&Stream) -> bool) {
        self.streams.retain(|stream| {
            let keeps = keep(stream);
            if !keeps {
                stream.hang_up.now();
            }
            keeps
        });
    }

    fn drop_oldest(&mut self) {
        self.queued_bytes -= self.queue.pop_front().map_or(0, |(_, message)| message.len());
    }

    fn drop_stale(&mut self, now: Instant) {
        while self.queue.front().is_some_and(|(queued, _)| now - *queued > STALE) {
            self.drop_oldest();
        }
    }

    /// Takes as many messages as are written at once, as frames: at least one.
    fn take_batch(&mut self) -> Vec<u8> {
        let mut batch = Vec::new();
        while let Some((_, message)) = self.queue.front()
            && (batch.is_empty() || batch.len() + message.len() <= BATCH_BYTES)
        {
            frame::append(&mut batch, message);
            self.drop_oldest();
        }
        batch
    }
}
