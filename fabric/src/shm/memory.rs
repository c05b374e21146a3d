//! Anonymous files that hold shared memory, and their mappings.
//!
//! A file's size is sealed before its descriptor goes to a peer, and a peer's file is mapped only if it is sealed:
//! mapped memory can't shrink, so no peer can make an access fault. Bulk memory is sealed against new writable mappings
//! as well, so the kernel itself vouches that no peer ever writes it (G6).

use std::{
    ops::Deref,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create},
    io::Errno,
    mm::ProtFlags,
};

use super::{
    control::{Command, Control},
    copy::{End, EndKind, UNCACHED_BYTES},
};
use crate::{Region, RegionKey, RegionKind, RemoteRegion, control::LinkId, mapping::Mapping, random, sync::Lock};

/// An operator's remedy for a refusal of the system, as the rest of a sentence.
pub(super) fn hint(cause: Errno) -> &'static str {
    match cause {
        Errno::MFILE => " (raise this process's limit of open files: `ulimit -n`)",
        Errno::NFILE => " (raise the host's limit of open files: `sysctl fs.file-max`)",
        Errno::NOMEM => " (free memory, or raise the limit of mappings: `sysctl vm.max_map_count`)",
        Errno::NOSYS | Errno::INVAL => " (Linux 5.1 or later is needed)",
        Errno::TOOMANYREFS => " (too many descriptors are on their way: raise `ulimit -n`)",
        _ => "",
    }
}

/// The use that a mapping permits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    ReadOnly,
    ReadWrite,
}

impl Access {
    /// The use that peers make of a region: they write polled memory alone, by their mapping.
    pub(super) fn of_peers(kind: RegionKind) -> Access {
        match kind {
            RegionKind::Polled => Access::ReadWrite,
            RegionKind::Bulk | RegionKind::Lent | RegionKind::Phantom => Access::ReadOnly,
        }
    }
}

fn map(fd: impl AsFd, bytes: usize, access: Access) -> Result<Mapping, Errno> {
    let prot = match access {
        Access::ReadOnly => ProtFlags::READ,
        Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
    };
    Mapping::shared(fd, bytes, prot)
}

/// Rounds up to whole pages.
pub(super) fn whole_pages(bytes: usize) -> Result<usize, Errno> {
    bytes.checked_next_multiple_of(rustix::param::page_size()).ok_or(Errno::FBIG)
}

/// New zeroed shared memory of at least `bytes`; `peers` says how peers may map it.
pub(super) fn create(name: &str, bytes: usize, peers: Access) -> Result<(OwnedFd, Mapping), Errno> {
    let bytes = whole_pages(bytes)?;
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, bytes as u64)?;
    let mapping = map(&fd, bytes, Access::ReadWrite)?;
    let more = match peers {
        // The mapping above stays writable, no other can be; and its owner may seal it against that one, too.
        Access::ReadOnly => SealFlags::FUTURE_WRITE,
        Access::ReadWrite => SealFlags::SEAL,
    };
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | more)?;
    Ok((fd, mapping))
}

/// The reason for which a peer's memory was not mapped.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForeignError {
    #[error("it handed over memory whose size is not sealed")]
    Unsealed,
    #[error("it shared memory that can still be written")]
    Writable,
    #[error("it announced {announced} bytes of memory and handed over {actual}")]
    Size { announced: u64, actual: u64 },
    #[error("its memory of {bytes} bytes could not be mapped: {cause}{}", hint(*cause))]
    System { bytes: u64, cause: Errno },
}

/// Maps `bytes` of memory that a peer handed over, after a check of its true size and seals.
pub(super) fn map_foreign(fd: BorrowedFd<'_>, bytes: u64, access: Access) -> Result<Mapping, ForeignError> {
    let (pages, _) = check_foreign(fd, bytes)?;
    map(fd, pages, access).map_err(|cause| ForeignError::System { bytes, cause })
}

/// Checks memory of `bytes` that a peer handed over. Returns the number of bytes to map, and its seals.
pub(super) fn check_foreign(fd: BorrowedFd<'_>, bytes: u64) -> Result<(usize, SealFlags), ForeignError> {
    let system = |cause| ForeignError::System { bytes, cause };
    // A descriptor of no such file has no seals either.
    let seals = fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Err(ForeignError::Unsealed);
    }
    let actual = fstat(fd).map_err(system)?.st_size as u64;
    let pages = usize::try_from(bytes).map_err(|_| system(Errno::FBIG)).and_then(|b| whole_pages(b).map_err(system))?;
    if bytes == 0 || actual < pages as u64 {
        return Err(ForeignError::Size { announced: bytes, actual });
    }
    Ok((pages, seals))
}

