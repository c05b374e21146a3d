//! A CA and the certificates that it makes, for tests.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa, KeyIdMethod, KeyPair,
    RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, UnixTime, pem::PemObject};

use super::{
    identity::Identity,
    principal::{Principal, certificate_name},
};
use crate::NodeId;

pub(super) const CLUSTER: &str = "test";

pub(super) struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    pub(super) fn new() -> Ca {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ca(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(super) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for these names, valid in these years, and its key.
    pub(super) fn issue(&self, names: &[String], years: [i32; 2]) -> (String, String) {
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(years[0], 1, 1);
        params.not_after = date_time_ymd(years[1], 1, 1);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    pub(super) fn identity(&self, node: u32) -> Identity {
        let (certificate, key) = self.issue(&[certificate_name(CLUSTER, NodeId(node))], [2000, 4000]);
        Identity::from_pem(&self.pem(), &certificate, &key).unwrap()
    }

    /// The identity of an owner that may be another than a member.
    pub(super) fn identity_of(&self, owner: &Principal) -> Identity {
        let (certificate, key) = self.issue_to(owner);
        Identity::from_pem(&self.pem(), &certificate, &key).unwrap()
    }

    /// A certificate for an owner, and its key.
    pub(super) fn issue_to(&self, owner: &Principal) -> (String, String) {
        let mut params = CertificateParams::new([owner.dns_name(CLUSTER)]).unwrap();
        let uri = owner.rights_uri().map(|uri| SanType::URI(uri.try_into().unwrap()));
        params.subject_alt_names.extend(uri);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    /// A list that revokes a certificate, in PEM form.
    pub(super) fn revoke(&self, certificate: &str) -> String {
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let serial = webpki::EndEntityCert::try_from(&der).unwrap().serial().to_vec();
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from_slice(&serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(4000, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.0).unwrap().pem().unwrap()
    }

    /// An identity that was good in the year 2001.
    pub(super) fn expired(&self, node: u32) -> Identity {
        let (certificate, key) = self.issue(&[certificate_name(CLUSTER, NodeId(node))], [2001, 2002]);
        let then = UnixTime::since_unix_epoch(Duration::from_secs(1_000_000_000));
        Identity::from_pem_at(&self.pem(), &certificate, &key, then).unwrap()
    }
}
