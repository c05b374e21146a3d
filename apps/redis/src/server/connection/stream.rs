//! The streams of clients.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, Interest},
    net::TcpStream,
};

use crate::server::tls::TlsStream;

/// The pause between two looks whether a client has gone that is not read from.
pub(super) const HANGUP_PERIOD: Duration = Duration::from_millis(500);

/// A stream to a client.
pub(in crate::server) trait ClientStream: AsyncRead + AsyncWrite + Unpin {
    /// Whether the client has ended its side, as far as the system knows: bytes before the end may not have been read.
    fn has_ended(&self) -> bool;
}

impl ClientStream for TlsStream {
    fn has_ended(&self) -> bool {
        self.tcp().has_ended()
    }
}

impl ClientStream for TcpStream {
    fn has_ended(&self) -> bool {
        // It is ready while there are bytes, and says then whether an end follows them.
        let ready = pin!(self.ready(Interest::READABLE)).poll(&mut Context::from_waker(Waker::noop()));
        matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
    }
}
