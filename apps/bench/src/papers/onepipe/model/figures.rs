//! The measurements of a simulation.

/// Latencies of messages, each with the number of messages that had it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Latencies {
    samples: Vec<(u64, u64)>,
}

impl Latencies {
    pub(super) fn add(&mut self, nanos: u64, messages: u64) {
        self.samples.push((nanos, messages));
    }

    /// The number of messages.
    pub(crate) fn count(&self) -> u64 {
        self.samples.iter().map(|sample| sample.1).sum()
    }

    /// The mean in microseconds; not a number if there are none.
    pub(crate) fn mean_us(&self) -> f64 {
        let sum: u128 = self.samples.iter().map(|&(nanos, messages)| u128::from(nanos) * u128::from(messages)).sum();
        sum as f64 / self.count() as f64 / 1e3
    }

    /// The latency that `percent` percent of the messages did not exceed, in microseconds; not a number if there are
    /// none.
    pub(crate) fn percentile_us(&self, percent: f64) -> f64 {
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

    /// Adds the latencies of another simulation.
    pub(crate) fn merge(&mut self, other: &Latencies) {
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

    /// The mean in nanoseconds, if there are any.
    pub(super) fn mean(&self) -> Option<u64> {
        self.nanos.checked_div(self.messages)
    }
}

/// The measurements of a simulation, within its time of measurement.
///
/// Latencies count from the moment at which a process is ready to send a scattering.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    /// Latencies until messages have been received: those of delivery without any order.
    pub(crate) unordered: Latencies,
    /// Latencies until messages have been delivered in order: by 1Pipe those of best effort.
    pub(crate) ordered: Latencies,
    /// Latencies until 1Pipe has delivered messages reliably.
    pub(crate) reliable: Latencies,
    /// The same three between hosts at the greatest distance.
    pub(crate) farthest: [Latencies; 3],
    /// Times from receipt until delivery in order, between the same hosts: for each sending host, whose messages share
    /// a clock, the mean over them.
    pub(crate) ordering: Latencies,
    /// The number of messages that were lost on their way to a receiver, first sent or sent again.
    pub(crate) lost: u64,
    /// The time of measurement, in nanoseconds.
    pub(crate) measured_ns: u64,
    /// The number of processes.
    pub(crate) processes: usize,
}

impl Figures {
    /// Millions of messages per second and process that were delivered in order, with best effort.
    pub(crate) fn ordered_rate(&self) -> f64 {
        self.rate(&self.ordered)
    }

    /// Millions of messages per second and process that were delivered reliably.
    pub(crate) fn reliable_rate(&self) -> f64 {
        self.rate(&self.reliable)
    }

    fn rate(&self, latencies: &Latencies) -> f64 {
        latencies.count() as f64 * 1e3 / self.measured_ns as f64 / self.processes as f64
    }

    /// Adds the measurements of another simulation of the same scenario.
    pub(crate) fn merge(&mut self, other: &Figures) {
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
