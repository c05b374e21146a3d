//! The counts of commands and errors.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{super::lock, histogram::Histogram};
use crate::{
    Error, Reply,
    command::{self, Spec},
};

/// The most kinds of errors that are counted.
const MAX_ERRORS: usize = 128;

/// The counts of all commands.
#[derive(Debug)]
pub(in crate::server) struct Statistics {
    /// One for each command, at its place.
    commands: Box<[CommandStatistics]>,
    errors: Mutex<BTreeMap<String, u64>>,
}

#[derive(Debug, Default)]
struct CommandStatistics {
    /// The times from the requests' arrival to their answers, and their sum. Present once the command was called.
    times: OnceLock<Box<Histogram>>,
    ns: AtomicU64,
    /// Calls that waited for other clients, whose times are not counted.
    waits: AtomicU64,
    rejected: AtomicU64,
    failed: AtomicU64,
}

impl CommandStatistics {
    fn calls(&self) -> u64 {
        self.times.get().map_or(0, |times| times.count()) + self.waits.load(Ordering::Relaxed)
    }
}

impl Default for Statistics {
    fn default() -> Statistics {
        Statistics {
            commands: command::all().map(|_| CommandStatistics::default()).collect(),
            errors: Mutex::default(),
        }
    }
}

impl Statistics {
    /// Counts calls of a command, each of which took so long. Some of them failed.
    pub(in crate::server) fn count(&self, spec: &Spec, took: Duration, calls: u64, failed: u64) {
        let of_command = &self.commands[spec.place];
        if spec.flags.is_blocking {
            of_command.waits.fetch_add(calls, Ordering::Relaxed);
        } else {
            of_command.times.get_or_init(Box::default).add(took, calls);
            of_command.ns.fetch_add((took.as_nanos() as u64).saturating_mul(calls), Ordering::Relaxed);
        }
        if failed > 0 {
            of_command.failed.fetch_add(failed, Ordering::Relaxed);
        }
    }

