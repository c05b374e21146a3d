//! The files that the replicas of this host's cluster share: their votes, and, where they use ports, a configuration
//! and keys.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write},
    net::TcpListener,
    path::{Path, PathBuf},
};

use squall::{
    NodeId,
    keys::{Authority, Files, KeysError},
};
use squall_command::TemporaryDirectory;
use squall_redis::server::{BULK_RESERVE, GROUP};

use crate::args::{Args, Fabric};

/// The bytes that each replica reserves for each one's long commands where that memory is locked.
const LOCKED_BULK_RESERVE: usize = 64 << 20;

/// The reason why there is no network.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    #[error("no free port of 127.0.0.1 was found: {0}")]
    Ports(io::Error),
    #[error("{} could not be made or written: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error(
        "{} is there, and no kv-tls.toml beside it: put that back, or remove ca.* and node-*.* there",
        path.display()
    )]
    KeysLeft { path: PathBuf },
    #[error(transparent)]
    Keys(KeysError),
}

impl From<KeysError> for NetworkError {
    fn from(error: KeysError) -> NetworkError {
        match error {
            KeysError::Exists { path } => NetworkError::KeysLeft { path },
            error => NetworkError::Keys(error),
        }
    }
}

/// A directory with the replicas' votes. Where they use ports, it also has a configuration, and keys if they are asked
/// for.
pub(crate) struct ClusterNetwork {
    directory: ClusterDirectory,
    file: Option<PathBuf>,
}

/// The directory of a cluster.
enum ClusterDirectory {
    /// A directory that stays, and that also holds the data.
    Kept(PathBuf),
    /// A new directory, which is removed on drop.
    Temporary(TemporaryDirectory),
}

impl ClusterDirectory {
    /// The directory to be kept, which is made if it is missing. Without one, a new directory, which only this user can
    /// use. The replicas hold it too: they end a little later than a supervisor that is killed.
    fn make(kept: Option<&Path>) -> Result<ClusterDirectory, NetworkError> {
        let Some(kept) = kept else {
            let made = TemporaryDirectory::new("redis");
            return made
                .and_then(|made| made.share_with_children().map(|()| ClusterDirectory::Temporary(made)))
                .map_err(|error| NetworkError::Write { path: std::env::temp_dir(), error });
        };
        let path = kept.to_owned();
        match fs::create_dir_all(&path) {
            Ok(()) => Ok(ClusterDirectory::Kept(path)),
            Err(error) => Err(NetworkError::Write { path, error }),
        }
    }

    fn path(&self) -> &Path {
        match self {
            ClusterDirectory::Kept(path) => path,
            ClusterDirectory::Temporary(directory) => directory.path(),
        }
    }
}

/// Writes a new file. An existing file is not touched, and no link is followed.
pub(crate) fn write_new(path: &Path, text: &str) -> io::Result<()> {
    File::create_new(path)?.write_all(text.as_bytes())
}

impl ClusterNetwork {
    /// Makes the network of replicas that listen at free ports, or share memory.
    pub(crate) fn make(cluster: &str, args: &Args) -> Result<ClusterNetwork, NetworkError> {
        let mut network = ClusterNetwork { directory: ClusterDirectory::make(args.durable.as_deref())?, file: None };
        let (directory, is_durable) = (network.directory.path(), args.durable.is_some());
        let (backend, bulk_reserve) = match args.fabric {
            Fabric::Shm => return Ok(network),
            Fabric::Tcp => ("tcp", BULK_RESERVE),
            // A device locks all of the reserve in memory.
            Fabric::Verbs => ("verbs", LOCKED_BULK_RESERVE),
        };
        let path = directory.join(if args.tls { "kv-tls.toml" } else { "kv.toml" });
        if is_durable && path.exists() {
            // The disks remember the replicas' addresses, so the old file stays.
            network.file = Some(path);
            return Ok(network);
        }
        // All at once, so that no port is chosen twice. Another process could take one before its replica does; that
        // replica then reports it.
        let held =
            args.members().map(|_| TcpListener::bind("127.0.0.1:0").and_then(|held| Ok((held.local_addr()?, held))));
        let held = held.collect::<Vec<_>>();
        let storage = if is_durable { "{id}" } else { "node-{id}" };
        let mut text = format!(
            "cluster = \"{cluster}\"\nstorage = \"{storage}\"\n[fabric]\nbackend = \"{backend}\"\n[addresses]\n"
        );
        for (id, held) in args.members().zip(&held) {
            let (address, _) =
                held.as_ref().map_err(|error| NetworkError::Ports(io::Error::new(error.kind(), error.to_string())))?;
            text += &format!("{id} = \"{address}\"\n");
        }
        text += &format!("[groups.{GROUP}]\nbulk_reserve = {bulk_reserve}\n");
        if is_durable {
            text += "mode = \"durable\"\n";
        }
        let files = Files::in_directory(directory);
        if args.tls {
            let authority = Authority::create(cluster)?;
            authority.save(&files, false)?;
            for id in args.members() {
                authority.issue(NodeId(id), 1)?.save(&files, false)?;
            }
            text += "[security]\nca = \"ca.pem\"\ncertificate = \"node-{id}.pem\"\nkey = \"node-{id}.key\"\n";
        }
        write_new(&path, &text).map_err(|error| NetworkError::Write { path: path.clone(), error })?;
        network.file = Some(path);
        Ok(network)
    }

    /// The command-line options with which a replica uses this network.
    pub(crate) fn options(&self, cluster: &str, id: u32) -> Vec<OsString> {
        match (&self.file, &self.directory) {
            (Some(file), _) => vec!["--config".into(), file.into()],
            (None, ClusterDirectory::Kept(directory)) => {
                vec!["--cluster".into(), cluster.into(), "--durable".into(), directory.into()]
            }
            (None, ClusterDirectory::Temporary(directory)) => {
                let storage = directory.path().join(format!("node-{id}"));
                vec!["--cluster".into(), cluster.into(), "--storage".into(), storage.into()]
            }
        }
    }
}
