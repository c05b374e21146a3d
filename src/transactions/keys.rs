//! The keys of commands and queries, and the locks on them.

use std::collections::{BTreeMap, BTreeSet};

use super::message::TransactionId;

/// The keys that a command or a query reads and writes, as bytes of the service's choice.
///
/// Two commands that use no key in common can be carried out in either order, with the same replies and the same state.
/// A key that is written counts as read as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    reads: BTreeSet<Box<[u8]>>,
    writes: BTreeSet<Box<[u8]>>,
    reads_all: bool,
    writes_all: bool,
}

impl Keys {
    /// Adds a key that is read.
    pub fn read(&mut self, key: impl AsRef<[u8]>) {
        self.reads.insert(key.as_ref().into());
    }

    /// Adds a key that is written.
    pub fn write(&mut self, key: impl AsRef<[u8]>) {
        self.writes.insert(key.as_ref().into());
    }

    /// Adds all keys of the shard, which are read.
    pub fn read_all(&mut self) {
        self.reads_all = true;
    }

    /// Adds all keys of the shard, which are written.
    pub fn write_all(&mut self) {
        self.writes_all = true;
    }

    fn is_writing(&self) -> bool {
        self.writes_all || !self.writes.is_empty()
    }

    fn is_empty(&self) -> bool {
        !self.is_writing() && !self.reads_all && self.reads.is_empty()
    }

    /// Whether one of these keys is one that `earlier` writes.
    pub(crate) fn has_written_by(&self, earlier: &Keys) -> bool {
        if earlier.writes_all {
            return !self.is_empty();
        }
        let mut keys = self.reads.iter().chain(&self.writes);
        (self.reads_all || self.writes_all) && earlier.is_writing() || keys.any(|key| earlier.writes.contains(key))
    }

    /// Adds the keys of another command.
    pub(crate) fn join(&mut self, other: Keys) {
        self.reads.extend(other.reads);
        self.writes.extend(other.writes);
        self.reads_all |= other.reads_all;
        self.writes_all |= other.writes_all;
    }
}

/// The locks of the transactions that one shard has prepared: shared ones for keys that they read, and exclusive ones
/// for keys that they write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Locks {
    writers: BTreeMap<Box<[u8]>, TransactionId>,
    readers: BTreeMap<Box<[u8]>, BTreeSet<TransactionId>>,
    /// The transactions that read all keys, that write all, and that write any.
    readers_of_all: BTreeSet<TransactionId>,
    writer_of_all: Option<TransactionId>,
    writing: BTreeSet<TransactionId>,
    holders: BTreeSet<TransactionId>,
}

impl Locks {
    /// Whether nothing is locked.
    pub(crate) fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// Returns a transaction that forbids the use of these keys, if there is one.
    pub(crate) fn conflict(&self, keys: &Keys) -> Option<TransactionId> {
        if self.holders.is_empty() || keys.is_empty() {
            return None;
        }
        let writer = |key| self.writers.get(key).copied();
        let user = |key| writer(key).or_else(|| first(self.readers.get(key)?));
        let all = || match (keys.writes_all, keys.reads_all) {
            (true, _) => first(&self.holders),
            (false, true) => first(&self.writing),
            (false, false) => None,
        };
        let reader_of_all = || first(&self.readers_of_all).filter(|_| keys.is_writing());
        self.writer_of_all
            .or_else(all)
            .or_else(reader_of_all)
            .or_else(|| keys.reads.iter().find_map(writer))
            .or_else(|| keys.writes.iter().find_map(user))
    }

    /// Locks keys, which must not be in conflict.
    pub(crate) fn lock(&mut self, id: TransactionId, keys: &Keys) {
        debug_assert!(self.conflict(keys).is_none(), "{id:?} locks what another has locked");
        if keys.is_empty() {
            return;
        }
        self.holders.insert(id);
        if keys.is_writing() {
            self.writing.insert(id);
        }
        if keys.reads_all {
            self.readers_of_all.insert(id);
        }
        if keys.writes_all {
            self.writer_of_all = Some(id);
        }
        self.writers.extend(keys.writes.iter().map(|key| (key.clone(), id)));
        for key in &keys.reads {
            self.readers.entry(key.clone()).or_default().insert(id);
        }
    }

