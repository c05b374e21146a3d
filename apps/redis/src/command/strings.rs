//! The commands of strings.

use super::{Group, Spec, arity, counts, expiry::Clock, integer, is, len, read, write};
use crate::{
    Error, Reply, Text,
    keyspace::{Edited, KeyspaceMut, View},
    value::MAX_VALUE_BYTES,
    value::Typed,
};

pub(super) const COMMANDS: &[Spec] = &Group("string").of([
    read("get", 2, |keys, words| value(keys, words[1])).doc("1.0.0", "Returns the value of a key.").fast(),
    write("set", -3, set).doc("1.0.0", "Sets a key, whatever it held."),
    write("setnx", 3, setnx).doc("1.0.0", "Sets a key unless it exists.").fast(),
    write("setex", 4, |keys, words| set_for(keys, words, Clock::EX)).doc("2.0.0", "Sets a key for some seconds."),
    write("psetex", 4, |keys, words| set_for(keys, words, Clock::PX)).doc("2.6.0", "Sets a key for some milliseconds."),
    write("getset", 3, getset).doc("1.0.0", "Sets a key and returns the value it had.").fast(),
    write("getdel", 2, getdel).doc("6.2.0", "Removes a key and returns the value it had.").fast(),
    write("getex", -2, getex).doc("6.2.0", "Returns the value of a key and sets when it expires.").fast(),
    read("getrange", 4, getrange).doc("2.4.0", "Returns a part of the value of a key."),
    read("substr", 4, getrange).doc("1.0.0", "Returns a part of the value of a key."),
    write("setrange", 4, setrange).doc("2.2.0", "Overwrites a part of the value of a key."),
    write("append", 3, append).doc("2.0.0", "Appends to the value of a key.").fast(),
    read("strlen", 2, |keys, words| len(keys, words, Text::len))
        .doc("2.2.0", "Returns the length of the value of a key.")
        .fast(),
    read("mget", -2, mget).doc("1.0.0", "Returns the values of keys.").keys(1, -1, 1).fast(),
    write("mset", -3, mset).doc("1.0.1", "Sets keys.").keys(1, -1, 2),
    write("msetnx", -3, msetnx).doc("1.0.1", "Sets keys unless one of them exists.").keys(1, -1, 2),
]);

fn value(keys: &View<'_>, key: &[u8]) -> Result<Reply, Error> {
    Ok(keys.typed::<Text>(key)?.cloned().into())
}

/// The options behind the key and the value of `SET`, or the key of `GETEX`.
#[derive(Default)]
struct SetOptions<'a> {
    expires: Option<(Clock, &'a [u8])>,
    keeps_expiry: bool,
    persists: bool,
    gets: bool,
    /// `true` if the key must exist, `false` if it must not.
    exists: Option<bool>,
}

