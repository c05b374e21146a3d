//! One client's connection: bytes in, requests to the session, answers out.
//!
//! Memory is bounded on every side:
//!
//! - a request by the longest message that can be replicated,
//! - the answers that are owed by the session,
//! - the messages of channels by their mailbox,
//! - encoded bytes by [`MAX_OUT_BYTES`] and one answer,
//! - all connections together by a [`Budget`].
//!
//! A connection whose client does not read its answers is not read from.

mod stream;
#[cfg(test)]
mod tests;

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::{Instant, Sleep, sleep},
};

use self::stream::{ClientStream, HANGUP_PERIOD};
use super::{
    connected_client::ConnectedClient,
    counts::Counts,
    memory::{Budget, Exhausted, Share},
    resp::{Incoming, RequestBuffer},
    session::{Replica, Session, SessionStep, Taken},
    subscriptions::CutOff,
};
use crate::{Error, Reply, encode::encode};

/// The bytes that are read at once.
const READ_BYTES: usize = 16 << 10;

/// The bytes waiting to be sent beyond which no more answers are encoded.
const MAX_OUT_BYTES: usize = 256 << 10;

/// The capacity of the answers' buffer, in bytes, beyond which it is freed once it is empty.
const KEPT_OUT_BYTES: usize = 64 << 10;

/// The most times that a connection reads before others get their turns: a client may send without end.
const MAX_ROUNDS: usize = 8;

/// The bytes of later requests that are read while one waits for an element. They are read so that a client is noticed
/// that goes meanwhile. Behind more bytes, the system says that it has gone, unless they are more than the system
/// itself keeps.
const MAX_BYTES_AHEAD: usize = 1 << 20;

/// The same while one waits for the end of a pause. It holds all clients at once, which share the memory.
const MAX_PAUSED_BYTES: usize = 64 << 10;

/// The time for which a client may go on sending after it was told why its connection ends.
const LINGER: Duration = Duration::from_secs(1);

/// Serves a connection until either side ends it.
pub(super) async fn serve<R: Replica>(
    mut stream: impl ClientStream,
    session: Session<R>,
    client: &Arc<ConnectedClient>,
    counts: &Counts,
    budget: &Budget,
    max_command_bytes: usize,
) -> io::Result<()> {
    let mut connection = Connection {
        session,
        // A command is shorter in the group than on the wire; the group itself checks the exact limit.
        requests: RequestBuffer::new(2 * max_command_bytes),
        max_command_bytes,
        client,
        counts,
        share: budget.share(),
        waker: Waker::from(Arc::clone(client.bell())),
        last: Taken::Yes,
        is_hungry: true,
        is_over: false,
        has_hung_up: false,
        hangup_timer: None,
        out: Vec::new(),
        sent: 0,
        is_closing: false,
    };
    poll_fn(|context| connection.poll(&mut stream, context)).await?;
    drop(connection);
    stream.shutdown().await?;
    // Closing with unread input would reset the connection, and the client might never see why.
    let mut rest = [0; 4096];
    let drained = async { while stream.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {} };
    // A client that goes on longer is cut off.
    let _ = tokio::time::timeout(LINGER, drained).await;
    Ok(())
}

struct Connection<'a, R: Replica> {
    session: Session<R>,
    requests: RequestBuffer,
    max_command_bytes: usize,
    client: &'a Arc<ConnectedClient>,
    counts: &'a Counts,
    share: Share<'a>,
    /// Wakes this task from other threads.
    waker: Waker,
    /// Whether the last request was taken.
    last: Taken,
    /// The first request is not complete: more must be read.
    is_hungry: bool,
    /// The client sends nothing more.
    is_over: bool,
    /// The client sends nothing more behind what was not read yet.
    has_hung_up: bool,
    /// Wakes the task to look whether the client has hung up.
    hangup_timer: Option<Pin<Box<Sleep>>>,
    out: Vec<u8>,
    /// The number of bytes of `out` that were sent.
    sent: usize,
    /// Whether no more answers are encoded; the encoded ones are sent.
    is_closing: bool,
}

