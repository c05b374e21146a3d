//! The owners of certificates: the names that certificates carry, and the rights that they give.

use std::{collections::BTreeSet, fmt};

use crate::{Fingerprint, NodeId, name::MAX_NAME_BYTES, share::Holder};

/// The longest name of a client or an operator, in bytes: with the role before it, it is one label of a DNS name.
const MAX_OWNER_BYTES: usize = 40;

/// The beginning of the URI in a client's certificate that says what the client may do.
const RIGHTS_SCHEME: &str = "squall:";

/// The kind of the owner of a certificate. [`Call::access`](super::Call::access) says what each may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub enum Role {
    /// A node that may be a member of views, and so reads and writes its peers' tables.
    #[display("member")]
    Member,
    /// A node that only votes on views.
    #[display("witness")]
    Witness,
    /// A program outside the group that sends commands and queries.
    #[display("client")]
    Client,
    /// A person or a program that looks after the cluster.
    #[display("operator")]
    Operator,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 4] = [Role::Member, Role::Witness, Role::Client, Role::Operator];

    /// The role's part of a certificate's name. That of members is as old as certificates are.
    fn label(self) -> &'static str {
        match self {
            Role::Member => "node",
            Role::Witness => "witness",
            Role::Client => "client",
            Role::Operator => "operator",
        }
    }
}

/// The owner of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// A node that may be a member of views.
    Member(NodeId),
    /// A node that only votes on views.
    Witness(NodeId),
    /// A program outside the group, with its name and rights.
    Client(String, ClientRights),
    /// A person or a program that looks after the cluster, with its name.
    Operator(String),
}

/// The calls that a client's certificate permits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientRights {
    /// The groups that it may call; None for all.
    pub groups: Option<BTreeSet<String>>,
    /// Whether it may send commands. Queries are permitted in any case.
    pub commands: bool,
    /// Whether it may read the logs of durable groups, in which all commands of all clients are.
    pub logs: bool,
}

impl Default for ClientRights {
    /// Commands and queries to all groups, and no logs.
    fn default() -> ClientRights {
        ClientRights { groups: None, commands: true, logs: false }
    }
}

/// A name that no client and no operator can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} can't name a client or an operator: give 1 to {MAX_OWNER_BYTES} lower-case letters, digits and `-` \
    that begin with a letter"
)]
pub struct OwnerNameError {
    name: String,
}

/// Checks the name of a client or an operator. It is a part of a DNS name, in which the case of letters does not count.
/// Fails if it is too long, or has other characters in it.
pub fn check_owner_name(name: &str) -> Result<(), OwnerNameError> {
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase());
    let is_label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if begins && name.len() <= MAX_OWNER_BYTES && name.chars().all(is_label) && !name.ends_with('-') {
        return Ok(());
    }
    Err(OwnerNameError { name: name.to_owned() })
}

impl Principal {
    /// The owner's role.
    pub fn role(&self) -> Role {
        match self {
            Principal::Member(_) => Role::Member,
            Principal::Witness(_) => Role::Witness,
            Principal::Client(..) => Role::Client,
            Principal::Operator(_) => Role::Operator,
        }
    }

    /// The node, if the owner is one.
    pub fn node(&self) -> Option<NodeId> {
        match self {
            Principal::Member(node) | Principal::Witness(node) => Some(*node),
            Principal::Client(..) | Principal::Operator(_) => None,
        }
    }

    /// The party for which its shares of a node's room count.
    pub(super) fn holder(&self) -> Holder {
        match self {
            Principal::Client(name, _) => Holder::Client(name.as_str().into()),
            Principal::Member(_) | Principal::Witness(_) | Principal::Operator(_) => Holder::Trusted,
        }
    }

    /// The DNS name that the certificate of this owner carries.
    ///
    /// It is `<role>-<name>.c<cluster>.squall`, where the role of a member is `node`, the name of a node is its id, and
    /// `<cluster>` is the [`Fingerprint`] of the cluster's name in 16 hexadecimal digits.
    pub fn dns_name(&self, cluster: &str) -> String {
        format!("{}.{}.squall", self.label(), cluster_label(cluster))
    }

