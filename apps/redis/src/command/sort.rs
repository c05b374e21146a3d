//! `SORT`: the elements of a list, a set or a sorted set, in an order of their own or of other keys' values.

use std::cmp::Ordering;

use super::{Group, Spec, counts, integer, is, read, write};
use crate::{
    Error, Reply, Text,
    keyspace::{KeyspaceMut, View},
    number,
    value::{Hash, List, Typed, Value},
};

pub(super) const COMMANDS: &[Spec] = &Group("generic").of([
    write("sort", -2, sort).doc("1.0.0", "Sorts the elements of a list or a set, and returns or stores them."),
    read("sort_ro", -2, sort_ro).doc("7.0.0", "Sorts the elements of a list or a set, and returns them."),
]);

/// The words behind the key.
#[derive(Debug, Default)]
struct SortOptions<'a> {
    descends: bool,
    /// Whether elements are compared as bytes; if not, as numbers.
    is_alpha: bool,
    limit: Option<(i64, i64)>,
    by: Option<&'a [u8]>,
    get: Vec<&'a [u8]>,
    store: Option<&'a [u8]>,
}

impl<'a> SortOptions<'a> {
    fn parse(mut words: &[&'a [u8]], may_store: bool) -> Result<SortOptions<'a>, Error> {
        let mut options = SortOptions::default();
        while let [word, rest @ ..] = words {
            words = rest;
            match (word, rest) {
                (word, _) if is(word, "asc") => options.descends = false,
                (word, _) if is(word, "desc") => options.descends = true,
                (word, _) if is(word, "alpha") => options.is_alpha = true,
                (word, [start, count, rest @ ..]) if is(word, "limit") => {
                    options.limit = Some((integer(start)?, integer(count)?));
                    words = rest;
                }
                (word, [key, rest @ ..]) if may_store && is(word, "store") => {
                    options.store = Some(*key);
                    words = rest;
                }
                (word, [pattern, rest @ ..]) if is(word, "by") => {
                    options.by = Some(*pattern);
                    words = rest;
                }
                (word, [pattern, rest @ ..]) if is(word, "get") => {
                    options.get.push(*pattern);
                    words = rest;
                }
                _ => return Err(Error::SYNTAX),
            }
        }
        Ok(options)
    }

    /// Whether the elements stay in the order in which they are held: all would have the same value to be sorted by.
    fn keeps_order(&self) -> bool {
        self.by.is_some_and(|by| !by.contains(&b'*'))
    }

    /// The elements that are asked for.
    fn window(&self, elements: Vec<Text>) -> Vec<Text> {
        let Some((start, count)) = self.limit else { return elements };
        let start = usize::try_from(start).unwrap_or(0);
        // A negative count stands for all.
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        elements.into_iter().skip(start).take(count).collect()
    }
}

/// The value by which an element is sorted.
enum SortKey {
    Number(f64),
    Bytes(Option<Text>),
}

impl SortKey {
    /// The order of two keys of one kind.
    fn compare(&self, other: &SortKey) -> Ordering {
        match (self, other) {
            (SortKey::Number(one), SortKey::Number(other)) => one.partial_cmp(other).unwrap_or(Ordering::Equal),
            (SortKey::Bytes(one), SortKey::Bytes(other)) => {
                one.as_ref().map(Text::bytes).cmp(&other.as_ref().map(Text::bytes))
            }
            _ => Ordering::Equal,
        }
    }
}

/// The elements of a value, in the order in which they are held.
fn elements(keys: &View<'_>, key: &[u8]) -> Result<(Vec<Text>, bool), Error> {
    let plain = |members: &mut dyn Iterator<Item = &[u8]>| members.map(Text::from).collect();
    match keys.get(key) {
        None => Ok((Vec::new(), false)),
        Some(Value::List(list)) => Ok((list.iter().cloned().collect(), false)),
        Some(Value::Set(set)) => Ok((plain(&mut set.iter()), true)),
        Some(Value::SortedSet(set)) => Ok((plain(&mut set.iter().map(|(member, _)| member)), false)),
        Some(Value::Text(_) | Value::Hash(_)) => Err(Error::WRONG_TYPE),
    }
}

/// The elements that a request asks for, in their order.
fn sorted(keys: &View<'_>, key: &[u8], options: &SortOptions<'_>) -> Result<Vec<Text>, Error> {
    let (mut elements, is_set) = elements(keys, key)?;
    let (mut by, mut is_alpha) = (options.by, options.is_alpha);
    if options.keeps_order() {
        // As in Redis, what is stored has an order, which a set has not.
        if !(is_set && options.store.is_some()) {
            if options.descends {
                elements.reverse();
            }
            return Ok(options.window(elements));
        }
        (by, is_alpha) = (None, true);
    }
    let mut keyed = Vec::with_capacity(elements.len());
    for element in elements {
        let value = match by {
            Some(pattern) => look_up(keys, pattern, &element),
            None => Some(element.clone()),
        };
        let sort_key = match value {
            value if is_alpha => SortKey::Bytes(value),
            Some(value) => SortKey::Number(
                score(&value).ok_or(Error::fixed("ERR One or more scores can't be converted into double"))?,
            ),
            None => SortKey::Number(0.0),
        };
        keyed.push((sort_key, element));
    }
    keyed.sort_by(|(one, first), (other, second)| {
        let order = one.compare(other);
        // Elements that count the same have an order of their own, as far as they have one in Redis.
        let order = if is_alpha { order } else { order.then_with(|| first.bytes().cmp(&second.bytes())) };
        if options.descends { order.reverse() } else { order }
    });
    Ok(options.window(keyed.into_iter().map(|(_, element)| element).collect()))
}

/// Reads a number to sort by, as the C library does. `None` if it is none.
fn score(text: &Text) -> Option<f64> {
    if let Text::Integer(number) = text {
        return Some(*number as f64);
    }
    let bytes = text.bytes();
    let bytes = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    // Nothing at all counts as 0.
    if bytes.is_empty() { Some(0.0) } else { number::float(bytes.trim_ascii_start()) }
}

/// The value that a pattern names for an element: of the key in which the element stands for `*`, or of one of its
/// fields. `#` names the element.
fn look_up(keys: &View<'_>, pattern: &[u8], element: &Text) -> Option<Text> {
    if pattern == b"#" {
        return Some(element.clone());
    }
    let star = pattern.iter().position(|&byte| byte == b'*')?;
    let (prefix, rest) = (&pattern[..star], &pattern[star + 1..]);
    // An arrow with nothing behind it is a part of the key.
    let arrow = rest.windows(2).position(|two| two == b"->").filter(|at| at + 2 < rest.len());
    let suffix = &rest[..arrow.unwrap_or(rest.len())];
    let value = keys.get(&[prefix, &element.bytes(), suffix].concat())?;
    match arrow {
        Some(at) => Hash::of(value)?.get(&rest[at + 2..]).cloned(),
        None => Text::of(value).cloned(),
    }
}

/// The values that a request asks for: the elements, or what its patterns name for each.
fn values(keys: &View<'_>, elements: Vec<Text>, get: &[&[u8]]) -> Result<Vec<Option<Text>>, Error> {
    if get.is_empty() {
        return Ok(elements.into_iter().map(Some).collect());
    }
    if get.len() > 1 && (elements.len() as u64).saturating_mul(get.len() as u64) > counts::MAX_REPEATS {
        let most = counts::MAX_REPEATS;
        return Err(Error::new(format!("ERR GET names too many values: one reply has at most {most} of them")));
    }
    let all = elements.iter().flat_map(|element| get.iter().map(|pattern| look_up(keys, pattern, element)));
    Ok(all.collect())
}

fn sort(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let options = SortOptions::parse(&words[2..], true)?;
    let view = keys.view();
    let values = values(&view, sorted(&view, words[1], &options)?, &options.get)?;
    let Some(to) = options.store else { return Ok(reply(values)) };
    // A value that is named again and again is stored as often.
    let bytes = values.iter().flatten().map(Text::len).sum::<usize>();
    if !options.get.is_empty() && bytes > counts::MAX_REPEATED_BYTES {
        return Err(Error::fixed("ERR the values that GET names are too large to be stored: ask for fewer"));
    }
    let list: List = values.into_iter().map(Option::unwrap_or_default).collect();
    let len = list.len();
    keys.put_unless_empty(to, list);
    Ok(Reply::count(len))
}

fn sort_ro(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let options = SortOptions::parse(&words[2..], false)?;
    Ok(reply(values(keys, sorted(keys, words[1], &options)?, &options.get)?))
}

fn reply(values: Vec<Option<Text>>) -> Reply {
    Reply::Array(values.into_iter().map(Reply::from).collect())
}

#[cfg(test)]
mod tests {
    use crate::testing::Shell;

    #[test]
    fn elements_are_sorted_by_other_keys_and_shown_by_others() {
        let mut shell = Shell::new();
        shell.ask("rpush l 1 2 3 10");
        shell.ask("mset w1 7 w2 5 w3 6 name1 one name2 two");
        shell.ask("hset h1 f x");
        assert_eq!(shell.ask("sort l desc"), "[\"10\", \"3\", \"2\", \"1\"]");
        assert_eq!(
            shell.ask("sort l by w* get # get name*"),
            "[\"10\", nil, \"2\", \"two\", \"3\", nil, \"1\", \"one\"]"
        );
        assert_eq!(shell.ask("sort l alpha limit 1 2"), "[\"10\", \"2\"]");
        assert_eq!(shell.ask("sort l get h*->f"), "[\"x\", nil, nil, nil]");
        assert_eq!(shell.ask("sort l by none desc limit 0 1"), "[\"10\"]");
        assert_eq!(shell.ask("sort l get name* store to"), ":4");
        assert_eq!(shell.ask("lrange to 0 -1"), "[\"one\", \"two\", \"\", \"\"]");
        assert_eq!(shell.ask("sort none store to"), ":0");
        assert_eq!(shell.ask("exists to"), ":0");
        shell.ask("rpush l x");
        assert_eq!(shell.ask("sort_ro l"), "-ERR One or more scores can't be converted into double");
        assert_eq!(shell.ask("sort_ro l store to"), "-ERR syntax error");
    }

    #[test]
    fn a_sort_serves_those_that_wait_for_its_result() {
        let mut shell = Shell::new();
        assert_eq!(shell.wait(1, 1, "blpop to 0"), "waiting");
        shell.ask("rpush l 2 1");
        assert_eq!(shell.ask("sort l store to"), ":2");
        assert_eq!(shell.ask("lrange to 0 -1"), "[\"2\"]");
    }

    #[test]
    fn a_short_request_gets_no_endless_answer() {
        let mut shell = Shell::new();
        (0..2000).for_each(|n| _ = shell.ask(&format!("rpush l {n}")));
        shell.ask("setrange v 100000 x");
        let many = " get #".repeat(1000);
        assert!(shell.ask(&format!("sort l{many}")).starts_with("-ERR GET names too many values"));
        shell.ask("mset k0 x k1 x");
        assert_eq!(shell.ask("sort l get # store to"), ":2000");
        (0..2000).for_each(|n| _ = shell.ask(&format!("copy v k{n} replace")));
        assert!(shell.ask("sort l get k* store to").starts_with("-ERR the values that GET names are too large"));
    }
}
