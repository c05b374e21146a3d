//! Keys, and the statements that are signed with them.

use std::sync::Arc;

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use rustls_pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer, pem::PemObject};
use squall_fabric::NodeId;
use squall_membership::{ClusterId, ShardId};

use super::{
    ChainValue, End,
    chain::{end_bytes, hex},
};

/// A signature's size, in bytes.
pub(crate) const SIGNATURE_BYTES: usize = 64;

/// The first bytes of a signed statement.
const STATEMENT: &[u8; 16] = b"squall log sign1";

/// The bytes before the 32 bytes of an Ed25519 key in a `SubjectPublicKeyInfo` (RFC 8410, §4).
const PUBLIC_KEY_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The reasons for which a key can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text holds no private key.
    #[error("it has no private key in PEM form, PKCS #8 ({0}): make one with `squall keys log`")]
    NoPrivateKey(String),
    /// The private key is of another kind.
    #[error("its private key is not one of Ed25519 ({0}), with which logs are signed: make one with `squall keys log`")]
    OtherPrivateKey(String),
    /// The text holds no public key.
    #[error("it has no public key in PEM form ({0}): give the one that `squall keys log` made")]
    NoPublicKey(String),
    /// The public key is of another kind.
    #[error(
        "its public key is not one of Ed25519, with which logs are signed: give the one that `squall keys log` made"
    )]
    OtherPublicKey,
}

/// An Ed25519 key (RFC 8032) with which a member signs its logs. Clones share it.
#[derive(Clone, Debug)]
pub struct SigningKey(Arc<Ed25519KeyPair>);

impl SigningKey {
    /// Reads a private key in PEM form (PKCS #8), as `squall keys log` or `openssl genpkey -algorithm ed25519` makes
    /// it. Fails if the text holds no private key, or one of another kind.
    pub fn from_pem(pem: &[u8]) -> Result<SigningKey, KeyError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem).map_err(|error| KeyError::NoPrivateKey(error.to_string()))?;
        // OpenSSL leaves out the public half, so it can't be checked.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der());
        pair.map(|pair| SigningKey(Arc::new(pair))).map_err(|error| KeyError::OtherPrivateKey(error.to_string()))
    }

    /// Derives the key from a secret (RFC 8032, §5.1.5).
    pub fn from_seed(seed: &[u8; 32]) -> SigningKey {
        SigningKey(Arc::new(Ed25519KeyPair::from_seed_unchecked(seed).expect("any 32 bytes are a seed")))
    }

    /// Returns the key with which others check its signatures.
    pub fn public_key(&self) -> PublicKey {
        PublicKey(self.0.public_key().as_ref().try_into().expect("an Ed25519 key has 32 bytes"))
    }

    pub(crate) fn sign(&self, statement: &Statement) -> [u8; SIGNATURE_BYTES] {
        self.0.sign(&statement.bytes()).as_ref().try_into().expect("an Ed25519 signature has 64 bytes")
    }
}

/// An Ed25519 key with which a member's signatures are checked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, derive_more::Debug, derive_more::Display)]
#[debug("{self}")]
#[display("{}", hex(_0))]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// Reads a public key in PEM form. Fails if the text holds no public key, or one of another kind.
    pub fn from_pem(pem: &[u8]) -> Result<PublicKey, KeyError> {
        let der =
            SubjectPublicKeyInfoDer::from_pem_slice(pem).map_err(|error| KeyError::NoPublicKey(error.to_string()))?;
        let key = der.strip_prefix(&PUBLIC_KEY_PREFIX).and_then(|key| key.try_into().ok());
        key.map(PublicKey).ok_or(KeyError::OtherPublicKey)
    }

    pub(crate) fn verifies(&self, statement: &Statement, signature: &[u8; SIGNATURE_BYTES]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(&statement.bytes(), signature).is_ok()
    }
}

/// The statement of a signature: a member's log held these records, up to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Statement {
    pub(crate) cluster: ClusterId,
    pub(crate) shard: ShardId,
    pub(crate) member: NodeId,
    pub(crate) end: End,
    pub(crate) chain: ChainValue,
}

impl Statement {
    fn bytes(&self) -> [u8; 104] {
        let mut bytes = [0; 104];
        bytes[..16].copy_from_slice(STATEMENT);
        bytes[16..24].copy_from_slice(&self.cluster.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&u64::from(self.shard.0).to_le_bytes());
        bytes[32..40].copy_from_slice(&u64::from(self.member.0).to_le_bytes());
        bytes[40..72].copy_from_slice(&end_bytes(self.end));
        bytes[72..].copy_from_slice(&self.chain.0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8032, §7.1, test 1.
    #[test]
    fn a_seed_has_the_public_key_of_the_standard() {
        let bytes = |hex: &str| -> [u8; 32] {
            std::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("two digits"))
        };
        let seed = bytes("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
        let public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
        assert_eq!(SigningKey::from_seed(&seed).public_key().to_string(), public);
    }

    #[test]
    fn what_is_signed_is_all_that_the_statement_says() {
        let key = SigningKey::from_seed(&[1; 32]);
        let statement = Statement {
            cluster: ClusterId(7),
            shard: ShardId(3),
            member: NodeId(2),
            end: End { version: 5, ..End::START },
            chain: ChainValue([9; 32]),
        };
        let signature = key.sign(&statement);
        assert!(key.public_key().verifies(&statement, &signature));
        let others = [
            Statement { cluster: ClusterId(8), ..statement },
            Statement { shard: ShardId(4), ..statement },
            Statement { member: NodeId(1), ..statement },
            Statement { end: End { version: 6, ..End::START }, ..statement },
            Statement { chain: ChainValue([8; 32]), ..statement },
        ];
        assert!(others.iter().all(|other| !key.public_key().verifies(other, &signature)));
    }

    /// RFC 8410, §10.1 and §10.3: the same key, as OpenSSL writes it.
    #[test]
    fn keys_are_read_from_pem() {
        let private = b"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n-----END PRIVATE KEY-----\n";
        let public = b"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n";
        let key = SigningKey::from_pem(private).expect("it is one");
        assert_eq!(PublicKey::from_pem(public), Ok(key.public_key()));
        assert!(matches!(SigningKey::from_pem(public), Err(KeyError::NoPrivateKey(_))));
        assert!(matches!(PublicKey::from_pem(private), Err(KeyError::NoPublicKey(_))));
    }
}
