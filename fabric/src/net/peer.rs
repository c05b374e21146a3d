//! The addresses of a peer, and the order and times of the attempts at a link with it, without sockets.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

/// The time after which a peer that is not there is dialed again, at first.
pub(super) const FIRST_BACKOFF: Duration = Duration::from_millis(5);

/// The longest such time.
pub(super) const LAST_BACKOFF: Duration = Duration::from_millis(200);

/// The time for which an address may be mute before the next one is tried as well (RFC 8305, §5).
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// The most addresses of a node that are tried.
const MAX_ADDRESSES: usize = 16;

/// The time for which a name's addresses are taken for granted while none of them answers.
const NAME_AGE: Duration = Duration::from_secs(5);

/// The addresses of a peer, and the attempts to reach it.
pub(super) struct Peer {
    /// The addresses as they were given.
    texts: Vec<String>,
    /// The resolved addresses, and the time of their resolution.
    addresses: Option<(Vec<SocketAddr>, Instant)>,
    resolving: bool,
    /// The time to begin again.
    next: Instant,
    backoff: Duration,
    /// Addresses that were not tried in this round, and the time of the next try.
    round: Option<(VecDeque<SocketAddr>, Instant)>,
}

/// The next thing to do to reach a peer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A rest, until that time (if any), or until something has happened.
    Rest(Option<Instant>),
    /// Its names are to be looked up.
    Resolve(Vec<String>),
    Dial(SocketAddr),
}

impl Peer {
    pub(super) fn new(texts: Vec<String>, now: Instant) -> Peer {
        Peer { texts, addresses: None, resolving: false, next: now, backoff: FIRST_BACKOFF, round: None }
    }

    /// The same peer, to be looked for elsewhere. A thread that looks up its old names is waited for, so that there is
    /// one at a time.
    pub(super) fn moved(&self, texts: Vec<String>, now: Instant) -> Peer {
        Peer { resolving: self.resolving, ..Peer::new(texts, now) }
    }

    pub(super) fn is_at(&self, texts: &[String]) -> bool {
        self.texts == texts
    }

    /// Takes the addresses that names stand for.
    pub(super) fn resolved(&mut self, texts: &[String], addresses: Vec<SocketAddr>, now: Instant) {
        self.resolving = false;
        if self.texts == texts {
            self.addresses = Some((addresses, now));
        }
    }

    /// Forgets the attempts so far; others may begin at once.
    pub(super) fn reset(&mut self, now: Instant) {
        (self.round, self.next, self.backoff) = (None, now, FIRST_BACKOFF);
    }

    /// Goes on to look for the peer, of which attempts are under way (`is_trying`) or not. `room_at` is the time at
    /// which another connection may be set up, if not now.
    pub(super) fn step(
        &mut self,
        now: Instant,
        is_trying: bool,
        room_at: Option<Instant>,
        rng: &mut fastrand::Rng,
    ) -> Step {
        if self.texts.is_empty() {
            return Step::Rest(None);
        }
        loop {
            match &mut self.round {
                None if self.next > now => return Step::Rest(Some(self.next)),
                None if self.resolving => return Step::Rest(None),
                None => match self.known(now) {
                    Some(known) => self.round = Some((known.into_iter().take(MAX_ADDRESSES).collect(), now)),
                    None => {
                        self.resolving = true;
                        return Step::Resolve(self.texts.clone());
                    }
                },
                Some((queue, _)) if queue.is_empty() => {
                    if is_trying {
                        return Step::Rest(None);
                    }
                    self.round = None;
                    self.next = now + pause(self.backoff, rng);
                    self.backoff = (self.backoff * 3 / 2).min(LAST_BACKOFF);
                }
                Some((_, at)) if *at > now && is_trying => return Step::Rest(Some(*at)),
                Some(_) if room_at.is_some() => return Step::Rest(room_at),
                Some((queue, at)) => {
                    if let Some(address) = queue.pop_front() {
                        *at = now + NEXT_ADDRESS;
                        return Step::Dial(address);
                    }
                }
            }
        }
    }

    /// The names to look up for a peer that is not dialed, or the time at which they are old.
    pub(super) fn look_up(&mut self, now: Instant) -> Result<Option<Instant>, Vec<String>> {
        if self.texts.is_empty() || self.resolving {
            return Ok(None);
        }
        if self.known(now).is_some() {
            return Ok(self.addresses.as_ref().map(|(_, at)| *at + NAME_AGE));
        }
        self.resolving = true;
        Err(self.texts.clone())
    }

    /// The addresses, unless they are names that are to be looked up.
    fn known(&self, now: Instant) -> Option<Vec<SocketAddr>> {
        let literals: Vec<SocketAddr> = self.texts.iter().filter_map(|text| text.parse().ok()).collect();
        match &self.addresses {
            _ if literals.len() == self.texts.len() => Some(literals),
            Some((addresses, at)) if now.saturating_duration_since(*at) < NAME_AGE => Some(addresses.clone()),
            _ => None,
        }
    }
}

