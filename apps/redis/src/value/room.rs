//! The memory of collections: the sizes at which they shrink, and estimates of their bytes.

/// A collection with less than this share of its places in use is made smaller.
const SPARSE: usize = 8;

/// The number of places up to which a collection stays as it is.
const SMALL: usize = 32;

/// The number of elements that are measured to estimate all.
const SAMPLES: usize = 32;

/// The number of elements for which a collection should keep room, if that is much less than it has.
pub(super) fn surplus(len: usize, capacity: usize) -> Option<usize> {
    (capacity > SMALL && len < capacity / SPARSE).then_some(2 * len)
}

/// The bytes of a table with `capacity` places for entries of `entry_bytes`, which are stored beside their hashes.
pub(super) fn table_bytes(capacity: usize, entry_bytes: usize) -> usize {
    /// The index of an entry: its place, and a byte of its hash.
    const INDEX_BYTES: usize = size_of::<usize>() + 1;
    let indices = if capacity == 0 { 0 } else { (capacity * 8 / 7).next_power_of_two() };
    capacity * (size_of::<u64>() + entry_bytes) + indices * INDEX_BYTES
}

/// The sum of `bytes` over all places: exact where there are few, and an estimate from samples where there are many.
pub(super) fn sum_bytes(len: usize, bytes: impl Fn(usize) -> usize) -> usize {
    let samples = len.min(SAMPLES);
    if samples == 0 {
        return 0;
    }
    let sum: usize = (0..samples).map(|sample| bytes(sample * len / samples)).sum();
    (sum as u128 * len as u128 / samples as u128) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_elements_are_measured_exactly_and_many_by_some() {
        assert_eq!(sum_bytes(0, |_| unreachable!("there are none")), 0);
        assert_eq!(sum_bytes(20, |place| place), 190);
        assert_eq!(sum_bytes(1_000_000, |_| 3), 3_000_000);
    }
}
