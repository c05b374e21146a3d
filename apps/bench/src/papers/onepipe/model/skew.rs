//! Clocks that are synchronised, but not quite.

use fastrand::Rng;

use super::Profile;

/// The reading of an exact clock when the simulation begins.
pub(super) const ORIGIN_NS: u64 = 1_000_000;

/// Draws the amount by which a host's clock is off, from one synchronisation to the next, in nanoseconds: at most the
/// origin.
///
/// The tail is heavier than a normal distribution's, as the testbed's is: there the 95th percentile is 3.3 times the
/// mean.
pub(super) fn draw(profile: &Profile, rng: &mut Rng) -> i64 {
    let exponential = -(1.0 - rng.f64()).ln();
    let off = (profile.skew_ns * exponential.powf(profile.skew_exponent)).min(ORIGIN_NS as f64) as i64;
    if rng.bool() { off } else { -off }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clocks_differ_as_those_of_the_testbed() {
        let mut rng = Rng::with_seed(1);
        let testbed = Profile::TESTBED;
        let mut skews: Vec<u64> =
            (0..100_000).map(|_| draw(&testbed, &mut rng).abs_diff(draw(&testbed, &mut rng))).collect();
        skews.sort_unstable();
        let mean = skews.iter().sum::<u64>() / skews.len() as u64;
        let tail = skews[skews.len() * 95 / 100];
        assert!((285..315).contains(&mean) && (950..1_050).contains(&tail), "mean {mean} ns, 95 % {tail} ns");
    }
}
