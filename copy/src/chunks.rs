//! The parts of a file that another version of it has in common: both are cut where their contents say so, and parts
//! are compared by their hashes.
//!
//! FastCDC (Xia et al., 2016) cuts at the same contents wherever they lie, so an insertion changes the chunks around it
//! only.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    ops::Range,
    os::unix::fs::FileExt,
};

use fastcdc::v2020::StreamCDC;
use rustix::fs::SeekFrom;
use serde::{Deserialize, Serialize};

/// The average size of the smallest chunks, in bytes. Around a change, some one and a half chunks move.
const LEAST_CHUNK_BYTES: u64 = 4 << 10;

/// The average size of a chunk, in bytes, unless a file is so small that they would be few, or so large that they would
/// be too many.
const CHUNK_BYTES: u64 = 16 << 10;

/// The number of chunks of a file, on average, below which they are smaller.
const FEW_CHUNKS: u64 = 256;

/// The most chunks of a file, on average.
const CHUNKS: u64 = 1 << 16;

/// The average size of the largest chunks, in bytes.
const MOST_CHUNK_BYTES: u64 = 4 << 20;

/// A chunk of a file: its length, and the first half of its BLAKE3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chunk {
    /// The number of bytes.
    #[serde(with = "squall_services::frame::fixed")]
    pub(crate) len: u32,
    /// The hash.
    pub(crate) hash: [u8; 16],
}

/// The average size of the chunks of a file, in bytes, by the file's size at the source.
fn average(bytes: u64) -> u64 {
    let usual = (bytes / FEW_CHUNKS).next_power_of_two().clamp(LEAST_CHUNK_BYTES, CHUNK_BYTES);
    (bytes / CHUNKS).next_power_of_two().clamp(usual, MOST_CHUNK_BYTES)
}

/// The chunks of a file's contents, and the BLAKE3 of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileChunks {
    /// The chunks of all ranges, in order. A chunk lies in one range.
    pub(crate) chunks: Vec<Chunk>,
    /// The BLAKE3 of the ranges, one after the other.
    pub(crate) hash: [u8; 32],
}

/// Cuts ranges of a file. `bytes` is the file's size at the source, on both sides. Ends early with an error if the file
/// is shorter, or if `stopped` says so.
pub(crate) fn cut(
    file: &File,
    ranges: impl IntoIterator<Item = Range<u64>>,
    bytes: u64,
    stopped: &dyn Fn() -> bool,
) -> io::Result<FileChunks> {
    let average = average(bytes) as usize;
    let (mut chunks, mut all) = (Vec::new(), blake3::Hasher::new());
    for range in ranges {
        let mut left = range.end - range.start;
        let part = RangeReader { file, at: range.start, end: range.end };
        for chunk in StreamCDC::new(part, average / 4, average, 4 * average) {
            let data = chunk.map_err(io::Error::from)?.data;
            if stopped() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            all.update(&data);
            left = left.saturating_sub(data.len() as u64);
            let mut hash = [0; 16];
            hash.copy_from_slice(&blake3::hash(&data).as_bytes()[..16]);
            chunks.push(Chunk { len: data.len() as u32, hash });
        }
        if left > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(FileChunks { chunks, hash: all.finalize().into() })
}

/// A range of a file, as a reader.
struct RangeReader<'f> {
    file: &'f File,
    at: u64,
    end: u64,
}

impl Read for RangeReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = (self.end - self.at).min(buffer.len() as u64) as usize;
        let read = self.file.read_at(&mut buffer[..len], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// Returns the ranges of a file that have contents; one range of all of it where the filesystem can't tell.
pub(crate) fn data_ranges(file: &File, bytes: u64) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < bytes {
        let begin = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(begin) => begin.min(bytes),
            Err(rustix::io::Errno::NXIO) => break,
            Err(_) => return std::iter::once(0..bytes).filter(|range| !range.is_empty()).collect(),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(begin)).unwrap_or(bytes).min(bytes);
        if begin < end {
            ranges.push(begin..end);
        }
        at = end.max(begin + 1);
    }
    ranges
}

/// Bytes of a file that are here already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reuse {
    /// The offset at which they belong.
    pub(crate) at: u64,
    /// The file that has them, as an index into those that were compared.
    pub(crate) from: usize,
    /// The offset in that file.
    pub(crate) from_at: u64,
    /// The number of bytes.
    pub(crate) len: u64,
}

