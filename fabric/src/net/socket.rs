//! TCP sockets that no thread waits for.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt},
};

use super::{
    config::{NetConfig, NetError},
    pipe::{Pipe, PipeError},
};

/// The number of bytes of one connection that are read before others have their turn.
const TURN_BYTES: usize = 64 << 10;

/// Opens the listeners of a configuration.
pub(super) fn listeners(config: &NetConfig) -> Result<Vec<TcpListener>, NetError> {
    let mut listeners = Vec::new();
    for text in &config.listen {
        let unusable = |cause: io::Error| NetError::ListenAddress { address: text.clone(), cause: cause.to_string() };
        let mut addresses: Vec<SocketAddr> = text.to_socket_addrs().map_err(unusable)?.collect();
        addresses.sort_unstable();
        addresses.dedup();
        let mut failure = None;
        let before = listeners.len();
        for address in addresses {
            if !config.security.permits(address) {
                return Err(NetError::NotLoopback { address });
            }
            match TcpListener::bind(address).and_then(|listener| listener.set_nonblocking(true).map(|()| listener)) {
                Ok(listener) => listeners.push(listener),
                Err(cause) if cause.kind() == ErrorKind::AddrInUse => return Err(NetError::AddressInUse { address }),
                Err(cause) => failure = Some((address, cause)),
            }
        }
        // A name may stand for an address of a family that this host has not.
        if listeners.len() == before {
            let (address, cause) =
                failure.ok_or_else(|| unusable(io::Error::new(ErrorKind::NotFound, "it stands for no address")))?;
            return Err(match cause.kind() {
                ErrorKind::AddrNotAvailable => NetError::NotLocal { address },
                _ => NetError::ListenAddress { address: address.to_string(), cause: cause.to_string() },
            });
        }
    }
    Ok(listeners)
}

/// Begins to connect; the socket becomes writable when that has ended.
pub(super) fn dial(address: SocketAddr) -> Result<TcpStream, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error),
    }
}

/// The outcome of an attempt to connect.
pub(super) fn dialed(socket: &TcpStream) -> Result<(), Errno> {
    sockopt::socket_error(socket)??;
    // Where no process listens, the system may choose the dialed port for the dialer too, and connect the socket with
    // itself.
    if socket.local_addr().is_ok_and(|own| socket.peer_addr().is_ok_and(|peer| peer == own)) {
        return Err(Errno::CONNREFUSED);
    }
    Ok(())
}

/// Sets the time after which sent bytes that the peer's kernel does not acknowledge end the connection.
pub(super) fn limit_silence(socket: &TcpStream, timeout: Duration) {
    let millis = timeout.as_millis().clamp(1, u128::from(u32::MAX)) as u32;
    if let Err(error) = sockopt::set_tcp_user_timeout(socket, millis) {
        tracing::debug!(%error, "TCP_USER_TIMEOUT could not be set");
    }
}

/// A connection's socket, and the pipe that its bytes go through.
pub(super) struct Channel {
    pub(super) socket: TcpStream,
    pub(super) pipe: Pipe,
}

/// The reason for which a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChannelError {
    #[error("it closed the connection")]
    End,
    #[error("{0}")]
    System(#[from] io::Error),
    #[error(transparent)]
    Pipe(#[from] PipeError),
}

impl Channel {
    pub(super) fn new(socket: TcpStream, pipe: Pipe) -> Channel {
        // Without it, small frames wait for the acknowledgement of those before.
        let _ = socket.set_nodelay(true);
        Channel { socket, pipe }
    }

    /// Reads the bytes that have come, up to a limit. Returns whether there were any; reports an end only after all
    /// bytes that came before it.
    pub(super) fn read(&mut self) -> Result<bool, ChannelError> {
        let mut buffer = [0; 16 << 10];
        let mut count = 0;
        while count < TURN_BYTES {
            match self.socket.read(&mut buffer) {
                Ok(0) if count > 0 => break,
                Ok(0) => return Err(ChannelError::End),
                Ok(len) => {
                    count += len;
                    self.pipe.receive(&buffer[..len])?;
                    if len < buffer.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock || count > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(count > 0)
    }

    /// Whether bytes wait for room.
    pub(super) fn is_stuffed(&self) -> bool {
        !self.pipe.out.is_empty()
    }

    /// Sends the bytes that there is room for.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let mut sent = 0;
        let out = &mut self.pipe.out;
        let result = loop {
            if sent == out.len() {
                break Ok(());
            }
            match self.socket.write(&out[sent..]) {
                Ok(len) => sent += len,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        out.drain(..sent);
        result
    }

    /// Sends a frame, as far as there is room.
    pub(super) fn send(&mut self, frame: &[u8]) -> Result<(), ChannelError> {
        self.pipe.send(frame).map_err(PipeError::from)?;
        Ok(self.flush()?)
    }
}
