//! The dialing of a node's services, without a fabric.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    time::{Duration, Instant},
};

use super::{
    access::CallerAccess,
    config::{MAX_TIMEOUT, NetConfig, NetError, Security, UNPROTECTED, check_cluster, check_identity},
    handshake::Handshake,
    pipe::{Pipe, PipeError},
    service::{ServiceId, ServiceStream},
    tls::TlsError,
    verifier::Wanted,
    wire::{GREETING_BYTES, Greeting, Hello, HelloRest, Refusal, Service},
};
use crate::{NodeId, control::mismatch, random};

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
    /// The node has as many streams of the service as it takes, or as many of this caller as one may have.
    #[error("{address} has no room for one more stream of {service}: close some, or try again later")]
    Busy {
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
            Err(Failure::Busy) => return Err(DialError::Busy { address: *address, service: dial.service }),
            Err(Failure::Other(cause)) => causes.push(format!("{address}: {cause}")),
        }
    }
    Err(DialError::Unreachable { service: dial.service, causes })
}

enum Failure {
    Refused(String),
    Denied,
    NoService,
    Busy,
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
                    let stream = ServiceStream::new((from, access), socket, tls, early, None)?;
                    stream.end_with_certificate(dial.security);
                    return Ok(stream);
                }
                Greeting::Refuse { version, why, cluster } => {
                    let whom = format!("the node at {address}");
                    let other =
                        || format!("{whom} refuses the connection, for a reason that does not apply to this call");
                    return Err(match why {
                        Refusal::NoService => Failure::NoService,
                        Refusal::Busy => Failure::Busy,
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
    let wanted = match dial.service.is_of_members() {
        true => dial.peer.map_or(Wanted::AnyMember, Wanted::Member),
        false => dial.peer.map_or(Wanted::AnyNode, Wanted::Node),
    };
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
