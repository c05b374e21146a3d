//! The replicated state machine: strings under keys, as Redis has them.
//!
//! Pure: no I/O, clock or randomness, so that every replica that applies the same commands holds the same state, and a
//! simulator can drive it. Commands change the state and travel through the group; queries only look, at one replica.

use std::{collections::HashMap, sync::Arc};

use rkyv::{Archive, Archived, Serialize};
use squall::{Applied, Replicated};

/// The longest value, in bytes (Redis' `proto-max-bulk-len`).
pub(crate) const MAX_VALUE_BYTES: usize = 512 << 20;

/// A change of the state.
#[derive(Archive, Serialize, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Sets one key.
    Set { key: Vec<u8>, value: Vec<u8>, only: Only, answer: SetAnswer },
    /// Sets all of these keys at once.
    SetMany { pairs: Vec<Pair> },
    /// Appends to a value; a missing one is empty. Answers the new length.
    Append { key: Vec<u8>, suffix: Vec<u8> },
    /// Adds to a decimal number; a missing one is 0. Answers the sum.
    Add { key: Vec<u8>, by: i64 },
    /// Deletes keys. Answers how many there were.
    Delete { keys: Vec<Vec<u8>> },
    /// Deletes every key.
    Clear,
}

/// A key and its value.
#[derive(Archive, Serialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// The condition of a set.
#[derive(Archive, Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Only {
    Always,
    IfAbsent,
    IfPresent,
}

/// What a set answers.
#[derive(Archive, Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetAnswer {
    /// `Done`, or no value if the condition did not hold.
    Done,
    /// The value before, whether the condition held or not.
    Old,
    /// 1 if the condition held, else 0.
    Whether,
}

/// A look at the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Query {
    Get {
        key: Vec<u8>,
    },
    GetMany {
        keys: Vec<Vec<u8>>,
    },
    /// How many of these exist; a key named twice counts twice.
    Exists {
        keys: Vec<Vec<u8>>,
    },
    Length {
        key: Vec<u8>,
    },
    Type {
        key: Vec<u8>,
    },
    /// The number of keys.
    Count,
    /// The keys that match a glob pattern, in their byte order.
    Keys {
        pattern: Vec<u8>,
    },
}

/// The answer to a command or a query. Values are shared with the store, not copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Done,
    Integer(i64),
    Value(Option<Arc<[u8]>>),
    Values(Vec<Option<Arc<[u8]>>>),
    Type(&'static str),
    Refused(Refusal),
}

/// Why a command changed nothing. The texts are Redis' own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("ERR value is not an integer or out of range")]
    NotAnInteger,
    #[error("ERR increment or decrement would overflow")]
    Overflow,
    #[error("ERR string exceeds maximum allowed size (proto-max-bulk-len)")]
    TooLong,
}

/// One replica's state.
#[derive(Debug, Default)]
pub(crate) struct Store {
    entries: HashMap<Box<[u8]>, Entry>,
    /// The sum of the entries' digests, so that it depends on the content and not on its history.
    digest: u64,
    applied: Option<Applied>,
}

#[derive(Debug)]
struct Entry {
    value: Arc<[u8]>,
    digest: u64,
}

impl Replicated for Store {
    type Command = Command;
    type Reply = Reply;

    fn apply(&mut self, command: &Archived<Command>, at: &Applied) -> Reply {
        self.applied = Some(*at);
        self.change(command)
    }
}

impl Store {
    fn change(&mut self, command: &Archived<Command>) -> Reply {
        match command {
            ArchivedCommand::Set { key, value, only, answer } => self.set(key, value, only, answer),
            ArchivedCommand::SetMany { pairs } => {
                for pair in pairs.iter() {
                    self.put(&pair.key, Arc::from(&*pair.value));
                }
                Reply::Done
            }
            ArchivedCommand::Append { key, suffix } => self.append(key, suffix),
            ArchivedCommand::Add { key, by } => self.add(key, by.to_native()),
            ArchivedCommand::Delete { keys } => {
                Reply::Integer(keys.iter().filter(|key| self.delete(key)).count() as i64)
            }
            ArchivedCommand::Clear => {
                self.entries = HashMap::new();
                self.digest = 0;
                Reply::Done
            }
        }
    }

