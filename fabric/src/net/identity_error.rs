//! The errors of keys and certificates.

use std::path::PathBuf;

/// The reason for which a node can't prove its identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file could not be read.
    #[error(
        "{path:?} could not be read: {cause}; `squall keys init` makes a CA, `squall keys add` a node's certificate and key"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's message.
        cause: String,
    },
    /// Other users can read the key.
    #[error("the key {path:?} can be read by other users (mode {mode:03o}): run `chmod 600 {}`", path.display())]
    KeyIsOpen {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The certificate file holds no certificate, or none that can be used.
    #[error("{what} is not a certificate that can be used: {cause}")]
    Malformed {
        /// The file, or which of the three it is.
        what: String,
        /// The fault of the text.
        cause: String,
    },
    /// The key file holds no private key, or none that can be used.
    #[error("{what} is not a private key that can be used: {cause}; `squall keys add` makes one that can")]
    NoKey {
        /// The file, or which of the three it is.
        what: String,
        /// The fault of the text.
        cause: String,
    },
    /// The key belongs to another certificate.
    #[error("{key} is not the key of {certificate}: give the two that `squall keys add` has made together")]
    OtherKey {
        /// The key.
        key: String,
        /// The certificate.
        certificate: String,
    },
    /// The certificate was made by another CA.
    #[error("{what} was not signed by the CA in {ca}: make one with the keys of that CA (`squall keys add`)")]
    OtherCa {
        /// The certificate.
        what: String,
        /// The CA's certificate.
        ca: String,
    },
    /// The certificate has no owner, several, or one whose rights this release does not understand.
    #[error(
        "{what} names no member, witness, client or operator of a cluster, or rights that this release does not know: make one \
         with `squall keys add`"
    )]
    NoOwner {
        /// The certificate.
        what: String,
    },
    /// The certificate is among those that are revoked.
    #[error("{what} is revoked: make a new one with `squall keys add --force`")]
    Revoked {
        /// The certificate.
        what: String,
    },
    /// A list of revoked certificates can't be used.
    #[error("{what} is no list of revoked certificates: {cause}")]
    RevocationList {
        /// The file.
        what: String,
        /// The fault of the text.
        cause: String,
    },
    /// Another thread reads the files, and its disk takes its time.
    #[error("the keys are being read already: ask again, and look at the disk that has them if that goes on")]
    BeingRead,
    /// The files have another owner's keys than before.
    #[error("{what} is that of {found}, and this process runs as {before}: start it again to run as another")]
    OtherOwner {
        /// The certificate.
        what: String,
        /// The new owner.
        found: String,
        /// The owner as which the process runs.
        before: String,
    },
    /// The certificate is too old.
    #[error("{what} expired {ago} ago: make a new one with `squall keys add --force`")]
    Expired {
        /// The certificate.
        what: String,
        /// The time since then.
        ago: String,
    },
    /// The certificate is too young.
    #[error("{what} becomes valid in {left}: set this host's clock right, or wait")]
    NotYetValid {
        /// The certificate.
        what: String,
        /// The time until then.
        left: String,
    },
}
