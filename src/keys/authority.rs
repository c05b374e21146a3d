//! The CA of a cluster, and the keys that it issues.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use squall_fabric::net::{Principal, check_owner_name};
use time::{Duration, OffsetDateTime};

use super::{Files, KeysError, files::write_pair};
use crate::config::check_name;

/// The lifetime of a CA, in days.
const AUTHORITY_DAYS: i64 = 3653;

/// The longest that a certificate lasts, in days.
pub const MAX_DAYS: u32 = 3653;

/// The most by which the clocks of hosts may differ.
const CLOCKS_DIFFER: Duration = Duration::hours(1);

/// The CA of one cluster, with its key.
#[derive(Debug)]
pub struct Authority {
    pub(super) cluster: String,
    pub(super) certificate: String,
    pub(super) issuer: Issuer<'static, KeyPair>,
    pub(super) until: OffsetDateTime,
}

/// The certificate and key of an owner, in PEM form.
#[derive(Clone, derive_more::Debug)]
#[debug("IssuedKeys {{ owner: {owner} }}")]
pub struct IssuedKeys {
    owner: Principal,
    certificate: String,
    key: String,
}

impl Authority {
    /// Makes a CA for a cluster, with the cluster's name as its own; it lasts ten years. Fails if the name can't be
    /// that of a cluster, or if no key can be made.
    pub fn create(cluster: &str) -> Result<Authority, KeysError> {
        Authority::create_until(cluster, OffsetDateTime::now_utc() + Duration::days(AUTHORITY_DAYS))
    }

    pub(super) fn create_until(cluster: &str, until: OffsetDateTime) -> Result<Authority, KeysError> {
        check_name(cluster).map_err(|rule| KeysError::Name { cluster: cluster.to_owned(), rule })?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) = (until.min(OffsetDateTime::now_utc()) - CLOCKS_DIFFER, until);
        let key = KeyPair::generate()?;
        params.distinguished_name = named(cluster);
        // A name of its own: a list of revoked certificates is found by its CA's name, and one CA may follow another.
        params.distinguished_name.push(DnType::OrganizationalUnitName, unit_of(&key));
        let certificate = params.self_signed(&key)?.pem();
        Ok(Authority { cluster: cluster.to_owned(), certificate, issuer: Issuer::new(params, key), until })
    }

    /// Writes the certificate and the key into files; only this user can read the key. Fails if a file can't be
    /// written, or exists and `replace` is false.
    pub fn save(&self, files: &Files, replace: bool) -> Result<(), KeysError> {
        let paths = [files.authority_key(), files.authority_certificate()];
        write_pair(paths, &self.issuer.key().serialize_pem(), &self.certificate, replace)
    }

    /// Returns the cluster's name.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Returns the CA's certificate, in PEM form.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Makes a key for an owner (of a node's id alone: a member), and a certificate that is valid for `days` days, but
    /// no longer than the CA's own. Fails if the CA has expired, if no certificate may be valid for so many days, if
    /// the owner or a group that it may call can't have its name, or if no key can be made.
    pub fn issue(&self, owner: impl Into<Principal>, days: u32) -> Result<IssuedKeys, KeysError> {
        let owner = owner.into();
        check_names(&owner)?;
        if !(1..=MAX_DAYS).contains(&days) {
            return Err(KeysError::Days { days });
        }
        let now = OffsetDateTime::now_utc();
        if self.until <= now {
            let (cluster, on) = (self.cluster.clone(), self.until.date().to_string());
            return Err(KeysError::AuthorityExpired { cluster, on });
        }
        let mut params = CertificateParams::new(vec![owner.dns_name(&self.cluster)])?;
        let uri = owner.rights_uri().map(|uri| uri.try_into().map(SanType::URI)).transpose()?;
        params.subject_alt_names.extend(uri);
        params.distinguished_name = named(&owner.to_string());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        // A node dials some peers and is dialed by others.
        params.extended_key_usages.extend(owner.node().map(|_| ExtendedKeyUsagePurpose::ServerAuth));
        params.use_authority_key_identifier_extension = true;
        params.not_before = now - CLOCKS_DIFFER;
        params.not_after = (now + Duration::days(days.into())).min(self.until);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(IssuedKeys { owner, certificate, key: key.serialize_pem() })
    }
}

/// Checks the names that a certificate would carry.
fn check_names(owner: &Principal) -> Result<(), KeysError> {
    let (Principal::Client(name, _) | Principal::Operator(name)) = owner else { return Ok(()) };
    check_owner_name(name)?;
    let Principal::Client(_, rights) = owner else { return Ok(()) };
    for group in rights.groups.iter().flatten() {
        check_name(group).map_err(|rule| KeysError::Group { group: group.clone(), rule })?;
    }
    Ok(())
}

/// Returns a word that no CA with another key has.
fn unit_of(key: &KeyPair) -> String {
    // Behind the byte that says its form, a public key of P-256 is random.
    key.public_key_raw().iter().skip(1).take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn named(common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "Squall");
    name.push(DnType::CommonName, common);
    name
}

impl IssuedKeys {
    /// Returns the owner.
    pub fn owner(&self) -> &Principal {
        &self.owner
    }

    /// Returns the certificate, in PEM form.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Returns the key, in PEM form.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Writes the certificate and the key into files; only this user can read the key. Fails if a file can't be
    /// written, or exists and `replace` is false.
    pub fn save(&self, files: &Files, replace: bool) -> Result<(), KeysError> {
        let of = files.of(self.owner.clone());
        write_pair([of.key, of.certificate], &self.key, &self.certificate, replace)
    }
}
