//! Copy-on-write sharing: receivers take the pages of one copy, in place of copies of their own.
//!
//! Memory is *sealed*: no mapping of it may be written, none ever will be, and the kernel vouches for that to any
//! process that is handed it. A receiver maps it privately, so that its writes are its own: the kernel copies a page
//! when the holder first writes it. So no process, stopped or not, can change the memory that the application holds
//! (G6), and it outlives the peer.
//!
//! # Cost and benefit
//!
//! Sharing moves no bytes. It costs the sender the sealing, once, and each holder a page fault for each page that it
//! writes and for each few that it reads (the kernel maps neighbours along). So it pays where holders touch little of a
//! message, or hand it on, and saves memory where they read it all. Measured for 256 MiB and one receiver on a virtual
//! machine, where faults are dear (`figures::sharing_beside_copying` of the crate's test `shm`):
//!
//! | the holder's use | copied | shared | page faults |
//! |---|---|---|---|
//! | nothing | 16.6 ms | 0.06 ms | 0 |
//! | reads all | 21 ms | 55 ms | 4096 |
//! | writes all | 26 ms | 181 ms | 65,536 |
//!
//! Sealing took another 23 ms.

use std::{
    ops::{Deref, DerefMut},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{SealFlags, fcntl_add_seals},
    io::Errno,
};

use super::{
    ShmFabric,
    control::{Command, Control},
    memory::{self, ForeignError, OwnMemory, hint},
};
use crate::{EndpointId, PostError, Region, RegionKey, RegionKind, Token, control::LinkId, mapping::Mapping};

/// A message's bytes that no process can change any more, ready to be shared.
#[derive(derive_more::Debug)]
#[debug("SealedMemory({} bytes)", view.len)]
pub struct SealedMemory {
    fd: Arc<OwnedFd>,
    view: SharedCopy,
}

/// A private copy of sealed memory, whose pages are shared as long as this process has not written them.
///
/// The kernel vouches that no process can write shared pages: each page that is written here becomes this process's own
/// first, at the price of a page fault. Reading costs a fault for each few pages. For a message that is read or written
/// as a whole, a send is the faster way.
///
/// The copy stays as it is whatever becomes of the peer, the endpoint and the fabric.
#[derive(derive_more::Debug)]
#[debug("SharedCopy({len} bytes)")]
pub struct SharedCopy {
    mapping: Mapping,
    len: usize,
}

/// The reason for which memory was not sealed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The region can't be sealed as it is. Nothing has changed.
    #[error("{} bytes of memory can't be sealed: {why}", region.len())]
    Unsuitable {
        /// The region, as it was.
        region: Region,
        /// The reason, with the remedy.
        why: &'static str,
    },
    /// The system had no room for another mapping. Nothing has changed.
    #[error("{} bytes of memory could not be mapped to seal them: {cause}{}", region.len(), hint(*cause))]
    Unmapped {
        /// The region, as it was.
        region: Region,
        /// The system's error.
        cause: Errno,
    },
    /// The system did not seal the memory: it is still mapped somewhere, or its pages are pinned. Send the bytes
    /// instead.
    #[error("the system did not seal {} bytes of memory: {cause}; send them from another region", bytes.len())]
    Refused {
        /// The region's bytes. The region itself is no more.
        bytes: SharedCopy,
        /// The system's error.
        cause: Errno,
    },
}

impl ShmFabric {
    /// Seals a bulk region, so that it can be [shared](ShmFabric::share).
    ///
    /// `region` is the only handle to it: no endpoint exposes it, and sends from it are complete. If this process is
    /// still about to tell a peer of it, the call returns it in the error, for another try after a poll. Before Linux
    /// 6.7, the system refuses if a peer still has it mapped since it pulled from it.
    pub fn seal(&mut self, region: Region) -> Result<SealedMemory, SealError> {
        let unsuitable = |region, why| Err(SealError::Unsuitable { region, why });
        if region.kind() != RegionKind::Bulk || OwnMemory::of(&region, self.core.incarnation).is_none() {
            return unsuitable(region, "it is no bulk region of this fabric; register one");
        }
        let memory = match OwnMemory::reclaim(region) {
            Ok(memory) => memory,
            Err(region) => return unsuitable(region, "it is in use; drop its other handles, and let sends complete"),
        };
        // The view comes before the writable mapping goes: no other can be had again.
        let view = match SharedCopy::map(memory.fd.as_fd(), memory.describe.bytes) {
            Ok(view) => view,
            Err(cause) => return Err(SealError::Unmapped { region: OwnMemory::region(Arc::new(memory)), cause }),
        };
        let fd = Arc::clone(&memory.fd);
        drop(memory);
        match fcntl_add_seals(&fd, SealFlags::WRITE) {
            Ok(()) => Ok(SealedMemory { fd, view }),
            Err(cause) => Err(SealError::Refused { bytes: view, cause }),
        }
    }

