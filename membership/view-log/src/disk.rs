//! The store on a disk: one file (redb), in a directory of the node's own.
//!
//! It has two tables: `log` has the entries by index, `values` the other stored values by name. Values are in
//! postcard's format.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};
use squall_fabric::NodeId;
use squall_membership::{ClusterId, VoterId};

use crate::store::{Disk, DiskImage, Key, LogStore, Opened, StoreChange, decode, encode, random};

/// The file's name, in the node's directory.
pub(crate) const FILE: &str = "view-log.redb";
/// The version of the tables' contents.
pub(crate) const VERSION: u64 = 11;

const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
const VALUES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("values");

/// The reason for which a store can't be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// A store that another process has.
    #[error("{} is in use by another process: stop that one, or give this node a directory of its own", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// A store that belongs to something else.
    #[error("{} is of cluster {found:?}, not of {expected:?}: give each cluster a directory of its own", path.display())]
    OtherCluster {
        /// The file.
        path: PathBuf,
        /// The cluster that it names.
        found: String,
        /// The cluster that this node was configured with.
        expected: String,
    },
    /// A store that belongs to another node.
    #[error(
        "{} is the directory of {found}, and this is {expected}: start {found} with it, and give {expected} its own (were two \
         exchanged?), or an empty one",
        parent(path)
    )]
    OtherNode {
        /// The file.
        path: PathBuf,
        /// The node that it names.
        found: NodeId,
        /// The node that this is.
        expected: NodeId,
    },
    /// A store that was written by another version.
    #[error("{} is of format {found}, and this is squall for format {VERSION}: use the version that wrote it", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The format that it names.
        found: u64,
    },
    /// A store whose contents make no sense.
    #[error("{} is damaged ({what}): move it away, and the node joins as a new one", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        what: String,
    },
    /// Reading or writing failed.
    #[error("{} can't be used: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

fn parent(path: &Path) -> String {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(path).display().to_string()
}

/// A node's directory, in use by this process: the store of its part in the view log, and its owner's notes beside it.
#[derive(Debug)]
pub struct Directory {
    pub(crate) opened: Opened,
    path: PathBuf,
}

impl Directory {
    /// Opens the store in a directory, or begins one, for a node of a cluster of this name.
    pub fn open(directory: &Path, cluster: &str, node: NodeId) -> Result<Directory, StorageError> {
        let path = directory.join(FILE);
        std::fs::create_dir_all(directory).map_err(|source| StorageError::Io { path: path.clone(), source })?;
        let database = Database::create(&path).map_err(|e| opening(&path, e))?;
        Ok(Directory { opened: with_database(database, &path, (cluster, node), &mut random())?, path })
    }

    /// The number of this part in the log, which no other store has.
    pub fn voter(&self) -> VoterId {
        self.opened.voter
    }

    /// Whether the node has had a part in a group.
    pub fn has_log(&self) -> bool {
        !self.opened.store.has_no_log()
    }

    /// The bytes that [`set_notes`](Directory::set_notes) kept last; none at first.
    pub fn notes(&self) -> Vec<u8> {
        self.opened.store.notes()
    }

    /// Replaces the notes, for good once this returns.
    pub fn set_notes(&mut self, notes: Vec<u8>) -> Result<(), StorageError> {
        let written = self.opened.store.set_notes(notes);
        written.map_err(|source| StorageError::Io { path: self.path.clone(), source })
    }
}

/// Opens a store on a disk of another kind.
#[cfg(feature = "sim")]
pub(crate) fn open_with(
    backend: impl redb::StorageBackend,
    owner: (&str, NodeId),
    rng: &mut fastrand::Rng,
) -> Result<Opened, StorageError> {
    let path = Path::new("a simulated disk");
    let database =
        Database::builder().set_cache_size(1 << 20).create_with_backend(backend).map_err(|e| opening(path, e))?;
    with_database(database, path, owner, rng)
}

pub(crate) fn opening(path: &Path, error: DatabaseError) -> StorageError {
    let path = path.to_path_buf();
    match error {
        DatabaseError::DatabaseAlreadyOpen => StorageError::InUse { path },
        DatabaseError::Storage(redb::StorageError::Io(source)) if source.kind() != io::ErrorKind::InvalidData => {
            StorageError::Io { path, source }
        }
        other => StorageError::Damaged { path, what: other.to_string() },
    }
}

