//! A connected socket: bytes from the outgoing stream go into it, and bytes from it go to their places.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{RecvFlags, Shutdown, recv, shutdown},
};

use super::{
    memory::{self, RANGES},
    receive::{Local, Receiver},
    send::SendQueue,
    stats::TcpStats,
};
use crate::{
    BreakReason, Source,
    net::{RECORD_BYTES, Session},
};

/// The cost of a system call against a poll's budget besides its bytes.
const CALL_COST: usize = 4096;

/// The number of missing bytes from which on a bulk payload is received in place.
const IN_PLACE_BYTES: usize = 4096;

/// The number of bytes behind a payload in place that are received with it. (They are copied once more, and the next
/// payload should not be.)
const BEHIND_BYTES: usize = 2048;

/// The number of bytes that are sealed ahead of the socket.
const SEALED_BYTES: usize = 128 << 10;

/// The data connection of an endpoint.
pub(super) struct Socket {
    socket: OwnedFd,
    /// Whether the socket may take bytes: it is false once the socket has refused some.
    pub(super) writable: bool,
    /// Whether the peer's side has ended, so that the remaining bytes must be read to their end.
    pub(super) ending: bool,
    tls: Option<Box<Tls>>,
}

struct Tls {
    session: Session,
    /// A record's bytes before they are sealed, which must not change meanwhile.
    plain: Box<[u8]>,
    /// Records for the socket, from `head` on.
    sealed: Vec<u8>,
    head: usize,
    /// The beginning of a record.
    incoming: Vec<u8>,
}

/// The reason for which nothing more is received for now.
pub(super) enum Came {
    /// The end of the bytes that are there.
    All,
    /// A stop before the end: there may be more.
    Some,
    /// The end of the stream: nothing ever comes again.
    Ended(String),
}

impl Socket {
    pub(super) fn new(socket: OwnedFd, session: Option<Session>) -> Socket {
        let tls = session.map(|session| {
            let plain = vec![0; RECORD_BYTES].into_boxed_slice();
            Box::new(Tls { session, plain, sealed: Vec::new(), head: 0, incoming: Vec::new() })
        });
        Socket { socket, writable: true, ending: false, tls }
    }

    /// Gives the socket the bytes that it takes, up to `budget`. An error says why it is of no more use.
    pub(super) fn send(
        &mut self,
        send_queue: &mut SendQueue,
        budget: &mut usize,
        stats: &mut TcpStats,
    ) -> Result<(), String> {
        while *budget > 0 && self.writable && !send_queue.is_empty() {
            let Socket { socket, writable, tls, .. } = self;
            let taken = match tls {
                None => {
                    let mut ranges = [Source::Inline(&[]); RANGES];
                    let (count, bytes) = send_queue.next(*budget, &mut ranges);
                    let sent = give(socket.as_fd(), &ranges[..count], bytes, writable, stats)?;
                    send_queue.take(sent);
                    send_queue.all_sent();
                    sent
                }
                Some(tls) => {
                    if tls.head == tls.sealed.len() {
                        tls.seal(send_queue)?;
                    }
                    let rest = &tls.sealed[tls.head..];
                    let sent = give(socket.as_fd(), &[Source::Inline(rest)], rest.len(), writable, stats)?;
                    tls.head += sent;
                    if tls.head == tls.sealed.len() {
                        send_queue.all_sent();
                    }
                    sent
                }
            };
            *budget = budget.saturating_sub(taken + CALL_COST);
        }
        Ok(())
    }

    /// Takes the bytes that have come, up to `budget`. An error breaks the endpoint.
    pub(super) fn receive(
        &mut self,
        receiver: &mut Receiver,
        local: &mut Local<'_>,
        staging: &mut [u8],
        budget: &mut usize,
        stats: &mut TcpStats,
    ) -> Result<Came, BreakReason> {
        while *budget > 0 {
            stats.receive_calls += 1;
            let came = match &mut self.tls {
                None => receive_plain(self.socket.as_fd(), receiver, local, staging, *budget, stats)?,
                Some(tls) => tls.receive(self.socket.as_fd(), receiver, local, staging)?,
            };
            let (came, wanted) = match came {
                Ok((0, _)) => return Ok(Came::Ended("the other side ended it without a word".to_owned())),
                Ok(came) => came,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(Came::All),
                Err(error) => return Ok(Came::Ended(error.to_string())),
            };
            stats.bytes_received += came as u64;
            *budget = budget.saturating_sub(came + CALL_COST);
            // A stream socket that gives less than it was asked for has no more.
            if came < wanted && !self.ending {
                return Ok(Came::All);
            }
        }
        Ok(Came::Some)
    }

    /// Takes bytes that were read together with the handshake.
    pub(super) fn take_early(
        &mut self,
        early: &mut [u8],
        receiver: &mut Receiver,
        local: &mut Local<'_>,
    ) -> Result<(), BreakReason> {
        match &mut self.tls {
            None => receiver.feed(early, local),
            Some(tls) => tls.open(early, receiver, local),
        }
    }

