//! The commands of sets.

use foldhash::fast::RandomState;
use indexmap::IndexSet;

use super::{Group, Spec, counts, is, len, read, scan::Scan, write};
use crate::{
    Error, Reply,
    keyspace::{Edited, KeyspaceMut, View},
    value::Set,
};

pub(super) const COMMANDS: &[Spec] = &Group("set").of([
    write("sadd", -3, sadd).doc("1.0.0", "Adds members.").fast(),
    write("srem", -3, srem).doc("1.0.0", "Removes members.").fast(),
    read("smembers", 2, smembers).doc("1.0.0", "Returns all members."),
    read("sismember", 3, sismember).doc("1.0.0", "Says whether a string is a member.").fast(),
    read("smismember", -3, smismember).doc("6.2.0", "Says which strings are members.").fast(),
    read("scard", 2, |keys, words| len(keys, words, Set::len))
        .doc("1.0.0", "Returns how many members there are.")
        .fast(),
    write("spop", -2, spop).doc("1.0.0", "Removes random members, and returns them.").fast(),
    read("srandmember", -2, srandmember).doc("1.0.0", "Returns random members."),
    write("smove", 4, smove).doc("1.0.0", "Moves a member to another set.").keys(1, 2, 1).fast(),
    read("sinter", -2, |keys, words| members(keys, words, common))
        .doc("1.0.0", "Returns what all sets have.")
        .keys(1, -1, 1),
    read("sintercard", -3, sintercard).doc("7.0.0", "Counts what all sets have.").no_keys(),
    read("sunion", -2, |keys, words| members(keys, words, union))
        .doc("1.0.0", "Returns what any set has.")
        .keys(1, -1, 1),
    read("sdiff", -2, |keys, words| members(keys, words, difference))
        .doc("1.0.0", "Returns what only the first set has.")
        .keys(1, -1, 1),
    write("sinterstore", -3, |keys, words| store(keys, words, common))
        .doc("1.0.0", "Stores what all sets have.")
        .keys(1, -1, 1),
    write("sunionstore", -3, |keys, words| store(keys, words, union))
        .doc("1.0.0", "Stores what any set has.")
        .keys(1, -1, 1),
    write("sdiffstore", -3, |keys, words| store(keys, words, difference))
        .doc("1.0.0", "Stores what only the first set has.")
        .keys(1, -1, 1),
    read("sscan", -3, sscan).doc("2.8.0", "Walks over the members in steps."),
]);

fn sadd(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    keys.edit(words[1], |set: &mut Set| {
        let added = words[2..].iter().filter(|member| set.insert(member)).count();
        Ok(Edited::when(added > 0, Reply::count(added)))
    })
}

fn srem(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    keys.edit(words[1], |set: &mut Set| {
        let removed = words[2..].iter().filter(|member| set.remove(member)).count();
        Ok(Edited::when(removed > 0, Reply::count(removed)))
    })
}

fn smembers(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    Ok(Reply::Set(keys.typed::<Set>(words[1])?.into_iter().flat_map(Set::iter).map(Reply::bytes).collect()))
}

fn sismember(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    Ok(Reply::whether(keys.typed::<Set>(words[1])?.is_some_and(|set| set.contains(words[2]))))
}

fn smismember(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let set = keys.typed::<Set>(words[1])?;
    let is_member = |member: &&[u8]| Reply::whether(set.is_some_and(|set| set.contains(member)));
    Ok(Reply::Array(words[2..].iter().map(is_member).collect()))
}

fn spop(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let count = match words[2..] {
        [] => None,
        [count] => Some(counts::natural(count)?),
        _ => return Err(Error::SYNTAX),
    };
    let len = keys.view().typed::<Set>(words[1])?.map_or(0, Set::len);
    let places: Vec<_> = (0..count.unwrap_or(1).min(len)).map(|removed| keys.random(len - removed)).collect();
    keys.edit(words[1], |set: &mut Set| {
        let mut popped = places.iter().filter_map(|&place| set.remove_at(place)).map(Reply::Bytes);
        let reply = match count {
            None => popped.next().unwrap_or(Reply::Null),
            Some(_) => Reply::Set(popped.collect()),
        };
        Ok(Edited::when(!places.is_empty(), reply))
    })
}

