//! The commands of keys of any type, and of all keys at once.

use super::{
    Group, Spec, integer, is, read,
    scan::{Allowed, Scan},
    write,
};
use crate::{
    Error, Reply,
    keyspace::{KeyEntry, KeyspaceMut, View},
    pattern,
};

pub(super) const COMMANDS: &[Spec] = &Group("generic").of([
    write("del", -2, del).doc("1.0.0", "Removes keys.").keys(1, -1, 1),
    write("unlink", -2, del).doc("4.0.0", "Removes keys.").keys(1, -1, 1).fast(),
    read("exists", -2, exists).doc("1.0.0", "Counts the keys that exist.").keys(1, -1, 1).fast(),
    read("touch", -2, exists).doc("3.2.1", "Counts the keys that exist.").keys(1, -1, 1).fast(),
    read("type", 2, type_of).doc("1.0.0", "Returns the type of the value of a key.").fast(),
    write("rename", 3, |keys, words| move_to(keys, words, true).map(|_| Reply::OK))
        .doc("1.0.0", "Gives a key another name, whatever that held.")
        .keys(1, 2, 1),
    write("renamenx", 3, |keys, words| move_to(keys, words, false).map(Reply::whether))
        .doc("1.0.0", "Gives a key another name unless that exists.")
        .keys(1, 2, 1)
        .fast(),
    write("copy", -3, copy).doc("6.2.0", "Copies the value of a key to another.").keys(1, 2, 1),
    read("keys", 2, keys_like).doc("1.0.0", "Returns the keys that match a pattern.").no_keys(),
    read("scan", -2, scan).doc("2.8.0", "Walks over the keys in steps.").no_keys(),
    read("randomkey", 1, randomkey).doc("1.0.0", "Returns a random key.").no_keys(),
    read("dbsize", 1, |keys, _| Ok(Reply::count(keys.len())))
        .doc("1.0.0", "Counts the keys.")
        .in_group("server")
        .no_keys()
        .fast(),
    write("flushdb", -1, flush).doc("1.0.0", "Removes all keys.").in_group("server").no_keys(),
    write("flushall", -1, flush).doc("1.0.0", "Removes all keys.").in_group("server").no_keys(),
]);

fn del(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    Ok(Reply::count(words[1..].iter().filter(|key| keys.remove(key).is_some()).count()))
}

fn exists(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    Ok(Reply::count(words[1..].iter().filter(|key| keys.exists(key)).count()))
}

fn type_of(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    Ok(Reply::status(keys.get(words[1]).map_or("none", |value| value.type_name())))
}

/// Gives a key's value another key. Returns whether it was done.
fn move_to(keys: &mut KeyspaceMut<'_>, words: &[&[u8]], replaces: bool) -> Result<bool, Error> {
    let (from, to) = (words[1], words[2]);
    if !keys.view().exists(from) {
        return Err(Error::NO_SUCH_KEY);
    }
    if from == to || (!replaces && keys.view().exists(to)) {
        return Ok(false);
    }
    let (value, expires_ms) = keys.remove(from).expect("it exists");
    keys.put_until(to, value, expires_ms);
    Ok(true)
}

fn copy(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let (from, to) = (words[1], words[2]);
    let mut replaces = false;
    let mut options = words[3..].iter();
    while let Some(option) = options.next() {
        if is(option, "replace") {
            replaces = true;
            continue;
        }
        let database = options.next().filter(|_| is(option, "db")).ok_or(Error::SYNTAX)?;
        if integer(database)? != 0 {
            return Err(Error::fixed("ERR DB index is out of range"));
        }
    }
    if from == to {
        return Err(Error::fixed("ERR source and destination objects are the same"));
    }
    let Some(KeyEntry { value, .. }) = keys.view().entry(from) else { return Ok(Reply::whether(false)) };
    if !replaces && keys.view().exists(to) {
        return Ok(Reply::whether(false));
    }
    let (value, expires_ms) = (value.clone(), keys.view().entry(from).and_then(KeyEntry::expires_ms));
    keys.put_until(to, value, expires_ms);
    Ok(Reply::whether(true))
}

fn keys_like(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let all = keys.iter().map(|(key, _)| key);
    Ok(Reply::array_of_bytes(all.filter(|key| pattern::matches(words[1], key))))
}

fn scan(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let scan = Scan::parse(words[1], &words[2..], Allowed::Keys)?;
    let mut found = Vec::new();
    let next = scan.walk_sparse(keys.places(), keys.len(), |place| {
        let wanted = |(key, entry): &(&[u8], &KeyEntry)| {
            scan.kind.is_none_or(|kind| is(kind, entry.value.type_name())) && scan.matches(key)
        };
        found.extend(keys.at(place).filter(wanted).map(|(key, _)| Reply::bytes(key)));
    });
    Ok(Scan::reply(next, found))
}

fn randomkey(keys: &View<'_>, _words: &[&[u8]]) -> Result<Reply, Error> {
    let places = keys.places();
    if places == 0 {
        return Ok(Reply::Null);
    }
    // Some places hold expired keys. If very many do, the first key behind a random place is taken.
    let random = (0..100).filter_map(|_| keys.at(fastrand::usize(..places))).next();
    let start = fastrand::usize(..places);
    let found = random.or_else(|| (start..places).chain(0..start).find_map(|place| keys.at(place)));
    Ok(found.map(|(key, _)| Reply::bytes(key)).into())
}