impl<'a> SetOptions<'a> {
    fn parse(words: &[&'a [u8]], of_set: bool) -> Result<SetOptions<'a>, Error> {
        let mut options = SetOptions::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let timeless = options.expires.is_none();
            if of_set && is(word, "nx") && options.exists != Some(true) {
                options.exists = Some(false);
            } else if of_set && is(word, "xx") && options.exists != Some(false) {
                options.exists = Some(true);
            } else if of_set && is(word, "get") {
                options.gets = true;
            } else if of_set && is(word, "keepttl") && timeless {
                options.keeps_expiry = true;
            } else if !of_set && is(word, "persist") && timeless {
                options.persists = true;
            } else {
                let clock = Clock::of_option(word).ok_or(Error::SYNTAX)?;
                let is_second = options.expires.is_some_and(|(first, _)| first != clock);
                if is_second || options.keeps_expiry || options.persists {
                    return Err(Error::SYNTAX);
                }
                options.expires = Some((clock, words.next().ok_or(Error::SYNTAX)?));
            }
        }
        Ok(options)
    }
}

fn set(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let (key, value) = (words[1], words[2]);
    if words.len() == 3 {
        keys.put(key, Text::from(value));
        return Ok(Reply::OK);
    }
    let options = SetOptions::parse(&words[3..], true)?;
    let expires_ms = options.expires.map(|(clock, word)| clock.expiry_ms(word, keys.now_ms(), words)).transpose()?;
    let old = if options.gets { self::value(&keys.view(), key)? } else { Reply::Null };
    if options.exists.is_some_and(|must| must != keys.view().exists(key)) {
        return Ok(old);
    }
    if options.keeps_expiry {
        keys.put_keeping_expiry(key, Text::from(value));
    } else {
        keys.put_until(key, Text::from(value).into_value(), expires_ms);
    }
    Ok(if options.gets { old } else { Reply::OK })
}

fn setnx(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let is_new = !keys.view().exists(words[1]);
    if is_new {
        keys.put(words[1], Text::from(words[2]));
    }
    Ok(Reply::whether(is_new))
}

fn set_for(keys: &mut KeyspaceMut<'_>, words: &[&[u8]], clock: Clock) -> Result<Reply, Error> {
    let expires_ms = clock.expiry_ms(words[2], keys.now_ms(), words)?;
    keys.put_until(words[1], Text::from(words[3]).into_value(), Some(expires_ms));
    Ok(Reply::OK)
}

fn getset(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let old = value(&keys.view(), words[1])?;
    keys.put(words[1], Text::from(words[2]));
    Ok(old)
}

fn getdel(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let old = value(&keys.view(), words[1])?;
    keys.remove(words[1]);
    Ok(old)
}

fn getex(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let key = words[1];
    let options = SetOptions::parse(&words[2..], false)?;
    let Some(text) = keys.view().typed::<Text>(key)?.cloned() else { return Ok(Reply::Null) };
    if let Some((clock, word)) = options.expires {
        let expires_ms = clock.expiry_ms(word, keys.now_ms(), words)?;
        keys.set_expiry(key, Some(expires_ms));
    } else if options.persists && keys.view().entry(key).is_some_and(|entry| entry.expires_ms().is_some()) {
        keys.set_expiry(key, None);
    }
    Ok(text.into())
}

fn getrange(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let (start, end) = (integer(words[2])?, integer(words[3])?);
    let Some(text) = keys.typed::<Text>(words[1])? else { return Ok(Reply::bytes("")) };
    // Otherwise both, before the beginning, would become the first byte's place.
    let is_backward = start < 0 && end < 0 && start > end;
    let places = if is_backward { None } else { counts::places_of_string(start, end, text.len()) };
    Ok(match places {
        None => Reply::bytes(""),
        Some(all) if all.len() == text.len() => text.clone().into(),
        Some(places) => Reply::bytes(&text.bytes()[places]),
    })
}

fn setrange(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let part = words[3];
    let offset = usize::try_from(integer(words[2])?).map_err(|_| Error::fixed("ERR offset is out of range"))?;
    keys.edit(words[1], |text: &mut Text| {
        if part.is_empty() {
            return Ok(Edited::Unchanged(Reply::count(text.len())));
        }
        let end = offset.saturating_add(part.len());
        if end > MAX_VALUE_BYTES {
            return Err(Error::TOO_LONG);
        }
        let bytes = text.make_mut_of(end);
        bytes[offset..end].copy_from_slice(part);
        Ok(Edited::Changed(Reply::count(bytes.len())))
    })
}

fn append(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let more = words[2];
    // A new key holds its value in the form that any other command would have chosen.
    if !keys.view().exists(words[1]) {
        keys.put(words[1], Text::from(more));
        return Ok(Reply::count(more.len()));
    }
    keys.edit(words[1], |text: &mut Text| {
        if text.len().saturating_add(more.len()) > MAX_VALUE_BYTES {
            return Err(Error::TOO_LONG);
        }
        let bytes = text.make_mut();
        bytes.extend_from_slice(more);
        Ok(Edited::Changed(Reply::count(bytes.len())))
    })
}

fn mget(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let value = |key: &&[u8]| keys.get(key).and_then(Text::of).cloned().into();
    Ok(Reply::Array(words[1..].iter().map(value).collect()))
}

fn mset(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    for (key, value) in pairs(words)? {
        keys.put(key, Text::from(value));
    }
    Ok(Reply::OK)
}

fn msetnx(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    if pairs(words)?.any(|(key, _)| keys.view().exists(key)) {
        return Ok(Reply::whether(false));
    }
    mset(keys, words)?;
    Ok(Reply::whether(true))
}

fn pairs<'a>(words: &'a [&[u8]]) -> Result<impl Iterator<Item = (&'a [u8], &'a [u8])>, Error> {
    let (pairs, []) = words[1..].as_chunks::<2>() else { return Err(arity(words)) };
    Ok(pairs.iter().map(|[key, value]| (*key, *value)))
}

#[cfg(test)]
mod tests {
    use crate::testing::Shell;

    #[test]
    fn a_value_is_there_until_its_time_has_come() {
        let mut shell = Shell::new();
        shell.ask("set k v PX 10");
        shell.now_ms += 9;
        assert_eq!(shell.ask("get k"), "\"v\"");
        shell.now_ms += 1;
        assert_eq!(shell.ask("get k"), "nil");
        assert_eq!(shell.ask("append k w"), ":1");
        assert_eq!(shell.ask("ttl k"), ":-1", "the new value does not expire");
    }

    #[test]
    fn a_value_that_is_overwritten_keeps_its_time_if_asked_to() {
        let mut shell = Shell::new();
        shell.ask("setex k 10 v");
        shell.ask("set k w KEEPTTL");
        assert_eq!(shell.ask("ttl k"), ":10");
        shell.ask("append k x");
        assert_eq!(shell.ask("ttl k"), ":10");
        shell.ask("set k w");
        assert_eq!(shell.ask("ttl k"), ":-1");
    }

    #[test]
    fn a_time_that_has_passed_removes_the_key() {
        let mut shell = Shell::new();
        for command in ["set k v EXAT 1", "getex k PXAT 1"] {
            shell.ask("set k v");
            shell.ask(command);
            assert_eq!(shell.ask("dbsize"), ":0", "{command}");
        }
    }

    #[test]
    fn no_string_grows_beyond_the_limit() {
        let mut shell = Shell::new();
        let refused = "-ERR string exceeds maximum allowed size (proto-max-bulk-len)";
        assert_eq!(shell.ask("setrange k 536870912 x"), refused);
        assert_eq!(shell.ask("setrange k 9223372036854775807 x"), refused);
        assert_eq!(shell.ask("exists k"), ":0");
    }
}
