//! Numbers with a mantissa of 64 bits. Redis on x86-64, where `long double` is such a number, uses them in
//! `INCRBYFLOAT`.
//!
//! So the sums are Redis' to the last digit, and the same on machines that have no such numbers.

use std::{cmp::Ordering, fmt};

/// The longest text that Redis takes for such a number, in bytes.
const MAX_BYTES: usize = 5 * 1024 - 1;

/// The highest bit of a finite number stands for at most this power of two.
const MAX_POWER: i32 = 16383;

/// The highest bit of a number stands for at least this power of two. Redis has fewer bits for a number near this, but
/// shows it as 0.
const MIN_POWER: i32 = -16445;

/// The most digits after the point that are written.
const DECIMALS: u32 = 17;

/// A finite number, or an infinite one: `mantissa` × 2^`exponent`. The mantissa's highest bit is set, unless it is 0.
#[derive(Clone, Copy, Debug)]
pub struct Extended {
    negative: bool,
    mantissa: u64,
    exponent: i32,
}

impl Extended {
    const ZERO: Extended = Extended { negative: false, mantissa: 0, exponent: 0 };

    /// The value of both infinities. Their only use is that a sum with one is refused.
    const INFINITE: Extended = Extended { negative: false, mantissa: 1 << 63, exponent: i32::MAX };

    /// Reads a decimal number, or an infinite one. None where Redis reads none, and for hexadecimal ones.
    pub fn parse(text: &[u8]) -> Option<Extended> {
        if text.len() > MAX_BYTES {
            return None;
        }
        let (negative, text) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            _ => (false, text),
        };
        if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") {
            return Some(Extended::INFINITE);
        }
        let end = text.iter().position(|byte| matches!(byte, b'e' | b'E')).unwrap_or(text.len());
        let mut power = text.get(end + 1..).map_or(Some(0), power)?;
        let mut digits = Vec::with_capacity(end);
        let mut point = false;
        for byte in &text[..end] {
            match byte {
                b'0'..=b'9' => {
                    digits.push(byte - b'0');
                    power -= i64::from(point);
                }
                b'.' if !point => point = true,
                _ => return None,
            }
        }
        if digits.is_empty() {
            return None;
        }
        let leading = digits.iter().take_while(|&&digit| digit == 0).count();
        digits.drain(..leading);
        while digits.pop_if(|digit| *digit == 0).is_some() {
            power += 1;
        }
        if digits.is_empty() {
            return Some(Extended { negative, ..Extended::ZERO });
        }
        // Far outside of the range of numbers, yet small enough that the numbers below do not become large.
        if !(-5000..=5000).contains(&(digits.len() as i64 + power)) {
            return None;
        }
        if let (..=38, -18..=0) = (digits.len(), power) {
            return short_quotient(&digits, power.unsigned_abs() as u32, negative);
        }
        let (mut numerator, mut denominator) = (Natural::from_digits(&digits), Natural::one());
        if power < 0 { &mut denominator } else { &mut numerator }.times_ten_to(power.unsigned_abs() as u32);
        quotient(numerator, denominator, negative)
    }

    /// Whether the number is finite.
    pub fn is_finite(self) -> bool {
        self.exponent != i32::MAX
    }

    /// The sum. None if it is not finite.
    pub fn checked_add(self, other: Extended) -> Option<Extended> {
        if !self.is_finite() || !other.is_finite() {
            return None;
        }
        let (large, small) = match (self.mantissa, other.mantissa) {
            (_, 0) => return Some(self),
            (0, _) => return Some(other),
            _ if self.exponent >= other.exponent => (self, other),
            _ => (other, self),
        };
        // One bit is left for the carry.
        let wide = |mantissa| u128::from(mantissa) << 63;
        let shift = large.exponent.abs_diff(small.exponent);
        let shifted = wide(small.mantissa).checked_shr(shift).unwrap_or(0);
        let rest = shifted.checked_shl(shift).unwrap_or(0) != wide(small.mantissa);
        let exponent = large.exponent - 63;
        if large.negative == small.negative {
            return rounded(large.negative, wide(large.mantissa) + shifted, exponent, rest);
        }
        match wide(large.mantissa).cmp(&shifted) {
            Ordering::Equal => Some(Extended::ZERO),
            Ordering::Less => rounded(small.negative, shifted - wide(large.mantissa), exponent, false),
            Ordering::Greater => {
                rounded(large.negative, wide(large.mantissa) - shifted - u128::from(rest), exponent, rest)
            }
        }
    }
}

