//! The certificate and key by which a process proves its identity, and their renewal while it runs.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use crossbeam::channel::{RecvTimeoutError, Sender, bounded};
use rustls::{
    CipherSuite,
    crypto::{CryptoProvider, ring},
    pki_types::UnixTime,
};

pub use super::{credentials::Expiry, identity_error::IdentityError};
use super::{
    credentials::{Credentials, KeyTexts},
    principal::{Principal, cluster_label},
    revoked::Revoked,
};
use crate::{NodeId, sync::Lock};

/// The interval at which the files of keys are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The interval between warnings that a certificate expires.
const DAY: Duration = Duration::from_hours(24);

/// The cipher suites in the order of preference: the first is the fastest one where the processor knows AES.
pub(super) fn provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| match suite.suite() {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => 0,
        CipherSuite::TLS13_AES_256_GCM_SHA384 => 1,
        _ => 2,
    });
    Arc::new(provider)
}

/// The files of keys, in PEM form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFiles {
    /// The certificate of the cluster's CA, or several.
    pub ca: PathBuf,
    /// The owner's certificate, and behind it those of intermediate CAs, if there are any.
    pub certificate: PathBuf,
    /// The owner's private key.
    pub key: PathBuf,
    /// Revocation lists of CAs.
    pub crl: Option<PathBuf>,
    /// Serial numbers of certificates that are refused: a line of hexadecimal digits each.
    pub denied: Option<PathBuf>,
}

impl KeyFiles {
    /// Names the three files that each owner needs.
    pub fn new(ca: impl Into<PathBuf>, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> KeyFiles {
        let (ca, certificate, key) = (ca.into(), certificate.into(), key.into());
        KeyFiles { ca, certificate, key, crl: None, denied: None }
    }

    /// Reads the files. A key that other users can read is refused.
    fn read(&self) -> Result<KeyTexts, IdentityError> {
        let failed = |path: &Path, cause: std::io::Error| IdentityError::Read {
            path: path.to_owned(),
            cause: cause.to_string(),
        };
        let read = |path: &Path| match fs::read(path) {
            Ok(text) => Ok((format!("{path:?}"), text)),
            Err(cause) => Err(failed(path, cause)),
        };
        let key = read(&self.key)?;
        let mode = fs::metadata(&self.key).map_err(|cause| failed(&self.key, cause))?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(IdentityError::KeyIsOpen { path: self.key.clone(), mode });
        }
        Ok(KeyTexts {
            authority: read(&self.ca)?,
            certificate: read(&self.certificate)?,
            key,
            lists: self.crl.as_deref().map(read).transpose()?,
            serials: self.denied.as_deref().map(read).transpose()?,
        })
    }

    /// The state of each file, by which a change shows.
    fn stamps(&self) -> Stamps {
        let three = [&self.ca, &self.certificate, &self.key].into_iter();
        let all = three.chain(&self.crl).chain(&self.denied);
        all.map(|path| fs::metadata(path).ok().map(|file| (file.ino(), file.size(), file.mtime(), file.mtime_nsec())))
            .collect()
    }
}

/// The number, size and time of change of each file; None for one that is not there.
type Stamps = Vec<Option<(u64, u64, i64, i64)>>;

/// A connection that ends when the certificate of its peer is revoked.
pub(super) trait Revocable: Send + Sync {
    /// Ends the connection if its peer's certificate is among these.
    fn end_if_revoked(&self, revoked: &Revoked);
}

/// A certificate, its key, and the CA whose certificates its owner accepts. Cheap to clone; clones change together when
/// the keys are [read again](Identity::reload).
#[derive(Clone, derive_more::Debug)]
#[debug("Identity {{ owner: {}, label: {:?} }}", _0.principal, _0.label)]
pub struct Identity(Arc<IdentityShared>);

