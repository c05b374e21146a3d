//! The addresses of members, and the protection of their ports.

use std::ops::RangeInclusive;

use squall_fabric::NodeId;

use super::{
    Address, Backend, Config, ConfigError, KeyFiles, Security, TcpOptions,
    carrier::{self, Addresses, Carrier},
    draft::Draft,
    membership::Membership,
    security::Protection,
    settings::{Setting, with_id},
};

/// The most addresses of a member: more are likely a slip.
const MAX_ADDRESSES: usize = 8;

/// The limits of a socket's buffers, in bytes.
const BUFFERS: RangeInclusive<usize> = 4 << 10..=1 << 30;

/// The choice of the RDMA device, and what its packets carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsOptions {
    /// The device's name, such as `mlx5_0`; None for the first with an active port. `{id}` in it stands for the node's
    /// id.
    pub device: Option<String>,
    /// The number of its port, from 1; None for the first that is active.
    pub port: Option<u8>,
    /// The index of its GID; None for one of RoCE v2 that the node listens at, as far as it listens at certain
    /// addresses.
    pub gid_index: Option<u8>,
    /// The traffic class of the packets: on RoCE their DSCP, times 4.
    pub traffic_class: u8,
    /// The service level of the packets, 0 to 15.
    pub service_level: u8,
    /// The partition's key (P_Key); None for the first that the port has.
    pub partition_key: Option<u16>,
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

impl Draft {
    /// Checks the settings of the network. Contacts of `membership` that are known by their addresses are replaced by
    /// their nodes.
    pub(super) fn check_network(
        &self,
        me: NodeId,
        members: &[NodeId],
        membership: &mut Membership,
    ) -> Result<Network, ConfigError> {
        let node = &self.node;
        let backend = node.backend.value.unwrap_or_default();
        let addresses = self.check_addresses(&membership.known(me, members))?;
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
        let listen = parse_all(&node.listen)?.unwrap_or_else(|| own.clone());
        let security = self.check_security(me)?;
        if carrier != Carrier::Shm {
            if membership.join.is_empty() {
                self.check_reachable(&known, &addresses)?;
            }
            match (listen.first(), own.first()) {
                (None, Some(own)) if node.listen.value.is_some() => {
                    return Err(node.listen.error(format!(
                        "is empty, but the others dial {own}: leave it out, or remove this node's address from `[addresses]`"
                    )));
                }
                // The others would wait for this node's call, and this node for theirs.
                (Some(address), None) if members.len() > 1 => {
                    return Err(node.listen.error(format!(
                        "is {address}, but no other member is told where {me} is: give it an address in `[addresses]`, or let it \
                         listen nowhere (`listen = []`, or SQUALL_LISTEN with nothing in it), so that it dials all others"
                    )));
                }
                _ => {}
            }
            if security == Security::LoopbackOnly {
                self.check_loopback(me, &listen)?;
            }
        }
        let (tcp, verbs) = (self.check_tcp()?, self.check_verbs(me)?);
        Ok(Network { backend, carrier, addresses, listen, security, tcp, verbs })
    }

    /// Checks the addresses. Nodes that are not known may have some only if they may join.
    fn check_addresses(&self, known: &[NodeId]) -> Result<Addresses, ConfigError> {
        let mut addresses = Addresses::new();
        for (&id, listed) in self.addresses.value.iter().flatten() {
            if !known.contains(&NodeId(id)) && !self.node.is_open() {
                let problem = "is of no member: add the id to `members`, or remove the address";
                return Err(listed.error(problem));
            }
            let list = parse_all(listed)?.unwrap_or_default();
            if list.is_empty() || list.len() > MAX_ADDRESSES {
                return Err(listed.error(format!(
                    "lists {} addresses: give 1 to {MAX_ADDRESSES}, or leave it out if no node can dial this one",
                    list.len()
                )));
            }
            if let Some(wildcard) = list.iter().find(|address| address.is_wildcard()) {
                return Err(listed.error(format!(
                    "is {wildcard}, which no node can dial: give an address of its host here, and `listen = \"{wildcard}\"`"
                )));
            }
            for (other, theirs) in &addresses {
                if let Some(twice) = list.iter().find(|address| theirs.contains(address)) {
                    let problem = format!("is {twice}, as that of {other}: give each node an address of its own");
                    return Err(listed.error(problem));
                }
            }
            addresses.insert(NodeId(id), list);
        }
        Ok(addresses)
    }

