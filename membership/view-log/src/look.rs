//! A look at a node's store that changes nothing, for tools.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use redb::{Database, StorageBackend, backends::InMemoryBackend};
use squall_fabric::NodeId;
use squall_membership::Incarnation;

use crate::{
    disk::{FILE, StorageError, VERSION, opening, read},
    store::{Key, decode},
};

/// The largest store that is looked at, in bytes. A view log is a few mebibytes.
const MAX_BYTES: u64 = 256 << 20;

/// The identity of a store, and the lives that its node has had with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSummary {
    /// The cluster's name.
    pub cluster: String,
    /// The node; None in a store that was written before nodes were stored.
    pub node: Option<NodeId>,
    /// The lives of the node, all since the first of them.
    pub lives: Vec<Incarnation>,
}

impl StoreSummary {
    /// Looks at the store in a directory, through a copy in memory: a store whose process was killed is repaired when
    /// it is opened. None if the directory holds none.
    ///
    /// A store that a process uses may be in the midst of a change, and then looks damaged.
    pub fn of(directory: &Path) -> Result<Option<StoreSummary>, StorageError> {
        let path = directory.join(FILE);
        let failed = |source| StorageError::Io { path: path.clone(), source };
        let damaged = |what: String| StorageError::Damaged { path: path.clone(), what };
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed)?,
        };
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(damaged(format!("it is longer than {MAX_BYTES} bytes")));
        }
        if bytes.is_empty() {
            return Ok(None);
        }
        let copy = InMemoryBackend::new();
        copy.set_len(bytes.len() as u64).and_then(|()| copy.write(0, &bytes)).map_err(failed)?;
        let database = Database::builder().create_with_backend(copy).map_err(|error| opening(&path, error))?;
        let (image, identity) = read(&database).map_err(|error| damaged(error.to_string()))?;
        let Some(identity) = identity else { return Ok(None) };
        if identity.version != VERSION {
            return Err(StorageError::Version { path, found: identity.version });
        }
        let lives = image.values.get(&Key::Lives).map(|bytes| decode(bytes)).transpose();
        let lives = lives.map_err(|error| damaged(error.to_string()))?.unwrap_or_default();
        Ok(Some(StoreSummary { cluster: identity.cluster, node: identity.node, lives }))
    }

    /// Whether this is not the newest store of its node, as far as a life shows that others know of it: that life was
    /// had with another.
    pub fn lacks(&self, life: Incarnation) -> bool {
        self.lives.first().is_some_and(|first| life > *first) && !self.lives.contains(&life)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Directory;

    #[test]
    fn a_look_tells_whose_a_store_is_and_changes_nothing() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        assert_eq!(StoreSummary::of(directory.path()).expect("it can be read"), None);
        let store = Directory::open(directory.path(), "bank", NodeId(3)).expect("it is new");
        store.opened.store.begin_life(Incarnation(5)).expect("the disk is well");
        store.opened.store.begin_life(Incarnation(8)).expect("the disk is well");
        drop(store);
        let path = directory.path().join(FILE);
        let before = std::fs::read(&path).expect("it is there");
        let found = StoreSummary::of(directory.path()).expect("it can be read").expect("it is there");
        assert_eq!((&*found.cluster, found.node), ("bank", Some(NodeId(3))));
        assert_eq!(found.lives, [0, 5, 8].map(Incarnation));
        assert!(std::fs::read(&path).expect("it is there") == before, "it was changed");
        assert_eq!([0, 5, 7, 8, 9].map(|life| found.lacks(Incarnation(life))), [false, false, true, false, true]);
    }

    #[test]
    fn what_is_no_store_is_named() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        std::fs::write(directory.path().join(FILE), b"something else").expect("it can be written");
        let error = StoreSummary::of(directory.path()).expect_err("it is none").to_string();
        assert!(error.contains(FILE), "{error}");
    }
}
