//! The commands of sorted sets' members.

use std::{ops::Range, sync::Arc};

use super::{Group, Spec, arity, counts, is, len, read, scan::Scan, write};
use crate::{
    Error, Reply, Text,
    keyspace::{Edited, KeyspaceMut, View},
    number,
    value::SortedSet,
};

pub(super) const COMMANDS: &[Spec] = &Group("sorted-set").of([
    write("zadd", -4, add).doc("1.2.0", "Adds members, or changes their scores.").fast(),
    write("zincrby", 4, |keys, words| increment(keys, words[1], words[2], words[3], Condition::default()))
        .doc("1.2.0", "Adds to a member's score.")
        .fast(),
    write("zrem", -3, remove).doc("1.2.0", "Removes members.").fast(),
    read("zscore", 3, score).doc("1.2.0", "Returns a member's score.").fast(),
    read("zmscore", -3, scores).doc("6.2.0", "Returns the scores of members.").fast(),
    read("zcard", 2, |keys, words| len(keys, words, SortedSet::len))
        .doc("1.2.0", "Returns how many members there are.")
        .fast(),
    read("zrank", -3, |keys, words| rank_from(ScoreEnd::Lowest, keys, words))
        .doc("2.0.0", "Returns a member's rank, from the lowest score.")
        .fast(),
    read("zrevrank", -3, |keys, words| rank_from(ScoreEnd::Highest, keys, words))
        .doc("2.0.0", "Returns a member's rank, from the highest score.")
        .fast(),
    write("zpopmin", -2, |keys, words| pop_some(ScoreEnd::Lowest, keys, words))
        .doc("5.0.0", "Removes the members with the lowest scores.")
        .fast(),
    write("zpopmax", -2, |keys, words| pop_some(ScoreEnd::Highest, keys, words))
        .doc("5.0.0", "Removes the members with the highest scores.")
        .fast(),
    write("zmpop", -4, mpop).doc("7.0.0", "Pops members of the first set that has any.").no_keys(),
    read("zrandmember", -2, random).doc("6.2.0", "Returns members at random."),
    read("zscan", -3, scan).doc("2.8.0", "Walks over the members, a few at a time."),
]);

/// The answer for a member, which shares the store's bytes.
pub(super) fn member(member: &Arc<[u8]>) -> Reply {
    Reply::Text(Text::Fixed(Arc::clone(member)))
}

/// The answer for a member and its score.
pub(super) fn scored((name, score): (&Arc<[u8]>, f64)) -> (Reply, Reply) {
    (member(name), Reply::Double(score))
}

/// The conditions under which `ZADD` changes a member.
#[derive(Clone, Copy, Debug, Default)]
struct Condition {
    if_absent: bool,
    if_present: bool,
    if_greater: bool,
    if_less: bool,
}

impl Condition {
    fn check(self) -> Result<(), Error> {
        let Condition { if_absent, if_present, if_greater, if_less } = self;
        if if_absent && if_present {
            return Err(Error::fixed("ERR XX and NX options at the same time are not compatible"));
        }
        if (if_absent && (if_greater || if_less)) || (if_greater && if_less) {
            return Err(Error::fixed("ERR GT, LT, and/or NX options at the same time are not compatible"));
        }
        Ok(())
    }

    fn holds(self, old: Option<f64>, new: f64) -> bool {
        match old {
            None => !self.if_present,
            Some(old) => !(self.if_absent || self.if_greater && new <= old || self.if_less && new >= old),
        }
    }
}

