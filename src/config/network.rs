//! The addresses of members, and the protection of their ports.

use std::{collections::BTreeMap, ops::RangeInclusive, path::PathBuf};

use squall_fabric::NodeId;

use super::{
    Address, Backend, Config, ConfigError, KeyFiles, Security, TcpOptions, ValuePlace, VerbsOptions, bytes,
    carrier::{self, Addresses, Carrier, Route},
    draft::{Given, value_error},
    membership::Membership,
    security::Protection,
};

/// The most addresses of a member: more are likely a slip.
const MAX_ADDRESSES: usize = 8;

/// The limits of a socket's buffers, in bytes.
const BUFFERS: RangeInclusive<usize> = 4 << 10..=1 << 30;

/// The settings of the network as given, unchecked.
#[derive(Clone, Debug, Default)]
pub(super) struct NetworkDraft {
    pub(super) backend: Option<Given<Backend>>,
    /// The addresses by member.
    pub(super) addresses: Option<Given<BTreeMap<u32, Given<Vec<String>>>>>,
    pub(super) listen: Option<Given<Vec<String>>>,
    pub(super) security: Option<Given<Protection>>,
    pub(super) ca: Option<Given<PathBuf>>,
    pub(super) certificate: Option<Given<PathBuf>>,
    pub(super) key: Option<Given<PathBuf>>,
    pub(super) send_buffer_bytes: Option<Given<usize>>,
    pub(super) receive_buffer_bytes: Option<Given<usize>>,
    pub(super) device: Option<Given<String>>,
    pub(super) port: Option<Given<u8>>,
    pub(super) gid_index: Option<Given<u8>>,
}

/// The settings of the network, checked: a part of [`Config`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Network {
    pub(super) backend: Backend,
    pub(super) carrier: Carrier,
    pub(super) addresses: Addresses,
    pub(super) listen: Vec<Address>,
    pub(super) security: Security,
    pub(super) tcp: TcpOptions,
    pub(super) verbs: VerbsOptions,
}

impl NetworkDraft {
    /// Returns the members, where only their addresses are listed.
    pub(super) fn members(&self) -> Option<Given<Vec<u32>>> {
        let given = self.addresses.as_ref()?;
        Some(Given { value: given.value.keys().copied().collect(), place: given.place.clone() })
    }

    /// Checks the settings. `place` is where a missing value should have been. Contacts of `membership` that are known
    /// by their addresses are replaced by their nodes. With `is_open`, nodes that are not listed may have addresses,
    /// for when they join.
    pub(super) fn check(
        &self,
        place: &ValuePlace,
        me: NodeId,
        members: &[NodeId],
        membership: &mut Membership,
        is_open: bool,
    ) -> Result<Network, ConfigError> {
        let backend = self.backend.as_ref().map(|given| given.value).unwrap_or_default();
        let addresses = self.check_addresses(&membership.known(me, members), is_open)?;
        let owner =
            |address: &Address| addresses.iter().find(|(_, list)| list.contains(address)).map(|(&node, _)| node);
        let is_elsewhere = membership.resolve(owner);
        let known = membership.known(me, members);
        let carrier = match carrier::carrier(backend, &addresses) {
            // A node that is dialed must have a port.
            Carrier::Shm if backend == Backend::Auto && is_elsewhere => Carrier::Mixed,
            carrier => carrier,
        };
        let own = addresses.get(&me).cloned().unwrap_or_default();
        let listen = match &self.listen {
            Some(given) => parse_all(given, "listen")?,
            None => own.clone(),
        };
        let security = self.check_security(me)?;
        if carrier != Carrier::Shm {
            if membership.join.is_empty() {
                self.check_reachable(place, &known, &addresses)?;
            }
            if let Some(given) = self.listen.as_ref().filter(|_| listen.is_empty() && !own.is_empty()) {
                let problem = format!(
                    "is empty, but the others dial {}: leave it out, or remove this node's address from `[addresses]`",
                    own[0]
                );
                return Err(given.error("listen", problem));
            }
            // The others would wait for this node's call, and this node for theirs.
            if let Some(given) =
                self.listen.as_ref().filter(|_| !listen.is_empty() && own.is_empty() && members.len() > 1)
            {
                let problem = format!(
                    "is {}, but no other member is told where {me} is: give it an address in `[addresses]`, or let it listen \
                     nowhere (`listen = []`, or SQUALL_LISTEN with nothing in it), so that it dials all others",
                    listen[0]
                );
                return Err(given.error("listen", problem));
            }
            if security == Security::LoopbackOnly {
                self.check_loopback(place, me, &listen)?;
            }
        }
        let (tcp, verbs) = (self.check_tcp()?, self.check_verbs(me)?);
        Ok(Network { backend, carrier, addresses, listen, security, tcp, verbs })
    }

