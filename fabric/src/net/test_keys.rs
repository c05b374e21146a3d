//! A CA and the certificates that it makes, for tests.

use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::UnixTime;

use super::identity::{Identity, certificate_name};
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

    /// An identity that was good in the year 2001.
    pub(super) fn expired(&self, node: u32) -> Identity {
        let (certificate, key) = self.issue(&[certificate_name(CLUSTER, NodeId(node))], [2001, 2002]);
        let then = UnixTime::since_unix_epoch(Duration::from_secs(1_000_000_000));
        Identity::from_pem_at(&self.pem(), &certificate, &key, then).unwrap()
    }
}