fn add(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let mut condition = Condition::default();
    let (mut counts_changed, mut increments) = (false, false);
    let mut rest = &words[2..];
    while let [option, after @ ..] = rest {
        let flag = match option {
            _ if is(option, "nx") => &mut condition.if_absent,
            _ if is(option, "xx") => &mut condition.if_present,
            _ if is(option, "gt") => &mut condition.if_greater,
            _ if is(option, "lt") => &mut condition.if_less,
            _ if is(option, "ch") => &mut counts_changed,
            _ if is(option, "incr") => &mut increments,
            _ => break,
        };
        *flag = true;
        rest = after;
    }
    if rest.is_empty() || !rest.len().is_multiple_of(2) {
        return Err(Error::SYNTAX);
    }
    condition.check()?;
    if increments {
        return match rest {
            [by, member] => increment(keys, words[1], by, member, condition),
            _ => Err(Error::fixed("ERR INCR option supports a single increment-element pair")),
        };
    }
    // All scores are read before any is set, since a command that fails changes nothing.
    let scores = rest.iter().step_by(2).map(|score| number::float(score).ok_or(Error::NOT_A_FLOAT));
    let scores = scores.collect::<Result<smallvec::SmallVec<[f64; 4]>, Error>>()?;
    keys.edit(words[1], |set: &mut SortedSet| {
        let (mut added, mut changed) = (0, 0);
        for (&score, member) in scores.iter().zip(rest.iter().skip(1).step_by(2)) {
            let old = set.score(member);
            if old != Some(score) && condition.holds(old, score) {
                set.insert(member, score);
                *(if old.is_none() { &mut added } else { &mut changed }) += 1;
            }
        }
        let count = if counts_changed { added + changed } else { added };
        Ok(Edited::when(added + changed > 0, Reply::count(count)))
    })
}

fn increment(
    keys: &mut KeyspaceMut<'_>,
    key: &[u8],
    by: &[u8],
    member: &[u8],
    condition: Condition,
) -> Result<Reply, Error> {
    let by = number::float(by).ok_or(Error::NOT_A_FLOAT)?;
    keys.edit(key, |set: &mut SortedSet| {
        let old = set.score(member);
        // An absent member gets the number as it is: 0 + -0 would be 0.
        let sum = old.map_or(by, |old| old + by);
        if sum.is_nan() {
            return Err(Error::fixed("ERR resulting score is not a number (NaN)"));
        }
        if !condition.holds(old, sum) {
            return Ok(Edited::Unchanged(Reply::Null));
        }
        set.insert(member, sum);
        Ok(Edited::when(old != Some(sum), Reply::Double(sum)))
    })
}

fn remove(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    keys.edit(words[1], |set: &mut SortedSet| {
        let removed = words[2..].iter().filter(|member| set.remove(member).is_some()).count();
        Ok(Edited::when(removed > 0, Reply::count(removed)))
    })
}

fn score(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let set = keys.typed::<SortedSet>(words[1])?;
    Ok(set.and_then(|set| set.score(words[2])).map_or(Reply::Null, Reply::Double))
}

fn scores(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let set = keys.typed::<SortedSet>(words[1])?;
    let score = |member: &&[u8]| set.and_then(|set| set.score(member)).map_or(Reply::Null, Reply::Double);
    Ok(Reply::Array(words[2..].iter().map(score).collect()))
}

/// The end from which members are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScoreEnd {
    Lowest,
    Highest,
}

fn rank_from(end: ScoreEnd, keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let with_score = match words[3..] {
        [] => false,
        [option] if is(option, "withscore") => true,
        [_] => return Err(Error::SYNTAX),
        _ => return Err(arity(words)),
    };
    let found = keys.typed::<SortedSet>(words[1])?.and_then(|set| {
        let rank = set.rank(words[2])?;
        let rank = if end == ScoreEnd::Lowest { rank } else { set.len() - 1 - rank };
        Some((Reply::count(rank), Reply::Double(set.score(words[2])?)))
    });
    Ok(match found {
        Some((rank, score)) if with_score => Reply::Array(vec![rank, score]),
        Some((rank, _)) => rank,
        None if with_score => Reply::NullArray,
        None => Reply::Null,
    })
}

fn pop_some(end: ScoreEnd, keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    match words[2..] {
        // One member is a flat array in both versions of the protocol.
        [] => {
            let popped = pop(end, keys, words[1], 1)?;
            Ok(Reply::Array(popped.into_iter().flat_map(|(member, score)| [member, score]).collect()))
        }
        [count] => Ok(Reply::Pairs(pop(end, keys, words[1], counts::natural(count)?)?)),
        _ => Err(Error::SYNTAX),
    }
}

