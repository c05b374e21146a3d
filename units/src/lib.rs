//! Sizes, times and rates in the notation that people write: one for options, configuration files and variables of the
//! environment.
//!
//! | value | notation | a number alone |
//! |---|---|---|
//! | size | `4096`, `64KiB`, `1.5 MiB`, `1GiB`, `1TiB`, in capital or small letters | bytes |
//! | time | `200us`, `500ms`, `1.5s`, `10m`, `2h`, `7d` | in the unit of the option or key |
//! | rate | `10MiB/s`, `10MiB` | bytes per second |
//!
//! Units of sizes without an `i` (`kB`, `MB`, `GB`, `TB`) are understood too, as powers of 1000. Nothing is written
//! with them.

use std::{ops::RangeInclusive, time::Duration};

/// The units in which sizes are written: powers of 1024.
const SIZES: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

/// Further units that are read: powers of 1000.
const DECIMAL_SIZES: [(u64, &str); 5] =
    [(1, "B"), (1_000, "kB"), (1_000_000, "MB"), (1_000_000_000, "GB"), (1_000_000_000_000, "TB")];

/// The units of times, in nanoseconds.
const TIMES: [(u64, &str); 7] = [
    (86_400_000_000_000, "d"),
    (3_600_000_000_000, "h"),
    (60_000_000_000, "m"),
    (1_000_000_000, "s"),
    (1_000_000, "ms"),
    (1_000, "us"),
    (1, "ns"),
];

/// The unit of a time that is written as a number alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
    /// Days.
    Days,
}

impl TimeUnit {
    fn name(self) -> &'static str {
        match self {
            TimeUnit::Seconds => "s",
            TimeUnit::Milliseconds => "ms",
            TimeUnit::Microseconds => "us",
            TimeUnit::Days => "d",
        }
    }

    fn duration(self) -> Duration {
        let nanos = TIMES.into_iter().find(|(_, name)| *name == self.name()).map(|(nanos, _)| nanos);
        Duration::from_nanos(nanos.unwrap_or(1))
    }
}

/// A number as it is written: its digits without the point, and the power of ten by which they are to be divided.
struct Decimal {
    digits: u128,
    divisor: u128,
}

impl Decimal {
    /// The number, in a unit of so many of the smallest ones. What is less than one of these is cut off.
    fn in_unit(&self, unit: u64) -> Option<u64> {
        u64::try_from(self.digits.checked_mul(u128::from(unit))? / self.divisor).ok()
    }
}

/// Splits a text into its number and its unit.
fn split(text: &str) -> Option<(Decimal, &str)> {
    let text = text.trim();
    let end = text.find(|char: char| !char.is_ascii_digit() && !"_.".contains(char)).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    // More digits would be no fraction of a byte or of a nanosecond.
    let divisor = 10_u128.checked_pow(u32::try_from(fraction.len()).ok().filter(|&digits| digits <= 18)?)?;
    let digits = format!("{whole}{fraction}").parse().ok()?;
    Some((Decimal { digits, divisor }, unit.trim_start()))
}

/// Reads a number of bytes: `4096`, `64KiB`, `1.5 MiB`. The error says what is wanted.
pub fn size(text: &str) -> Result<u64, String> {
    let read = || {
        let (number, unit) = split(text)?;
        // The B may be left out.
        let is_unit =
            |name: &str| [name, name.trim_end_matches('B')].iter().any(|name| name.eq_ignore_ascii_case(unit));
        let (bytes, _) = SIZES.into_iter().chain(DECIMAL_SIZES).find(|(_, name)| is_unit(name))?;
        number.in_unit(bytes)
    };
    read().ok_or_else(|| "give a size such as 4096, 64KiB or 4MiB".to_owned())
}

/// Returns a function that reads a number of bytes of this range, as [`size`] does.
pub fn size_in(range: RangeInclusive<usize>) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| {
        let bytes = size_in_memory(text)?;
        range.contains(&bytes).then_some(bytes).ok_or_else(|| format!("give a size from {}", show_sizes(range.clone())))
    }
}

/// Reads a number of bytes as [`size`] does, on this machine.
pub fn size_in_memory(text: &str) -> Result<usize, String> {
    usize::try_from(size(text)?).map_err(|_| "that is more than this machine can address".to_owned())
}