    /// The first label of the name, which is also that of the owner's files.
    pub fn label(&self) -> String {
        let role = self.role().label();
        match self {
            Principal::Member(node) | Principal::Witness(node) => format!("{role}-{}", node.0),
            Principal::Client(name, _) | Principal::Operator(name) => format!("{role}-{name}"),
        }
    }

    /// The URI that the certificate of this owner carries: None for an owner whose role says all.
    pub fn rights_uri(&self) -> Option<String> {
        match self {
            Principal::Client(_, rights) if *rights != ClientRights::default() => Some(rights.uri()),
            _ => None,
        }
    }

    /// Reads the owner and the cluster's label from the names in a certificate.
    ///
    /// None if no name or several are Squall's, or if the rights have a word in them that this release does not know:
    /// it may be a limit.
    pub fn of_names<'a>(
        dns: impl Iterator<Item = &'a str>,
        uris: impl Iterator<Item = &'a str>,
    ) -> Option<(Principal, String)> {
        let mut names = dns.filter(|name| name.ends_with(".squall"));
        let (name, None) = (names.next()?, names.next()) else { return None };
        let mut rights = uris.filter_map(|uri| uri.strip_prefix(RIGHTS_SCHEME));
        let (words, None) = (rights.next(), rights.next()) else { return None };
        let (mut principal, label) = Principal::parse_name(name)?;
        match (&mut principal, words) {
            (_, None) => {}
            (Principal::Client(_, rights), Some(words)) => *rights = ClientRights::parse(words)?,
            (_, Some(_)) => return None,
        }
        Some((principal, label.to_owned()))
    }

    /// The owner, a client with all of a client's rights, and the cluster's label that a DNS name stands for.
    pub(super) fn parse_name(name: &str) -> Option<(Principal, &str)> {
        let (first, label) = name.strip_suffix(".squall")?.split_once('.')?;
        let principal = Principal::of_label(first)?;
        (label.len() == 17 && label.starts_with('c')).then_some((principal, label))
    }

    /// The owner whose [`label`](Principal::label) this is, a client with all of a client's rights.
    pub fn of_label(label: &str) -> Option<Principal> {
        let (role, name) = label.split_once('-')?;
        let role = Role::ALL.into_iter().find(|known| known.label() == role)?;
        let node = || {
            let id: u32 = name.parse().ok()?;
            // Each id has one name.
            (id.to_string() == name).then_some(NodeId(id))
        };
        let owner = || check_owner_name(name).is_ok().then(|| name.to_owned());
        Some(match role {
            Role::Member => Principal::Member(node()?),
            Role::Witness => Principal::Witness(node()?),
            Role::Client => Principal::Client(owner()?, ClientRights::default()),
            Role::Operator => Principal::Operator(owner()?),
        })
    }
}

impl From<NodeId> for Principal {
    /// The node, as a member.
    fn from(node: NodeId) -> Principal {
        Principal::Member(node)
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Member(node) => write!(f, "{node}"),
            Principal::Witness(node) => write!(f, "witness {}", node.0),
            Principal::Client(name, _) => write!(f, "client {name:?}"),
            Principal::Operator(name) => write!(f, "operator {name:?}"),
        }
    }
}

impl ClientRights {
    fn uri(&self) -> String {
        let groups = self.groups.as_ref().map(|groups| {
            let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
            format!("groups={}", groups.join(","))
        });
        let word = |holds: bool, word: &str| holds.then(|| word.to_owned());
        let words = [groups, word(!self.commands, "read-only"), word(self.logs, "logs")];
        RIGHTS_SCHEME.to_owned() + &words.into_iter().flatten().collect::<Vec<_>>().join(";")
    }

    /// Reads the words behind the scheme of a URI: None if one is not known.
    fn parse(words: &str) -> Option<ClientRights> {
        let mut rights = ClientRights::default();
        for word in words.split(';').filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                None if word == "read-only" => rights.commands = false,
                None if word == "logs" => rights.logs = true,
                Some(("groups", names)) if rights.groups.is_none() => {
                    rights.groups = Some(names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect());
                }
                _ => return None,
            }
        }
        Some(rights)
    }

    /// Whether they cover a group.
    pub(super) fn cover(&self, group: &str) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.contains(group))
    }
}

