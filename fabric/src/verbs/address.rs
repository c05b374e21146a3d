//! A port's address and partition: the choice among those that it has.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs},
};

use rdma_sys::ibv_port_attr;

use super::{
    config::{VerbsConfig, VerbsError},
    device::Context,
    queue::INFINIBAND,
};

/// The address of a port, as an endpoint has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortAddress {
    pub(super) gid_index: u8,
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    pub(super) pkey_index: u16,
}

/// The settings that choose an address.
#[derive(Clone, Debug)]
pub(super) struct AddressChoice {
    gid_index: Option<u8>,
    /// The addresses that the node listens at, of which the port's is to be one; none leave the choice free.
    listens: Vec<IpAddr>,
    partition_key: Option<u16>,
}

/// The directory in which the kernel describes RDMA devices.
pub(super) const CLASS: &str = "/sys/class/infiniband";

impl AddressChoice {
    pub(super) fn new(config: &VerbsConfig) -> AddressChoice {
        let resolved = config.net.listen.iter().filter_map(|listen| listen.to_socket_addrs().ok()).flatten();
        let listens = resolved.map(|listen| listen.ip().to_canonical());
        // Of these, no device has any.
        let listens = listens.filter(|ip| !ip.is_loopback() && !ip.is_unspecified()).collect();
        AddressChoice { gid_index: config.gid_index, listens, partition_key: config.partition_key }
    }

    /// The address to use of a port.
    pub(super) fn choose(
        &self,
        context: &Context,
        port: u8,
        attributes: &ibv_port_attr,
    ) -> Result<PortAddress, VerbsError> {
        let (gid_index, gid) = self.choose_gid(context, port, attributes)?;
        let pkey_index = self.choose_partition(context, port, attributes)?;
        Ok(PortAddress { gid_index, gid, lid: attributes.lid, pkey_index })
    }

    fn choose_gid(
        &self,
        context: &Context,
        port: u8,
        attributes: &ibv_port_attr,
    ) -> Result<(u8, [u8; 16]), VerbsError> {
        let device = || context.name.clone();
        let given = self.gid_index.or((attributes.link_layer == INFINIBAND).then_some(0));
        if let Some(index) = given {
            let refused =
                |error: io::Error| VerbsError::Gid { device: device(), port, index, cause: error.to_string() };
            return match context.gid(port, index) {
                Ok(gid) if gid != [0; 16] => Ok((index, gid)),
                Ok(_) => Err(refused(io::Error::other("the entry is empty"))),
                Err(error) => Err(refused(error)),
            };
        }
        let mut gids = Vec::new();
        for index in 0..u8::try_from(attributes.gid_tbl_len).unwrap_or(u8::MAX) {
            // Entries that are not in use can't be read.
            let kind = fs::read_to_string(format!("{CLASS}/{}/ports/{port}/gid_attrs/types/{index}", context.name));
            if kind.is_ok_and(|kind| kind.trim() == "RoCE v2")
                && let Ok(gid) = context.gid(port, index)
            {
                gids.push((index, gid));
            }
        }
        gids.retain(|(_, gid)| gid_rank(gid) > 0);
        if gids.is_empty() {
            return Err(VerbsError::NoGid { device: device(), port });
        }
        self.pick(&gids).ok_or_else(|| VerbsError::NoGidOf {
            device: device(),
            port,
            listens: list(self.listens.iter().map(ToString::to_string)),
            present: list(gids.iter().map(|(index, gid)| format!("{} at index {index}", ip_of(gid)))),
        })
    }

    /// The address of a table that fits: one that the node listens at; or the best, if the choice is free.
    fn pick(&self, gids: &[(u8, [u8; 16])]) -> Option<(u8, [u8; 16])> {
        if self.listens.is_empty() {
            // Of equals the first.
            return gids.iter().rev().copied().max_by_key(|(_, gid)| gid_rank(gid));
        }
        let of = |ip: &IpAddr| gids.iter().copied().find(|(_, gid)| ip_of(gid) == *ip);
        self.listens.iter().find_map(of)
    }