struct IdentityShared {
    principal: Principal,
    label: String,
    /// The id under which the owner introduces itself.
    node: NodeId,
    files: Option<KeyFiles>,
    credentials: Lock<Arc<Credentials>>,
    /// The state of the files when these credentials were read.
    stamps: Lock<Stamps>,
    /// Held while the files are read, which may take as long as a disk does.
    reading: Lock<()>,
    /// The reason for which the files that are there now are not used.
    problem: Lock<Option<IdentityError>>,
    connections: Lock<Vec<Weak<dyn Revocable>>>,
    /// Ends the thread that looks at the files, once it was started, when it is dropped.
    watch: Lock<Option<Sender<()>>>,
}

impl Identity {
    /// Reads keys from files. Fails if a file can't be read, if the key can be read by other users, or if the texts are
    /// malformed, do not belong together, or are not valid now.
    pub fn load(files: &KeyFiles) -> Result<Identity, IdentityError> {
        let stamps = files.stamps();
        let credentials = Credentials::parse(&files.read()?, UnixTime::now())?;
        let identity = Identity::new(credentials, Some(files.clone()));
        *identity.0.stamps.lock() = stamps;
        Ok(identity)
    }

    /// Parses PEM texts, as [`load`](Identity::load) does files, and fails as it does.
    pub fn from_pem(ca: &str, certificate: &str, key: &str) -> Result<Identity, IdentityError> {
        Identity::from_pem_at(ca, certificate, key, UnixTime::now())
    }

    /// Parses as [`from_pem`](Identity::from_pem) does, at a given time.
    pub(super) fn from_pem_at(
        ca: &str,
        certificate: &str,
        key: &str,
        now: UnixTime,
    ) -> Result<Identity, IdentityError> {
        let named = |name: &str, text: &str| (name.to_owned(), text.as_bytes().to_vec());
        let texts = KeyTexts {
            authority: named("the CA's certificate", ca),
            certificate: named("the certificate", certificate),
            key: named("the key", key),
            lists: None,
            serials: None,
        };
        Ok(Identity::new(Credentials::parse(&texts, now)?, None))
    }

    fn new(credentials: Credentials, files: Option<KeyFiles>) -> Identity {
        let principal = credentials.principal.clone();
        Identity(Arc::new(IdentityShared {
            node: principal.node().unwrap_or_else(NodeId::nameless),
            principal,
            label: credentials.label.clone(),
            files,
            credentials: Lock::new(Arc::new(credentials)),
            stamps: Lock::default(),
            reading: Lock::default(),
            problem: Lock::default(),
            connections: Lock::default(),
            watch: Lock::default(),
        }))
    }

    /// The owner of the certificate.
    pub fn principal(&self) -> &Principal {
        &self.0.principal
    }

    /// The id under which the owner introduces itself: a node's own, or else a random one.
    pub fn node(&self) -> NodeId {
        self.0.node
    }

    /// Whether the certificate is for a cluster of this name.
    pub fn is_for(&self, cluster: &str) -> bool {
        self.0.label == cluster_label(cluster)
    }

    /// The ends of the certificates: its own, and the CA's.
    pub fn expiries(&self) -> Vec<Expiry> {
        self.credentials().expiries.clone()
    }

    /// The reason for which the keys that are in the files now are not used; None if they are.
    pub fn problem(&self) -> Option<IdentityError> {
        self.0.problem.lock().clone()
    }

    /// Reads the files again, for connections from now on. Those that stand go on, except with peers whose certificates
    /// are revoked now. Keys that were given as texts stay as they are.
    ///
    /// Fails as [`load`](Identity::load) does, or if the keys are another owner's; then all stays as it was.
    pub fn reload(&self) -> Result<(), IdentityError> {
        let shared = &self.0;
        let Some(files) = &shared.files else { return Ok(()) };
        let reading = shared.reading.lock();
        // Taken before: a change meanwhile shows later.
        let stamps = files.stamps();
        let read = files.read().and_then(|texts| {
            let found = Credentials::parse(&texts, UnixTime::now())?;
            if (found.principal.label(), &found.label) != (shared.principal.label(), &shared.label) {
                let (found, before) = (found.principal.to_string(), shared.principal.to_string());
                return Err(IdentityError::OtherOwner { what: texts.certificate.0, found, before });
            }
            Ok(found)
        });
        *shared.problem.lock() = read.as_ref().err().cloned();
        let credentials = Arc::new(read?);
        *shared.credentials.lock() = Arc::clone(&credentials);
        *shared.stamps.lock() = stamps;
        drop(reading);
        shared.end_revoked(&credentials.revoked);
        Ok(())
    }

