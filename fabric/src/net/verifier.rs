//! The check of a peer's certificate in the handshake: its CA, its owner, and that it was not revoked.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
    client::{
        VerifierBuilderError, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use webpki::EndEntityCert;

use super::{
    identity::provider,
    principal::{Principal, Role},
    revoked::Revoked,
};
use crate::NodeId;

/// The nodes that a dialer accepts at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A member.
    Member(NodeId),
    /// Any member.
    AnyMember,
    /// A node in any role.
    Node(NodeId),
    /// Any node.
    AnyNode,
}

impl Wanted {
    /// The server name by which the handshake knows it.
    pub(super) fn server_name(self, label: &str) -> Option<ServerName<'static>> {
        let first = match self {
            Wanted::Member(node) => Principal::Member(node).label(),
            Wanted::AnyMember => "member".to_owned(),
            Wanted::Node(node) => format!("any-{}", node.0),
            Wanted::AnyNode => "any".to_owned(),
        };
        ServerName::try_from(format!("{first}.{label}.squall")).ok()
    }

    fn of_server_name(name: &ServerName<'_>) -> Option<Wanted> {
        let ServerName::DnsName(name) = name else { return None };
        let (first, _) = name.as_ref().split_once('.')?;
        match first {
            "any" => return Some(Wanted::AnyNode),
            "member" => return Some(Wanted::AnyMember),
            _ => {}
        }
        match (first.strip_prefix("any-"), Principal::of_label(first)) {
            (Some(node), _) => Some(Wanted::Node(NodeId(node.parse().ok()?))),
            (None, Some(Principal::Member(node))) => Some(Wanted::Member(node)),
            (None, _) => None,
        }
    }

    fn accepts(self, principal: &Principal) -> bool {
        match self {
            Wanted::Member(node) => *principal == Principal::Member(node),
            Wanted::AnyMember => principal.role() == Role::Member,
            Wanted::Node(node) => principal.node() == Some(node),
            Wanted::AnyNode => principal.node().is_some(),
        }
    }
}

/// The owner and the cluster's label that a certificate names.
pub(super) fn owner(certificate: &EndEntityCert<'_>) -> Option<(Principal, String)> {
    Principal::of_names(certificate.valid_dns_names(), certificate.valid_uri_names())
}

/// The check of certificates of both sides.
#[derive(Debug)]
pub(super) struct Verifier {
    label: String,
    servers: Arc<WebPkiServerVerifier>,
    clients: Arc<dyn ClientCertVerifier>,
    revoked: Arc<Revoked>,
}

impl Verifier {
    pub(super) fn new(
        label: &str,
        roots: &Arc<RootCertStore>,
        revoked: &Arc<Revoked>,
    ) -> Result<Verifier, VerifierBuilderError> {
        // A CA whose list there is not revokes nothing.
        let lists = || revoked.ders.iter().cloned();
        let servers = WebPkiServerVerifier::builder_with_provider(Arc::clone(roots), provider());
        let servers = servers.with_crls(lists()).only_check_end_entity_revocation().allow_unknown_revocation_status();
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider());
        let clients = clients.with_crls(lists()).only_check_end_entity_revocation().allow_unknown_revocation_status();
        let (servers, clients) = (servers.build()?, clients.build()?);
        Ok(Verifier { label: label.to_owned(), servers, clients, revoked: Arc::clone(revoked) })
    }

    fn check_revoked(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        if self.revoked.contain(certificate) { Err(CertificateError::Revoked.into()) } else { Ok(()) }
    }
}

impl ServerCertVerifier for Verifier {
    /// Verifies against the name in the certificate, if the node that is wanted has it.
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = EndEntityCert::try_from(end_entity).map_err(|_| CertificateError::BadEncoding)?;
        let wanted = Wanted::of_server_name(name).ok_or(CertificateError::NotValidForName)?;
        let own_name = certificate.valid_dns_names().find_map(|name| {
            let (principal, label) = Principal::parse_name(name)?;
            (label == self.label && wanted.accepts(&principal)).then(|| ServerName::try_from(name).ok())?
        });
        let owner = owner(&certificate);
        if owner.as_ref().is_some_and(|(_, label)| *label != self.label) {
            // It would be of no use even if it was signed by a CA of the same name.
            return Err(CertificateError::UnknownIssuer.into());
        }
        let own_name = own_name.filter(|_| owner.is_some()).ok_or(CertificateError::NotValidForName)?;
        self.check_revoked(end_entity)?;
        self.servers.verify_server_cert(end_entity, intermediates, &own_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.servers.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.servers.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.servers.supported_verify_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.clients.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check_revoked(end_entity)?;
        self.clients.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.clients.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.clients.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.clients.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_is_read_back_from_its_server_name() {
        for wanted in [Wanted::Member(NodeId(7)), Wanted::AnyMember, Wanted::Node(NodeId(7)), Wanted::AnyNode] {
            let name = wanted.server_name("c0123456789abcdef").unwrap();
            assert_eq!(Wanted::of_server_name(&name), Some(wanted));
        }
        let [member, witness] = [Principal::Member(NodeId(7)), Principal::Witness(NodeId(7))];
        let operator = Principal::Operator("alice".into());
        assert!(Wanted::Member(NodeId(7)).accepts(&member) && !Wanted::Member(NodeId(7)).accepts(&witness));
        assert!(Wanted::Node(NodeId(7)).accepts(&witness) && !Wanted::Node(NodeId(8)).accepts(&witness));
        assert!(Wanted::AnyMember.accepts(&member) && !Wanted::AnyMember.accepts(&witness));
        assert!(Wanted::AnyNode.accepts(&witness) && !Wanted::AnyNode.accepts(&operator));
    }
}
