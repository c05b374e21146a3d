//! A client that sends without end while its requests are held.

use std::cell::Cell;

use tokio::io::ReadBuf;

use super::*;

/// The stream of a client that has sent requests without end, and is found to be gone once somebody asks.
struct Endless {
    request: Vec<u8>,
    sent: usize,
    has_ended: Cell<bool>,
}

impl AsyncRead for Endless {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while into.remaining() > 0 && !self.has_ended.get() {
            into.put_slice(&[self.request[self.sent % self.request.len()]]);
            self.sent += 1;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Endless {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl ClientStream for Endless {
    fn has_ended(&self) -> bool {
        self.has_ended.set(true);
        true
    }
}

#[test]
fn little_is_read_ahead_of_the_many_that_a_pause_holds() {
    let operations = Arc::<Operations>::default();
    assert_eq!(operations.pause.answer(&[&b"client"[..], b"pause", b"1000000"]), Some(Ok(Reply::OK)));
    let stream = Endless { request: encode_request("incr a"), sent: 0, has_ended: Cell::default() };
    let read = run(serve_with(stream, actor(1, usize::MAX), &Arc::default(), &operations));
    assert!((64 << 10..256 << 10).contains(&read), "{read}");
}
