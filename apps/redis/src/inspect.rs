//! Facts about a value besides its content: its encoding, and its digest.

use sha1::{Digest as _, Sha1};

use crate::{
    Text,
    keyspace::{KeyEntry, View},
    number,
    value::Value,
};

/// Redis' name for the form in which it would keep this value, with its default settings.
pub fn encoding(value: &Value) -> &'static str {
    /// The longest element of a collection that Redis packs.
    const PACKED_BYTES: usize = 64;
    let is_short = |element: &[u8]| element.len() <= PACKED_BYTES;
    match value {
        Value::Text(Text::Integer(_)) => "int",
        Value::Text(Text::Short(_)) => "embstr",
        Value::Text(Text::Fixed(bytes)) if bytes.len() <= 44 => "embstr",
        Value::Text(Text::Fixed(_) | Text::Growing(_)) => "raw",
        Value::List(list) => {
            let mut packed = list.iter().scan(0, |bytes, element| {
                // Besides its bytes, an element has its length and the distance to the one before it.
                *bytes += element.len() + 2;
                Some(*bytes)
            });
            if packed.all(|bytes| bytes <= 8192) { "listpack" } else { "quicklist" }
        }
        Value::Hash(hash) => {
            let is_packed =
                hash.len() <= 512 && hash.iter().all(|(field, value)| is_short(field) && value.len() <= PACKED_BYTES);
            if is_packed { "listpack" } else { "hashtable" }
        }
        Value::Set(set) if set.len() <= 512 && set.iter().all(|member| number::integer(member).is_some()) => "intset",
        Value::Set(set) if set.len() <= 128 && set.iter().all(is_short) => "listpack",
        Value::Set(_) => "hashtable",
        Value::SortedSet(set) if set.len() <= 128 && set.iter().all(|(member, _)| is_short(member)) => "listpack",
        Value::SortedSet(_) => "skiplist",
    }
}

/// A digest of 20 bytes. Equal contents have equal digests, in whatever way they came about. Different contents have
/// different ones, unless they were constructed to collide.
///
/// Digests are made as Redis makes them, except that the time when a key expires counts too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest([u8; 20]);

impl Digest {
    /// The digest of all keys.
    pub fn of_all(keys: &View<'_>) -> Digest {
        let mut all = Digest::default();
        for (place, (key, entry)) in keys.iter().enumerate() {
            if place == 0 {
                // The number of the database comes first.
                all.follow(&[0; 4]);
            }
            let mut one = Digest::default();
            one.follow(key);
            one.follow_entry(entry);
            all.join(&one.0);
        }
        all
    }

    /// The digest of one key's value and expiry.
    pub fn of_entry(entry: &KeyEntry) -> Digest {
        let mut one = Digest::default();
        one.follow_entry(entry);
        one
    }

    fn follow_entry(&mut self, entry: &KeyEntry) {
        let kind: u32 = match entry.value {
            Value::Text(_) => 0,
            Value::List(_) => 1,
            Value::Set(_) => 2,
            Value::SortedSet(_) => 3,
            Value::Hash(_) => 4,
        };
        self.follow(&kind.to_be_bytes());
        match &entry.value {
            Value::Text(text) => self.follow(&text.bytes()),
            Value::List(list) => list.iter().for_each(|element| self.follow(&element.bytes())),
            Value::Set(set) => set.iter().for_each(|member| self.join(member)),
            Value::SortedSet(set) => {
                set.iter().for_each(|(member, score)| self.join_pair(member, number::double(score).as_bytes()));
            }
            Value::Hash(hash) => hash.iter().for_each(|(field, value)| self.join_pair(field, &value.bytes())),
        }
        if let Some(expires_ms) = entry.expires_ms() {
            self.join(&[b"!!expire!!", &expires_ms.to_be_bytes()[..]].concat());
        }
    }

    /// Adds bytes whose place does not matter.
    fn join(&mut self, bytes: &[u8]) {
        let hash: [u8; 20] = Sha1::digest(bytes).into();
        self.0.iter_mut().zip(hash).for_each(|(byte, more)| *byte ^= more);
    }

    /// Adds bytes whose place matters.
    fn follow(&mut self, bytes: &[u8]) {
        self.join(bytes);
        self.0 = Sha1::digest(self.0).into();
    }

    fn join_pair(&mut self, first: &[u8], second: &[u8]) {
        let mut pair = Digest::default();
        pair.follow(first);
        pair.follow(second);
        self.join(&pair.0);
    }

    /// The digest as 40 hexadecimal digits.
    pub fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
