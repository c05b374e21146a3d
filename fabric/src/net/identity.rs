//! The certificate and key by which a process proves its identity, and their renewal while it runs.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, MutexGuard, Weak},
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
    credentials::{Credentials, KeyTexts, NamedText},
    principal::{Principal, cluster_label},
    revoked::Revoked,
};
use crate::{NodeId, sync::Lock};

/// The interval at which the files of keys are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The interval between warnings that a certificate expires.
const DAY: Duration = Duration::from_hours(24);

/// The interval at which files that could not be used are tried again: a certificate may begin later, and a process may
/// have been out of descriptors.
const RETRY: Duration = Duration::from_secs(30);

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
        let key = read_named(&self.key)?;
        let mode = fs::metadata(&self.key).map_err(|cause| unreadable(&self.key, &cause))?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(IdentityError::KeyIsOpen { path: self.key.clone(), mode });
        }
        let [lists, serials] = self.read_lists()?;
        let (authority, certificate) = (read_named(&self.ca)?, read_named(&self.certificate)?);
        Ok(KeyTexts { authority, certificate, key, lists, serials })
    }

    /// Reads the lists of revoked certificates: that of the CA, and the serial numbers.
    fn read_lists(&self) -> Result<[Option<NamedText>; 2], IdentityError> {
        let read = |path: Option<&Path>| path.map(read_named).transpose();
        Ok([read(self.crl.as_deref())?, read(self.denied.as_deref())?])
    }

    /// The state of each file, by which a change shows.
    fn stamps(&self) -> Stamps {
        let three = [&self.ca, &self.certificate, &self.key].into_iter();
        let all = three.chain(&self.crl).chain(&self.denied);
        let stamp = |file: fs::Metadata| (file.ino(), file.size(), file.ctime(), file.ctime_nsec());
        all.map(|path| fs::metadata(path).ok().map(stamp)).collect()
    }
}

/// Reads a file, with its name in errors.
fn read_named(path: &Path) -> Result<NamedText, IdentityError> {
    fs::read(path).map(|text| (format!("{path:?}"), text)).map_err(|cause| unreadable(path, &cause))
}

fn unreadable(path: &Path, cause: &io::Error) -> IdentityError {
    IdentityError::Read { path: path.to_owned(), cause: cause.to_string() }
}

/// The number, size and time of change of each file, changes of its mode included; None for one that is not there.
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
    /// The texts of these credentials.
    texts: Lock<KeyTexts>,
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
        let texts = files.read()?;
        let credentials = Credentials::parse(&texts, UnixTime::now())?;
        let identity = Identity::new(credentials, texts, Some(files.clone()));
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
        Ok(Identity::new(Credentials::parse(&texts, now)?, texts, None))
    }

    fn new(credentials: Credentials, texts: KeyTexts, files: Option<KeyFiles>) -> Identity {
        let principal = credentials.principal.clone();
        Identity(Arc::new(IdentityShared {
            node: principal.node().unwrap_or_else(NodeId::nameless),
            principal,
            label: credentials.label.clone(),
            files,
            credentials: Lock::new(Arc::new(credentials)),
            texts: Lock::new(texts),
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
    /// Fails as [`load`](Identity::load) does, or if the keys are another owner's. Then the old keys stay in use; what
    /// the files say of revoked certificates counts all the same, if it can be read.
    pub fn reload(&self) -> Result<(), IdentityError> {
        self.reload_holding(self.0.reading.lock())
    }

    /// Reads the files again as [`reload`](Identity::reload) does, for a caller that must not wait for a disk that
    /// hangs. Fails as that does, or if another thread reads them.
    pub fn try_reload(&self) -> Result<(), IdentityError> {
        self.reload_holding(self.0.reading.try_lock().ok_or(IdentityError::BeingRead)?)
    }

    fn reload_holding(&self, reading: MutexGuard<'_, ()>) -> Result<(), IdentityError> {
        let shared = &self.0;
        let Some(files) = &shared.files else { return Ok(()) };
        // Taken before: a change meanwhile shows later.
        let stamps = files.stamps();
        let read = files.read().and_then(|texts| {
            let found = Credentials::parse(&texts, UnixTime::now())?;
            if (found.principal.label(), &found.label) != (shared.principal.label(), &shared.label) {
                let (found, before) = (found.principal.to_string(), shared.principal.to_string());
                return Err(IdentityError::OtherOwner { what: texts.certificate.0, found, before });
            }
            Ok((texts, found))
        });
        let (usable, outcome) = match read {
            Ok(found) => {
                *shared.stamps.lock() = stamps;
                (Some(found), Ok(()))
            }
            Err(error) => (self.with_new_lists(files), Err(error)),
        };
        *shared.problem.lock() = outcome.as_ref().err().cloned();
        if let Some((texts, credentials)) = usable {
            let revoked = Arc::clone(&credentials.revoked);
            *shared.credentials.lock() = Arc::new(credentials);
            *shared.texts.lock() = texts;
            drop(reading);
            shared.end_revoked(&revoked);
        }
        outcome
    }

    /// The keys that are in use, with the lists of revoked certificates that are in the files now; None if these can't
    /// be used.
    fn with_new_lists(&self, files: &KeyFiles) -> Option<(KeyTexts, Credentials)> {
        let [lists, serials] = files.read_lists().ok()?;
        let texts = KeyTexts { lists, serials, ..self.0.texts.lock().clone() };
        let credentials = Credentials::parse_lists(&texts).ok()?;
        Some((texts, credentials))
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
    /// The state of which the log has said that it can't be used, and the time of the last attempt.
    refused: Option<(Stamps, Instant)>,
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
        let is_refused = self.refused.as_ref().is_some_and(|(refused, _)| *refused == stamps);
        let is_early = self.refused.as_ref().is_some_and(|(_, tried)| tried.elapsed() < RETRY);
        if stamps == *shared.stamps.lock() || is_refused && is_early {
            return true;
        }
        let identity = Identity(shared);
        match identity.reload() {
            Ok(()) => tracing::info!(owner = %identity.principal(), "the keys were read again"),
            Err(_) if self.failed.as_ref() != Some(&stamps) => self.failed = Some(stamps),
            Err(error) => {
                if !is_refused {
                    tracing::error!(%error, "the new keys can't be used, and the old ones stay in use");
                }
                self.refused = Some((stamps, Instant::now()));
            }
        }
        true
    }
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
