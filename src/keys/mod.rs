//! Keys of a cluster: a CA of its own, and a certificate for each node.
//!
//! Whoever has the CA's key can make nodes, so it stays where keys are made; a node gets its own certificate and key, and the
//! CA's certificate. A certificate names a node of one cluster ([`certificate_name`](squall_fabric::net::certificate_name)), and
//! that is all that it says: hosts may change their addresses. These keys are of ECDSA on P-256. A node that signs its logs has one of
//! Ed25519 for that ([`LogKeys`]), which no CA knows: see [`log_keys`](crate::log_keys).
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
mod description;
mod files;
mod log;

pub use self::{
    authority::{Authority, MAX_DAYS, NodeKeys},
    description::{Description, Subject, describe},
    files::Files,
    log::LogKeys,
};

use std::{io, path::PathBuf};

use crate::config::NameError;

/// Why keys could not be made, kept or looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    /// A file could not be read.
    #[error("{} can't be read: {cause}{}", path.display(), if *is_ca { "; `squall keys init` makes a CA" } else { "" })]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
        /// Whether it is one of a CA's.
        is_ca: bool,
    },
    /// A file could not be written.
    #[error("{} can't be written: {cause}; check the directory and its permissions", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// A file is there already, and was not to be replaced.
    #[error("{} is there already: give another directory, or --force to replace it", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// What should be a certificate or a key is none.
    #[error("{what} can't be used: {problem}")]
    Malformed {
        /// The file, or what was given.
        what: String,
        /// What is wrong with it, and what to do.
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
    /// A number of days that no certificate is made for.
    #[error("{days} days are not possible: give 1 to {MAX_DAYS}")]
    Days {
        /// What was asked for.
        days: u32,
    },
    /// The CA's time is over.
    #[error(
        "the CA of cluster {cluster:?} expired on {on}: make a new one with `squall keys init`, and keys of all nodes"
    )]
    AuthorityExpired {
        /// Its cluster.
        cluster: String,
        /// The day.
        on: String,
    },
    /// Making a key or a certificate failed.
    #[error("a key or a certificate could not be made: {0}")]
    Make(#[from] rcgen::Error),
}

#[cfg(all(test, not(squall_loom)))]
mod tests;