/// Writes at most 17 digits after the point, without an exponent.
impl fmt::Display for Extended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = if self.exponent == i32::MAX {
            "inf".to_owned()
        } else if self.exponent >= 0 {
            let mut whole = Natural::from_u64(self.mantissa);
            whole.shift_left(self.exponent.unsigned_abs());
            whole.into_decimal()
        } else {
            let unit = 10u128.pow(DECIMALS);
            let scaled = u128::from(self.mantissa) * unit;
            let shift = self.exponent.unsigned_abs();
            let floor = scaled.checked_shr(shift).unwrap_or(0);
            let rest = if shift < u128::BITS { scaled - (floor << shift) } else { 0 };
            let half = 1u128.checked_shl(shift - 1).unwrap_or(u128::MAX);
            let up = rest > half || (rest == half && floor % 2 == 1);
            let near = floor + u128::from(up);
            let text = format!("{}.{:017}", near / unit, near % unit);
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        };
        let sign = if self.negative && text != "0" { "-" } else { "" };
        write!(f, "{sign}{text}")
    }
}

/// Reads the digits after the `e`. Exponents far outside of the range are capped.
fn power(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let power = digits.iter().fold(0, |power: i64, digit| (10 * power + i64::from(digit - b'0')).min(1_000_000));
    Some(if negative { -power } else { power })
}

/// The number nearest to one of at most 38 digits, of which at most 18 are decimals. Sums are written in this form.
fn short_quotient(digits: &[u8], decimals: u32, negative: bool) -> Option<Extended> {
    let number = digits.iter().fold(0, |number, &digit| 10 * number + u128::from(digit));
    let shift = number.leading_zeros();
    let (wide, denominator) = (number << shift, u128::from(10u64.pow(decimals)));
    // 128 bits, divided by at most 60, leave more than a mantissa has.
    rounded(negative, wide / denominator, -(shift as i32), wide % denominator != 0)
}

/// The number nearest to a quotient. None if it is too large, or too near to 0.
fn quotient(mut numerator: Natural, mut denominator: Natural, negative: bool) -> Option<Extended> {
    // Two bits more than the mantissa has, and one since the first may be 0.
    const BITS: i32 = 67;
    let (above, below) = (numerator.bits(), denominator.bits());
    numerator.shift_left(below.saturating_sub(above));
    denominator.shift_left(above.saturating_sub(below));
    let mut bits = 0u128;
    for _ in 0..BITS {
        let fits = numerator.cmp(&denominator) != Ordering::Less;
        if fits {
            numerator.subtract(&denominator);
        }
        bits = bits << 1 | u128::from(fits);
        numerator.shift_left(1);
    }
    let exponent = above as i32 - below as i32 - (BITS - 1);
    rounded(negative, bits, exponent, numerator.bits() > 0).filter(|number| number.exponent + 63 >= MIN_POWER)
}

/// The number nearest to `bits` × 2^`exponent`, or, if there is a rest, to a little more. None if it is too large.
fn rounded(negative: bool, bits: u128, exponent: i32, rest: bool) -> Option<Extended> {
    let excess = 64 - bits.leading_zeros() as i32;
    let (mut mantissa, mut exponent) = if excess <= 0 {
        ((bits << -excess) as u64, exponent + excess)
    } else {
        let (kept, lost, half) = (bits >> excess, bits & ((1 << excess) - 1), 1 << (excess - 1));
        let up = lost > half || (lost == half && (rest || kept % 2 == 1));
        ((kept as u64).wrapping_add(u64::from(up)), exponent + excess)
    };
    // A mantissa of ones was rounded up, and has wrapped to 0.
    if mantissa == 0 {
        (mantissa, exponent) = (1 << 63, exponent + 1);
    }
    (exponent + 63 <= MAX_POWER).then_some(Extended { negative, mantissa, exponent })
}

