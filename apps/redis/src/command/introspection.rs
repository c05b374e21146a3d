//! The commands that describe the store itself, and the one that has nothing to do with keys.

use foldhash::{HashMap, HashMapExt};

use super::{Group, Spec, integer, is, read, write};
use crate::{
    Error, Reply,
    inspect::{self, Digest},
    keyspace::View,
};

pub(super) const COMMANDS: &[Spec] = &Group("server").of([
    read("object", -2, object).doc("2.2.3", "Tells how a value is kept.").in_group("generic").no_keys(),
    read("memory", -2, memory).doc("4.0.0", "Tells how much memory a key, or this server, takes.").no_keys(),
    read("debug", -2, debug).doc("1.0.0", "Returns digests of what is held.").no_keys(),
    write("publish", 3, |keys, words| Ok(Reply::count(keys.publish(words[1], words[2]))))
        .doc("2.0.0", "Sends a message to a channel's subscribers.")
        .in_group("pubsub")
        .no_keys()
        .fast(),
]);

const OBJECT_HELP: &[&str] = &[
    "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "ENCODING <key>",
    "    Return the kind of internal representation used in order to store the value",
    "    associated with a <key>.",
    "FREQ <key>",
    "    Return the access frequency index of the <key>. The returned integer is",
    "    proportional to the logarithm of the recent access frequency of the key.",
    "IDLETIME <key>",
    "    Return the idle time of the <key>, that is the approximated number of",
    "    seconds elapsed since the last access to the key.",
    "REFCOUNT <key>",
    "    Return the number of references of the value associated with the specified",
    "    <key>.",
    "HELP",
    "    Prints this help.",
];

const MEMORY_HELP: &[&str] = &[
    "MEMORY <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "DOCTOR",
    "    Return memory problems reports.",
    "MALLOC-STATS",
    "    Return internal statistics report from the memory allocator.",
    "PURGE",
    "    Attempt to purge dirty pages for reclamation by the allocator.",
    "STATS",
    "    Return information about the memory usage of the server.",
    "USAGE <key> [SAMPLES <count>]",
    "    Return memory in bytes used by <key> and its value.",
    "HELP",
    "    Prints this help.",
];

const DEBUG_HELP: &[&str] = &[
    "DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "DIGEST",
    "    Output a hex signature representing the current DB content.",
    "DIGEST-VALUE <key> [<key> ...]",
    "    Output a hex signature of the values of all the specified keys.",
    "HELP",
    "    Prints this help.",
];

fn help(lines: &'static [&'static str]) -> Reply {
    Reply::Array(lines.iter().map(|line| Reply::status(line)).collect())
}

fn object(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let known = ["encoding", "freq", "help", "idletime", "refcount"];
    let Some(name) = known.into_iter().find(|name| is(words[1], name)) else {
        return Err(Error::unknown_subcommand("OBJECT", words[1]));
    };
    if words.len() != if name == "help" { 2 } else { 3 } {
        return Err(Error::arity(&format!("object|{name}")));
    }
    if name == "help" {
        return Ok(help(OBJECT_HELP));
    }
    let Some(value) = keys.get(words[2]) else { return Ok(Reply::Null) };
    Ok(match name {
        "encoding" => Reply::bytes(inspect::encoding(value)),
        "refcount" => Reply::Integer(1),
        // No access is noted.
        "idletime" => Reply::Integer(0),
        _ => {
            return Err(Error::fixed(
                "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
                 switching between policies at runtime LRU and LFU data will take some time to adjust.",
            ));
        }
    })
}

fn memory(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    if is(words[1], "help") {
        return if words.len() == 2 { Ok(help(MEMORY_HELP)) } else { Err(Error::arity("memory|help")) };
    }
    if !is(words[1], "usage") {
        return Err(Error::unknown_subcommand("MEMORY", words[1]));
    }
    let [_, _, key, options @ ..] = words else { return Err(Error::arity("memory|usage")) };
    let mut options = options.iter();
    while let Some(option) = options.next() {
        // The number of samples is checked, and ignored.
        let samples = options.next().filter(|_| is(option, "samples")).ok_or(Error::SYNTAX)?;
        if integer(samples)? < 0 {
            return Err(Error::SYNTAX);
        }
    }
    Ok(keys.entry(key).map(|entry| Reply::count(entry.memory_bytes(key))).into())
}

