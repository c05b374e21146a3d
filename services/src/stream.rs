//! A stream and its halves, over any transport.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::Arc,
    time::Duration,
};

use squall_fabric::{
    NodeId,
    net::{CallerAccess, ServiceHangUp, ServiceReader, ServiceStream, ServiceWriter},
};

use super::local;

/// A stream of bytes with another process.
#[derive(Debug)]
pub struct ControlStream {
    /// The node at the other end: as it claims, on one host or without keys; else as its certificate says. A client or
    /// an operator has a number that it took for itself.
    pub peer: NodeId,
    /// The rights of the other end.
    pub access: CallerAccess,
    /// The half from which its bytes come.
    pub reader: StreamReader,
    /// The half to which this side's bytes go.
    pub writer: StreamWriter,
}

/// The half from which the peer's bytes come.
#[derive(Debug)]
pub enum StreamReader {
    /// A socket of this host.
    Local(Arc<UnixStream>),
    /// A stream of the node's port.
    Port(ServiceReader),
}

/// The half to which this side's bytes go. When it is dropped, the peer reads the end.
#[derive(Debug)]
pub enum StreamWriter {
    /// A socket of this host.
    Local(LocalWriter),
    /// A stream of the node's port.
    Port(ServiceWriter),
}

/// A writer that closes its direction when it is dropped, though the other half still holds the socket.
#[derive(Debug)]
pub struct LocalWriter(pub(super) Arc<UnixStream>);

/// A handle that ends both halves at once, here and at the peer, whichever threads wait at them.
#[derive(Clone, Debug)]
#[must_use = "the stream goes on until `now` is called"]
pub enum HangUp {
    /// A socket of this host.
    Local(Arc<UnixStream>),
    /// A stream of the node's port.
    Port(ServiceHangUp),
}

impl ControlStream {
    /// Wraps a stream on this host, with the node that is thought to be at the other end.
    pub fn local(peer: NodeId, socket: UnixStream) -> ControlStream {
        let socket = Arc::new(socket);
        let reader = StreamReader::Local(Arc::clone(&socket));
        let writer = StreamWriter::Local(LocalWriter(socket));
        ControlStream { peer, access: CallerAccess::unchecked(), reader, writer }
    }

    /// Wraps a stream of a port.
    pub fn port(stream: ServiceStream) -> ControlStream {
        let (peer, access) = (stream.peer(), stream.access().clone());
        let (reader, writer) = stream.split();
        ControlStream { peer, access, reader: StreamReader::Port(reader), writer: StreamWriter::Port(writer) }
    }

    /// Returns the other end in words: the owner of its certificate, or the node as which it introduced itself.
    pub fn peer_name(&self) -> String {
        self.access.principal().map_or_else(|| self.peer.to_string(), ToString::to_string)
    }

    /// Returns a handle that ends the stream from any thread.
    pub fn hang_up(&self) -> HangUp {
        self.writer.hang_up()
    }

    /// Tells whether the process at the other end is on this host, and in this process's mount namespace.
    pub fn shares_mounts(&self) -> bool {
        matches!(&self.reader, StreamReader::Local(socket) if local::shares_mounts(socket))
    }

    /// Limits the waits of reads and writes: see [`StreamReader::set_timeout`] and [`StreamWriter::set_timeout`]. Fails
    /// if `timeout` is zero.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.reader.set_timeout(timeout)?;
        self.writer.set_timeout(timeout)
    }
}

impl StreamReader {
    /// Limits the time for which a read waits, before it fails with [`io::ErrorKind::WouldBlock`]; None for ever.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            StreamReader::Local(socket) => socket.set_read_timeout(timeout),
            StreamReader::Port(reader) => reader.set_timeout(timeout),
        }
    }
}

impl StreamWriter {
    /// Returns a handle that ends the stream from any thread.
    pub fn hang_up(&self) -> HangUp {
        match self {
            StreamWriter::Local(LocalWriter(socket)) => HangUp::Local(Arc::clone(socket)),
            StreamWriter::Port(writer) => HangUp::Port(writer.hang_up()),
        }
    }

    /// Limits the time for which a write waits; None for ever. A write that was cut short has ended the stream. Fails
    /// if `timeout` is zero.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            StreamWriter::Local(LocalWriter(socket)) => socket.set_write_timeout(timeout),
            StreamWriter::Port(writer) => writer.set_timeout(timeout),
        }
    }
}

impl HangUp {
    /// Ends both halves.
    pub fn now(&self) {
        match self {
            // The socket may be shut down already.
            HangUp::Local(socket) => drop(socket.shutdown(Shutdown::Both)),
            HangUp::Port(port) => port.now(),
        }
    }
}

impl Read for StreamReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            StreamReader::Local(socket) => (&**socket).read(buffer),
            StreamReader::Port(reader) => reader.read(buffer),
        }
    }
}

impl Write for StreamWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            StreamWriter::Local(LocalWriter(socket)) => (&**socket).write(bytes),
            StreamWriter::Port(writer) => writer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LocalWriter {
    fn drop(&mut self) {
        // The peer may have ended already.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}
