//! The keys: their values, their expiry, and the versions by which a watching transaction notices changes.
//!
//! Keys lie in places (see `rows`), and each `SCAN` walks from the last place to the first. It meets every key that
//! exists during the whole walk. A random key is the key at a random place.
//!
//! A key that expires at `t` is absent for a look at `t` or later. It is removed by the next change that meets it, or
//! by [`Keyspace::expire`]. The time of its removal makes no visible difference.

mod counting;
mod frozen;
mod publish;
mod rows;
mod waiting;

use std::{collections::BTreeSet, io, num::NonZeroU64, sync::Arc};

use self::rows::Rows;
pub(crate) use self::{counting::Lookups, frozen::Frozen};
pub use self::{
    publish::Publish,
    waiting::{Awaited, WaitEnd, WaiterId, Waiters},
};
use crate::{
    Error,
    saved::{StateReader, damaged},
    value::{Typed, Value},
};

/// The number of classes in which the births of keys are noted; see [`Keyspace::births`].
const BIRTHS: usize = 1 << 16;

/// All keys of a store.
#[derive(derive_more::Debug)]
#[debug("Keyspace({} keys, version {version})", entries.len())]
pub struct Keyspace {
    entries: Rows,
    /// The keys that expire, the earliest first.
    expiries: BTreeSet<(u64, Box<[u8]>)>,
    /// The number of changes of keys so far.
    version: u64,
    /// The last version at which a key of each class came into being. A transaction that watches an absent key is
    /// aborted if a key of its class was born since: the watched one, or, rarely, another.
    births: Box<[u64]>,
    waiters: Waiters,
    publisher: Option<Arc<dyn Publish>>,
}

/// A key's value, with its version and expiry.
#[derive(Clone, Debug)]
pub struct KeyEntry {
    /// The value.
    pub value: Value,
    version: u64,
    expires_ms: Option<NonZeroU64>,
}

impl KeyEntry {
    /// The time when the key expires, in milliseconds since 1970.
    pub fn expires_ms(&self) -> Option<u64> {
        self.expires_ms.map(NonZeroU64::get)
    }

    /// The bytes of memory that the key of this name takes, its value included; an estimate.
    pub fn memory_bytes(&self, key: &[u8]) -> usize {
        // The row holds these three. The table of places holds two numbers for each, since it is never full.
        let row = size_of::<u64>() + size_of::<Box<[u8]>>() + size_of::<KeyEntry>() + 2 * size_of::<usize>();
        let expiry = self.expires_ms.map_or(0, |_| size_of::<(u64, Box<[u8]>)>() + key.len());
        row + key.len() + expiry + self.value.heap_bytes()
    }

    fn is_alive(&self, now_ms: u64) -> bool {
        self.expires_ms.is_none_or(|at| at.get() > now_ms)
    }
}

impl Default for Keyspace {
    fn default() -> Keyspace {
        Keyspace {
            entries: Rows::default(),
            expiries: BTreeSet::new(),
            version: 0,
            births: vec![0; BIRTHS].into(),
            waiters: Waiters::default(),
            publisher: None,
        }
    }
}

impl Keyspace {
    /// Sets the destination of published messages.
    pub fn set_publisher(&mut self, publisher: Arc<dyn Publish>) {
        self.publisher = Some(publisher);
    }

