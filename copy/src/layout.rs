//! The packing of files into segments. The bytes of all files, in the manifest's order, form one stream, which is cut
//! into segments of one size. Each segment is one multicast, so small files share one, and a large one takes many.

use std::ops::Range;

use super::manifest::Manifest;

/// Bytes of one file, in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The file, as an index into the manifest.
    pub(crate) entry: usize,
    /// The offset in the file at which it begins.
    pub(crate) at: u64,
    /// The offset in the segment at which it begins.
    pub(crate) offset: usize,
    /// The number of bytes.
    pub(crate) len: usize,
}

/// The place of each file in the stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamLayout {
    /// The offset in the stream at which each entry begins, and one more for the end of the stream.
    begins: Vec<u64>,
    segment_bytes: usize,
}

impl StreamLayout {
    /// Lays a manifest's files out. `segment_bytes` is at least 1.
    pub(crate) fn new(manifest: &Manifest, segment_bytes: usize) -> StreamLayout {
        let mut begins = Vec::with_capacity(manifest.entries().len() + 1);
        let mut end = 0;
        for entry in manifest.entries() {
            begins.push(end);
            end += entry.bytes();
        }
        begins.push(end);
        StreamLayout { begins, segment_bytes }
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> u64 {
        *self.begins.last().expect("the stream has an end")
    }

    /// Returns the number of segments.
    pub(crate) fn segments(&self) -> u64 {
        self.bytes().div_ceil(self.segment_bytes as u64)
    }

    /// Returns the offset in the stream at which a segment begins.
    pub(crate) fn begin(&self, segment: u64) -> u64 {
        segment.saturating_mul(self.segment_bytes as u64).min(self.bytes())
    }

    /// Returns the number of bytes of a segment: only the last is shorter.
    pub(crate) fn len(&self, segment: u64) -> usize {
        (self.begin(segment + 1) - self.begin(segment)) as usize
    }

    /// Returns the size of the largest segment.
    pub(crate) fn largest(&self) -> usize {
        self.len(0)
    }

    /// Returns the number of whole segments before the beginning of an entry.
    pub(crate) fn whole_before(&self, entry: usize) -> u64 {
        match self.begins[entry] {
            end if end == self.bytes() => self.segments(),
            begin => begin / self.segment_bytes as u64,
        }
    }

    /// Returns the number of bytes of an entry that lie in the first `segments` segments.
    pub(crate) fn held(&self, entry: usize, segments: u64) -> u64 {
        self.begin(segments).clamp(self.begins[entry], self.begins[entry + 1]) - self.begins[entry]
    }

    /// Returns the number of entries, from the first, that end in the first `segments` segments.
    pub(crate) fn ended(&self, segments: u64) -> usize {
        let end = self.begin(segments);
        self.begins[1..].partition_point(|&ends| ends <= end)
    }

    /// Returns the contents of a segment, in order: no piece is empty.
    pub(crate) fn pieces(&self, segment: u64) -> impl Iterator<Item = Piece> {
        let Range { start, end } = self.begin(segment)..self.begin(segment + 1);
        let first = self.begins[1..].partition_point(|&ends| ends <= start);
        (first..self.begins.len() - 1).take_while(move |&entry| self.begins[entry] < end).filter_map(move |entry| {
            let (from, to) = (self.begins[entry].max(start), self.begins[entry + 1].min(end));
            let len = (to - from) as usize;
            let at = from - self.begins[entry];
            (len > 0).then_some(Piece { entry, at, offset: (from - start) as usize, len })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::manifest::tests::{directory, file},
        *,
    };

    fn layout(sizes: &[u64], segment_bytes: usize) -> StreamLayout {
        let entries = sizes.iter().enumerate().map(|(i, &bytes)| file(&format!("f{i}"), bytes)).collect();
        StreamLayout::new(&Manifest::new(entries).unwrap(), segment_bytes)
    }

    #[test]
    fn small_files_share_a_segment_and_a_large_one_is_cut() {
        let layout = layout(&[3, 0, 4, 20], 10);
        assert_eq!((layout.segments(), layout.len(2)), (3, 7));
        let pieces: Vec<Piece> = layout.pieces(0).collect();
        assert_eq!(
            pieces,
            [
                Piece { entry: 0, at: 0, offset: 0, len: 3 },
                Piece { entry: 2, at: 0, offset: 3, len: 4 },
                Piece { entry: 3, at: 0, offset: 7, len: 3 },
            ]
        );
        assert_eq!(layout.pieces(1).collect::<Vec<_>>(), [Piece { entry: 3, at: 3, offset: 0, len: 10 }]);
    }

    #[test]
    fn sizes_and_segments_at_the_end_of_64_bits_do_not_overflow() {
        let layout = layout(&[u64::MAX], 1 << 23);
        let last = layout.segments() - 1;
        assert_eq!((layout.segments(), layout.len(last)), (1 << 41, (1 << 23) - 1));
        assert_eq!(layout.begin(u64::MAX), u64::MAX);
    }

    #[test]
    fn a_transfer_without_contents_has_no_segment() {
        let layout = StreamLayout::new(&Manifest::new(vec![directory("d"), file("d/e", 0)]).unwrap(), 10);
        assert_eq!((layout.segments(), layout.ended(0), layout.whole_before(1)), (0, 2, 0));
    }

    proptest! {
        #[test]
        fn segments_cover_every_byte_once_in_order(
            sizes in proptest::collection::vec(0_u64..50, 0..12), segment_bytes in 1_usize..40,
        ) {
            let layout = layout(&sizes, segment_bytes);
            let mut filled = vec![0; sizes.len()];
            for segment in 0..layout.segments() {
                let mut offset = 0;
                for piece in layout.pieces(segment) {
                    prop_assert_eq!(piece.offset, offset);
                    prop_assert_eq!(piece.at, filled[piece.entry]);
                    offset += piece.len;
                    filled[piece.entry] += piece.len as u64;
                }
                prop_assert_eq!(offset, layout.len(segment));
                for entry in 0..sizes.len() {
                    prop_assert_eq!(layout.held(entry, segment + 1), filled[entry]);
                    let before = layout.whole_before(entry);
                    prop_assert_eq!(layout.held(entry, before), if before == layout.segments() { sizes[entry] } else { 0 });
                }
                let ended = layout.ended(segment + 1);
                prop_assert!((0..ended).all(|entry| filled[entry] == sizes[entry]));
                prop_assert!(ended == sizes.len() || filled[ended] < sizes[ended]);
            }
            prop_assert_eq!(filled, sizes);
        }
    }
}
