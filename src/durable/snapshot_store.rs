//! Snapshots: a replica's state at a place of its log, in a file of the log's directory.
//!
//! The contents of a snapshot's file, with little-endian numbers, inside the frame of the log's format:
//!
//! ```text
//!  0..8    "squallIm"
//!  8..12   3, the format's version
//! 12..16   v, the length of the last view's record; 0 if there was none
//! 16..24   that view's epoch
//! 24..32   s, the length of the schema's text
//! 32..     v bytes: the record, as the log has it
//! then     s bytes: the schema, as the log's manifest has it
//! then     what the application wrote, to the end
//! ```

use std::{
    io::{self, BufReader, BufWriter, Read, Write},
    panic::{AssertUnwindSafe, catch_unwind},
};

use squall_membership::{ClusterId, Epoch, ShardId};
use squall_ordered::log::{
    self, End, Position, SchemaText, SnapshotError, SnapshotWriter, Storage, ViewRecord, remove_snapshot, snapshots,
};

use crate::{
    capture::state::LastView,
    durable::{disk::Disk, log_writer::DiskLog},
    replica::{schema, snapshot::Snapshot},
};

const MAGIC: &[u8; 8] = b"squallIm";
const VERSION: u32 = 3;
/// A bound above the length of any schema's text, in bytes.
const MAX_SCHEMA_BYTES: u32 = 1 << 10;
/// A bound above the length of any view's record, in bytes.
const MAX_VIEW_BYTES: u32 = 1 << 20;
/// The size of the buffers for writing and reading, in bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// A reason for which a snapshot can't be written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotStoreError {
    #[error(transparent)]
    File(#[from] SnapshotError),
    /// The service does not support durable groups.
    #[error(
        "the group is durable, so its state must be kept: implement `Replicated::snapshot` and `Replicated::restore`"
    )]
    Unsupported,
    #[error("the group's state could not be written: {0}")]
    Write(io::Error),
    #[error("the application panicked while it wrote its state")]
    Panicked,
    #[error("a snapshot of the group's state can't be read: {0}")]
    Read(#[from] io::Error),
    #[error("a snapshot of the group's state is not of this format: {0}")]
    Foreign(&'static str),
    #[error("a snapshot of the group's state is of the schema {written:?}, and the log of {log:?}")]
    Schema { written: String, log: String },
    #[error("a snapshot of the group's state at {at} is not of this log, which is at {log} there")]
    Other { at: End, log: End },
}

/// The directory of one shard's log and snapshots.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotStore {
    pub(crate) disk: Disk,
    pub(crate) cluster: ClusterId,
    pub(crate) shard: ShardId,
    pub(crate) schema: SchemaText,
}

/// The newest snapshot that can be used, and the errors of newer ones.
pub(crate) struct FoundSnapshot {
    pub(crate) snapshot: Option<StoredSnapshot>,
    pub(crate) refused: Vec<SnapshotStoreError>,
}

impl SnapshotStore {
    /// Returns the directory of a log.
    pub(crate) fn of(log: &DiskLog) -> SnapshotStore {
        let (disk, options) = (log.storage().clone(), log.options());
        SnapshotStore { disk, cluster: options.cluster, shard: options.shard, schema: log.schema() }
    }

    /// Writes a snapshot, durably. It may be called on any thread.
    pub(crate) fn write(
        &self,
        at: End,
        view: Option<&(Epoch, ViewRecord)>,
        state: Snapshot,
    ) -> Result<(), SnapshotStoreError> {
        let write = state.write.ok_or(SnapshotStoreError::Unsupported)?;
        let mut snapshot = self.begin(at, view)?;
        // Unwind safety: a panic leaves only the snapshot's file unfinished, which is dropped.
        let written = catch_unwind(AssertUnwindSafe(|| write(&mut snapshot)));
        written.map_err(|_| SnapshotStoreError::Panicked)?.map_err(SnapshotStoreError::Write)?;
        SnapshotContents::finish(snapshot)
    }

    /// Begins a snapshot, to which the application's part is still to be written.
    pub(crate) fn begin(
        &self,
        at: End,
        view: Option<&(Epoch, ViewRecord)>,
    ) -> Result<BufWriter<SnapshotContents>, SnapshotStoreError> {
        let writer = SnapshotWriter::new(self.disk.clone(), self.cluster, self.shard, at)?;
        let mut snapshot = BufWriter::with_capacity(CHUNK_BYTES, SnapshotContents(writer));
        let record = view.map(|(_, view)| view.encode()).unwrap_or_default();
        let mut write = || {
            snapshot.write_all(MAGIC)?;
            snapshot.write_all(&VERSION.to_le_bytes())?;
            snapshot.write_all(&(record.len() as u32).to_le_bytes())?;
            snapshot.write_all(&view.map_or(0, |(epoch, _)| epoch.0).to_le_bytes())?;
            snapshot.write_all(&(self.schema.as_str().len() as u64).to_le_bytes())?;
            snapshot.write_all(&record)?;
            snapshot.write_all(self.schema.as_str().as_bytes())
        };
        write().map_err(SnapshotStoreError::Write)?;
        Ok(snapshot)
    }

