//! The commands that take elements, and wait where there are none.
//!
//! A request that waits is part of the state (see [`Waiters`](crate::keyspace::Waiters)). Behind each command that sets
//! keys, all replicas serve the requests that wait for them, in the order in which these came, as Redis does: the key
//! that was set first comes first.

use std::{ops::Range, time::Duration};

use squall::NodeId;

use super::{Group, Spec, lists, sorted_sets};
use crate::{
    Error, Reply,
    extended::Extended,
    keyspace::{Awaited, KeyspaceMut, WaitEnd, WaiterId},
    value::{List, ListEnd, SortedSet},
    words,
};

pub(super) const COMMANDS: &[Spec] = &Group("list").of([
    super::block("blpop", -3, |words| pop_one(words, ListEnd::Left))
        .doc("2.0.0", "Removes the first element of the first list that has some, or waits.")
        .keys(1, -2, 1),
    super::block("brpop", -3, |words| pop_one(words, ListEnd::Right))
        .doc("2.0.0", "Removes the last element of the first list that has some, or waits.")
        .keys(1, -2, 1),
    super::block("blmove", 6, |words| {
        transfer(words, [lists::end(words[3])?, lists::end(words[4])?], timeout(words[5])?)
    })
    .doc("6.2.0", "Moves an element to an end of a list, or waits.")
    .keys(1, 2, 1),
    super::block("brpoplpush", 4, |words| transfer(words, [ListEnd::Right, ListEnd::Left], timeout(words[3])?))
        .doc("2.2.0", "Moves the last element before another first, or waits.")
        .keys(1, 2, 1),
    super::block("blmpop", -5, pop_elements)
        .doc("7.0.0", "Removes elements of the first list that has some, or waits.")
        .no_keys(),
    super::block("bzpopmin", -3, |words| pop_member(words, sorted_sets::ScoreEnd::Lowest))
        .doc("5.0.0", "Removes the member with the lowest score of the first set that has some, or waits.")
        .in_group("sorted-set")
        .keys(1, -2, 1)
        .fast(),
    super::block("bzpopmax", -3, |words| pop_member(words, sorted_sets::ScoreEnd::Highest))
        .doc("5.0.0", "Removes the member with the highest score of the first set that has some, or waits.")
        .in_group("sorted-set")
        .keys(1, -2, 1)
        .fast(),
    super::block("bzmpop", -5, pop_members)
        .doc("7.0.0", "Pops members of the first set that has any, or waits.")
        .in_group("sorted-set")
        .no_keys(),
]);

/// A function that reads the words of a request.
pub type BlockFn = for<'a> fn(&[&'a [u8]]) -> Result<Blocking<'a>, Error>;

/// A request that takes from the first of some keys that has something, and waits if none has.
#[derive(Clone, Debug)]
pub struct Blocking<'a> {
    /// The places of the words that are the keys.
    keys: Range<usize>,
    timeout: Option<Duration>,
    taking: Taking<'a>,
}

/// The effect on the key that has something.
#[derive(Clone, Copy, Debug)]
enum Taking<'a> {
    Element(ListEnd),
    Elements { end: ListEnd, count: usize },
    Transfer { to: &'a [u8], ends: [ListEnd; 2] },
    Member(sorted_sets::ScoreEnd),
    Members { end: sorted_sets::ScoreEnd, count: usize },
}

impl Blocking<'_> {
    /// The time for which the request waits at most; `None` for ever.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    fn kind(&self) -> Awaited {
        match self.taking {
            Taking::Element(_) | Taking::Elements { .. } | Taking::Transfer { .. } => Awaited::List,
            Taking::Member(_) | Taking::Members { .. } => Awaited::SortedSet,
        }
    }

    /// Takes from the first key that has something. `None` if no key exists.
    fn take_first(&self, keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Option<Reply>, Error> {
        for key in &words[self.keys.clone()] {
            let view = keys.view();
            let exists = match self.kind() {
                Awaited::List => view.typed::<List>(key)?.is_some(),
                Awaited::SortedSet => view.typed::<SortedSet>(key)?.is_some(),
            };
            if exists {
                return self.take(keys, key).map(Some);
            }
        }
        Ok(None)
    }

    /// Takes from a key that holds what is awaited.
    fn take(&self, keys: &mut KeyspaceMut<'_>, key: &[u8]) -> Result<Reply, Error> {
        match self.taking {
            Taking::Element(end) => {
                let Reply::Array(mut reply) = lists::pop_named(keys, key, end, 1)? else { return Ok(Reply::NullArray) };
                if let Some(Reply::Array(elements)) = reply.pop() {
                    reply.extend(elements);
                }
                Ok(Reply::Array(reply))
            }
            Taking::Elements { end, count } => lists::pop_named(keys, key, end, count),
            Taking::Transfer { to, ends } => lists::transfer(keys, key, to, ends),
            Taking::Member(end) => {
                let popped = sorted_sets::pop(end, keys, key, 1)?.into_iter();
                let popped = popped.flat_map(|(member, score)| [member, score]);
                Ok(Reply::Array([Reply::bytes(key)].into_iter().chain(popped).collect()))
            }
            Taking::Members { end, count } => sorted_sets::pop_named(end, keys, key, count),
        }
    }

    /// Takes from the first key that has something, and waits for none.
    pub(crate) fn run(&self, keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
        let nothing = if matches!(self.taking, Taking::Transfer { .. }) { Reply::Null } else { Reply::NullArray };
        Ok(self.take_first(keys, words)?.unwrap_or(nothing))
    }

    /// Takes from the first key that has something, or lets the request wait.
    pub(crate) fn run_or_wait(
        &self,
        keys: &mut KeyspaceMut<'_>,
        words: &[&[u8]],
        id: WaiterId,
        request: &[u8],
    ) -> Result<Reply, Error> {
        if let Some(reply) = self.take_first(keys, words)? {
            return Ok(reply);
        }
        keys.wait(id, self.kind(), request, self.keys.clone())?;
        Ok(Reply::Waiting)
    }
}

