//! The progress of a long append or export: a bar on a terminal, else a line a second.

use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// The interval of lines.
const PAUSE: Duration = Duration::from_secs(1);

/// Shows the number of records and bytes that are done, and their rate.
pub(super) enum Meter {
    Bar { bar: ProgressBar, began: Instant },
    Lines { began: Instant, last: Instant, total: Option<u64> },
    Nothing,
}

impl Meter {
    /// A bar on a terminal, unless records or versions are shown there as well; else lines, if they are asked for.
    /// `total` is the length of the input in bytes, if that is known.
    pub(super) fn new(uses_stdout: bool, asks_for_lines: bool, total: Option<u64>) -> Meter {
        let is_mixed = uses_stdout && io::stdout().is_terminal();
        match (io::stderr().is_terminal() && !is_mixed, asks_for_lines) {
            (true, _) => Meter::bar(total),
            (false, true) => Meter::lines(total),
            (false, false) => Meter::Nothing,
        }
    }

    /// A meter on a terminal.
    fn bar(total: Option<u64>) -> Meter {
        let (bar, style) = match total {
            Some(total) => (
                ProgressBar::new(total),
                "{bar:30} {bytes:>10} of {total_bytes} {bytes_per_sec:>12} {eta:>6} left; {msg}",
            ),
            None => (ProgressBar::no_length(), "{spinner} {bytes:>10} {bytes_per_sec:>12}; {msg}"),
        };
        let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = bar.with_style(style);
        // The spinner moves while the append waits.
        bar.enable_steady_tick(PAUSE / 4);
        Meter::Bar { bar, began: Instant::now() }
    }

    /// A meter for an output that is no terminal.
    fn lines(total: Option<u64>) -> Meter {
        let now = Instant::now();
        Meter::Lines { began: now, last: now, total }
    }

    pub(super) fn show(&mut self, records: u64, bytes: u64) {
        match self {
            Meter::Bar { bar, began } => {
                bar.set_position(bytes);
                bar.set_message(format!("{records} records, {:.0}/s", rate(records, *began)));
            }
            Meter::Lines { began, last, total } if last.elapsed() >= PAUSE => {
                *last = Instant::now();
                let of = total.map_or(String::new(), |total| format!(" of {}", HumanBytes(total)));
                eprintln!(
                    "squall: {records} records, {}{of}, {:.0} records/s, {}/s",
                    HumanBytes(bytes),
                    rate(records, *began),
                    HumanBytes(rate(bytes, *began) as u64)
                );
            }
            Meter::Lines { .. } | Meter::Nothing => {}
        }
    }

    pub(super) fn end(&self) {
        if let Meter::Bar { bar, .. } = self {
            bar.finish_and_clear();
        }
    }
}

fn rate(count: u64, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64().max(1e-9)
}
