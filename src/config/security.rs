//! The protection of a node's port.

use std::path::PathBuf;

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

/// The protection that is named in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    None,
    Tls,
}
