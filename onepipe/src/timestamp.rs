//! Timestamps on the wire: 48 bits that wrap around.
//!
//! Inside a rank, stamps are *wide*: 64 bits of nanoseconds, which don't wrap in 584 years, and are compared as
//! numbers. On the wire they have 48 bits, which wrap every 78 hours; a receiver extends them next to its own clock
//! (PAWS, RFC 7323, as in the paper's §6.1). So the distance of clocks and the time of a timestamp on its way are 39
//! hours at most together, and none is [told](is_fresh) long after its time.

/// The nanoseconds after which a timestamp wraps around.
const WRAP: u64 = 1 << Timestamp::BITS;

/// Whether a wide timestamp may still be told by a rank whose clock shows `now`. Readers would take much older
/// timestamps for later ones.
#[inline]
pub(crate) fn is_fresh(stamp: u64, now: u64) -> bool {
    now.saturating_sub(stamp) < WRAP / 4
}

/// The low 48 bits of a number of nanoseconds.
///
/// It has no `Ord`: of three timestamps each may be before the next around the circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Timestamp(u64);

impl Timestamp {
    /// The number of its bits.
    pub(crate) const BITS: u32 = 48;

    /// The timestamp of a wide one, of which it keeps the low bits.
    #[inline]
    pub(crate) const fn from_nanos(nanos: u64) -> Timestamp {
        Timestamp(nanos & (WRAP - 1))
    }

    /// The nanoseconds since it last wrapped around, below 2⁴⁸.
    #[inline]
    pub(crate) const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The wide timestamp with these low bits that lies nearest to `near`.
    #[inline]
    pub(crate) const fn widen(self, near: u64) -> u64 {
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
    fn what_is_told_is_widened_right_for_hours() {
        let now = 5 * WRAP + 7;
        for stamp in [now - WRAP / 4 + 1, now, now + 1000] {
            assert!(is_fresh(stamp, now));
            assert_eq!(Timestamp::from_nanos(stamp).widen(now + WRAP / 4), stamp);
        }
        assert!(!is_fresh(now - WRAP / 4, now));
        assert!(is_fresh(9, 3), "of a clock that was behind");
    }

    #[test]
    fn widening_never_goes_below_zero() {
        assert_eq!(Timestamp::from_nanos(WRAP - 1).widen(3), WRAP - 1);
    }
}
