//! Snapshot files: a state as of a position, written whole or not at all.

use std::{io, path::PathBuf};

use squall_membership::{ClusterId, Epoch, Seq, ShardId};

use super::{
    End, Position, Storage,
    block::{self, BLOCK_BYTES, Block, Fields},
};

const MAGIC: [u8; 8] = *b"squallSN";

/// The number of bytes that are read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// The number of bytes that are written before a sync: the log's own syncs may have to wait for it.
const SYNC_EVERY: u64 = 16 << 20;

/// The reasons for which a snapshot can't be written or read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The contents are not those that were written.
    #[error("{} is damaged: remove it; an older snapshot, or another member's, will do", .0.display())]
    Damaged(PathBuf),
    /// The snapshot was written by another version.
    #[error("{} is of format {found}, and this version of squall is for format {version}: use the one that wrote it",
            path.display(), version = block::VERSION)]
    Version {
        /// The file.
        path: PathBuf,
        /// The format that it names.
        found: u32,
    },
    /// The snapshot belongs to another cluster, or to another shard.
    #[error("{} is of cluster {:016x}, {shard}: put it back where it belongs", path.display(), cluster.0)]
    Other {
        /// The file.
        path: PathBuf,
        /// The cluster that it names.
        cluster: ClusterId,
        /// The shard that it names.
        shard: ShardId,
    },
    /// The file system failed.
    #[error("{} can't be used: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Returns the name of the snapshot's file for a position.
fn name(position: Position) -> String {
    format!("snapshot-{}-{}", position.epoch.0, position.seq.0)
}

fn position_of(file: &str) -> Option<Position> {
    let (epoch, seq) = file.strip_prefix("snapshot-")?.split_once('-')?;
    let position = Position { epoch: Epoch(epoch.parse().ok()?), seq: Seq(seq.parse().ok()?) };
    (name(position) == file).then_some(position)
}

/// A snapshot that is being written. If it is dropped before it is [finished](SnapshotWriter::finish), no snapshot
/// remains.
#[derive(Debug)]
pub struct SnapshotWriter<S: Storage> {
    storage: S,
    file: S::File,
    cluster: ClusterId,
    shard: ShardId,
    at: End,
    bytes: u64,
    synced: u64,
    checksum: u32,
    finished: bool,
}

impl<S: Storage> SnapshotWriter<S> {
    /// Begins to write the state at a log's end.
    pub fn new(storage: S, cluster: ClusterId, shard: ShardId, at: End) -> Result<SnapshotWriter<S>, SnapshotError> {
        let new = name(at.position) + ".new";
        let file = storage
            .create(&new, BLOCK_BYTES)
            .map_err(|source| SnapshotError::Io { path: storage.path(&new), source })?;
        Ok(SnapshotWriter { storage, file, cluster, shard, at, bytes: 0, synced: 0, checksum: 0, finished: false })
    }

    /// Writes the next part of the contents.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        let written = self.storage.write_at(&self.file, BLOCK_BYTES + self.bytes, bytes);
        written.map_err(|source| self.failed(source))?;
        self.bytes += bytes.len() as u64;
        self.checksum = crc32c::crc32c_append(self.checksum, bytes);
        if self.bytes - self.synced >= SYNC_EVERY {
            self.storage.sync(&self.file).map_err(|source| self.failed(source))?;
            self.synced = self.bytes;
        }
        Ok(())
    }

    /// Makes the snapshot durable, under its name.
    pub fn finish(mut self) -> Result<(), SnapshotError> {
        let block = Fields::new(MAGIC)
            .word(self.cluster.0)
            .word(u64::from(self.shard.0))
            .end(self.at)
            .word(self.bytes)
            .word(u64::from(self.checksum))
            .finish();
        let (storage, name) = (&self.storage, name(self.at.position));
        let result = storage
            .write_at(&self.file, 0, &block)
            .and_then(|()| storage.sync(&self.file))
            .and_then(|()| storage.rename(&(name.clone() + ".new"), &name))
            .and_then(|()| storage.sync_directory());
        result.map_err(|source| self.failed(source))?;
        self.finished = true;
        Ok(())
    }

    fn failed(&self, source: io::Error) -> SnapshotError {
        SnapshotError::Io { path: self.storage.path(&(name(self.at.position) + ".new")), source }
    }
}

impl<S: Storage> Drop for SnapshotWriter<S> {
    fn drop(&mut self) {
        if !self.finished {
            // If the removal fails, or a crash undoes it, opening the log removes the file.
            let _ = self.storage.remove(&(name(self.at.position) + ".new"));
        }
    }
}

/// A snapshot that was checked.
#[derive(Debug)]
pub struct Snapshot<S: Storage> {
    storage: S,
    file: S::File,
    at: End,
    bytes: u64,
}