    /// Whether this replica's server has more memory in use than its limit.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.publisher.as_ref().is_some_and(|publisher| publisher.is_out_of_memory())
    }

    /// Tells the publisher that messages are missing.
    pub(crate) fn tell_of_gap(&self) {
        if let Some(publisher) = &self.publisher {
            publisher.tell_of_gap();
        }
    }

    /// Looks at the keys as they are at a time.
    pub fn view(&self, now_ms: u64) -> View<'_> {
        View { keys: self, now_ms, lookups: None }
    }

    /// Changes keys at a time, which never goes back. `seed` determines random choices, which must be the same at all
    /// replicas.
    pub fn change(&mut self, now_ms: u64, seed: u64) -> KeyspaceMut<'_> {
        KeyspaceMut { keys: self, now_ms, seed }
    }

    /// Removes keys that have expired, until their values had `max` elements. Returns the number of keys.
    pub fn expire(&mut self, now_ms: u64, max: usize) -> usize {
        let (mut removed, mut elements) = (0, 0);
        while elements < max {
            let Some((at, _)) = self.expiries.first() else { break };
            if *at > now_ms {
                break;
            }
            let (_, key) = self.expiries.pop_first().expect("it was just seen");
            let entry = self.entries.remove(&key);
            elements += entry.map_or(1, |entry| entry.value.elements().max(1));
            removed += 1;
        }
        if removed > 0 {
            self.tell_of_expired(removed);
        }
        removed
    }

    /// The number of keys, with those that have expired and were not removed yet.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys, not even expired ones.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of keys that have an expiry, with those that have expired and were not removed yet.
    pub fn expiring(&self) -> usize {
        self.expiries.len()
    }

    /// The time when the next key expires.
    pub fn next_expiry_ms(&self) -> Option<u64> {
        self.expiries.first().map(|(at, _)| *at)
    }

    /// A copy of the keys, expired ones included, which can be written out later and on any thread.
    pub(crate) fn freeze(&self) -> Frozen {
        Frozen {
            entries: self.entries.clone(),
            version: self.version,
            births: self.births.clone(),
            waiters: self.waiters.freeze(),
        }
    }

    /// Replaces the keys by those that were written.
    pub(crate) fn load(&mut self, from: &mut StateReader<'_>) -> io::Result<()> {
        let mut new = Keyspace { version: from.number()?, publisher: self.publisher.clone(), ..Keyspace::default() };
        for _ in 0..from.number()? {
            let class = usize::try_from(from.number()?).ok();
            let place =
                class.and_then(|class| new.births.get_mut(class)).ok_or_else(|| damaged("it has too many births"))?;
            *place = from.number()?;
        }
        for _ in 0..from.number()? {
            let key = from.bytes()?;
            let (version, expires_ms) = (from.number()?, NonZeroU64::new(from.number()?));
            let entry = KeyEntry { value: from.value()?, version, expires_ms };
            if new.entries.get(&key).is_some() {
                return Err(damaged("it has a key twice"));
            }
            new.entries.insert(&key, entry);
            if let Some(at) = expires_ms {
                new.expiries.insert((at.get(), key.into()));
            }
        }
        new.waiters = Waiters::read(from)?;
        *self = new;
        Ok(())
    }

    fn class(&self, key: &[u8]) -> usize {
        rows::fixed_hash(key) as usize % BIRTHS
    }
}

/// The state of a watched key, as a transaction notes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// The key was there, in this version.
    Present(u64),
    /// The key was not there, and this was the version of the keyspace.
    Absent(u64),
}

/// The keys at a moment.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    keys: &'a Keyspace,
    now_ms: u64,
    lookups: Option<&'a Lookups>,
}

impl<'a> View<'a> {
    /// The same view, which counts the keys that are looked up.
    pub(crate) fn counting(self, lookups: &'a Lookups) -> View<'a> {
        View { lookups: Some(lookups), ..self }
    }

    /// The moment, in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        let expired = self.keys.expiries.iter().take_while(|(at, _)| *at <= self.now_ms).count();
        self.keys.entries.len() - expired
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A key's value, with its version and expiry.
    pub fn entry(&self, key: &[u8]) -> Option<&'a KeyEntry> {
        let entry = self.keys.entries.get(key).filter(|entry| entry.is_alive(self.now_ms));
        if let Some(lookups) = self.lookups {
            lookups.count(entry.is_some());
        }
        entry
    }

    /// A key's value.
    pub fn get(&self, key: &[u8]) -> Option<&'a Value> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// Whether a key exists.
    pub fn exists(&self, key: &[u8]) -> bool {
        self.entry(key).is_some()
    }

    /// A key's value of a type. The error is [`Error::WRONG_TYPE`].
    pub fn typed<T: Typed + 'a>(&self, key: &[u8]) -> Result<Option<&'a T>, Error> {
        self.get(key).map(|value| T::of(value).ok_or(Error::WRONG_TYPE)).transpose()
    }

