//! How many elements a request asks for, and which they are where any will do.

use foldhash::fast::RandomState;
use indexmap::IndexSet;

use super::integer;
use crate::{Error, number};

/// How often a request may have elements repeated, and the bytes that all of them may have: a few words could ask for any
/// number otherwise.
const MAX_REPEATS: u64 = 1 << 20;
const MAX_REPEATED_BYTES: usize = 64 << 20;

/// A word that must be a whole number of at least `min`. `error` says so.
pub(super) fn at_least(min: i64, word: &[u8], error: &'static str) -> Result<usize, Error> {
    let number = number::integer(word).filter(|&number| number >= min).ok_or(Error::fixed(error))?;
    usize::try_from(number).map_err(|_| Error::OUT_OF_RANGE)
}

/// A word that must be a whole number of at least 0.
pub(super) fn natural(word: &[u8]) -> Result<usize, Error> {
    at_least(0, word, "ERR value is out of range, must be positive")
}

/// A word that must be a whole number whose negative is one too.
pub(super) fn signed(word: &[u8]) -> Result<i64, Error> {
    let range = "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";
    integer(word).and_then(|count| if count == i64::MIN { Err(Error::fixed(range)) } else { Ok(count) })
}

/// Random places among `len`: so many different ones, or all if there are no more; for a negative count so many, of which
/// any may be the same. `bytes` says how many a place adds to the answer.
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
    fn a_short_request_gets_no_endless_answer() {
        assert!(pick(-i64::MAX, 10, |_| 0).is_err());
        assert!(pick(-1000, 10, |_| 1 << 20).is_err());
        assert_eq!(pick(i64::MAX, 10, |_| 0).map(|places| places.len()), Ok(10));
    }
}