/// The chunks of files that a receiver has.
#[derive(Debug, Default)]
pub(crate) struct Stock {
    /// By their hashes: the number of a file, the offset and the length.
    anywhere: HashMap<[u8; 16], (usize, u64, u32)>,
    /// By their hashes and offsets: the number of a file. What lies where it belongs need not be copied.
    in_place: HashMap<([u8; 16], u64), usize>,
}

impl Stock {
    /// Adds the contents of a file, which has the number `from`: all that can be read of it, or nothing. Of a file that
    /// is much larger than the source's, `bytes`, only the beginning counts. Files that were added before are
    /// preferred.
    pub(crate) fn add(&mut self, from: usize, file: &File, bytes: u64, stopped: &dyn Fn() -> bool) -> io::Result<()> {
        let most = file.metadata()?.len().min(bytes.saturating_mul(4).saturating_add(1 << 20));
        let mut chunks = Vec::new();
        for range in data_ranges(file, most) {
            let mut at = range.start;
            for Chunk { len, hash } in cut(file, [range], bytes, stopped)?.chunks {
                chunks.push((hash, at, len));
                at += u64::from(len);
            }
        }
        for (hash, at, len) in chunks {
            self.anywhere.entry(hash).or_insert((from, at, len));
            self.in_place.entry((hash, at)).or_insert(from);
        }
        Ok(())
    }

    /// Returns the file that has a chunk, and the offset there; at its own offset if there is a choice.
    fn find(&self, at: u64, Chunk { len, hash }: &Chunk) -> Option<(usize, u64)> {
        let (from, from_at, _) = self.anywhere.get(hash).filter(|here| here.2 == *len)?;
        Some(self.in_place.get(&(*hash, at)).map_or((*from, *from_at), |from| (*from, at)))
    }

