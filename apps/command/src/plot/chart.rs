//! Line charts, side by side on one page.

use super::{
    axis::Axis,
    svg::{Anchor, Svg},
};

/// One line of a chart.
#[derive(Clone, Debug)]
pub struct Line {
    /// The name in the key.
    pub name: String,
    /// The points, in the order in which they are joined.
    pub points: Vec<(f64, f64)>,
    /// Whether it is drawn dashed and without dots: a bound or a model rather than a measurement.
    pub model: bool,
}

impl Line {
    /// A line of measurements.
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Line {
        Line { name: name.into(), points: points.into_iter().collect(), model: false }
    }
}

/// Lines over common axes.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The words above it.
    pub title: String,
    /// The axis below it.
    pub x: Axis,
    /// The axis at its left.
    pub y: Axis,
    /// Its lines, in the order of the legend.
    pub lines: Vec<Line>,
}

/// Distinguishable in colour-blind eyes, and in print (Okabe and Ito).
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c8c00"];

const PLOT_WIDTH: f64 = 420.0;
const PLOT_HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 30.0;
const ABOVE: f64 = 34.0;
const BELOW: f64 = 56.0;
const KEY_LINE: f64 = 18.0;
const HEAD: f64 = 40.0;
/// The width of a letter of the title, about.
const TITLE_LETTER: f64 = 9.0;
const MORE_POINTS_THAN_DOTS: usize = 40;

/// Draws charts side by side under one title.
pub fn draw(title: &str, charts: &[Chart]) -> String {
    let key = charts.iter().map(|chart| chart.lines.len()).max().unwrap_or(0) as f64 * KEY_LINE;
    let words = 40.0 + title.chars().count() as f64 * TITLE_LETTER;
    let width = words.max((LEFT + PLOT_WIDTH + RIGHT) * charts.len().max(1) as f64);
    let mut svg = Svg::new(width, HEAD + ABOVE + PLOT_HEIGHT + BELOW + key, title);
    svg.words((20.0, 26.0), 16.0, Anchor::Start, title);
    for (i, chart) in charts.iter().enumerate() {
        let left = LEFT + i as f64 * (LEFT + PLOT_WIDTH + RIGHT);
        chart.draw(&mut svg, (left, HEAD + ABOVE));
    }
    svg.finish()
}

impl Chart {
    fn draw(&self, svg: &mut Svg, corner: (f64, f64)) {
        let values = || self.lines.iter().flat_map(|line| line.points.iter());
        let x = self.x.scale(values().map(|point| point.0));
        let y = self.y.scale(values().map(|point| point.1));
        let across = |value: f64| corner.0 + x.place(value) * PLOT_WIDTH;
        let down = |value: f64| corner.1 + (1.0 - y.place(value)) * PLOT_HEIGHT;
        let (right, bottom) = (corner.0 + PLOT_WIDTH, corner.1 + PLOT_HEIGHT);

        svg.words((corner.0, corner.1 - 20.0), 13.0, Anchor::Start, &self.title);
        svg.words((corner.0, corner.1 - 6.0), 11.0, Anchor::Start, self.y.label());
        svg.words((right, bottom + 34.0), 11.0, Anchor::End, self.x.label());
        for (value, text) in &y.ticks {
            svg.line((corner.0, down(*value)), (right, down(*value)), "#dddddd", 1.0);
            svg.words((corner.0 - 6.0, down(*value) + 4.0), 11.0, Anchor::End, text);
        }
        for (value, text) in &x.ticks {
            svg.line((across(*value), bottom), (across(*value), bottom + 4.0), "#222222", 1.0);
            svg.words((across(*value), bottom + 17.0), 11.0, Anchor::Middle, text);
        }
        svg.line((corner.0, bottom), (right, bottom), "#222222", 1.0);
        for (i, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let shown = line.points.iter().filter(|(a, b)| self.x.shows(*a) && self.y.shows(*b));
            let points: Vec<_> = shown.map(|(a, b)| (across(*a), down(*b))).collect();
            svg.path(&points, colour, line.model);
            if !line.model && points.len() <= MORE_POINTS_THAN_DOTS {
                points.iter().for_each(|point| svg.dot(*point, 3.0, colour));
            }
            let key = bottom + BELOW + i as f64 * KEY_LINE - 4.0;
            svg.path(&[(corner.0, key - 4.0), (corner.0 + 26.0, key - 4.0)], colour, line.model);
            svg.words((corner.0 + 34.0, key), 11.0, Anchor::Start, &line.name);
        }
    }
}
