//! Streams for other layers, over a node's port: known by a number, behind the same handshake.

use std::{
    fmt,
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{
    access::CallerAccess, config::Security, identity::Revocable, places::StreamPlace, revoked::Revoked, tls::Session,
};
use crate::NodeId;

/// The number of plain bytes that are sealed at once.
const WRITE_BYTES: usize = 64 << 10;

/// The time for which the end of a stream waits for a peer that does not read.
const FAREWELL: Duration = Duration::from_secs(1);

/// The number of a service that nodes offer over their port. Messages show its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u32);

/// The services of Squall's layers. One port serves all, so their numbers are given out here.
impl ServiceId {
    /// Copies of files.
    pub const COPIES: ServiceId = ServiceId(1);
    /// Messages of the view log.
    pub const VIEW_LOG: ServiceId = ServiceId(2);
    /// A shard's state, for nodes that join.
    pub const STATE: ServiceId = ServiceId(3);
    /// An operator's requests and orders.
    pub const ADMIN: ServiceId = ServiceId(4);
    /// Commands and queries of clients.
    pub const CLIENTS: ServiceId = ServiceId(5);
    /// Durable groups' logs, for their readers.
    pub const LOG: ServiceId = ServiceId(6);

    /// The most streams of the service that a node has at once; a further caller is told to come again. Each has one or
    /// two threads. A quarter is for nodes and operators, and one client or network gets half of the rest at most.
    pub fn limit(self) -> usize {
        match self {
            // Two for each of the most members that are possible, and as many that have not ended yet.
            ServiceId::VIEW_LOG => 256,
            // Each moves a whole state.
            ServiceId::STATE => 4,
            ServiceId::ADMIN => 32,
            ServiceId::CLIENTS => 1536,
            ServiceId::LOG => 384,
            _ => 256,
        }
    }

    /// Whether only members offer it, so that an answer of a witness is not believed.
    pub(super) fn is_of_members(self) -> bool {
        [ServiceId::COPIES, ServiceId::STATE, ServiceId::CLIENTS, ServiceId::LOG].contains(&self)
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            ServiceId::COPIES => "copies of files",
            ServiceId::VIEW_LOG => "the view log",
            ServiceId::STATE => "state transfer",
            ServiceId::ADMIN => "administration",
            ServiceId::CLIENTS => "client calls",
            ServiceId::LOG => "log reading",
            ServiceId(other) => return write!(f, "service {other}"),
        })
    }
}

/// A stream of bytes with a node, which passed the handshake.
#[derive(Debug)]
pub struct ServiceStream {
    peer: NodeId,
    access: CallerAccess,
    reader: ServiceReader,
    writer: ServiceWriter,
}

#[derive(derive_more::Debug)]
#[debug("{socket:?}")]
struct Shared {
    socket: TcpStream,
    tls: Option<Mutex<Session>>,
    /// The stream's place among those that the node has accepted.
    _place: Option<StreamPlace>,
}

impl Shared {
    /// The session, even if the other half panicked: neither half leaves it unusable, and a session that failed says
    /// so.
    fn session(&self) -> Option<MutexGuard<'_, Session>> {
        self.tls.as_ref().map(|session| session.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The half of a [`ServiceStream`] from which the peer's bytes come.
#[derive(Debug)]
pub struct ServiceReader {
    shared: Arc<Shared>,
    /// Bytes that came and are not opened yet.
    raw: Vec<u8>,
    /// Opened bytes, from `at` on not taken yet.
    plain: Vec<u8>,
    at: usize,
}

/// The half of a [`ServiceStream`] to which this side's bytes go. When it is dropped, the peer reads the end.
#[derive(Debug)]
pub struct ServiceWriter {
    shared: Arc<Shared>,
    sealed: Vec<u8>,
    /// Whether a part of the sealed bytes is lost, so that nothing can follow.
    failed: bool,
}

/// A handle that ends a [`ServiceStream`] whose halves are elsewhere. It keeps the socket open.
#[derive(Clone, Debug)]
#[must_use = "the stream goes on until `now` is called"]
pub struct ServiceHangUp(Arc<Shared>);

impl ServiceStream {
    /// A stream whose reads wait for its peer, though the socket did not before.
    pub(super) fn new(
        (peer, access): (NodeId, CallerAccess),
        socket: TcpStream,
        tls: Option<Session>,
        early: Vec<u8>,
        place: Option<StreamPlace>,
    ) -> io::Result<ServiceStream> {
        socket.set_nonblocking(false)?;
        let (raw, plain) = if tls.is_some() { (early, Vec::new()) } else { (Vec::new(), early) };
        let shared = Arc::new(Shared { socket, tls: tls.map(Mutex::new), _place: place });
        let reader = ServiceReader { shared: Arc::clone(&shared), raw, plain, at: 0 };
        let writer = ServiceWriter { shared, sealed: Vec::new(), failed: false };
        Ok(ServiceStream { peer, access, reader, writer })
    }

    /// The node at the other end, or the id that a client or an operator has given itself.
    pub fn peer(&self) -> NodeId {
        self.peer
    }

    /// The rights of the other end.
    pub fn access(&self) -> &CallerAccess {
        &self.access
    }

    /// Ends the stream when its peer's certificate is revoked.
    pub(super) fn end_with_certificate(&self, security: &Security) {
        if let Security::Tls(identity) = security {
            let shared: Arc<dyn Revocable> = self.reader.shared.clone();
            identity.track(Arc::downgrade(&shared));
        }
    }

    /// Sets the longest time that a read or a write waits before it fails with [`ErrorKind::WouldBlock`]; None: for
    /// ever.
    ///
    /// A read may be tried again; a write that was cut short has ended the stream.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.reader.shared.socket.set_read_timeout(timeout)?;
        self.reader.shared.socket.set_write_timeout(timeout)
    }

    /// Its two halves, for two threads.
    pub fn split(self) -> (ServiceReader, ServiceWriter) {
        (self.reader, self.writer)
    }
}

impl Read for ServiceStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer)
    }
}