    /// Begins to look at the files each second, on a thread that ends with the last clone, and to
    /// [read them again](Identity::reload) when they have changed.
    pub(super) fn watch(&self) {
        let mut watch = self.0.watch.lock();
        let Some(files) = self.0.files.clone().filter(|_| watch.is_none()) else { return };
        let (stop, stopped) = bounded(0);
        let shared = Arc::downgrade(&self.0);
        let look = move || {
            let mut watched = FileWatch { files, shared, failed: None, refused: None, warned: None };
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) && watched.look() {}
        };
        match std::thread::Builder::new().name("squall-keys".to_owned()).spawn(look) {
            Ok(_) => *watch = Some(stop),
            Err(error) => tracing::warn!(%error, "there is no thread that looks for new keys"),
        }
    }

    /// Ends a connection when its peer's certificate is revoked; at once, if it is now.
    pub(super) fn track(&self, connection: Weak<dyn Revocable>) {
        let mut connections = self.0.connections.lock();
        connections.retain(|other| other.strong_count() > 0);
        connections.push(Weak::clone(&connection));
        drop(connections);
        if let Some(connection) = connection.upgrade() {
            connection.end_if_revoked(&self.credentials().revoked);
        }
    }

    /// Logs the certificates that expire soon.
    fn warn_of_ends(&self) {
        let now = UnixTime::now().as_secs();
        for Expiry { certificate, at, .. } in self.expiries().into_iter().filter(|expiry| expiry.renew_from <= now) {
            let days = at.saturating_sub(now) / DAY.as_secs();
            tracing::warn!(owner = %self.principal(), "{certificate} expires in {days} days: renew it");
        }
    }

    pub(super) fn credentials(&self) -> Arc<Credentials> {
        Arc::clone(&self.0.credentials.lock())
    }
}

impl IdentityShared {
    fn end_revoked(&self, revoked: &Revoked) {
        let connections: Vec<_> = self.connections.lock().iter().filter_map(Weak::upgrade).collect();
        connections.iter().for_each(|connection| connection.end_if_revoked(revoked));
    }
}

/// The files of keys, as they are looked at.
struct FileWatch {
    files: KeyFiles,
    shared: Weak<IdentityShared>,
    /// The state that could not be used when it was seen first: several files change one after the other.
    failed: Option<Stamps>,
    /// The state of which the log has said that it can't be used.
    refused: Option<Stamps>,
    /// The time of the last warning that something expires.
    warned: Option<Instant>,
}

impl FileWatch {
    /// Looks once. Returns false if no one needs the keys any more.
    fn look(&mut self) -> bool {
        if self.warned.is_none_or(|at| at.elapsed() > DAY) {
            self.warned = Some(Instant::now());
            let Some(shared) = self.shared.upgrade() else { return false };
            Identity(shared).warn_of_ends();
        }
        let stamps = self.files.stamps();
        let Some(shared) = self.shared.upgrade() else { return false };
        if stamps == *shared.stamps.lock() || self.refused.as_ref() == Some(&stamps) {
            return true;
        }
        let identity = Identity(shared);
        match identity.reload() {
            Ok(()) => tracing::info!(owner = %identity.principal(), "the keys were read again"),
            Err(_) if self.failed.as_ref() != Some(&stamps) => self.failed = Some(stamps),
            Err(error) => {
                tracing::error!(%error, "the new keys can't be used, and the old ones stay in use");
                self.refused = Some(stamps);
            }
        }
        true
    }
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
