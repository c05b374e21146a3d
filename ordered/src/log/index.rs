//! A sparse index of a log's records: some places, between which a reader walks.

use super::{End, Hlc, Position};

/// The most places that are kept. One takes 56 bytes.
const MAX_PLACES: usize = 1 << 15;

/// The distance between places at first, in bytes of a segment.
const SPACING_BYTES: u64 = 1 << 20;

/// The beginning of a record, or of a segment's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordStart {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    /// The log's end before it.
    pub(crate) end: End,
    /// The number of records of the segment before it.
    pub(crate) record: u64,
}

/// Places in the order of the log.
#[derive(Debug)]
pub(crate) struct Index {
    places: Vec<RecordStart>,
    spacing: u64,
    most: usize,
}

impl Index {
    pub(crate) fn new() -> Index {
        Index { places: Vec::new(), spacing: SPACING_BYTES, most: MAX_PLACES }
    }

    /// Adds a place behind all others, if it is far enough from the last one.
    pub(crate) fn push(&mut self, place: RecordStart) {
        if self
            .places
            .last()
            .is_some_and(|last| last.segment == place.segment && place.offset < last.offset + self.spacing)
        {
            return;
        }
        if self.places.len() == self.most {
            let mut nth = 0;
            self.places.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
            self.spacing *= 2;
        }
        self.places.push(place);
    }

    /// Returns the last place before which there is nothing from `position` on.
    pub(crate) fn at_position(&self, position: Position) -> Option<RecordStart> {
        let after = self.places.partition_point(|place| place.end.position <= position);
        self.places.get(after.saturating_sub(1)).copied()
    }

    /// Returns the last place before which there is no message behind `version`.
    pub(crate) fn at_version(&self, version: u64) -> Option<RecordStart> {
        let after = self.places.partition_point(|place| place.end.version <= version);
        self.places.get(after.saturating_sub(1)).copied()
    }

    /// Returns the last place before which there is nothing later than `time`.
    pub(crate) fn at_time(&self, time: Hlc) -> Option<RecordStart> {
        let after = self.places.partition_point(|place| place.end.time <= time);
        self.places.get(after.saturating_sub(1)).copied()
    }

    /// Forgets the places in segments before `first`, which begins with `begin`.
    pub(crate) fn trim(&mut self, begin: RecordStart) {
        self.places.retain(|place| place.segment >= begin.segment);
        if self.places.first().is_none_or(|first| (first.segment, first.offset) > (begin.segment, begin.offset)) {
            self.places.insert(0, begin);
        }
    }

    /// Forgets the places at and behind `offset` of `segment`.
    pub(crate) fn cut(&mut self, segment: u64, offset: u64) {
        self.places.retain(|place| (place.segment, place.offset) < (segment, offset));
    }
}

#[cfg(test)]
mod tests {
    use squall_membership::{Epoch, Seq};

    use super::{super::segment::RECORDS_AT, *};

    fn place(n: u64) -> RecordStart {
        let end = End { position: Position::new(Epoch(1), Seq(n)), version: n / 2, time: Hlc(10 * n) };
        RecordStart { segment: n / 4, offset: RECORDS_AT + n % 4 * SPACING_BYTES, end, record: n % 4 }
    }

    #[test]
    fn however_long_the_log_its_index_stays_small_and_right() {
        let mut index = Index { most: 16, ..Index::new() };
        for n in 0..1000 {
            index.push(place(n));
            assert!(index.places.len() <= 16, "after {n}");
            for asked in [0, n / 2, n] {
                let End { position, version, time } = place(asked).end;
                assert!(index.at_position(position).expect("a place").end.position <= position, "{asked} of {n}");
                assert!(index.at_version(version).expect("a place").end.version <= version, "{asked} of {n}");
                assert!(index.at_time(time).expect("a place").end.time <= time, "{asked} of {n}");
            }
            assert_eq!(index.at_position(Position::START), Some(place(0)), "after {n}");
        }
    }

    #[test]
    fn what_is_trimmed_or_cut_has_no_place() {
        let mut index = Index::new();
        (0..40).for_each(|n| index.push(place(n)));
        index.trim(place(8));
        assert_eq!(index.at_position(Position::START), Some(place(8)));
        index.cut(6, place(26).offset);
        assert_eq!(index.at_position(Position::MAX), Some(place(25)));
    }
}
