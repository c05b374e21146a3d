//! The list of the certificates that a CA has revoked.

use std::{collections::BTreeMap, fs, io};

use rcgen::{CertificateRevocationListParams, KeyIdMethod, RevokedCertParams, SerialNumber};
use time::OffsetDateTime;
use x509_parser::prelude::{CertificateRevocationList, FromDer, Pem};

use super::{Authority, Files, KeysError, files::write};

/// The certificates that a CA has revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocations {
    /// The number of the list: a later one has a greater.
    pub number: u64,
    /// The serial numbers, big-endian, each with the time of the revocation.
    pub serials: BTreeMap<Vec<u8>, OffsetDateTime>,
}

impl Revocations {
    /// Reads a list in PEM form; its signature is not checked. An error is a sentence about the text.
    pub fn read(pem: &str) -> Result<Revocations, String> {
        let block =
            Pem::iter_from_buffer(pem.as_bytes()).next().ok_or("there is no list of revoked certificates in it")?;
        let block = block.map_err(|error| format!("it is no PEM file ({error})"))?;
        let (_, list) = CertificateRevocationList::from_der(&block.contents)
            .map_err(|error| format!("it is no list of revoked certificates ({error})"))?;
        let number = list.crl_number().and_then(|number| u64::try_from(number).ok()).unwrap_or(0);
        let revoked = list.iter_revoked_certificates();
        let serials = revoked.map(|one| (one.raw_serial().to_vec(), one.revocation_date.to_datetime())).collect();
        Ok(Revocations { number, serials })
    }
}

/// Reads a serial number as `squall keys show` writes it: hexadecimal digits, perhaps with colons. None if it is none.
pub fn parse_serial(text: &str) -> Option<Vec<u8>> {
    let digits: String = text.trim().chars().filter(|&c| c != ':').collect();
    let is_number =
        !digits.is_empty() && digits.len().is_multiple_of(2) && digits.bytes().all(|c| c.is_ascii_hexdigit());
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).ok();
    if is_number { (0..digits.len()).step_by(2).map(byte).collect() } else { None }
}

impl Authority {
    /// Adds certificates, by their serial numbers, to the CA's list of those that are revoked, and writes the list.
    /// Returns the whole list. Fails if the list that is there can't be read, or the new one can't be written.
    pub fn revoke(&self, files: &Files, serials: impl IntoIterator<Item = Vec<u8>>) -> Result<Revocations, KeysError> {
        let path = files.revocation_list();
        let mut list = match fs::read_to_string(&path) {
            Ok(text) => Revocations::read(&text)
                .map_err(|problem| KeysError::Malformed { what: path.display().to_string(), problem })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Revocations::default(),
            Err(cause) => return Err(KeysError::Read { path, cause, is_ca: false }),
        };
        let now = OffsetDateTime::now_utc();
        list.number += 1;
        for serial in serials {
            list.serials.entry(serial).or_insert(now);
        }
        let revoked = list.serials.iter().map(|(serial, &at)| RevokedCertParams {
            serial_number: SerialNumber::from_slice(serial),
            revocation_time: at,
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: now,
            // Nodes read the file that they are given, and need no sign that there should be a newer one.
            next_update: self.until,
            crl_number: SerialNumber::from(list.number),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        write(&path, &params.signed_by(&self.issuer)?.pem()?, 0o644, true)?;
        Ok(list)
    }
}
