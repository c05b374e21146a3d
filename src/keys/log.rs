//! Keys with which nodes sign their logs.

use rcgen::{KeyPair, PKCS_ED25519};
use squall_fabric::NodeId;

use super::{Files, KeysError, files::write_pair};

/// The Ed25519 key with which a node signs its logs, and its public half, each in PEM form.
#[derive(Clone, derive_more::Debug)]
#[debug("LogKeys {{ node: {node:?} }}")]
pub struct LogKeys {
    node: NodeId,
    key: String,
    public_key: String,
}

impl LogKeys {
    /// Makes a key for a node. Fails if no key can be made.
    pub fn create(node: NodeId) -> Result<LogKeys, KeysError> {
        let pair = KeyPair::generate_for(&PKCS_ED25519)?;
        Ok(LogKeys { node, key: pair.serialize_pem(), public_key: pair.public_key_pem() })
    }

    /// Returns the node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns the private key (PKCS #8).
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the public key, with which the node's signatures are checked.
    pub fn public_key(&self) -> &str {
        &self.public_key
    }

    /// Writes both into files; only this user can read the private key. Fails if a file can't be written, or exists and
    /// `replace` is false.
    pub fn save(&self, files: &Files, replace: bool) -> Result<(), KeysError> {
        write_pair([files.log_key(self.node), files.log_public_key(self.node)], &self.key, &self.public_key, replace)
    }
}