    /// Counts a request that was refused before it was carried out. Its error is counted when it is answered.
    pub(in crate::server) fn reject(&self, spec: &Spec) {
        self.commands[spec.place].rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts errors, by their codes.
    pub(in crate::server) fn count_errors(&self, counted: impl Iterator<Item = (Error, u64)>) {
        let mut errors = lock(&self.errors);
        for (error, more) in counted {
            let code = error.as_str().split(' ').next().unwrap_or_default();
            if let Some(count) = errors.get_mut(code) {
                *count += more;
            } else if errors.len() < MAX_ERRORS {
                errors.insert(code.to_owned(), more);
            }
        }
    }

    /// Forgets everything.
    pub(in crate::server) fn reset(&self) {
        for of_command in &self.commands {
            let CommandStatistics { times, ns, waits, rejected, failed } = of_command;
            times.get().into_iter().for_each(|times| times.reset());
            [ns, waits, rejected, failed].into_iter().for_each(|count| count.store(0, Ordering::Relaxed));
        }
        lock(&self.errors).clear();
    }

    /// The number of errors of each code.
    pub(in crate::server) fn errors(&self) -> BTreeMap<String, u64> {
        lock(&self.errors).clone()
    }

    /// One line of `INFO commandstats` for each command that was asked for.
    pub(in crate::server) fn command_lines(&self) -> impl Iterator<Item = (String, String)> {
        self.each().filter_map(|(spec, of_command)| {
            let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
            let (calls, rejected, failed) =
                (of_command.calls(), count(&of_command.rejected), count(&of_command.failed));
            let us = count(&of_command.ns) / 1000;
            let mean = us as f64 / calls.max(1) as f64;
            let line = format!(
                "calls={calls},usec={us},usec_per_call={mean:.2},rejected_calls={rejected},failed_calls={failed}"
            );
            (calls + rejected > 0).then(|| (format!("cmdstat_{}", spec.name), line))
        })
    }

    /// One line of `INFO latencystats` for each command whose times are known.
    pub(in crate::server) fn latency_lines(&self) -> impl Iterator<Item = (String, String)> {
        self.timed().map(|(spec, times)| {
            let [half, most, nearly_all] = times.percentiles([0.5, 0.99, 0.999]);
            let line = format!("p50={half:.3},p99={most:.3},p99.9={nearly_all:.3}");
            (format!("latency_percentiles_usec_{}", spec.name), line)
        })
    }

    /// The distributions of the times of these commands, or of all if none is named, as `LATENCY HISTOGRAM` answers
    /// them.
    pub(in crate::server) fn histograms(&self, names: &[&[u8]]) -> Reply {
        let asked: Vec<_> = names.iter().filter_map(|name| command::find(name)).map(|spec| spec.place).collect();
        let chosen = self.timed().filter(|(spec, _)| names.is_empty() || asked.contains(&spec.place));
        let described = chosen.map(|(spec, times)| {
            let number = |number: u64| Reply::Integer(number.cast_signed());
            let sums = times.cumulative().into_iter().map(|(us, count)| (number(us), number(count))).collect();
            let facts = vec![
                (Reply::bytes("calls"), number(times.count())),
                (Reply::bytes("histogram_usec"), Reply::Map(sums)),
            ];
            (Reply::bytes(spec.name), Reply::Map(facts))
        });
        Reply::Map(described.collect())
    }

    fn each(&self) -> impl Iterator<Item = (&'static Spec, &CommandStatistics)> {
        command::all().zip(&self.commands)
    }

    fn timed(&self) -> impl Iterator<Item = (&'static Spec, &Histogram)> {
        let times = self.each().filter_map(|(spec, of_command)| Some((spec, &**of_command.times.get()?)));
        times.filter(|(_, times)| times.count() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::show;

    fn spec(name: &str) -> &'static Spec {
        command::find(name.as_bytes()).expect("there is such a command")
    }

    #[test]
    fn calls_failures_and_refusals_are_counted_by_command_and_errors_by_code() {
        let statistics = Statistics::default();
        let took = Duration::from_micros(10);
        statistics.count(spec("get"), took, 1, 0);
        statistics.count(spec("get"), 2 * took, 2, 1);
        statistics.reject(spec("set"));
        let errors = [(Error::WRONG_TYPE, 1), (Error::fixed("NOAUTH Authentication required."), 1)];
        statistics.count_errors(errors.into_iter());
        let lines: Vec<_> = statistics.command_lines().map(|(name, line)| format!("{name}:{line}")).collect();
        assert_eq!(
            lines,
            [
                "cmdstat_get:calls=3,usec=50,usec_per_call=16.67,rejected_calls=0,failed_calls=1",
                "cmdstat_set:calls=0,usec=0,usec_per_call=0.00,rejected_calls=1,failed_calls=0",
            ]
        );
        let errors = BTreeMap::from([("NOAUTH".to_owned(), 1), ("WRONGTYPE".to_owned(), 1)]);
        assert_eq!(statistics.errors(), errors);
        let expected = r#"{"get": {"calls": :3, "histogram_usec": {:16: :1, :33: :3}}}"#;
        assert_eq!(show(&statistics.histograms(&[])), expected);
        assert_eq!(show(&statistics.histograms(&[b"GET", b"set", b"nosuch"])), expected);
        assert_eq!(show(&statistics.histograms(&[b"set"])), "{}");
        let lines: Vec<_> = statistics.latency_lines().collect();
        assert!(lines.len() == 1 && lines[0].0 == "latency_percentiles_usec_get", "{lines:?}");
        statistics.reset();
        assert_eq!((statistics.command_lines().count(), statistics.latency_lines().count()), (0, 0));
        assert!(statistics.errors().is_empty());
    }

    #[test]
    fn the_kinds_of_errors_are_bounded() {
        let statistics = Statistics::default();
        let other = (0..2 * MAX_ERRORS).map(|code| (Error::new(format!("E{code} no")), 1));
        statistics.count_errors(other.chain([(Error::fixed("E0 no"), 1)]));
        let errors = statistics.errors();
        assert_eq!((errors.len(), errors["E0"]), (MAX_ERRORS, 2));
    }
}
