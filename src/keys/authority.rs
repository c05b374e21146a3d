//! The CA of a cluster, and the keys that it issues.

use std::{fs, path::PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use squall_fabric::{NodeId, net::certificate_name};
use time::{Duration, OffsetDateTime};

use super::{
    Files, KeysError, Subject, describe,
    files::{Access, check_free, write},
};
use crate::config::check_name;

/// The lifetime of a CA, in days.
const AUTHORITY_DAYS: i64 = 3653;

/// The longest that a node's certificate lasts, in days.
pub const MAX_DAYS: u32 = 3653;

/// The most by which the clocks of hosts may differ.
const CLOCKS_DIFFER: Duration = Duration::hours(1);

/// The CA of one cluster, with its key.
#[derive(Debug)]
pub struct Authority {
    cluster: String,
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
    until: OffsetDateTime,
}

/// A node's certificate and key, in PEM form.
#[derive(Clone)]
pub struct NodeKeys {
    node: NodeId,
    certificate: String,
    key: String,
}

impl Authority {
    /// Makes a CA for a cluster, with the cluster's name as its own; it lasts ten years.
    pub fn create(cluster: &str) -> Result<Authority, KeysError> {
        Authority::create_until(cluster, OffsetDateTime::now_utc() + Duration::days(AUTHORITY_DAYS))
    }

    pub(super) fn create_until(cluster: &str, until: OffsetDateTime) -> Result<Authority, KeysError> {
        check_name(cluster).map_err(|rule| KeysError::Name { cluster: cluster.to_owned(), rule })?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name = named(cluster);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) = (until.min(OffsetDateTime::now_utc()) - CLOCKS_DIFFER, until);
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Authority { cluster: cluster.to_owned(), certificate, issuer: Issuer::new(params, key), until })
    }

    /// Reads a CA and its key.
    pub fn load(files: &Files) -> Result<Authority, KeysError> {
        let (certificate_path, key_path) = (files.authority_certificate(), files.authority_key());
        let read = |path: &PathBuf| {
            fs::read_to_string(path).map_err(|cause| KeysError::Read { path: path.clone(), cause, is_ca: true })
        };
        let (certificate, key) = (read(&certificate_path)?, read(&key_path)?);
        let malformed =
            |problem: String| KeysError::Malformed { what: certificate_path.display().to_string(), problem };
        let [description] = &describe(&certificate).map_err(malformed)?[..] else {
            return Err(malformed("it has several certificates: give the CA's alone".into()));
        };
        let Subject::Authority { cluster } = &description.subject else {
            return Err(malformed("it is not the certificate of a CA that `squall keys init` has made".into()));
        };
        let key = KeyPair::from_pem(&key).map_err(|error| KeysError::Malformed {
            what: key_path.display().to_string(),
            problem: format!("it is no private key ({error})"),
        })?;
        if !description.is_of(&key) {
            return Err(KeysError::Malformed {
                what: key_path.display().to_string(),
                problem: format!("it is not the key of {}", certificate_path.display()),
            });
        }
        let issuer = Issuer::from_ca_cert_pem(&certificate, key)?;
        Ok(Authority { cluster: cluster.clone(), issuer, until: description.until, certificate })
    }

    /// Writes the certificate and the key into files; only this user can read the key.
    pub fn save(&self, files: &Files, replace: bool) -> Result<(), KeysError> {
        let places = [files.authority_key(), files.authority_certificate()];
        check_free(&places, replace)?;
        let [key, certificate] = places;
        write(&key, &self.issuer.key().serialize_pem(), Access::Owner, replace)?;
        write(&certificate, &self.certificate, Access::All, replace)
    }

    /// Returns the cluster's name.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Returns the CA's certificate, in PEM form.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Makes a key for a node, and a certificate that is valid for `days` days, but no longer than the CA's own.
    pub fn issue(&self, node: NodeId, days: u32) -> Result<NodeKeys, KeysError> {
        if !(1..=MAX_DAYS).contains(&days) {
            return Err(KeysError::Days { days });
        }
        let now = OffsetDateTime::now_utc();
        if self.until <= now {
            let (cluster, on) = (self.cluster.clone(), self.until.date().to_string());
            return Err(KeysError::AuthorityExpired { cluster, on });
        }
        let mut params = CertificateParams::new(vec![certificate_name(&self.cluster, node)])?;
        params.distinguished_name = named(&format!("node {}", node.0));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // A node dials some peers and is dialed by others.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        params.not_before = now - CLOCKS_DIFFER;
        params.not_after = (now + Duration::days(days.into())).min(self.until);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(NodeKeys { node, certificate, key: key.serialize_pem() })
    }
}

fn named(common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "Squall");
    name.push(DnType::CommonName, common);
    name
}

impl NodeKeys {
    /// Returns the node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns the node's certificate, in PEM form.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Returns the node's key, in PEM form.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Writes the certificate and the key into files; only this user can read the key.
    pub fn save(&self, files: &Files, replace: bool) -> Result<(), KeysError> {
        let places = [files.key(self.node), files.certificate(self.node)];
        check_free(&places, replace)?;
        let [key, certificate] = places;
        write(&key, &self.key, Access::Owner, replace)?;
        write(&certificate, &self.certificate, Access::All, replace)
    }
}

impl std::fmt::Debug for NodeKeys {
    /// Leaves the key out.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeKeys").field("node", &self.node).finish_non_exhaustive()
    }
}
