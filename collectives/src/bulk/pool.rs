//! Registered memory that is kept for another use.

use std::collections::VecDeque;

use squall_fabric::{Fabric, RegisterError};
use squall_rdmc::Buffer;

/// Buffers for later use, at most `most`: the ones that were used last.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Oldest first.
    buffers: VecDeque<Buffer>,
    most: usize,
}

impl Pool {
    pub(crate) fn new(most: usize) -> Pool {
        Pool { buffers: VecDeque::new(), most }
    }

    /// The smallest buffer of at least `bytes`, or a new one.
    pub(crate) fn take(&mut self, fabric: &mut impl Fabric, bytes: usize) -> Result<Buffer, RegisterError> {
        let kept = self.buffers.iter().enumerate();
        let fitting = kept.filter(|(_, buffer)| buffer.capacity() >= bytes);
        let smallest = fitting.min_by_key(|(_, buffer)| buffer.capacity()).map(|(at, _)| at);
        smallest.and_then(|at| self.buffers.remove(at)).map_or_else(|| Buffer::register(fabric, bytes), Ok)
    }

    /// Keeps a buffer, and drops the oldest if there are too many.
    pub(crate) fn put(&mut self, buffer: Option<Buffer>) {
        self.buffers.extend(buffer);
        if self.buffers.len() > self.most {
            self.buffers.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use squall_fabric::{
        NodeId,
        sim::{SimConfig, SimNet},
    };

    use super::*;

    #[test]
    fn the_smallest_that_fits_is_used_again_and_the_oldest_is_dropped() {
        let mut fabric = SimNet::new(SimConfig::fast(), 1).fabric(NodeId(0));
        let mut pool = Pool::new(3);
        for bytes in [100, 400, 200, 300] {
            let buffer = Buffer::register(&mut fabric, bytes).expect("memory");
            pool.put(Some(buffer));
        }
        let mut take = |bytes| pool.take(&mut fabric, bytes).expect("memory").capacity();
        assert_eq!(take(50), 200, "100 was dropped");
        assert_eq!(take(300), 300);
        assert_eq!(take(500), 500, "a new one");
        assert_eq!(take(1), 400);
        assert_eq!(take(1), 1, "none is left");
    }
}
