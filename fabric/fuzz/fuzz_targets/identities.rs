//! Two nodes of a cluster.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use squall_fabric::{
    NodeId,
    net::{Identity, certificate_name, fuzz::CLUSTER},
};

pub fn identities() -> [Identity; 2] {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    [1, 2].map(|node| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([certificate_name(CLUSTER, NodeId(node))]).unwrap();
        let certificate = params.signed_by(&key, &ca).unwrap();
        Identity::from_pem(&ca.pem(), &certificate.pem(), &key.serialize_pem()).unwrap()
    })
}
