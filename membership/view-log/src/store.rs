//! Raft's log, vote and snapshot: in memory, and on a disk behind it if there is one.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    hash::{BuildHasher, Hasher, RandomState},
    io,
    ops::{Bound, RangeBounds},
    sync::{Arc, MutexGuard},
};

use openraft::{
    OptionalSend, RaftLogReader,
    entry::RaftEntry,
    storage::{IOFlushed, LogState, RaftLogStorage},
};
use serde::{Serialize, de::DeserializeOwned};
use squall_fabric::sync::Lock;
use squall_membership::{ClusterId, Entry, Incarnation, VoterId};

use crate::types::{LogEntry, LogId, Types, Vote};

/// The limit of the bytes of entries that are sent at once, about: more would not fit into a message.
const BATCH_BYTES: usize = 1 << 20;

/// The number of a node's lives that are remembered and were in no view, as far as it knows.
const MAX_LIVES: usize = 64;

/// Something that is kept beside the log's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Vote,
    Committed,
    /// The last entry that was purged.
    Purged,
    /// The state machine's last snapshot.
    Snapshot,
    /// The cluster's life.
    Cluster,
    /// The entry that an operator has forced that life to begin with.
    Forced,
    /// The last incarnation of the node that this is the store of.
    Incarnation,
    /// The lives that the node had with this store, since the last one that is known to have been in a view.
    Lives,
    /// The owner's notes.
    Notes,
}

impl Key {
    /// Whether it belongs to the node, whatever life of a cluster that is in.
    pub(crate) fn outlives_clear(self) -> bool {
        matches!(self, Key::Incarnation | Key::Lives | Key::Notes)
    }
}

/// One of the changes that take effect together.
#[derive(Clone, Debug)]
pub(crate) enum StoreChange {
    Set(Key, Vec<u8>),
    /// Removes all but the store's identity, and the [values that outlive](Key::outlives_clear) a life.
    Clear,
    Append(u64, Vec<u8>),
    /// Removes this entry and all that follow it.
    Truncate(u64),
    /// Removes this entry and all before it.
    Purge(u64),
}

/// All that a disk holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiskImage {
    pub(crate) values: BTreeMap<Key, Vec<u8>>,
    pub(crate) log: BTreeMap<u64, Vec<u8>>,
}

/// A place where a log outlives its process.
///
/// # To ensure correctness
///
/// When [`write`](Disk::write) returns, all of the changes are there for good, whatever fails next; if it fails, none
/// of them is.
pub(crate) trait Disk: Send + Debug {
    /// Writes changes, all or none, and waits until they are durable.
    fn write(&mut self, changes: &[StoreChange]) -> io::Result<()>;
}

/// A node's store. Clones are the same store.
#[derive(Clone, Debug)]
pub(crate) struct LogStore(Arc<Lock<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    log: BTreeMap<u64, LogEntry>,
    vote: Option<Vote>,
    committed: Option<LogId>,
    /// Whether `committed` is not on disk yet. It is written with the next changes, or when there is time: a restart
    /// may find an older one, and learns the rest from the leader.
    committed_is_unwritten: bool,
    purged: Option<LogId>,
    snapshot: Option<Vec<u8>>,
    forced: Option<Vec<u8>>,
    incarnation: Option<u64>,
    /// The lives that [`LogStore::lives`] returns.
    lives: Vec<Incarnation>,
    notes: Vec<u8>,
    disk: Option<Box<dyn Disk>>,
}

/// A store, with the number of the part in the log to which it belongs.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) voter: VoterId,
    pub(crate) store: LogStore,
    /// The life of the cluster, if it is known.
    pub(crate) cluster: Option<ClusterId>,
    /// The place where it is kept, in words, if it outlives its process.
    pub(crate) directory: Option<String>,
}

impl Opened {
    pub(crate) fn in_memory(rng: &mut fastrand::Rng) -> Opened {
        Opened { voter: VoterId(rng.u64(1..)), store: LogStore::in_memory(), cluster: None, directory: None }
    }
}

/// Numbers that no other process draws: those of parts in the log must never be the same.
pub(crate) fn random() -> fastrand::Rng {
    // The standard library's hasher is seeded by the system.
    fastrand::Rng::with_seed(RandomState::new().build_hasher().finish())
}

impl LogStore {
    /// An empty store that ends with its process.
    pub(crate) fn in_memory() -> LogStore {
        LogStore(Arc::default())
    }

    /// A store that goes on with a disk's contents.
    pub(crate) fn on_disk(image: &DiskImage, disk: Box<dyn Disk>) -> io::Result<LogStore> {
        fn value<T: DeserializeOwned>(image: &DiskImage, key: Key) -> io::Result<Option<T>> {
            image.values.get(&key).map(|bytes| decode(bytes)).transpose()
        }
        let log = image.log.iter().map(|(&index, bytes)| Ok((index, decode(bytes)?))).collect::<io::Result<_>>()?;
        let incarnation = value(image, Key::Incarnation)?;
        // A store that was written before lives were kept has had the last one at least.
        let lives = value(image, Key::Lives)?.unwrap_or_else(|| vec![Incarnation(incarnation.unwrap_or(0))]);
        let inner = Inner {
            log,
            vote: value(image, Key::Vote)?,
            committed: value::<Option<LogId>>(image, Key::Committed)?.flatten(),
            committed_is_unwritten: false,
            purged: value(image, Key::Purged)?,
            snapshot: image.values.get(&Key::Snapshot).cloned(),
            forced: image.values.get(&Key::Forced).cloned(),
            incarnation,
            lives,
            notes: image.values.get(&Key::Notes).cloned().unwrap_or_default(),
            disk: Some(disk),
        };
        Ok(LogStore(Arc::new(Lock::new(inner))))
    }

