//! Streams of this host, under [names](squall_fabric::local_name). Only processes of the same user are admitted.

use std::{
    io,
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, listen, shutdown, socket_with, sockopt::socket_peercred,
};
pub use squall_fabric::local_name::another_user_has;
use squall_fabric::local_name::{HeldName, LocalNameError, bind_name, connect_name, is_same_user};

/// The number of streams that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A reason for which a name can't be used.
#[derive(Debug)]
pub enum LocalError {
    /// A name that no process has.
    Absent,
    /// A name that another process has.
    Taken,
    /// A name that another user has.
    OtherUser,
    /// The system refused.
    System(io::Error),
}

impl From<LocalNameError> for LocalError {
    fn from(error: LocalNameError) -> LocalError {
        match error {
            LocalNameError::Absent => LocalError::Absent,
            LocalNameError::Taken => LocalError::Taken,
            LocalNameError::Directory(error) => LocalError::System(io::Error::other(error)),
            LocalNameError::System(cause) => LocalError::System(cause.into()),
        }
    }
}

fn new_socket(flags: SocketFlags) -> Result<OwnedFd, LocalNameError> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags | SocketFlags::CLOEXEC, None)?)
}

/// Tells whether the process at the other end is in this one's mount namespace.
pub(super) fn shares_mounts(stream: &UnixStream) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let peer = socket_peercred(stream).ok().and_then(|peer| namespace(&peer.pid.as_raw_nonzero().to_string()));
    peer.is_some() && peer == namespace("self")
}

/// Connects to the process that has a name. It does not wait: a process that has stopped accepting is an error.
pub fn dial(kind: &str, name: &str) -> Result<UnixStream, LocalError> {
    let socket = new_socket(SocketFlags::NONBLOCK)?;
    connect_name(&socket, kind, name)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false).map_err(LocalError::System)?;
    if !is_same_user(&stream) {
        return Err(LocalError::OtherUser);
    }
    Ok(stream)
}

/// A name to which other processes can connect.
#[derive(Debug)]
pub struct LocalListener {
    socket: UnixListener,
    is_closed: AtomicBool,
    _name: HeldName,
}

impl LocalListener {
    /// Takes a name. Fails with [`LocalError::Taken`] if another process has it.
    pub fn bind(kind: &str, name: &str) -> Result<LocalListener, LocalError> {
        let socket = new_socket(SocketFlags::empty())?;
        let held = bind_name(&socket, kind, name)?;
        listen(&socket, BACKLOG).map_err(LocalNameError::from)?;
        Ok(LocalListener { socket: UnixListener::from(socket), is_closed: AtomicBool::new(false), _name: held })
    }

    /// Ends the thread that waits in [`accept`](LocalListener::accept).
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        // The socket may be shut down already.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Waits for the next process of the same user; the connections of other users are closed. Returns None once the
    /// listener is closed.
    pub fn accept(&self) -> Option<UnixStream> {
        loop {
            match self.socket.accept() {
                Ok((stream, _)) if is_same_user(&stream) => return Some(stream),
                Ok(_) => tracing::warn!("a process of another user was refused"),
                // Without descriptors the error is another than that the socket is shut down.
                Err(_) if self.is_closed.load(Ordering::SeqCst) => return None,
                Err(error) => {
                    // The process is probably out of descriptors: it can only wait until other streams end.
                    tracing::warn!(%error, "a call could not be taken");
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_shares_its_own_mounts() {
        let (here, _there) = UnixStream::pair().unwrap();
        assert!(shares_mounts(&here));
    }
}