/// Serves the requests that wait for keys that were set. The answers to those of the node `here` are handed to its
/// server.
pub(crate) fn serve_ready(keys: &mut KeyspaceMut<'_>, here: Option<NodeId>) {
    while let Some(key) = keys.next_ready() {
        while let Some((id, waiter)) = keys.take_waiter(&key) {
            let reply = serve(keys, &waiter.request, &key);
            if here == Some(id.node) {
                keys.tell_end_of_wait(id.ticket, WaitEnd::Served(reply.into()));
            }
        }
    }
}

fn serve(keys: &mut KeyspaceMut<'_>, request: &[u8], key: &[u8]) -> Result<Reply, Error> {
    let malformed = || Error::fixed("ERR the request that waited is none of this version");
    let words = words::split(request).ok_or_else(malformed)?;
    let super::CommandFn::Block(read) = super::check(&words)?.run else { return Err(malformed()) };
    read(&words)?.take(keys, key)
}

fn pop_one<'a>(words: &[&'a [u8]], end: ListEnd) -> Result<Blocking<'a>, Error> {
    one(words, Taking::Element(end))
}

fn pop_member<'a>(words: &[&'a [u8]], end: sorted_sets::ScoreEnd) -> Result<Blocking<'a>, Error> {
    one(words, Taking::Member(end))
}

/// A request whose words are its name, keys, and the timeout.
fn one<'a>(words: &[&'a [u8]], taking: Taking<'a>) -> Result<Blocking<'a>, Error> {
    let last = words.len() - 1;
    Ok(Blocking { keys: 1..last, timeout: timeout(words[last])?, taking })
}

fn transfer<'a>(words: &[&'a [u8]], ends: [ListEnd; 2], timeout: Option<Duration>) -> Result<Blocking<'a>, Error> {
    Ok(Blocking { keys: 1..2, timeout, taking: Taking::Transfer { to: words[2], ends } })
}

fn pop_elements<'a>(words: &[&'a [u8]]) -> Result<Blocking<'a>, Error> {
    let lists::MultiPop { keys, end, count } = lists::MultiPop::parse(&words[2..])?;
    let (keys, timeout) = (keys.start + 2..keys.end + 2, timeout(words[1])?);
    Ok(Blocking { keys, timeout, taking: Taking::Elements { end, count } })
}

fn pop_members<'a>(words: &[&'a [u8]]) -> Result<Blocking<'a>, Error> {
    let sorted_sets::MultiPop { keys, end, count } = sorted_sets::MultiPop::parse(&words[2..])?;
    let (keys, timeout) = (keys.start + 2..keys.end + 2, timeout(words[1])?);
    Ok(Blocking { keys, timeout, taking: Taking::Members { end, count } })
}

