//! Mapped memory.

use std::{
    os::fd::AsFd,
    ptr::{self, NonNull},
};

use rustix::{
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap},
};

/// Mapped memory, unmapped when this is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is memory of the process, not of a thread; this type gives out raw pointers only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of this process alone.
    pub(crate) fn anonymous(bytes: usize) -> Result<Mapping, Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        Mapping::at(unsafe { mmap_anonymous(ptr::null_mut(), bytes, prot, MapFlags::PRIVATE) }?.cast(), bytes)
    }

    /// A file's memory.
    pub(crate) fn shared(fd: impl AsFd, bytes: usize, prot: ProtFlags) -> Result<Mapping, Errno> {
        // SAFETY: as above.
        Mapping::at(unsafe { mmap(ptr::null_mut(), bytes, prot, MapFlags::SHARED, fd, 0) }?.cast(), bytes)
    }

    /// A file's memory, whose pages become this process's own when they are written.
    pub(crate) fn private(fd: impl AsFd, bytes: usize) -> Result<Mapping, Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        Mapping::at(unsafe { mmap(ptr::null_mut(), bytes, prot, MapFlags::PRIVATE, fd, 0) }?.cast(), bytes)
    }

    fn at(base: *mut u8, bytes: usize) -> Result<Mapping, Errno> {
        Ok(Mapping { base: NonNull::new(base).ok_or(Errno::NOMEM)?, bytes })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The number of bytes that were asked for.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is that of the mapping, and any user of it keeps this value.
        if let Err(error) = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) } {
            tracing::error!(%error, bytes = self.bytes, "memory could not be unmapped");
        }
    }
}
