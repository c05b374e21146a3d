//! What a simulation measured.

/// Latencies of messages, each counted as often as messages had it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latencies {
    samples: Vec<(u64, u64)>,
}

impl Latencies {
    pub(super) fn add(&mut self, nanos: u64, messages: u64) {
        self.samples.push((nanos, messages));
    }

    /// How many messages they are of.
    pub fn count(&self) -> u64 {
        self.samples.iter().map(|sample| sample.1).sum()
    }

    /// The mean in microseconds; not a number if there are none.
    pub fn mean_us(&self) -> f64 {
        let sum: u128 = self.samples.iter().map(|&(nanos, messages)| u128::from(nanos) * u128::from(messages)).sum();
        sum as f64 / self.count() as f64 / 1e3
    }

    /// What so many percent of the messages took at most, in microseconds; not a number if there are none.
    pub fn percentile_us(&self, percent: f64) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_unstable();
        let wanted = self.count() as f64 * percent / 100.0;
        let mut passed = 0;
        for (nanos, messages) in sorted {
            passed += messages;
            if passed as f64 >= wanted {
                return nanos as f64 / 1e3;
            }
        }
        f64::NAN
    }

    /// Takes in those of another simulation.
    pub fn merge(&mut self, other: &Latencies) {
        self.samples.extend_from_slice(&other.samples);
    }
}

/// A sum of latencies, for their mean.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    nanos: u64,
    messages: u64,
}

impl Sum {
    pub(super) fn add(&mut self, nanos: u64, messages: u64) {
        self.nanos += nanos * messages;
        self.messages += messages;
    }

    /// In nanoseconds, if there are any.
    pub(super) fn mean(&self) -> Option<u64> {
        self.nanos.checked_div(self.messages)
    }
}

/// What a simulation measured, within its time of measurement.
///
/// Latencies count from the moment at which a process is ready to send a scattering.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Messages, until they have been received: what delivery without any order would take.
    pub unordered: Latencies,
    /// Messages, until they have been delivered in order: by 1Pipe those of best effort.
    pub ordered: Latencies,
    /// Messages, until 1Pipe has delivered them reliably.
    pub reliable: Latencies,
    /// The same three between hosts that are as far from each other as any.
    pub farthest: [Latencies; 3],
    /// From receipt until delivery in order, between the same hosts: for each sending host, whose messages share a clock, the
    /// mean over them.
    pub ordering: Latencies,
    /// Messages that were lost on their way to a receiver, first sent or sent again.
    pub lost: u64,
    /// The time of measurement, in nanoseconds.
    pub measured_ns: u64,
    /// How many processes there were.
    pub processes: usize,
}

impl Figures {
    /// Millions of messages per second and process that were delivered in order, with best effort.
    pub fn ordered_rate(&self) -> f64 {
        self.rate(&self.ordered)
    }

    /// The same, reliably.
    pub fn reliable_rate(&self) -> f64 {
        self.rate(&self.reliable)
    }

    fn rate(&self, latencies: &Latencies) -> f64 {
        latencies.count() as f64 * 1e3 / self.measured_ns as f64 / self.processes as f64
    }

    /// Takes in what another simulation of the same measured.
    pub fn merge(&mut self, other: &Figures) {
        self.unordered.merge(&other.unordered);
        self.ordered.merge(&other.ordered);
        self.reliable.merge(&other.reliable);
        self.farthest.iter_mut().zip(&other.farthest).for_each(|(mine, theirs)| mine.merge(theirs));
        self.ordering.merge(&other.ordering);
        self.lost += other.lost;
        self.measured_ns += other.measured_ns;
        self.processes = other.processes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_count_each() {
        let mut latencies = Latencies::default();
        latencies.add(1_000, 9);
        latencies.add(11_000, 1);
        assert_eq!((latencies.count(), latencies.mean_us()), (10, 2.0));
        assert_eq!((latencies.percentile_us(90.0), latencies.percentile_us(95.0)), (1.0, 11.0));
    }
}
