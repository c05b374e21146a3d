//! The commands of ranges of sorted sets: by rank, by score, or by the members' bytes. Each becomes a range of ranks.

use std::ops::Range;

use super::{
    Group, Spec, counts, integer, is, read,
    sorted_sets::{member, scored},
    write,
};
use crate::{
    Error, Reply,
    keyspace::{Edited, KeyspaceMut, View},
    number,
    value::SortedSet,
};

pub(super) const COMMANDS: &[Spec] = &Group("sorted-set").of([
    read("zcount", 4, |keys, words| count_by(By::Score, keys, words))
        .doc("2.0.0", "Counts the members within a range of scores.")
        .fast(),
    read("zlexcount", 4, |keys, words| count_by(By::Lex, keys, words))
        .doc("2.8.9", "Counts the members within a range of strings.")
        .fast(),
    read("zrange", -4, |keys, words| answer(keys, words, Fixed::default()))
        .doc("1.2.0", "Returns the members within a range."),
    write("zrangestore", -5, store).doc("6.2.0", "Stores the members within a range.").keys(1, 2, 1),
    read("zrangebyscore", -4, |keys, words| answer(keys, words, Fixed::by(By::Score, false)))
        .doc("1.0.5", "Returns the members within a range of scores."),
    read("zrevrangebyscore", -4, |keys, words| answer(keys, words, Fixed::by(By::Score, true)))
        .doc("2.2.0", "As ZRANGEBYSCORE, from the highest."),
    read("zrangebylex", -4, |keys, words| answer(keys, words, Fixed::by(By::Lex, false)))
        .doc("2.8.9", "Returns the members within a range of strings."),
    read("zrevrangebylex", -4, |keys, words| answer(keys, words, Fixed::by(By::Lex, true)))
        .doc("2.8.9", "As ZRANGEBYLEX, from the last."),
    read("zrevrange", -4, |keys, words| answer(keys, words, Fixed::by(By::Rank, true)))
        .doc("1.2.0", "Returns the members within a range of ranks, reversed."),
    write("zremrangebyrank", 4, |keys, words| remove_by(By::Rank, keys, words))
        .doc("2.0.0", "Removes the members within a range of ranks."),
    write("zremrangebyscore", 4, |keys, words| remove_by(By::Score, keys, words))
        .doc("1.2.0", "Removes the members within a range of scores."),
    write("zremrangebylex", 4, |keys, words| remove_by(By::Lex, keys, words))
        .doc("2.8.9", "Removes the members within a range of strings."),
]);

/// The measure of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Lex,
}

/// One end of a range of scores.
#[derive(Clone, Copy, Debug)]
struct Limit {
    score: f64,
    excluded: bool,
}

impl Limit {
    /// Reads an end as C's `strtod` does, which Redis uses. Spaces before the number and a zero byte after it are
    /// allowed, and no text is 0.
    fn parse(word: &[u8]) -> Option<Limit> {
        let (word, excluded) = word.strip_prefix(b"(").map_or((word, false), |rest| (rest, true));
        let word = word.split(|byte| *byte == 0).next().unwrap_or_default();
        let score = if word.is_empty() { 0.0 } else { number::float(word.trim_ascii_start())? };
        Some(Limit { score, excluded })
    }

    fn is_above(self, score: f64) -> bool {
        if self.excluded { score <= self.score } else { score < self.score }
    }

    fn is_not_below(self, score: f64) -> bool {
        if self.excluded { score < self.score } else { score <= self.score }
    }
}

/// One end of a range of strings.
#[derive(Clone, Copy, Debug)]
enum Lex<'a> {
    Lowest,
    Highest,
    At { member: &'a [u8], excluded: bool },
}