/// Reads a time: `500ms`, `5s`, `10m`. A number alone is in `unit`. The error says what is wanted.
pub fn time(text: &str, unit: TimeUnit) -> Result<Duration, String> {
    let read = || {
        let (number, name) = split(text)?;
        let name = if name.is_empty() { unit.name() } else { name };
        match TIMES.into_iter().find(|(_, known)| *known == name) {
            Some((nanos, _)) => number.in_unit(nanos).map(Duration::from_nanos),
            // A number alone, such as 1e-3.
            None => Duration::try_from_secs_f64(text.trim().parse::<f64>().ok()? * unit.duration().as_secs_f64()).ok(),
        }
    };
    read().ok_or_else(|| "give a time such as 500ms, 5s or 10m".to_owned())
}

/// Returns a function that reads a time of this range, of which a number alone is in `unit`.
pub fn time_in(range: RangeInclusive<Duration>, unit: TimeUnit) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let time = time(text, unit)?;
        let (least, most) = (show_time(*range.start()), show_time(*range.end()));
        range.contains(&time).then_some(time).ok_or_else(|| format!("give a time from {least} to {most}"))
    }
}

/// Returns a function that reads a time of this range, and returns the number of units that it lasts. A number alone is
/// such a number.
pub fn whole_in(range: RangeInclusive<Duration>, unit: TimeUnit) -> impl Fn(&str) -> Result<u64, String> + Clone {
    let read = time_in(range, unit);
    move |text| {
        let (time, unit) = (read(text)?, unit.duration());
        let is_whole = time.as_nanos().is_multiple_of(unit.as_nanos());
        let count = u64::try_from(time.as_nanos() / unit.as_nanos()).ok().filter(|_| is_whole);
        count.ok_or_else(|| format!("give a whole multiple of {}", show_time(unit)))
    }
}

/// Reads a time of which a number alone is in seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    time(text, TimeUnit::Seconds)
}

/// Reads a time of which a number alone is in milliseconds.
pub fn milliseconds(text: &str) -> Result<Duration, String> {
    time(text, TimeUnit::Milliseconds)
}

/// Reads a number of bytes per second: `10MiB/s`, `10MiB`. The error says what is wanted.
pub fn rate(text: &str) -> Result<u64, String> {
    size(text.trim().strip_suffix("/s").unwrap_or(text)).map_err(|_| "give a rate such as 10MiB/s".to_owned())
}

/// Writes a number of bytes so that [`size`] reads it, with the largest unit that leaves a whole number.
pub fn show_size(bytes: usize) -> String {
    let bytes = bytes as u64;
    let unit = SIZES.into_iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{bytes} B"), |(unit, name)| format!("{} {name}", bytes / unit))
}

