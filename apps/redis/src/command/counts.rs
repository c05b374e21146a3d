//! The numbers in requests that choose elements: counts, places and ranges.

use std::ops::Range;

use foldhash::fast::RandomState;
use indexmap::IndexSet;

use super::{integer, is};
use crate::{Error, number};

/// The most elements, repetitions included, that a request may ask for, and the most bytes of all of them. Otherwise a
/// few words could ask for any number.
pub(super) const MAX_REPEATS: u64 = 1 << 20;
pub(super) const MAX_REPEATED_BYTES: usize = 64 << 20;

/// Reads a word that must be a whole number of at least `min`; `error` is the error for other words.
pub(super) fn at_least(min: i64, word: &[u8], error: &'static str) -> Result<usize, Error> {
    let number = number::integer(word).filter(|&number| number >= min).ok_or(Error::fixed(error))?;
    usize::try_from(number).map_err(|_| Error::OUT_OF_RANGE)
}

/// Reads a word that must be a whole number of at least 0.
pub(super) fn natural(word: &[u8]) -> Result<usize, Error> {
    number::integer(word).and_then(|number| usize::try_from(number).ok()).ok_or(Error::NOT_POSITIVE)
}

/// Reads a word that must be a whole number whose negative is one too.
pub(super) fn signed(word: &[u8]) -> Result<i64, Error> {
    let range = "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";
    integer(word).and_then(|count| if count == i64::MIN { Err(Error::fixed(range)) } else { Ok(count) })
}

/// The place that an index names among `len`; negative ones count from the end. `None` if it lies before the first one.
pub(super) fn place(index: i64, len: usize) -> Option<usize> {
    let index = if index < 0 { index + len as i64 } else { index };
    usize::try_from(index).ok()
}

/// The places from one index to another, both included, among `len`.
pub(super) fn places(first: i64, last: i64, len: usize) -> Range<usize> {
    let first = place(first, len).unwrap_or(0);
    let end = place(last, len).map_or(0, |last| len.min(last.saturating_add(1)));
    if first < end { first..end } else { 0..0 }
}

/// The same as [`places`], for strings: there, an index before the first place counts as the first. `None` if no place
/// is left.
pub(super) fn places_of_string(first: i64, last: i64, len: usize) -> Option<Range<usize>> {
    let first = place(first, len).unwrap_or(0);
    let end = len.min(place(last, len).unwrap_or(0).saturating_add(1));
    (first < end).then_some(first..end)
}

/// Reads a count, and whether the option follows, which asks for twice as many values. `None` if there is no word.
pub(super) fn with_option(words: &[&[u8]], option: &str) -> Result<Option<(i64, bool)>, Error> {
    let [count, rest @ ..] = words else { return Ok(None) };
    let count = signed(count)?;
    match *rest {
        [] => Ok(Some((count, false))),
        [word] if is(word, option) && count.unsigned_abs() > i64::MAX as u64 / 2 => Err(Error::OUT_OF_RANGE),
        [word] if is(word, option) => Ok(Some((count, true))),
        _ => Err(Error::SYNTAX),
    }
}

/// Random places among `len`: `count` different ones, or all if there are no more. For a negative count, as many as its
/// absolute value, with repetitions. `bytes` returns the bytes that a place adds to the answer.
///
/// For commands that only look: each replica picks others.
pub(super) fn pick(count: i64, len: usize, bytes: impl Fn(usize) -> usize) -> Result<Vec<usize>, Error> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let Ok(count) = usize::try_from(count) else {
        if count.unsigned_abs() > MAX_REPEATS {
            return Err(Error::new(format!("ERR value is out of range, one reply has at most {MAX_REPEATS} repeats")));
        }
        let places: Vec<_> = (0..count.unsigned_abs()).map(|_| fastrand::usize(..len)).collect();
        if places.iter().map(|&place| bytes(place)).sum::<usize>() > MAX_REPEATED_BYTES {
            return Err(Error::fixed("ERR the repeated values are too large for one reply: ask for fewer"));
        }
        return Ok(places);
    };
    if count >= len {
        return Ok((0..len).collect());
    }
    // Floyd's sampling: a place that was taken before stands for the last one that could be taken.
    let mut places = IndexSet::with_capacity_and_hasher(count, RandomState::default());
    for last in len - count..len {
        if !places.insert(fastrand::usize(..=last)) {
            places.insert(last);
        }
    }
    Ok(places.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picked_places_differ_unless_repeats_were_asked_for() {
        for count in 0..12 {
            let mut places = pick(count, 10, |_| 0).expect("they are few");
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), count.min(10) as usize);
            assert!(places.iter().all(|&place| place < 10));
            assert_eq!(pick(-count, 1, |_| 0), Ok(vec![0; count as usize]));
        }
    }

    #[test]
    fn indices_count_from_either_end() {
        for (first, last, expected) in [
            (0, -1, 0..5),
            (-2, -1, 3..5),
            (-100, 1, 0..2),
            (1, 100, 1..5),
            (3, 1, 0..0),
            (5, 9, 0..0),
            (i64::MIN, i64::MAX, 0..5),
            (i64::MAX, i64::MIN, 0..0),
        ] {
            assert_eq!(places(first, last, 5), expected, "{first} to {last}");
            let of_string = places_of_string(first, last, 5);
            assert_eq!(of_string, (!expected.is_empty()).then_some(expected), "{first} to {last}");
        }
        assert_eq!((places(-9, -8, 5), places_of_string(-9, -8, 5)), (0..0, Some(0..1)));
        assert_eq!(places_of_string(0, -1, 0), None);
    }

    #[test]
    fn a_short_request_gets_no_endless_answer() {
        assert!(pick(-i64::MAX, 10, |_| 0).is_err());
        assert!(pick(-1000, 10, |_| 1 << 20).is_err());
        assert_eq!(pick(i64::MAX, 10, |_| 0).map(|places| places.len()), Ok(10));
    }
}
