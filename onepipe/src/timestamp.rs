//! Timestamps as they travel: 48 bits that wrap around.
//!
//! Inside a rank, stamps are *wide*: 64 bits of nanoseconds, which don't wrap in 584 years, and are compared as numbers. On
//! the wire they have 48 bits, which wrap every 78 hours; a receiver extends them next to its own clock (PAWS, RFC 7323,
//! as in the paper's §6.1). So how far clocks are apart, and how long a timestamp is on its way, make 39 hours at most, and
//! none is [told](is_fresh) long after its time.

/// The nanoseconds after which a timestamp wraps around.
const WRAP: u64 = 1 << Timestamp::BITS;

/// Whether a wide timestamp may still be told by a rank whose clock shows `now`: readers would take much older ones for
/// later ones.
#[inline]
pub(crate) fn is_fresh(stamp: u64, now: u64) -> bool {
    now.saturating_sub(stamp) < WRAP / 4
}

/// The low 48 bits of a number of nanoseconds, compared by serial-number arithmetic.
///
/// It has no `Ord`: of three timestamps each may be before the next around the circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// How many bits it has.
    pub const BITS: u32 = 48;

    /// The timestamp of a wide one, of which it keeps the low bits.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Timestamp {
        Timestamp(nanos & (WRAP - 1))
    }

    /// Its nanoseconds since it last wrapped around, below 2⁴⁸.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whether it lies before `other`, by less than half of the circle.
    pub const fn is_before(self, other: Timestamp) -> bool {
        self.0 != other.0 && other.nanos_since(self) < WRAP / 2
    }

    /// The nanoseconds from `earlier` to this one, forwards around the circle: below 2⁴⁸.
    pub const fn nanos_since(self, earlier: Timestamp) -> u64 {
        self.0.wrapping_sub(earlier.0) & (WRAP - 1)
    }

    /// The wide timestamp with these low bits that lies nearest to `near`.
    #[inline]
    pub const fn widen(self, near: u64) -> u64 {
        // The sign of the difference is moved up to that of an i64, and back.
        let unused = 64 - Timestamp::BITS;
        let ahead = (self.0.wrapping_sub(near) << unused) as i64 >> unused;
        match near.checked_add_signed(ahead) {
            Some(wide) => wide,
            // There is nothing before the first turn of the circle.
            None => self.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_and_after_go_around_the_circle() {
        let (late, early) = (Timestamp::from_nanos(WRAP - 5), Timestamp::from_nanos(WRAP + 7));
        assert_eq!(early.as_nanos(), 7);
        assert!(late.is_before(early) && !early.is_before(late));
        assert!(!late.is_before(late));
        assert_eq!(early.nanos_since(late), 12);
        assert_eq!(late.nanos_since(early), WRAP - 12);
    }

    #[test]
    fn widening_finds_the_nearest() {
        for near in [0, 1, WRAP / 2, WRAP - 1, WRAP, WRAP + 1, 5 * WRAP - 3, 7 * WRAP + WRAP / 2] {
            for ahead in [0, 1, 1000, WRAP / 2 - 1] {
                assert_eq!(Timestamp::from_nanos(near + ahead).widen(near), near + ahead);
                if let Some(behind) = near.checked_sub(ahead) {
                    assert_eq!(Timestamp::from_nanos(behind).widen(near), behind);
                }
            }
        }
    }

    #[test]
    fn widening_never_goes_below_zero() {
        assert_eq!(Timestamp::from_nanos(WRAP - 1).widen(3), WRAP - 1);
    }
}
