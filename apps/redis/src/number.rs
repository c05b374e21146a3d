//! Numbers as Redis reads and writes them.

/// Reads a whole number as Redis does: decimal, no sign but a minus, no leading zero, no space.
pub fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let plain = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', rest @ ..] if rest.len() < 19 => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !plain {
        return None;
    }
    str::from_utf8(text).ok()?.parse().ok()
}

/// Reads a number that need not be whole, as Redis does, except for hexadecimal ones, which only Redis takes. "inf" and
/// "-inf" are numbers. "nan" is none, and neither is one that is too large, or too near to 0.
pub fn float(text: &[u8]) -> Option<f64> {
    let number: f64 = str::from_utf8(text).ok()?.parse().ok()?;
    let is_spelled_out = || text.iter().any(|byte| matches!(byte, b'i' | b'I'));
    let digits = || text.iter().take_while(|byte| !matches!(byte, b'e' | b'E'));
    let is_read = match number {
        f64::INFINITY | f64::NEG_INFINITY => is_spelled_out(),
        0.0 => !digits().any(|byte| matches!(byte, b'1'..=b'9')),
        _ => !number.is_nan(),
    };
    is_read.then_some(number)
}

/// Writes a number that need not be whole, as Redis 7.2 does: as the shortest text that reads back as the number.
pub fn double(number: f64) -> String {
    /// The limit up to which Redis writes whole numbers without an exponent.
    const WHOLE: f64 = (1u64 << 62) as f64;
    if !number.is_finite() || number == 0.0 {
        return number.to_string().to_ascii_lowercase();
    }
    if number.abs() <= WHOLE && number.trunc() == number {
        return (number as i64).to_string();
    }
    let text = format!("{number:e}");
    let (mantissa, power) = text.split_once('e').expect("it was written with an exponent");
    let power: i32 = power.parse().expect("it was just written");
    let (sign, mantissa) = mantissa.split_at(usize::from(number < 0.0));
    let digits = mantissa.replace('.', "");
    // The power of ten for which the last digit stands.
    let last = power + 1 - digits.len() as i32;
    if last < 0 && (last > -7 || power.abs() < 4) {
        return match power {
            0.. => format!("{sign}{}.{}", &digits[..power as usize + 1], &digits[power as usize + 1..]),
            _ => format!("{sign}0.{}{digits}", "0".repeat(power.unsigned_abs() as usize - 1)),
        };
    }
    if (0..8).contains(&last) {
        return format!("{sign}{digits}{}", "0".repeat(last as usize));
    }
    let e = if power < 0 { "e" } else { "e+" };
    format!("{sign}{mantissa}{e}{power}")
}

/// The number of bytes that a number takes in decimal, its sign included.
pub fn digits(number: i64) -> usize {
    let digits = number.unsigned_abs().checked_ilog10().map_or(1, |log| log as usize + 1);
    digits + usize::from(number < 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_plain_decimal_numbers_are_numbers() {
        for text in ["", "-", "+1", "01", "-0", " 1", "1 ", "1.0", "9223372036854775808", "99999999999999999999", "x"] {
            assert_eq!(integer(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn numbers_that_need_not_be_whole_are_read_as_in_redis() {
        for (text, number) in [("1", 1.0), ("+.5", 0.5), ("5.", 5.0), ("1e-2", 0.01), ("-0", 0.0), ("0e-999", 0.0)] {
            assert_eq!(float(text.as_bytes()), Some(number), "{text:?}");
        }
        for (text, number) in [("inf", f64::INFINITY), ("-Infinity", f64::NEG_INFINITY), ("+INF", f64::INFINITY)] {
            assert_eq!(float(text.as_bytes()), Some(number), "{text:?}");
        }
        for text in ["", ".", "-", "nan", "-nan", " 1", "1 ", "1e", "0x10", "1e400", "1e-400", "1,5", "infi", "1\0"] {
            assert_eq!(float(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn numbers_that_need_not_be_whole_are_written_as_in_redis() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (3.0, "3"),
            (-1.5, "-1.5"),
            (1e18, "1000000000000000000"),
            (1e20, "1e+20"),
            (-1.25e25, "-1.25e+25"),
            (123_456_789_012_345_680_000.0, "123456789012345680000"),
            (0.000_001, "0.000001"),
            (1e-7, "1e-7"),
            (1.5e-7, "1.5e-7"),
            (0.001_234_567_890_123, "0.001234567890123"),
            (0.000_012_345_678, "1.2345678e-5"),
            (2.345_678_912_345_678, "2.345678912345678"),
            (23_456.789_123_456_78, "2.345678912345678e+4"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::MIN_POSITIVE, "2.2250738585072014e-308"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(double(number), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(number in any::<f64>().prop_filter("a number", |number| !number.is_nan())) {
            prop_assert_eq!(float(double(number).as_bytes()), Some(number));
        }

        #[test]
        fn a_number_is_read_back_and_has_its_digits(number in any::<i64>(), shift in 0u32..64) {
            let number: i64 = number >> shift;
            let text = number.to_string();
            prop_assert_eq!(integer(text.as_bytes()), Some(number));
            prop_assert_eq!(digits(number), text.len());
        }
    }
}
