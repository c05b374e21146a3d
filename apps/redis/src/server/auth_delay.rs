//! Delays of the answers to wrong passwords, so that passwords can't be guessed fast.
//!
//! A right password is answered at once. The answer to a wrong one is held for a while, and has one of few places of
//! its address until then, whether or not its client is still there. While an address has no place left, its passwords
//! are not looked at. So a client that hangs up and comes again gains nothing. Neither does one with many connections.
//!
//! Once there were many wrong passwords in a minute, passwords from addresses that never gave a right one wait a
//! little, too, before they are looked at: the guesses may come from very many addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Mutex,
    time::{Duration, Instant},
};

use squall::CallerNetwork;

use super::lock;

/// The delay of the answer to the first wrong password. Each further one doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(250);

/// The longest delay.
const LONGEST_DELAY: Duration = Duration::from_secs(8);

/// The time after the last wrong password at which an address is forgotten.
const MEMORY: Duration = Duration::from_secs(60);

/// The answers of an address that are held at a time.
const MAX_HELD: usize = 32;

/// The number of addresses that are remembered, of those with wrong passwords and of those with right ones.
const MAX_ADDRESSES: usize = 4096;

/// The wrong passwords in a minute, of all addresses, that are many.
const MANY: u32 = 1000;

/// The addresses from which passwords came. An IPv6 address counts by its /64.
#[derive(Debug, Default)]
pub(super) struct AuthDelays(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    wrong: BTreeMap<CallerNetwork, Failures>,
    /// The addresses from which right passwords came.
    right: BTreeSet<CallerNetwork>,
    /// The beginning of the last minute with wrong passwords, and their number.
    minute: Option<(Instant, u32)>,
}

#[derive(Debug)]
struct Failures {
    count: u32,
    last: Instant,
    /// The times until which answers are held.
    held: Vec<Instant>,
}

impl Failures {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) >= MEMORY
    }
}

impl Table {
    /// The wrong passwords of the present minute.
    fn recent(&self, now: Instant) -> Option<(Instant, u32)> {
        self.minute.filter(|(began, _)| now.saturating_duration_since(*began) < MEMORY)
    }

    /// Makes room for one more address.
    fn forget_oldest(&mut self, now: Instant) {
        self.wrong.retain(|_, failures| !failures.is_over(now));
        if self.wrong.len() >= MAX_ADDRESSES {
            let oldest = self.wrong.iter().min_by_key(|(_, failures)| failures.last).map(|(network, _)| *network);
            oldest.and_then(|oldest| self.wrong.remove(&oldest));
        }
    }
}

/// The delay of the answer to the last of so many wrong passwords in a row.
fn delay(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    (FIRST_DELAY * (1 << doublings)).min(LONGEST_DELAY)
}

impl AuthDelays {
    /// The time for which a password from an address waits before it is looked at, or for which it has to wait once
    /// more if it `has_waited`.
    pub(super) fn wait(&self, from: SocketAddr, has_waited: bool, now: Instant) -> Option<Duration> {
        let network = CallerNetwork::of(from.ip());
        let mut table = lock(&self.0);
        if let Some(failures) = table.wrong.get_mut(&network) {
            failures.held.retain(|until| *until > now);
            if failures.held.len() >= MAX_HELD {
                // A crowd is spread over the places, so that not all of it is woken for each.
                let place = usize::from(from.port()) % MAX_HELD;
                return Some(failures.held[place].saturating_duration_since(now));
            }
        }
        let are_many = table.recent(now).is_some_and(|(_, count)| count >= MANY);
        (!has_waited && are_many && !table.right.contains(&network)).then_some(FIRST_DELAY)
    }

    /// Notes a wrong password, on a connection that has given so many itself. Returns the time for which the answer is
    /// held.
    pub(super) fn fail(&self, from: SocketAddr, own_failures: u32, now: Instant) -> Duration {
        let network = CallerNetwork::of(from.ip());
        let mut table = lock(&self.0);
        table.minute = Some(table.recent(now).map_or((now, 1), |(began, count)| (began, count.saturating_add(1))));
        if table.wrong.len() >= MAX_ADDRESSES && !table.wrong.contains_key(&network) {
            table.forget_oldest(now);
        }
        let failures = table.wrong.entry(network).or_insert(Failures { count: 0, last: now, held: Vec::new() });
        if failures.is_over(now) {
            failures.count = 0;
        }
        (failures.count, failures.last) = (failures.count.saturating_add(1), now);
        let delay = delay(failures.count.max(own_failures));
        failures.held.push(now + delay);
        delay
    }

