//! A stream and its halves, whatever carries it.

use std::{
    fmt,
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::Arc,
    time::Duration,
};

use squall_fabric::{
    NodeId,
    net::{ServiceHangUp, ServiceReader, ServiceStream, ServiceWriter},
};

/// A stream of bytes with another process.
#[derive(Debug)]
pub(crate) struct ControlStream {
    /// Who is at the other end: as it says, on one host or without keys; else as its certificate says.
    pub(crate) peer: NodeId,
    pub(crate) reader: StreamReader,
    pub(crate) writer: StreamWriter,
}

/// The half from which the peer's bytes come.
#[derive(Debug)]
pub(crate) enum StreamReader {
    Local(UnixStream),
    Port(ServiceReader),
}

/// The half to which this side's bytes go. At its drop the peer reads the end.
#[derive(Debug)]
pub(crate) enum StreamWriter {
    Local(LocalWriter),
    Port(ServiceWriter),
}

/// Closes what it writes to at its drop, though the other half holds the socket.
#[derive(Debug)]
pub(crate) struct LocalWriter(UnixStream);

/// Ends both halves at once, here and at the peer, whichever threads wait at them.
#[derive(Clone)]
pub(crate) enum HangUp {
    Local(Arc<UnixStream>),
    Port(ServiceHangUp),
}

impl ControlStream {
    /// A stream on this host, with who is thought to be there.
    pub(crate) fn local(peer: NodeId, socket: UnixStream) -> io::Result<ControlStream> {
        let reader = StreamReader::Local(socket.try_clone()?);
        Ok(ControlStream { peer, reader, writer: StreamWriter::Local(LocalWriter(socket)) })
    }

    /// A stream that a port has.
    pub(crate) fn port(stream: ServiceStream) -> ControlStream {
        let peer = stream.peer();
        let (reader, writer) = stream.split();
        ControlStream { peer, reader: StreamReader::Port(reader), writer: StreamWriter::Port(writer) }
    }

    /// What ends the stream from anywhere.
    pub(crate) fn hang_up(&self) -> io::Result<HangUp> {
        self.writer.hang_up()
    }

    /// How long reads and writes wait at most: see [`StreamReader::set_timeout`] and [`StreamWriter::set_timeout`].
    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.reader.set_timeout(timeout)?;
        self.writer.set_timeout(timeout)
    }
}

impl StreamReader {
    /// How long a read waits at most, before it fails with [`io::ErrorKind::WouldBlock`]; None: for ever.
    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            StreamReader::Local(socket) => socket.set_read_timeout(timeout),
            StreamReader::Port(reader) => reader.set_timeout(timeout),
        }
    }
}

impl StreamWriter {
    /// What ends the stream from anywhere.
    pub(crate) fn hang_up(&self) -> io::Result<HangUp> {
        Ok(match self {
            StreamWriter::Local(LocalWriter(socket)) => HangUp::Local(Arc::new(socket.try_clone()?)),
            StreamWriter::Port(writer) => HangUp::Port(writer.hang_up_handle()),
        })
    }

    /// Ends both halves: see [`HangUp`].
    #[cfg(feature = "copy")]
    pub(crate) fn hang_up_now(&self) {
        match self {
            // It may have ended by itself.
            StreamWriter::Local(LocalWriter(socket)) => drop(socket.shutdown(Shutdown::Both)),
            StreamWriter::Port(writer) => writer.hang_up(),
        }
    }

    /// How long a write waits at most; one that was cut short has ended the stream. None: for ever.
    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            StreamWriter::Local(LocalWriter(socket)) => socket.set_write_timeout(timeout),
            StreamWriter::Port(writer) => writer.set_timeout(timeout),
        }
    }
}

impl HangUp {
    /// Does it.
    pub(crate) fn now(&self) {
        match self {
            // It may have ended by itself.
            HangUp::Local(socket) => drop(socket.shutdown(Shutdown::Both)),
            HangUp::Port(port) => port.now(),
        }
    }
}

impl Read for StreamReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            StreamReader::Local(socket) => socket.read(buffer),
            StreamReader::Port(reader) => reader.read(buffer),
        }
    }
}

impl Write for StreamWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            StreamWriter::Local(LocalWriter(socket)) => socket.write(bytes),
            StreamWriter::Port(writer) => writer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LocalWriter {
    fn drop(&mut self) {
        // The peer may be gone.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

impl fmt::Debug for HangUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HangUp")
    }
}
