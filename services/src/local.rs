//! Names on this host: sockets of the abstract namespace, which vanish with their process. Only processes of the same
//! user are admitted.

use std::{
    io,
    os::{
        fd::OwnedFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown, socket_with,
        sockopt::socket_peercred,
    },
    process::geteuid,
};

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

/// Returns the whole name: `KIND/USER/NAME`.
fn full(kind: &str, name: &str) -> String {
    format!("{kind}/{}/{name}", geteuid().as_raw())
}

fn is_same_user(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| peer.uid == geteuid())
}

/// Tells whether the process at the other end is in this one's mount namespace.
pub(super) fn shares_mounts(stream: &UnixStream) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let peer = socket_peercred(stream).ok().and_then(|peer| namespace(&peer.pid.as_raw_nonzero().to_string()));
    peer.is_some() && peer == namespace("self")
}

/// Connects to the process that has a name. It does not wait: a process that has stopped accepting is an error.
pub fn dial(kind: &str, name: &str) -> Result<UnixStream, LocalError> {
    let connected = || -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(full(kind, name).as_bytes())?)?;
        Ok(socket)
    };
    let stream = UnixStream::from(connected().map_err(|error| match error {
        Errno::CONNREFUSED | Errno::NOENT => LocalError::Absent,
        error => LocalError::System(error.into()),
    })?);
    stream.set_nonblocking(false).map_err(LocalError::System)?;
    if !is_same_user(&stream) {
        return Err(LocalError::OtherUser);
    }
    Ok(stream)
}

/// Tells whether a process of another user has a name. Each user has names of its own, so it can't be called.
pub fn another_has(kind: &str, name: &str) -> bool {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let is_it = |line: &str| {
        let full = line.split_whitespace().next_back().and_then(|path| path.strip_prefix('@'));
        let user =
            full.and_then(|full| full.strip_prefix(kind)?.strip_prefix('/')?.strip_suffix(name)?.strip_suffix('/'));
        user.is_some_and(|user| user.parse::<u32>().is_ok_and(|user| user != geteuid().as_raw()))
    };
    sockets.lines().any(is_it)
}

/// A name to which other processes can connect.
#[derive(Debug)]
pub struct LocalListener {
    socket: UnixListener,
    is_closed: AtomicBool,
}

impl LocalListener {
    /// Takes a name. Fails with [`LocalError::Taken`] if another process has it.
    pub fn bind(kind: &str, name: &str) -> Result<LocalListener, LocalError> {
        let address = SocketAddr::from_abstract_name(full(kind, name)).map_err(LocalError::System)?;
        let socket = UnixListener::bind_addr(&address).map_err(|cause| match cause.kind() {
            io::ErrorKind::AddrInUse => LocalError::Taken,
            _ => LocalError::System(cause),
        })?;
        Ok(LocalListener { socket, is_closed: AtomicBool::new(false) })
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

    #[test]
    fn a_name_that_another_user_has_is_told_from_one_that_nobody_has() {
        let name = format!("test-{}", std::process::id());
        assert!(!another_has("squall-test", &name));
        let other = geteuid().as_raw() + 1;
        let address = SocketAddr::from_abstract_name(format!("squall-test/{other}/{name}")).unwrap();
        let _listener = UnixListener::bind_addr(&address).unwrap();
        assert!(another_has("squall-test", &name) && !another_has("squall-test", &name[1..]));
        let _own = LocalListener::bind("squall-test", &name[1..]).unwrap();
        assert!(!another_has("squall-test", &name[1..]), "it is this user's");
        assert!(matches!(dial("squall-test", &name), Err(LocalError::Absent)));
    }
}
