//! The rate of TLS handshakes. Each costs signatures, which any stranger can ask for.

use std::{collections::BTreeMap, time::Instant};

use crate::share::{CallerNetwork, Holder};

/// The handshakes that a network may begin at once, and later each second. A host that restarts with hundreds of
/// clients needs some; a core does some thousands a second.
const OF_NETWORK: Rate = Rate { burst: 256.0, per_second: 128.0 };

/// The handshakes that all unknown networks together may begin: a small part of a core.
const OF_STRANGERS: Rate = Rate { burst: 1024.0, per_second: 512.0 };

/// The handshakes that all known networks together may begin: a cluster that forms has some for each pair of endpoints.
const OF_KNOWN: Rate = Rate { burst: 4096.0, per_second: 1024.0 };

/// The number of networks whose rates are kept.
const MAX_NETWORKS: usize = 4096;

#[derive(Clone, Copy)]
struct Rate {
    burst: f64,
    per_second: f64,
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

/// The handshakes that may begin.
pub(super) struct HandshakeRate {
    strangers: Bucket,
    known: Bucket,
    networks: BTreeMap<CallerNetwork, Bucket>,
}

impl HandshakeRate {
    pub(super) fn new(now: Instant) -> HandshakeRate {
        let (strangers, known) = (Bucket::full(OF_STRANGERS, now), Bucket::full(OF_KNOWN, now));
        HandshakeRate { strangers, known, networks: BTreeMap::new() }
    }

    /// Whether a connection of this holder may begin a handshake now. If so, it counts.
    pub(super) fn permits(&mut self, holder: &Holder, now: Instant) -> bool {
        let (all, rate) = match holder {
            Holder::Network(_) => (&mut self.strangers, OF_STRANGERS),
            _ => (&mut self.known, OF_KNOWN),
        };
        all.fill(rate, now);
        // A flood from everywhere costs no look at its networks.
        if all.tokens < 1.0 {
            return false;
        }
        if let Holder::Network(network) = holder {
            if self.networks.len() >= MAX_NETWORKS && !self.networks.contains_key(network) {
                self.forget_quiet(now);
            }
            let bucket = self.networks.entry(*network).or_insert_with(|| Bucket::full(OF_NETWORK, now));
            bucket.fill(OF_NETWORK, now);
            if bucket.tokens < 1.0 {
                return false;
            }
            bucket.tokens -= 1.0;
        }
        let all = if let Holder::Network(_) = holder { &mut self.strangers } else { &mut self.known };
        all.tokens -= 1.0;
        true
    }

    /// Forgets the networks whose buckets are full again, or all: the limit of all strangers holds in any case.
    fn forget_quiet(&mut self, now: Instant) {
        self.networks.retain(|_, bucket| {
            bucket.fill(OF_NETWORK, now);
            bucket.tokens < OF_NETWORK.burst
        });
        if self.networks.len() >= MAX_NETWORKS {
            self.networks.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{IpAddr, Ipv6Addr},
        time::Duration,
    };

    use super::*;

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
        let known = Holder::Known(CallerNetwork::of(IpAddr::from([192, 0, 2, 1])));
        let mut handshakes = 0;
        for tenth in 0..100 {
            let now = start + tenth * Duration::from_millis(100);
            handshakes += permitted(&mut rate, now, (0..1000).map(|n| stranger(u64::from(tenth) * 1000 + n, 0)));
            assert!(rate.permits(&known, now), "a member dials in the flood");
            assert!(rate.networks.len() <= MAX_NETWORKS);
        }
        assert!((1024 + 5000..=1024 + 5120).contains(&handshakes), "{handshakes}");
    }

    #[test]
    fn a_flood_from_a_known_network_is_bounded_too() {
        let start = Instant::now();
        let mut rate = HandshakeRate::new(start);
        let known = Holder::Known(CallerNetwork::of(IpAddr::from([192, 0, 2, 1])));
        assert_eq!(permitted(&mut rate, start, (0..10_000).map(|_| known.clone())), 4096);
        assert!(rate.permits(&stranger(1, 0), start));
    }
}
