//! Copies of one buffer to three places: the least work of four processes of a host for a message of which each has its
//! own copy.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use super::Pinned;

/// The message's size.
pub(super) const BYTES: usize = 256 << 20;

/// Block sizes that are tried; the best one depends on the machine. Each block goes to all three places while it is in
/// the cache.
const BLOCKS: [usize; 4] = [64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// An odd number, for a median. The figures that these are compared with are medians as well.
const SAMPLES: usize = 9;

/// The time and the block size of the fastest loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Best {
    /// The median of its samples.
    pub(super) time: Duration,
    pub(super) block_bytes: usize,
}

/// A message, and the three places that it is copied to.
pub(super) struct Copies {
    source: Vec<u8>,
    places: [Vec<u8>; 3],
}

impl Copies {
    /// Buffers that have been written once, so that no page faults are measured.
    pub(super) fn new() -> Copies {
        Copies { source: vec![1; BYTES], places: std::array::from_fn(|_| vec![2; BYTES]) }
    }

    /// The fastest of the block sizes that were tried, where each core copies its part of the message.
    pub(super) fn best(&mut self, cores: &[usize]) -> io::Result<Best> {
        let mut samples = BLOCKS.map(|_| Vec::with_capacity(SAMPLES));
        // In turn, so that a change of the machine's speed affects all sizes alike.
        for _ in 0..SAMPLES {
            for (samples, block_bytes) in samples.iter_mut().zip(BLOCKS) {
                samples.push(self.time(cores, block_bytes)?);
            }
        }
        let medians = samples.into_iter().zip(BLOCKS).map(|(mut samples, block_bytes)| {
            samples.sort_unstable();
            Best { time: samples[SAMPLES / 2], block_bytes }
        });
        Ok(medians.min_by_key(|best| best.time).expect("there are block sizes"))
    }

    fn time(&mut self, cores: &[usize], block_bytes: usize) -> io::Result<Duration> {
        let part = BYTES.div_ceil(cores.len());
        let [a, b, c] = &mut self.places;
        let targets = a.chunks_mut(part).zip(b.chunks_mut(part)).zip(c.chunks_mut(part));
        let began = Instant::now();
        thread::scope(|scope| {
            let parts = self.source.chunks(part).zip(targets).zip(cores);
            let threads: Vec<_> = parts
                .map(|((source, ((a, b), c)), core)| {
                    scope.spawn(move || {
                        let _pinned = Pinned::to(*core)?;
                        copy(source, [a, b, c], block_bytes);
                        Ok(())
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a thread that copies does not panic"))
        })
        .map(|()| began.elapsed())
    }
}

fn copy(source: &[u8], places: [&mut [u8]; 3], block_bytes: usize) {
    let mut places = places.map(|place| place.chunks_mut(block_bytes));
    for block in source.chunks(block_bytes) {
        for place in places.iter_mut().flat_map(Iterator::next) {
            place.copy_from_slice(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_copies_all_bytes_to_all_places() {
        let source: Vec<u8> = (0..=254).cycle().take(1000).collect();
        for block_bytes in [1, 7, 250, 1000, 4096] {
            let [mut a, mut b, mut c] = std::array::from_fn(|_| vec![0; source.len()]);
            copy(&source, [&mut a, &mut b, &mut c], block_bytes);
            assert!([a, b, c].iter().all(|place| *place == source), "in blocks of {block_bytes}");
        }
    }
}
