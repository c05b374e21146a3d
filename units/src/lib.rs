//! Sizes, times and rates in the notation that people write: one for options, configuration files and variables of the
//! environment.
//!
//! | value | notation | a number alone |
//! |---|---|---|
//! | size | `4096`, `64KiB`, `4 MiB`, `1GiB`, `1TiB` | bytes |
//! | time | `200us`, `500ms`, `5s`, `10m`, `2h`, `7d` | in the unit of the option or key |
//! | rate | `10MiB/s`, `10MiB` | bytes per second |

use std::{ops::RangeInclusive, time::Duration};

/// The units of sizes. Only powers of 1024 have names: readers do not agree on the meaning of `MB`.
const SIZES: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

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
}

impl TimeUnit {
    fn name(self) -> &'static str {
        match self {
            TimeUnit::Seconds => "s",
            TimeUnit::Milliseconds => "ms",
            TimeUnit::Microseconds => "us",
        }
    }
}

/// Splits a text into its number and its unit.
fn split(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let digits = text.find(|char: char| !char.is_ascii_digit() && char != '_').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    Some((number.replace('_', "").parse().ok()?, unit.trim_start()))
}

/// Reads a number of bytes: `4096`, `64KiB`, `4 MiB`. The error says what is wanted.
pub fn size(text: &str) -> Result<u64, String> {
    let read = || {
        let (number, unit) = split(text)?;
        let (bytes, _) = [(1, ""), (1, "B")].into_iter().chain(SIZES).find(|(_, name)| *name == unit)?;
        number.checked_mul(bytes)
    };
    read().ok_or_else(|| "give a size such as 4096, 64KiB or 4MiB".to_owned())
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
        let (nanos, _) = TIMES.into_iter().find(|(_, known)| *known == name)?;
        number.checked_mul(nanos).map(Duration::from_nanos)
    };
    read().ok_or_else(|| "give a time such as 500ms, 5s or 10m".to_owned())
}

/// Reads a time of which a number alone is in seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    time(text, TimeUnit::Seconds)
}

/// Reads a time of which a number alone is in milliseconds.
pub fn milliseconds(text: &str) -> Result<Duration, String> {
    time(text, TimeUnit::Milliseconds)
}

/// Reads a time of which a number alone is in microseconds.
pub fn microseconds(text: &str) -> Result<Duration, String> {
    time(text, TimeUnit::Microseconds)
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
        {
            assert_eq!(size(text), Ok(bytes), "{text:?}");
            assert_eq!(size(&show_size(bytes as usize)), Ok(bytes), "{text:?}");
        }
        for wrong in ["", "MiB", "4MB", "4 mib", "-1", "1.5MiB", "4MiB!", "99999999999GiB", "_"] {
            assert!(size(wrong).unwrap_err().contains("such as 4096, 64KiB"), "{wrong:?}");
        }
        assert_eq!(show_size(1536), "1536 B");
        assert_eq!(show_size(4 << 20), "4 MiB");
        assert_eq!(show_sizes(1024..=2 << 20), "1 KiB to 2 MiB");
    }

    #[test]
    fn times_are_read_in_any_unit_and_numbers_alone_in_their_own() {
        for (text, micros) in
            [("200us", 200), ("500ms", 500_000), ("5 s", 5_000_000), ("10m", 600_000_000), ("7", 7_000)]
        {
            let time = Duration::from_micros(micros);
            assert_eq!(milliseconds(text), Ok(time), "{text:?}");
            assert_eq!(milliseconds(&show_time(time)), Ok(time), "{text:?}");
        }
        assert_eq!((seconds("7"), microseconds("7")), (Ok(Duration::from_secs(7)), Ok(Duration::from_micros(7))));
        assert_eq!((show_time(Duration::ZERO), show_time(Duration::from_secs(90))), ("0s".into(), "90s".into()));
        for wrong in ["", "s", "5 minutes", "1.5s", "-1s", "99999999999999999d"] {
            assert!(seconds(wrong).unwrap_err().contains("such as 500ms"), "{wrong:?}");
        }
    }

    #[test]
    fn rates_are_sizes_per_second() {
        assert_eq!((rate("10MiB/s"), rate("1024")), (Ok(10 << 20), Ok(1024)));
        assert!(rate("10Mbit/s").unwrap_err().contains("such as 10MiB/s"));
    }
}
