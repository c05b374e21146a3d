//! Listening, with errors that name the option that helps.

use std::{
    fs,
    io::{self, ErrorKind},
    net::{SocketAddr, TcpListener},
};

/// The number of connections that wait to be accepted, by default, as in Redis.
pub const BACKLOG: u16 = 511;

/// The file with the most connections that the system lets wait.
const SOMAXCONN: &str = "/proc/sys/net/core/somaxconn";

/// The reason why a replica can't listen. The sentence names the option that helps.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another program listens there.
    #[error(
        "port {} of {} is in use: stop the program that listens there (`ss -ltnp` names it), or choose other ports \
         with --port (a front end's in --listen)",
        .0.port(), .0.ip()
    )]
    InUse(SocketAddr),
    /// The host has no such address.
    #[error("{} is no address of this host: give one that is with --listen", .0.ip())]
    NoAddress(SocketAddr),
    /// The port is reserved.
    #[error(
        "this user may not listen on port {}: choose ports from 1024 on with --port (a front end's in --listen)",
        .0.port()
    )]
    NotPermitted(SocketAddr),
    /// An address off loopback, without a password.
    #[error(
        "listening on {0} is refused, for every process that reaches it could read and write: give a password \
         (--password-file, or SQUALL_REDIS_PASSWORD), or --tls-ca-cert-file, so that clients need a certificate, or \
         --protected-mode no if all who reach this address may"
    )]
    Unprotected(SocketAddr),
    /// Any other reason.
    #[error("listening on {0} failed: {1}")]
    Other(SocketAddr, io::Error),
}

/// Checks that not every process that reaches an address could use the store: that it is a loopback address, or that
/// clients have to prove something (`is_protected`). Fails if not.
pub fn check_protected(on: SocketAddr, is_protected: bool) -> Result<(), ListenError> {
    if is_protected || on.ip().to_canonical().is_loopback() { Ok(()) } else { Err(ListenError::Unprotected(on)) }
}

/// Begins to listen, even if an earlier replica's connections are not quite over. At most `backlog` connections wait to
/// be accepted, and no more than the system permits.
pub fn listen(on: SocketAddr, backlog: u16) -> Result<TcpListener, ListenError> {
    // On Unix the standard library sets SO_REUSEADDR.
    let listener = TcpListener::bind(on).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => ListenError::InUse(on),
        ErrorKind::AddrNotAvailable => ListenError::NoAddress(on),
        ErrorKind::PermissionDenied => ListenError::NotPermitted(on),
        _ => ListenError::Other(on, error),
    })?;
    // The standard library has chosen a number of its own, which a second call replaces.
    rustix::net::listen(&listener, backlog.into()).map_err(|error| ListenError::Other(on, error.into()))?;
    Ok(listener)
}

/// Warns if the system lets fewer connections wait than a server wants.
pub(super) fn warn_of_short_backlog(backlog: u16) {
    let most = fs::read_to_string(SOMAXCONN).ok().and_then(|text| text.trim().parse::<u32>().ok());
    if let Some(most) = most.filter(|&most| most < backlog.into()) {
        tracing::warn!(
            backlog,
            somaxconn = most,
            "the system lets fewer connections wait than --tcp-backlog asks for: sysctl net.core.somaxconn={backlog} helps"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, TcpStream},
        time::Duration,
    };

    use super::*;

    #[test]
    fn who_listens_off_loopback_needs_a_password() {
        for (address, is_loopback) in [
            ("127.0.0.1:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
        ] {
            let address = address.parse().expect("it is an address");
            assert_eq!(check_protected(address, false).is_ok(), is_loopback, "{address}");
            assert!(check_protected(address, true).is_ok());
        }
    }

    #[test]
    fn as_many_connections_wait_as_were_asked_for() {
        let most = fs::read_to_string(SOMAXCONN).ok().and_then(|text| text.trim().parse::<usize>().ok());
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into(), 400).expect("some port is free");
        let address = listener.local_addr().expect("it listens");
        let connect = |_| TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok();
        // Nobody accepts them. Linux lets one more wait.
        let waiting: Vec<_> = (0..402).map_while(connect).collect();
        assert_eq!(waiting.len(), 401.min(most.map_or(401, |most| most + 1)));
    }
}