    /// Answers a query from the state as it is.
    pub(crate) fn answer(&self, query: &Query) -> Reply {
        match query {
            Query::Get { key } => Reply::Value(self.get(key)),
            Query::GetMany { keys } => Reply::Values(keys.iter().map(|key| self.get(key)).collect()),
            Query::Exists { keys } => {
                Reply::Integer(keys.iter().filter(|key| self.entries.contains_key(key.as_slice())).count() as i64)
            }
            Query::Length { key } => Reply::Integer(self.get(key).map_or(0, |value| value.len() as i64)),
            Query::Type { key } => {
                Reply::Type(if self.entries.contains_key(key.as_slice()) { "string" } else { "none" })
            }
            Query::Count => Reply::Integer(self.len() as i64),
            Query::Keys { pattern } => {
                let mut keys: Vec<&[u8]> =
                    self.entries.keys().map(|key| &**key).filter(|key| matches(pattern, key)).collect();
                // A hash map has an order of its own at each replica.
                keys.sort_unstable();
                Reply::Values(keys.into_iter().map(|key| Some(Arc::from(key))).collect())
            }
        }
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Where in the order the last applied command stands.
    pub(crate) fn applied(&self) -> Option<Applied> {
        self.applied
    }

    /// A number that is equal, in practice, exactly where the content is.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    fn get(&self, key: &[u8]) -> Option<Arc<[u8]>> {
        self.entries.get(key).map(|entry| Arc::clone(&entry.value))
    }

    fn set(&mut self, key: &[u8], value: &[u8], only: &ArchivedOnly, answer: &ArchivedSetAnswer) -> Reply {
        if let (ArchivedOnly::Always, ArchivedSetAnswer::Done) = (only, answer) {
            self.put(key, Arc::from(value));
            return Reply::Done;
        }
        let old = self.entries.get(key);
        let holds = match only {
            ArchivedOnly::Always => true,
            ArchivedOnly::IfAbsent => old.is_none(),
            ArchivedOnly::IfPresent => old.is_some(),
        };
        let reply = match answer {
            ArchivedSetAnswer::Done if holds => Reply::Done,
            ArchivedSetAnswer::Done => Reply::Value(None),
            ArchivedSetAnswer::Old => Reply::Value(old.map(|entry| Arc::clone(&entry.value))),
            ArchivedSetAnswer::Whether => Reply::Integer(i64::from(holds)),
        };
        if holds {
            self.put(key, Arc::from(value));
        }
        reply
    }

    fn append(&mut self, key: &[u8], suffix: &[u8]) -> Reply {
        let old = self.entries.get(key).map_or(&[][..], |entry| &entry.value);
        let len = old.len() + suffix.len();
        if len > MAX_VALUE_BYTES {
            return Reply::Refused(Refusal::TooLong);
        }
        let value = [old, suffix].concat();
        self.put(key, Arc::from(value));
        Reply::Integer(len as i64)
    }

    fn add(&mut self, key: &[u8], by: i64) -> Reply {
        let Some(old) = self.entries.get(key).map_or(Some(0), |entry| integer(&entry.value)) else {
            return Reply::Refused(Refusal::NotAnInteger);
        };
        let Some(sum) = old.checked_add(by) else {
            return Reply::Refused(Refusal::Overflow);
        };
        self.put(key, Arc::from(sum.to_string().as_bytes()));
        Reply::Integer(sum)
    }

    fn put(&mut self, key: &[u8], value: Arc<[u8]>) {
        let new = Entry { digest: digest(key, &value), value };
        self.digest = self.digest.wrapping_add(new.digest);
        match self.entries.get_mut(key) {
            Some(entry) => {
                self.digest = self.digest.wrapping_sub(entry.digest);
                *entry = new;
            }
            None => {
                self.entries.insert(key.into(), new);
            }
        }
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        let Some(entry) = self.entries.remove(key) else { return false };
        self.digest = self.digest.wrapping_sub(entry.digest);
        true
    }
}

/// Reads a number as Redis does: decimal, no sign but a minus, no leading zero, no space.
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let plain = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !plain {
        return None;
    }
    str::from_utf8(text).ok()?.parse().ok()
}

