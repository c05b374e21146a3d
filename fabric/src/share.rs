//! Fair shares of what a node has for its callers: places, streams, bytes.
//!
//! One rule holds for all of them. What is shared counts for a [`Holder`]: the owner of a certificate, or a network
//! where there are no certificates. Nodes and operators may take all that there is. The others together leave them a
//! quarter, and each leaves the rest of the others as much as it has itself. So one holder has half of what is for all,
//! with as many connections as it likes, and there is room for the next one.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use crate::Fingerprint;

/// A network whose addresses count as one caller: an IPv4 address, or the /64 of an IPv6 address, which is what one
/// host gets at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
#[display("{_0}")]
pub struct CallerNetwork(IpAddr);

impl CallerNetwork {
    /// The network of an address. An IPv4 address that is written as an IPv6 one counts as itself.
    pub fn of(address: IpAddr) -> CallerNetwork {
        CallerNetwork(match address.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
        })
    }
}

/// The party for which a caller's share counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    /// The cluster's nodes and operators, and processes of this user.
    #[default]
    Trusted,
    /// An address where nodes or operators are, before the caller has shown its certificate.
    Known(IpAddr),
    /// An address where clients are, before the caller has shown its certificate.
    KnownClient(IpAddr),
    /// The client with this name.
    Client(Arc<str>),
    /// A network of which nothing is known.
    Network(CallerNetwork),
}

impl Holder {
    /// A number of the holder, for tables that all replicas have: 0 for those that may have all there is.
    pub fn number(&self) -> u64 {
        let text = match self {
            Holder::Trusted => return 0,
            Holder::Client(name) => format!("client {name}"),
            Holder::Known(address) | Holder::KnownClient(address) => format!("address {address}"),
            Holder::Network(network) => format!("network {network}"),
        };
        Fingerprint::default().text(&text).value().max(1)
    }
}

/// The part of what is shared, as `1 / OWN_PART`, that only trusted holders get.
const OWN_PART: usize = 4;

/// The most of `most` that all but trusted holders may have together.
pub fn for_others(most: usize) -> usize {
    most - most / OWN_PART
}

/// A count of what holders have of something that is shared.
#[derive(Debug)]
pub struct Shares {
    most: usize,
    held: BTreeMap<Holder, usize>,
    total: usize,
    trusted: usize,
}

impl Shares {
    /// Shares of `most` in all.
    pub fn new(most: usize) -> Shares {
        Shares { most, held: BTreeMap::new(), total: 0, trusted: 0 }
    }

    /// The sum of what is held.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Whether a holder may have `more` beside what it has, as far as its own share goes. A holder that has nothing may
    /// have anything.
    pub fn is_within(&self, holder: &Holder, more: usize) -> bool {
        let held = self.held.get(holder).copied().unwrap_or(0);
        let left = for_others(self.most).saturating_sub(self.others());
        *holder == Holder::Trusted || held == 0 || held.saturating_add(more) <= left
    }

    /// Whether there is room for `more` now. All of it is free for one request, however large.
    pub fn has_room(&self, holder: &Holder, more: usize) -> bool {
        let is_for_all = *holder == Holder::Trusted || self.is_for_others(more);
        self.total == 0 || self.total.saturating_add(more) <= self.most && is_for_all
    }

    /// Whether one that is not trusted may have `more` as far as the others like it are concerned, so that at most what
    /// trusted holders have is in its way. One that is alone may have more than the part of all of them.
    pub fn is_for_others(&self, more: usize) -> bool {
        self.others() == 0 || self.others().saturating_add(more) <= for_others(self.most)
    }

    /// Gives a holder `more`, if its share and the room permit it. Returns whether they do.
    #[must_use]
    pub fn take(&mut self, holder: &Holder, more: usize) -> bool {
        if !self.is_within(holder, more) || !self.has_room(holder, more) {
            return false;
        }
        self.total += more;
        match holder {
            Holder::Trusted => self.trusted += more,
            holder => match self.held.get_mut(holder) {
                Some(held) => *held += more,
                None => _ = self.held.insert(holder.clone(), more),
            },
        }
        true
    }

