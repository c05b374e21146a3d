//! The protection of a node's port.

use std::path::{Path, PathBuf};

use squall_fabric::NodeId;

use super::network::with_id;

/// The protection of a node's port, on networks. Shared memory is protected by the system: see [`squall_fabric::shm`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Security {
    /// No protection, so the node listens on loopback addresses only. Other users of the host can reach these.
    #[default]
    LoopbackOnly,
    /// No protection, on any address: any process that reaches the port can join, read and write.
    None,
    /// TLS 1.3. Both sides show a certificate of the cluster's CA that names their node.
    Tls(KeyFiles),
}

/// The places of a node's keys: files in PEM form, as `squall keys` makes them.
///
/// All nodes may share one configuration: `{id}` in a path stands for the node's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFiles {
    /// The certificate of the cluster's CA. The file may have several, while one CA follows another.
    pub ca: PathBuf,
    /// The node's certificate.
    pub certificate: PathBuf,
    /// The node's private key, which no other user may read.
    pub key: PathBuf,
}

impl KeyFiles {
    /// Returns the files with the node's id in the place of `{id}`.
    pub(super) fn of(&self, node: NodeId) -> KeyFiles {
        // A path that is no UTF-8 text has no `{id}` either.
        let of = |path: &Path| match path.to_str() {
            Some(text) => with_id(text, node).into(),
            None => path.to_owned(),
        };
        KeyFiles { ca: of(&self.ca), certificate: of(&self.certificate), key: of(&self.key) }
    }
}

/// Reads a [`Protection`].
pub(super) fn mode(text: &str) -> Result<Protection, String> {
    match text {
        "none" => Ok(Protection::None),
        "tls" => Ok(Protection::Tls),
        _ => Err(format!(
            "is {text:?}: give \"tls\" with `ca`, `certificate` and `key` (`squall keys` makes them), or \"none\" if nobody \
             else is on the network"
        )),
    }
}

/// The protection that is named in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    None,
    Tls,
}