/// Whether a glob pattern (`*`, `?`, `[a-z]`, `[^a]`, `\` before a literal) matches all of a text.
///
/// Takes at most (pattern length × text length) steps, since a later `*` makes going back to an earlier one useless.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, t));
            continue;
        }
        match one(&pattern[p..], text[t]) {
            Some(len) => {
                p += len;
                t += 1;
            }
            None => {
                let Some((after, taken)) = star else { return false };
                star = Some((after, taken + 1));
                (p, t) = (after, taken + 1);
            }
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// The length of the pattern's first element, if it matches this byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', literal, ..] => (literal == byte).then_some(2),
        [b'[', ref rest @ ..] => {
            let (negated, set) = match rest {
                [b'^', set @ ..] => (true, set),
                set => (false, set),
            };
            let mut found = false;
            let mut at = 0;
            // An open set ends where the pattern does.
            while at < set.len() && set[at] != b']' {
                let (low, high, len) = match set[at..] {
                    [b'\\', literal, ..] => (literal, literal, 2),
                    [low, b'-', high, ..] if high != b']' => (low.min(high), low.max(high), 3),
                    [literal, ..] => (literal, literal, 1),
                    [] => break,
                };
                found |= (low..=high).contains(&byte);
                at += len;
            }
            let closed = usize::from(at < set.len());
            (found != negated).then_some(1 + usize::from(negated) + at + closed)
        }
        [literal, ..] => (literal == byte).then_some(1),
    }
}

