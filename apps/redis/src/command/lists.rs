//! The commands of lists.

use std::ops::Range;

use super::{Group, Spec, arity, counts, integer, is, len, read, write};
use crate::{
    Error, Reply, Text,
    keyspace::{Edited, KeyspaceMut, View},
    value::{List, ListEnd},
};

pub(super) const COMMANDS: &[Spec] = &Group("list").of([
    write("lpush", -3, |keys, words| push(keys, words, ListEnd::Left, false))
        .doc("1.0.0", "Adds elements before the first.")
        .fast(),
    write("rpush", -3, |keys, words| push(keys, words, ListEnd::Right, false))
        .doc("1.0.0", "Adds elements after the last.")
        .fast(),
    write("lpushx", -3, |keys, words| push(keys, words, ListEnd::Left, true))
        .doc("2.2.0", "Adds elements to a list that exists.")
        .fast(),
    write("rpushx", -3, |keys, words| push(keys, words, ListEnd::Right, true))
        .doc("2.2.0", "Adds elements to a list that exists.")
        .fast(),
    write("lpop", -2, |keys, words| pop(keys, words, ListEnd::Left))
        .doc("1.0.0", "Removes the first elements, and returns them.")
        .fast(),
    write("rpop", -2, |keys, words| pop(keys, words, ListEnd::Right))
        .doc("1.0.0", "Removes the last elements, and returns them.")
        .fast(),
    read("llen", 2, |keys, words| len(keys, words, List::len))
        .doc("1.0.0", "Returns how many elements there are.")
        .fast(),
    read("lrange", 4, lrange).doc("1.0.0", "Returns elements in a row."),
    read("lindex", 3, lindex).doc("1.0.0", "Returns the element at a place."),
    write("lset", 4, lset).doc("1.0.0", "Replaces the element at a place."),
    write("linsert", 5, linsert).doc("2.2.0", "Adds an element beside another."),
    write("lrem", 4, lrem).doc("1.0.0", "Removes equal elements."),
    write("ltrim", 4, ltrim).doc("1.0.0", "Removes all elements but some in a row."),
    read("lpos", -3, lpos).doc("6.0.6", "Returns the places of equal elements."),
    write("lmove", 5, lmove).doc("6.2.0", "Moves an element to an end of a list.").keys(1, 2, 1),
    write("rpoplpush", 3, |keys, words| transfer(keys, words[1], words[2], [ListEnd::Right, ListEnd::Left]))
        .doc("1.2.0", "Moves the last element before another first.")
        .keys(1, 2, 1),
    write("lmpop", -4, lmpop).doc("7.0.0", "Removes elements of the first list that has some.").no_keys(),
]);

fn push(keys: &mut KeyspaceMut<'_>, words: &[&[u8]], end: ListEnd, must_exist: bool) -> Result<Reply, Error> {
    keys.edit(words[1], |list: &mut List| {
        if must_exist && list.is_empty() {
            return Ok(Edited::Unchanged(Reply::Integer(0)));
        }
        words[2..].iter().for_each(|element| list.push(end, Text::from(*element)));
        Ok(Edited::Changed(Reply::count(list.len())))
    })
}

fn pop(keys: &mut KeyspaceMut<'_>, words: &[&[u8]], end: ListEnd) -> Result<Reply, Error> {
    let count = match words[2..] {
        [] => None,
        [count] => Some(counts::natural(count)?),
        _ => return Err(arity(words)),
    };
    keys.edit(words[1], |list: &mut List| {
        Ok(match count {
            None => list.pop(end).map_or(Edited::Unchanged(Reply::Null), |element| Edited::Changed(element.into())),
            Some(_) if list.is_empty() => Edited::Unchanged(Reply::NullArray),
            Some(count) => Edited::when(count > 0, take(list, end, count)),
        })
    })
}

fn lrange(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let (first, last) = (integer(words[2])?, integer(words[3])?);
    let elements = match keys.typed::<List>(words[1])? {
        Some(list) => {
            list.range(counts::places(first, last, list.len())).map(|element| element.clone().into()).collect()
        }
        None => Vec::new(),
    };
    Ok(Reply::Array(elements))
}

