//! Streams for other layers, over a node's port: known by a number, behind the same handshake.

use std::{
    fmt,
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    access::CallerAccess,
    config::{MAX_TIMEOUT, NetConfig, NetError, Security, UNPROTECTED, check_cluster, check_identity},
    handshake::Handshake,
    identity::Revocable,
    pipe::{Pipe, PipeError},
    revoked::Revoked,
    tls::{Session, TlsError},
    verifier::Wanted,
    wire::{GREETING_BYTES, Greeting, Hello, HelloRest, Refusal, Service},
};
use crate::{NodeId, control::mismatch, random};

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
    ) -> io::Result<ServiceStream> {
        socket.set_nonblocking(false)?;
        let (raw, plain) = if tls.is_some() { (early, Vec::new()) } else { (Vec::new(), early) };
        let shared = Arc::new(Shared { socket, tls: tls.map(Mutex::new) });
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

/// The address of a service, and the identity of the dialer.
#[derive(Clone, Debug)]
pub struct ServiceDial<'a> {
    /// The addresses of the node, as `host:port`, in the order in which they are tried.
    pub addresses: &'a [String],
    /// The node; None for any node of the cluster that listens there.
    pub peer: Option<NodeId>,
    /// The cluster's name.
    pub cluster: &'a str,
    /// The id under which this process introduces itself. With TLS it is that of its certificate.
    pub node: NodeId,
    /// The protection of the connection.
    pub security: &'a Security,
    /// The service.
    pub service: ServiceId,
    /// The part of `timeout` that an address may take to accept a connection.
    pub connect_timeout: Duration,
    /// The longest time for all, handshakes included. (Looking up a name takes as long as the system's resolver does.)
    pub timeout: Duration,
}

/// The reason for which a service was not reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// This process's own settings are wrong.
    #[error(transparent)]
    Config(#[from] NetError),
    /// The node refused.
    #[error("{address} refused the connection: {why}")]
    Refused {
        /// The address of the node.
        address: SocketAddr,
        /// The service.
        service: ServiceId,
        /// The reason, a sentence.
        why: String,
    },
    /// The certificate of this process does not permit the call. No other node of the cluster would take it.
    #[error("{address} refused the connection: {why}")]
    Denied {
        /// The address of the node.
        address: SocketAddr,
        /// The service.
        service: ServiceId,
        /// The reason, a sentence.
        why: String,
    },
    /// The node would talk to this one, and has no such service, or no room for another stream of it.
    #[error("{address} does not offer {service} now, or too many wait for it")]
    NoService {
        /// The address of the node.
        address: SocketAddr,
        /// The service.
        service: ServiceId,
    },
    /// The lack of an address that answered as the node should.
    #[error("the node could not be reached: {}", causes.join("; "))]
    Unreachable {
        /// The service.
        service: ServiceId,
        /// One sentence for each address.
        causes: Vec<String>,
    },
}

/// Opens a stream to a service of a node, and waits until it stands. Needs no fabric. Fails if the cluster's name or
/// the keys can't be used, if no address answers in time as that node, or if the node refuses or does not offer the
/// service.
pub fn dial_service(dial: &ServiceDial<'_>) -> Result<ServiceStream, DialError> {
    check_cluster(dial.cluster)?;
    if let Security::Tls(identity) = dial.security {
        check_identity(identity, dial.cluster, dial.node)?;
        identity.watch();
    }
    let until = Instant::now() + dial.timeout.min(MAX_TIMEOUT);
    let mut causes = Vec::new();
    let mut addresses = Vec::new();
    for text in dial.addresses {
        match text.to_socket_addrs() {
            Ok(some) => addresses.extend(some),
            Err(error) => causes.push(format!("{text}: {error}")),
        }
    }
    for (index, address) in addresses.iter().enumerate() {
        let left = until.saturating_duration_since(Instant::now());
        // A mute address leaves time for the others.
        let share = left / (addresses.len() - index) as u32;
        if share.is_zero() {
            causes.push(format!("{address}: there was no time left"));
            continue;
        }
        match dial_address(dial, *address, share) {
            Ok(stream) => return Ok(stream),
            Err(Failure::Refused(why)) => {
                return Err(DialError::Refused { address: *address, service: dial.service, why });
            }
            Err(Failure::Denied) => {
                return Err(DialError::Denied { address: *address, service: dial.service, why: denial(dial) });
            }
            Err(Failure::NoService) => {
                return Err(DialError::NoService { address: *address, service: dial.service });
            }
            Err(Failure::Other(cause)) => causes.push(format!("{address}: {cause}")),
        }
    }
    Err(DialError::Unreachable { service: dial.service, causes })
}

enum Failure {
    Refused(String),
    Denied,
    NoService,
    Other(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Failure::Other("it did not answer in time".into()),
            _ => Failure::Other(error.to_string()),
        }
    }
}

