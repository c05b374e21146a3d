//! Scales: from values to pixels, and the places of the ticks.

/// The unit of an axis, which decides how its ticks are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Plain numbers.
    Number,
    /// Bytes: ticks at powers of two, written in KB and MB.
    Bytes,
}

/// One axis of a chart.
#[derive(Clone, Debug)]
pub struct Axis {
    label: String,
    unit: Unit,
    logarithmic: bool,
}

/// An axis with its ends, which follow from a chart's data.
#[derive(Debug)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// Values, and the text at each.
    pub(super) ticks: Vec<(f64, String)>,
}

/// The number of ticks that reads well, about.
const TICKS: f64 = 6.0;

impl Axis {
    /// An axis from zero, in equal steps.
    pub fn linear(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), unit: Unit::Number, logarithmic: false }
    }

    /// An axis in equal factors. Values that are not positive can't be shown.
    pub fn logarithmic(label: impl Into<String>, unit: Unit) -> Axis {
        Axis { label: label.into(), unit, logarithmic: true }
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Whether a value has a place on it.
    pub(super) fn shows(&self, value: f64) -> bool {
        value.is_finite() && (!self.logarithmic || value > 0.0)
    }

    /// The scale on which all `values` have a place.
    pub(super) fn scale(&self, values: impl Iterator<Item = f64>) -> Scale {
        let shown = values.filter(|&value| self.shows(value));
        let ends =
            shown.fold(None, |ends: Option<(f64, f64)>, v| Some(ends.map_or((v, v), |(a, b)| (a.min(v), b.max(v)))));
        let (low, high) = ends.unwrap_or((1.0, 2.0));
        if self.logarithmic { self.factors(low, high) } else { self.steps(high.max(f64::MIN_POSITIVE)) }
    }

    fn factors(&self, low: f64, high: f64) -> Scale {
        let base: f64 = if self.unit == Unit::Bytes { 2.0 } else { 10.0 };
        let exponent = |value: f64| value.ln() / base.ln();
        let (mut first, mut last) = ((exponent(low) + 1e-9).floor() as i32, (exponent(high) - 1e-9).ceil() as i32);
        if first >= last {
            (first, last) = (first - 1, first + 1);
        }
        let every = (f64::from(last - first) / (2.0 * TICKS)).ceil().max(1.0) as usize;
        let mut ticks: Vec<f64> = (first..=last).step_by(every).map(|e| base.powi(e)).collect();
        let (mut bottom, mut top) = (base.powi(first), base.powi(last));
        if self.unit == Unit::Number && last - first <= 3 {
            // Whole decades alone would be too few, and reach too far.
            let fine = ticks.iter().flat_map(|tick| [1.0, 2.0, 5.0].map(|m| m * tick)).collect::<Vec<_>>();
            bottom = fine.iter().copied().filter(|tick| *tick <= low * 1.001).fold(bottom, f64::max);
            top = fine.iter().copied().filter(|tick| *tick >= high * 0.999).fold(top, f64::min);
            ticks = fine;
        }
        ticks.retain(|tick| (bottom * 0.999..=top * 1.001).contains(tick));
        let ticks = ticks.into_iter().map(|tick| (tick, self.written(tick))).collect();
        Scale { low: bottom, high: top, logarithmic: true, ticks }
    }

    fn steps(&self, high: f64) -> Scale {
        let rough = high / TICKS;
        let magnitude = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|m| m * magnitude).find(|step| *step >= rough * 0.999);
        let step = step.unwrap_or(10.0 * magnitude);
        let count = (high / step - 1e-9).ceil().max(1.0);
        let ticks = (0..=count as u32).map(|i| f64::from(i) * step).map(|tick| (tick, self.written(tick))).collect();
        Scale { low: 0.0, high: count * step, logarithmic: false, ticks }
    }

    fn written(&self, value: f64) -> String {
        match self.unit {
            Unit::Bytes if value >= 1048576.0 => format!("{} MB", value / 1048576.0),
            Unit::Bytes if value >= 1024.0 => format!("{} KB", value / 1024.0),
            Unit::Bytes => format!("{value} B"),
            // The last digits of a sum of decimal steps are noise.
            Unit::Number => format!("{}", (value * 1e6).round() / 1e6),
        }
    }
}

impl Scale {
    /// The place of a value between the ends: 0 to 1.
    pub(super) fn place(&self, value: f64) -> f64 {
        if self.logarithmic {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(axis: &Axis, values: &[f64]) -> Vec<String> {
        axis.scale(values.iter().copied()).ticks.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn linear_axes_begin_at_zero_and_reach_the_highest_value() {
        assert_eq!(written(&Axis::linear("x"), &[3.0, 93.0]), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(written(&Axis::linear("x"), &[0.29]), ["0", "0.05", "0.1", "0.15", "0.2", "0.25", "0.3"]);
    }

    #[test]
    fn bytes_are_marked_at_powers_of_two() {
        let axis = Axis::logarithmic("x", Unit::Bytes);
        assert_eq!(written(&axis, &[16384.0, 131072.0]), ["16 KB", "32 KB", "64 KB", "128 KB"]);
    }

    #[test]
    fn short_logarithmic_axes_have_ticks_within_decades() {
        let axis = Axis::logarithmic("x", Unit::Number);
        assert_eq!(written(&axis, &[3.0, 40.0]), ["2", "5", "10", "20", "50"]);
        assert_eq!(written(&axis, &[1.0, 1e5]), ["1", "10", "100", "1000", "10000", "100000"]);
    }

    #[test]
    fn ends_lie_at_the_ends() {
        let scale = Axis::logarithmic("x", Unit::Bytes).scale([1024.0, 4096.0].into_iter());
        assert_eq!([1024.0, 2048.0, 4096.0].map(|value| scale.place(value)), [0.0, 0.5, 1.0]);
    }
}