/// Reads a timeout in seconds, with a fraction; 0 stands for none. It is rounded up to milliseconds, as in Redis.
fn timeout(word: &[u8]) -> Result<Option<Duration>, Error> {
    let seconds = Extended::parse(word).and_then(|_| str::from_utf8(word).ok()?.parse::<f64>().ok());
    let ms = (seconds.ok_or(Error::fixed("ERR timeout is not a float or out of range"))? * 1000.0).ceil();
    match ms {
        ..0.0 => Err(Error::fixed("ERR timeout is negative")),
        0.0 => Ok(None),
        // Redis adds the time since 1970, which must not exceed 64 bits.
        ..9.2e18 => Ok(Some(Duration::from_millis(ms as u64))),
        _ => Err(Error::fixed("ERR timeout is out of range")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Shell;

    #[test]
    fn timeouts_are_read_as_in_redis() {
        let ms = |word: &str| timeout(word.as_bytes()).map(|timeout| timeout.map_or(0, |timeout| timeout.as_millis()));
        for (word, expected) in [("0", 0), ("-0", 0), ("-0.0001", 0), ("0.0001", 1), ("1.5", 1500), ("1e3", 1_000_000)]
        {
            assert_eq!(ms(word), Ok(expected), "{word}");
        }
        for (word, error) in [
            ("", "ERR timeout is not a float or out of range"),
            ("x", "ERR timeout is not a float or out of range"),
            ("nan", "ERR timeout is not a float or out of range"),
            ("-1", "ERR timeout is negative"),
            ("-inf", "ERR timeout is negative"),
            ("inf", "ERR timeout is out of range"),
            ("1e400", "ERR timeout is out of range"),
            ("9223372036854775", "ERR timeout is out of range"),
        ] {
            assert_eq!(ms(word), Err(Error::fixed(error)), "{word}");
        }
    }

    #[test]
    fn in_a_transaction_nothing_waits() {
        let mut shell = Shell::new();
        assert_eq!(shell.ask("blpop l 0"), "nil[]");
        assert_eq!(shell.ask("blmove l m left left 0"), "nil");
        assert_eq!(shell.ask("bzmpop 0 1 z min"), "nil[]");
        assert!(shell.store.keys().waiters().is_empty());
    }

    #[test]
    fn a_moved_element_serves_the_next_that_waits() {
        let mut shell = Shell::new();
        assert_eq!(shell.wait(1, 1, "blmove a b left right 0"), "waiting");
        assert_eq!(shell.wait(2, 1, "blmove b c left right 0"), "waiting");
        assert_eq!(shell.wait(3, 1, "blpop c 0"), "waiting");
        assert_eq!(shell.ask("rpush a x"), ":1");
        assert!(shell.store.keys().waiters().is_empty());
        assert_eq!(shell.ask("exists a b c"), ":0");
    }

    #[test]
    fn a_move_that_fails_leaves_the_element_to_the_next_that_waits() {
        let mut shell = Shell::new();
        shell.ask("set text x");
        assert_eq!(shell.wait(1, 1, "brpoplpush l text 0"), "waiting");
        assert_eq!(shell.wait(1, 2, "brpoplpush l m 0"), "waiting");
        assert_eq!(shell.ask("rpush l x"), ":1");
        assert_eq!(shell.ask("lrange m 0 -1"), "[\"x\"]");
        assert_eq!(shell.wait(1, 3, "brpoplpush l text 0"), "waiting");
        shell.ask("rpush l a b");
        assert_eq!(shell.ask("lrange l 0 -1"), "[\"a\", \"b\"]");
    }

    #[test]
    fn a_value_of_another_kind_is_waited_past() {
        let mut shell = Shell::new();
        assert_eq!(shell.wait(1, 1, "blpop k j 0"), "waiting");
        assert_eq!(shell.wait(1, 2, "bzpopmin k 0"), "waiting");
        for line in ["set k x", "del k", "sadd k x", "del k", "hset k f v", "del k"] {
            shell.ask(line);
            assert_eq!(shell.store.keys().waiters().len(), 2, "{line}");
        }
        shell.ask("zadd k 1 m");
        assert_eq!(shell.ask("exists k"), ":0");
        shell.ask("rpush k e");
        assert_eq!(shell.ask("exists k"), ":0");
        assert!(shell.wait(1, 3, "blpop none k 0") == "waiting" && shell.ask("set k x") == "OK");
        assert!(shell.wait(1, 4, "blpop none k 0").starts_with("-WRONGTYPE"));
    }

    #[test]
    fn only_so_many_wait() {
        let mut shell = Shell::new();
        let long = "k".repeat(40 << 20);
        assert_eq!(shell.wait(1, 0, &format!("blpop {long} 0")), "waiting");
        assert!(shell.wait(1, 1, &format!("blpop {long} 0")).starts_with("-ERR too many requests wait"));
        assert!(shell.cancel(1, 0));
        let many = "k ".repeat(1 << 18);
        assert!(shell.wait(1, 1, &format!("blpop {many}0")).starts_with("-ERR too many requests wait"));
        for ticket in 0..1 << 16 {
            assert_eq!(shell.wait(1, ticket, "blpop k 0"), "waiting");
        }
        assert!(shell.wait(2, 0, "blpop k 0").starts_with("-ERR too many requests wait"));
        assert!(shell.cancel(1, 7) && !shell.cancel(1, 7) && !shell.cancel(2, 8));
        assert_eq!(shell.wait(2, 0, "blpop k 0"), "waiting");
    }
}
