//! Keys as a handshake uses them: parsed, checked, and made into the settings of TLS.

use std::{sync::Arc, time::Duration};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::{Resumption, VerifierBuilderError},
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    version::TLS13,
};
use webpki::{
    CertRevocationList, EndEntityCert, KeyUsage, RevocationCheckDepth, RevocationOptionsBuilder, UnknownStatusPolicy,
};

use super::{
    identity::provider,
    identity_error::IdentityError,
    principal::Principal,
    revoked::Revoked,
    verifier::{Verifier, owner},
};

/// A text with its name in errors.
pub(super) type NamedText = (String, Vec<u8>);

/// The texts of keys.
#[derive(Clone)]
pub(super) struct KeyTexts {
    pub(super) authority: NamedText,
    pub(super) certificate: NamedText,
    pub(super) key: NamedText,
    /// Revocation lists of CAs.
    pub(super) lists: Option<NamedText>,
    /// Serial numbers of certificates that are refused.
    pub(super) serials: Option<NamedText>,
}

/// The end of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The certificate: its file, or which of the two it is.
    pub certificate: String,
    /// Its last second, since 1970.
    pub at: u64,
    /// The second from which it should be renewed: 30 days before its end, or after two thirds of a short life.
    pub renew_from: u64,
}

impl Expiry {
    fn of(name: &str, certificate: &CertificateDer<'_>) -> Option<Expiry> {
        let (since, at) = validity(certificate)?;
        let notice = RENEW_BEFORE.as_secs().min(at.saturating_sub(since) / 3);
        Some(Expiry { certificate: name.to_owned(), at, renew_from: at.saturating_sub(notice) })
    }
}

/// The time before the end of a certificate from which it should be renewed.
const RENEW_BEFORE: Duration = Duration::from_hours(30 * 24);

/// The keys of one owner.
pub(super) struct Credentials {
    pub(super) principal: Principal,
    /// The part of the certificate's name that stands for the cluster.
    pub(super) label: String,
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
    pub(super) revoked: Arc<Revoked>,
    pub(super) expiries: Vec<Expiry>,
}

impl Credentials {
    /// Parses and checks. Fails if a text is malformed, or if the key and the certificates do not belong together or
    /// are not valid now.
    pub(super) fn parse(texts: &KeyTexts, now: UnixTime) -> Result<Credentials, IdentityError> {
        Credentials::parse_at(texts, Some(now))
    }

    /// Parses texts of which only the lists of revoked certificates are new. An own certificate that has expired since,
    /// or is on a list itself, is kept: its owner has no other, and others must be refused all the same.
    pub(super) fn parse_lists(texts: &KeyTexts) -> Result<Credentials, IdentityError> {
        Credentials::parse_at(texts, None)
    }

    fn parse_at(texts: &KeyTexts, now: Option<UnixTime>) -> Result<Credentials, IdentityError> {
        let (ca_name, ca) = &texts.authority;
        let (certificate_name, certificate) = &texts.certificate;
        let (key_name, key) = &texts.key;
        let authorities = certificates(ca, ca_name)?;
        let chain = certificates(certificate, certificate_name)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| IdentityError::NoKey { what: key_name.clone(), cause: error.to_string() })?;
        let malformed = |what: &String| {
            let what = what.clone();
            move |error: webpki::Error| IdentityError::Malformed { what, cause: error.to_string() }
        };

        let revoked = Arc::new(read_revoked(texts)?);
        let roots = trusted(&authorities).map_err(malformed(ca_name))?;
        let own = EndEntityCert::try_from(&chain[0]).map_err(malformed(certificate_name))?;
        let (principal, label) =
            owner(&own).ok_or_else(|| IdentityError::NoOwner { what: certificate_name.clone() })?;
        let check = Check {
            roots: &roots,
            intermediates: &chain[1..],
            revoked: &revoked,
            now: now.unwrap_or_else(UnixTime::now),
        };
        // Only nodes are dialed.
        let usages = [(KeyUsage::client_auth(), true), (KeyUsage::server_auth(), principal.node().is_some())];
        for (usage, _) in usages.into_iter().filter(|(_, is_used)| *is_used) {
            match check.verify(&own, usage, texts) {
                Err(IdentityError::Expired { .. } | IdentityError::Revoked { .. }) if now.is_none() => {}
                verified => verified?,
            }
        }
        if now.is_some() && revoked.contain(&chain[0]) {
            return Err(IdentityError::Revoked { what: certificate_name.clone() });
        }
        let expiry = |name: &String, certificates: &[CertificateDer<'_>]| {
            certificates.iter().filter_map(|certificate| Expiry::of(name, certificate)).min_by_key(|expiry| expiry.at)
        };
        let expiries =
            [expiry(certificate_name, &chain), expiry(ca_name, &authorities)].into_iter().flatten().collect();
        let (client, server) = tls_settings(texts, (&label, roots), &revoked, (chain, key))?;
        Ok(Credentials { principal, label, client, server, revoked, expiries })
    }
}