    /// Opens the snapshot of a place, once all of it was read and found good.
    pub(crate) fn open(&self, position: Position) -> Result<StoredSnapshot, SnapshotStoreError> {
        let snapshot = log::Snapshot::open(self.disk.clone(), self.cluster, self.shard, position)?;
        let at = snapshot.at();
        let mut from = BufReader::with_capacity(CHUNK_BYTES, Stored { snapshot, at: 0 });
        let mut head = [0; 32];
        from.read_exact(&mut head)?;
        let half = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if &head[..8] != MAGIC {
            return Err(SnapshotStoreError::Foreign("it begins with something else"));
        }
        if half(8) != VERSION {
            return Err(SnapshotStoreError::Foreign("another version of squall wrote it, use that one"));
        }
        if half(12) > MAX_VIEW_BYTES {
            return Err(SnapshotStoreError::Foreign("its view has more members than there can be"));
        }
        if half(24) > MAX_SCHEMA_BYTES {
            return Err(SnapshotStoreError::Foreign("its schema has a longer text than there can be"));
        }
        let (mut record, mut schema) = (vec![0; half(12) as usize], vec![0; half(24) as usize]);
        from.read_exact(&mut record)?;
        from.read_exact(&mut schema)?;
        let (written, log) = (String::from_utf8_lossy(&schema).into_owned(), self.schema.as_str());
        if !schema::is_readable(&written, log) {
            return Err(SnapshotStoreError::Schema { written, log: log.to_owned() });
        }
        let epoch = Epoch(u64::from(half(16)) | u64::from(half(20)) << 32);
        let view = (!record.is_empty()).then(|| (epoch, ViewRecord::decode(&record)));
        Ok(StoredSnapshot { at, view, from })
    }

    /// Returns the places from `begin` to `end` of which there are snapshots, good or not.
    pub(crate) fn positions(&self, begin: Position, end: Position) -> Result<Vec<Position>, SnapshotStoreError> {
        Ok(snapshots(&self.disk)?.into_iter().filter(|at| (begin..=end).contains(at)).collect())
    }

    /// Returns the newest snapshot of a place from `begin` to `end` that can be used.
    pub(crate) fn newest(&self, begin: Position, end: Position) -> Result<FoundSnapshot, SnapshotStoreError> {
        let mut refused = Vec::new();
        for position in self.positions(begin, end)?.into_iter().rev() {
            match self.open(position) {
                Ok(snapshot) => return Ok(FoundSnapshot { snapshot: Some(snapshot), refused }),
                Err(error) => refused.push(error),
            }
        }
        Ok(FoundSnapshot { snapshot: None, refused })
    }

    /// Removes the snapshots of places that the log no longer has, or never came to have.
    pub(crate) fn remove_outside(&self, begin: Position, end: Position) -> Result<(), SnapshotStoreError> {
        for position in snapshots(&self.disk)?.into_iter().filter(|at| !(begin..=end).contains(at)) {
            remove_snapshot(&self.disk, position)?;
        }
        // Without the sync, a snapshot could come back that belongs to no log any more.
        let path = self.disk.path("");
        Ok(self.disk.sync_directory().map_err(|source| SnapshotError::Io { path, source })?)
    }
}

/// A snapshot that is being written. If it is dropped before it is [finished](SnapshotContents::finish), no snapshot
/// exists.
pub(crate) struct SnapshotContents(SnapshotWriter<Disk>);

impl Write for SnapshotContents {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SnapshotContents {
    /// Makes the snapshot durable.
    pub(crate) fn finish(writer: BufWriter<SnapshotContents>) -> Result<(), SnapshotStoreError> {
        let contents = writer.into_inner().map_err(|error| SnapshotStoreError::Write(error.into_error()))?;
        Ok(contents.0.finish()?)
    }
}

/// A snapshot that was found good. Its reader yields the application's part.
pub(crate) struct StoredSnapshot {
    /// The place of the log.
    pub(crate) at: End,
    /// The last view at that place.
    pub(crate) view: LastView,
    from: BufReader<Stored>,
}

struct Stored {
    snapshot: log::Snapshot<Disk>,
    at: u64,
}

impl Read for Stored {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = into.len().min(usize::try_from(self.snapshot.len() - self.at).unwrap_or(usize::MAX));
        self.snapshot.read_at(self.at, &mut into[..len]).map_err(io::Error::other)?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Read for StoredSnapshot {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.from.read(into)
    }
}