pub(super) fn pop(
    end: ScoreEnd,
    keys: &mut KeyspaceMut<'_>,
    key: &[u8],
    count: usize,
) -> Result<Vec<(Reply, Reply)>, Error> {
    keys.edit(key, |set: &mut SortedSet| {
        let count = count.min(set.len());
        let first = if end == ScoreEnd::Lowest { 0 } else { set.len() - count };
        let mut popped: Vec<_> =
            set.drain(first..first + count).map(|(member, score)| scored((&member, score))).collect();
        if end == ScoreEnd::Highest {
            popped.reverse();
        }
        Ok(Edited::when(count > 0, popped))
    })
}

fn mpop(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let MultiPop { keys: sets, end, count } = MultiPop::parse(&words[1..])?;
    for key in &words[1..][sets] {
        if keys.view().typed::<SortedSet>(key)?.is_some() {
            return pop_named(end, keys, key, count);
        }
    }
    Ok(Reply::NullArray)
}

/// The words of `ZMPOP` behind its name.
pub(super) struct MultiPop {
    /// The places of the keys among them.
    pub(super) keys: Range<usize>,
    pub(super) end: ScoreEnd,
    pub(super) count: usize,
}

impl MultiPop {
    pub(super) fn parse(words: &[&[u8]]) -> Result<MultiPop, Error> {
        let sets = counts::at_least(1, words[0], "ERR numkeys should be greater than 0")?;
        let (_, rest) = words[1..].split_at_checked(sets).ok_or(Error::SYNTAX)?;
        let (end, options) = match rest {
            [end, options @ ..] if is(end, "min") => (ScoreEnd::Lowest, options),
            [end, options @ ..] if is(end, "max") => (ScoreEnd::Highest, options),
            _ => return Err(Error::SYNTAX),
        };
        let at_least_one = |count| counts::at_least(1, count, "ERR count should be greater than 0");
        let count = match options {
            [] => 1,
            [option, count] if is(option, "count") => at_least_one(count)?,
            // Redis reads the first count before it sees the words after it.
            [option, count, ..] if is(option, "count") => at_least_one(count).and(Err(Error::SYNTAX))?,
            _ => return Err(Error::SYNTAX),
        };
        Ok(MultiPop { keys: 1..sets + 1, end, count })
    }
}

/// Removes members at an end of a set. The answer begins with the set's key.
pub(super) fn pop_named(end: ScoreEnd, keys: &mut KeyspaceMut<'_>, key: &[u8], count: usize) -> Result<Reply, Error> {
    let popped = pop(end, keys, key, count)?;
    let popped = popped.into_iter().map(|(member, score)| Reply::Array(vec![member, score])).collect();
    Ok(Reply::Array(vec![Reply::bytes(key), Reply::Array(popped)]))
}

fn random(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let Some((count, with_scores)) = counts::with_option(&words[2..], "withscores")? else {
        let set = keys.typed::<SortedSet>(words[1])?;
        let picked = set.and_then(|set| set.get(fastrand::usize(..set.len())));
        return Ok(picked.map_or(Reply::Null, |(name, _)| member(name)));
    };
    let Some(set) = keys.typed::<SortedSet>(words[1])? else { return Ok(Reply::Array(Vec::new())) };
    let ranks = counts::pick(count, set.len(), |rank| set.get(rank).map_or(0, |(name, _)| name.len()))?;
    let picked = ranks.into_iter().filter_map(|rank| set.get(rank));
    Ok(if with_scores {
        Reply::Pairs(picked.map(scored).collect())
    } else {
        Reply::Array(picked.map(|(name, _)| member(name)).collect())
    })
}

fn scan(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let Some((set, scan)) = Scan::of_value::<SortedSet>(keys, words)? else { return Ok(Scan::reply(0, Vec::new())) };
    let mut found = Vec::new();
    let mut visit = |(name, score): (&Arc<[u8]>, f64)| {
        if scan.matches(name) {
            found.extend([member(name), Reply::bytes(number::double(score))]);
        }
    };
    let next = match set.places() {
        Some(places) => scan.walk(places, |place| set.at(place).into_iter().for_each(&mut visit)),
        None => {
            set.range(0..set.len()).for_each(visit);
            0
        }
    };
    Ok(Scan::reply(next, found))
}

