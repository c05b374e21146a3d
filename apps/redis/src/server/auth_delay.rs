//! Delays of `AUTH` for addresses from which wrong passwords came, so that passwords can't be guessed fast.
//!
//! An attempt waits before its password is looked at. So a client that hangs up and comes again gains nothing. Neither
//! does one with many connections: few attempts of an address wait at a time, and further ones are refused.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use squall::CallerNetwork;

use super::lock;

/// The delay after the first wrong password. Each further one doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(250);

/// The longest delay.
const LONGEST_DELAY: Duration = Duration::from_secs(8);

/// The time after the last wrong password at which an address is forgotten.
const MEMORY: Duration = Duration::from_secs(60);

/// The attempts of an address that wait at a time.
const MAX_WAITING: usize = 32;

/// The number of addresses that are remembered.
const MAX_ADDRESSES: usize = 4096;

/// The addresses from which wrong passwords came. An IPv6 address counts by its /64.
#[derive(Debug, Default)]
pub(super) struct AuthDelays(Mutex<BTreeMap<CallerNetwork, Failures>>);

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Instant,
    waiting: usize,
}

impl Failures {
    fn is_over(&self, now: Instant) -> bool {
        self.waiting == 0 && now.saturating_duration_since(self.last) >= MEMORY
    }
}

/// The time at which a password is looked at.
#[derive(Debug)]
pub(super) enum AuthTurn {
    Now,
    /// The attempt waits so long, while it keeps the other part.
    After(Duration, AuthWait),
    /// As many attempts of this address wait as may.
    Never,
}

/// The place of an attempt that waits.
#[derive(Debug)]
pub(super) struct AuthWait {
    delays: Arc<AuthDelays>,
    network: CallerNetwork,
}

/// The delay after so many wrong passwords in a row.
fn delay(failures: u32) -> Option<Duration> {
    let doublings = failures.checked_sub(1)?.min(16);
    Some((FIRST_DELAY * (1 << doublings)).min(LONGEST_DELAY))
}

impl AuthDelays {
    /// The turn of an attempt from an address, on a connection that has given so many wrong passwords itself.
    pub(super) fn turn(self: &Arc<Self>, from: SocketAddr, own_failures: u32, now: Instant) -> AuthTurn {
        let network = CallerNetwork::of(from.ip());
        let mut networks = lock(&self.0);
        let known = networks.get(&network).filter(|failures| !failures.is_over(now));
        let Some(wait) = delay(known.map_or(0, |failures| failures.count).max(own_failures)) else {
            return AuthTurn::Now;
        };
        let failures = networks.entry(network).or_insert(Failures { count: 0, last: now, waiting: 0 });
        if failures.waiting >= MAX_WAITING {
            return AuthTurn::Never;
        }
        failures.waiting += 1;
        AuthTurn::After(wait, AuthWait { delays: Arc::clone(self), network })
    }

    /// Notes a wrong password.
    pub(super) fn fail(&self, from: SocketAddr, now: Instant) {
        let network = CallerNetwork::of(from.ip());
        let mut networks = lock(&self.0);
        if networks.len() >= MAX_ADDRESSES && !networks.contains_key(&network) {
            networks.retain(|_, failures| !failures.is_over(now));
            let oldest = networks.iter().filter(|(_, failures)| failures.waiting == 0);
            let oldest = oldest.min_by_key(|(_, failures)| failures.last).map(|(network, _)| *network);
            if networks.len() >= MAX_ADDRESSES {
                oldest.map(|oldest| networks.remove(&oldest));
            }
        }
        let failures = networks.entry(network).or_insert(Failures { count: 0, last: now, waiting: 0 });
        if failures.is_over(now) {
            failures.count = 0;
        }
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
    }
}

impl Drop for AuthWait {
    fn drop(&mut self) {
        if let Some(failures) = lock(&self.delays.0).get_mut(&self.network) {
            failures.waiting -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("it is an address")
    }

    fn wait(turn: &AuthTurn) -> Option<Duration> {
        match turn {
            AuthTurn::Now => Some(Duration::ZERO),
            AuthTurn::After(wait, _) => Some(*wait),
            AuthTurn::Never => None,
        }
    }

    #[test]
    fn delays_grow_to_a_bound_and_end() {
        let (delays, now) = (Arc::new(AuthDelays::default()), Instant::now());
        let (guesser, other) = (at("[2001:db8::1]:5000"), at("192.0.2.1:5000"));
        let mut waits = Vec::new();
        for _ in 0..8 {
            waits.push(wait(&delays.turn(guesser, 0, now)).expect("there is room").as_millis());
            delays.fail(guesser, now);
        }
        assert_eq!(waits, [0, 250, 500, 1000, 2000, 4000, 8000, 8000]);
        let neighbour = delays.turn(at("[2001:db8::ffff]:1"), 0, now);
        assert_eq!(wait(&neighbour), Some(LONGEST_DELAY), "another address of the /64");
        drop(neighbour);
        assert_eq!(wait(&delays.turn(other, 0, now)), Some(Duration::ZERO));
        assert_eq!(wait(&delays.turn(guesser, 0, now + MEMORY)), Some(Duration::ZERO));
        delays.fail(guesser, now + MEMORY);
        assert_eq!(wait(&delays.turn(guesser, 0, now + MEMORY)), Some(FIRST_DELAY));
        assert_eq!(wait(&delays.turn(other, 3, now)), Some(FIRST_DELAY * 4), "a connection remembers its own");
    }

    #[test]
    fn ten_thousand_connections_of_a_guesser_do_not_help_it() {
        let (delays, now) = (Arc::new(AuthDelays::default()), Instant::now());
        let guesser = at("192.0.2.1:5000");
        (0..6).for_each(|_| delays.fail(guesser, now));
        let turns: Vec<_> = (0..10_000).map(|_| delays.turn(guesser, 0, now)).collect();
        assert_eq!(turns.iter().filter(|turn| wait(turn) == Some(LONGEST_DELAY)).count(), MAX_WAITING);
        assert_eq!(turns.iter().filter(|turn| wait(turn).is_none()).count(), 10_000 - MAX_WAITING);
        assert_eq!(wait(&delays.turn(at("192.0.2.2:1"), 0, now)), Some(Duration::ZERO));
        drop(turns);
        assert!(wait(&delays.turn(guesser, 0, now)).is_some(), "those that have gone leave room");
    }

    #[test]
    fn guessers_from_everywhere_take_bounded_memory() {
        let (delays, now) = (Arc::new(AuthDelays::default()), Instant::now());
        for address in 0..10_000_u32 {
            delays.fail((std::net::Ipv4Addr::from_bits(address), 1).into(), now);
        }
        assert_eq!(lock(&delays.0).len(), MAX_ADDRESSES);
    }
}
