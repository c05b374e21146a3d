//! The certificates that are refused though their CA has signed them.

use std::collections::BTreeSet;

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, pem::PemObject};
use webpki::{CertRevocationList, EndEntityCert, OwnedCertRevocationList};

/// The serial numbers of certificates that are refused, and the revocation lists of CAs.
#[derive(Debug, Default)]
pub(super) struct Revoked {
    /// Serial numbers without leading zeros, of any CA.
    serials: BTreeSet<Vec<u8>>,
    pub(super) lists: Vec<CertRevocationList<'static>>,
    /// The lists as they were read, for rustls, which checks their signatures.
    pub(super) ders: Vec<CertificateRevocationListDer<'static>>,
}

impl Revoked {
    /// Reads serial numbers, one in each line, as `squall keys show` writes them; what follows `#` is a comment. An
    /// error is a sentence.
    pub(super) fn read_serials(&mut self, text: &str) -> Result<(), String> {
        for (at, line) in text.lines().enumerate() {
            let digits = line.split('#').next().unwrap_or_default().trim().replace(':', "");
            if digits.is_empty() {
                continue;
            }
            let serial = parse_hex(&digits).ok_or_else(|| {
                format!("line {} is no serial number: write its hexadecimal digits, as `squall keys show` does", at + 1)
            })?;
            self.serials.insert(serial);
        }
        Ok(())
    }

    /// Reads revocation lists in PEM form, at least one. An error is a sentence.
    pub(super) fn read_lists(&mut self, pem: &[u8]) -> Result<(), String> {
        for der in CertificateRevocationListDer::pem_slice_iter(pem) {
            self.read_list(der.map_err(|error| error.to_string())?)?;
        }
        if self.lists.is_empty() { Err("there is no revocation list in it".into()) } else { Ok(()) }
    }

    /// Reads one revocation list. An error is a sentence.
    pub(super) fn read_list(&mut self, der: CertificateRevocationListDer<'static>) -> Result<(), String> {
        let list = OwnedCertRevocationList::from_der(&der).map_err(|error| error.to_string())?;
        self.lists.push(list.into());
        self.ders.push(der);
        Ok(())
    }

    /// The serial numbers, a line each.
    #[cfg(any(test, fuzzing))]
    pub(super) fn serial_lines(&self) -> String {
        let digits = |serial: &Vec<u8>| serial.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        self.serials.iter().map(|serial| format!("00{}\n", digits(serial))).collect()
    }

    /// Whether a certificate is among them. The signatures of the lists are not checked here.
    pub(super) fn contain(&self, certificate: &CertificateDer<'_>) -> bool {
        let Ok(certificate) = EndEntityCert::try_from(certificate) else { return false };
        let serial = certificate.serial();
        let is_listed = |list: &CertRevocationList<'_>| {
            list.issuer() == certificate.issuer() && !matches!(list.find_serial(serial), Ok(None))
        };
        self.serials.contains(without_zeros(serial)) || self.lists.iter().any(is_listed)
    }
}

fn without_zeros(serial: &[u8]) -> &[u8] {
    &serial[serial.iter().take_while(|&&byte| byte == 0).count()..]
}

/// The number that hexadecimal digits stand for, without leading zeros.
fn parse_hex(digits: &str) -> Option<Vec<u8>> {
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let even = if digits.len().is_multiple_of(2) { digits.to_owned() } else { format!("0{digits}") };
    let bytes = (0..even.len()).step_by(2).map(|at| u8::from_str_radix(&even[at..at + 2], 16).ok());
    Some(without_zeros(&bytes.collect::<Option<Vec<u8>>>()?).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_numbers_are_read_in_any_spelling() {
        let mut revoked = Revoked::default();
        revoked.read_serials("# stolen\n\n00ab:CD # of node 3\nfff\n").unwrap();
        assert_eq!(revoked.serials, [vec![0xab, 0xcd], vec![0x0f, 0xff]].into());
        let error = revoked.read_serials("ab\nnode 3").unwrap_err();
        assert!(error.starts_with("line 2 is no serial number"), "{error}");
        assert!(revoked.read_lists(b"").is_err() && revoked.read_serials("ä").is_err());
    }
}
