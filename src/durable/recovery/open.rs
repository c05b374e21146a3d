//! The opening of a node's logs: it checks that they are its own, and the newest that it ever had.
//!
//! Each log has a *generation*, which grows with each start of the node. Its upper half is a number of the view log's
//! store beside it, and that store remembers the whole generation. So neither an old copy of a log, nor one from
//! another node, is taken for the node's own.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, Hasher, RandomState},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use squall_fabric::NodeId;
use squall_membership::{ShardId, VoterId};
use squall_ordered::log::{
    DirectoryError, Files, Log, OpenError, Opened, Options, ReadError, SchemaText, SigningKey, Storage, WriteError,
};
use squall_view_log::{Directory, StorageError};

use super::{cluster_id, directory};
use crate::{
    config::Config,
    durable::{
        anew,
        disk::Disk,
        log_keys::{self, LogKeysError},
        log_writer::DiskLog,
    },
    replica::schema::{self, Schema},
};

/// A reason for which a node's durable groups can't continue from the disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// A log's directory can't be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A log can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A log can't be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A log exists without the view log that it belongs to.
    #[error(
        "the log in {} belongs to another node's directory, or to one that is gone: put back the view log that lay beside it, or \
         remove the log, and the node gets it from another member", path.display()
    )]
    Stray {
        /// The log's directory.
        path: PathBuf,
    },
    /// A log was written by a program whose commands or snapshots differ.
    #[error(
        "the log in {} is of the schema \"{written}\", and this program's is \"{now}\": start the program that wrote it, or begin \
         with an empty directory", path.display()
    )]
    Schema {
        /// The log's directory.
        path: PathBuf,
        /// The log's schema.
        written: String,
        /// This program's schema.
        now: String,
    },
    /// The key that a log is signed with can't be used.
    #[error(transparent)]
    Key(#[from] LogKeysError),
    /// The view log's store can't be used.
    #[error(transparent)]
    Store(#[from] StorageError),
    /// A group's state can't be rebuilt.
    #[error("the state of group {group:?} can't be rebuilt from the disk: {why}")]
    State {
        /// The group.
        group: String,
        /// The cause.
        why: String,
    },
}

/// The store's knowledge of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Remembered {
    /// The least generation that the log has.
    generation: u64,
}

/// A log of this node.
pub(crate) struct OpenedLog {
    pub(crate) log: DiskLog,
    /// Whether it is the log that this node always had, or has been complete since it was [begun anew](anew).
    pub(crate) is_kept: bool,
    /// The knowledge to keep in the store.
    pub(crate) remembered: Remembered,
}

/// Opens a log, or begins one, of the node whose store has this number and knows this of the log.
pub(crate) fn open(
    disk: Disk,
    options: Options,
    voter: VoterId,
    remembered: Option<Remembered>,
    rng: &mut fastrand::Rng,
) -> Result<OpenedLog, RecoverError> {
    let Remembered { generation } = remembered.unwrap_or_default();
    let failed = |source| OpenError::Io { path: disk.path(anew::NAME), source };
    let options = Options { generation, ..options };
    let opened = match Log::open(disk.clone(), options, rng) {
        Err(OpenError::Lost(path)) => {
            let path = path.display();
            tracing::warn!(%path, "this node's log is lost: it begins an empty one, to be filled by another member");
            anew::mark(&disk).map_err(failed)?;
            Log::open(disk.clone(), Options { generation: 0, ..options }, rng)
        }
        opened => opened,
    };
    let Opened { mut log, torn, damage, missing, healed } = opened?;
    let tag = tag(voter);
    let found = log.generation();
    if found != 0 && found >> 32 != tag {
        return Err(RecoverError::Stray { path: log.storage().path("") });
    }
    if let Some(torn) = torn {
        let (path, record) = (torn.path.display(), torn.record);
        tracing::info!(%path, record, "a batch that was being written was cut off; it was not acknowledged");
    }
    // Another member's log has the missing records; or an operator must say how to go on, while the node does not run.
    const HELP: &str = "the log is damaged: the node gets the records from another member; if none has them, see \
                        `squall log repair --help` and `squall log cut --help`";
    damage.iter().for_each(|damage| tracing::error!(%damage, "{HELP}"));
    if let Some(missing) = missing {
        tracing::error!(%missing, "{HELP}");
    }
    healed
        .iter()
        .for_each(|path| tracing::warn!(path = %path.display(), "the first block was damaged, and was made good"));
    for skip in log.skips().iter() {
        let (path, version, reason) = (log.storage().path(""), skip.version, &skip.reason);
        tracing::warn!(path = %path.display(), version, reason, "a command of this log is not applied, as an operator said");
    }
    let generation = tag << 32 | (found & u64::from(u32::MAX)).saturating_add(1);
    log.raise_generation(generation)?;
    let is_kept = !anew::is_marked(&disk).map_err(failed)?;
    Ok(OpenedLog { log, is_kept, remembered: Remembered { generation } })
}

/// Makes sure that a log is of a schema. A log that is new, or has no declared schema so far, gets this one.
pub(crate) fn claim(log: &mut DiskLog, schema: Schema) -> Result<(), RecoverError> {
    let (written, now) = (log.schema(), schema.to_string());
    if !schema::is_readable(written.as_str(), &now) {
        let (path, written) = (log.storage().path(""), written.as_str().to_owned());
        return Err(RecoverError::Schema { path, written, now });
    }
    Ok(log.set_schema(SchemaText::new(&now))?)
}

/// Returns a 32-bit number of a store, which is never 0.
fn tag(VoterId(voter): VoterId) -> u64 {
    (voter ^ voter >> 32) & u64::from(u32::MAX) | 1
}

/// Makes a log signed from here on, if that is possible.
fn sign(log: &mut DiskLog, me: NodeId, key: SigningKey) -> Result<(), WriteError> {
    match log.sign_with(me, key) {
        // The log is signed once the damage is repaired.
        Ok(_) | Err(WriteError::Read(ReadError::Damaged(_))) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Opens a node's logs in its directory. Each shard is given by its group's name, its number among the group's shards,
/// and their count.
pub(crate) fn open_all(
    config: &Config,
    store: &mut Directory,
    storage: &Path,
    shards: &BTreeMap<ShardId, (String, u32, u32)>,
) -> Result<BTreeMap<ShardId, OpenedLog>, RecoverError> {
    // Notes that this version did not write may decode to anything or fail: then nothing is remembered.
    let mut notes: BTreeMap<ShardId, Remembered> = postcard::from_bytes(&store.notes()).unwrap_or_default();
    let mut logs = BTreeMap::new();
    let key = config.sign_log().map(log_keys::signing_key).transpose()?;
    let mut rng = fastrand::Rng::with_seed(RandomState::new().build_hasher().finish());
    for (&shard, (group, number, count)) in shards {
        let disk = Disk::Real(Files::open(directory(storage, group, *number, *count))?);
        let options = Options::new(cluster_id(config.cluster()), shard);
        let mut log = open(disk, options, store.voter(), notes.get(&shard).copied(), &mut rng)?;
        if let Some(key) = &key {
            sign(&mut log.log, config.id(), key.clone())?;
        }
        notes.insert(shard, log.remembered);
        logs.insert(shard, log);
    }
    let notes = postcard::to_allocvec(&notes)
        .map_err(|error| RecoverError::State { group: String::new(), why: error.to_string() })?;
    store.set_notes(notes)?;
    Ok(logs)
}