    /// Gives sealed memory to the peer, in place of a send.
    ///
    /// It consumes the receive that the peer posted first, whose buffer stays as it is. It is ordered and reported as a
    /// send of no bytes. The peer takes the memory by [`take_shared`](ShmFabric::take_shared). The [module](super)
    /// states the number that a peer may hold at a time.
    ///
    /// Fails if the endpoint is broken or has no room for another post, or if the fabric reserves the token.
    pub fn share(
        &mut self,
        on: EndpointId,
        memory: &SealedMemory,
        imm: Option<u32>,
        token: Token,
    ) -> Result<(), PostError> {
        let (fd, bytes) = (Arc::clone(&memory.fd), memory.len());
        self.post_share(on, |key, control| Share { key, bytes, fd, control }, imm, token)
    }

    /// Takes the memory that a peer has shared.
    ///
    /// That is possible after the [`Received`](crate::Completion::Received) of the receive that it consumed, and before
    /// the next poll: a share that is not taken then is let go.
    ///
    /// Returns none if nothing was shared there: the peer sent instead. Receives of one token give theirs in order.
    pub fn take_shared(&mut self, on: EndpointId, recv: Token) -> Option<SharedCopy> {
        let shared = &mut self.core.shared;
        let at = shared.iter().position(|(endpoint, token, _)| (*endpoint, *token) == (on, recv))?;
        // Several receives may have one token, so their order is kept.
        Some(shared.remove(at).2)
    }
}

/// Sealed memory on its way to one peer.
pub(super) struct Share {
    /// The name of this very share.
    pub(super) key: RegionKey,
    pub(super) bytes: usize,
    fd: Arc<OwnedFd>,
    control: Control,
}

impl Share {
    /// Hands it to the peer behind a link, which may then be told of it.
    pub(super) fn lend(&self, link: LinkId) -> Lease {
        let fd = Arc::clone(&self.fd);
        // It does not wait for the next poll's commands: its `Forget`, if the endpoint breaks, must come after it.
        self.control.send([Command::Share { link, key: self.key, bytes: self.bytes, fd }]);
        Lease { key: self.key, link, control: self.control.clone() }
    }
}

/// A share that a peer has been handed, until it is complete.
pub(super) struct Lease {
    key: RegionKey,
    link: LinkId,
    control: Control,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.control.send([Command::Forget { key: self.key, links: vec![self.link] }]);
    }
}

impl SealedMemory {
    /// A copy for this process, to hold and write as any receiver does. Fails if the system can't map the memory.
    pub fn to_copy(&self) -> Result<SharedCopy, Errno> {
        SharedCopy::map(self.fd.as_fd(), self.len())
    }
}

impl SharedCopy {
    /// Maps memory of this process that is not written any more.
    fn map(fd: BorrowedFd<'_>, len: usize) -> Result<SharedCopy, Errno> {
        Ok(SharedCopy { mapping: Mapping::private(fd, memory::whole_pages(len)?)?, len })
    }

    /// Maps memory that a peer handed over, if the kernel vouches that it is never written.
    pub(super) fn map_foreign(fd: BorrowedFd<'_>, bytes: u64) -> Result<SharedCopy, ForeignError> {
        let (pages, seals) = memory::check_foreign(fd, bytes)?;
        if !seals.contains(SealFlags::WRITE) {
            return Err(ForeignError::Writable);
        }
        let mapping = Mapping::private(fd, pages).map_err(|cause| ForeignError::System { bytes, cause })?;
        Ok(SharedCopy { mapping, len: bytes as usize })
    }
}

impl Deref for SharedCopy {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping holds `len` bytes and goes with `self`. It is private, of a file that can't shrink, and
        // that is sealed against writing, or (if that was refused) has lost the only writable mapping it can ever have:
        // the memory behind it changes through `self` alone.
        unsafe { std::slice::from_raw_parts(self.mapping.base().as_ptr(), self.len) }
    }
}

impl DerefMut for SharedCopy {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the mapping may be written, and `self` is borrowed for that alone.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base().as_ptr(), self.len) }
    }
}

impl Deref for SealedMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.view
    }
}