    /// All keys.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a KeyEntry)> + use<'a> {
        let now_ms = self.now_ms;
        self.keys.entries.iter().filter(move |(_, entry)| entry.is_alive(now_ms))
    }

    /// The number of places for keys. Some are empty.
    pub fn places(&self) -> usize {
        self.keys.entries.places()
    }

    /// The key and entry at a place. `None` if the place is empty, or the key has expired.
    pub fn at(&self, place: usize) -> Option<(&'a [u8], &'a KeyEntry)> {
        let (key, entry) = self.keys.entries.at(place)?;
        entry.is_alive(self.now_ms).then_some((key, entry))
    }

    /// Begins to watch a key.
    pub fn watch(&self, key: &[u8]) -> Watch {
        self.entry(key).map_or(Watch::Absent(self.keys.version), |entry| Watch::Present(entry.version))
    }

    /// Whether a key is in the state in which it was watched.
    pub fn is_unchanged(&self, key: &[u8], since: Watch) -> bool {
        match (since, self.entry(key)) {
            (Watch::Present(version), Some(entry)) => entry.version == version,
            (Watch::Absent(version), None) => self.keys.births[self.keys.class(key)] <= version,
            _ => false,
        }
    }
}

/// The effect of an edit, and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edited<T> {
    /// The value was changed.
    Changed(T),
    /// The value was not changed.
    Unchanged(T),
}

impl<T> Edited<T> {
    /// `Changed` if `changed`, else `Unchanged`.
    pub fn when(changed: bool, result: T) -> Edited<T> {
        if changed { Edited::Changed(result) } else { Edited::Unchanged(result) }
    }
}

/// The keys, open to changes at a moment.
#[derive(Debug)]
pub struct KeyspaceMut<'a> {
    keys: &'a mut Keyspace,
    now_ms: u64,
    seed: u64,
}

