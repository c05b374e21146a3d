//! The carrier of a cluster's messages, chosen by the hosts of its members.
//!
//! All members decide alike, since all have the same list of addresses. Two members that disagreed would wait for each
//! other on different fabrics.

use std::collections::BTreeMap;

use squall_fabric::NodeId;

use super::{Address, Backend};

/// The addresses at which each member can be dialed. A member that is not in the map can't be dialed.
pub(crate) type Addresses = BTreeMap<NodeId, Vec<Address>>;

/// The way in which two members reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// The members are processes of one host.
    Shm,
    Network,
}

/// The carrier of a node's messages, which says which fabric the node opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[non_exhaustive]
#[display(rename_all = "lowercase")]
pub enum Carrier {
    /// Shared memory of one host.
    Shm,
    /// TCP, with TLS where there are keys.
    Tcp,
    /// RDMA.
    Verbs,
    /// Shared memory with members on this host. With other members, RDMA where both have a device, else TCP.
    Mixed,
}

/// The way in which `one` and `other` reach each other: the same from both sides.
///
/// They are on one host if some address of each has the same host. They are also on one host if there are no addresses
/// at all: a configuration without addresses runs all members on one host.
pub(crate) fn route(addresses: &Addresses, one: NodeId, other: NodeId) -> Route {
    let of = |node| addresses.get(&node).map_or(&[][..], Vec::as_slice);
    let (one, other) = (of(one), of(other));
    let together = one.iter().any(|one| other.iter().any(|other| one.shares_host(other)));
    if together || (addresses.is_empty() && one.is_empty() && other.is_empty()) { Route::Shm } else { Route::Network }
}

/// The number of members, `node` among them, on the host of `node`.
pub(crate) fn on_host_of(addresses: &Addresses, members: &[NodeId], node: NodeId) -> usize {
    members.iter().filter(|&&other| other == node || route(addresses, node, other) == Route::Shm).count()
}

/// The carrier of the messages of all members.
///
/// All members come to the same result. A node that finds out only on the way what it has in common with another one
/// waits until the other asks too.
pub(crate) fn carrier(backend: Backend, addresses: &Addresses) -> Carrier {
    match backend {
        Backend::Shm => Carrier::Shm,
        Backend::Tcp => Carrier::Tcp,
        Backend::Verbs => Carrier::Verbs,
        Backend::Auto => {
            // A node that knows an address may join there, from any host that can dial it.
            if addresses.is_empty() { Carrier::Shm } else { Carrier::Mixed }
        }
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    const MEMBERS: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

    /// The addresses of members 1, 2 and 3, without the members whose lists are empty.
    fn at(lists: [&[&str]; 3]) -> Addresses {
        let parsed = lists.map(|list| list.iter().map(|text| text.parse().expect(text)).collect::<Vec<_>>());
        MEMBERS.into_iter().zip(parsed).filter(|(_, list)| !list.is_empty()).collect()
    }

    fn routes(addresses: &Addresses) -> [Route; 3] {
        let pairs = [(1, 2), (1, 3), (2, 3)].map(|(a, b)| (NodeId(a), NodeId(b)));
        for (a, b) in pairs {
            assert_eq!(route(addresses, a, b), route(addresses, b, a), "both sides decide alike");
        }
        pairs.map(|(a, b)| route(addresses, a, b))
    }

    #[test]
    fn members_of_one_host_meet_in_shared_memory_and_others_on_the_network() {
        use Route::{Network, Shm};
        for (lists, expected) in [
            ([&[][..], &[], &[]], [Shm, Shm, Shm]),
            ([&["127.0.0.1:1"], &["[::1]:2"], &["localhost:3"]], [Shm, Shm, Shm]),
            ([&["10.0.0.1:1"], &["10.0.0.1:2"], &["10.0.0.2:1"]], [Shm, Network, Network]),
            ([&["a:1", "10.0.0.1:1"], &["10.0.0.1:2"], &["a:2"]], [Shm, Shm, Network]),
            ([&["10.0.0.1:1"], &["10.0.0.1:2"], &[]], [Shm, Network, Network]),
            ([&["10.0.0.1:1"], &["127.0.0.1:2"], &["10.0.0.3:1"]], [Network, Network, Network]),
        ] {
            assert_eq!(routes(&at(lists)), expected, "{lists:?}");
        }
    }

    #[test]
    fn auto_takes_shared_memory_alone_where_nobody_has_an_address() {
        for (lists, expected) in [
            ([&[][..], &[], &[]], Carrier::Shm),
            ([&["127.0.0.1:1"], &["127.0.0.1:2"], &["127.0.0.1:3"]], Carrier::Mixed),
            ([&["10.0.0.1:1"], &["10.0.0.1:2"], &["10.0.0.2:1"]], Carrier::Mixed),
        ] {
            assert_eq!(carrier(Backend::Auto, &at(lists)), expected, "{lists:?}");
        }
        assert_eq!(carrier(Backend::Tcp, &at([&["a:1"], &["a:2"], &["a:3"]])), Carrier::Tcp, "it was asked for");
    }

    #[test]
    fn a_host_s_members_are_counted() {
        let addresses = at([&["10.0.0.1:1"], &["10.0.0.1:2"], &["10.0.0.2:1"]]);
        assert_eq!(MEMBERS.map(|node| on_host_of(&addresses, &MEMBERS, node)), [2, 2, 1]);
    }
}