fn srandmember(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let count = match words[2..] {
        [] => {
            let member = keys.typed::<Set>(words[1])?.and_then(|set| set.at(fastrand::usize(..set.len())));
            return Ok(member.map_or(Reply::Null, Reply::bytes));
        }
        [count] => counts::signed(count)?,
        _ => return Err(Error::SYNTAX),
    };
    let Some(set) = keys.typed::<Set>(words[1])? else { return Ok(Reply::Array(Vec::new())) };
    let places = counts::pick(count, set.len(), |place| set.at(place).map_or(0, <[u8]>::len))?;
    Ok(Reply::array_of_bytes(places.into_iter().filter_map(|place| set.at(place))))
}

fn smove(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let (from, to, member) = (words[1], words[2], words[3]);
    let view = keys.view();
    let Some(source) = view.typed::<Set>(from)? else { return Ok(Reply::Integer(0)) };
    view.typed::<Set>(to)?;
    let moves = source.contains(member);
    if moves && from != to {
        keys.edit(from, |set: &mut Set| Ok(Edited::when(set.remove(member), ())))?;
        keys.edit(to, |set: &mut Set| Ok(Edited::when(set.insert(member), ())))?;
    }
    Ok(Reply::whether(moves))
}

fn sintercard(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let named = counts::at_least(1, words[1], "ERR numkeys should be greater than 0")?;
    let Some((sets, mut options)) = words[2..].split_at_checked(named) else {
        return Err(Error::fixed("ERR Number of keys can't be greater than number of args"));
    };
    let mut limit = 0;
    while let [option, rest @ ..] = options {
        let [value, rest @ ..] = rest else { return Err(Error::SYNTAX) };
        if !is(option, "limit") {
            return Err(Error::SYNTAX);
        }
        limit = counts::at_least(0, value, "ERR LIMIT can't be negative")?;
        options = rest;
    }
    let most = if limit == 0 { usize::MAX } else { limit };
    Ok(Reply::count(common(keys, sets)?.take(most).count()))
}

fn sscan(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let Some((set, scan)) = Scan::of_value::<Set>(keys, words)? else { return Ok(Scan::reply(0, Vec::new())) };
    let mut found = Vec::new();
    let next = scan.walk(set.len(), |place| {
        found.extend(set.at(place).filter(|member| scan.matches(member)).map(Reply::bytes));
    });
    Ok(Scan::reply(next, found))
}

/// Some members of sets.
type Members<'a> = Box<dyn Iterator<Item = &'a [u8]> + 'a>;

/// A combination of the sets at keys.
type Combine = for<'a> fn(&View<'a>, &[&[u8]]) -> Result<Members<'a>, Error>;

/// The sets at keys, in their order; `None` for an absent one. A key counts once however often it is named, so the work
/// is bounded by the sets' sizes.
fn sets<'a>(view: &View<'a>, keys: &[&[u8]]) -> Result<Vec<Option<&'a Set>>, Error> {
    let keys: IndexSet<&[u8], RandomState> = keys.iter().copied().collect();
    keys.into_iter().map(|key| view.typed(key)).collect()
}

/// The members that all sets have.
fn common<'a>(view: &View<'a>, keys: &[&[u8]]) -> Result<Members<'a>, Error> {
    let all: Option<Vec<&Set>> = sets(view, keys)?.into_iter().collect();
    let mut all = all.unwrap_or_default();
    all.sort_by_key(|set| set.len());
    let smallest = all.first().copied();
    let is_in_others = move |member: &&[u8]| all.iter().skip(1).all(|set| set.contains(member));
    Ok(Box::new(smallest.into_iter().flat_map(Set::iter).filter(is_in_others)))
}

/// The members that any set has.
fn union<'a>(view: &View<'a>, keys: &[&[u8]]) -> Result<Members<'a>, Error> {
    let union: IndexSet<&[u8], RandomState> = sets(view, keys)?.into_iter().flatten().flat_map(Set::iter).collect();
    Ok(Box::new(union.into_iter()))
}

