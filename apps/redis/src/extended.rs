//! Numbers with a mantissa of 64 bits. Redis on x86-64, where `long double` is such a number, uses them in
//! `INCRBYFLOAT`.
//!
//! So the sums are Redis' to the last digit, and the same on machines that have no such numbers.

use std::fmt;

use num_bigint::BigInt;

/// The longest text that Redis takes for such a number, in bytes.
const MAX_BYTES: usize = 5 * 1024 - 1;

/// The number of bits of a mantissa.
const BITS: i64 = 64;

/// The highest bit of a finite number stands for at most this power of two.
const MAX_POWER: i64 = 16383;

/// The highest bit of a number stands for at least this power of two. Redis has fewer bits for a number near this, but
/// shows it as 0.
const MIN_POWER: i64 = -16445;

/// The greatest power of ten, and with the sign turned the smallest, of a text with a number within these limits.
const MAX_POWER_OF_TEN: i64 = 11_000;

/// The most digits after the point that are written.
const DECIMALS: usize = 17;

/// A finite number, or an infinite one: `mantissa` × 2^`exponent`.
#[derive(Debug)]
pub struct Extended {
    mantissa: BigInt,
    exponent: i64,
}

impl Extended {
    /// The exponent of both infinities. Their only use is that a sum with one is refused.
    const INFINITE: i64 = i64::MAX;

    /// Reads a decimal number, or an infinite one. None where Redis reads none, and for hexadecimal ones.
    pub fn parse(text: &[u8]) -> Option<Extended> {
        let text = str::from_utf8(text).ok().filter(|text| text.len() <= MAX_BYTES)?;
        // The syntax is that of Rust's own numbers, but for "nan".
        if text.parse::<f64>().ok()?.is_nan() {
            return None;
        }
        if text.contains(['i', 'I']) {
            return Some(Extended { mantissa: BigInt::ZERO, exponent: Extended::INFINITE });
        }
        let (digits, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, decimals) = digits.split_once('.').unwrap_or((digits, ""));
        let digits: BigInt = format!("{whole}{decimals}").parse().ok()?;
        if digits == BigInt::ZERO {
            return Some(Extended { mantissa: digits, exponent: 0 });
        }
        let power: i64 = power.parse().ok().filter(|power| (-MAX_POWER_OF_TEN..=MAX_POWER_OF_TEN).contains(power))?;
        let power = power - decimals.len() as i64;
        let ten = BigInt::from(10).pow(power.unsigned_abs() as u32);
        if power >= 0 {
            return rounded(digits * ten, 0);
        }
        // Two bits more than a mantissa has, and a last one that stands for all that follow.
        let shift = (BITS + 2 + ten.bits() as i64 - digits.bits() as i64).max(0);
        let digits = digits << shift;
        let rest = &digits % &ten;
        let last = i32::from(rest > BigInt::ZERO) - i32::from(rest < BigInt::ZERO);
        rounded(digits / ten * 2 + last, -shift - 1).filter(|number| number.highest_power() >= MIN_POWER)
    }

    /// Whether the number is finite.
    pub fn is_finite(&self) -> bool {
        self.exponent != Extended::INFINITE
    }

    /// The sum. None if it is not finite.
    pub fn checked_add(self, other: Extended) -> Option<Extended> {
        if !self.is_finite() || !other.is_finite() {
            return None;
        }
        let exponent = self.exponent.min(other.exponent);
        rounded(
            (self.mantissa << (self.exponent - exponent)) + (other.mantissa << (other.exponent - exponent)),
            exponent,
        )
    }

    /// The power of two for which the highest bit stands.
    fn highest_power(&self) -> i64 {
        self.exponent + self.mantissa.bits() as i64 - 1
    }
}

/// Writes at most 17 digits after the point, without an exponent.
impl fmt::Display for Extended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_finite() {
            return f.write_str("inf");
        }
        if self.exponent >= 0 {
            return write!(f, "{}", &self.mantissa << self.exponent);
        }
        let scaled = nearest(&self.mantissa * 10u64.pow(DECIMALS as u32), -self.exponent);
        let text = format!("{:0width$}", scaled.magnitude(), width = DECIMALS + 1);
        let (whole, decimals) = text.split_at(text.len() - DECIMALS);
        let sign = if scaled < BigInt::ZERO { "-" } else { "" };
        f.write_str(format!("{sign}{whole}.{decimals}").trim_end_matches('0').trim_end_matches('.'))
    }
}

