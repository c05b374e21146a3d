//! Rates of counters over the last seconds.

use std::time::Duration;

use squall_fabric::Time;

/// The time over which a rate is averaged: what is older counts for less than 1/e.
const WINDOW: Duration = Duration::from_secs(10);

/// The interval at which counters are looked at.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The exponentially weighted averages of the rates of some counters.
#[derive(Clone, Debug)]
pub(super) struct RateMeter<const N: usize> {
    /// The time of the last look, and the counters then.
    last: Option<(Time, [u64; N])>,
    averages: [f64; N],
    /// The part of the averages that was measured, up to 1: the rest is the zeros with which they began.
    measured: f64,
}

impl<const N: usize> Default for RateMeter<N> {
    fn default() -> RateMeter<N> {
        RateMeter { last: None, averages: [0.0; N], measured: 0.0 }
    }
}

impl<const N: usize> RateMeter<N> {
    /// Takes the counters of this time. They only grow.
    pub(super) fn look(&mut self, now: Time, counters: [u64; N]) {
        let Some((at, before)) = self.last else {
            self.last = Some((now, counters));
            return;
        };
        let passed = now.since(at).as_secs_f64();
        if passed <= 0.0 {
            return;
        }
        self.last = Some((now, counters));
        let weight = 1.0 - (-passed / WINDOW.as_secs_f64()).exp();
        for ((average, counter), before) in self.averages.iter_mut().zip(counters).zip(before) {
            let rate = counter.saturating_sub(before) as f64 / passed;
            *average += weight * (rate - *average);
        }
        self.measured += weight * (1.0 - self.measured);
    }

    /// The rates per second, rounded. They are 0 before the second look.
    pub(super) fn per_second(&self) -> [u64; N] {
        let measured = if self.measured > 0.0 { self.measured } else { 1.0 };
        self.averages.map(|average| (average / measured).round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    /// A meter that looked once a second, from `from` to `to`, at a counter that grows by `rate` a second.
    fn look(meter: &mut RateMeter<1>, from: u64, to: u64, total: &mut u64, rate: u64) {
        for second in from..=to {
            *total += rate;
            meter.look(at(second), [*total]);
        }
    }

    #[test]
    fn a_steady_rate_is_shown_from_the_second_look_on() {
        let (mut meter, mut total) = (RateMeter::default(), 1_000_000);
        meter.look(at(0), [total]);
        assert_eq!(meter.per_second(), [0], "what was counted before the first look has no time");
        look(&mut meter, 1, 1, &mut total, 500);
        assert_eq!(meter.per_second(), [500]);
        look(&mut meter, 2, 100, &mut total, 500);
        assert_eq!(meter.per_second(), [500]);
    }

    #[test]
    fn a_rate_follows_its_counter_within_the_window() {
        let (mut meter, mut total) = (RateMeter::default(), 0);
        look(&mut meter, 0, 60, &mut total, 1000);
        look(&mut meter, 61, 70, &mut total, 0);
        let [after_ten] = meter.per_second();
        assert!((360..=375).contains(&after_ten), "1/e of 1000 is left, not {after_ten}");
        look(&mut meter, 71, 200, &mut total, 0);
        assert_eq!(meter.per_second(), [0]);
    }

    #[test]
    fn a_gap_counts_as_the_mean_over_it_and_a_repeated_look_not_at_all() {
        let mut meter = RateMeter::default();
        meter.look(at(0), [0, 0]);
        meter.look(at(1000), [1_000_000, 0]);
        assert_eq!(meter.per_second(), [1000, 0]);
        meter.look(at(1000), [9_000_000, 9]);
        meter.look(at(999), [9_000_000, 9]);
        assert_eq!(meter.per_second(), [1000, 0], "no time has passed");
    }

    #[test]
    fn counters_that_go_back_or_are_huge_do_no_harm() {
        let mut meter = RateMeter::default();
        meter.look(at(0), [u64::MAX]);
        meter.look(at(1), [0]);
        assert_eq!(meter.per_second(), [0]);
        meter.look(at(2), [u64::MAX]);
        assert!(meter.per_second()[0] > 1 << 62);
    }
}