/// The members that the first set has, and no other one.
fn difference<'a>(view: &View<'a>, keys: &[&[u8]]) -> Result<Members<'a>, Error> {
    let first = view.typed::<Set>(keys[0])?;
    let others = sets(view, &keys[1..])?;
    let mut left: IndexSet<&[u8], RandomState> = first.into_iter().flat_map(Set::iter).collect();
    for other in others.into_iter().flatten() {
        if other.len() < left.len() {
            other.iter().for_each(|member| _ = left.swap_remove(member));
        } else {
            left.retain(|member| !other.contains(member));
        }
    }
    Ok(Box::new(left.into_iter()))
}

/// Answers the members of a combination of the sets that a request names.
fn members(keys: &View<'_>, words: &[&[u8]], combine: Combine) -> Result<Reply, Error> {
    Ok(Reply::Set(combine(keys, &words[1..])?.map(Reply::bytes).collect()))
}

/// Sets the first key to a combination of the other keys' sets, or removes it if that is empty. The answer is the
/// number of members.
fn store(keys: &mut KeyspaceMut<'_>, words: &[&[u8]], combine: Combine) -> Result<Reply, Error> {
    let set: Set = combine(&keys.view(), &words[2..])?.collect();
    let len = set.len();
    keys.put_unless_empty(words[1], set);
    Ok(Reply::count(len))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::testing::Shell;

    #[test]
    fn popped_members_are_gone_and_the_last_takes_the_key_along() {
        let mut shell = Shell::new();
        shell.ask("sadd s a b c d e");
        let mut popped = BTreeSet::new();
        for left in (0..5).rev() {
            assert!(popped.insert(shell.ask("spop s")));
            assert_eq!(shell.ask("scard s"), format!(":{left}"));
        }
        assert_eq!(shell.ask("spop s"), "nil");
        assert_eq!(shell.ask("spop s 3"), "~[]");
        assert_eq!(shell.ask("set s x"), "OK");
    }

    #[test]
    fn replicas_pop_the_same_members() {
        let popped = [(); 2].map(|()| {
            let mut shell = Shell::new();
            (0..100).for_each(|n| _ = shell.ask(&format!("sadd s m{n}")));
            [shell.ask("spop s"), shell.ask("spop s 30"), shell.ask("smembers s")]
        });
        assert_eq!(popped[0], popped[1]);
    }

    #[test]
    fn what_is_stored_replaces_any_value_and_nothing_removes_it() {
        let mut shell = Shell::new();
        shell.ask("sadd a 1 2 3");
        shell.ask("sadd b 2 3 4");
        shell.ask("set c x");
        assert_eq!(shell.ask("sdiffstore c a b"), ":1");
        assert_eq!(shell.ask("smembers c"), "~[\"1\"]");
        assert_eq!(shell.ask("sdiffstore c a b a"), ":0");
        assert_eq!(shell.ask("get c"), "nil");
        assert_eq!(shell.ask("sinterstore a a b"), ":2");
        assert_eq!(shell.ask("smembers a"), "~[\"2\", \"3\"]");
    }

    #[test]
    fn random_members_stay() {
        let mut shell = Shell::new();
        shell.ask("sadd s a");
        assert_eq!(shell.ask("srandmember s"), "\"a\"");
        assert_eq!(shell.ask("srandmember s 3"), "[\"a\"]");
        assert_eq!(shell.ask("srandmember s -3"), "[\"a\", \"a\", \"a\"]");
        assert!(shell.ask("srandmember s -9223372036854775807").starts_with("-ERR value is out of range"));
        assert_eq!(shell.ask("scard s"), ":1");
    }

    #[test]
    fn a_key_named_a_thousand_times_is_looked_at_once() {
        let mut shell = Shell::new();
        (0..20_000).for_each(|n| _ = shell.ask(&format!("sadd {} {n}", if n % 2 == 0 { "a" } else { "b" })));
        let many = ["b"; 10_000].join(" ");
        assert_eq!(shell.ask(&format!("sintercard 10001 a {many}")), ":0");
        assert_eq!(shell.ask(&format!("sdiffstore c a {many}")), ":10000");
        assert_eq!(shell.ask(&format!("sunionstore c a {many}")), ":20000");
    }
}
