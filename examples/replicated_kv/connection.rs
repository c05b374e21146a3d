//! One client's connection: bytes in, requests to the session, answers out.
//!
//! Memory is bounded on every side: a request by what can be replicated, answers that are owed by the session, and what is
//! encoded by [`MAX_OUT_BYTES`] and one answer. Who does not read his answers is not read from.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    command::{CommandError, Request, parse},
    reply::Answer,
    resp::{Incoming, RequestBuffer},
    session::{Next, Replica, Session},
};

/// How much is read at once, in bytes.
const READ_BYTES: usize = 16 << 10;

/// When this much waits to be sent, nothing more is encoded.
const MAX_OUT_BYTES: usize = 256 << 10;

/// How long a client that was told why its connection ends may go on sending.
const LINGER: Duration = Duration::from_secs(1);

/// Serves a connection until either side ends it.
pub(crate) async fn serve(
    mut stream: TcpStream,
    session: Session<impl Replica>,
    max_command_bytes: usize,
) -> io::Result<()> {
    // A command may be shorter in the group than on the wire; the group has the last word.
    let requests = RequestBuffer::new(2 * max_command_bytes);
    let mut connection = Connection {
        session,
        requests,
        max_command_bytes,
        held: None,
        hungry: true,
        over: false,
        out: Vec::new(),
        sent: 0,
        closing: false,
    };
    poll_fn(|context| connection.poll(&mut stream, context)).await?;
    drop(connection);
    stream.shutdown().await?;
    // Closing with unread input would reset the connection, and the client might never see why.
    let mut rest = [0; 4096];
    let drained = async { while stream.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {} };
    // Whoever goes on longer is cut off.
    let _ = tokio::time::timeout(LINGER, drained).await;
    Ok(())
}

struct Connection<R: Replica> {
    session: Session<R>,
    requests: RequestBuffer,
    max_command_bytes: usize,
    /// A request that waits for earlier ones.
    held: Option<Request>,
    /// The first request is not complete: more must be read.
    hungry: bool,
    /// The client sends nothing more.
    over: bool,
    out: Vec<u8>,
    /// How much of `out` was sent.
    sent: usize,
    /// Nothing more is encoded; what is left is sent.
    closing: bool,
}

impl<R: Replica> Connection<R> {
    /// Does all that can be done now. Ready once the connection is to be closed.
    fn poll(&mut self, stream: &mut TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut moved = self.take_requests();
            moved |= self.session.poll_stuck(context);
            moved |= self.encode_answers(context);
            moved |= self.poll_write(stream, context)?;
            let done = self.closing || (self.over && self.held.is_none() && self.hungry && self.session.is_idle());
            if done && self.out.is_empty() {
                return Poll::Ready(Ok(()));
            }
            moved |= self.poll_read(stream, context)?;
            if !moved {
                return Poll::Pending;
            }
        }
    }

    /// Hands over the requests that have arrived, as far as their order and the limits permit.
    fn take_requests(&mut self) -> bool {
        let mut moved = false;
        while self.out.len() < MAX_OUT_BYTES && self.session.is_open() {
            let request = match self.held.take() {
                Some(request) => request,
                None => match self.next_request() {
                    Some(Ok(request)) => request,
                    Some(Err(refusal)) => {
                        self.session.owe(refusal);
                        moved = true;
                        continue;
                    }
                    None => break,
                },
            };
            if let Err(request) = self.session.take(request) {
                self.held = Some(request);
                break;
            }
            moved = true;
        }
        self.session.look();
        moved
    }

    fn next_request(&mut self) -> Option<Result<Request, Answer>> {
        match self.requests.next(parse) {
            Ok(Some(Incoming::Request(request))) => Some(request.map_err(|error: CommandError| Answer::error(error))),
            Ok(Some(Incoming::TooLarge { bytes })) => Some(Err(Answer::Error(format!(
                "ERR a command of {bytes} bytes can't be replicated: it may have {} bytes, a quarter of a replica's ring \
                 (ring_bytes)",
                self.max_command_bytes
            )))),
            Ok(None) => {
                self.hungry = true;
                None
            }
            Err(error) => {
                tracing::debug!(%error, "closing a connection");
                self.session.end(Some(Answer::error(error)));
                None
            }
        }
    }

    fn encode_answers(&mut self, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while self.out.len() < MAX_OUT_BYTES && !self.closing {
            match self.session.poll_next(context) {
                Poll::Ready(Next::Answer(answer)) => answer.encode(self.session.protocol(), &mut self.out),
                Poll::Ready(Next::Close) => self.closing = true,
                Poll::Pending => break,
            }
            moved = true;
        }
        moved
    }

    fn poll_write(&mut self, stream: &mut TcpStream, context: &mut Context<'_>) -> io::Result<bool> {
        let mut moved = false;
        while self.sent < self.out.len() {
            let Poll::Ready(sent) = Pin::new(&mut *stream).poll_write(context, &self.out[self.sent..]) else {
                return Ok(moved);
            };
            self.sent += sent?;
            moved = true;
        }
        self.sent = 0;
        self.out.clear();
        if self.out.capacity() > MAX_OUT_BYTES {
            self.out = Vec::new();
        }
        Ok(moved)
    }

    fn poll_read(&mut self, stream: &mut TcpStream, context: &mut Context<'_>) -> io::Result<bool> {
        if !self.hungry || self.over || self.session.is_closing() {
            return Ok(false);
        }
        let Poll::Ready(bytes) = pin!(stream.read_buf(self.requests.space(READ_BYTES))).poll(context) else {
            return Ok(false);
        };
        if bytes? == 0 {
            self.over = true;
        } else {
            self.hungry = false;
        }
        Ok(true)
    }
}