    fn choose_partition(&self, context: &Context, port: u8, attributes: &ibv_port_attr) -> Result<u16, VerbsError> {
        let Some(wanted) = self.partition_key else { return Ok(0) };
        let keys =
            (0..attributes.pkey_tbl_len).filter_map(|index| Some((index, context.partition_key(port, index).ok()?)));
        let keys: Vec<(u16, u16)> = keys.filter(|(_, key)| *key != 0).collect();
        pick_partition(wanted, &keys).ok_or_else(|| VerbsError::NoPartition {
            device: context.name.clone(),
            port,
            wanted,
            present: list(keys.iter().map(|(_, key)| format!("{key:#06x}"))),
        })
    }
}

/// The table's place of a partition, in which the port is a full member if it can be: the highest bit of a key says so.
fn pick_partition(wanted: u16, keys: &[(u16, u16)]) -> Option<u16> {
    const FULL: u16 = 0x8000;
    let of_it = keys.iter().filter(|(_, key)| key & !FULL == wanted & !FULL);
    of_it.max_by_key(|(_, key)| key & FULL).map(|(index, _)| *index)
}

fn list(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join(", ")
}

/// The IP address that a GID of RoCE v2 stands for.
fn ip_of(gid: &[u8; 16]) -> IpAddr {
    IpAddr::from(Ipv6Addr::from(*gid)).to_canonical()
}

/// The rank of a RoCE v2 address: routed IPv4 is best, then routed IPv6, then one of the local link; zeros are no
/// address.
fn gid_rank(gid: &[u8; 16]) -> u8 {
    match ip_of(gid) {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) | IpAddr::V6(Ipv6Addr::UNSPECIFIED) => 0,
        IpAddr::V4(_) => 3,
        IpAddr::V6(ip) if ip.is_unicast_link_local() => 1,
        IpAddr::V6(_) => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(ip: &str) -> [u8; 16] {
        match ip.parse().expect("an address") {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        }
    }

    fn listening(at: &[&str]) -> AddressChoice {
        let listens = at.iter().map(|ip| ip.parse().expect("an address")).collect();
        AddressChoice { gid_index: None, listens, partition_key: None }
    }

    #[test]
    fn routed_addresses_come_before_those_of_the_local_link() {
        let table = ["::", "fe80::1", "2001:db8::1", "10.1.0.1", "10.1.0.2"].map(gid);
        assert_eq!(table.map(|gid| gid_rank(&gid)), [0, 1, 2, 3, 3]);
        let gids: Vec<(u8, [u8; 16])> = (0..).zip(table).collect();
        assert_eq!(listening(&[]).pick(&gids), Some((3, table[3])));
    }

    #[test]
    fn the_address_is_one_that_the_node_listens_at() {
        let table = ["fe80::1", "10.1.0.1", "10.1.0.2", "2001:db8::1"].map(gid);
        let gids: Vec<(u8, [u8; 16])> = (0..).zip(table).collect();
        for (listens, found) in [
            (&["10.1.0.2"][..], Some(2)),
            (&["192.168.0.1", "2001:db8::1"], Some(3)),
            (&["fe80::1", "10.1.0.1"], Some(0)),
            (&["10.1.0.3"], None),
        ] {
            assert_eq!(listening(listens).pick(&gids).map(|(index, _)| index), found, "{listens:?}");
        }
    }

    #[test]
    fn addresses_that_no_device_has_leave_the_choice_free() {
        let mut net = crate::net::NetConfig::new("cluster", crate::NodeId(1));
        net.listen = ["127.0.0.1:1", "0.0.0.0:2", "[::1]:3", "10.1.0.1:4"].map(str::to_owned).into();
        let choice = AddressChoice::new(&VerbsConfig::new(net));
        assert_eq!(choice.listens, ["10.1.0.1".parse::<IpAddr>().expect("an address")]);
    }

    #[test]
    fn a_partition_is_found_by_its_number_and_with_full_rights() {
        let keys = [(0, 0xffff), (1, 0x0001), (2, 0x8001)];
        assert_eq!(pick_partition(0xffff, &keys), Some(0));
        assert_eq!(pick_partition(0x0001, &keys), Some(2));
        assert_eq!(pick_partition(0x8001, &keys[..2]), Some(1));
        assert_eq!(pick_partition(0x0002, &keys), None);
    }
}
