//! The keys with which nodes sign their logs, and their files.
//!
//! A node with such a key can show its logs to others that know the public half from elsewhere. The signature shows
//! that the logs are unaltered, record by record, since they began. `squall keys log` makes both halves; nothing but
//! logs is signed with them. `docs/src/internals/log-format.md` says what is signed.

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use squall_fabric::NodeId;
pub use squall_ordered::log::{KeyError, MemberKey, PublicKey, SigningKey};

/// The reason for which a key was not read.
#[derive(Debug, thiserror::Error)]
pub enum LogKeysError {
    /// A file or a directory can't be read.
    #[error("{} can't be read: {cause}; `squall keys log` makes keys with which logs are signed", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        cause: io::Error,
    },
    /// Other users can read a private key.
    #[error("{} can be read by other users (mode {mode:03o}), who could sign with it: chmod 600 it, or make another", path.display())]
    IsOpen {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A file has no such key.
    #[error("{} can't be used: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The problem with its contents.
        #[source]
        problem: KeyError,
    },
    /// A directory has no public key.
    #[error("there is no node-N.log.pem in {}: give the directory with the members' public keys", .0.display())]
    NoKeys(PathBuf),
}

/// The name of the file of a node's public key.
pub(crate) fn public_name(node: NodeId) -> String {
    format!("node-{}.log.pem", node.0)
}

/// The node whose public key is in a file of this name.
fn node_of(name: &str) -> Option<NodeId> {
    let node = NodeId(name.strip_prefix("node-")?.strip_suffix(".log.pem")?.parse().ok()?);
    (public_name(node) == name).then_some(node)
}

/// Reads the key with which a node signs its logs: a PEM file (PKCS #8) that its owner alone can read. Fails if it
/// can't be read, if other users can read it, or if it is no such key.
pub fn signing_key(path: impl AsRef<Path>) -> Result<SigningKey, LogKeysError> {
    let path = path.as_ref();
    let failed = |cause| LogKeysError::Read { path: path.to_owned(), cause };
    let mut file = fs::File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(LogKeysError::IsOpen { path: path.to_owned(), mode });
    }
    let mut pem = Vec::new();
    file.read_to_end(&mut pem).map_err(failed)?;
    SigningKey::from_pem(&pem).map_err(|problem| LogKeysError::Malformed { path: path.to_owned(), problem })
}

/// Reads the public half of such a key, a PEM file. Fails if it can't be read, or is no such key.
pub fn public_key(path: impl AsRef<Path>) -> Result<PublicKey, LogKeysError> {
    let path = path.as_ref();
    let pem = fs::read(path).map_err(|cause| LogKeysError::Read { path: path.to_owned(), cause })?;
    PublicKey::from_pem(&pem).map_err(|problem| LogKeysError::Malformed { path: path.to_owned(), problem })
}

/// Reads the public keys of all members in a directory: its files `node-N.log.pem`. The result has at least one. Fails
/// if there is no such file, or if one can't be read or is no such key.
pub fn members(directory: impl AsRef<Path>) -> Result<Vec<MemberKey>, LogKeysError> {
    let directory = directory.as_ref();
    let failed = |cause| LogKeysError::Read { path: directory.to_owned(), cause };
    let mut keys = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if let Some(member) = entry.file_name().to_str().and_then(node_of) {
            keys.push(MemberKey { member, key: public_key(entry.path())? });
        }
    }
    keys.sort_by_key(|key| key.member);
    if keys.is_empty() { Err(LogKeysError::NoKeys(directory.to_owned())) } else { Ok(keys) }
}

#[cfg(all(test, not(squall_loom), feature = "keys"))]
mod tests {
    use super::*;
    use crate::keys::{Authority, Files, LogKeys};

    #[test]
    fn keys_that_were_made_are_read_and_no_others() {
        let base = tempfile::tempdir().unwrap();
        let directory = base.path().join("keys");
        let files = Files::in_directory(&directory);
        for node in [2, 10, 1].map(NodeId) {
            LogKeys::create(node).unwrap().save(&files, false).unwrap();
        }
        let read = members(&directory).unwrap();
        assert_eq!(read.iter().map(|key| key.member).collect::<Vec<_>>(), [1, 2, 10].map(NodeId));
        for MemberKey { member, key } in read {
            assert_eq!(signing_key(files.log_key(member)).unwrap().public_key(), key);
        }

        let open = files.log_key(NodeId(1));
        fs::set_permissions(&open, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(signing_key(&open), Err(LogKeysError::IsOpen { mode: 0o640, .. })));
        let authority = Authority::create("bank").unwrap();
        authority.issue(NodeId(1), 1).unwrap().save(&files, false).unwrap();
        let error = signing_key(files.of(NodeId(1)).key).unwrap_err().to_string();
        assert!(error.contains("not one of Ed25519") && error.contains("squall keys log"), "{error}");
        let error = public_key(files.of(NodeId(1)).certificate).unwrap_err().to_string();
        assert!(error.contains("no public key"), "{error}");
        fs::remove_dir_all(&directory).unwrap();
        assert!(matches!(members(&directory), Err(LogKeysError::Read { .. })));
        fs::create_dir(&directory).unwrap();
        assert!(matches!(members(&directory), Err(LogKeysError::NoKeys(_))));
    }
}