impl<R: Replica> Connection<'_, R> {
    /// Does all that can be done now, within [`MAX_ROUNDS`]. Ready once the connection is to be closed.
    fn poll(&mut self, stream: &mut impl ClientStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Registered before any state is read whose changes ring the bell.
        self.client.bell().register(context);
        let waker = self.waker.clone();
        let mut inner = Context::from_waker(&waker);
        for _ in 0..MAX_ROUNDS {
            if self.client.is_killed() {
                return Poll::Ready(Ok(()));
            }
            let is_gone = self.is_over || self.has_hung_up;
            if is_gone && self.is_paused() {
                // As in Redis, what a client that has gone asked during a pause is not done.
                self.session.end(None);
            }
            let mut moved = self.take_requests(&mut inner);
            moved |= self.session.poll_stuck(&mut inner);
            moved |= self.encode_answers(&mut inner);
            match self.session.deliver_mail(MAX_OUT_BYTES, &mut self.out) {
                Ok(delivered) => moved |= delivered,
                Err(CutOff) => {
                    tracing::warn!(
                        client = self.client.id,
                        "closing a subscriber's connection: it does not read, or messages were lost"
                    );
                    return Poll::Ready(Ok(()));
                }
            }
            moved |= self.poll_write(stream, context)?;
            let is_done = self.is_closing
                || (self.is_over && self.last == Taken::Yes && self.is_hungry && self.session.is_idle())
                // As in Redis, a client that has gone waits for nothing.
                || (is_gone && self.session.is_waiting());
            if is_done && self.out.is_empty() {
                return Poll::Ready(Ok(()));
            }
            moved |= self.poll_read(stream, context)?;
            moved |= self.poll_hangup(stream, context);
            let bytes = self.requests.capacity() + self.session.bytes() + self.out.capacity();
            if let Err(Exhausted) = self.share.set(bytes) {
                tracing::warn!(client = self.client.id, "closing a connection: clients take all memory they may have");
                return Poll::Ready(Ok(()));
            }
            if !moved {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Hands over the requests that have arrived, as far as their order and the limits permit.
    fn take_requests(&mut self, context: &mut Context<'_>) -> bool {
        let mut taken = 0;
        self.session.begin_batch();
        while self.out.len() < MAX_OUT_BYTES && self.session.is_open() && !self.is_paused() {
            if self.last == Taken::Yes {
                self.requests.set_trusted(self.session.is_trusted());
                match self.requests.next() {
                    Ok(Some(Incoming::Request(_))) => {}
                    Ok(Some(Incoming::TooLarge { bytes })) => {
                        self.session.refuse(too_large(bytes, self.max_command_bytes));
                        taken += 1;
                        continue;
                    }
                    Ok(None) => {
                        self.is_hungry = true;
                        break;
                    }
                    Err(error) => {
                        tracing::debug!(%error, "closing a connection");
                        self.session.end(Some(Reply::Error(Error::new(error.to_string()))));
                        taken += 1;
                        break;
                    }
                }
            }
            self.last = self.session.take(self.requests.last(), context);
            if self.last != Taken::Yes {
                break;
            }
            taken += 1;
        }
        self.session.look(context);
        if taken > 0 {
            self.counts.commands.add(taken);
            self.session.note();
        }
        taken > 0
    }

    fn encode_answers(&mut self, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while self.out.len() < MAX_OUT_BYTES && !self.is_closing {
            match self.session.poll_next(context) {
                Poll::Ready(SessionStep::Answer(answer)) => encode(&answer, self.session.protocol(), &mut self.out),
                Poll::Ready(SessionStep::Close) => self.is_closing = true,
                Poll::Pending => break,
            }
            moved = true;
        }
        self.session.count_answers();
        moved
    }

    /// Whether the last request waits for the end of a pause.
    fn is_paused(&self) -> bool {
        matches!(self.last, Taken::Paused { is_write } if self.session.is_paused(is_write))
    }

    /// The bytes that are read behind a request that waits for what may take any time; 0 if none does.
    fn max_bytes_ahead(&self) -> usize {
        match self.is_paused() {
            true => MAX_PAUSED_BYTES,
            false if self.session.is_waiting() => MAX_BYTES_AHEAD,
            false => 0,
        }
    }

    fn poll_write(&mut self, stream: &mut (impl AsyncWrite + Unpin), context: &mut Context<'_>) -> io::Result<bool> {
        let mut moved = false;
        while self.sent < self.out.len() {
            let Poll::Ready(sent) = Pin::new(&mut *stream).poll_write(context, &self.out[self.sent..]) else {
                return Ok(moved);
            };
            let sent = sent?;
            self.counts.sent.count(sent);
            self.sent += sent;
            self.client.touch();
            moved = true;
        }
        // Sealed bytes may be left that the stream has taken.
        let _ = Pin::new(&mut *stream).poll_flush(context)?;
        self.sent = 0;
        self.out.clear();
        if self.out.capacity() > KEPT_OUT_BYTES {
            self.out = Vec::new();
        }
        Ok(moved)
    }

    fn poll_read(&mut self, stream: &mut (impl AsyncRead + Unpin), context: &mut Context<'_>) -> io::Result<bool> {
        let reads_ahead = self.requests.unread() < self.max_bytes_ahead();
        if !(self.is_hungry || reads_ahead) || self.is_over || self.session.is_closing() {
            return Ok(false);
        }
        let Poll::Ready(bytes) = pin!(stream.read_buf(self.requests.space(READ_BYTES))).poll(context) else {
            return Ok(false);
        };
        let bytes = bytes?;
        if bytes == 0 {
            self.is_over = true;
        } else {
            self.counts.received.count(bytes);
            self.is_hungry = false;
            self.client.touch();
        }
        Ok(true)
    }

    /// Notes whether a client has gone that is not read from, since enough was read ahead.
    fn poll_hangup(&mut self, stream: &impl ClientStream, context: &mut Context<'_>) -> bool {
        let max = self.max_bytes_ahead();
        let is_unread = !self.is_over && !self.is_hungry && self.requests.unread() >= max;
        if !is_unread || self.has_hung_up || max == 0 {
            self.hangup_timer = None;
            return false;
        }
        self.has_hung_up = stream.has_ended();
        let timer = self.hangup_timer.get_or_insert_with(|| Box::pin(sleep(HANGUP_PERIOD)));
        while timer.as_mut().poll(context).is_ready() {
            timer.as_mut().reset(Instant::now() + HANGUP_PERIOD);
        }
        self.has_hung_up
    }
}

/// The error for a request that is too long for the group.
pub(super) fn too_large(bytes: usize, max: usize) -> Error {
    Error::new(format!(
        "ERR a command of {bytes} bytes can't be replicated: it may have {max} bytes, a replica's reserve for large ones \
         (bulk_reserve)"
    ))
}