impl<S: Storage> Snapshot<S> {
    /// Opens the snapshot of a position, and reads all of it once to check it.
    pub fn open(storage: S, cluster: ClusterId, shard: ShardId, position: Position) -> Result<Self, SnapshotError> {
        let (snapshot, checksum) = Snapshot::begin(storage, cluster, shard, position)?;
        let (mut found, mut read, mut chunk) = (0, 0, vec![0; CHUNK_BYTES]);
        while read < snapshot.bytes {
            let len = CHUNK_BYTES.min((snapshot.bytes - read) as usize);
            snapshot.read_at(read, &mut chunk[..len])?;
            found = crc32c::crc32c_append(found, &chunk[..len]);
            read += len as u64;
        }
        if u64::from(found) != checksum {
            return Err(SnapshotError::Damaged(snapshot.storage.path(&name(position))));
        }
        Ok(snapshot)
    }

    /// Returns the log's end for the snapshot of a position, and the length of its contents in bytes. The contents are
    /// not read.
    pub fn glance(
        storage: S,
        cluster: ClusterId,
        shard: ShardId,
        position: Position,
    ) -> Result<(End, u64), SnapshotError> {
        Snapshot::begin(storage, cluster, shard, position).map(|(snapshot, _)| (snapshot.at, snapshot.bytes))
    }

    /// Reads the first block. Returns the snapshot, and the checksum that its contents must have.
    fn begin(storage: S, cluster: ClusterId, shard: ShardId, position: Position) -> Result<(Self, u64), SnapshotError> {
        let name = name(position);
        let path = storage.path(&name);
        let failed = |source| SnapshotError::Io { path: path.clone(), source };
        let file = storage.open(&name).map_err(failed)?;
        let mut words = match block::read(&storage, &file, MAGIC).map_err(failed)? {
            Block::Good { words, .. } => words,
            Block::Version(found) => return Err(SnapshotError::Version { path, found }),
            Block::Blank | Block::Damaged => return Err(SnapshotError::Damaged(path)),
        };
        let (found_cluster, found_shard) = (ClusterId(words.word()), ShardId(words.word() as u32));
        if (found_cluster, found_shard) != (cluster, shard) {
            return Err(SnapshotError::Other { path, cluster: found_cluster, shard: found_shard });
        }
        let (at, bytes, checksum) = (words.end(), words.word(), words.word());
        let size = storage.size(&file).map_err(failed)?;
        if at.position != position || size.checked_sub(BLOCK_BYTES) != Some(bytes) {
            return Err(SnapshotError::Damaged(path));
        }
        Ok((Snapshot { storage, file, at, bytes }, checksum))
    }

    /// Returns the newest snapshot that is good, if there is one, and the errors of those that are newer.
    pub fn newest(
        storage: &S,
        cluster: ClusterId,
        shard: ShardId,
    ) -> Result<(Option<Snapshot<S>>, Vec<SnapshotError>), SnapshotError>
    where
        S: Clone,
    {
        let mut refused = Vec::new();
        for position in snapshots(storage)?.into_iter().rev() {
            match Snapshot::open(storage.clone(), cluster, shard, position) {
                Ok(snapshot) => return Ok((Some(snapshot), refused)),
                Err(error) => refused.push(error),
            }
        }
        Ok((None, refused))
    }

    /// Returns the log's end at which it is the state.
    pub fn at(&self) -> End {
        self.at
    }

    /// Returns the length of its contents, in bytes.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Returns whether it has no contents.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Reads contents, from `offset` on.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), SnapshotError> {
        let path = || self.storage.path(&name(self.at.position));
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > self.bytes) {
            return Err(SnapshotError::Io { path: path(), source: io::ErrorKind::UnexpectedEof.into() });
        }
        let read = self.storage.read_at(&self.file, BLOCK_BYTES + offset, into);
        read.map_err(|source| SnapshotError::Io { path: path(), source })
    }
}

/// Returns the positions of all snapshots, in order, whether they are good or not.
pub fn snapshots<S: Storage>(storage: &S) -> Result<Vec<Position>, SnapshotError> {
    let names = storage.list().map_err(|source| SnapshotError::Io { path: storage.path(""), source })?;
    let mut positions: Vec<Position> = names.iter().filter_map(|name| position_of(name)).collect();
    positions.sort_unstable();
    Ok(positions)
}

/// Removes the snapshots before a position.
pub fn remove_snapshots<S: Storage>(storage: &S, before: Position) -> Result<(), SnapshotError> {
    snapshots(storage)?
        .into_iter()
        .filter(|&position| position < before)
        .try_for_each(|position| remove_snapshot(storage, position))
}

/// Removes the snapshot of a position.
pub fn remove_snapshot<S: Storage>(storage: &S, position: Position) -> Result<(), SnapshotError> {
    let name = name(position);
    storage.remove(&name).map_err(|source| SnapshotError::Io { path: storage.path(&name), source })
}
