//! A bounded number of buffers, which bounds the memory of a transfer and holds up a thread that is too fast.

use std::sync::Arc;

use squall_fabric::{Fabric, RegisterError};
use squall_rdmc::Buffer;

/// A pool of buffers of one size.
#[derive(Debug)]
pub(crate) struct Pool {
    bytes: usize,
    limit: usize,
    /// The number of buffers that exist, here or elsewhere.
    exist: usize,
    free: Vec<Buffer>,
    /// Buffers that one thread has given back, while others may still read them.
    shared: Vec<Arc<Buffer>>,
}

impl Pool {
    /// Makes a pool of at most `limit` buffers of `bytes` bytes.
    pub(crate) fn new(bytes: usize, limit: usize) -> Pool {
        Pool { bytes, limit, exist: 0, free: Vec::new(), shared: Vec::new() }
    }

    /// Takes a free buffer, if there is one; `beyond` further ones than the limit may exist.
    pub(crate) fn take(&mut self, fabric: &mut impl Fabric, beyond: usize) -> Result<Option<Buffer>, RegisterError> {
        self.sweep();
        if let Some(buffer) = self.free.pop() {
            return Ok(Some(buffer));
        }
        if self.exist >= self.limit + beyond {
            return Ok(None);
        }
        let buffer = Buffer::register(fabric, self.bytes)?;
        self.exist += 1;
        Ok(Some(buffer))
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, buffer: Buffer) {
        if self.exist <= self.limit {
            self.free.push(buffer);
        } else {
            self.exist -= 1;
        }
    }

    /// Takes a buffer back once it is not shared any more.
    pub(crate) fn give_shared(&mut self, buffer: Arc<Buffer>) {
        self.shared.push(buffer);
        self.sweep();
    }

    /// Notes that `count` buffers are gone.
    pub(crate) fn lost(&mut self, count: usize) {
        self.exist -= count.min(self.exist);
    }

    fn sweep(&mut self) {
        for buffer in std::mem::take(&mut self.shared) {
            match Arc::try_unwrap(buffer) {
                Ok(buffer) => self.give(buffer),
                Err(shared) => self.shared.push(shared),
            }
        }
    }
}

/// A segment that is to be read, and the buffer for it. There are never more than buffers.
#[derive(Debug)]
pub(crate) struct SegmentRead {
    pub(crate) segment: u64,
    pub(crate) len: usize,
    pub(crate) buffer: Buffer,
    /// The instance of the group for which it is read.
    pub(crate) attempt: u64,
}

#[cfg(test)]
mod tests {
    use squall_fabric::{
        NodeId,
        shm::{ShmConfig, ShmFabric},
    };

    use super::*;

    #[test]
    fn a_buffer_is_used_again_when_the_last_has_given_it_back() {
        let mut fabric = ShmFabric::open(ShmConfig::new("squall-cp-pool", NodeId(std::process::id()))).unwrap();
        let mut pool = Pool::new(64, 1);
        let reader = Arc::new(pool.take(&mut fabric, 0).unwrap().unwrap());
        let relay = Arc::clone(&reader);
        assert!(pool.take(&mut fabric, 0).unwrap().is_none());
        pool.give_shared(reader);
        assert!(pool.take(&mut fabric, 0).unwrap().is_none());
        drop(relay);
        assert!(pool.take(&mut fabric, 0).unwrap().is_some());
    }
}
