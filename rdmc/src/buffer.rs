//! Memory for messages.

use std::{
    ops::{Deref, DerefMut},
    slice,
};

use squall_fabric::{Fabric, Region, RegionKind, RegisterError, Slice};

/// Exclusive memory for one message: a range of a bulk region.
///
/// Only an endpoint for which a group has posted a receive into it ever writes it, and the group owns it then. It comes
/// back from a group when all such receives are complete, or their endpoints closed (G3, G6). So its owner has ordinary
/// memory.
///
/// A phantom buffer, for the simulator, has a capacity and no bytes.
#[derive(derive_more::Debug)]
#[debug("Buffer({len} bytes at {offset} of {region:?})")]
pub struct Buffer {
    region: Region,
    offset: usize,
    len: usize,
}

impl Buffer {
    /// Registers memory of `bytes`; none is enough for an empty message. Fails if the fabric can't register so much.
    pub fn register(fabric: &mut impl Fabric, bytes: usize) -> Result<Buffer, RegisterError> {
        Buffer::of_kind(fabric, RegionKind::Bulk, bytes)
    }

    /// Registers a size without bytes. Only the simulator moves such a message. Fails if the fabric has no such
    /// regions.
    pub fn phantom(fabric: &mut impl Fabric, bytes: usize) -> Result<Buffer, RegisterError> {
        Buffer::of_kind(fabric, RegionKind::Phantom, bytes)
    }

    fn of_kind(fabric: &mut impl Fabric, kind: RegionKind, bytes: usize) -> Result<Buffer, RegisterError> {
        // A region has a size, and receives lie in one.
        let region = fabric.register(kind, bytes.max(1))?;
        Ok(Buffer { region, offset: 0, len: bytes })
    }

    /// A range of a bulk region.
    ///
    /// # Safety
    ///
    /// Until the buffer is dropped, nothing but this buffer uses the range: no code reads or writes it through the
    /// region or another buffer, no endpoint exposes it, and no receive is posted into it.
    ///
    /// # Panics
    ///
    /// If the range lies outside the region, or the region is polled.
    pub unsafe fn part(region: Region, offset: usize, len: usize) -> Buffer {
        assert_ne!(region.kind(), RegionKind::Polled, "messages lie in bulk memory");
        region.address(offset, len);
        Buffer { region, offset, len }
    }

    /// The buffer's size in bytes. (The slice that it derefs to is as long, except that a phantom's is empty.)
    pub fn capacity(&self) -> usize {
        self.len
    }

    /// A range of the buffer, to be posted.
    pub(crate) fn slice(&self, offset: usize, len: usize) -> Slice<'_> {
        assert!(offset <= self.len && len <= self.len - offset, "{len} bytes at {offset} of a buffer of {}", self.len);
        Slice { region: &self.region, offset: self.offset + offset, len }
    }

    /// Copies a block from other memory, or from another place in the same memory.
    pub(crate) fn copy_from(&self, from: &Buffer, from_offset: usize, offset: usize, len: usize) {
        let (from, to) = (from.slice(from_offset, len), self.slice(offset, len));
        from.region.copy_bulk(from.offset, to.region, to.offset, len);
    }

    fn bytes(&self) -> usize {
        if self.region.kind() == RegionKind::Phantom { 0 } else { self.len }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let base = self.region.address(self.offset, self.len);
        // SAFETY: the range lies in the region, whose memory is initialised and lives as long as `self.region`. Nothing
        // writes it: only this buffer has it (`part`, or by the promise of a `Fabric` a region of its own), and a group
        // that lets an endpoint write it shows it to no other code meanwhile.
        unsafe { slice::from_raw_parts(base.as_ptr(), self.bytes()) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let base = self.region.address(self.offset, self.len);
        // SAFETY: as above, and `self` is borrowed exclusively, so that no group has it.
        unsafe { slice::from_raw_parts_mut(base.as_ptr(), self.bytes()) }
    }
}
