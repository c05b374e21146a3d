//! What the replicas of this host's cluster know of each other: where they have ports a configuration and keys, and their votes.

use std::{
    ffi::OsString,
    fs, io,
    net::TcpListener,
    path::{Path, PathBuf},
};

use squall::{
    NodeId,
    keys::{Authority, Files, KeysError},
};
use squall_kv::server::{BULK_RESERVE, GROUP};

use crate::{Args, Fabric};

/// What each replica reserves for each one's long commands, in bytes, where it can't be more than memory holds.
const LOCKED_BULK_RESERVE: usize = 64 << 20;

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    #[error("no free port of 127.0.0.1 was found: {0}")]
    Ports(io::Error),
    #[error("the configuration {} could not be written: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Keys(#[from] KeysError),
}

/// A directory with the replicas' votes; where they have ports, with a configuration, and keys if they are asked for. It goes
/// with this.
pub(crate) struct Network {
    directory: PathBuf,
    file: Option<PathBuf>,
    /// The data is in it, too, and it stays.
    is_durable: bool,
}

impl Network {
    /// For replicas that listen at free ports, unless they share memory.
    pub(crate) fn make(cluster: &str, args: &Args) -> Result<Network, NetworkError> {
        let directory = args.durable.clone().unwrap_or_else(|| std::env::temp_dir().join(cluster));
        let mut network = Network { directory, file: None, is_durable: args.durable.is_some() };
        let written = |path: &Path, written: io::Result<()>| {
            written.map_err(|error| NetworkError::Write { path: path.to_owned(), error })
        };
        written(&network.directory, fs::create_dir_all(&network.directory))?;
        let (backend, bulk_reserve) = match args.fabric {
            Fabric::Shm => return Ok(network),
            Fabric::Tcp => ("tcp", BULK_RESERVE),
            // A device locks all of it.
            Fabric::Verbs => ("verbs", LOCKED_BULK_RESERVE),
        };
        let path = network.directory.join(if args.tls { "kv-tls.toml" } else { "kv.toml" });
        if network.is_durable && path.exists() {
            // The disks remember the replicas' addresses.
            network.file = Some(path);
            return Ok(network);
        }
        // All at once, so that no port comes twice. Somebody else could take one before its replica does, which then says so.
        let held =
            args.members().map(|_| TcpListener::bind("127.0.0.1:0").and_then(|held| Ok((held.local_addr()?, held))));
        let held = held.collect::<Vec<_>>();
        let storage = if network.is_durable { "{id}" } else { "node-{id}" };
        let mut text = format!(
            "cluster = \"{cluster}\"\nstorage = \"{storage}\"\n[fabric]\nbackend = \"{backend}\"\n[addresses]\n"
        );
        for (id, held) in args.members().zip(&held) {
            let (address, _) =
                held.as_ref().map_err(|error| NetworkError::Ports(io::Error::new(error.kind(), error.to_string())))?;
            text += &format!("{id} = \"{address}\"\n");
        }
        text += &format!("[groups.{GROUP}]\nbulk_reserve = {bulk_reserve}\n");
        if network.is_durable {
            text += "mode = \"durable\"\n";
        }
        let files = Files::in_directory(&network.directory);
        if args.tls {
            let authority = Authority::create(cluster)?;
            authority.save(&files, false)?;
            for id in args.members() {
                authority.issue(NodeId(id), 1)?.save(&files, false)?;
            }
            text += "[security]\nca = \"ca.pem\"\ncertificate = \"node-{id}.pem\"\nkey = \"node-{id}.key\"\n";
        }
        written(&path, fs::write(&path, text))?;
        network.file = Some(path);
        Ok(network)
    }

    /// What a replica is to be told of it.
    pub(crate) fn options(&self, cluster: &str, id: u32) -> Vec<OsString> {
        match &self.file {
            Some(file) => vec!["--config".into(), file.into()],
            None if self.is_durable => {
                vec!["--cluster".into(), cluster.into(), "--durable".into(), self.directory.clone().into()]
            }
            None => {
                let storage = self.directory.join(format!("node-{id}"));
                vec!["--cluster".into(), cluster.into(), "--storage".into(), storage.into()]
            }
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if !self.is_durable {
            // Nothing in it is of use to anybody else.
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}