    fn check_addresses(&self, known: &[NodeId], is_open: bool) -> Result<Addresses, ConfigError> {
        let mut addresses = Addresses::new();
        for (&id, given) in self.addresses.iter().flat_map(|given| &given.value) {
            let key = format!("addresses.{id}");
            if !known.contains(&NodeId(id)) && !is_open {
                let problem = "is of no member: add the id to `members`, or remove the address";
                return Err(given.error(key, problem));
            }
            let list = parse_all(given, &key)?;
            if list.is_empty() || list.len() > MAX_ADDRESSES {
                let problem = format!(
                    "lists {} addresses: give 1 to {MAX_ADDRESSES}, or leave it out if nobody can dial this node",
                    list.len()
                );
                return Err(given.error(key, problem));
            }
            if let Some(wildcard) = list.iter().find(|address| address.is_wildcard()) {
                let problem = format!(
                    "is {wildcard}, which nobody can dial: give an address of its host here, and `listen = \"{wildcard}\"`"
                );
                return Err(given.error(key, problem));
            }
            for (other, theirs) in &addresses {
                if let Some(twice) = list.iter().find(|address| theirs.contains(address)) {
                    let problem = format!("is {twice}, as that of {other}: give each node an address of its own");
                    return Err(given.error(key, problem));
                }
            }
            addresses.insert(NodeId(id), list);
        }
        Ok(addresses)
    }

    /// Checks that of any two members on a network one can dial the other.
    fn check_reachable(
        &self,
        place: &ValuePlace,
        members: &[NodeId],
        addresses: &Addresses,
    ) -> Result<(), ConfigError> {
        let mut silent = members.iter().filter(|member| !addresses.contains_key(member));
        let (Some(one), Some(other)) = (silent.next(), silent.next()) else { return Ok(()) };
        let place = match (&self.addresses, &self.backend) {
            (Some(given), _) => &given.place,
            (None, Some(given)) => &given.place,
            (None, None) => place,
        };
        let problem = format!(
            "says neither where {one} listens nor where {other} does, so they can't meet: give both, such as `{0} = \
             \"10.0.0.{0}:7700\"`",
            one.0
        );
        Err(value_error(place, "addresses", problem))
    }

    fn check_security(&self, me: NodeId) -> Result<Security, ConfigError> {
        let keys = [("ca", &self.ca), ("certificate", &self.certificate), ("key", &self.key)];
        let some = keys.iter().find_map(|(name, given)| Some((name, given.as_ref()?)));
        match (&self.security, some) {
            (None, None) => return Ok(Security::LoopbackOnly),
            (Some(Given { value: Protection::None, .. }), None) => return Ok(Security::None),
            (Some(Given { value: Protection::None, .. }), Some((name, given))) => {
                let problem = "is given, but `security` is \"none\": remove the one or the other";
                return Err(given.error(format!("security.{name}"), problem));
            }
            (Some(Given { value: Protection::Tls, .. }) | None, _) => {}
        }
        let place = some.map(|(_, given)| &given.place).or(self.security.as_ref().map(|given| &given.place));
        let path = |name: &str, given: &Option<Given<PathBuf>>| match (given, place) {
            (Some(given), _) if given.value.as_os_str().is_empty() => {
                Err(given.error(format!("security.{name}"), "is empty: give the path of a PEM file"))
            }
            (Some(given), _) => Ok(given.value.clone()),
            (None, place) => {
                let problem = "is missing: TLS needs `ca`, `certificate` and `key`; `squall keys` makes them";
                Err(value_error(place.unwrap_or(&ValuePlace::Builder), format!("security.{name}"), problem))
            }
        };
        let [ca, certificate, key] = keys.map(|(name, given)| path(name, given));
        Ok(Security::Tls(KeyFiles { ca: ca?, certificate: certificate?, key: key? }.of(me)))
    }