impl From<PipeError> for Failure {
    fn from(error: PipeError) -> Failure {
        match error {
            PipeError::Tls(TlsError::OwnCertificate(_)) => Failure::Refused(error.to_string()),
            error => Failure::Other(error.to_string()),
        }
    }
}

fn dial_address(dial: &ServiceDial<'_>, address: SocketAddr, timeout: Duration) -> Result<ServiceStream, Failure> {
    if !dial.security.permits(address) {
        return Err(Failure::Other(UNPROTECTED.into()));
    }
    let until = Instant::now() + timeout;
    let mut socket = TcpStream::connect_timeout(&address, timeout.min(dial.connect_timeout))?;
    socket.set_nodelay(true)?;
    let mut pipe = open_pipe(dial)?;
    let own = NetConfig::new(dial.cluster, dial.node);
    let nonce = random::bytes().map_err(|error| Failure::Other(error.to_string()))?;
    loop {
        let sent = socket.write_all(&pipe.out);
        pipe.out.clear();
        sent?;
        while let Some(frame) = pipe.next_frame(GREETING_BYTES)? {
            match Greeting::decode(&frame, own.protocol).map_err(PipeError::from)? {
                Greeting::Challenge { challenge, .. } => {
                    dial.security.check_user(&socket).map_err(|error| Failure::Other(error.to_string()))?;
                    let service = Service::Application(dial.service.0);
                    let cluster = dial.cluster.to_owned();
                    let rest = HelloRest { to: dial.peer, incarnation: 0, challenge, nonce, service, cluster };
                    let hello = Hello { version: own.protocol, from: dial.node, rest: Some(rest) };
                    pipe.send(&Greeting::Hello(hello).encode()).map_err(PipeError::from)?;
                }
                Greeting::Welcome { version, from, nonce: echo, .. }
                    if version == own.protocol && echo == nonce && dial.peer.is_none_or(|peer| peer == from) =>
                {
                    let owner = pipe.session().map(|session| session.verify_peer(dial.cluster, from)).transpose();
                    let access = CallerAccess::of_peer(owner.map_err(PipeError::from)?, dial.node);
                    let (tls, early) = pipe.into_parts().map_err(PipeError::from)?;
                    socket.set_read_timeout(None)?;
                    socket.set_write_timeout(None)?;
                    let stream = ServiceStream::new((from, access), socket, tls, early)?;
                    stream.end_with_certificate(dial.security);
                    return Ok(stream);
                }
                Greeting::Refuse { version, why, cluster } => {
                    let whom = format!("the node at {address}");
                    let other =
                        || format!("{whom} refuses the connection, for a reason that does not apply to this call");
                    return Err(match why {
                        Refusal::NoService => Failure::NoService,
                        Refusal::Denied => Failure::Denied,
                        Refusal::Version | Refusal::Cluster => Failure::Refused(
                            mismatch((own.protocol, &own.cluster), &whom, version, Some(&cluster))
                                .unwrap_or_else(other),
                        ),
                        Refusal::Node => {
                            Failure::Refused(format!("{whom} is not the node that was called: correct the address"))
                        }
                        _ => Failure::Refused(other()),
                    });
                }
                _ => return Err(Failure::Other("it does not answer as a node does".into())),
            }
        }
        if !pipe.out.is_empty() {
            continue;
        }
        receive(&mut socket, &mut pipe, until)?;
    }
}

/// The dialer's end of a connection, which nothing has been sent through yet.
fn open_pipe(dial: &ServiceDial<'_>) -> Result<Pipe, PipeError> {
    let Security::Tls(identity) = dial.security else { return Ok(Pipe::plain()) };
    let mut out = Vec::new();
    let wanted = dial.peer.map_or(Wanted::AnyNode, Wanted::Node);
    let handshake = Handshake::dial(identity, wanted, &mut out)?;
    Ok(Pipe::shaking(handshake, out))
}

/// The reason for which a node has denied a service to this process.
fn denial(dial: &ServiceDial<'_>) -> String {
    let Security::Tls(identity) = dial.security else { return "it wants a certificate".to_owned() };
    format!(
        "{} may not use {}: use a certificate of another role (`squall keys add`)",
        identity.principal(),
        dial.service
    )
}

/// Waits for bytes of the peer, at most until a time, and takes them in. There may be none yet.
fn receive(socket: &mut TcpStream, pipe: &mut Pipe, until: Instant) -> Result<(), Failure> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::Error::from(ErrorKind::TimedOut).into());
    }
    socket.set_read_timeout(Some(left))?;
    socket.set_write_timeout(Some(left))?;
    let mut buffer = [0; 4096];
    let len = match socket.read(&mut buffer) {
        // A signal ends a read that has a timeout, even if the process then goes on.
        Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
        result => result?,
    };
    if len == 0 {
        return Err(Failure::Other("it closed the connection".into()));
    }
    let received = pipe.receive(&buffer[..len]);
    if received.is_err() {
        // The alert is sent.
        let _ = socket.write_all(&pipe.out);
    }
    Ok(received?)
}
