//! Walks over many elements in small steps, for `SCAN` and its kin.
//!
//! The elements lie in a row. New ones are put at its end, and the last takes the place of one that is removed. A walk
//! goes from the end to the beginning, so no element can slip past it. It meets every element that is there during the
//! whole walk. It may meet one twice.

use super::{integer, is};
use crate::{Error, Reply, keyspace::View, value::Typed};

/// The elements of a walk, which decide the options that are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allowed {
    /// The keys, of which `TYPE` chooses some.
    Keys,
    /// The elements of one value: only `MATCH` and `COUNT` are allowed.
    Elements,
}

/// One step of a walk, as a client asks for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scan<'a> {
    /// The place at which the last step ended; 0 at first.
    cursor: usize,
    /// The number of places that this step looks at.
    count: usize,
    /// The pattern that elements must match.
    pattern: Option<&'a [u8]>,
    /// The type that keys must have.
    pub(super) kind: Option<&'a [u8]>,
}

impl<'a> Scan<'a> {
    /// The number of places that a step looks at by default.
    const COUNT: usize = 10;

    /// Reads the cursor and the words after it.
    pub(super) fn parse(cursor: &'a [u8], options: &[&'a [u8]], allowed: Allowed) -> Result<Scan<'a>, Error> {
        let cursor = str::from_utf8(cursor).ok().and_then(|cursor| cursor.parse().ok());
        let cursor = cursor.ok_or(Error::fixed("ERR invalid cursor"))?;
        let mut scan = Scan { cursor, count: Self::COUNT, pattern: None, kind: None };
        let mut options = options.iter();
        while let Some(option) = options.next() {
            let value = *options.next().ok_or(Error::SYNTAX)?;
            if is(option, "count") {
                scan.count = usize::try_from(integer(value)?).ok().filter(|&count| count > 0).ok_or(Error::SYNTAX)?;
            } else if is(option, "match") {
                scan.pattern = Some(value);
            } else if allowed == Allowed::Keys && is(option, "type") {
                scan.kind = Some(value);
            } else {
                return Err(Error::SYNTAX);
            }
        }
        Ok(scan)
    }

    /// Reads the words of a request that walks over the elements of one value, and finds the value.
    ///
    /// `None` if the key is absent. As in Redis, wrong options are no error then.
    pub(super) fn of_value<T: Typed + 'a>(
        keys: &View<'a>,
        words: &[&'a [u8]],
    ) -> Result<Option<(&'a T, Scan<'a>)>, Error> {
        Scan::parse(words[2], &[], Allowed::Elements)?;
        let Some(value) = keys.typed(words[1])? else { return Ok(None) };
        Ok(Some((value, Scan::parse(words[2], &words[3..], Allowed::Elements)?)))
    }

    /// Visits the next places of a row that has `places`. Returns the cursor for the next step; 0 at the end.
    pub(super) fn walk(&self, places: usize, visit: impl FnMut(usize)) -> usize {
        let from = if self.cursor == 0 { places } else { self.cursor.min(places) };
        let to = from.saturating_sub(self.count);
        (to..from).rev().for_each(visit);
        to
    }

    /// Visits places as [`walk`](Scan::walk) does, in a row where only `taken` of them hold an element. It looks at
    /// correspondingly more places.
    pub(super) fn walk_sparse(&self, places: usize, taken: usize, visit: impl FnMut(usize)) -> usize {
        let sparse = places.checked_div(taken).unwrap_or(1).max(1);
        Scan { count: self.count.saturating_mul(sparse), ..*self }.walk(places, visit)
    }

    /// Whether an element is to be shown.
    pub(super) fn matches(&self, element: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| crate::pattern::matches(pattern, element))
    }

    /// The answer to a step.
    pub(super) fn reply(next: usize, elements: Vec<Reply>) -> Reply {
        Reply::Array(vec![Reply::bytes(next.to_string()), Reply::Array(elements)])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use indexmap::IndexSet;
    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u8),
        Remove(u8),
        Step(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            2 => any::<u8>().prop_map(Op::Insert),
            2 => any::<u8>().prop_map(Op::Remove),
            1 => (1usize..20).prop_map(Op::Step),
        ]
    }

    proptest! {
        #[test]
        fn a_walk_meets_every_element_that_is_there_all_the_while(
            first in vec(any::<u8>(), 0..200),
            ops in vec(op(), 0..200),
        ) {
            let mut row: IndexSet<u8> = first.into_iter().collect();
            let mut staying: BTreeSet<u8> = row.iter().copied().collect();
            let mut met = BTreeSet::new();
            let mut scan = Scan { cursor: 0, count: 1, pattern: None, kind: None };
            // The rest of the walk, without changes.
            let rest = std::iter::repeat_n(Op::Step(1), 256 + 1);
            for op in ops.into_iter().chain(rest) {
                match op {
                    Op::Insert(element) => {
                        row.insert(element);
                    }
                    Op::Remove(element) => {
                        row.swap_remove(&element);
                        staying.remove(&element);
                    }
                    Op::Step(count) => {
                        scan.count = count;
                        scan.cursor = scan.walk(row.len(), |place| {
                            met.insert(row[place]);
                        });
                        if scan.cursor == 0 {
                            break;
                        }
                    }
                }
            }
            prop_assert_eq!(scan.cursor, 0);
            prop_assert!(staying.is_subset(&met));
        }
    }

    #[test]
    fn only_the_options_of_a_walk_are_taken() {
        let parse = |options: &[&'static str], allowed| {
            let options: Vec<_> = options.iter().map(|option| option.as_bytes()).collect();
            Scan::parse(b"7", &options, allowed).map(|scan| (scan.count, scan.pattern.is_some(), scan.kind.is_some()))
        };
        assert_eq!(parse(&[], Allowed::Elements), Ok((10, false, false)));
        assert_eq!(parse(&["MATCH", "a*", "count", "3"], Allowed::Elements), Ok((3, true, false)));
        assert_eq!(parse(&["type", "set"], Allowed::Keys), Ok((10, false, true)));
        assert_eq!(parse(&["type", "set"], Allowed::Elements), Err(Error::SYNTAX));
        assert_eq!(parse(&["count", "0"], Allowed::Keys), Err(Error::SYNTAX));
        assert_eq!(parse(&["count", "x"], Allowed::Keys), Err(Error::NOT_AN_INTEGER));
        assert_eq!(parse(&["count"], Allowed::Keys), Err(Error::SYNTAX));
        assert_eq!(parse(&["novalues"], Allowed::Elements), Err(Error::SYNTAX));
        for cursor in ["x", "", "-1", " 1", "1.0"] {
            assert!(Scan::parse(cursor.as_bytes(), &[], Allowed::Keys).is_err(), "{cursor:?}");
        }
    }
}
