//! `LATENCY`: what took long at this server, by the kind of event.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{super::lock, statistics::Statistics};
use crate::{Error, Reply};

/// The number of samples that are kept of each event.
const SAMPLES: usize = 160;

const HELP: [&str; 14] = [
    "LATENCY <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "DOCTOR",
    "    Return a human readable latency analysis report.",
    "HISTORY <event>",
    "    Return time-latency samples for the <event> class.",
    "LATEST",
    "    Return the latest latency samples for all events.",
    "RESET [<event> ...]",
    "    Reset latency data of one or more <event> classes.",
    "    (default: reset all data for all event classes)",
    "HISTOGRAM [COMMAND ...]",
    "    Return a cumulative distribution of latencies in the format of a histogram for the specified command names.",
    "HELP",
    "    Prints this help.",
];

/// The events, each with what its time is, and what helps.
const EVENTS: [(&str, &str); 4] = [
    (
        "command",
        "from the arrival of a request whose work depends on its values to its answer, its turn in the group's order \
         included: SLOWLOG GET names the requests",
    ),
    (
        "expire-cycle",
        "the turn of a command that removes expired keys: fewer keys that expire at one moment, or smaller values, help",
    ),
    (
        "fast-command",
        "from the arrival of a request of little work to its answer: it waits for the group, or for larger requests; \
         INFO commandstats names the commands, the view-change event a member that failed",
    ),
    (
        "view-change",
        "from the suspicion of a member to the view without it, in which no write is answered: the log of this replica \
         names the member and the cause",
    ),
];

/// The samples of all events.
#[derive(Debug, Default)]
pub(in crate::server) struct LatencyMonitor {
    /// The time from which an event counts, in milliseconds; 0 if none does.
    threshold_ms: AtomicU64,
    events: Mutex<BTreeMap<&'static str, History>>,
}

/// The latest samples of an event.
#[derive(Debug, Default)]
struct History {
    samples: VecDeque<Sample>,
    max_ms: u64,
}

/// An event that took long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    /// Its time, in seconds since 1970.
    at_s: u64,
    ms: u64,
}

impl LatencyMonitor {
    /// Events of at least `threshold_ms` milliseconds count; none does if it is 0.
    pub(in crate::server) fn new(threshold_ms: u64) -> LatencyMonitor {
        LatencyMonitor { threshold_ms: threshold_ms.into(), events: Mutex::default() }
    }

    pub(in crate::server) fn threshold_ms(&self) -> u64 {
        self.threshold_ms.load(Ordering::Relaxed)
    }

    pub(in crate::server) fn set_threshold_ms(&self, ms: u64) {
        self.threshold_ms.store(ms, Ordering::Relaxed);
    }

    /// Whether an event that took so long counts.
    pub(in crate::server) fn is_long(&self, took: Duration) -> bool {
        let threshold = self.threshold_ms();
        threshold > 0 && took.as_millis() >= u128::from(threshold)
    }

    /// Notes an event at a time since 1970, if it took long. Of those of one second, the longest stays.
    pub(in crate::server) fn note(&self, event: &'static str, at: Duration, took: Duration) {
        if !self.is_long(took) {
            return;
        }
        debug_assert!(EVENTS.iter().any(|(known, _)| *known == event), "{event} is not described");
        let sample = Sample { at_s: at.as_secs(), ms: took.as_millis() as u64 };
        let mut events = lock(&self.events);
        let History { samples, max_ms } = events.entry(event).or_default();
        *max_ms = sample.ms.max(*max_ms);
        match samples.back_mut() {
            Some(last) if last.at_s == sample.at_s => last.ms = last.ms.max(sample.ms),
            _ => samples.push_back(sample),
        }
        if samples.len() > SAMPLES {
            samples.pop_front();
        }
    }

    /// Answers `LATENCY ...`, of at least two words.
    pub(in crate::server) fn answer(&self, words: &[&[u8]], statistics: &Statistics) -> Result<Reply, Error> {
        match (&*words[1].to_ascii_lowercase(), &words[2..]) {
            (b"latest", []) => Ok(self.latest()),
            (b"history", [event]) => Ok(self.history(event)),
            (b"reset", events) => Ok(self.reset(events)),
            (b"doctor", []) => Ok(Reply::Verbatim(self.report())),
            (b"histogram", names) => Ok(statistics.histograms(names)),
            (b"help", []) => Ok(Reply::Array(HELP.map(Reply::status).into())),
            (name @ (b"latest" | b"history" | b"doctor" | b"help"), _) => {
                Err(Error::arity(&format!("latency|{}", String::from_utf8_lossy(name))))
            }
            _ => Err(Error::unknown_subcommand("LATENCY", words[1])),
        }
    }