fn with_database(
    database: Database,
    path: &Path,
    (cluster, node): (&str, NodeId),
    rng: &mut fastrand::Rng,
) -> Result<Opened, StorageError> {
    let damaged = |what: String| StorageError::Damaged { path: path.to_path_buf(), what };
    let (image, identity) = read(&database).map_err(|e| damaged(e.to_string()))?;
    let mut disk = Redb(Arc::new(database));
    let voter = match identity {
        Some(identity) if identity.version != VERSION => {
            return Err(StorageError::Version { path: path.to_path_buf(), found: identity.version });
        }
        Some(identity) if identity.cluster != cluster => {
            let (found, expected) = (identity.cluster, cluster.to_string());
            return Err(StorageError::OtherCluster { path: path.to_path_buf(), found, expected });
        }
        Some(Identity { node: Some(found), .. }) if found != node => {
            return Err(StorageError::OtherNode { path: path.to_path_buf(), found, expected: node });
        }
        Some(identity @ Identity { node: Some(_), .. }) => VoterId(identity.voter),
        // A store that was written before nodes were stored becomes that of the node that opens it.
        found => {
            let voter = found.map_or_else(|| rng.u64(1..), |identity| identity.voter);
            let identity = Identity { version: VERSION, voter, cluster: cluster.to_string(), node: Some(node) };
            disk.identify(&identity).map_err(|source| StorageError::Io { path: path.to_path_buf(), source })?;
            VoterId(voter)
        }
    };
    let life = image.values.get(&Key::Cluster).map(|bytes| decode::<u64>(bytes)).transpose();
    let life = life.map_err(|e| damaged(e.to_string()))?.map(ClusterId);
    let store = LogStore::on_disk(&image, Box::new(disk)).map_err(|e| damaged(e.to_string()))?;
    Ok(Opened { voter, store, cluster: life, directory: Some(parent(path)) })
}

/// The node and cluster to which a file belongs.
pub(crate) struct Identity {
    pub(crate) version: u64,
    voter: u64,
    pub(crate) cluster: String,
    pub(crate) node: Option<NodeId>,
}

const VERSION_NAME: &str = "version";
const VOTER_NAME: &str = "voter";
const CLUSTER_NAME: &str = "cluster name";
const NODE_NAME: &str = "node";
const KEYS: [Key; 9] = [
    Key::Vote,
    Key::Committed,
    Key::Purged,
    Key::Snapshot,
    Key::Cluster,
    Key::Forced,
    Key::Incarnation,
    Key::Lives,
    Key::Notes,
];

fn name(key: Key) -> &'static str {
    match key {
        Key::Vote => "vote",
        Key::Committed => "committed",
        Key::Purged => "purged",
        Key::Snapshot => "snapshot",
        Key::Cluster => "cluster",
        Key::Forced => "forced",
        Key::Incarnation => "incarnation",
        Key::Lives => "lives",
        Key::Notes => "notes",
    }
}

pub(crate) fn read(
    database: &Database,
) -> Result<(DiskImage, Option<Identity>), Box<dyn std::error::Error + Send + Sync>> {
    let transaction = database.begin_read()?;
    let mut image = DiskImage::default();
    let values = match transaction.open_table(VALUES) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok((image, None)),
        other => other?,
    };
    for key in KEYS {
        if let Some(value) = values.get(name(key))? {
            image.values.insert(key, value.value().to_vec());
        }
    }
    for entry in transaction.open_table(LOG)?.iter()? {
        let (index, entry) = entry?;
        image.log.insert(index.value(), entry.value().to_vec());
    }
    let value = |name: &'static str| {
        let value = values.get(name)?.ok_or(format!("no {name}"))?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(value.value().to_vec())
    };
    let version = decode(&value(VERSION_NAME)?)?;
    let node = values.get(NODE_NAME)?.map(|value| decode(value.value())).transpose()?;
    let (voter, cluster) = (decode(&value(VOTER_NAME)?)?, decode(&value(CLUSTER_NAME)?)?);
    Ok((image, Some(Identity { version, voter, cluster, node })))
}

/// A file of redb's.
struct Redb(Arc<Database>);

impl fmt::Debug for Redb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redb").finish_non_exhaustive()
    }
}

fn other(e: impl Into<redb::Error>) -> io::Error {
    match e.into() {
        redb::Error::Io(e) => e,
        e => io::Error::other(e),
    }
}