/// Memory that a fabric registered: the owner that keeps a [`Region`] of it alive.
pub(super) struct OwnMemory {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) describe: RemoteRegion,
    /// The fabric that it was registered with.
    pub(super) incarnation: u64,
    control: Control,
    /// The links over which it was handed out as a source of pulls, to be taken back when it goes.
    lent: Lock<Vec<LinkId>>,
    mapping: Mapping,
}

impl OwnMemory {
    /// Registers memory.
    pub(super) fn register(
        kind: RegionKind,
        bytes: usize,
        incarnation: u64,
        control: &Control,
    ) -> Result<Region, Errno> {
        let key = RegionKey(random::number()?);
        let (fd, mapping) = create("squall-region", bytes, Access::of_peers(kind))?;
        let memory = OwnMemory {
            fd: Arc::new(fd),
            describe: RemoteRegion { key, kind, bytes },
            incarnation,
            control: control.clone(),
            lent: Lock::default(),
            mapping,
        };
        Ok(OwnMemory::region(Arc::new(memory)))
    }

    /// The region over memory that has no region.
    pub(super) fn region(memory: Arc<OwnMemory>) -> Region {
        let (RemoteRegion { key, kind, bytes }, base) = (memory.describe, memory.mapping.base());
        // SAFETY: the mapping covers `bytes` rounded up to whole pages, is aligned to a page, and lives as long as
        // `memory`. Nothing else in this process uses it.
        unsafe { Region::from_raw(kind, key, base, bytes, Box::new(memory)) }
    }

    /// The memory behind a region of a fabric, if nothing else holds it.
    pub(super) fn reclaim(region: Region) -> Result<OwnMemory, Region> {
        let (describe, base) = (region.describe(), region.base());
        match region.into_owner()?.downcast::<Arc<OwnMemory>>() {
            Ok(memory) => Arc::try_unwrap(*memory).map_err(OwnMemory::region),
            // SAFETY: the region was over this memory a moment ago.
            Err(owner) => Err(unsafe { Region::from_raw(describe.kind, describe.key, base, describe.bytes, owner) }),
        }
    }

    /// The memory behind a region of this fabric.
    pub(super) fn of(region: &Region, incarnation: u64) -> Option<&Arc<OwnMemory>> {
        region.owner().downcast_ref::<Arc<OwnMemory>>().filter(|memory| memory.incarnation == incarnation)
    }

    /// Notes that the peer behind a link may pull from it. Returns whether that is new.
    pub(super) fn lend(&self, link: LinkId) -> bool {
        let mut lent = self.lent.lock();
        let new = !lent.contains(&link);
        if new {
            lent.push(link);
        }
        new
    }
}

impl Drop for OwnMemory {
    fn drop(&mut self) {
        let links = std::mem::take(&mut *self.lent.lock());
        if !links.is_empty() {
            self.control.send([Command::Forget { key: self.describe.key, links }]);
        }
    }
}

/// Memory of a peer, mapped here.
#[derive(Debug)]
pub(super) struct PeerMemory {
    pub(super) describe: RemoteRegion,
    mapping: Mapping,
}

impl PeerMemory {
    /// Maps memory that a peer handed over, as its kind and use permit.
    pub(super) fn map(fd: BorrowedFd<'_>, describe: RemoteRegion, access: Access) -> Result<PeerMemory, ForeignError> {
        let mapping = map_foreign(fd, describe.bytes as u64, access)?;
        Ok(PeerMemory { describe, mapping })
    }

    /// The place at `offset`, as an end of a copy. (Of memory that is mapped read-only, as its source.)
    #[inline]
    pub(super) fn end(&self, offset: usize) -> End {
        assert!(offset <= self.describe.bytes);
        // SAFETY: the offset lies inside the mapping, which holds at least the described bytes.
        let at = unsafe { self.mapping.base().as_ptr().add(offset) };
        end_at(at, self.describe.kind, self.describe.bytes)
    }
}

/// The place at `offset` of a local region, as an end of a copy.
#[inline]
pub(super) fn local_end(region: &Region, offset: usize) -> End {
    assert!(offset <= region.len());
    // SAFETY: the offset lies inside the region.
    let at = unsafe { region.base().as_ptr().add(offset) };
    end_at(at, region.kind(), region.len())
}

/// A place in memory of that kind and size.
#[inline]
fn end_at(at: *mut u8, kind: RegionKind, bytes: usize) -> End {
    let kind = match kind {
        RegionKind::Polled => EndKind::Polled,
        RegionKind::Bulk | RegionKind::Lent | RegionKind::Phantom => {
            EndKind::Bulk { uncached: bytes >= UNCACHED_BYTES }
        }
    };
    End { at, kind }
}

/// A descriptor that is passed to a peer, with the owner that keeps it open.
#[derive(Clone)]
pub(super) enum Handle {
    Memory(Arc<OwnMemory>),
    Plain(Arc<OwnedFd>),
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Handle::Memory(memory) => memory.fd.as_fd(),
            Handle::Plain(fd) => fd.deref().as_fd(),
        }
    }
}
