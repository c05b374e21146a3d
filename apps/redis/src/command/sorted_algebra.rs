//! Unions, intersections and differences of sorted sets, and of plain sets, whose members all have the score 1.

use foldhash::fast::RandomState;
use indexmap::{IndexMap, IndexSet};

use super::{Group, Spec, counts, integer, is, name, read, sorted_ranges::put, write};
use crate::{
    Error, Reply,
    keyspace::{KeyspaceMut, View},
    number,
    value::{Set, SortedSet, Typed, order},
};

pub(super) const COMMANDS: &[Spec] = &Group("sorted-set").of([
    read("zunion", -3, |keys, words| answer(Operation::Union, keys, words))
        .doc("6.2.0", "Returns the union of sets.")
        .no_keys(),
    read("zinter", -3, |keys, words| answer(Operation::Inter, keys, words))
        .doc("6.2.0", "Returns the intersection of sets.")
        .no_keys(),
    read("zdiff", -3, |keys, words| answer(Operation::Diff, keys, words))
        .doc("6.2.0", "Returns the first set without what others hold.")
        .no_keys(),
    read("zintercard", -3, intercard).doc("7.0.0", "Counts the members of an intersection.").no_keys(),
    write("zunionstore", -4, |keys, words| store(Operation::Union, keys, words))
        .doc("2.0.0", "Stores the union of sets.")
        .keys(1, 1, 1),
    write("zinterstore", -4, |keys, words| store(Operation::Inter, keys, words))
        .doc("2.0.0", "Stores the intersection of sets.")
        .keys(1, 1, 1),
    write("zdiffstore", -4, |keys, words| store(Operation::Diff, keys, words))
        .doc("6.2.0", "Stores the first set without the others.")
        .keys(1, 1, 1),
]);

/// An operation on sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Union,
    Inter,
    Diff,
}

/// The combination of a member's scores in several sets.
#[derive(Clone, Copy, Debug)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn of(self, one: f64, other: f64) -> f64 {
        match self {
            Aggregate::Sum => or_zero(one + other),
            // Unlike `f64::min`, the first stays if the other is not a number or the same.
            Aggregate::Min => {
                if other < one {
                    other
                } else {
                    one
                }
            }
            Aggregate::Max => {
                if other > one {
                    other
                } else {
                    one
                }
            }
        }
    }
}

/// Infinities that cancel each other out, or are weighed with 0, give 0.
fn or_zero(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

/// A set of either type; neither if the key is absent.
#[derive(Clone, Copy, Debug)]
struct Source<'a> {
    sorted: Option<&'a SortedSet>,
    plain: Option<&'a Set>,
    weight: f64,
}

impl<'a> Source<'a> {
    fn find(keys: &View<'a>, key: &[u8]) -> Result<Source<'a>, Error> {
        let value = keys.get(key);
        let source = Source { sorted: value.and_then(Typed::of), plain: value.and_then(Typed::of), weight: 1.0 };
        if value.is_some() && source.sorted.is_none() && source.plain.is_none() {
            return Err(Error::WRONG_TYPE);
        }
        Ok(source)
    }

    fn len(&self) -> usize {
        self.sorted.map_or(0, SortedSet::len) + self.plain.map_or(0, Set::len)
    }

    fn contains(&self, member: &[u8]) -> bool {
        self.score(member).is_some()
    }

    fn score(&self, member: &[u8]) -> Option<f64> {
        match self.sorted {
            Some(sorted) => sorted.score(member),
            None => self.plain.is_some_and(|plain| plain.contains(member)).then_some(1.0),
        }
    }

    fn weighed(&self, score: f64) -> f64 {
        or_zero(self.weight * score)
    }

    fn iter(&self) -> impl Iterator<Item = (&'a [u8], f64)> + use<'a> {
        let sorted = self.sorted.into_iter().flat_map(SortedSet::iter);
        sorted.chain(self.plain.into_iter().flat_map(Set::iter).map(|member| (member, 1.0)))
    }
}

/// Refuses large sets that are named more than once. A few words could have one looked at any number of times.
fn refuse_repeats(names: &[&[u8]], sources: &[Source<'_>]) -> Result<(), Error> {
    let mut seen = IndexSet::<&[u8], RandomState>::default();
    let repeats = names.iter().zip(sources).filter(|(name, _)| !seen.insert(name)).map(|(_, source)| source.len());
    if repeats.sum::<usize>() as u64 > counts::MAX_REPEATS {
        return Err(Error::fixed("ERR large sets are named more than once"));
    }
    Ok(())
}

/// The use of the result, which decides the words that may follow the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Answer,
    Store,
    Count,
}

/// A request for a union, intersection or difference.
struct AlgebraRequest<'a> {
    operation: Operation,
    sources: Vec<Source<'a>>,
    aggregate: Aggregate,
    with_scores: bool,
    /// The most members that are counted; 0 for all.
    limit: usize,
}

impl<'a> AlgebraRequest<'a> {
    /// Reads the words of a request.
    fn parse(
        operation: Operation,
        purpose: Purpose,
        keys: &View<'a>,
        words: &[&[u8]],
    ) -> Result<AlgebraRequest<'a>, Error> {
        let at = if purpose == Purpose::Store { 2 } else { 1 };
        let count = integer(words[at])?;
        if count < 1 {
            return Err(Error::new(format!("ERR at least 1 input key is needed for '{}' command", name(words))));
        }
        let count = usize::try_from(count).map_err(|_| Error::SYNTAX)?;
        let (names, mut rest) = words[at + 1..].split_at_checked(count).ok_or(Error::SYNTAX)?;
        let mut sources = names.iter().map(|key| Source::find(keys, key)).collect::<Result<Vec<_>, _>>()?;
        refuse_repeats(names, &sources)?;
        let (mut aggregate, mut with_scores, mut limit) = (Aggregate::Sum, false, 0);
        let scores_matter = operation != Operation::Diff && purpose != Purpose::Count;
        while let [option, after @ ..] = rest {
            rest = after;
            if scores_matter && after.len() >= count && is(option, "weights") {
                let (weights, after) = after.split_at(count);
                for (source, weight) in sources.iter_mut().zip(weights) {
                    source.weight = number::float(weight).ok_or(Error::fixed("ERR weight value is not a float"))?;
                }
                rest = after;
            } else if scores_matter
                && is(option, "aggregate")
                && let [how, after @ ..] = after
            {
                aggregate = match how {
                    _ if is(how, "sum") => Aggregate::Sum,
                    _ if is(how, "min") => Aggregate::Min,
                    _ if is(how, "max") => Aggregate::Max,
                    _ => return Err(Error::SYNTAX),
                };
                rest = after;
            } else if purpose == Purpose::Answer && is(option, "withscores") {
                with_scores = true;
            } else if purpose == Purpose::Count
                && is(option, "limit")
                && let [most, after @ ..] = after
            {
                limit = counts::at_least(0, most, "ERR LIMIT can't be negative")?;
                rest = after;
            } else {
                return Err(Error::SYNTAX);
            }
        }
        if operation != Operation::Diff {
            sources.sort_by_key(Source::len);
        }
        Ok(AlgebraRequest { operation, sources, aggregate, with_scores, limit })
    }

