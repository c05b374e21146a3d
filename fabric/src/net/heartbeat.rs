//! The heartbeats of a link, and the silence after which its peer is given up, without a clock.

use std::time::{Duration, Instant};

/// The number of heartbeats in a failure timeout.
const BEATS: u32 = 4;

/// The time at which something came last from a peer, and that of the next heartbeat to it.
pub(super) struct Heartbeat {
    heard: Instant,
    beat_at: Instant,
}

/// The silence after which a peer is given up: a little early, so that it is noticed within the failure timeout.
fn patience(failure_timeout: Duration) -> Duration {
    failure_timeout - failure_timeout / 16
}

impl Heartbeat {
    pub(super) fn new(now: Instant) -> Heartbeat {
        Heartbeat { heard: now, beat_at: now }
    }

    /// Takes note that something came.
    pub(super) fn hear(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Whether the peer is to be given up.
    pub(super) fn is_silent(&self, failure_timeout: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.heard) >= patience(failure_timeout)
    }

    /// Whether a heartbeat is to be sent now; if so, the next one is due a part of the failure timeout later.
    pub(super) fn beats(&mut self, failure_timeout: Duration, now: Instant) -> bool {
        let beats = self.beat_at <= now;
        if beats {
            self.beat_at = now + failure_timeout / BEATS;
        }
        beats
    }

    /// The time at which the next heartbeat or judgement is due.
    pub(super) fn due(&self, failure_timeout: Duration) -> Instant {
        self.beat_at.min(self.heard + patience(failure_timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(1600);

    #[test]
    fn heartbeats_go_several_times_in_a_failure_timeout() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(start);
        let (mut now, mut beats) = (start, 0);
        while now < start + TIMEOUT {
            beats += u32::from(heartbeat.beats(TIMEOUT, now));
            assert!(!heartbeat.beats(TIMEOUT, now));
            heartbeat.hear(now);
            now = heartbeat.due(TIMEOUT);
        }
        assert_eq!(beats, BEATS);
    }

    #[test]
    fn a_peer_of_which_nothing_is_heard_is_silent_within_the_failure_timeout() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(start);
        heartbeat.hear(start + TIMEOUT / 2);
        let mut now = start;
        while !heartbeat.is_silent(TIMEOUT, now) {
            heartbeat.beats(TIMEOUT, now);
            now = heartbeat.due(TIMEOUT);
        }
        let silence = now - (start + TIMEOUT / 2);
        assert!(silence > TIMEOUT * 3 / 4 && silence < TIMEOUT, "{silence:?}");
    }

    #[test]
    fn a_silent_peer_is_silent_until_it_is_heard() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(start);
        let late = start + TIMEOUT;
        assert!(heartbeat.is_silent(TIMEOUT, late) && heartbeat.is_silent(TIMEOUT, late + TIMEOUT));
        heartbeat.beats(TIMEOUT, late);
        assert!(heartbeat.is_silent(TIMEOUT, late), "a heartbeat to it is none from it");
        heartbeat.hear(late);
        assert!(!heartbeat.is_silent(TIMEOUT, late));
    }

    /// A process that was stopped sends one heartbeat for all that it has missed.
    #[test]
    fn one_heartbeat_follows_a_long_gap() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(start);
        assert!(heartbeat.beats(TIMEOUT, start));
        let late = start + 100 * TIMEOUT;
        heartbeat.hear(late);
        assert!(heartbeat.beats(TIMEOUT, late) && !heartbeat.beats(TIMEOUT, late));
        assert_eq!(heartbeat.due(TIMEOUT), late + TIMEOUT / BEATS);
    }
}