#[cfg(test)]
mod tests {
    use crate::testing::Shell;

    #[test]
    fn a_rank_comes_with_its_score_on_request() {
        let mut shell = Shell::new();
        shell.ask("zadd z 1 a 2 b 3 c");
        assert_eq!(shell.ask("zrank z b withscore"), "[:1, ,2]");
        assert_eq!(shell.ask("zrevrank z a WITHSCORE"), "[:2, ,1]");
        assert_eq!(shell.ask("zrank z x withscore"), "nil[]");
        assert_eq!(shell.ask("zrank none x withscore"), "nil[]");
        assert_eq!(shell.ask("zrank z x"), "nil");
        assert_eq!(shell.ask("zrank z a scores"), "-ERR syntax error");
        assert_eq!(shell.ask("zrank z a withscore x"), "-ERR wrong number of arguments for 'zrank' command");
    }

    #[test]
    fn members_and_scores_are_pairs_but_where_one_is_popped() {
        let mut shell = Shell::new();
        shell.ask("zadd z 1 a 2 b 3 c 4.5 d");
        assert_eq!(shell.ask("zrange z 0 1 withscores"), "{\"a\": ,1, \"b\": ,2}");
        assert_eq!(shell.ask("zunion 1 z withscores").matches(": ,").count(), 4);
        assert_eq!(shell.ask("zpopmin z"), "[\"a\", ,1]");
        assert_eq!(shell.ask("zpopmax z 1"), "{\"d\": ,4.5}");
        assert_eq!(shell.ask("zmpop 1 z min count 9"), "[\"z\", [[\"b\", ,2], [\"c\", ,3]]]");
        assert_eq!(shell.ask("zcard z"), ":0");
    }

    #[test]
    fn what_leaves_a_set_as_it_was_is_no_change() {
        let mut shell = Shell::new();
        shell.ask("zadd z 1 a");
        let before = shell.store.watch(b"z", shell.now_ms);
        for line in ["zadd z 1 a", "zadd z gt 0 a", "zadd z nx 2 a", "zincrby z 0 a", "zrem z b", "zpopmin z 0"] {
            shell.ask(line);
            assert_eq!(shell.store.watch(b"z", shell.now_ms), before, "{line}");
        }
        shell.ask("zadd z 2 a");
        assert_ne!(shell.store.watch(b"z", shell.now_ms), before);
    }

    #[test]
    fn random_members_are_different_unless_they_may_repeat() {
        let mut shell = Shell::new();
        let names: Vec<_> = (0..100).map(|name| format!("{name} m{name}")).collect();
        shell.ask(&format!("zadd z {}", names.join(" ")));
        assert_eq!(shell.ask("zrandmember z 70").matches('m').count(), 70);
        assert_eq!(shell.ask("zrandmember z 700").matches('m').count(), 100);
        assert_eq!(shell.ask("zrandmember z -700").matches('m').count(), 700);
        assert!(shell.ask("zrandmember z -9000000000").starts_with("-ERR value is out of range"));
    }

    #[test]
    fn a_scan_meets_all_that_stay_while_others_go() {
        let mut shell = Shell::new();
        for name in 0..1000 {
            shell.ask(&format!("zadd z {name} m{name}"));
        }
        let (mut cursor, mut seen) = ("0".to_owned(), String::new());
        for turn in (0..1000).step_by(2) {
            let answer = shell.ask(&format!("zscan z {cursor} count 3"));
            cursor = answer.split('"').nth(1).expect("a cursor").to_owned();
            seen.push_str(&answer);
            if cursor == "0" {
                break;
            }
            shell.ask(&format!("zrem z m{turn}"));
        }
        assert_eq!(cursor, "0");
        for name in (1..1000).step_by(2) {
            assert!(seen.contains(&format!("\"m{name}\"")), "m{name} was not met");
        }
    }
}