fn flush(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    match words[1..] {
        [] => {}
        [how] if is(how, "sync") || is(how, "async") => {}
        _ => return Err(Error::SYNTAX),
    }
    keys.clear();
    Ok(Reply::OK)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection::vec, prelude::*};

    use crate::testing::Shell;

    #[test]
    fn a_key_that_has_expired_is_gone_for_all_that_look() {
        let mut shell = Shell::new();
        shell.ask("set k v PX 10");
        shell.ask("set other v");
        shell.now_ms += 10;
        for (command, answer) in [
            ("get k", "nil"),
            ("type k", "none"),
            ("exists k other", ":1"),
            ("ttl k", ":-2"),
            ("dbsize", ":1"),
            ("keys *", "[\"other\"]"),
            ("scan 0", "[\"0\", [\"other\"]]"),
            ("randomkey", "\"other\""),
            ("object encoding k", "nil"),
            ("del k", ":0"),
        ] {
            assert_eq!(shell.ask(command), answer, "{command}");
        }
    }

    #[test]
    fn what_has_expired_stands_in_nobodys_way() {
        let mut shell = Shell::new();
        for (command, answer) in
            [("setnx old w", ":1"), ("renamenx k old", ":1"), ("copy k old", ":1"), ("msetnx old w", ":1")]
        {
            shell.ask("set old v PX 10");
            shell.ask("set k v");
            shell.now_ms += 10;
            assert_eq!(shell.ask(command), answer, "{command}");
            assert_eq!(shell.ask("ttl old"), ":-1", "{command}");
        }
        shell.ask("set k v PX 10");
        shell.now_ms += 10;
        assert_eq!(shell.ask("rename k old"), "-ERR no such key");
        assert_eq!(shell.ask("copy k new"), ":0");
        assert_eq!(shell.ask("expire k 10"), ":0");
        assert_eq!(shell.ask("persist k"), ":0");
    }

    #[test]
    fn a_key_takes_its_expiry_along() {
        let mut shell = Shell::new();
        shell.ask("set k v PX 1500");
        shell.ask("copy k copy");
        shell.ask("rename k moved");
        assert_eq!((shell.ask("pttl copy"), shell.ask("pttl moved")), (":1500".to_owned(), ":1500".to_owned()));
    }

    #[test]
    fn a_random_key_is_found_among_many_that_have_expired() {
        let mut shell = Shell::new();
        shell.ask("set k v");
        for key in 0..2000 {
            shell.ask(&format!("set {key} v PX 10"));
        }
        shell.now_ms += 10;
        assert_eq!(shell.ask("randomkey"), "\"k\"");
        shell.ask("set k v PX 0");
        shell.ask("del k");
        assert_eq!(shell.ask("randomkey"), "nil");
    }

    #[test]
    fn a_scan_finds_what_was_asked_for_in_steps() {
        let mut shell = Shell::new();
        for key in ["a1", "b1", "a2", "b2", "a3"] {
            shell.ask(&format!("set {key} v"));
        }
        let mut walk = |options: &str| {
            let (mut cursor, mut steps, mut found) = ("0".to_owned(), 0, Vec::new());
            loop {
                let answer = shell.ask(&format!("scan {cursor} {options}"));
                let mut texts = answer.split(['[', ']', ',', ' ', '"']).filter(|text| !text.is_empty());
                texts.next().expect("a cursor").clone_into(&mut cursor);
                found.extend(texts.map(str::to_owned));
                steps += 1;
                if cursor == "0" {
                    found.sort();
                    return (steps, found.join(" "));
                }
            }
        };
        let (steps, found) = walk("count 2");
        assert_eq!(found, "a1 a2 a3 b1 b2");
        assert!((3..10).contains(&steps), "{steps}");
        assert_eq!(walk("count 2 match a*").1, "a1 a2 a3");
        assert_eq!(walk("count 1000 type STRING match b*"), (1, "b1 b2".to_owned()));
        assert_eq!(walk("type list").1, "");
        assert!(shell.ask("scan 18446744073709551615 count 1").starts_with("[\""), "it begins at the end");
    }

    proptest! {
        #[test]
        fn a_scan_meets_every_key_that_is_there_all_the_while(
            first in 0u8..60,
            steps in vec((1usize..8, vec((0u8..90, 0u8..4), 0..6)), 0..40),
        ) {
            let mut shell = Shell::new();
            (0..first).for_each(|key| drop(shell.ask(&format!("set {key} v"))));
            let mut staying: BTreeSet<u8> = (0..first).collect();
            let (mut cursor, mut met) = ("0".to_owned(), BTreeSet::new());
            // The rest of the walk, without changes.
            let rest = std::iter::repeat_n((1, Vec::new()), 100);
            for (count, changes) in steps.into_iter().chain(rest) {
                let answer = shell.ask(&format!("scan {cursor} count {count}"));
                let mut texts = answer.split(['[', ']', ',', ' ', '"']).filter(|text| !text.is_empty());
                texts.next().expect("a cursor").clone_into(&mut cursor);
                met.extend(texts.map(|key| key.parse::<u8>().expect("a key")));
                if cursor == "0" {
                    break;
                }
                for (key, what) in changes {
                    match what {
                        0 => shell.ask(&format!("del {key}")),
                        1 => shell.ask(&format!("set {key} v PX 1")),
                        2 => shell.ask(&format!("rename {key} {}", 200 - key)),
                        _ => shell.ask(&format!("set {key} w")),
                    };
                    if what < 3 {
                        staying.remove(&key);
                    }
                }
                shell.now_ms += 1;
            }
            prop_assert_eq!(cursor, "0");
            prop_assert!(staying.is_subset(&met));
        }
    }
}
