//! Times in the form that people write.

use squall::Hlc;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Reads a time: as in RFC 3339, or in seconds since 1970.
pub(super) fn parse(text: &str) -> Result<Hlc, String> {
    let nanos = match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() => seconds_as_nanos(text, seconds),
        _ => OffsetDateTime::parse(text, &Rfc3339).ok().map(OffsetDateTime::unix_timestamp_nanos),
    };
    let nanos = nanos.and_then(|nanos| u64::try_from(nanos).ok());
    nanos.map(Hlc).ok_or_else(|| {
        "give a time of RFC 3339, such as 2026-11-22T12:00:00Z or 2026-11-22T13:00:00.5+01:00, or seconds since 1970".to_owned()
    })
}

/// A time in seconds as nanoseconds. Up to nine decimals are exact, where floating point would lose some.
fn seconds_as_nanos(text: &str, seconds: f64) -> Option<i128> {
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    match (whole.parse::<i128>(), rest.len() <= 9 && rest.bytes().all(|digit| digit.is_ascii_digit())) {
        (Ok(whole), true) if whole >= 0 => {
            let rest: i128 = if rest.is_empty() { 0 } else { format!("{rest:0<9}").parse().ok()? };
            whole.checked_mul(1_000_000_000)?.checked_add(rest)
        }
        _ => Some((seconds * 1e9) as i128),
    }
}

/// A time as in RFC 3339, to the nanosecond.
pub(super) fn show(time: Hlc) -> String {
    let time_of_day = OffsetDateTime::from_unix_timestamp_nanos(time.0.into()).ok();
    time_of_day.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_shown() {
        for nanos in [0, 1, 1_700_000_000_000_000_000, 1_795_348_800_123_456_789] {
            assert_eq!(parse(&show(Hlc(nanos))), Ok(Hlc(nanos)));
        }
        assert_eq!(parse("2026-11-22T13:00:00.5+01:00"), parse("2026-11-22T12:00:00.500Z"));
    }

    #[test]
    fn seconds_since_1970_are_exact() {
        assert_eq!(parse("1795348800.123456789"), Ok(Hlc(1_795_348_800_123_456_789)));
        assert_eq!(parse("1795348800"), Ok(Hlc(1_795_348_800_000_000_000)));
        assert_eq!(parse("1e3"), Ok(Hlc(1_000_000_000_000)));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in ["", "yesterday", "2026-11-22", "-1", "-0.5e9", "NaN", "inf", "1e30", "1950-01-01T00:00:00Z"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
