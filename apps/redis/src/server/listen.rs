//! Listening, with errors that name the option that helps.

use std::{
    io::{self, ErrorKind},
    net::{SocketAddr, TcpListener},
};

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
    /// Any other reason.
    #[error("listening on {0} failed: {1}")]
    Other(SocketAddr, io::Error),
}

/// Begins to listen, even if an earlier replica's connections are not quite over.
pub fn listen(on: SocketAddr) -> Result<TcpListener, ListenError> {
    // On Unix the standard library sets SO_REUSEADDR.
    TcpListener::bind(on).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => ListenError::InUse(on),
        ErrorKind::AddrNotAvailable => ListenError::NoAddress(on),
        ErrorKind::PermissionDenied => ListenError::NotPermitted(on),
        _ => ListenError::Other(on, error),
    })
}