impl<'a> Lex<'a> {
    fn parse(word: &'a [u8]) -> Option<Lex<'a>> {
        match word {
            b"-" => Some(Lex::Lowest),
            b"+" => Some(Lex::Highest),
            [b'[', member @ ..] => Some(Lex::At { member, excluded: false }),
            [b'(', member @ ..] => Some(Lex::At { member, excluded: true }),
            _ => None,
        }
    }

    fn is_above(self, member: &[u8]) -> bool {
        match self {
            Lex::Lowest => false,
            Lex::Highest => true,
            Lex::At { member: limit, excluded } => member < limit || excluded && member == limit,
        }
    }

    fn is_not_below(self, member: &[u8]) -> bool {
        match self {
            Lex::Lowest => false,
            Lex::Highest => true,
            Lex::At { member: limit, excluded } => member < limit || !excluded && member == limit,
        }
    }
}

/// A range, as it was asked for.
#[derive(Clone, Copy, Debug)]
enum Span<'a> {
    /// A range from one rank to another, both included; negative ones count from the other end.
    Ranks(i64, i64),
    Scores(Limit, Limit),
    Members(Lex<'a>, Lex<'a>),
}

impl<'a> Span<'a> {
    fn parse(by: By, min: &'a [u8], max: &'a [u8]) -> Result<Span<'a>, Error> {
        let both = match by {
            By::Rank => return Ok(Span::Ranks(integer(min)?, integer(max)?)),
            By::Score => Limit::parse(min).zip(Limit::parse(max)).map(|(min, max)| Span::Scores(min, max)),
            By::Lex => Lex::parse(min).zip(Lex::parse(max)).map(|(min, max)| Span::Members(min, max)),
        };
        both.ok_or(Error::fixed(match by {
            By::Lex => "ERR min or max not valid string range item",
            By::Rank | By::Score => "ERR min or max is not a float",
        }))
    }

    /// The ranks within the range. They count from the end that is the first in this direction.
    fn ranks(&self, set: &SortedSet, reversed: bool) -> Range<usize> {
        let len = set.len();
        let ranks = match *self {
            Span::Ranks(first, last) => {
                let Range { start, end } = counts::places(first, last, len);
                if reversed { len - end..len - start } else { start..end }
            }
            Span::Scores(min, max) => {
                set.rank_of_score(|score| min.is_above(score))..set.rank_of_score(|score| max.is_not_below(score))
            }
            Span::Members(min, max) => {
                set.rank_of_member(|name| min.is_above(name))..set.rank_of_member(|name| max.is_not_below(name))
            }
        };
        if ranks.is_empty() { 0..0 } else { ranks }
    }
}

/// A request of `ZRANGE` and its kin.
#[derive(Clone, Copy, Debug)]
struct RangeRequest<'a> {
    span: Span<'a>,
    reversed: bool,
    offset: i64,
    /// The most members; negative for any number.
    limit: i64,
    with_scores: bool,
}

/// The choices that a command's name makes; `None` leaves one to its options.
#[derive(Clone, Copy, Debug, Default)]
struct Fixed {
    by: Option<By>,
    reversed: Option<bool>,
    stores: bool,
}

impl Fixed {
    fn by(by: By, reversed: bool) -> Fixed {
        Fixed { by: Some(by), reversed: Some(reversed), stores: false }
    }
}

