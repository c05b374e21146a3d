//! The packing of what receivers lack into segments. The extents of one part of a plan, one after the other, are cut
//! into segments of one size, so small files share a segment, and a large one takes many. Each segment is one multicast
//! to the receivers of its part.

use super::extent::{Extent, PlanPart};

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

/// The place of a part in the stream.
#[derive(Clone, Debug)]
struct PartBounds {
    receivers: Vec<u32>,
    first_segment: u64,
    /// The offset in the stream at which it begins.
    begin: u64,
}

/// The place of each extent in the stream, which is that of all parts, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct StreamLayout {
    extents: Vec<Extent>,
    /// The offset in the stream at which each extent begins, and one more for the end of the stream.
    begins: Vec<u64>,
    parts: Vec<PartBounds>,
    segments: u64,
    segment_bytes: usize,
}

impl StreamLayout {
    /// Lays a plan out. `segment_bytes` is at least 1. The sum of all lengths is a 64-bit number, as
    /// [`check`](super::plan::check) has made sure of.
    pub(crate) fn new(plan: &[PlanPart], segment_bytes: usize) -> StreamLayout {
        let mut extents = Vec::new();
        let mut begins = Vec::new();
        let mut parts = Vec::with_capacity(plan.len());
        let (mut end, mut segments) = (0_u64, 0);
        for part in plan.iter().filter(|part| part.bytes() > 0) {
            parts.push(PartBounds { receivers: part.receivers.clone(), first_segment: segments, begin: end });
            segments += part.bytes().div_ceil(segment_bytes as u64);
            for extent in part.extents.iter().filter(|extent| extent.len > 0) {
                extents.push(*extent);
                begins.push(end);
                end += extent.len;
            }
        }
        begins.push(end);
        StreamLayout { extents, begins, parts, segments, segment_bytes }
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> u64 {
        *self.begins.last().expect("the stream has an end")
    }

    /// Returns the number of segments.
    pub(crate) fn segments(&self) -> u64 {
        self.segments
    }

    fn part(&self, segment: u64) -> Option<usize> {
        let next = self.parts.partition_point(|part| part.first_segment <= segment);
        (segment < self.segments).then(|| next - 1)
    }

    /// Returns the offset in the stream at which a segment begins.
    fn begin(&self, segment: u64) -> u64 {
        self.part(segment).map_or(self.bytes(), |part| {
            let PartBounds { first_segment, begin, .. } = &self.parts[part];
            begin + (segment - first_segment) * self.segment_bytes as u64
        })
    }

    /// Returns the number of bytes of a segment: only the last of a part is shorter.
    pub(crate) fn len(&self, segment: u64) -> usize {
        (self.begin(segment + 1) - self.begin(segment)) as usize
    }

    /// Returns the segment after the last of a segment's part.
    pub(crate) fn part_end(&self, segment: u64) -> u64 {
        let next = self.part(segment).and_then(|part| self.parts.get(part + 1));
        next.map_or(self.segments, |part| part.first_segment)
    }

    /// Returns the first segment from `segment` on that is for a receiver, given its node id; the end if there is none.
    pub(crate) fn next_for(&self, receiver: u32, segment: u64) -> u64 {
        let Some(part) = self.part(segment) else { return self.segments };
        if self.parts[part].receivers.contains(&receiver) {
            return segment;
        }
        let later = self.parts[part + 1..].iter().find(|part| part.receivers.contains(&receiver));
        later.map_or(self.segments, |part| part.first_segment)
    }

    /// Returns the contents of a segment, in order: no piece is empty.
    pub(crate) fn pieces(&self, segment: u64) -> impl Iterator<Item = Piece> {
        let (start, end) = (self.begin(segment), self.begin(segment + 1));
        let first = self.begins[1..].partition_point(|&ends| ends <= start);
        (first..self.extents.len()).take_while(move |&at| self.begins[at] < end).map(move |at| {
            let (from, to) = (self.begins[at].max(start), self.begins[at + 1].min(end));
            let Extent { entry, at: extent_at, .. } = self.extents[at];
            Piece {
                entry: entry as usize,
                at: extent_at + (from - self.begins[at]),
                offset: (from - start) as usize,
                len: (to - from) as usize,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extent(entry: u32, at: u64, len: u64) -> Extent {
        Extent { entry, at, len }
    }

    fn part(receivers: &[u32], extents: &[Extent]) -> PlanPart {
        PlanPart { receivers: receivers.to_vec(), extents: extents.to_vec() }
    }

    #[test]
    fn small_files_share_a_segment_and_a_large_one_is_cut() {
        let plan = [part(&[7], &[extent(0, 0, 3), extent(2, 5, 4), extent(3, 0, 20)])];
        let layout = StreamLayout::new(&plan, 10);
        assert_eq!((layout.segments(), layout.len(2)), (3, 7));
        let pieces: Vec<Piece> = layout.pieces(0).collect();
        assert_eq!(
            pieces,
            [
                Piece { entry: 0, at: 0, offset: 0, len: 3 },
                Piece { entry: 2, at: 5, offset: 3, len: 4 },
                Piece { entry: 3, at: 0, offset: 7, len: 3 },
            ]
        );
        assert_eq!(layout.pieces(1).collect::<Vec<_>>(), [Piece { entry: 3, at: 3, offset: 0, len: 10 }]);
    }

    #[test]
    fn parts_share_no_segment() {
        let plan = [part(&[1, 2], &[extent(0, 0, 15)]), part(&[3], &[]), part(&[2], &[extent(1, 0, 5)])];
        let layout = StreamLayout::new(&plan, 10);
        assert_eq!((layout.segments(), layout.len(0), layout.len(1), layout.len(2)), (3, 10, 5, 5));
        assert_eq!([0, 1, 2, 3].map(|segment| layout.part_end(segment)), [2, 2, 3, 3]);
        assert_eq!([0, 1, 2, 3].map(|segment| layout.next_for(1, segment)), [0, 1, 3, 3]);
        assert_eq!([0, 1, 2, 3].map(|segment| layout.next_for(2, segment)), [0, 1, 2, 3]);
        assert_eq!(layout.next_for(3, 0), 3);
    }

    #[test]
    fn a_transfer_without_contents_has_no_segment() {
        let layout = StreamLayout::new(&[], 10);
        assert_eq!((layout.segments(), layout.bytes(), layout.next_for(1, 0)), (0, 0, 0));
    }

    proptest! {
        #[test]
        fn segments_cover_every_byte_once_in_order(
            parts in proptest::collection::vec(proptest::collection::vec(0_u64..50, 0..6), 0..4),
            segment_bytes in 1_usize..40,
        ) {
            let mut entry = 0;
            let plan: Vec<PlanPart> = parts
                .iter()
                .map(|lens| {
                    let extents: Vec<Extent> = lens.iter().map(|&len| { entry += 1; extent(entry, 3, len) }).collect();
                    part(&[1], &extents)
                })
                .collect();
            let layout = StreamLayout::new(&plan, segment_bytes);
            let mut came: Vec<(usize, u64)> = Vec::new();
            for segment in 0..layout.segments() {
                let mut offset = 0;
                for piece in layout.pieces(segment) {
                    prop_assert_eq!(piece.offset, offset);
                    offset += piece.len;
                    came.extend((piece.at..piece.at + piece.len as u64).map(|at| (piece.entry, at)));
                }
                prop_assert_eq!(offset, layout.len(segment));
                prop_assert!(offset <= segment_bytes && offset > 0);
            }
            let all = plan.iter().flat_map(|part| &part.extents);
            let expected: Vec<(usize, u64)> =
                all.flat_map(|extent| (extent.at..extent.end()).map(|at| (extent.entry as usize, at))).collect();
            prop_assert_eq!(came.len() as u64, layout.bytes());
            prop_assert_eq!(came, expected);
        }
    }
}