/// The number nearest to `exact` × 2^`exponent`. None if it is too large.
fn rounded(exact: BigInt, exponent: i64) -> Option<Extended> {
    let excess = (exact.bits() as i64 - BITS).max(0);
    let number = Extended { mantissa: nearest(exact, excess), exponent: exponent + excess };
    (number.highest_power() <= MAX_POWER).then_some(number)
}

/// The whole number nearest to `number` / 2^`power`; of two, the even one.
fn nearest(number: BigInt, power: i64) -> BigInt {
    if power == 0 {
        return number;
    }
    let is_odd = number.bit(power as u64);
    (number + (BigInt::from(1) << (power - 1)) - 1 + i32::from(is_odd)) >> power
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(left: &str, right: &str) -> Option<String> {
        let parse = |text: &str| Extended::parse(text.as_bytes());
        Some(parse(left)?.checked_add(parse(right)?)?.to_string())
    }

    #[test]
    fn sums_are_those_of_redis() {
        for (left, right, expected) in [
            ("0.1", "0.2", "0.3"),
            ("10.50", "0.1", "10.6"),
            ("10.6", "-5", "5.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("3", "1.", "4"),
            (".5", "+.25", "0.75"),
            ("1", "-1", "0"),
            ("-0", "0", "0"),
            ("-1e-18", "0", "0"),
            ("1e-17", "0", "0.00000000000000001"),
            ("17179869184", "1.5", "17179869185.5"),
            ("18446744073709551615", "1", "18446744073709551616"),
            ("18446744073709551616", "1", "18446744073709551616"),
            ("1e20", "-1e20", "0"),
            ("1e22", "0.5", "10000000000000000000000"),
        ] {
            assert_eq!(sum(left, right).as_deref(), Some(expected), "{left} + {right}");
        }
    }

    #[test]
    fn what_is_no_number_or_not_finite_is_refused() {
        for text in ["", "-", ".", "e1", "1e", "1e+", " 1", "1 ", "1.2.3", "nan", "0x10", "1e5000", "1e-5000", "--1"] {
            assert!(Extended::parse(text.as_bytes()).is_none(), "{text:?}");
        }
        assert!(Extended::parse(&b"1".repeat(MAX_BYTES + 1)).is_none());
        assert_eq!(sum("inf", "1"), None);
        assert_eq!(sum("-Infinity", "inf"), None);
        assert_eq!(sum("1e4932", "1e4932"), None);
    }

    proptest! {
        #[test]
        fn whole_numbers_are_added_exactly(left in any::<i64>(), right in any::<i64>()) {
            let (left, right) = (left / 2, right / 2);
            prop_assert_eq!(sum(&left.to_string(), &right.to_string()), Some((left + right).to_string()));
        }

        #[test]
        fn what_is_written_is_near_and_read_back_the_same(number in -1e15..1e15, shift in 0i32..12) {
            let number: f64 = number / 10f64.powi(shift);
            let text = number.to_string();
            let read = Extended::parse(text.as_bytes()).expect("it is a number").to_string();
            let error = (read.parse::<f64>().expect("it is a number") - number).abs();
            prop_assert!(error <= number.abs() * f64::EPSILON + 1e-17);
            prop_assert_eq!(Extended::parse(read.as_bytes()).expect("it is a number").to_string(), read);
        }

        #[test]
        fn no_text_panics(text in "[-+0-9.eE]{0,40}", other in "[-+]?[0-9]{1,30}(\\.[0-9]{0,30})?(e-?[0-9]{1,4})?") {
            let parse = |text: &str| Extended::parse(text.as_bytes()).map(|number| number.to_string());
            let _ = (parse(&text), parse(&other), sum(&text, &other), sum(&other, &other));
        }
    }
}