/// The pause behind an attempt that came to nothing: at random, so that nodes that wait for the same peer don't come
/// again together.
pub(super) fn pause(backoff: Duration, rng: &mut fastrand::Rng) -> Duration {
    backoff.mul_f64(rng.f64().mul_add(0.5, 0.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(ports: &[u16]) -> Vec<String> {
        ports.iter().map(|port| format!("127.0.0.1:{port}")).collect()
    }

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn addresses_are_tried_in_turn_and_the_next_one_when_one_is_mute_or_refuses() {
        let (mut rng, now) = (fastrand::Rng::with_seed(1), Instant::now());
        let mut peer = Peer::new(texts(&[1, 2, 3]), now);
        assert_eq!(peer.step(now, false, None, &mut rng), Step::Dial(address(1)));
        assert_eq!(peer.step(now, true, None, &mut rng), Step::Rest(Some(now + NEXT_ADDRESS)));
        assert_eq!(peer.step(now + NEXT_ADDRESS, true, None, &mut rng), Step::Dial(address(2)));
        assert_eq!(peer.step(now + NEXT_ADDRESS, false, None, &mut rng), Step::Dial(address(3)));
        assert_eq!(peer.step(now + 2 * NEXT_ADDRESS, true, None, &mut rng), Step::Rest(None));
    }

    #[test]
    fn an_attempt_waits_for_room() {
        let (mut rng, now) = (fastrand::Rng::with_seed(1), Instant::now());
        let mut peer = Peer::new(texts(&[1]), now);
        let room_at = Some(now + NEXT_ADDRESS);
        assert_eq!(peer.step(now, false, room_at, &mut rng), Step::Rest(room_at));
        assert_eq!(peer.step(now, false, None, &mut rng), Step::Dial(address(1)));
    }

    #[test]
    fn a_peer_that_is_not_there_is_dialed_less_often_until_it_was_reached() {
        let (mut rng, mut now) = (fastrand::Rng::with_seed(1), Instant::now());
        let mut peer = Peer::new(texts(&[1]), now);
        let mut longest = Duration::ZERO;
        for _ in 0..50 {
            assert_eq!(peer.step(now, false, None, &mut rng), Step::Dial(address(1)));
            let Step::Rest(Some(next)) = peer.step(now, false, None, &mut rng) else { panic!("no pause") };
            assert!(next >= now + FIRST_BACKOFF / 2 && next <= now + LAST_BACKOFF);
            longest = longest.max(next - now);
            now = next;
        }
        assert!(longest > LAST_BACKOFF / 2);
        peer.reset(now);
        assert_eq!(peer.step(now, false, None, &mut rng), Step::Dial(address(1)));
        let Step::Rest(Some(next)) = peer.step(now, false, None, &mut rng) else { panic!("no pause") };
        assert!(next <= now + FIRST_BACKOFF);
    }

    #[test]
    fn a_pause_takes_from_half_the_back_off_to_all_of_it() {
        let mut rng = fastrand::Rng::with_seed(1);
        let pauses: Vec<Duration> = (0..1000).map(|_| pause(LAST_BACKOFF, &mut rng)).collect();
        let (shortest, longest) = (*pauses.iter().min().unwrap(), *pauses.iter().max().unwrap());
        assert!(shortest >= LAST_BACKOFF / 2 && shortest < LAST_BACKOFF * 6 / 10, "{shortest:?}");
        assert!(longest <= LAST_BACKOFF && longest > LAST_BACKOFF * 9 / 10, "{longest:?}");
    }

    #[test]
    fn a_round_tries_a_bounded_number_of_addresses() {
        let (mut rng, now) = (fastrand::Rng::with_seed(1), Instant::now());
        let ports: Vec<u16> = (1..=MAX_ADDRESSES as u16 + 1).collect();
        let mut peer = Peer::new(texts(&ports), now);
        for port in &ports[..MAX_ADDRESSES] {
            assert_eq!(peer.step(now, false, None, &mut rng), Step::Dial(address(*port)));
        }
        assert!(matches!(peer.step(now, false, None, &mut rng), Step::Rest(Some(_))));
    }

    #[test]
    fn names_are_looked_up_one_at_a_time_and_again_when_they_are_old() {
        let (mut rng, now) = (fastrand::Rng::with_seed(1), Instant::now());
        let name = |name: &str| vec![name.to_owned()];
        let mut peer = Peer::new(name("a:1"), now);
        assert_eq!(peer.step(now, false, None, &mut rng), Step::Resolve(name("a:1")));
        assert_eq!(peer.step(now, false, None, &mut rng), Step::Rest(None));
        let mut peer = peer.moved(name("b:1"), now);
        assert_eq!(peer.step(now, false, None, &mut rng), Step::Rest(None), "the first one is waited for");
        peer.resolved(&name("a:1"), vec![address(1)], now);
        assert_eq!(peer.step(now, false, None, &mut rng), Step::Resolve(name("b:1")));
        peer.resolved(&name("b:1"), vec![address(2)], now);
        assert_eq!(peer.step(now, false, None, &mut rng), Step::Dial(address(2)));
        assert!(matches!(peer.step(now, false, None, &mut rng), Step::Rest(Some(_))));
        assert_eq!(peer.step(now + NAME_AGE, false, None, &mut rng), Step::Resolve(name("b:1")));
    }

    #[test]
    fn names_of_a_peer_that_dials_by_itself_are_looked_up_too() {
        let (name, now) = (vec!["a:1".to_owned()], Instant::now());
        let mut peer = Peer::new(name.clone(), now);
        assert_eq!(peer.look_up(now), Err(name.clone()));
        assert_eq!(peer.look_up(now), Ok(None), "it is being looked up");
        peer.resolved(&name, Vec::new(), now);
        assert_eq!(peer.look_up(now), Ok(Some(now + NAME_AGE)));
        assert_eq!(peer.look_up(now + NAME_AGE), Err(name));
        assert_eq!(Peer::new(texts(&[1]), now).look_up(now), Ok(None), "an address needs no look-up");
    }

    #[test]
    fn a_peer_without_an_address_is_not_looked_for() {
        let (mut rng, now) = (fastrand::Rng::with_seed(1), Instant::now());
        assert_eq!(Peer::new(Vec::new(), now).step(now, false, None, &mut rng), Step::Rest(None));
        assert_eq!(Peer::new(Vec::new(), now).look_up(now), Ok(None));
    }
}