fn debug(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let digest = |digest: Digest| Reply::bytes(digest.to_hex());
    match words[1..] {
        [name] if is(name, "help") => Ok(help(DEBUG_HELP)),
        [name] if is(name, "digest") => Ok(digest(Digest::of_all(keys))),
        [name, ref named @ ..] if is(name, "digest-value") => {
            // Each key once, since a few words could name a large value any number of times.
            let mut digests = HashMap::<&[u8], Digest>::new();
            let of = |key: &[u8]| keys.entry(key).map(Digest::of_entry).unwrap_or_default();
            Ok(Reply::Array(named.iter().map(|key| digest(*digests.entry(key).or_insert_with(|| of(key)))).collect()))
        }
        _ => Err(Error::wrong_subcommand("DEBUG", words[1])),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use proptest::{collection::vec, prelude::*};

    use crate::{keyspace::Publish, testing::Shell};

    #[test]
    fn a_message_reaches_this_replicas_subscribers() {
        #[derive(Default)]
        struct Heard(Mutex<Vec<(Vec<u8>, Vec<u8>)>>);
        impl Publish for Heard {
            fn publish(&self, channel: &[u8], message: &[u8]) -> usize {
                self.0.lock().expect("no thread has panicked").push((channel.to_vec(), message.to_vec()));
                3
            }
        }
        let mut shell = Shell::new();
        assert_eq!(shell.ask("publish news hello"), ":0");
        let heard = Arc::new(Heard::default());
        shell.store.set_publisher(heard.clone());
        assert_eq!(shell.ask("publish news hello"), ":3");
        assert_eq!(*heard.0.lock().expect("no thread has panicked"), [(b"news".to_vec(), b"hello".to_vec())]);
    }

    #[test]
    fn a_longer_value_takes_more_memory() {
        let mut shell = Shell::new();
        let mut bytes = |len: usize| {
            shell.ask(&format!("set k {}", "x".repeat(len)));
            shell.ask("memory usage k SAMPLES 5")[1..].parse::<usize>().expect("a number")
        };
        let (short, long, longer) = (bytes(1), bytes(1000), bytes(100_000));
        assert!(short < 100 && (1000..1200).contains(&long) && (100_000..100_200).contains(&longer));
    }

    #[test]
    fn the_digest_tells_when_keys_expire() {
        let mut shell = Shell::new();
        let empty = shell.ask("debug digest");
        assert_eq!(empty, format!("\"{}\"", "0".repeat(40)));
        let mut seen = vec![empty];
        for command in ["set k v", "pexpireat k 9000000000000", "pexpireat k 9000000000001", "set k w", "rename k j"] {
            shell.ask(command);
            let digest = shell.ask("debug digest");
            assert!(!seen.contains(&digest), "{command}");
            seen.push(digest);
        }
    }

    #[test]
    fn a_digest_of_a_large_value_is_made_once_however_often_it_is_named() {
        let mut shell = Shell::new();
        shell.ask("setrange k 1000000 x");
        let digests = shell.ask(&format!("debug digest-value{}", " k".repeat(10_000)));
        let one = shell.ask("debug digest-value k");
        assert!(digests.split(", ").all(|digest| digest.trim_matches(['[', ']']) == one.trim_matches(['[', ']'])));
    }

    proptest! {
        #[test]
        fn the_digest_depends_on_what_is_held_alone(
            pairs in vec(("[a-d]{1,2}", "[a-c]?"), 0..20),
            detours in vec("[a-d]", 0..9),
        ) {
            let all = std::collections::BTreeMap::from_iter(pairs.clone());
            let (mut straight, mut detour) = (Shell::new(), Shell::new());
            for key in &detours {
                detour.ask(&format!("set {key} gone"));
            }
            for (key, value) in &pairs {
                detour.ask_words(&["set", key, "x"]);
                detour.ask_words(&["setex", key, "10", value]);
                detour.ask_words(&["persist", key]);
            }
            for key in detours.iter().filter(|key| !all.contains_key(*key)) {
                detour.ask(&format!("del {key}"));
            }
            for (key, value) in all.iter().rev() {
                straight.ask_words(&["set", key, value]);
            }
            prop_assert_eq!(straight.ask("debug digest"), detour.ask("debug digest"));
        }
    }
}