impl Redb {
    fn identify(&mut self, identity: &Identity) -> io::Result<()> {
        let transaction = self.0.begin_write().map_err(other)?;
        {
            let mut values = transaction.open_table(VALUES).map_err(other)?;
            let mut set = |name, bytes: Vec<u8>| values.insert(name, bytes.as_slice()).map(drop).map_err(other);
            set(VERSION_NAME, encode(&identity.version)?)?;
            set(VOTER_NAME, encode(&identity.voter)?)?;
            set(CLUSTER_NAME, encode(&identity.cluster)?)?;
            if let Some(node) = identity.node {
                set(NODE_NAME, encode(&node)?)?;
            }
            transaction.open_table(LOG).map_err(other)?;
        }
        transaction.commit().map_err(other)
    }
}

impl Disk for Redb {
    fn write(&mut self, changes: &[StoreChange]) -> io::Result<()> {
        // Redb's default durability is immediate: a commit returns when it is on the disk.
        let transaction = self.0.begin_write().map_err(other)?;
        {
            let mut values = transaction.open_table(VALUES).map_err(other)?;
            let mut log = transaction.open_table(LOG).map_err(other)?;
            for change in changes {
                match change {
                    StoreChange::Set(key, bytes) => drop(values.insert(name(*key), bytes.as_slice()).map_err(other)?),
                    StoreChange::Clear => {
                        for key in KEYS.into_iter().filter(|key| !key.outlives_clear()) {
                            values.remove(name(key)).map_err(other)?;
                        }
                        log.retain(|_, _| false).map_err(other)?;
                    }
                    StoreChange::Append(index, bytes) => drop(log.insert(index, bytes.as_slice()).map_err(other)?),
                    StoreChange::Truncate(first) => log.retain_in::<u64, _>(first.., |_, _| false).map_err(other)?,
                    StoreChange::Purge(last) => log.retain_in::<u64, _>(..=last, |_, _| false).map_err(other)?,
                }
            }
        }
        transaction.commit().map_err(other)
    }
}

#[cfg(test)]
mod tests {
    use squall_membership::Incarnation;

    use super::*;
    use crate::sim::SimDisk;

    fn directory(disk: &SimDisk) -> Directory {
        let opened = open(disk, 1).expect("the disk is good");
        Directory { opened, path: PathBuf::new() }
    }

    fn open(disk: &SimDisk, node: u32) -> Result<Opened, StorageError> {
        open_with(disk.clone(), ("test", NodeId(node)), &mut fastrand::Rng::with_seed(1))
    }

    #[test]
    fn a_directory_of_another_node_is_refused_with_both_named() {
        let disk = SimDisk::new(1);
        let voter = directory(&disk).voter();
        let refused = open(&disk, 2).map(|_| ()).expect_err("it is node 1's").to_string();
        assert!(refused.contains("is the directory of node 1, and this is node 2"), "{refused}");
        assert_eq!(directory(&disk).voter(), voter);
    }

    #[test]
    fn a_store_remembers_its_lives_since_the_last_that_was_in_a_view() {
        let disk = SimDisk::new(1);
        for life in [3, 5, 8] {
            directory(&disk).opened.store.begin_life(Incarnation(life)).unwrap();
        }
        let store = directory(&disk).opened.store;
        assert_eq!(store.lives(), [0, 3, 5, 8].map(Incarnation));
        store.was_in_view(Incarnation(5));
        store.begin_life(Incarnation(9)).unwrap();
        drop(store);
        assert_eq!(directory(&disk).opened.store.lives(), [5, 8, 9].map(Incarnation));
    }

    #[test]
    fn a_life_is_later_than_all_before_though_the_clock_goes_back() {
        let disk = SimDisk::new(1);
        let begin = |asked| directory(&disk).opened.store.begin_life(Incarnation(asked)).unwrap();
        assert_eq!([begin(100), begin(50), begin(50), begin(200)], [100, 101, 102, 200].map(Incarnation));
    }

    #[test]
    fn what_is_of_the_node_outlives_a_life_of_its_cluster() {
        let disk = SimDisk::new(1);
        let mut before = directory(&disk);
        assert_eq!(before.notes(), b"");
        before.set_notes(b"kept".to_vec()).unwrap();
        before.opened.store.begin_life(Incarnation(7)).unwrap();
        before.opened.store.begin_anew(ClusterId(9), None).unwrap();
        assert_eq!(before.notes(), b"kept");
        let voter = before.voter();
        drop(before);
        let after = directory(&disk);
        assert_eq!((after.notes(), after.voter()), (b"kept".to_vec(), voter));
        assert_eq!(after.opened.store.begin_life(Incarnation(1)).unwrap(), Incarnation(8));
        assert!(!after.has_log());
    }
}