    pub(crate) fn snapshot(&self) -> Option<Vec<u8>> {
        self.lock().snapshot.clone()
    }

    pub(crate) fn set_snapshot(&self, bytes: Vec<u8>) -> io::Result<()> {
        let mut inner = self.lock();
        inner.write(vec![StoreChange::Set(Key::Snapshot, bytes.clone())])?;
        inner.snapshot = Some(bytes);
        Ok(())
    }

    pub(crate) fn set_cluster(&self, cluster: u64) -> io::Result<()> {
        self.lock().write(vec![StoreChange::Set(Key::Cluster, encode(&cluster)?)])
    }

    /// Forgets everything but the store's identity, for another life. That life's first entry, if this node is to write
    /// it, is still to come into its log. The change is atomic, so that a node that dies then finds the one life or the
    /// other.
    pub(crate) fn begin_anew(&self, cluster: ClusterId, first: Option<&Entry>) -> io::Result<()> {
        let mut inner = self.lock();
        let forced = first.map(encode).transpose()?;
        let mut changes = vec![StoreChange::Clear, StoreChange::Set(Key::Cluster, encode(&cluster.0)?)];
        changes.extend(forced.clone().map(|entry| StoreChange::Set(Key::Forced, entry)));
        inner.committed_is_unwritten = false;
        inner.write(changes)?;
        let (incarnation, notes) = (inner.incarnation, std::mem::take(&mut inner.notes));
        let lives = std::mem::take(&mut inner.lives);
        *inner = Inner { disk: inner.disk.take(), forced, incarnation, lives, notes, ..Inner::default() };
        Ok(())
    }

    /// Begins a life of the node: the one asked for, or one later than all stored ones if a clock went back.
    pub(crate) fn begin_life(&self, asked: Incarnation) -> io::Result<Incarnation> {
        let last = self.lock().incarnation.map_or(0, |last| last.saturating_add(1));
        let begins = Incarnation(asked.0.max(last));
        self.set_incarnation(begins)?;
        Ok(begins)
    }

    /// Stores that the node takes another life.
    pub(crate) fn set_incarnation(&self, incarnation: Incarnation) -> io::Result<()> {
        let mut inner = self.lock();
        if inner.incarnation != Some(incarnation.0) {
            let mut lives = inner.lives.clone();
            if inner.disk.is_some() {
                lives.push(incarnation);
                // The first one stays: it says from which life on they are known.
                if lives.len() > MAX_LIVES {
                    lives.remove(1);
                }
            }
            let changes = [(Key::Incarnation, encode(&incarnation.0)?), (Key::Lives, encode(&lives)?)];
            inner.write(changes.map(|(key, bytes)| StoreChange::Set(key, bytes)).to_vec())?;
            (inner.incarnation, inner.lives) = (Some(incarnation.0), lives);
        }
        Ok(())
    }

    /// The lives that the node has had with this store: all since the first of them, which was in a view, or had
    /// nothing. Empty if the store ends with its process. Each is here before any other node can know of it.
    pub(crate) fn lives(&self) -> Vec<Incarnation> {
        self.lock().lives.clone()
    }

    /// Notes that the node was in a view as this life: earlier ones need not be remembered. Written with the next life.
    pub(crate) fn was_in_view(&self, life: Incarnation) {
        self.lock().lives.retain(|other| *other >= life);
    }

    /// Ends this part's leadership, if it led when its process ended: it must be elected again, for another term. A
    /// node whose storage is an old copy would number its entries as it has numbered others before.
    pub(crate) fn resign(&self, VoterId(me): VoterId) {
        let mut inner = self.lock();
        if let Some(vote) = inner.vote.as_mut().filter(|vote| vote.leader_id.node_id == me) {
            // On disk the vote stays committed: no vote lies between the two.
            vote.committed = false;
        }
    }

    /// Whether this log, which has applied entries up to one, can be the beginning of a leader's log that has these.
    /// An entry that was applied was decided, and stays.
    pub(crate) fn agrees_with(&self, applied: Option<LogId>, mut entries: impl Iterator<Item = LogId>) -> bool {
        let inner = self.lock();
        let differs = |other: LogId| {
            let is_applied = applied.is_some_and(|applied| other.index <= applied.index);
            is_applied && inner.log.get(&other.index).is_some_and(|own| own.log_id() != other)
        };
        !entries.any(differs)
    }

    /// The owner's notes.
    pub(crate) fn notes(&self) -> Vec<u8> {
        self.lock().notes.clone()
    }