    /// Compares a file's chunks, which lie in `ranges`, with what is here. Returns what can be reused, and the ranges
    /// that are missing, both in order; neighbours are one.
    pub(crate) fn compare(
        &self,
        ranges: impl IntoIterator<Item = Range<u64>>,
        chunks: &[Chunk],
    ) -> (Vec<Reuse>, Vec<Range<u64>>) {
        let (mut reuses, mut missing): (Vec<Reuse>, Vec<Range<u64>>) = (Vec::new(), Vec::new());
        let mut chunks = chunks.iter();
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                // A list that is too short, or does not fit, helps no further.
                let chunk = chunks.next().filter(|chunk| chunk.len > 0 && u64::from(chunk.len) <= range.end - at);
                let len = chunk.map_or(range.end - at, |chunk| u64::from(chunk.len));
                match chunk.and_then(|chunk| self.find(at, chunk)) {
                    Some((from, from_at)) => match reuses.last_mut() {
                        Some(last)
                            if last.from == from && last.at + last.len == at && last.from_at + last.len == from_at =>
                        {
                            last.len += len;
                        }
                        _ => reuses.push(Reuse { at, from, from_at, len }),
                    },
                    None => match missing.last_mut() {
                        Some(last) if last.end == at => last.end += len,
                        _ => missing.push(at..at + len),
                    },
                }
                at += len;
            }
        }
        (reuses, missing)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fastrand::Rng::with_seed(seed).fill(&mut bytes);
        bytes
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    /// Compares a new version of a file with the old, checks that the reused parts and the missing make the new, and
    /// returns the number of missing bytes.
    fn missing(old: &[u8], new: &[u8]) -> u64 {
        let mut stock = Stock::default();
        stock.add(3, &file(old), new.len() as u64, &|| false).unwrap();
        let whole = || std::iter::once(0..new.len() as u64);
        let cut = cut(&file(new), whole(), new.len() as u64, &|| false).unwrap();
        assert_eq!(cut.hash, *blake3::hash(new).as_bytes());
        let (reuses, missing) = stock.compare(whole(), &cut.chunks);
        let mut made = vec![0; new.len()];
        for Reuse { at, from, from_at, len } in reuses {
            assert_eq!(from, 3);
            made[at as usize..][..len as usize].copy_from_slice(&old[from_at as usize..][..len as usize]);
        }
        let mut bytes = 0;
        for range in missing {
            bytes += range.end - range.start;
            let range = range.start as usize..range.end as usize;
            made[range.clone()].copy_from_slice(&new[range]);
        }
        assert!(made == new);
        bytes
    }

    #[test]
    fn an_insertion_costs_little_more_than_itself() {
        let old = noise(1, 8 << 20);
        let mut new = old.clone();
        new.splice(1 << 20..1 << 20, noise(2, 1000));
        new.drain(5 << 20..(5 << 20) + 77);
        let bytes = missing(&old, &new);
        assert!((1000..1 << 20).contains(&bytes), "{bytes}");
        assert_eq!(missing(&old, &old), 0);
        assert_eq!(missing(&[], &old), 8 << 20);
    }

    #[test]
    fn five_hundredths_changed_in_ten_places_move_seven_at_most() {
        let old = noise(3, 64 << 20);
        let mut new = old.clone();
        for place in 0..10 {
            let len = old.len() / 200;
            let at = place * old.len() / 10 + 12_345;
            new[at..at + len].copy_from_slice(&noise(place as u64 + 10, len));
        }
        let bytes = missing(&old, &new);
        assert!(bytes <= old.len() as u64 * 7 / 100, "{bytes}");
    }

    #[test]
    fn what_repeats_lies_where_it_is() {
        let mut bytes = vec![0; 1 << 20];
        bytes[500_000..600_000].copy_from_slice(&noise(9, 100_000));
        let mut stock = Stock::default();
        stock.add(0, &file(&bytes), 1 << 20, &|| false).unwrap();
        let whole = || std::iter::once(0..1 << 20);
        let cut = cut(&file(&bytes), whole(), 1 << 20, &|| false).unwrap();
        let expected = Reuse { at: 0, from: 0, from_at: 0, len: 1 << 20 };
        assert_eq!(stock.compare(whole(), &cut.chunks), (vec![expected], vec![]));
    }

    #[test]
    fn a_file_that_can_t_be_read_to_its_end_adds_nothing() {
        let sparse = file(&noise(1, 100_000));
        sparse.write_all_at(&noise(2, 100_000), 1 << 20).unwrap();
        let mut stock = Stock::default();
        let count = std::cell::Cell::new(0);
        // It ends within the second range.
        let stopped = || count.replace(count.get() + 1) > 8;
        assert!(stock.add(0, &sparse, 2 << 20, &stopped).is_err());
        assert!(stock.anywhere.is_empty() && stock.in_place.is_empty());
    }

    #[test]
    fn holes_are_neither_cut_nor_missing() {
        let sparse = tempfile::tempfile().unwrap();
        sparse.set_len(64 << 20).unwrap();
        sparse.write_all_at(&noise(4, 1 << 20), 32 << 20).unwrap();
        let ranges = data_ranges(&sparse, 64 << 20);
        assert!(ranges.iter().map(|range| range.end - range.start).sum::<u64>() <= 2 << 20, "{ranges:?}");
        let cut = cut(&sparse, ranges.clone(), 64 << 20, &|| false).unwrap();
        let (reuses, missing) = Stock::default().compare(ranges.clone(), &cut.chunks);
        assert_eq!((reuses, missing), (vec![], ranges));
    }

    #[test]
    fn chunks_of_the_largest_files_fit_a_message() {
        for bytes in [0, 1, 1 << 20, 1 << 34, 1 << 40, 1 << 45, u64::MAX] {
            let average = average(bytes);
            assert!((LEAST_CHUNK_BYTES..=MOST_CHUNK_BYTES).contains(&average), "{bytes}");
            // A chunk takes 20 bytes in a message.
            assert!(bytes > 1 << 42 || bytes / average * 20 < super::super::manifest::MANIFEST_BYTES as u64, "{bytes}");
        }
    }

    #[test]
    fn a_file_that_is_too_short_is_an_error() {
        let error = cut(&file(&[1; 100]), std::iter::once(0..200), 200, &|| false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    proptest! {
        #[test]
        fn lists_that_do_not_fit_cover_the_file_all_the_same(
            lens in proptest::collection::vec(0_u32..5000, 0..8), bytes in 0_u64..10_000,
        ) {
            let chunks: Vec<Chunk> = lens.iter().map(|&len| Chunk { len, hash: [0; 16] }).collect();
            let mut stock = Stock::default();
            stock.anywhere.insert([0; 16], (0, 0, 1000));
            let (reuses, missing) = stock.compare(std::iter::once(0..bytes), &chunks);
            let covered = reuses.iter().map(|reuse| reuse.len).sum::<u64>()
                + missing.iter().map(|range| range.end - range.start).sum::<u64>();
            prop_assert_eq!(covered, bytes);
        }
    }
}