impl fmt::Display for ClientRights {
    /// Writes them as words behind "may".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.commands { "send commands and queries" } else { "send queries" })?;
        if self.logs {
            f.write_str(" and read logs")?;
        }
        match &self.groups {
            None => f.write_str(" of all groups"),
            Some(groups) => {
                let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
                write!(f, " of {}", if groups.is_empty() { "no group".to_owned() } else { groups.join(", ") })
            }
        }
    }
}

/// The DNS name that the certificate of a member carries: see [`Principal::dns_name`].
pub fn certificate_name(cluster: &str, node: NodeId) -> String {
    Principal::Member(node).dns_name(cluster)
}

/// The part of a certificate's name that stands for the cluster.
pub(super) fn cluster_label(cluster: &str) -> String {
    format!("c{:016x}", Fingerprint::default().text(cluster).value())
}

// A label of a DNS name has at most 63 bytes, and a group's name none of the characters that separate words.
const _: () = assert!(MAX_OWNER_BYTES + "operator-".len() <= 63 && MAX_NAME_BYTES <= 64);

#[cfg(test)]
mod tests {
    use super::*;

    fn client(groups: Option<&[&str]>, commands: bool, logs: bool) -> Principal {
        let groups = groups.map(|names| names.iter().map(|&name| name.to_owned()).collect());
        Principal::Client("web".to_owned(), ClientRights { groups, commands, logs })
    }

    #[test]
    fn an_owner_is_read_back_from_the_names_of_its_certificate() {
        let nodes = [0, 7, u32::MAX].map(NodeId);
        let owners = nodes.map(Principal::Member).into_iter().chain(nodes.map(Principal::Witness)).chain([
            Principal::Operator("alice-2".to_owned()),
            client(None, true, false),
            client(None, false, true),
            client(Some(&["a.b_c", "D"]), false, false),
            client(Some(&[]), true, true),
        ]);
        for owner in owners {
            let (name, uri) = (owner.dns_name("bank"), owner.rights_uri());
            let read = Principal::of_names([name.as_str()].into_iter(), uri.as_deref().into_iter());
            assert_eq!(read, Some((owner, cluster_label("bank"))), "{name} {uri:?}");
        }
    }

    #[test]
    fn a_certificate_that_is_not_understood_is_nobodys() {
        let label = cluster_label("bank");
        let web = format!("client-web.{label}.squall");
        let read = |dns: &[&str], uris: &[&str]| Principal::of_names(dns.iter().copied(), uris.iter().copied());
        assert!(
            read(&[&web, "web.example.org"], &["https://example.org"]).is_some(),
            "names of other systems do no harm"
        );
        for first in
            ["node-01", "node-", "node-x", "client-", "client-A", "client-a.b", "king-1", "node", "operator--a"]
        {
            assert_eq!(read(&[&format!("{first}.{label}.squall")], &[]), None, "{first}");
        }
        assert_eq!(read(&[&web, &format!("operator-web.{label}.squall")], &[]), None, "one certificate has one owner");
        for uri in ["squall:root", "squall:groups=a;groups=b", "squall:logs=yes", "squall:read-only=no"] {
            assert_eq!(read(&[&web], &[uri]), None, "{uri}");
        }
        assert_eq!(read(&[&web], &["squall:logs", "squall:read-only"]), None);
        assert_eq!(
            read(&[&format!("operator-a.{label}.squall")], &["squall:read-only"]),
            None,
            "only clients have limits"
        );
    }

    #[test]
    fn owners_have_names_that_fit_a_dns_label() {
        for name in ["a", "web-1", &"x".repeat(MAX_OWNER_BYTES)] {
            assert_eq!(check_owner_name(name), Ok(()), "{name}");
        }
        for name in ["", "1a", "-a", "a-", "A", "a.b", "a_b", "ä", &"x".repeat(MAX_OWNER_BYTES + 1)] {
            assert!(check_owner_name(name).is_err(), "{name}");
        }
    }
}