/// The settings of TLS at both sides of a connection.
fn tls_settings(
    texts: &KeyTexts,
    (label, roots): (&str, RootCertStore),
    revoked: &Arc<Revoked>,
    (chain, key): (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>),
) -> Result<(Arc<ClientConfig>, Arc<ServerConfig>), IdentityError> {
    let (certificate_name, key_name) = (&texts.certificate.0, &texts.key.0);
    let refused = |error: rustls::Error| match error {
        rustls::Error::InconsistentKeys(_) => {
            IdentityError::OtherKey { key: key_name.clone(), certificate: certificate_name.clone() }
        }
        error => IdentityError::NoKey { what: key_name.clone(), cause: error.to_string() },
    };
    let unusable = |error: VerifierBuilderError| IdentityError::Malformed {
        what: texts.authority.0.clone(),
        cause: error.to_string(),
    };
    let verifier = Arc::new(Verifier::new(label, &Arc::new(roots), revoked).map_err(unusable)?);
    let mut client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .dangerous()
        .with_custom_certificate_verifier(verifier.clone())
        .with_client_auth_cert(chain.clone(), key.clone_key())
        .map_err(refused)?;
    // Each connection shows its certificates: a node that was thrown out must not come back with a ticket.
    client.resumption = Resumption::disabled();
    let mut server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(refused)?;
    server.send_tls13_tickets = 0;
    // The dialer's order may be that of another release.
    server.ignore_client_order = true;
    Ok((Arc::new(client), Arc::new(server)))
}

fn read_revoked(texts: &KeyTexts) -> Result<Revoked, IdentityError> {
    let mut revoked = Revoked::default();
    let malformed = |what: &String, cause: String| IdentityError::RevocationList { what: what.clone(), cause };
    if let Some((name, pem)) = &texts.lists {
        revoked.read_lists(pem).map_err(|cause| malformed(name, cause))?;
    }
    if let Some((name, text)) = &texts.serials {
        let text = str::from_utf8(text).map_err(|error| malformed(name, error.to_string()))?;
        revoked.read_serials(text).map_err(|cause| malformed(name, cause))?;
    }
    Ok(revoked)
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

/// The check of an own certificate as peers that trust the same CA will do it.
struct Check<'a> {
    roots: &'a RootCertStore,
    intermediates: &'a [CertificateDer<'a>],
    revoked: &'a Revoked,
    now: UnixTime,
}

impl Check<'_> {
    fn verify(&self, own: &EndEntityCert<'_>, usage: KeyUsage, texts: &KeyTexts) -> Result<(), IdentityError> {
        let algorithms = provider().signature_verification_algorithms.all;
        let lists: Vec<&CertRevocationList<'_>> = self.revoked.lists.iter().collect();
        let revocation = RevocationOptionsBuilder::new(&lists).ok().map(|builder| {
            let builder = builder.with_depth(RevocationCheckDepth::EndEntity);
            builder.with_status_policy(UnknownStatusPolicy::Allow).build()
        });
        let roots = &self.roots.roots;
        let verified = own.verify_for_usage(algorithms, roots, self.intermediates, self.now, usage, revocation, None);
        let what = texts.certificate.0.clone();
        Err(match verified.map(|_| ()) {
            Ok(()) => return Ok(()),
            Err(webpki::Error::CertExpired { time, not_after }) => {
                IdentityError::Expired { what, ago: days(time.as_secs().saturating_sub(not_after.as_secs())) }
            }
            Err(webpki::Error::CertNotValidYet { time, not_before }) => {
                IdentityError::NotYetValid { what, left: days(not_before.as_secs().saturating_sub(time.as_secs())) }
            }
            Err(webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey) => {
                IdentityError::OtherCa { what, ca: texts.authority.0.clone() }
            }
            Err(webpki::Error::CertRevoked) => IdentityError::Revoked { what },
            Err(error @ (webpki::Error::InvalidCrlSignatureForPublicKey | webpki::Error::IssuerNotCrlSigner)) => {
                let what = texts.lists.as_ref().map_or_else(String::new, |(name, _)| name.clone());
                IdentityError::RevocationList { what, cause: error.to_string() }
            }
            Err(error) => IdentityError::Malformed { what, cause: error.to_string() },
        })
    }
}

/// The first and the last second in which a certificate is valid, since 1970.
fn validity(certificate: &CertificateDer<'_>) -> Option<(u64, u64)> {
    let algorithms = provider().signature_verification_algorithms.all;
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    // The parser tells them only to callers that come too early or too late, and checks that first.
    let at = |time: u64| {
        let time = UnixTime::since_unix_epoch(Duration::from_secs(time));
        certificate.verify_for_usage(algorithms, &[], &[], time, KeyUsage::client_auth(), None, None).map(|_| ())
    };
    match (at(0), at(u64::MAX)) {
        (Err(webpki::Error::CertNotValidYet { not_before, .. }), Err(webpki::Error::CertExpired { not_after, .. })) => {
            Some((not_before.as_secs(), not_after.as_secs()))
        }
        _ => None,
    }
}

/// A span of time in words, for error messages.
fn days(seconds: u64) -> String {
    match seconds {
        0..7200 => format!("{} minutes", seconds / 60),
        7200..172_800 => format!("{} hours", seconds / 3600),
        _ => format!("{} days", Duration::from_secs(seconds).as_secs() / 86_400),
    }
}
