//! Unix sockets that keep packets apart and carry descriptors, under [names on this host](crate::local_name).

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType, accept_with, listen, recvmsg, sendmsg, socket_with,
        sockopt,
    },
    process::{PidfdFlags, pidfd_open},
    time::Timespec,
};

use super::wire::{EXPOSE_REGIONS, FRAME_BYTES};
use crate::{
    NodeId,
    local_name::{self, HeldName, LocalNameError},
};

/// The number of connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// The kind of the names of nodes' sockets.
const KIND: &str = "squall";

/// The name of a node's socket.
fn name(rendezvous: &str, node: NodeId) -> String {
    format!("{rendezvous}/{}", node.0)
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// A node's socket, and its name.
pub(super) struct Listener {
    socket: OwnedFd,
    _name: HeldName,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Takes the name of a node; fails with [`LocalNameError::Taken`] if another process has it.
pub(super) fn listener(rendezvous: &str, node: NodeId) -> Result<Listener, LocalNameError> {
    let socket = new_socket()?;
    let held = local_name::bind_name(&socket, KIND, &name(rendezvous, node))?;
    listen(&socket, BACKLOG)?;
    Ok(Listener { socket, _name: held })
}

/// Connects to a node, which has not accepted yet.
pub(super) fn dial(rendezvous: &str, node: NodeId) -> Result<OwnedFd, LocalNameError> {
    let socket = new_socket()?;
    local_name::connect_name(&socket, KIND, &name(rendezvous, node))?;
    Ok(socket)
}

/// Whether a node runs as another user.
pub(super) fn is_of_another_user(rendezvous: &str, node: NodeId) -> bool {
    local_name::another_user_has(KIND, &name(rendezvous, node))
}

/// Accepts a connection, if there is one.
pub(super) fn accept(listener: impl AsFd) -> Result<Option<OwnedFd>, Errno> {
    match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The process at the other end, as a descriptor that becomes readable when it is gone. None if the kernel does not
/// tell.
pub(super) fn peer_process(socket: impl AsFd) -> Option<OwnedFd> {
    let peer = sockopt::socket_peercred(socket).ok()?;
    pidfd_open(peer.pid, PidfdFlags::empty()).ok()
}

/// Whether there is something to read from a descriptor, now or within a time.
pub(super) fn is_readable_within(fd: impl AsFd, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            ready => return ready.is_ok_and(|ready| ready > 0),
        }
    }
}

/// Sends a packet; fails with [`Errno::AGAIN`] if the peer has to read first.
pub(super) fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(EXPOSE_REGIONS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// The result of a receive from a socket.
pub(super) enum Packet {
    /// So many bytes are in the buffer, and these descriptors came along.
    Bytes(usize, Vec<OwnedFd>),
    /// A socket to which nothing has come.
    None,
    /// The other end is closed.
    End,
    /// The packet was longer than any frame is.
    TooLong,
    /// Descriptors that came along could not be taken: this process has too many open.
    NoDescriptors,
}

/// Receives a packet.
pub(super) fn recv(socket: impl AsFd, buffer: &mut [u8; FRAME_BYTES]) -> Packet {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(EXPOSE_REGIONS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
        Ok(message) => message,
        Err(Errno::AGAIN | Errno::INTR) => return Packet::None,
        // A peer that ended with packets unread leaves a reset.
        Err(_) => return Packet::End,
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        Packet::NoDescriptors
    } else if message.flags.contains(ReturnFlags::TRUNC) {
        Packet::TooLong
    } else if message.bytes == 0 {
        // No packet is empty.
        Packet::End
    } else {
        Packet::Bytes(message.bytes, fds)
    }
}
