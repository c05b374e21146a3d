//! Histograms of nanoseconds.

use hdrhistogram::Histogram;

/// An empty histogram: three significant digits up to a minute. Recording in it allocates nothing.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order")
}

/// The recorded values: (nanoseconds, count).
pub(crate) fn recorded(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
    histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
}

/// All latencies of several workers.
pub(crate) fn merged<'a>(parts: impl Iterator<Item = &'a Vec<(u64, u64)>>) -> Histogram<u64> {
    let mut merged = histogram();
    for &(nanos, count) in parts.flatten() {
        merged.saturating_record_n(nanos, count);
    }
    merged
}

/// A quantile in microseconds. None if nothing was recorded.
pub(crate) fn micros(histogram: &Histogram<u64>, quantile: f64) -> Option<f64> {
    (!histogram.is_empty()).then(|| histogram.value_at_quantile(quantile) as f64 / 1000.0)
}
