//! The progress of a copy: bars on a terminal, else a line a second.

use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

use indicatif::{HumanBytes, HumanDuration, MultiProgress, ProgressBar, ProgressStyle};

/// The interval of lines where there is no terminal.
const LINES: Duration = Duration::from_secs(1);

/// The longest time that is told as what is left.
const LONGEST: Duration = Duration::from_secs(99 * 3600);

/// Shows the progress of several parts of a whole.
pub(super) enum Gauge {
    Bars { whole: ProgressBar, parts: Vec<ProgressBar>, _all: MultiProgress },
    Lines { began: Instant, last: Instant, held: u64, title: String },
    Nothing,
}

/// The progress of one part.
pub(super) struct PartProgress<'p> {
    pub(super) name: &'p str,
    /// Bytes that were there before.
    pub(super) held: u64,
    /// Bytes that are there now.
    pub(super) written: u64,
    /// Its outcome, once it has ended.
    pub(super) over: Option<&'p str>,
}

impl Gauge {
    /// A gauge for a whole of parts of `bytes` bytes each.
    pub(super) fn new(quiet: bool, title: &str, names: &[String], bytes: u64) -> Gauge {
        if quiet {
            return Gauge::Nothing;
        }
        if !io::stderr().is_terminal() {
            let now = Instant::now();
            return Gauge::Lines { began: now, last: now, held: 0, title: title.to_owned() };
        }
        let all = MultiProgress::new();
        let style = "{prefix:>12} {bar:30} {bytes:>10} of {total_bytes} {bytes_per_sec:>12} {eta:>6} left {msg}";
        let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = |prefix: &str, bytes| {
            all.add(ProgressBar::new(bytes).with_style(style.clone()).with_prefix(prefix.to_owned()))
        };
        let whole = bar(title, bytes * names.len() as u64);
        let parts = if names.len() > 1 { names.iter().map(|name| bar(name, bytes)).collect() } else { Vec::new() };
        Gauge::Bars { whole, parts, _all: all }
    }

    /// Shows the progress of all parts.
    pub(super) fn show<'p>(&mut self, bytes: u64, parts: impl Iterator<Item = PartProgress<'p>>) {
        let parts: Vec<PartProgress<'p>> = parts.collect();
        let written: u64 = parts.iter().map(|part| part.written).sum();
        let held_now: u64 = parts.iter().map(|part| part.held).sum();
        match self {
            Gauge::Nothing => {}
            Gauge::Bars { whole, parts: bars, .. } => {
                for (bar, part) in bars.iter().zip(&parts) {
                    advance(bar, part.held, part.written);
                    bar.set_message(part.over.unwrap_or_default().to_owned());
                }
                advance(whole, held_now, written);
            }
            Gauge::Lines { began, last, held, title } => {
                *held = held_now;
                if last.elapsed() < LINES {
                    return;
                }
                *last = Instant::now();
                let all = bytes * parts.len() as u64;
                let rate = written.saturating_sub(*held) as f64 / began.elapsed().as_secs_f64();
                let seconds = (all - written.min(all)) as f64 / rate;
                let left = match Duration::try_from_secs_f64(seconds) {
                    Ok(left) if left < LONGEST => format!("{} left", HumanDuration(left)),
                    // Nothing moves.
                    _ => "waiting".to_owned(),
                };
                let each: Vec<String> = parts.iter().map(|part| told(part, bytes)).collect();
                eprintln!(
                    "{title}: {} of {}, {}/s, {left}; {}",
                    HumanBytes(written),
                    HumanBytes(all),
                    HumanBytes(rate as u64),
                    each.join(", ")
                );
            }
        }
    }

    /// Leaves the last state on the screen.
    pub(super) fn end(&self) {
        if let Gauge::Bars { whole, parts, .. } = self {
            parts.iter().chain([whole]).for_each(ProgressBar::abandon);
        }
    }
}

fn advance(bar: &ProgressBar, held: u64, written: u64) {
    if bar.position() < held {
        // Bytes that were there before must not count for the rate.
        bar.set_position(held);
        bar.reset_eta();
    }
    bar.set_position(written);
}

fn told(part: &PartProgress<'_>, bytes: u64) -> String {
    let PartProgress { name, written, over, .. } = part;
    match over {
        Some(over) => format!("{name} {over}"),
        None => format!("{name} {} %", (100 * u128::from(*written)).checked_div(bytes.into()).unwrap_or(100)),
    }
}