    /// Notes a right password. It makes up for one wrong one of the same address.
    pub(super) fn succeed(&self, from: SocketAddr) {
        let network = CallerNetwork::of(from.ip());
        let mut table = lock(&self.0);
        if let Some(failures) = table.wrong.get_mut(&network) {
            failures.count = failures.count.saturating_sub(1);
        }
        if table.right.len() >= MAX_ADDRESSES && !table.right.contains(&network) {
            table.right.clear();
        }
        table.right.insert(network);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("it is an address")
    }

    #[test]
    fn delays_grow_to_a_bound_and_end() {
        let (delays, now) = (AuthDelays::default(), Instant::now());
        let (guesser, other) = (at("[2001:db8::1]:5000"), at("192.0.2.1:5000"));
        let held = (0..7).map(|_| delays.fail(guesser, 0, now).as_millis());
        assert_eq!(held.collect::<Vec<_>>(), [250, 500, 1000, 2000, 4000, 8000, 8000]);
        assert_eq!(delays.fail(at("[2001:db8::ffff]:1"), 0, now), LONGEST_DELAY, "another address of the /64");
        assert_eq!(delays.fail(other, 0, now), FIRST_DELAY);
        assert_eq!(delays.fail(guesser, 0, now + MEMORY), FIRST_DELAY);
        assert_eq!(delays.fail(other, 3, now + MEMORY), FIRST_DELAY * 4, "a connection remembers its own");
    }

    #[test]
    fn a_right_password_makes_up_for_a_wrong_one() {
        let (delays, now, from) = (AuthDelays::default(), Instant::now(), at("192.0.2.1:5000"));
        assert_eq!(delays.fail(from, 0, now), FIRST_DELAY);
        assert_eq!(delays.wait(from, false, now), None, "passwords are still looked at");
        delays.succeed(from);
        assert_eq!(delays.fail(from, 0, now), FIRST_DELAY);
    }

    #[test]
    fn ten_thousand_connections_of_a_guesser_do_not_help_it_even_if_they_hang_up() {
        let (delays, start) = (AuthDelays::default(), Instant::now());
        let (guesser, other) = (at("192.0.2.1:5000"), at("192.0.2.2:1"));
        let mut guesses = 0;
        for tenth in 0..600 {
            let now = start + tenth * Duration::from_millis(100);
            for _ in 0..1000 {
                if delays.wait(guesser, false, now).is_none() {
                    delays.fail(guesser, 0, now);
                    guesses += 1;
                }
            }
            assert_eq!(delays.wait(other, false, now), None);
        }
        // As many at first as there are places, and as many again in each of the longest delays.
        assert!((200..=32 * 10).contains(&guesses), "{guesses}");
        let end = start + 599 * Duration::from_millis(100);
        let wait = delays.wait(guesser, true, end).expect("all places are taken");
        assert!(wait <= LONGEST_DELAY && delays.wait(guesser, true, end + LONGEST_DELAY).is_none());
    }

    #[test]
    fn guessers_from_everywhere_take_bounded_memory_and_wait_where_no_right_password_came_from() {
        let (delays, now) = (AuthDelays::default(), Instant::now());
        let (known, unknown) = (at("203.0.113.1:1"), at("203.0.113.2:1"));
        delays.succeed(known);
        for address in 0..10_000_u32 {
            let from = (Ipv4Addr::from_bits(address), 1).into();
            let waits = delays.wait(from, false, now).is_some();
            assert_eq!(waits, address >= MANY, "{address}");
            assert_eq!(delays.wait(from, true, now), None, "once");
            delays.fail(from, 0, now);
        }
        assert_eq!(lock(&delays.0).wrong.len(), MAX_ADDRESSES);
        assert_eq!(delays.wait(unknown, false, now), Some(FIRST_DELAY));
        assert_eq!(delays.wait(known, false, now), None);
        assert_eq!(delays.wait(unknown, false, now + MEMORY), None);
        for address in 0..10_000_u32 {
            delays.succeed((Ipv4Addr::from_bits(address), 1).into());
        }
        assert!(lock(&delays.0).right.len() <= MAX_ADDRESSES);
    }
}
