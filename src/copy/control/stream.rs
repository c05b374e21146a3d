//! A conversation's two halves, whatever carries it.

use std::{
    fmt,
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    time::Duration,
};

/// A peer that reads nothing for so long is given up: its thread that reads never waits for anything else.
pub(super) const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// A connection before anything was said.
pub(crate) struct Stream {
    pub(super) from: Box<dyn Read + Send>,
    pub(super) to: Box<dyn Voice>,
}

/// The half that writes.
pub(super) trait Voice: Write + Send {
    /// Ends both halves.
    fn hang_up(&self);
}

impl TryFrom<UnixStream> for Stream {
    type Error = io::Error;

    fn try_from(stream: UnixStream) -> io::Result<Stream> {
        stream.set_write_timeout(Some(WRITE_LIMIT))?;
        Ok(Stream { from: Box::new(stream.try_clone()?), to: Box::new(stream) })
    }
}

impl Voice for UnixStream {
    fn hang_up(&self) {
        // The other half may be closed already.
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}