impl<'a> RangeRequest<'a> {
    /// Reads the ends of the range and what follows them.
    fn parse(words: &[&'a [u8]], fixed: Fixed) -> Result<RangeRequest<'a>, Error> {
        let (ends, mut rest) = words.split_at(2);
        let Fixed { mut by, mut reversed, stores } = fixed;
        let (mut offset, mut limit, mut with_scores) = (0, -1, false);
        while let [option, after @ ..] = rest {
            rest = after;
            match after {
                _ if !stores && is(option, "withscores") => with_scores = true,
                [skipped, most, after @ ..] if is(option, "limit") => {
                    (offset, limit) = (integer(skipped)?, integer(most)?);
                    rest = after;
                }
                _ if reversed.is_none() && is(option, "rev") => reversed = Some(true),
                _ if by.is_none() && is(option, "bylex") => by = Some(By::Lex),
                _ if by.is_none() && is(option, "byscore") => by = Some(By::Score),
                _ => return Err(Error::SYNTAX),
            }
        }
        let (by, reversed) = (by.unwrap_or(By::Rank), reversed.unwrap_or(false));
        if limit != -1 && by == By::Rank {
            let text = "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX";
            return Err(Error::fixed(text));
        }
        if with_scores && by == By::Lex {
            let text = "ERR syntax error, WITHSCORES not supported in combination with BYLEX";
            return Err(Error::fixed(text));
        }
        // A walk from the highest names the highest first. Ranks count from the end at which the walk begins.
        let swapped = reversed && by != By::Rank;
        let (min, max) = if swapped { (ends[1], ends[0]) } else { (ends[0], ends[1]) };
        Ok(RangeRequest { span: Span::parse(by, min, max)?, reversed, offset, limit, with_scores })
    }

    /// The ranks of the members that it finds.
    fn ranks(&self, set: &SortedSet) -> Range<usize> {
        let ranks = self.span.ranks(set, self.reversed);
        if let Span::Ranks(..) = self.span {
            return ranks;
        }
        let Ok(offset) = usize::try_from(self.offset) else { return 0..0 };
        let offset = offset.min(ranks.len());
        let len = usize::try_from(self.limit).unwrap_or(usize::MAX).min(ranks.len() - offset);
        if self.reversed {
            ranks.end - offset - len..ranks.end - offset
        } else {
            ranks.start + offset..ranks.start + offset + len
        }
    }

    fn answer(&self, set: Option<&SortedSet>) -> Reply {
        let Some(set) = set else { return Reply::Array(Vec::new()) };
        let found = set.range(self.ranks(set));
        match (self.with_scores, self.reversed) {
            (true, false) => Reply::Pairs(found.map(scored).collect()),
            (true, true) => Reply::Pairs(found.rev().map(scored).collect()),
            (false, false) => Reply::Array(found.map(|(name, _)| member(name)).collect()),
            (false, true) => Reply::Array(found.rev().map(|(name, _)| member(name)).collect()),
        }
    }
}

fn count_by(by: By, keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let span = Span::parse(by, words[2], words[3])?;
    let set = keys.typed::<SortedSet>(words[1])?;
    Ok(Reply::count(set.map_or(0, |set| span.ranks(set, false).len())))
}

fn answer(keys: &View<'_>, words: &[&[u8]], fixed: Fixed) -> Result<Reply, Error> {
    let query = RangeRequest::parse(&words[2..], fixed)?;
    Ok(query.answer(keys.typed(words[1])?))
}

fn store(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let query = RangeRequest::parse(&words[3..], Fixed { stores: true, ..Fixed::default() })?;
    let found: SortedSet = match keys.view().typed::<SortedSet>(words[2])? {
        Some(set) => set.range(query.ranks(set)).map(|(member, score)| (&**member, score)).collect(),
        None => SortedSet::default(),
    };
    Ok(put(keys, words[1], found))
}

/// Sets a key to the members that a command has found, and answers their number. A key that would be empty is removed.
pub(super) fn put(keys: &mut KeyspaceMut<'_>, key: &[u8], found: SortedSet) -> Reply {
    let count = found.len();
    keys.put_unless_empty(key, found);
    Reply::count(count)
}

fn remove_by(by: By, keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let span = Span::parse(by, words[2], words[3])?;
    keys.edit(words[1], |set: &mut SortedSet| {
        let removed = set.drain(span.ranks(set, false)).len();
        Ok(Edited::when(removed > 0, Reply::count(removed)))
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::Shell;

    #[test]
    fn a_million_members_are_found_by_rank_score_and_bytes() {
        let mut shell = Shell::new();
        for thousand in 0..1000 {
            let pair = |number| format!("{number} m{number:06}");
            let pairs: Vec<_> = (0..1000).map(|unit| pair(unit * 1000 + (thousand * 7919) % 1000)).collect();
            shell.ask(&format!("zadd z {}", pairs.join(" ")));
        }
        assert_eq!(shell.ask("zcard z"), ":1000000");
        assert_eq!(shell.ask("zrank z m765432"), ":765432");
        assert_eq!(shell.ask("zrange z 500000 500001"), "[\"m500000\", \"m500001\"]");
        assert_eq!(shell.ask("zrange z (10 20 byscore limit 3 2"), "[\"m000014\", \"m000015\"]");
        assert_eq!(shell.ask("zcount z (1000 +inf"), ":998999");
        assert_eq!(shell.ask("zremrangebyrank z 10 -11"), ":999980");
        assert_eq!(shell.ask("zrange z 9 10"), "[\"m000009\", \"m999990\"]");
    }
}
