//! The certificate and key by which a node proves its identity.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustls::{
    CertificateError, CipherSuite, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::WebPkiClientVerifier,
    version::TLS13,
};
use webpki::{EndEntityCert, KeyUsage};

use crate::{Fingerprint, NodeId};

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

/// The DNS name that the certificate of a cluster's node carries.
///
/// It is `node-<id>.c<cluster>.squall`, where `<cluster>` is the [`Fingerprint`] of the cluster's name in 16
/// hexadecimal digits.
pub fn certificate_name(cluster: &str, node: NodeId) -> String {
    format!("node-{}.{}.squall", node.0, cluster_label(cluster))
}

fn cluster_label(cluster: &str) -> String {
    format!("c{:016x}", Fingerprint::default().text(cluster).value())
}

/// The node and the cluster's label that a certificate's name stands for.
fn parse_name(name: &str) -> Option<(NodeId, &str)> {
    let (node, label) = name.strip_suffix(".squall")?.strip_prefix("node-")?.split_once('.')?;
    let id: u32 = node.parse().ok()?;
    // Each id has one name.
    (id.to_string() == node && label.len() == 17).then_some((NodeId(id), label))
}

/// A node's certificate, its key, and the CA whose certificates it accepts. Cheap to clone.
#[derive(Clone, derive_more::Debug)]
#[debug("Identity {{ node: {:?}, cluster: {:?} }}", _0.node, _0.label)]
pub struct Identity(Arc<Credentials>);

struct Credentials {
    node: NodeId,
    label: String,
    client: Arc<ClientConfig>,
    /// The counterpart of `client` where any node of the cluster may answer.
    any_client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Identity {
    /// Reads the certificate of the cluster's CA (or several), this node's certificate (behind it those of intermediate
    /// CAs, if there are any), and its key, each a PEM file.
    ///
    /// A key that other users can read is refused.
    pub fn load(
        ca: impl AsRef<Path>,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Identity, IdentityError> {
        let (ca, certificate, key) = (ca.as_ref(), certificate.as_ref(), key.as_ref());
        let read = |path: &Path| {
            fs::read(path).map_err(|cause| IdentityError::Read { path: path.to_owned(), cause: cause.to_string() })
        };
        let key_pem = read(key)?;
        let mode = fs::metadata(key)
            .map_err(|cause| IdentityError::Read { path: key.to_owned(), cause: cause.to_string() })?
            .permissions()
            .mode()
            & 0o777;
        if mode & 0o077 != 0 {
            return Err(IdentityError::KeyIsOpen { path: key.to_owned(), mode });
        }
        let names = [ca, certificate, key].map(|path| format!("{path:?}"));
        Identity::parse(&read(ca)?, &read(certificate)?, &key_pem, &names, UnixTime::now())
    }

    /// Parses PEM texts, as [`load`](Identity::load) does files. Fails if a text is malformed, or if the key and the
    /// certificates do not belong together or are not valid now.
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
        let names = ["the CA's certificate", "the node's certificate", "the node's key"].map(str::to_owned);
        Identity::parse(ca.as_bytes(), certificate.as_bytes(), key.as_bytes(), &names, now)
    }

    /// Parses the three; `names` are their names in errors.
    fn parse(
        ca: &[u8],
        certificate: &[u8],
        key: &[u8],
        names: &[String; 3],
        now: UnixTime,
    ) -> Result<Identity, IdentityError> {
        let [ca_name, certificate_name, key_name] = names;
        let authorities = certificates(ca, ca_name)?;
        let chain = certificates(certificate, certificate_name)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| IdentityError::NoKey { what: key_name.clone(), cause: error.to_string() })?;
        let malformed = |what: &String| {
            let what = what.clone();
            move |error: webpki::Error| IdentityError::Malformed { what, cause: error.to_string() }
        };

        let roots = trusted(&authorities).map_err(malformed(ca_name))?;
        let own = EndEntityCert::try_from(&chain[0]).map_err(malformed(certificate_name))?;
        verify(&own, &roots, &chain[1..], now, [certificate_name, ca_name])?;
        let (node, label) = own
            .valid_dns_names()
            .find_map(parse_name)
            .map(|(node, label)| (node, label.to_owned()))
            .ok_or_else(|| IdentityError::NoNode { what: certificate_name.clone() })?;

        let refused = |error: rustls::Error| match error {
            rustls::Error::InconsistentKeys(_) => {
                IdentityError::OtherKey { key: key_name.clone(), certificate: certificate_name.clone() }
            }
            error => IdentityError::NoKey { what: key_name.clone(), cause: error.to_string() },
        };
        let roots = Arc::new(roots);
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(refused)?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(refused)?;
        // Each connection shows its certificates: a node that was thrown out must not come back with a ticket.
        client.resumption = Resumption::disabled();
        let unusable = |error: rustls::client::VerifierBuilderError| IdentityError::Malformed {
            what: ca_name.clone(),
            cause: error.to_string(),
        };
        let inner =
            WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), provider()).build().map_err(unusable)?;
        let mut any_client = client.clone();
        any_client.dangerous().set_certificate_verifier(Arc::new(AnyNode { label: label.clone(), inner }));
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build().map_err(unusable)?;
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(refused)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key)
            .map_err(refused)?;
        server.send_tls13_tickets = 0;
        // The dialer's order may be that of another release.
        server.ignore_client_order = true;
        Ok(Identity(Arc::new(Credentials {
            node,
            label,
            client: Arc::new(client),
            any_client: Arc::new(any_client),
            server: Arc::new(server),
        })))
    }

    /// The node that the certificate names.
    pub fn node(&self) -> NodeId {
        self.0.node
    }

    /// Whether the certificate is for a cluster of this name.
    pub fn is_for(&self, cluster: &str) -> bool {
        self.0.label == cluster_label(cluster)
    }

    pub(super) fn client(&self) -> &Arc<ClientConfig> {
        &self.0.client
    }

    pub(super) fn any_client(&self) -> &Arc<ClientConfig> {
        &self.0.any_client
    }

    pub(super) fn server(&self) -> &Arc<ServerConfig> {
        &self.0.server
    }
}