    /// The members of the result and their scores, in order.
    fn result(&self) -> Vec<(&'a [u8], f64)> {
        let mut found: Vec<_> = match self.operation {
            Operation::Union => self.union().into_iter().collect(),
            Operation::Inter => self.intersection().collect(),
            Operation::Diff => self.difference().into_iter().collect(),
        };
        found.sort_unstable_by(|one, other| order(*one, *other));
        found
    }

    fn union(&self) -> IndexMap<&'a [u8], f64, RandomState> {
        let mut union = IndexMap::<_, _, RandomState>::default();
        for source in &self.sources {
            for (member, score) in source.iter() {
                let score = source.weighed(score);
                union.entry(member).and_modify(|sum| *sum = self.aggregate.of(*sum, score)).or_insert(score);
            }
        }
        union
    }

    fn intersection(&self) -> impl Iterator<Item = (&'a [u8], f64)> {
        let (first, others) = self.sources.split_first().expect("one key at least");
        first.iter().filter_map(|(member, score)| {
            let sum = others.iter().try_fold(first.weighed(score), |sum, other| {
                Some(self.aggregate.of(sum, other.weight * other.score(member)?))
            });
            Some((member, sum?))
        })
    }

    /// The members of the first set alone. Looks at no more elements than the sets have.
    fn difference(&self) -> IndexMap<&'a [u8], f64, RandomState> {
        let (first, others) = self.sources.split_first().expect("one key at least");
        let mut left: IndexMap<_, _, RandomState> = first.iter().collect();
        for other in others {
            if other.len() < left.len() {
                other.iter().for_each(|(member, _)| _ = left.swap_remove(member));
            } else {
                left.retain(|member, _| !other.contains(member));
            }
        }
        left
    }
}

fn answer(operation: Operation, keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let query = AlgebraRequest::parse(operation, Purpose::Answer, keys, words)?;
    let found = query.result().into_iter();
    Ok(if query.with_scores {
        Reply::Pairs(found.map(|(member, score)| (Reply::bytes(member), Reply::Double(score))).collect())
    } else {
        Reply::array_of_bytes(found.map(|(member, _)| member))
    })
}

fn intercard(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let query = AlgebraRequest::parse(Operation::Inter, Purpose::Count, keys, words)?;
    let most = if query.limit == 0 { usize::MAX } else { query.limit };
    Ok(Reply::count(query.intersection().take(most).count()))
}

fn store(operation: Operation, keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let query = AlgebraRequest::parse(operation, Purpose::Store, &keys.view(), words)?;
    let found: SortedSet = query.result().into_iter().collect();
    Ok(put(keys, words[1], found))
}

#[cfg(test)]
mod tests {
    use crate::testing::Shell;

    #[test]
    fn a_difference_is_not_looked_for_again_for_each_set() {
        let mut shell = Shell::new();
        let pairs: Vec<_> = (0..100_000).map(|member| format!("{member} m{member}")).collect();
        shell.ask(&format!("zadd z {}", pairs.join(" ")));
        shell.ask("zadd y 1 m7 1 m8 1 x");
        let absent: Vec<_> = (0..100_000).map(|key| format!("absent{key}")).collect();
        assert_eq!(shell.ask(&format!("zdiffstore out 100002 z y {}", absent.join(" "))), ":99998");
        assert_eq!(shell.ask("zscore out m7"), "nil");
        assert_eq!(shell.ask("zscore out m9"), ",9");
    }

    #[test]
    fn a_large_set_is_not_named_again_and_again() {
        let mut shell = Shell::new();
        let pairs: Vec<_> = (0..20_000).map(|member| format!("{member} m{member}")).collect();
        shell.ask(&format!("zadd z {}", pairs.join(" ")));
        assert_eq!(shell.ask("zunionstore out 2 z z"), ":20000");
        assert_eq!(shell.ask("zscore out m3"), ",6");
        let many = ["z"; 10_000].join(" ");
        for command in ["zunionstore out", "zinterstore out", "zdiffstore out", "zintercard"] {
            let refused = "-ERR large sets are named more than once";
            assert_eq!(shell.ask(&format!("{command} 10000 {many}")), refused, "{command}");
        }
    }
}