    /// Checks that of any two members on a network one can dial the other.
    fn check_reachable(&self, members: &[NodeId], addresses: &Addresses) -> Result<(), ConfigError> {
        let mut silent = members.iter().filter(|member| !addresses.contains_key(member));
        let (Some(one), Some(other)) = (silent.next(), silent.next()) else { return Ok(()) };
        let place = if self.addresses.value.is_some() { &self.addresses.place } else { &self.node.backend.place };
        let problem = format!(
            "says neither where {one} listens nor where {other} does, so they can't meet: give both, such as `{0} = \
             \"10.0.0.{0}:7700\"`",
            one.0
        );
        Err(ConfigError::value(place, &self.addresses.key, problem))
    }

    fn check_security(&self, me: NodeId) -> Result<Security, ConfigError> {
        let node = &self.node;
        let mode = if node.security.value.is_some() { &node.security } else { &node.security_mode };
        let keys = [&node.ca, &node.certificate, &node.key];
        let lists = [&node.crl, &node.denied];
        let given = keys.into_iter().chain(lists).find(|key| key.value.is_some());
        match (mode.value, given) {
            (None, None) => return Ok(Security::LoopbackOnly),
            (Some(Protection::None), None) => return Ok(Security::None),
            (Some(Protection::None), Some(key)) => {
                return Err(key.error("is given, but `security` is \"none\": remove the one or the other"));
            }
            (Some(Protection::Tls) | None, _) => {}
        }
        let place = given.map_or(&mode.place, |key| &key.place);
        let [ca, certificate, key] = keys.map(|key| {
            let path = key.path(me, "is empty: give the path of a PEM file")?;
            let problem = "is missing: TLS needs `ca`, `certificate` and `key`; `squall keys` makes them";
            path.ok_or_else(|| ConfigError::value(place, &key.key, problem))
        });
        let [crl, denied] = lists.map(|list| list.path(me, "is empty: give the path of a file"));
        Ok(Security::Tls(KeyFiles { crl: crl?, denied: denied?, ..KeyFiles::new(ca?, certificate?, key?) }))
    }

    /// Checks that a node without protection listens only where no other host can reach it.
    fn check_loopback(&self, me: NodeId, listen: &[Address]) -> Result<(), ConfigError> {
        // A name is looked up when the node starts.
        let open = listen.iter().find(|address| address.ip().is_some() && !address.is_loopback());
        let Some(open) = open else { return Ok(()) };
        let own = self.addresses.value.as_ref().and_then(|table| table.get(&me.0));
        let setting = own.filter(|_| self.node.listen.value.is_none()).unwrap_or(&self.node.listen);
        Err(setting.error(format!(
            "is {open}, which other hosts can reach, and nothing protects it: make keys with `squall keys` and name them in \
             `[security]`, or write `security = \"none\"` if only this cluster is on that network"
        )))
    }

    fn check_tcp(&self) -> Result<TcpOptions, ConfigError> {
        let size = |setting: &Setting<usize>| {
            let problem = |&size: &usize| {
                let (is, range) = (squall_units::show_size(size), squall_units::show_sizes(BUFFERS));
                format!("is {is}: give {range}, or leave it out to let the system choose")
            };
            setting.check(|size| BUFFERS.contains(size), problem)?;
            Ok(setting.value)
        };
        Ok(TcpOptions {
            send_buffer_bytes: size(&self.node.send_buffer_bytes)?,
            receive_buffer_bytes: size(&self.node.receive_buffer_bytes)?,
        })
    }

    fn check_verbs(&self, me: NodeId) -> Result<VerbsOptions, ConfigError> {
        let node = &self.node;
        let problem = "is empty: give a device such as \"mlx5_0\" (`squall doctor` lists them), or leave it out";
        node.device.check(|name| !name.is_empty(), |_| problem)?;
        node.port.check(|&port| port > 0, |_| "is 0: a device's ports are counted from 1")?;
        node.service_level.check(|&level| level < 16, |_| "is above 15: verbs count service levels in 4 bits")?;
        node.partition_key.check(
            |&key| key & 0x7fff != 0,
            |_| "has no partition's number: its lowest 15 bits are 0 (32767, or 65535, is the default partition)",
        )?;
        Ok(VerbsOptions {
            device: node.device.value.as_ref().map(|name| with_id(name, me)),
            port: node.port.value,
            gid_index: node.gid_index.value,
            traffic_class: node.traffic_class.value.unwrap_or(0),
            service_level: node.service_level.value.unwrap_or(0),
            partition_key: node.partition_key.value,
        })
    }
}

impl Config {
    /// Returns the number of members on this host, this node included, as far as the addresses say.
    pub(crate) fn members_here(&self) -> usize {
        carrier::on_host_of(&self.network.addresses, &self.members, self.id)
    }
}

fn parse_all(setting: &Setting<Vec<String>>) -> Result<Option<Vec<Address>>, ConfigError> {
    let parse = |text: &String| text.parse().map_err(|remedy| setting.error(format!("is {text:?}: {remedy}")));
    setting.value.as_ref().map(|list| list.iter().map(parse).collect()).transpose()
}