    /// Closes the socket so that sent bytes still go their way. Bytes that have come are discarded: a socket that is
    /// closed with bytes unread takes back the bytes that it has sent.
    pub(super) fn close(self, staging: &mut [u8], mut budget: usize) {
        // Of a socket that is broken there is nothing to be saved.
        if shutdown(&self.socket, Shutdown::Write).is_ok() {
            while let Ok((_, came @ 1..)) = recv(&self.socket, &mut *staging, RecvFlags::DONTWAIT)
                && budget > 0
            {
                budget = budget.saturating_sub(came + CALL_COST);
            }
        }
    }

    /// The time for which the peer's host has not acknowledged bytes on their way, if there are any.
    pub(super) fn silence(&self) -> Option<Duration> {
        // SAFETY: zeros are a valid `tcp_info`.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: the system writes at most `len` bytes to `info`, which has as many.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut len,
            )
        };
        let waits = result == 0 && info.tcpi_unacked > 0;
        waits.then(|| Duration::from_millis(info.tcpi_last_ack_recv.into()))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Gives ranges to a socket, and notes whether it is full then.
fn give(
    socket: BorrowedFd<'_>,
    ranges: &[Source<'_>],
    bytes: usize,
    writable: &mut bool,
    stats: &mut TcpStats,
) -> Result<usize, String> {
    loop {
        stats.send_calls += 1;
        match memory::send(socket, ranges) {
            Ok(sent) => {
                stats.bytes_sent += sent as u64;
                // A socket that takes a part has no room for more, and reports when it has.
                *writable = sent == bytes;
                return Ok(sent);
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                *writable = false;
                return Ok(0);
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// The number of bytes that came and the number that there was room for, or the reason for which none came.
type Received = Result<(usize, usize), Errno>;

fn receive_plain(
    socket: BorrowedFd<'_>,
    receiver: &mut Receiver,
    local: &mut Local<'_>,
    staging: &mut [u8],
    budget: usize,
    stats: &mut TcpStats,
) -> Result<Received, BreakReason> {
    let (result, in_place, wanted) = match receiver.place() {
        Some((region, offset, left)) if left >= IN_PLACE_BYTES => {
            let now = left.min(budget.max(IN_PLACE_BYTES));
            let behind = if now == left { BEHIND_BYTES } else { 0 };
            (memory::receive(socket, (region, offset, now), &mut staging[..behind]), now, now + behind)
        }
        _ => (recv(socket, &mut *staging, RecvFlags::DONTWAIT).map(|(_, came)| came), 0, staging.len()),
    };
    let came = match result {
        Ok(came) => came,
        Err(error) => return Ok(Err(error)),
    };
    let in_place = in_place.min(came);
    if in_place > 0 {
        receiver.placed(in_place, local);
        stats.bytes_in_place += in_place as u64;
    }
    if came > in_place {
        receiver.feed(&staging[..came - in_place], local)?;
    }
    Ok(Ok((came, wanted)))
}

impl Tls {
    /// Seals the bytes that come next.
    fn seal(&mut self, send_queue: &mut SendQueue) -> Result<(), String> {
        self.sealed.clear();
        self.head = 0;
        while self.sealed.len() < SEALED_BYTES {
            let mut ranges = [Source::Inline(&[]); RANGES];
            let (count, bytes) = send_queue.next(SEALED_BYTES - self.sealed.len(), &mut ranges);
            if bytes == 0 {
                break;
            }
            for range in &ranges[..count] {
                memory::read_parts(*range, &mut self.plain, |record| self.session.seal(record, &mut self.sealed))
                    .map_err(|error| error.to_string())?;
            }
            send_queue.take(bytes);
        }
        Ok(())
    }

    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        receiver: &mut Receiver,
        local: &mut Local<'_>,
        staging: &mut [u8],
    ) -> Result<Received, BreakReason> {
        let before = self.incoming.len();
        staging[..before].copy_from_slice(&self.incoming);
        let wanted = staging.len() - before;
        let came = match recv(socket, &mut staging[before..], RecvFlags::DONTWAIT) {
            Ok((_, came)) => came,
            Err(error) => return Ok(Err(error)),
        };
        self.incoming.clear();
        self.open(&mut staging[..before + came], receiver, local)?;
        Ok(Ok((came, wanted)))
    }

    /// Opens whole records, and keeps the rest.
    fn open(&mut self, input: &mut [u8], receiver: &mut Receiver, local: &mut Local<'_>) -> Result<(), BreakReason> {
        let mut result = Ok(());
        let opened = self.session.open(input, &mut |plain| {
            if result.is_ok() {
                result = receiver.feed(plain, local);
            }
        });
        result?;
        let used = opened.map_err(|error| BreakReason::Lost(format!("its encryption is broken: {error}")))?;
        self.incoming.extend_from_slice(&input[used..]);
        Ok(())
    }
}