impl KeyspaceMut<'_> {
    /// The moment, in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// The keys as they are now.
    pub fn view(&self) -> View<'_> {
        self.keys.view(self.now_ms)
    }

    /// Sets a key to a value, without an expiry.
    pub fn put(&mut self, key: &[u8], value: impl Typed) {
        self.put_until(key, value.into_value(), None);
    }

    /// Sets a key to a value, which keeps the expiry of the old one.
    pub fn put_keeping_expiry(&mut self, key: &[u8], value: impl Typed) {
        let expires_ms = self.view().entry(key).and_then(KeyEntry::expires_ms);
        self.put_until(key, value.into_value(), expires_ms);
    }

    /// Sets a key to a collection, without an expiry, or removes the key if the collection is empty.
    pub fn put_unless_empty(&mut self, key: &[u8], value: impl Typed) {
        if value.is_gone() {
            self.remove(key);
        } else {
            self.put(key, value);
        }
    }

    /// Sets a key to a value, until a time. If that has passed, the key is removed.
    pub fn put_until(&mut self, key: &[u8], value: Value, expires_ms: Option<u64>) {
        if expires_ms.is_some_and(|at| at <= self.now_ms) {
            self.remove(key);
            return;
        }
        let expires_ms = expires_ms.and_then(NonZeroU64::new);
        self.keys.version += 1;
        self.keys.waiters.note_set(key);
        let entry = KeyEntry { value, version: self.keys.version, expires_ms };
        let old_expiry = match self.keys.entries.get_mut(key) {
            Some(old) => {
                let was_alive = old.is_alive(self.now_ms);
                let old_expiry = std::mem::replace(old, entry).expires_ms;
                if !was_alive {
                    self.note_birth(key);
                    self.keys.tell_of_expired(1);
                }
                old_expiry
            }
            None => {
                self.keys.entries.insert(key, entry);
                self.note_birth(key);
                None
            }
        };
        self.move_expiry(key, old_expiry, expires_ms);
    }

    /// Changes a key's value of a type, in place. An absent one begins with the type's default, and one whose
    /// collection is empty afterwards is removed. The key's expiry stays as it is.
    ///
    /// An edit that fails must have changed nothing. The error is the edit's, or [`Error::WRONG_TYPE`].
    pub fn edit<T: Typed, R>(
        &mut self,
        key: &[u8],
        edit: impl FnOnce(&mut T) -> Result<Edited<R>, Error>,
    ) -> Result<R, Error> {
        self.edit_or(key, T::default, edit)
    }

    /// Changes a key's value as [`edit`](KeyspaceMut::edit) does; an absent value begins with the given one instead of
    /// the type's default.
    pub fn edit_or<T: Typed, R>(
        &mut self,
        key: &[u8],
        absent: impl FnOnce() -> T,
        edit: impl FnOnce(&mut T) -> Result<Edited<R>, Error>,
    ) -> Result<R, Error> {
        let entry = self.keys.entries.get_mut(key).filter(|entry| entry.is_alive(self.now_ms));
        let Some(entry) = entry else {
            let mut value = absent();
            return match edit(&mut value)? {
                Edited::Changed(result) => {
                    self.put_unless_empty(key, value);
                    Ok(result)
                }
                Edited::Unchanged(result) => Ok(result),
            };
        };
        let value = T::of_mut(&mut entry.value).ok_or(Error::WRONG_TYPE)?;
        let result = match edit(value)? {
            Edited::Unchanged(result) => return Ok(result),
            Edited::Changed(result) => result,
        };
        if value.is_gone() {
            self.remove(key);
        } else {
            self.keys.version += 1;
            entry.version = self.keys.version;
        }
        Ok(result)
    }

    /// Removes a key. Returns its value and its expiry, if it existed.
    pub fn remove(&mut self, key: &[u8]) -> Option<(Value, Option<u64>)> {
        let entry = self.keys.entries.remove(key)?;
        self.move_expiry(key, entry.expires_ms, None);
        if !entry.is_alive(self.now_ms) {
            self.keys.tell_of_expired(1);
            return None;
        }
        self.keys.version += 1;
        Some((entry.value, entry.expires_ms.map(NonZeroU64::get)))
    }

    /// Sets a key's expiry; `None` for never. One in the past removes the key. Returns whether the key existed.
    pub fn set_expiry(&mut self, key: &[u8], expires_ms: Option<u64>) -> bool {
        if !self.view().exists(key) {
            return false;
        }
        if expires_ms.is_some_and(|at| at <= self.now_ms) {
            self.remove(key);
            return true;
        }
        let expires_ms = expires_ms.and_then(NonZeroU64::new);
        self.keys.version += 1;
        let entry = self.keys.entries.get_mut(key).expect("it exists");
        entry.version = self.keys.version;
        let old = std::mem::replace(&mut entry.expires_ms, expires_ms);
        self.move_expiry(key, old, expires_ms);
        true
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        self.keys.version += 1;
        self.keys.entries = Rows::default();
        self.keys.expiries.clear();
    }

    /// A random number below `bound`, which must not be 0. It is the same at all replicas.
    pub fn random(&mut self, bound: usize) -> usize {
        // SplitMix64, for which every seed is good.
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * bound as u128) >> 64) as usize
    }

    /// Hands a message to this replica's subscribers. Returns their number.
    pub fn publish(&self, channel: &[u8], message: &[u8]) -> usize {
        self.keys.publisher.as_ref().map_or(0, |publisher| publisher.publish(channel, message))
    }

    fn note_birth(&mut self, key: &[u8]) {
        let class = self.keys.class(key);
        self.keys.births[class] = self.keys.version;
    }

    fn move_expiry(&mut self, key: &[u8], from: Option<NonZeroU64>, to: Option<NonZeroU64>) {
        if from == to {
            return;
        }
        let mut expiry = (0, key.into());
        if let Some(from) = from {
            expiry.0 = from.get();
            self.keys.expiries.remove(&expiry);
        }
        if let Some(to) = to {
            expiry.0 = to.get();
            self.keys.expiries.insert(expiry);
        }
    }
}

#[cfg(test)]
mod tests;