    fn latest(&self) -> Reply {
        let events = lock(&self.events);
        let latest = events.iter().filter_map(|(event, history)| {
            let Sample { at_s, ms } = *history.samples.back()?;
            let numbers = [at_s, ms, history.max_ms].map(|number| Reply::Integer(number.cast_signed()));
            Some(Reply::Array([&[Reply::bytes(event)], &numbers[..]].concat()))
        });
        Reply::Array(latest.collect())
    }

    fn history(&self, event: &[u8]) -> Reply {
        let events = lock(&self.events);
        let samples = events.iter().filter(|(name, _)| name.as_bytes() == event).flat_map(|(_, history)| {
            history.samples.iter().map(|sample| {
                Reply::Array([sample.at_s, sample.ms].map(|number| Reply::Integer(number.cast_signed())).into())
            })
        });
        Reply::Array(samples.collect())
    }

    fn reset(&self, events: &[&[u8]]) -> Reply {
        let mut all = lock(&self.events);
        let before = all.len();
        all.retain(|name, _| !events.is_empty() && !events.contains(&name.as_bytes()));
        Reply::count(before - all.len())
    }

    /// A text on the samples, for people.
    fn report(&self) -> String {
        let threshold = self.threshold_ms();
        if threshold == 0 {
            return "The latency monitor is off. CONFIG SET latency-monitor-threshold <milliseconds> switches it on.\n"
                .to_owned();
        }
        let events = lock(&self.events);
        if events.is_empty() {
            return format!("No event took {threshold} ms or longer since the samples were last reset.\n");
        }
        let mut report = format!("Events that took {threshold} ms or longer:\n");
        for (event, History { samples, max_ms }) in &*events {
            let mean = samples.iter().map(|sample| sample.ms).sum::<u64>() / samples.len().max(1) as u64;
            let of_event = EVENTS.iter().find(|(known, _)| known == event).map_or("", |(_, about)| about);
            report += &format!(
                "\n{event}: {} samples, {mean} ms on average, {max_ms} ms at most.\n  It is the time {of_event}.\n",
                samples.len()
            );
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::show;

    fn ask(monitor: &LatencyMonitor, line: &str) -> String {
        let words: Vec<_> = line.split(' ').map(str::as_bytes).collect();
        show(&monitor.answer(&words, &Statistics::default()).into())
    }

    fn note(monitor: &LatencyMonitor, event: &'static str, at_s: u64, ms: u64) {
        monitor.note(event, Duration::from_secs(at_s), Duration::from_millis(ms));
    }

    #[test]
    fn the_longest_event_of_a_second_is_a_sample_and_the_longest_of_all_is_kept() {
        let monitor = LatencyMonitor::new(10);
        for (at_s, ms) in [(1, 12), (1, 30), (1, 20), (2, 9), (3, 15)] {
            note(&monitor, "command", at_s, ms);
        }
        note(&monitor, "view-change", 4, 10);
        assert_eq!(ask(&monitor, "latency history command"), "[[:1, :30], [:3, :15]]");
        assert_eq!(ask(&monitor, "latency latest"), r#"[["command", :3, :15, :30], ["view-change", :4, :10, :10]]"#);
        assert_eq!(ask(&monitor, "latency history other"), "[]");
        assert_eq!(ask(&monitor, "latency reset command other"), ":1");
        assert_eq!(ask(&monitor, "latency reset"), ":1");
        assert_eq!(ask(&monitor, "latency latest"), "[]");
    }

    #[test]
    fn nothing_counts_while_the_monitor_is_off_and_samples_are_bounded() {
        let monitor = LatencyMonitor::default();
        note(&monitor, "command", 1, 1000);
        assert_eq!(ask(&monitor, "latency latest"), "[]");
        assert!(ask(&monitor, "latency doctor").contains("CONFIG SET latency-monitor-threshold"));
        monitor.set_threshold_ms(1);
        assert!(ask(&monitor, "latency doctor").contains("No event took 1 ms"));
        (0..1000).for_each(|second| note(&monitor, "fast-command", second, 5));
        assert_eq!(ask(&monitor, "latency history fast-command").matches(":5").count(), SAMPLES);
        let report = ask(&monitor, "latency doctor");
        assert!(report.contains("fast-command: 160 samples, 5 ms on average, 5 ms at most."), "{report}");
    }
}