fn lindex(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let Some(list) = keys.typed::<List>(words[1])? else { return Ok(Reply::Null) };
    let place = counts::place(integer(words[2])?, list.len());
    Ok(place.and_then(|place| list.get(place)).cloned().into())
}

fn lset(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    keys.edit(words[1], |list: &mut List| {
        if list.is_empty() {
            return Err(Error::NO_SUCH_KEY);
        }
        let place = counts::place(integer(words[2])?, list.len());
        if place.is_some_and(|place| list.set(place, Text::from(words[3]))) {
            Ok(Edited::Changed(Reply::OK))
        } else {
            Err(Error::fixed("ERR index out of range"))
        }
    })
}

fn linsert(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let after = match words[2] {
        side if is(side, "after") => 1,
        side if is(side, "before") => 0,
        _ => return Err(Error::SYNTAX),
    };
    keys.edit(words[1], |list: &mut List| {
        if list.is_empty() {
            return Ok(Edited::Unchanged(Reply::Integer(0)));
        }
        let Some(place) = list.places_of(&Text::from(words[3]), ListEnd::Left, usize::MAX).next() else {
            return Ok(Edited::Unchanged(Reply::Integer(-1)));
        };
        list.insert(place + after, Text::from(words[4]));
        Ok(Edited::Changed(Reply::count(list.len())))
    })
}

fn lrem(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let count = integer(words[2])?;
    let from = if count < 0 { ListEnd::Right } else { ListEnd::Left };
    let most = if count == 0 { usize::MAX } else { count.unsigned_abs() as usize };
    keys.edit(words[1], |list: &mut List| {
        let removed = list.remove(&Text::from(words[3]), from, most);
        Ok(Edited::when(removed > 0, Reply::count(removed)))
    })
}

fn ltrim(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let (first, last) = (integer(words[2])?, integer(words[3])?);
    keys.edit(words[1], |list: &mut List| {
        let len = list.len();
        list.trim(counts::places(first, last, len));
        // As in Redis, a transaction that watches the list notices this even if all of it stays.
        Ok(Edited::when(len > 0, Reply::OK))
    })
}

fn lpos(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let (mut rank, mut count, mut most) = (1, None, 0);
    let (options, odd) = words[3..].as_chunks::<2>();
    for &[option, value] in options {
        if is(option, "rank") {
            rank = counts::signed(value)?;
            if rank == 0 {
                return Err(Error::fixed(
                    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... \
                     or use negative to start from the end of the list",
                ));
            }
        } else if is(option, "count") {
            count = Some(counts::at_least(0, value, "ERR COUNT can't be negative")?);
        } else if is(option, "maxlen") {
            most = counts::at_least(0, value, "ERR MAXLEN can't be negative")?;
        } else {
            return Err(Error::SYNTAX);
        }
    }
    if !odd.is_empty() {
        return Err(Error::SYNTAX);
    }
    let from = if rank < 0 { ListEnd::Right } else { ListEnd::Left };
    let all = |number| if number == 0 { usize::MAX } else { number };
    let element = Text::from(words[2]);
    let list = keys.typed::<List>(words[1])?;
    let places = list.into_iter().flat_map(|list| list.places_of(&element, from, all(most)));
    let mut ranked = places.skip((rank.unsigned_abs() - 1) as usize).map(Reply::count);
    Ok(match count {
        None => ranked.next().unwrap_or(Reply::Null),
        Some(count) => Reply::Array(ranked.take(all(count)).collect()),
    })
}

fn lmove(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    transfer(keys, words[1], words[2], [end(words[3])?, end(words[4])?])
}

