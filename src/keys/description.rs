//! The contents of certificates, and a CA that is read from its files.

use std::{fs, path::PathBuf};

use rcgen::{Issuer, KeyPair, PublicKeyData};
use squall_fabric::net::Principal;
use time::OffsetDateTime;
use x509_parser::prelude::{GeneralName, Pem, X509Certificate};

use super::{Authority, Files, KeysError};

/// The contents of a certificate, not verified.
#[derive(Clone, Debug)]
pub struct Description {
    /// The owner of the certificate.
    pub subject: Subject,
    /// The issuer's name: the cluster's, for certificates that [`Authority`](super::Authority) makes.
    pub issuer: String,
    /// The time from which the certificate is valid.
    pub since: OffsetDateTime,
    /// The time until which the certificate is valid.
    pub until: OffsetDateTime,
    /// The serial number, which no other certificate of the CA has, big-endian.
    pub serial: Vec<u8>,
    public_key: Vec<u8>,
}

/// The owner of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The CA of a cluster.
    Authority {
        /// The cluster's name.
        cluster: String,
    },
    /// A node, a client or an operator of a cluster.
    Owner {
        /// The owner.
        principal: Principal,
        /// The DNS name, of which the part in the middle stands for the cluster.
        name: String,
        /// Whether that is the cluster that the issuer is named after.
        of_issuer: bool,
    },
    /// Something else.
    Other {
        /// The certificate's names.
        names: Vec<String>,
    },
}

impl Description {
    fn of(certificate: &X509Certificate<'_>) -> Description {
        let name = |name: &x509_parser::x509::X509Name<'_>| {
            let common = name.iter_common_name().next().and_then(|name| name.as_str().ok());
            common.map_or_else(|| name.to_string(), str::to_owned)
        };
        let issuer = name(certificate.issuer());
        let [names, uris] = alternative_names(certificate);
        let owner = Principal::of_names(names.iter().map(String::as_str), uris.iter().map(String::as_str));
        let subject = match owner {
            _ if certificate.is_ca() => Subject::Authority { cluster: name(certificate.subject()) },
            Some((principal, label)) => {
                let name = format!("{}.{label}.squall", principal.label());
                Subject::Owner { of_issuer: principal.dns_name(&issuer) == name, principal, name }
            }
            None => Subject::Other { names },
        };
        let validity = certificate.validity();
        Description {
            subject,
            issuer,
            since: validity.not_before.to_datetime(),
            until: validity.not_after.to_datetime(),
            serial: certificate.raw_serial().to_vec(),
            public_key: certificate.public_key().raw.to_vec(),
        }
    }

    /// Tells whether the certificate is for this key.
    fn is_of(&self, key: &KeyPair) -> bool {
        self.public_key == key.subject_public_key_info()
    }
}

/// Returns the DNS names and the URIs of a certificate.
fn alternative_names(certificate: &X509Certificate<'_>) -> [Vec<String>; 2] {
    let [mut names, mut uris] = [Vec::new(), Vec::new()];
    let Ok(Some(all)) = certificate.subject_alternative_name() else { return [names, uris] };
    for name in &all.value.general_names {
        match name {
            GeneralName::DNSName(name) => names.push((*name).to_owned()),
            GeneralName::URI(uri) => uris.push((*uri).to_owned()),
            _ => {}
        }
    }
    [names, uris]
}

/// Describes all certificates of a PEM text, at least one; an error is a sentence about the text.
pub fn describe(pem: &str) -> Result<Vec<Description>, String> {
    let mut all = Vec::new();
    let mut has_key = false;
    for block in Pem::iter_from_buffer(pem.as_bytes()) {
        let block = block.map_err(|error| format!("it is no PEM file ({error})"))?;
        has_key |= block.label.ends_with("PRIVATE KEY");
        if block.label == "CERTIFICATE" {
            let certificate = block.parse_x509().map_err(|error| format!("it is no certificate ({error})"))?;
            all.push(Description::of(&certificate));
        }
    }
    match all.is_empty() {
        true if has_key => Err("it has a private key, which says nothing: give the certificate beside it".into()),
        true => Err("there is no certificate in it".into()),
        false => Ok(all),
    }
}

impl Authority {
    /// Reads a CA and its key. Fails if a file can't be read, or if they are not the certificate and the key of one
    /// cluster's CA.
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
}