impl Write for ServiceStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for ServiceReader {
    /// Reads the peer's bytes. The end (0) is read only if the peer has said so, where there is TLS; a connection that
    /// was cut is [`ErrorKind::UnexpectedEof`].
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.at < self.plain.len() {
                let len = (&self.plain[self.at..]).read(buffer)?;
                self.at += len;
                return Ok(len);
            }
            let closed = if let Some(mut session) = self.shared.session() {
                self.plain.clear();
                self.at = 0;
                let plain = &mut self.plain;
                let used = session.open(&mut self.raw, &mut |bytes| plain.extend_from_slice(bytes));
                let used = used.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
                self.raw.drain(..used);
                if !self.plain.is_empty() {
                    continue;
                }
                session.is_closed()
            } else {
                return (&self.shared.socket).read(buffer);
            };
            if closed || buffer.is_empty() {
                return Ok(0);
            }
            let start = self.raw.len();
            self.raw.resize(start + (16 << 10), 0);
            let result = (&self.shared.socket).read(&mut self.raw[start..]);
            self.raw.truncate(start + result.as_ref().copied().unwrap_or(0));
            if result? == 0 {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection was cut"));
            }
        }
    }
}

impl ServiceReader {
    /// Sets the longest time that a read waits, as in [`ServiceStream::set_timeout`]. Fails if `timeout` is zero.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.shared.socket.set_read_timeout(timeout)
    }
}

impl ServiceWriter {
    /// Sets the longest time that a write waits, as in [`ServiceStream::set_timeout`]. Fails if `timeout` is zero.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.shared.socket.set_write_timeout(timeout)
    }

    /// A handle that ends the stream wherever the halves are.
    pub fn hang_up(&self) -> ServiceHangUp {
        ServiceHangUp(Arc::clone(&self.shared))
    }
}

impl Revocable for Shared {
    fn end_if_revoked(&self, revoked: &Revoked) {
        if self.session().is_some_and(|session| session.is_revoked(revoked)) {
            tracing::warn!("a stream was closed: the peer's certificate is revoked");
            // The stream may have ended by itself.
            let _ = self.socket.shutdown(Shutdown::Both);
        }
    }
}

impl ServiceHangUp {
    /// Ends both halves at once, here and at the peer, whichever threads wait at them.
    pub fn now(&self) {
        // The stream may have ended by itself.
        let _ = self.0.socket.shutdown(Shutdown::Both);
    }
}

impl Write for ServiceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failed {
            return Err(io::Error::new(ErrorKind::BrokenPipe, "an earlier write was cut short"));
        }
        let bytes = &bytes[..bytes.len().min(WRITE_BYTES)];
        self.sealed.clear();
        match self.shared.session() {
            None => return (&self.shared.socket).write(bytes),
            Some(mut session) => {
                let sealed = session.seal(bytes, &mut self.sealed);
                sealed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            }
        }
        let written = (&self.shared.socket).write_all(&self.sealed);
        self.failed = written.is_err();
        written.map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ServiceWriter {
    fn drop(&mut self) {
        self.sealed.clear();
        if let Some(mut session) = self.shared.session() {
            session.farewell(&mut self.sealed);
        }
        // A peer that has left already needs no notice, and one that does not read is not waited for any longer.
        if !self.failed && !self.sealed.is_empty() {
            let _ = self.shared.socket.set_write_timeout(Some(FAREWELL));
            let _ = (&self.shared.socket).write_all(&self.sealed);
        }
        let _ = self.shared.socket.shutdown(Shutdown::Write);
    }
}
