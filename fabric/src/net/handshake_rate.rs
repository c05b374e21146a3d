//! The rate of TLS handshakes. Each costs signatures, which any stranger can ask for.

use std::{collections::BTreeMap, time::Instant};

use crate::share::Holder;

/// The handshakes of networks of which nothing is known. A host that restarts with hundreds of clients needs some; a
/// core does some thousands a second, and all strangers together get a small part of one.
const OF_STRANGERS: Rates =
    Rates { each: Rate { burst: 256.0, per_second: 128.0 }, all: Rate { burst: 1024.0, per_second: 512.0 } };

/// The handshakes of addresses of clients: as many again, which strangers can't take.
const OF_CLIENTS: Rates = OF_STRANGERS;

/// The handshakes of addresses of nodes and operators: a cluster that forms has some for each pair of endpoints.
const OF_KNOWN: Rates =
    Rates { each: Rate { burst: 1024.0, per_second: 256.0 }, all: Rate { burst: 4096.0, per_second: 1024.0 } };

/// The number of holders of each kind whose rates are kept.
const MAX_HOLDERS: usize = 4096;

#[derive(Clone, Copy)]
struct Rate {
    burst: f64,
    per_second: f64,
}

/// The rates of one kind of holder.
#[derive(Clone, Copy)]
struct Rates {
    each: Rate,
    all: Rate,
}

/// A bucket that fills with tokens at a rate, of which each handshake takes one.
#[derive(Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full(rate: Rate, now: Instant) -> Bucket {
        Bucket { tokens: rate.burst, at: now }
    }

    fn fill(&mut self, rate: Rate, now: Instant) {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + since * rate.per_second).min(rate.burst);
        self.at = self.at.max(now);
    }
}

/// The handshakes that holders of one kind may begin.
struct KindRate {
    rates: Rates,
    all: Bucket,
    each: BTreeMap<Holder, Bucket>,
}

impl KindRate {
    fn new(rates: Rates, now: Instant) -> KindRate {
        KindRate { rates, all: Bucket::full(rates.all, now), each: BTreeMap::new() }
    }

    fn permits(&mut self, holder: &Holder, now: Instant) -> bool {
        self.all.fill(self.rates.all, now);
        // A flood from everywhere costs no look at its networks.
        if self.all.tokens < 1.0 {
            return false;
        }
        if self.each.len() >= MAX_HOLDERS && !self.each.contains_key(holder) {
            self.forget_quiet(now);
        }
        let rate = self.rates.each;
        let bucket = self.each.entry(holder.clone()).or_insert_with(|| Bucket::full(rate, now));
        bucket.fill(rate, now);
        if bucket.tokens < 1.0 {
            return false;
        }
        bucket.tokens -= 1.0;
        self.all.tokens -= 1.0;
        true
    }

    /// Forgets the holders whose buckets are full again, or all: the limit of all together holds in any case.
    fn forget_quiet(&mut self, now: Instant) {
        let rate = self.rates.each;
        self.each.retain(|_, bucket| {
            bucket.fill(rate, now);
            bucket.tokens < rate.burst
        });
        if self.each.len() >= MAX_HOLDERS {
            self.each.clear();
        }
    }
}

/// The handshakes that may begin.
pub(super) struct HandshakeRate {
    strangers: KindRate,
    clients: KindRate,
    known: KindRate,
}

impl HandshakeRate {
    pub(super) fn new(now: Instant) -> HandshakeRate {
        HandshakeRate {
            strangers: KindRate::new(OF_STRANGERS, now),
            clients: KindRate::new(OF_CLIENTS, now),
            known: KindRate::new(OF_KNOWN, now),
        }
    }

    /// Whether a connection of this holder may begin a handshake now. If so, it counts.
    pub(super) fn permits(&mut self, holder: &Holder, now: Instant) -> bool {
        let kind = match holder {
            Holder::Network(_) => &mut self.strangers,
            Holder::KnownClient(_) | Holder::Client(_) => &mut self.clients,
            Holder::Known(_) | Holder::Trusted => &mut self.known,
        };
        kind.permits(holder, now)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{IpAddr, Ipv6Addr},
        time::Duration,
    };

    use super::*;
    use crate::share::CallerNetwork;

    /// The holder of a known address with this number.
    fn known(host: u8) -> Holder {
        Holder::Known(IpAddr::from([192, 0, 2, host]))
    }

    /// The holder of an address in the /64 with this number.
    fn stranger(network: u64, host: u64) -> Holder {
        let bits = u128::from(network) << 64 | u128::from(host);
        Holder::Network(CallerNetwork::of(IpAddr::V6(Ipv6Addr::from_bits((0x2001_u128 << 112) | bits))))
    }

    fn permitted(rate: &mut HandshakeRate, now: Instant, holders: impl Iterator<Item = Holder>) -> usize {
        holders.filter(|holder| rate.permits(holder, now)).count()
    }

    #[test]
    fn many_addresses_of_a_64_are_one_flood_and_leave_others_their_handshakes() {
        let start = Instant::now();
        let mut rate = HandshakeRate::new(start);
        let flood = || (0..10_000).map(|host| stranger(1, host));
        assert_eq!(permitted(&mut rate, start, flood()), 256);
        assert!(rate.permits(&stranger(2, 0), start));
        let later = start + Duration::from_secs(1);
        assert_eq!(permitted(&mut rate, later, flood()), 128);
        assert_eq!(permitted(&mut rate, later + Duration::from_hours(1), flood()), 256, "no more than a burst is kept");
    }

    #[test]
    fn a_flood_from_everywhere_is_bounded_and_keeps_no_member_out() {
        let start = Instant::now();
        let mut rate = HandshakeRate::new(start);
        let web = Holder::KnownClient(IpAddr::from([192, 0, 2, 7]));
        let mut handshakes = 0;
        for tenth in 0..100 {
            let now = start + tenth * Duration::from_millis(100);
            handshakes += permitted(&mut rate, now, (0..1000).map(|n| stranger(u64::from(tenth) * 1000 + n, 0)));
            assert!(rate.permits(&known(1), now), "a member dials in the flood");
            assert!(rate.permits(&web, now), "so does a client that was here");
            assert!(rate.strangers.each.len() <= MAX_HOLDERS);
        }
        assert!((1024 + 5000..=1024 + 5120).contains(&handshakes), "{handshakes}");
    }

    #[test]
    fn a_flood_from_a_known_address_leaves_other_members_and_strangers_their_handshakes() {
        let start = Instant::now();
        let mut rate = HandshakeRate::new(start);
        for second in 0..20 {
            let now = start + Duration::from_secs(second);
            let flood = permitted(&mut rate, now, (0..10_000).map(|_| known(1)));
            assert_eq!(flood, if second == 0 { 1024 } else { 256 });
            assert_eq!(permitted(&mut rate, now, (0..200).map(|_| known(2))), 200);
            assert!(rate.permits(&stranger(1, 0), now));
        }
    }
}