/// A whole number of any size: 32 bits in each place, the lowest first, the highest not 0.
#[derive(Debug, PartialEq, Eq)]
struct Natural(Vec<u32>);

impl Natural {
    fn one() -> Natural {
        Natural(vec![1])
    }

    fn from_u64(number: u64) -> Natural {
        let mut all = Natural(vec![number as u32, (number >> 32) as u32]);
        all.trim();
        all
    }

    fn from_digits(digits: &[u8]) -> Natural {
        let mut all = Natural(Vec::with_capacity(digits.len() / 9 + 1));
        for nine in digits.chunks(9) {
            let number = nine.iter().fold(0, |number, &digit| 10 * number + u32::from(digit));
            all.times_plus(10u32.pow(nine.len() as u32), number);
        }
        all
    }

    fn trim(&mut self) {
        while self.0.pop_if(|place| *place == 0).is_some() {}
    }

    fn bits(&self) -> u32 {
        self.0.last().map_or(0, |high| 32 * self.0.len() as u32 - high.leading_zeros())
    }

    fn cmp(&self, other: &Natural) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    fn times_plus(&mut self, factor: u32, more: u32) {
        let mut carry = u64::from(more);
        for place in &mut self.0 {
            carry += u64::from(*place) * u64::from(factor);
            *place = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    fn times_ten_to(&mut self, mut power: u32) {
        while power > 0 {
            let step = power.min(9);
            self.times_plus(10u32.pow(step), 0);
            power -= step;
        }
    }

    fn shift_left(&mut self, bits: u32) {
        if self.0.is_empty() || bits == 0 {
            return;
        }
        self.times_plus(1 << (bits % 32), 0);
        if bits >= 32 {
            self.0.splice(..0, std::iter::repeat_n(0, bits as usize / 32));
        }
    }

    /// Subtracts a number that is not larger.
    fn subtract(&mut self, other: &Natural) {
        let mut borrow = false;
        for (place, &less) in self.0.iter_mut().zip(other.0.iter().chain(std::iter::repeat(&0))) {
            let (left, first) = place.overflowing_sub(less);
            let (left, second) = left.overflowing_sub(u32::from(borrow));
            (*place, borrow) = (left, first || second);
        }
        self.trim();
    }

    fn into_decimal(mut self) -> String {
        let mut nines = Vec::new();
        while !self.0.is_empty() {
            let rest = self.0.iter_mut().rev().fold(0, |rest, place| {
                let whole = rest << 32 | u64::from(*place);
                *place = (whole / 1_000_000_000) as u32;
                whole % 1_000_000_000
            });
            nines.push(rest);
            self.trim();
        }
        let mut text = nines.pop().unwrap_or(0).to_string();
        nines.iter().rev().for_each(|nine| text.push_str(&format!("{nine:09}")));
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

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
        fn a_short_number_is_read_as_a_long_one_is(digits in vec(0u8..10, 1..39), decimals in 0u32..19) {
            prop_assume!(digits[0] > 0);
            let short = short_quotient(&digits, decimals, false).expect("it is in range");
            let mut denominator = Natural::one();
            denominator.times_ten_to(decimals);
            let long = quotient(Natural::from_digits(&digits), denominator, false).expect("it is in range");
            prop_assert_eq!((short.mantissa, short.exponent), (long.mantissa, long.exponent));
        }

        #[test]
        fn no_text_panics(text in "[-+0-9.eE]{0,40}", other in "[-+]?[0-9]{1,30}(\\.[0-9]{0,30})?(e-?[0-9]{1,4})?") {
            let parse = |text: &str| Extended::parse(text.as_bytes()).map(|number| number.to_string());
            let _ = (parse(&text), parse(&other), sum(&text, &other), sum(&other, &other));
        }
    }
}
