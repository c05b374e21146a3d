//! Sizes in the notation that people write.

use std::ops::RangeInclusive;

/// Reads a number of bytes: `4096`, `"64KiB"`, `"4 MiB"`, `"1GiB"`. Returns None for any other text.
///
/// Only powers of 1024 have names here: readers do not agree on the meaning of `MB`.
pub(super) fn parse(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit: usize = match unit.trim_start() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    number.replace('_', "").parse::<usize>().ok()?.checked_mul(unit)
}

/// Writes a number of bytes so that [`parse`] reads it, with the largest unit that leaves a whole number.
pub(crate) fn show(bytes: usize) -> String {
    for (unit, name) in [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes > 0 && bytes.is_multiple_of(unit) {
            return format!("{} {name}", bytes / unit);
        }
    }
    format!("{bytes} B")
}

pub(super) fn show_range(range: RangeInclusive<usize>) -> String {
    format!("{} to {}", show(*range.start()), show(*range.end()))
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("1_024", 1024), ("64KiB", 65_536), (" 4 MiB ", 4 << 20), ("1GiB", 1 << 30)]
        {
            assert_eq!(parse(text), Some(bytes), "{text:?}");
            assert_eq!(parse(&show(bytes)), Some(bytes), "{text:?}");
        }
        for wrong in ["", "MiB", "4MB", "4 mib", "-1", "1.5MiB", "4MiB!", "99999999999GiB", "_"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
        assert_eq!(show(1536), "1536 B");
        assert_eq!(show(4 << 20), "4 MiB");
    }
}
