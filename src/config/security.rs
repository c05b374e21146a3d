//! The protection of a node's port.

use std::sync::Arc;

pub use squall_fabric::net::KeyFiles;
use squall_fabric::{
    net::{self, Identity, IdentityError},
    sync::Lock,
};

/// The protection of a node's port, on networks, and of a caller of such ports. Shared memory is protected by the
/// system: see [`squall_fabric::shm`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Security {
    /// No keys, so the node listens on loopback addresses only, for processes of its user.
    #[default]
    LoopbackOnly,
    /// No protection, on any address: any process that reaches the port can join, read and write.
    None,
    /// TLS 1.3. Both sides show a certificate of the cluster's CA, whose owner may do what its role may. All nodes may
    /// share one configuration: `{id}` in a path stands for the node's id.
    Tls(KeyFiles),
}

impl Security {
    /// Reads the keys, if there are any.
    pub(crate) fn load(&self) -> Result<net::Security, IdentityError> {
        Ok(match self {
            Security::LoopbackOnly => net::Security::LoopbackOnly,
            Security::None => net::Security::None,
            Security::Tls(keys) => net::Security::Tls(Identity::load(keys)?),
        })
    }
}

/// The protection that is named in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    None,
    Tls,
}

/// The keys of a configuration, once they were read: all that are clones of one configuration use the same, and so
/// change them together. It is no part of what the configuration says.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedIdentity(pub(crate) Arc<Lock<Option<Identity>>>);

impl PartialEq for SharedIdentity {
    fn eq(&self, _: &SharedIdentity) -> bool {
        true
    }
}

impl Eq for SharedIdentity {}
