//! Memory that the device can reach.
//!
//! To register memory takes a system call that locks each of its pages. So it is done once: unused memory that this
//! fabric registered is kept, registered, for the next region of its size, up to a limit. Memory of other fabrics is
//! registered when it is first used. Once nothing else holds it, it is let go with the next registration, or the next
//! end of an endpoint.
//!
//! Registered memory serves this node's requests. Peers reach parts of it through windows only: see `window`.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::Arc,
};

use rustix::{
    mm::{Advice, madvise},
    process::{Resource, getrlimit},
};

use super::device::{Mr, Pd};
use crate::{Region, RegionKey, RegionKind, mapping::Mapping, random, sync::Lock};

/// An operator's remedy for a refusal to lock memory, as the rest of a sentence.
pub(super) fn hint(cause: &io::Error) -> String {
    let limit = getrlimit(Resource::Memlock).current;
    match (cause.kind(), limit) {
        (io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock | io::ErrorKind::PermissionDenied, Some(bytes)) => {
            format!(
                " (this process may lock {} KiB of memory, RLIMIT_MEMLOCK: raise it with `ulimit -l unlimited`, or by \
             LimitMEMLOCK= of its service)",
                bytes >> 10
            )
        }
        _ => String::new(),
    }
}

/// Maps memory of zeros, which a child process does not get.
fn map(bytes: usize) -> io::Result<Mapping> {
    let mapping = Mapping::anonymous(bytes)?;
    // After a fork, this process would otherwise write to a copy, and the device to the pages of before.
    // SAFETY: the range is that of the mapping, of which no child has any use.
    unsafe { madvise(mapping.base().as_ptr().cast(), bytes, Advice::LinuxDontFork) }?;
    Ok(mapping)
}

/// Mapped memory that is registered.
struct Block {
    // It is the first field, so that the memory is deregistered before it is unmapped.
    mr: Mr,
    mapping: Mapping,
}

/// Unused blocks, by their size.
#[derive(Default)]
struct FreeBlocks {
    blocks: BTreeMap<usize, Vec<Block>>,
    bytes: usize,
}

/// A fabric's domain, and the memory that it keeps for later.
struct Pool {
    pd: Arc<Pd>,
    limit: usize,
    free: Lock<FreeBlocks>,
}

/// The size up to which blocks are powers of two, and beyond which they are multiples of it.
const COARSE_BYTES: usize = 1 << 20;

fn block_bytes(bytes: usize) -> Option<usize> {
    let pages = bytes.checked_next_multiple_of(rustix::param::page_size())?;
    if pages <= COARSE_BYTES { Some(pages.next_power_of_two()) } else { pages.checked_next_multiple_of(COARSE_BYTES) }
}

impl Pool {
    /// Zeroed memory of at least `bytes`.
    fn take(&self, bytes: usize) -> io::Result<Block> {
        let block_bytes = block_bytes(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let kept = {
            let mut free = self.free.lock();
            let block = free.blocks.get_mut(&block_bytes).and_then(Vec::pop);
            free.bytes -= if block.is_some() { block_bytes } else { 0 };
            block
        };
        if let Some(block) = kept {
            // SAFETY: the mapping is as long, and nothing else has it.
            unsafe { block.mapping.base().as_ptr().write_bytes(0, bytes) };
            return Ok(block);
        }
        let mapping = map(block_bytes)?;
        // SAFETY: the mapping is writable, and is accessed through the region that is made of it.
        let registered = unsafe { Mr::register(&self.pd, mapping.base(), block_bytes) };
        match registered {
            Ok(mr) => Ok(Block { mr, mapping }),
            // Kept memory counts against the limit of locked memory, too.
            Err(error) if self.free.lock().bytes == 0 => Err(error),
            Err(_) => {
                *self.free.lock() = FreeBlocks::default();
                // SAFETY: as above.
                let mr = unsafe { Mr::register(&self.pd, mapping.base(), block_bytes) }?;
                Ok(Block { mr, mapping })
            }
        }
    }

    fn give_back(&self, block: Block) {
        let bytes = block.mapping.bytes();
        let mut free = self.free.lock();
        if free.bytes + bytes <= self.limit {
            free.bytes += bytes;
            free.blocks.entry(bytes).or_default().push(block);
        }
    }
}

/// The owner that keeps a region of this fabric alive.
struct OwnMemory {
    /// The block, until this is dropped.
    block: Option<Block>,
    pool: Arc<Pool>,
}

impl Drop for OwnMemory {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.pool.give_back(block);
        }
    }
}

/// All memory that a fabric's device can reach.
pub(super) struct Memories {
    pool: Arc<Pool>,
    /// Memory of other fabrics, by address and length.
    foreign: HashMap<(usize, usize), Foreign>,
}

struct Foreign {
    mr: Mr,
    /// Keeps the memory in its place.
    region: Region,
}

impl Memories {
    /// Makes a set without memory; at most `limit` bytes are kept for later.
    pub(super) fn new(pd: &Arc<Pd>, limit: usize) -> Memories {
        let pool = Pool { pd: Arc::clone(pd), limit, free: Lock::default() };
        Memories { pool: Arc::new(pool), foreign: HashMap::new() }
    }

    /// Registers new memory.
    pub(super) fn register(&self, kind: RegionKind, bytes: usize) -> io::Result<Region> {
        let key = RegionKey(random::number()?);
        let block = self.pool.take(bytes)?;
        let base = block.mapping.base();
        let memory = OwnMemory { block: Some(block), pool: Arc::clone(&self.pool) };
        // SAFETY: the mapping covers `bytes` rounded up to whole pages, is aligned to a page, and goes back to the pool
        // only when `memory` is dropped. Nothing else in this process uses it.
        Ok(unsafe { Region::from_raw(kind, key, base, bytes, Box::new(memory)) })
    }

    /// The device's name for a region in this node's requests. The region is registered if it was not yet. The name
    /// holds while the caller has the region.
    #[inline]
    pub(super) fn local_key(&mut self, region: &Region) -> io::Result<u32> {
        self.registration(region).map(Mr::local_key)
    }

    /// A region's registration, which is made if there is none yet.
    #[inline]
    pub(super) fn registration<'a>(&'a mut self, region: &'a Region) -> io::Result<&'a Mr> {
        if let Some(memory) = own(&self.pool, region)
            && let Some(block) = &memory.block
        {
            return Ok(&block.mr);
        }
        self.foreign(region)
    }

    fn foreign(&mut self, region: &Region) -> io::Result<&Mr> {
        let place = (region.base().as_ptr().addr(), region.len());
        if !self.foreign.contains_key(&place) {
            self.forget_unused();
            // SAFETY: the region's memory is mapped as long as the clone below lives, and is accessed through regions.
            let mr = unsafe { Mr::register(&self.pool.pd, region.base(), region.len()) }?;
            self.foreign.insert(place, Foreign { mr, region: region.clone() });
        }
        self.foreign.get(&place).map(|foreign| &foreign.mr).ok_or(io::ErrorKind::NotFound.into())
    }

    /// Lets go of memory of other fabrics that nothing else holds.
    pub(super) fn forget_unused(&mut self) {
        self.foreign.retain(|_, foreign| foreign.region.is_shared());
    }
}

/// The memory behind a region, if it is of this pool.
#[inline]
fn own<'a>(pool: &Arc<Pool>, region: &'a Region) -> Option<&'a OwnMemory> {
    region.owner().downcast_ref::<OwnMemory>().filter(|memory| Arc::ptr_eq(&memory.pool, pool))
}
