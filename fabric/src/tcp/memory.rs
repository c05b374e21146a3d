//! Memory of this process, and the bytes of bulk regions as the system takes and gives them.

use rustix::io::Errno;

use crate::{Region, RegionKey, RegionKind, mapping::Mapping, random};

/// The size below which regions come from the allocator: a mapping takes whole pages, and a process has only so many.
const MAPPED_BYTES: usize = 64 << 10;

/// Registers zeroed memory.
pub(super) fn register(kind: RegionKind, bytes: usize) -> Result<Region, Errno> {
    let key = RegionKey(random::number()?);
    if bytes < MAPPED_BYTES {
        return Ok(Region::heap(kind, key, bytes));
    }
    let mapping = Mapping::anonymous(bytes)?;
    // SAFETY: a mapping consists of whole pages, is readable and writable, stays until it is dropped, and nothing else
    // uses it.
    Ok(unsafe { Region::from_raw(kind, key, mapping.base(), bytes, Box::new(mapping)) })
}

/// The bytes of a range of a bulk region, to give to the system.
pub(super) fn bulk(region: &Region, offset: usize, len: usize) -> &[u8] {
    debug_assert_eq!(region.kind(), RegionKind::Bulk);
    let at = region.address(offset, len);
    // SAFETY: the range was checked, and is mapped as long as the region lives. By the rule of bulk regions nothing
    // writes it before the completion of the work that names it, which comes after this.
    unsafe { std::slice::from_raw_parts(at.as_ptr(), len) }
}

/// The bytes of a range of a bulk region, for the system to fill. The caller lets go of them before it refers to the
/// region in another way.
#[expect(clippy::mut_from_ref, reason = "a region is a handle to memory, not the memory")]
pub(super) fn bulk_mut(region: &Region, offset: usize, len: usize) -> &mut [u8] {
    debug_assert_eq!(region.kind(), RegionKind::Bulk);
    let at = region.address(offset, len);
    // SAFETY: the range was checked, and is mapped as long as the region lives. By the rule of bulk regions nothing
    // refers to it before the completion, which comes after this, and only the polling thread places bytes.
    unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), len) }
}