/// Moves an element from one of two ends, in one list, to the other, in another list or the same.
pub(super) fn transfer(
    keys: &mut KeyspaceMut<'_>,
    from: &[u8],
    to: &[u8],
    [taken, put]: [ListEnd; 2],
) -> Result<Reply, Error> {
    let view = keys.view();
    if view.typed::<List>(from)?.is_none() {
        return Ok(Reply::Null);
    }
    view.typed::<List>(to)?;
    let element = keys.edit(from, |list: &mut List| {
        let element = list.pop(taken).unwrap_or_default();
        // The same list must not vanish in between, since its key would lose its expiry.
        if from == to {
            list.push(put, element.clone());
        }
        Ok(Edited::Changed(element))
    })?;
    if from != to {
        keys.edit(to, |list: &mut List| {
            list.push(put, element.clone());
            Ok(Edited::Changed(()))
        })?;
    }
    Ok(element.into())
}

fn lmpop(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let MultiPop { keys: lists, end, count } = MultiPop::parse(&words[1..])?;
    for key in &words[1..][lists] {
        if keys.view().typed::<List>(key)?.is_some() {
            return pop_named(keys, key, end, count);
        }
    }
    Ok(Reply::NullArray)
}

/// The words of `LMPOP` behind its name.
pub(super) struct MultiPop {
    /// The places of the keys among them.
    pub(super) keys: Range<usize>,
    pub(super) end: ListEnd,
    pub(super) count: usize,
}

impl MultiPop {
    pub(super) fn parse(words: &[&[u8]]) -> Result<MultiPop, Error> {
        let named = counts::at_least(1, words[0], "ERR numkeys should be greater than 0")?;
        let Some((_, [side, options @ ..])) = words[1..].split_at_checked(named) else { return Err(Error::SYNTAX) };
        let end = end(side)?;
        let count = match options {
            [] => 1,
            [option, count] if is(option, "count") => counts::at_least(1, count, "ERR count should be greater than 0")?,
            _ => return Err(Error::SYNTAX),
        };
        Ok(MultiPop { keys: 1..named + 1, end, count })
    }
}

/// Removes elements at an end of a list. The answer begins with the list's key.
pub(super) fn pop_named(keys: &mut KeyspaceMut<'_>, key: &[u8], end: ListEnd, count: usize) -> Result<Reply, Error> {
    let taken = keys.edit(key, |list: &mut List| Ok(Edited::Changed(take(list, end, count))))?;
    Ok(Reply::Array(vec![Reply::bytes(key), taken]))
}

/// Removes elements at an end. The answer has them in the order of their removal.
fn take(list: &mut List, end: ListEnd, count: usize) -> Reply {
    Reply::Array((0..count.min(list.len())).filter_map(|_| list.pop(end)).map(Reply::Text).collect())
}

/// Reads a word that must name an end.
pub(super) fn end(word: &[u8]) -> Result<ListEnd, Error> {
    match word {
        word if is(word, "left") => Ok(ListEnd::Left),
        word if is(word, "right") => Ok(ListEnd::Right),
        _ => Err(Error::SYNTAX),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Shell;

    #[test]
    fn an_element_moves_within_its_list() {
        let mut shell = Shell::new();
        shell.ask("rpush l a");
        assert_eq!(shell.ask("lmove l l left right"), "\"a\"");
        shell.ask("rpush l b c");
        assert_eq!(shell.ask("rpoplpush l l"), "\"c\"");
        assert_eq!(shell.ask("lrange l 0 -1"), "[\"c\", \"a\", \"b\"]");
    }

    #[test]
    fn an_element_stays_where_it_is_if_it_cannot_move() {
        let mut shell = Shell::new();
        shell.ask("rpush l a");
        shell.ask("set s x");
        assert!(shell.ask("lmove l s left left").starts_with("-WRONGTYPE"));
        assert_eq!(shell.ask("llen l"), ":1");
        assert_eq!(shell.ask("lmove l m left left"), "\"a\"");
        assert_eq!(shell.ask("set l x"), "OK");
        assert_eq!(shell.ask("lmpop 2 nil m right count 9"), "[\"m\", [\"a\"]]");
        assert_eq!(shell.ask("lmpop 2 nil m right"), "nil[]");
    }
}
