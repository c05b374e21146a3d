//! What the replicas of this host's cluster know of each other, where they have ports: a configuration, and keys.

use std::{fs, io, net::TcpListener, path::PathBuf};

use squall::{
    NodeId,
    keys::{Authority, Files, KeysError},
};
use squall_kv::server::{BULK_RESERVE, GROUP};

use crate::{Fabric, replica::MEMBERS};

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

/// A directory with a configuration, and keys if they are asked for. It goes with this.
pub(crate) struct Network {
    directory: PathBuf,
}

impl Network {
    /// For replicas that listen at free ports. None in shared memory, which needs no ports.
    pub(crate) fn make(cluster: &str, fabric: Fabric, tls: bool) -> Result<Option<Network>, NetworkError> {
        let (backend, bulk_reserve) = match fabric {
            Fabric::Shm => return Ok(None),
            Fabric::Tcp => ("tcp", BULK_RESERVE),
            // A device locks all of it.
            Fabric::Verbs => ("verbs", LOCKED_BULK_RESERVE),
        };
        let network = Network { directory: std::env::temp_dir().join(cluster) };
        // All at once, so that no port comes twice. Somebody else could take one before its replica does, which then says so.
        let held = MEMBERS.map(|_| TcpListener::bind("127.0.0.1:0").and_then(|held| Ok((held.local_addr()?, held))));
        let mut text = format!("cluster = \"{cluster}\"\n[fabric]\nbackend = \"{backend}\"\n[addresses]\n");
        for (id, held) in MEMBERS.into_iter().zip(&held) {
            let (address, _) =
                held.as_ref().map_err(|error| NetworkError::Ports(io::Error::new(error.kind(), error.to_string())))?;
            text += &format!("{id} = \"{address}\"\n");
        }
        text += &format!("[groups.{GROUP}]\nbulk_reserve = {bulk_reserve}\n");
        let files = Files::in_directory(&network.directory);
        if tls {
            let authority = Authority::create(cluster)?;
            authority.save(&files, false)?;
            for id in MEMBERS {
                authority.issue(NodeId(id), 1)?.save(&files, false)?;
            }
            text += "[security]\nca = \"ca.pem\"\ncertificate = \"node-{id}.pem\"\nkey = \"node-{id}.key\"\n";
        }
        let path = network.file();
        let written = fs::create_dir_all(&network.directory).and_then(|()| fs::write(&path, text));
        written.map_err(|error| NetworkError::Write { path, error })?;
        Ok(Some(network))
    }

    /// The configuration.
    pub(crate) fn file(&self) -> PathBuf {
        self.directory.join("kv.toml")
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Nothing in it is of use to anybody else.
        let _ = fs::remove_dir_all(&self.directory);
    }
}