    /// Checks that a node without protection listens only where no other host can reach it.
    fn check_loopback(&self, place: &ValuePlace, me: NodeId, listen: &[Address]) -> Result<(), ConfigError> {
        // A name is looked up when the node starts.
        let open = listen.iter().find(|address| address.ip().is_some() && !address.is_loopback());
        let Some(open) = open else { return Ok(()) };
        let own = || Some(&self.addresses.as_ref()?.value.get(&me.0)?.place);
        let (key, place) = match &self.listen {
            Some(given) => ("listen".to_owned(), &given.place),
            None => (format!("addresses.{}", me.0), own().unwrap_or(place)),
        };
        let problem = format!(
            "is {open}, which others can reach, and nothing protects it: make keys with `squall keys` and name them in \
             `[security]`, or write `security = \"none\"` if nobody else is on that network"
        );
        Err(value_error(place, key, problem))
    }

    fn check_tcp(&self) -> Result<TcpOptions, ConfigError> {
        let size = |given: &Option<Given<usize>>, name: &str| match given {
            Some(given) if !BUFFERS.contains(&given.value) => {
                let problem = format!(
                    "is {}: give {} to {}, or leave it out to let the system choose",
                    bytes::show(given.value),
                    bytes::show(*BUFFERS.start()),
                    bytes::show(*BUFFERS.end())
                );
                Err(given.error(format!("fabric.tcp.{name}"), problem))
            }
            given => Ok(given.as_ref().map(|given| given.value)),
        };
        Ok(TcpOptions {
            send_buffer_bytes: size(&self.send_buffer_bytes, "send_buffer_bytes")?,
            receive_buffer_bytes: size(&self.receive_buffer_bytes, "receive_buffer_bytes")?,
        })
    }

    fn check_verbs(&self, me: NodeId) -> Result<VerbsOptions, ConfigError> {
        if let Some(given) = self.device.as_ref().filter(|given| given.value.is_empty()) {
            let problem = "is empty: give a device such as \"mlx5_0\" (`squall doctor` lists them), or leave it out";
            return Err(given.error("fabric.verbs.device", problem));
        }
        if let Some(given) = self.port.as_ref().filter(|given| given.value == 0) {
            return Err(given.error("fabric.verbs.port", "is 0: a device's ports are counted from 1"));
        }
        Ok(VerbsOptions {
            device: self.device.as_ref().map(|given| with_id(&given.value, me)),
            port: self.port.as_ref().map(|given| given.value),
            gid_index: self.gid_index.as_ref().map(|given| given.value),
        })
    }
}

impl Config {
    /// Returns the other members on this node's host.
    pub(crate) fn members_beside(&self) -> impl Iterator<Item = NodeId> {
        let others = self.members.iter().copied().filter(|&member| member != self.id);
        others.filter(|&member| carrier::route(&self.network.addresses, self.id, member) == Route::Shm)
    }

    /// Returns the number of members on this host, this node included.
    pub(crate) fn members_here(&self) -> usize {
        carrier::on_host_of(&self.network.addresses, &self.members, self.id)
    }
}

/// Returns a text that all nodes share, with this node's id in the place of `{id}`.
pub(super) fn with_id(text: &str, me: NodeId) -> String {
    text.replace("{id}", &me.0.to_string())
}

fn parse_all(given: &Given<Vec<String>>, key: &str) -> Result<Vec<Address>, ConfigError> {
    let parse = |text: &String| text.parse().map_err(|remedy| given.error(key, format!("is {text:?}: {remedy}")));
    given.value.iter().map(parse).collect()
}

/// Reads a [`Backend`].
pub(super) fn backend(text: &str) -> Result<Backend, String> {
    match text {
        "auto" => Ok(Backend::Auto),
        "shm" => Ok(Backend::Shm),
        "tcp" => Ok(Backend::Tcp),
        "verbs" if cfg!(feature = "verbs") => Ok(Backend::Verbs),
        "verbs" => {
            Err("is \"verbs\", which this program was built without: build it with squall's feature `verbs` (which \
                        needs libibverbs), or give \"tcp\""
                .into())
        }
        _ => Err(format!("is {text:?}: give \"auto\", \"shm\", \"tcp\" or \"verbs\"")),
    }
}
