//! Keys of a cluster: a CA of its own, and a certificate for each node.
//!
//! A holder of the CA's key can make nodes, so that key stays where keys are made. A node gets its own certificate and
//! key, and the CA's certificate. A certificate names its owner in one cluster ([`Principal`]), and no host: hosts may
//! change their addresses. The owner's role says what it may do ([`Call::access`](squall_fabric::net::Call::access)).
//! These keys are of ECDSA on P-256. A node that signs its logs has an Ed25519 key for that ([`LogKeys`]), which no CA
//! knows: see [`log_keys`](crate::log_keys).
//!
//! The feature `keys` has what makes them; the feature `certificates` also has what reads a CA's files and describes
//! certificates.
//!
//! The `squall keys` command does this at a shell; so does a program:
//!
//! ```no_run
//! use squall::{NodeId, keys::{Authority, Files}};
//!
//! # fn main() -> Result<(), squall::keys::KeysError> {
//! let files = Files::in_directory("keys");
//! let authority = Authority::create("bank")?;
//! authority.save(&files, false)?;
//! for node in [1, 2, 3].map(NodeId) {
//!     authority.issue(node, 365)?.save(&files, false)?;
//! }
//! # Ok(())
//! # }
//! ```

mod authority;
#[cfg(feature = "certificates")]
mod description;
mod files;
mod log;
#[cfg(feature = "certificates")]
mod revocation;

pub use self::{
    authority::{Authority, IssuedKeys, MAX_DAYS},
    files::Files,
    log::LogKeys,
};
#[cfg(feature = "certificates")]
pub use self::{
    description::{Description, Subject, describe},
    revocation::{Revocations, parse_serial},
};

use std::{
    io,
    path::{Path, PathBuf},
};

use squall_fabric::net::OwnerNameError;
pub use squall_fabric::net::{ClientRights, Identity, KeyFiles, Principal, Role};

use crate::config::NameError;

/// A reason for which keys could not be made, kept or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    /// A file could not be read.
    #[error("{} can't be read: {cause}{}", path.display(), if *is_ca { NO_CA } else { "" })]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        cause: io::Error,
        /// Whether it is one of a CA's files.
        is_ca: bool,
    },
    /// A file could not be written.
    #[error("{} can't be written: {cause}; check the directory and its permissions", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        cause: io::Error,
    },
    /// A file exists already, and was not to be replaced.
    #[error("{} is there already: {}", path.display(), instead_of(path))]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A text that should be a certificate or a key is none.
    #[error("{what} can't be used: {problem}")]
    Malformed {
        /// The name of the file, or of the argument.
        what: String,
        /// The problem, with advice.
        problem: String,
    },
    /// A CA can't be made for a cluster of this name.
    #[error("{cluster:?} can't be the name of a cluster: {rule}")]
    Name {
        /// The name.
        cluster: String,
        /// The rule that it breaks.
        rule: NameError,
    },
    /// A client or an operator can't have this name.
    #[error(transparent)]
    Owner(#[from] OwnerNameError),
    /// No group can have a name that a client's rights list.
    #[error("{group:?} can't be the name of a group: {rule}")]
    Group {
        /// The name.
        group: String,
        /// The rule that it breaks.
        rule: NameError,
    },
    /// The number of days is one for which no certificate is made.
    #[error("{days} days are not possible: give 1 to {MAX_DAYS}")]
    Days {
        /// The number that was asked for.
        days: u32,
    },
    /// The CA has expired.
    #[error(
        "the CA of cluster {cluster:?} expired on {on}: make a new one with `squall keys init --force`, and new keys \
         of all nodes with `squall keys add --force`"
    )]
    AuthorityExpired {
        /// The CA's cluster.
        cluster: String,
        /// The day on which it expired.
        on: String,
    },
    /// Making a key or a certificate failed.
    #[error("a key or a certificate could not be made: {0}")]
    Make(#[from] rcgen::Error),
}

/// The remedy where a CA's file can't be read.
const NO_CA: &str = "; run this where the CA was made; only if the cluster has none, `squall keys init` makes one";

/// The remedies where a file is there already.
fn instead_of(path: &Path) -> &'static str {
    if path.file_stem().is_some_and(|stem| stem == "ca") {
        "give another directory, or --force to replace the CA, which makes all certificates of the old one useless"
    } else {
        "leave this node out, or give --force to replace its keys"
    }
}

#[cfg(all(test, not(squall_loom), feature = "certificates"))]
mod tests;
