//! The places of keys on disk.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use squall_fabric::{
    NodeId,
    net::{KeyFiles, Principal},
};

use super::KeysError;
use crate::durable::log_keys;

/// A directory of keys: `ca.pem` and `ca.key`, and for each owner the two files that are named after it, such as
/// `node-<id>.pem` and `node-<id>.key`, or `client-<name>.pem` and `client-<name>.key`. A node that signs its logs has
/// `node-<id>.log.pem` and `node-<id>.log.key` as well. `crl.pem` lists the certificates that the CA has revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    directory: PathBuf,
}

impl Files {
    /// Names the files of a directory, which is made when something is saved.
    pub fn in_directory(directory: impl Into<PathBuf>) -> Files {
        Files { directory: directory.into() }
    }

    /// Returns the place of the CA's certificate, which every node needs.
    pub fn authority_certificate(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// Returns the place of the CA's key, which no node needs.
    pub fn authority_key(&self) -> PathBuf {
        self.directory.join("ca.key")
    }

    /// Returns the place of the list of revoked certificates.
    pub fn revocation_list(&self) -> PathBuf {
        self.directory.join("crl.pem")
    }

    /// Returns the places of an owner's keys.
    pub fn of(&self, owner: impl Into<Principal>) -> KeyFiles {
        let label = owner.into().label();
        let file = |end: &str| self.directory.join(format!("{label}.{end}"));
        KeyFiles::new(self.authority_certificate(), file("pem"), file("key"))
    }

    /// Returns the place of the public half of the key with which a node signs its logs, for readers that check them.
    pub fn log_public_key(&self, node: NodeId) -> PathBuf {
        self.directory.join(log_keys::public_name(node))
    }

    /// Returns the place of the key with which a node signs its logs.
    pub fn log_key(&self, node: NodeId) -> PathBuf {
        self.directory.join(format!("node-{}.log.key", node.0))
    }
}

/// Writes a key, which only this user can read, and its public half, into the files of these paths. It writes neither
/// if one exists, unless they may be replaced.
pub(super) fn write_pair(paths: [PathBuf; 2], key: &str, public: &str, replace: bool) -> Result<(), KeysError> {
    if let Some(path) = paths.iter().find(|path| !replace && path.symlink_metadata().is_ok()) {
        return Err(KeysError::Exists { path: path.clone() });
    }
    write(&paths[0], key, 0o600, replace)?;
    write(&paths[1], public, 0o644, replace)
}

/// Writes a file as a whole: a reader sees the old text or the new one.
pub(super) fn write(path: &Path, text: &str, mode: u32, replace: bool) -> Result<(), KeysError> {
    let failed = |cause| KeysError::Write { path: path.to_owned(), cause };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory).map_err(failed)?;
    let beside = path.with_extension(format!("new-{}", std::process::id()));
    let create = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    let put = || if replace { fs::rename(&beside, path) } else { fs::hard_link(&beside, path) };
    let done = create().and_then(|()| put());
    // After a successful rename it no longer exists.
    let _ = fs::remove_file(&beside);
    match done {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !replace && path.exists() => {
            Err(KeysError::Exists { path: path.to_owned() })
        }
        done => done.map_err(failed),
    }
}
