//! The distribution of a command's times, of which many threads can count at once.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// The unit of times, in nanoseconds, as a power of two.
const UNIT_BITS: u32 = 6;

/// The number of buckets for times between one power of two and the next, as a power of two: a time is known to within
/// 6 %.
const STEP_BITS: u32 = 4;
const STEPS: usize = 1 << STEP_BITS;

/// The number of buckets. Times of more than 18 minutes count as so long.
const BUCKETS: usize = 32 * STEPS;

/// The first time in Redis' `LATENCY HISTOGRAM`, in nanoseconds. Each further one is twice as long.
const FIRST_NS: u64 = 1 << 10;

/// Times, each in the bucket of its length.
#[derive(derive_more::Debug)]
#[debug("Histogram({} times)", self.count())]
pub(super) struct Histogram([AtomicU64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram([const { AtomicU64::new(0) }; BUCKETS])
    }
}

impl Histogram {
    /// Counts a time as often as `count` says.
    pub(super) fn add(&self, took: Duration, count: u64) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.0[bucket(ns)].fetch_add(count, Ordering::Relaxed);
    }

    /// The number of times.
    pub(super) fn count(&self) -> u64 {
        self.counts().sum()
    }

    pub(super) fn reset(&self) {
        self.0.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// The times in microseconds within which these shares of all lie; 0 if there are none.
    pub(super) fn percentiles<const N: usize>(&self, shares: [f64; N]) -> [f64; N] {
        let counts: Vec<u64> = self.counts().collect();
        let all: u64 = counts.iter().sum();
        shares.map(|share| {
            let wanted = (share * all as f64).ceil().max(1.0) as u64;
            let within = counts.iter().scan(0, |sum, count| {
                *sum += count;
                Some(*sum)
            });
            let reached = within.into_iter().position(|sum| sum >= wanted);
            reached.map_or(0.0, |bucket| longest_ns(bucket) as f64 / 1000.0)
        })
    }

    /// The number of times up to 1 µs, 2 µs, 4 µs and so on. Where none was added, there is no entry.
    pub(super) fn cumulative(&self) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        let (mut sum, mut last, mut bound) = (0, 0, FIRST_NS);
        for (bucket, count) in self.counts().enumerate() {
            while longest_ns(bucket) >= bound {
                if sum > last {
                    all.push((redis_us(bound), sum));
                    last = sum;
                }
                bound *= 2;
            }
            sum += count;
        }
        if sum > last {
            all.push((redis_us(bound), sum));
        }
        all
    }

    fn counts(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|count| count.load(Ordering::Relaxed))
    }
}

/// The bucket of a time.
fn bucket(ns: u64) -> usize {
    let units = (ns >> UNIT_BITS).min((1 << (31 + STEP_BITS)) - 1);
    let shift = (u64::BITS - units.leading_zeros()).saturating_sub(STEP_BITS + 1);
    ((shift as usize) << STEP_BITS) + (units >> shift) as usize
}

/// The longest time of a bucket.
fn longest_ns(bucket: usize) -> u64 {
    let shift = (bucket / STEPS).saturating_sub(1);
    let units = (bucket - shift * STEPS) as u64;
    (((units + 1) << shift) << UNIT_BITS) - 1
}

/// The number by which Redis names a time: the longest that its own histogram, of 128 steps, does not tell from it.
fn redis_us(ns: u64) -> u64 {
    (ns + ns / 128 - 1) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(times_ns: impl IntoIterator<Item = u64>) -> Histogram {
        let histogram = Histogram::default();
        times_ns.into_iter().for_each(|ns| histogram.add(Duration::from_nanos(ns), 1));
        histogram
    }

    #[test]
    fn each_bucket_begins_where_the_one_before_ends() {
        for place in 1..BUCKETS {
            let first = longest_ns(place - 1) + 1;
            assert_eq!((bucket(first), bucket(longest_ns(place))), (place, place), "{first}");
            assert!(place < STEPS || longest_ns(place) - first < first / 16 + 64);
        }
        assert_eq!((bucket(0), bucket(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn percentiles_are_those_of_the_times() {
        let histogram = of((1..=1000).map(|us| 1000 * us));
        let [half, most, all] = histogram.percentiles([0.5, 0.99, 1.0]);
        assert!((500.0..=540.0).contains(&half) && (990.0..=1060.0).contains(&most), "{half} {most}");
        assert!((1000.0..=1064.0).contains(&all), "{all}");
        assert_eq!(of([]).percentiles([0.5]), [0.0]);
        histogram.reset();
        assert_eq!((histogram.count(), histogram.percentiles([0.5])), (0, [0.0]));
    }

    #[test]
    fn sums_are_listed_where_they_grow_under_the_names_of_redis() {
        let cumulative = of([500, 900, 3000, 30_000, 250_000, 1_000_000]).cumulative();
        assert_eq!(cumulative, [(1, 2), (4, 3), (33, 4), (264, 5), (1056, 6)]);
        assert_eq!(of([u64::MAX]).cumulative().len(), 1);
        assert_eq!(of([]).cumulative(), []);
    }
}
