//! A connection with a node that has said which node it is.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::io::Errno;

use crate::{
    NodeId, RegionKey,
    control::{LinkId, Untaken},
    shm::{
        memory::{Handle, PeerMemory},
        socket,
        wire::Frame,
    },
};

/// The number of regions that a peer may have pulled from at a time.
pub(super) const MAX_SOURCES: usize = 4096;

/// The number of events about such regions that may wait for the polling thread. A peer that keeps the rules waits for
/// its pulls: it gives each region, and then takes it back.
pub(super) const MAX_UNTAKEN: usize = 2 * MAX_SOURCES;

/// The number of regions that a peer may expose to one endpoint.
pub(super) const MAX_EXPOSED: usize = 4096;

/// The number of packets that may wait for a peer that does not read. The link with a stopped node ends at this point.
const MAX_OUTBOX: usize = 65_536;

/// The time that a process may take to end once it has closed its files.
const ENDING: Duration = Duration::from_millis(50);

/// A connection with a node.
pub(super) struct ShmLink {
    pub(super) id: LinkId,
    pub(super) node: NodeId,
    pub(super) incarnation: u64,
    pub(super) socket: OwnedFd,
    /// The peer's process; None if the kernel does not tell.
    process: Option<OwnedFd>,
    /// Packets for which the socket had no room.
    outbox: VecDeque<(Vec<u8>, Vec<Handle>)>,
    /// Regions that have come for an endpoint whose offer, or acceptance, follows; or the reason for which one could
    /// not be mapped.
    pub(super) exposed: BTreeMap<u64, Result<Vec<PeerMemory>, String>>,
    /// The keys of the memory that the peer has its bytes pulled from.
    pub(super) sources: BTreeSet<RegionKey>,
    /// Events about them that the polling thread has not taken.
    pub(super) untaken: Untaken,
    /// Whether the peer has said that it leaves.
    pub(super) goodbye: bool,
    /// The reason for which nothing can be sent any more.
    pub(super) failed: Option<String>,
}

impl ShmLink {
    pub(super) fn new(id: LinkId, node: NodeId, incarnation: u64, socket: OwnedFd) -> ShmLink {
        let process = socket::peer_process(&socket);
        ShmLink {
            id,
            node,
            incarnation,
            socket,
            process,
            outbox: VecDeque::new(),
            exposed: BTreeMap::new(),
            sources: BTreeSet::new(),
            untaken: Untaken::default(),
            goodbye: false,
            failed: None,
        }
    }

    /// Whether the kernel vouches that the peer's process is gone. It is asked only once the peer's socket is closed.
    ///
    /// A process that ends closes its files a moment before it is gone; this waits for that moment.
    pub(super) fn is_process_gone(&self) -> bool {
        self.process.as_ref().is_some_and(|process| socket::is_readable_within(process, ENDING))
    }

    /// Sends a packet, now or when the peer has read others.
    pub(super) fn send(&mut self, frame: &Frame, handles: Vec<Handle>) {
        if self.failed.is_some() {
            return;
        }
        if self.outbox.len() >= MAX_OUTBOX {
            self.failed = Some("it does not read its socket".to_owned());
            return;
        }
        self.outbox.push_back((frame.encode(), handles));
        if self.outbox.len() == 1 {
            self.flush();
        }
    }

    /// Whether packets wait for room.
    pub(super) fn is_stuffed(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Sends the packets that there is room for.
    pub(super) fn flush(&mut self) {
        while let Some((bytes, handles)) = self.outbox.front() {
            let fds: Vec<BorrowedFd<'_>> = handles.iter().map(AsFd::as_fd).collect();
            match socket::send(&self.socket, bytes, &fds) {
                Ok(()) => {
                    self.outbox.pop_front();
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                // The end of the stream tells the same, behind the packets that the peer sent before.
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                    self.outbox.clear();
                    return;
                }
                Err(cause) => {
                    let hint = crate::shm::memory::hint(cause);
                    self.failed = Some(format!("it could not be sent a packet: {cause}{hint}"));
                    self.outbox.clear();
                    return;
                }
            }
        }
    }
}
