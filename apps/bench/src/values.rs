//! The values that options of several benchmarks take.

use std::{ops::RangeInclusive, time::Duration};

use squall_units::TimeUnit;

/// The most bytes that are written into one region.
const MAX_SIZE: usize = 1 << 40;

/// Reads the time that a benchmark measures. A number alone is in seconds.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    squall_units::time_in(Duration::from_millis(1)..=Duration::from_secs(86_400), TimeUnit::Seconds)(text)
}

/// Reads the size of data, which is not empty.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    squall_units::size_in(1..=MAX_SIZE)(text)
}

/// Reads the bytes that a link moves in a second.
pub(crate) fn link_rate(text: &str) -> Result<usize, String> {
    let rate = squall_units::rate(text)?;
    usize::try_from(rate)
        .ok()
        .filter(|rate| (1..=MAX_SIZE).contains(rate))
        .ok_or_else(|| "give a rate from 1 B/s to 1 TiB/s".to_owned())
}

/// Reads the size of a reserve, or a threshold.
pub(crate) fn reserve(text: &str) -> Result<usize, String> {
    squall_units::size_in(0..=MAX_SIZE)(text)
}

/// Returns a function that reads the size of a ring.
pub(crate) fn ring(range: RangeInclusive<usize>) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| {
        let bytes = squall_units::size_in(range.clone())(text);
        let sizes = squall_units::show_sizes(range.clone());
        bytes.ok().filter(|bytes| bytes.is_power_of_two()).ok_or_else(|| format!("give a power of two from {sizes}"))
    }
}
