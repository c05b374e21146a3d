//! The carrier of a cluster's messages, and the number of members that most likely share a host.
//!
//! All members decide alike, since all have the same list of addresses. Two members that disagreed would wait for each
//! other on different fabrics.

use std::collections::BTreeMap;

use squall_fabric::NodeId;

use super::{Address, Backend};

/// The addresses at which each member can be dialed. A member that is not in the map can't be dialed.
pub(crate) type Addresses = BTreeMap<NodeId, Vec<Address>>;

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
    /// Shared memory with members that turn out to be on this host. With others, RDMA where both have a device, else
    /// TCP.
    Mixed,
}

/// The number of members, `node` among them, that are on the host of `node` by the spelling of their addresses: an
/// estimate of how many share its cores.
///
/// Members are on one host if some address of each has the same host. A configuration without addresses runs all
/// members on one host.
pub(crate) fn on_host_of(addresses: &Addresses, members: &[NodeId], node: NodeId) -> usize {
    let of = |node| addresses.get(&node).map_or(&[][..], Vec::as_slice);
    let own = of(node);
    let is_beside = |other| of(other).iter().any(|theirs| own.iter().any(|own| own.shares_host(theirs)));
    members.iter().filter(|&&other| other == node || addresses.is_empty() || is_beside(other)).count()
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
        for (lists, expected) in [
            ([&[][..], &[], &[]], [3, 3, 3]),
            ([&["127.0.0.1:1"], &["[::1]:2"], &["localhost:3"]], [3, 3, 3]),
            ([&["10.0.0.1:1"], &["10.0.0.1:2"], &["10.0.0.2:1"]], [2, 2, 1]),
            ([&["a:1", "10.0.0.1:1"], &["10.0.0.1:2"], &["a:2"]], [3, 2, 2]),
            ([&["10.0.0.1:1"], &["10.0.0.1:2"], &[]], [2, 2, 1]),
            ([&["10.0.0.1:1"], &["127.0.0.1:2"], &["10.0.0.3:1"]], [1, 1, 1]),
        ] {
            let addresses = at(lists);
            assert_eq!(MEMBERS.map(|node| on_host_of(&addresses, &MEMBERS, node)), expected, "{lists:?}");
        }
    }
}
