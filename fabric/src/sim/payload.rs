//! The bytes of one operation: their fetching and their placing.

use std::ops::Range;

use fastrand::Rng;

use crate::{Region, RegionKind};

/// The bytes of one operation.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) len: usize,
    pub(super) from: Fetch,
}

/// The place of the bytes until they land.
#[derive(Debug)]
pub(super) enum Fetch {
    /// A phantom's bytes, which are nowhere.
    Nothing,
    /// Bytes that are fetched already.
    Taken(Vec<u8>),
    /// Bytes that are still in the poster's memory, at this offset.
    Later(Region, usize),
    /// Words of which each is the post's or the present one, at random.
    Mixed(Vec<u8>, Region, usize),
}

/// The most bytes that are copied at a time, so that they stay in the processor's cache.
const CHUNK_BYTES: usize = 16 * 1024;

impl Payload {
    pub(super) fn none() -> Payload {
        Payload { len: 0, from: Fetch::Nothing }
    }

    pub(super) fn taken(bytes: Vec<u8>) -> Payload {
        Payload { len: bytes.len(), from: Fetch::Taken(bytes) }
    }

    /// Bytes of `region` that are fetched as they land.
    pub(super) fn later(region: &Region, offset: usize, len: usize) -> Payload {
        if region.kind() == RegionKind::Phantom {
            return Payload { len, from: Fetch::Nothing };
        }
        Payload { len, from: Fetch::Later(region.clone(), offset) }
    }

    /// Fetches all bytes now; with `mixed`, some words will be fetched once more as they land.
    pub(super) fn fetch(&mut self, mut buffer: Vec<u8>, mixed: bool) {
        if let Fetch::Later(region, offset) = &self.from {
            buffer.clear();
            buffer.resize(self.len, 0);
            region.read(*offset, &mut buffer);
            self.from = if mixed { Fetch::Mixed(buffer, region.clone(), *offset) } else { Fetch::Taken(buffer) };
        }
    }

    /// Stops fetching from the poster's memory, which it may use again from now on.
    pub(super) fn settle(&mut self) {
        match std::mem::replace(&mut self.from, Fetch::Nothing) {
            Fetch::Mixed(bytes, ..) => self.from = Fetch::Taken(bytes),
            other => {
                self.from = other;
                self.fetch(Vec::new(), false);
            }
        }
    }

    /// Whether nothing more is fetched from the poster's memory.
    pub(super) fn is_taken(&self) -> bool {
        matches!(self.from, Fetch::Nothing | Fetch::Taken(_))
    }

    /// The buffer, for use by another operation.
    pub(super) fn into_buffer(self) -> Option<Vec<u8>> {
        match self.from {
            Fetch::Taken(bytes) | Fetch::Mixed(bytes, ..) => Some(bytes),
            Fetch::Nothing | Fetch::Later(..) => None,
        }
    }

    /// The multiple at which the bytes can be cut without tearing a word of polled memory: 8, or 1.
    pub(super) fn grain(&self, to: &Region) -> usize {
        let source_polled = match &self.from {
            Fetch::Nothing | Fetch::Taken(_) => false,
            Fetch::Later(region, _) | Fetch::Mixed(_, region, _) => region.kind() == RegionKind::Polled,
        };
        if source_polled || to.kind() == RegionKind::Polled { 8 } else { 1 }
    }

    /// Places a part of the bytes at `offset` (of byte 0) in `to`; its bounds are multiples of the grain.
    pub(super) fn place(&self, part: Range<usize>, to: &Region, offset: usize, rng: &mut Rng) {
        if part.is_empty() || to.kind() == RegionKind::Phantom {
            return;
        }
        match &self.from {
            Fetch::Nothing => {}
            Fetch::Taken(bytes) => to.write(offset + part.start, &bytes[part]),
            Fetch::Later(region, from) => copy(region, from + part.start, to, offset + part.start, part.len()),
            Fetch::Mixed(bytes, region, from) => {
                for start in part.clone().step_by(8) {
                    let end = (start + 8).min(part.end);
                    if rng.bool() {
                        to.write(offset + start, &bytes[start..end]);
                    } else {
                        copy(region, from + start, to, offset + start, end - start);
                    }
                }
            }
        }
    }

    /// Places any subset of the words of `part`, as of a write whose poster died.
    pub(super) fn place_torn(&self, to: &Region, offset: usize, rng: &mut Rng) {
        // For long operations, a few strides are as good as single words.
        let stride = (self.len / 512).next_multiple_of(8).max(8);
        for start in (0..self.len).step_by(stride) {
            if rng.bool() {
                self.place(start..(start + stride).min(self.len), to, offset, rng);
            }
        }
    }
}

/// Copies between two regions of any kinds. Offsets in polled regions are multiples of 8.
fn copy(from: &Region, from_offset: usize, to: &Region, to_offset: usize, len: usize) {
    if from.kind() == RegionKind::Polled && to.kind() == RegionKind::Polled && len.is_multiple_of(8) {
        return from.copy_words(from_offset, to, to_offset, len);
    }
    if len <= 64 {
        let mut few = [0; 64];
        from.read(from_offset, &mut few[..len]);
        return to.write(to_offset, &few[..len]);
    }
    let mut chunk = [0; CHUNK_BYTES];
    for done in (0..len).step_by(CHUNK_BYTES) {
        let chunk = &mut chunk[..CHUNK_BYTES.min(len - done)];
        from.read(from_offset + done, chunk);
        to.write(to_offset + done, chunk);
    }
}