/// Writes about so many bytes so that [`size`] reads it: in the largest unit of which there are ten or more.
pub fn show_about_size(bytes: u64) -> String {
    let unit = SIZES.into_iter().find(|(unit, _)| bytes >= unit * 10 || bytes > 0 && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{bytes} B"), |(unit, name)| format!("{} {name}", bytes / unit))
}

/// Writes about so long a time so that [`time`] reads it: in the largest unit of which there are ten or more, and at
/// least in milliseconds.
pub fn show_about_time(time: Duration) -> String {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let units = TIMES.into_iter().filter(|(unit, _)| *unit >= 1_000_000);
    let is_fit = |unit: u64| nanos >= unit * 10 || nanos > 0 && nanos.is_multiple_of(unit);
    let (unit, name) = units.into_iter().find(|(unit, _)| is_fit(*unit)).unwrap_or((1_000_000, "ms"));
    format!("{}{name}", nanos / unit)
}

/// Writes a range of sizes.
pub fn show_sizes(range: RangeInclusive<usize>) -> String {
    format!("{} to {}", show_size(*range.start()), show_size(*range.end()))
}

/// Writes a time so that [`time`] reads it, with the largest unit that leaves a whole number.
pub fn show_time(time: Duration) -> String {
    let nanos = time.as_nanos();
    let unit = TIMES.into_iter().find(|(unit, _)| nanos > 0 && nanos.is_multiple_of(u128::from(*unit)));
    unit.map_or_else(|| "0s".to_owned(), |(unit, name)| format!("{}{name}", nanos / u128::from(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("1_024", 1024), ("64KiB", 65_536), (" 4 MiB ", 4 << 20), ("1GiB", 1 << 30)]
                .into_iter()
                .chain([("1.5KiB", 1536), ("0.3KiB", 307), ("2GB", 2_000_000_000), ("5 kB", 5000), ("7B", 7)])
        {
            assert_eq!(size(text), Ok(bytes), "{text:?}");
            assert_eq!(size(&show_size(bytes as usize)), Ok(bytes), "{text:?}");
        }
        for (text, bytes) in
            [("4M", 4_000_000), ("64kib", 65_536), ("1Gi", 1 << 30), (".5MiB", 1 << 19), ("2.kb", 2000)]
        {
            assert_eq!(size(text), Ok(bytes), "{text:?}");
        }
        for wrong in ["", "MiB", "4X", "-1", "1.2.3", "4MiB!", "99999999999GiB", "_", "."] {
            assert!(size(wrong).unwrap_err().contains("such as 4096, 64KiB"), "{wrong:?}");
        }
        assert_eq!(show_size(1536), "1536 B");
        assert_eq!(show_size(4 << 20), "4 MiB");
        assert_eq!(show_sizes(1024..=2 << 20), "1 KiB to 2 MiB");
        let ring = size_in(1024..=2 << 20);
        assert_eq!((ring("1KiB"), ring("2MiB")), (Ok(1024), Ok(2 << 20)));
        assert_eq!(ring("1"), Err("give a size from 1 KiB to 2 MiB".to_owned()));
        assert!(ring("many").unwrap_err().contains("such as 4096"));
        assert!(size("1.0000000000000000001GiB").is_err(), "more digits than there are bytes");
    }

    #[test]
    fn times_are_read_in_any_unit_and_numbers_alone_in_their_own() {
        for (text, micros) in [
            ("200us", 200),
            ("500ms", 500_000),
            ("5 s", 5_000_000),
            ("10m", 600_000_000),
            ("7", 7_000),
            ("0.25s", 250_000),
        ] {
            let time = Duration::from_micros(micros);
            assert_eq!(milliseconds(text), Ok(time), "{text:?}");
            assert_eq!(milliseconds(&show_time(time)), Ok(time), "{text:?}");
        }
        assert_eq!(seconds("7"), Ok(Duration::from_secs(7)));
        assert_eq!(time("7", TimeUnit::Microseconds), Ok(Duration::from_micros(7)));
        assert_eq!(time("365", TimeUnit::Days), Ok(Duration::from_secs(365 * 86_400)));
        let some = time_in(Duration::from_millis(10)..=Duration::from_secs(3600), TimeUnit::Seconds);
        assert_eq!((some("0.01"), some("1h")), (Ok(Duration::from_millis(10)), Ok(Duration::from_secs(3600))));
        assert_eq!(some("0"), Err("give a time from 10ms to 1h".to_owned()));
        assert_eq!((show_time(Duration::ZERO), show_time(Duration::from_secs(90))), ("0s".into(), "90s".into()));
        assert_eq!((seconds("1e-3"), seconds("2.")), (Ok(Duration::from_millis(1)), Ok(Duration::from_secs(2))));
        let whole = whole_in(Duration::ZERO..=Duration::from_secs(60), TimeUnit::Milliseconds);
        assert_eq!((whole("15"), whole("1s")), (Ok(15), Ok(1000)));
        assert_eq!(whole("1500us"), Err("give a whole multiple of 1ms".to_owned()));
        for wrong in ["", "s", "5 minutes", "-1s", "1e400", "nan", "-1e-3", "99999999999999999d"] {
            assert!(seconds(wrong).unwrap_err().contains("such as 500ms"), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_written_roughly_is_read_again_and_is_less_than_a_tenth_too_small() {
        for (bytes, text) in [(0, "0 B"), (10_239, "10239 B"), (10_240, "10 KiB"), (1 << 20, "1 MiB")] {
            assert_eq!(show_about_size(bytes), text);
        }
        assert_eq!((show_about_size(u64::MAX), show_about_size(3_300_000)), ("16777215 TiB".into(), "3222 KiB".into()));
        for bytes in (0..63).map(|bits| (1_u64 << bits) + 12_345) {
            let read = size(&show_about_size(bytes)).expect("it is a size");
            assert!(read <= bytes && bytes - read <= bytes / 10, "{bytes} is written as {read}");
        }
        for (micros, text) in [
            (0, "0ms"),
            (900, "0ms"),
            (1_400_000, "1400ms"),
            (12_345_678, "12s"),
            (90_000_000, "90s"),
            (7_200_000_000, "2h"),
        ] {
            assert_eq!(show_about_time(Duration::from_micros(micros)), text);
        }
        let long = seconds(&show_about_time(Duration::MAX)).expect("it is a time");
        assert!(long > Duration::from_secs(18_000_000_000), "{long:?}");
    }

    #[test]
    fn rates_are_sizes_per_second() {
        assert_eq!((rate("10MiB/s"), rate("1024")), (Ok(10 << 20), Ok(1024)));
        assert!(rate("10Mbit/s").unwrap_err().contains("such as 10MiB/s"));
    }
}