    /// Takes back the locks of a transaction on these keys.
    pub(crate) fn unlock(&mut self, id: TransactionId, keys: &Keys) {
        self.holders.remove(&id);
        self.writing.remove(&id);
        self.readers_of_all.remove(&id);
        if keys.writes_all {
            self.writer_of_all = None;
        }
        for key in &keys.writes {
            self.writers.remove(key);
        }
        for key in &keys.reads {
            if let Some(readers) = self.readers.get_mut(key) {
                readers.remove(&id);
                if readers.is_empty() {
                    self.readers.remove(key);
                }
            }
        }
    }
}

fn first(ids: &BTreeSet<TransactionId>) -> Option<TransactionId> {
    ids.first().copied()
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    fn id(number: u64) -> TransactionId {
        TransactionId { coordinator: 1, number }
    }

    fn keys(add: impl FnOnce(&mut Keys)) -> Keys {
        let mut keys = Keys::default();
        add(&mut keys);
        keys
    }

    /// All kinds of use of two keys, and of all keys.
    fn kinds() -> Vec<Keys> {
        (0..64u32)
            .map(|bits| {
                keys(|keys| {
                    let uses: [fn(&mut Keys); 6] = [
                        |keys| keys.read("a"),
                        |keys| keys.write("a"),
                        |keys| keys.read("b"),
                        |keys| keys.write("b"),
                        Keys::read_all,
                        Keys::write_all,
                    ];
                    uses.iter().enumerate().filter(|(bit, _)| bits & (1 << bit) != 0).for_each(|(_, add)| add(keys));
                })
            })
            .collect()
    }

    /// Whether one of the two writes a key that the other uses: of the keys `a`, `b`, and any other.
    fn is_conflict(one: &Keys, other: &Keys) -> bool {
        let reads = |keys: &Keys, key: &str| keys.reads_all || keys.reads.contains(key.as_bytes());
        let writes = |keys: &Keys, key: &str| keys.writes_all || keys.writes.contains(key.as_bytes());
        ["a", "b", "c"].iter().any(|key| {
            let uses = |keys| reads(keys, key) || writes(keys, key);
            writes(one, key) && uses(other) || writes(other, key) && uses(one)
        })
    }

    #[test]
    fn a_lock_forbids_what_conflicts_and_nothing_else() {
        for held in kinds() {
            for asked in kinds() {
                let mut locks = Locks::default();
                locks.lock(id(1), &held);
                let found = locks.conflict(&asked);
                assert_eq!(found.is_some(), is_conflict(&held, &asked), "{held:?}, {asked:?}");
                if found.is_none() {
                    locks.lock(id(2), &asked);
                    locks.unlock(id(1), &held);
                    let mut other = Locks::default();
                    other.lock(id(2), &asked);
                    assert_eq!(locks, other, "{held:?}, {asked:?}");
                    locks.unlock(id(2), &asked);
                    assert_eq!(locks, Locks::default(), "{held:?}, {asked:?}");
                }
            }
        }
    }

    #[test]
    fn a_later_command_may_not_use_what_an_earlier_one_writes() {
        for earlier in kinds() {
            for later in kinds() {
                let writes = |key: &str| earlier.writes_all || earlier.writes.contains(key.as_bytes());
                let uses = |key: &str| {
                    let keys = later.reads.iter().chain(&later.writes);
                    later.reads_all || later.writes_all || keys.into_iter().any(|used| **used == *key.as_bytes())
                };
                let expected = ["a", "b", "c"].iter().any(|key| writes(key) && uses(key));
                assert_eq!(later.has_written_by(&earlier), expected, "{earlier:?}, {later:?}");
            }
        }
    }
}