    pub(crate) fn set_notes(&self, notes: Vec<u8>) -> io::Result<()> {
        let mut inner = self.lock();
        inner.write(vec![StoreChange::Set(Key::Notes, notes.clone())])?;
        inner.notes = notes;
        Ok(())
    }

    /// The entry that this life was forced to begin with.
    pub(crate) fn forced(&self) -> io::Result<Option<Entry>> {
        self.lock().forced.as_deref().map(decode).transpose()
    }

    /// Writes changes that could wait: a node that comes back alone should know the last view.
    pub(crate) fn settle(&self) -> io::Result<()> {
        let mut inner = self.lock();
        if inner.committed_is_unwritten { inner.write(Vec::new()) } else { Ok(()) }
    }

    /// Whether the store outlives its process.
    pub(crate) fn is_durable(&self) -> bool {
        self.lock().disk.is_some()
    }

    /// Whether nothing was ever stored.
    pub(crate) fn is_empty(&self) -> bool {
        let has_vote = self.lock().vote.is_some();
        !has_vote && self.has_no_log()
    }

    /// Whether no log was begun.
    pub(crate) fn has_no_log(&self) -> bool {
        let inner = self.lock();
        inner.log.is_empty() && inner.purged.is_none() && inner.snapshot.is_none()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }
}

impl Inner {
    fn last(&self) -> Option<LogId> {
        self.log.last_key_value().map(|(_, entry)| entry.log_id()).or(self.purged)
    }

    fn write(&mut self, mut changes: Vec<StoreChange>) -> io::Result<()> {
        let Some(disk) = &mut self.disk else { return Ok(()) };
        if self.committed_is_unwritten {
            changes.push(StoreChange::Set(Key::Committed, encode(&self.committed)?));
        }
        disk.write(&changes)?;
        self.committed_is_unwritten = false;
        Ok(())
    }
}

pub(crate) fn encode<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(io::Error::other)
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    postcard::from_bytes(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

impl<C: Types> RaftLogReader<C> for LogStore {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<LogEntry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let is_empty = match (range.start_bound(), range.end_bound()) {
            (Bound::Included(start), Bound::Excluded(end)) => start >= end,
            _ => false,
        };
        if is_empty {
            return Ok(Vec::new());
        }
        Ok(self.lock().log.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<LogEntry>> {
        let inner = self.lock();
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for (_, entry) in inner.log.range(start..end) {
            bytes += encode(entry)?.len();
            if bytes > BATCH_BYTES && !entries.is_empty() {
                break;
            }
            entries.push(entry.clone());
        }
        Ok(entries)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.lock().vote)
    }
}

impl<C: Types> RaftLogStorage<C> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> io::Result<LogState<C>> {
        let inner = self.lock();
        Ok(LogState { last_purged_log_id: inner.purged, last_log_id: inner.last() })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let mut inner = self.lock();
        inner.write(vec![StoreChange::Set(Key::Vote, encode(vote)?)])?;
        inner.vote = Some(*vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let mut inner = self.lock();
        (inner.committed, inner.committed_is_unwritten) = (committed, true);
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<C>) -> io::Result<()>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<LogEntry> = entries.into_iter().collect();
        let written = {
            let mut inner = self.lock();
            let append = |entry: &LogEntry| Ok(StoreChange::Append(entry.log_id().index, encode(entry)?));
            let changes = match inner.disk {
                Some(_) => entries.iter().map(append).collect::<io::Result<Vec<_>>>(),
                None => Ok(Vec::new()),
            };
            let written = changes.and_then(|changes| inner.write(changes));
            if written.is_ok() {
                inner.log.extend(entries.into_iter().map(|entry| (entry.log_id().index, entry)));
            }
            written
        };
        match written {
            Ok(()) => callback.io_completed(Ok(())),
            Err(e) => {
                callback.io_completed(Err(io::Error::new(e.kind(), e.to_string())));
                return Err(e);
            }
        }
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let mut inner = self.lock();
        let first = last.map_or(0, |last| last.index + 1);
        inner.write(vec![StoreChange::Truncate(first)])?;
        inner.log.split_off(&first);
        Ok(())
    }

    async fn purge(&mut self, last: LogId) -> io::Result<()> {
        let mut inner = self.lock();
        inner.write(vec![StoreChange::Set(Key::Purged, encode(&last)?), StoreChange::Purge(last.index)])?;
        inner.log = inner.log.split_off(&(last.index + 1));
        inner.purged = inner.purged.max(Some(last));
        Ok(())
    }
}

impl LogStore {
    /// The last entry of the log.
    pub(crate) fn last(&self) -> Option<LogId> {
        self.lock().last()
    }

    /// The last entry of the log, and the last change of voters in it.
    #[cfg(feature = "sim")]
    pub(crate) fn tail(&self) -> (Option<LogId>, Option<crate::types::Membership>) {
        let inner = self.lock();
        let membership = inner.log.values().rev().find_map(|entry| match &entry.payload {
            openraft::EntryPayload::Membership(membership) => Some(membership.clone()),
            _ => None,
        });
        (inner.last(), membership)
    }
}