/// Mixes a key and its value into 64 bits. It is fixed, so that replicas can compare theirs; it resists no attacker.
fn digest(key: &[u8], value: &[u8]) -> u64 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |state: u64, word: u64| {
        let product = u128::from(state ^ word) * u128::from(MULTIPLIER);
        // Folding keeps the high half, into which every bit of the word went.
        (product as u64) ^ ((product >> 64) as u64).rotate_left(29).wrapping_add(MULTIPLIER)
    };
    let mut state = MULTIPLIER;
    for part in [key, value] {
        state = mix(state, part.len() as u64);
        let (words, tail) = part.as_chunks::<8>();
        for word in words {
            state = mix(state, u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..tail.len()].copy_from_slice(tail);
        state = mix(state, u64::from_le_bytes(last));
    }
    mix(state, 0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn apply(store: &mut Store, command: &Command) -> Reply {
        let bytes = rkyv::to_bytes::<rkyv::rancor::Error>(command).expect("it can be archived");
        store.change(rkyv::access::<ArchivedCommand, rkyv::rancor::Error>(&bytes).expect("it was just archived"))
    }

    fn set(key: &str, value: &str) -> Command {
        set_if(key, value, Only::Always, SetAnswer::Done)
    }

    fn set_if(key: &str, value: &str, only: Only, answer: SetAnswer) -> Command {
        Command::Set { key: key.into(), value: value.into(), only, answer }
    }

    fn value(text: &str) -> Reply {
        Reply::Value(Some(text.as_bytes().into()))
    }

    fn get(store: &Store, key: &str) -> Reply {
        store.answer(&Query::Get { key: key.into() })
    }

    #[test]
    fn what_was_set_can_be_got() {
        let mut store = Store::default();
        assert_eq!(apply(&mut store, &set("a", "1")), Reply::Done);
        assert_eq!(get(&store, "a"), value("1"));
        assert_eq!(get(&store, "b"), Reply::Value(None));
        let keys = vec![b"b".to_vec(), b"a".to_vec()];
        assert_eq!(store.answer(&Query::GetMany { keys }), Reply::Values(vec![None, Some(b"1"[..].into())]));
    }

    #[test]
    fn a_condition_decides_whether_a_set_takes_place() {
        let mut store = Store::default();
        assert_eq!(apply(&mut store, &set_if("a", "1", Only::IfPresent, SetAnswer::Done)), Reply::Value(None));
        assert_eq!(apply(&mut store, &set_if("a", "2", Only::IfAbsent, SetAnswer::Whether)), Reply::Integer(1));
        assert_eq!(apply(&mut store, &set_if("a", "3", Only::IfAbsent, SetAnswer::Whether)), Reply::Integer(0));
        assert_eq!(apply(&mut store, &set_if("a", "4", Only::IfAbsent, SetAnswer::Old)), value("2"));
        assert_eq!(apply(&mut store, &set_if("a", "5", Only::Always, SetAnswer::Old)), value("2"));
        assert_eq!(get(&store, "a"), value("5"));
    }

    #[test]
    fn numbers_are_added_to_and_anything_else_is_refused() {
        let mut store = Store::default();
        let add = |by| Command::Add { key: b"n".to_vec(), by };
        assert_eq!(apply(&mut store, &add(5)), Reply::Integer(5));
        assert_eq!(apply(&mut store, &add(-7)), Reply::Integer(-2));
        apply(&mut store, &set("n", &i64::MAX.to_string()));
        assert_eq!(apply(&mut store, &add(1)), Reply::Refused(Refusal::Overflow));
        assert_eq!(get(&store, "n"), value(&i64::MAX.to_string()));
        for text in ["", "-", "+1", "01", "-0", " 1", "1 ", "1.0", "9223372036854775808", "x"] {
            apply(&mut store, &set("n", text));
            assert_eq!(apply(&mut store, &add(1)), Reply::Refused(Refusal::NotAnInteger), "{text:?}");
        }
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(integer(b"0"), Some(0));
    }

    #[test]
    fn append_delete_exists_length_and_type() {
        let mut store = Store::default();
        let append = |suffix: &str| Command::Append { key: b"a".to_vec(), suffix: suffix.into() };
        assert_eq!(apply(&mut store, &append("ab")), Reply::Integer(2));
        assert_eq!(apply(&mut store, &append("cde")), Reply::Integer(5));
        assert_eq!(get(&store, "a"), value("abcde"));
        assert_eq!(store.answer(&Query::Length { key: b"a".to_vec() }), Reply::Integer(5));
        assert_eq!(store.answer(&Query::Type { key: b"a".to_vec() }), Reply::Type("string"));
        assert_eq!(store.answer(&Query::Type { key: b"b".to_vec() }), Reply::Type("none"));
        let keys = vec![b"a".to_vec(), b"b".to_vec(), b"a".to_vec()];
        assert_eq!(store.answer(&Query::Exists { keys: keys.clone() }), Reply::Integer(2));
        assert_eq!(apply(&mut store, &Command::Delete { keys }), Reply::Integer(1));
        assert_eq!(store.answer(&Query::Count), Reply::Integer(0));
    }

    #[test]
    fn globs_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "abc", true),
            ("", "", true),
            ("", "a", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a*c*e", "abcde", true),
            ("a*c*f", "abcde", false),
            ("[a-c]x", "bx", true),
            ("[c-a]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[a\\]]", "]", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[ab", "a", true),
            ("key:*", "key:1", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern:?} on {text:?}");
        }
    }

    #[test]
    fn a_glob_of_many_stars_takes_no_exponential_time() {
        assert!(!matches(&[&b"a*".repeat(1000)[..], b"b"].concat(), &b"a".repeat(2000)));
    }

    fn command() -> impl Strategy<Value = Command> {
        let key = || vec(b'a'..=b'd', 1..=2);
        let text = || vec(prop_oneof![b'0'..=b'9', b'x'..=b'z'], 0..20);
        let only = prop_oneof![Just(Only::Always), Just(Only::IfAbsent), Just(Only::IfPresent)];
        let answer = prop_oneof![Just(SetAnswer::Done), Just(SetAnswer::Old), Just(SetAnswer::Whether)];
        let pair = (key(), text()).prop_map(|(key, value)| Pair { key, value });
        prop_oneof![
            (key(), text(), only, answer).prop_map(|(key, value, only, answer)| Command::Set {
                key,
                value,
                only,
                answer
            }),
            vec(pair, 1..5).prop_map(|pairs| Command::SetMany { pairs }),
            (key(), text()).prop_map(|(key, suffix)| Command::Append { key, suffix }),
            (key(), -3..3_i64).prop_map(|(key, by)| Command::Add { key, by }),
            vec(key(), 1..5).prop_map(|keys| Command::Delete { keys }),
        ]
    }

    fn content(store: &Store) -> BTreeMap<Vec<u8>, Vec<u8>> {
        store.entries.iter().map(|(key, entry)| (key.to_vec(), entry.value.to_vec())).collect()
    }

    proptest! {
        #[test]
        fn replicas_that_apply_the_same_hold_and_answer_the_same(commands in vec(command(), 0..60)) {
            let mut stores = [Store::default(), Store::default()];
            for command in &commands {
                let [left, right] = &mut stores;
                prop_assert_eq!(apply(left, command), apply(right, command));
            }
            let [left, right] = &stores;
            prop_assert_eq!(content(left), content(right));
            prop_assert_eq!(left.digest(), right.digest());
            let all = Query::Keys { pattern: b"*".to_vec() };
            prop_assert_eq!(left.answer(&all), right.answer(&all));
        }

        #[test]
        fn the_digest_depends_on_the_content_alone(commands in vec(command(), 0..60)) {
            let mut grown = Store::default();
            for command in &commands {
                apply(&mut grown, command);
            }
            let mut copied = Store::default();
            for (key, value) in content(&grown) {
                copied.put(&key, value.into());
            }
            prop_assert_eq!(grown.digest(), copied.digest());
            copied.put(b"another", Arc::from(&b""[..]));
            prop_assert_ne!(grown.digest(), copied.digest());
            prop_assert_eq!(apply(&mut grown, &Command::Clear), Reply::Done);
            prop_assert_eq!(grown.digest(), 0);
        }
    }
}