    /// Takes back what a holder has had.
    pub fn give_back(&mut self, holder: &Holder, some: usize) {
        self.total -= some;
        match self.held.get_mut(holder) {
            None => self.trusted -= some,
            Some(held) => {
                *held -= some;
                if *held == 0 {
                    self.held.remove(holder);
                }
            }
        }
    }

    /// The sum of what others than trusted holders have.
    fn others(&self) -> usize {
        self.total - self.trusted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(name: &str) -> Holder {
        Holder::Client(name.into())
    }

    /// Takes as many as there are, one by one.
    fn fill(shares: &mut Shares, holder: &Holder) -> usize {
        (0..100_000).take_while(|_| shares.take(holder, 1)).count()
    }

    #[test]
    fn ten_thousand_connections_of_one_client_leave_room_for_clients_and_more_for_nodes() {
        let mut shares = Shares::new(1024);
        assert_eq!(fill(&mut shares, &client("greedy")), 384);
        assert_eq!(fill(&mut shares, &client("second")), 192);
        assert!(shares.take(&client("third"), 1));
        assert_eq!(fill(&mut shares, &Holder::Trusted), 1024 - 384 - 192 - 1, "nodes may have all the rest");
        assert!(!shares.take(&client("fourth"), 1));
        shares.give_back(&Holder::Trusted, 1);
        assert!(shares.take(&client("fourth"), 1));
    }

    #[test]
    fn a_crowd_of_networks_leaves_nodes_their_room() {
        let mut shares = Shares::new(1024);
        let network = |number: u32| Holder::Network(CallerNetwork::of(IpAddr::V4(number.into())));
        let admitted = (0..10_000).filter(|&number| shares.take(&network(number), 1)).count();
        assert_eq!(admitted, 768);
        assert_eq!(fill(&mut shares, &Holder::Trusted), 256);
    }

    #[test]
    fn holders_have_numbers_that_tell_them_apart() {
        let network = CallerNetwork::of("192.0.2.1".parse().unwrap());
        assert_eq!(Holder::Trusted.number(), 0);
        let numbers = [client("web"), client("192.0.2.1"), Holder::Network(network)].map(|holder| holder.number());
        assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2] && !numbers.contains(&0));
        assert_eq!(client("web").number(), numbers[0], "at every node");
    }

    #[test]
    fn addresses_of_one_host_are_one_holder() {
        let of = |text: &str| CallerNetwork::of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::7"), of("2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert_ne!(of("2001:db8:1:2::7"), of("2001:db8:1:3::7"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("::ffff:192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("2001:db8:1:2::7").to_string(), "2001:db8:1:2::");
    }

    #[test]
    fn a_request_of_nearly_all_fits_beside_a_few_bytes_of_nodes() {
        let mut shares = Shares::new(100);
        assert!(shares.take(&Holder::Trusted, 10));
        assert!(shares.take(&client("large"), 90));
        assert!(!shares.take(&client("small"), 1) && !shares.take(&Holder::Trusted, 1));
        shares.give_back(&client("large"), 90);
        assert!(shares.take(&client("small"), 1) && !shares.take(&client("large"), 80));
    }

    #[test]
    fn one_large_request_fits_alone_and_small_ones_beside_a_share() {
        let mut shares = Shares::new(100);
        assert!(shares.take(&client("large"), 1000));
        assert!(!shares.take(&client("small"), 1) && !shares.take(&Holder::Trusted, 1));
        shares.give_back(&client("large"), 1000);
        assert!(shares.take(&client("one"), 37) && !shares.take(&client("one"), 2));
        assert!(shares.take(&client("two"), 38), "a holder that has nothing takes what there is");
        assert!(!shares.take(&client("three"), 1) && shares.take(&Holder::Trusted, 25));
        for (holder, bytes) in [(client("one"), 37), (client("two"), 38), (Holder::Trusted, 25)] {
            shares.give_back(&holder, bytes);
        }
        assert_eq!(shares.total(), 0);
        assert!(shares.held.is_empty());
    }
}