/// Verifies that a certificate is that of some node of a cluster.
#[derive(Debug)]
struct AnyNode {
    label: String,
    inner: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for AnyNode {
    /// Verifies against the name in the certificate, if a node of the cluster has it.
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = EndEntityCert::try_from(end_entity).map_err(|_| CertificateError::BadEncoding)?;
        let name = certificate
            .valid_dns_names()
            .find(|name| parse_name(name).is_some_and(|(_, label)| label == self.label))
            .and_then(|name| ServerName::try_from(name).ok())
            .ok_or(CertificateError::NotValidForName)?;
        self.inner.verify_server_cert(end_entity, intermediates, &name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// The certificates by which others are to be signed.
fn trusted(authorities: &[CertificateDer<'_>]) -> Result<RootCertStore, webpki::Error> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.roots.push(webpki::anchor_from_trusted_cert(authority)?.to_owned());
    }
    Ok(roots)
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let malformed = |cause: String| IdentityError::Malformed { what: what.to_owned(), cause };
    let list: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| malformed(error.to_string()))?;
    if list.is_empty() { Err(malformed("there is no certificate in it".into())) } else { Ok(list) }
}

/// Whether peers that trust the same CA would accept the certificate at that time.
fn verify(
    own: &EndEntityCert<'_>,
    roots: &RootCertStore,
    intermediates: &[CertificateDer<'_>],
    now: UnixTime,
    [what, ca]: [&String; 2],
) -> Result<(), IdentityError> {
    let algorithms = provider().signature_verification_algorithms.all;
    let what = what.clone();
    for usage in [KeyUsage::server_auth(), KeyUsage::client_auth()] {
        let verified = own.verify_for_usage(algorithms, &roots.roots, intermediates, now, usage, None, None);
        match verified.map(|_| ()) {
            Ok(()) => {}
            Err(webpki::Error::CertExpired { time, not_after }) => {
                let ago = days(time.as_secs().saturating_sub(not_after.as_secs()));
                return Err(IdentityError::Expired { what, ago });
            }
            Err(webpki::Error::CertNotValidYet { time, not_before }) => {
                let left = days(not_before.as_secs().saturating_sub(time.as_secs()));
                return Err(IdentityError::NotYetValid { what, left });
            }
            Err(webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey) => {
                return Err(IdentityError::OtherCa { what, ca: ca.clone() });
            }
            Err(error) => return Err(IdentityError::Malformed { what, cause: error.to_string() }),
        }
    }
    Ok(())
}

/// A span of time in words, for error messages.
fn days(seconds: u64) -> String {
    match seconds {
        0..7200 => format!("{} minutes", seconds / 60),
        7200..172_800 => format!("{} hours", seconds / 3600),
        _ => format!("{} days", Duration::from_secs(seconds).as_secs() / 86_400),
    }
}

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
    /// The certificate names no node.
    #[error("{what} names no node of a cluster: make one with `squall keys add`")]
    NoNode {
        /// The certificate.
        what: String,
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

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
