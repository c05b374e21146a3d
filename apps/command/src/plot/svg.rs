//! Marks on a page of SVG 1.1: lines, boxes, words.

use std::fmt::Write;

/// The point of a text that lies at its position.
#[derive(Clone, Copy, Debug)]
pub enum Anchor {
    /// The text begins there.
    Start,
    /// The middle of the text is there.
    Middle,
    /// The text ends there.
    End,
}

/// A drawing under construction. Lengths are pixels, from the top left.
#[derive(Debug)]
pub struct Svg {
    text: String,
}

/// A number without a tail of zeros: files stay small, and alike on every machine.
fn short(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Svg {
    /// A white page. `title` is its accessible name, and is shown on hovering.
    pub fn new(width: f64, height: f64, title: &str) -> Svg {
        let (width, height) = (short(width), short(height));
        let mut svg = Svg { text: String::new() };
        svg.line_of_text(&format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">"
        ));
        svg.line_of_text(&format!("<title>{}</title>", escape(title)));
        svg.line_of_text("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>");
        svg
    }

    fn line_of_text(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Draws a line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        let [x1, y1, x2, y2, width] = [from.0, from.1, to.0, to.1, width].map(short);
        self.line_of_text(&format!(
            "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
        ));
    }

    /// A line with a head at its end.
    pub fn arrow(&mut self, from: (f64, f64), to: (f64, f64), colour: &str) {
        const HEAD: f64 = 6.0;
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy).max(1.0);
        let (along, across) =
            ((dx / length * HEAD, dy / length * HEAD), (-dy / length * HEAD / 2.5, dx / length * HEAD / 2.5));
        let neck = (to.0 - along.0, to.1 - along.1);
        self.line(from, neck, colour, 1.5);
        let corners = [to, (neck.0 + across.0, neck.1 + across.1), (neck.0 - across.0, neck.1 - across.1)];
        let points = corners.map(|(x, y)| format!("{},{}", short(x), short(y))).join(" ");
        self.line_of_text(&format!("<polygon points=\"{points}\" fill=\"{colour}\"/>"));
    }

    /// Lines from point to point; dashed if `dashed`.
    pub fn path(&mut self, points: &[(f64, f64)], colour: &str, dashed: bool) {
        let mut list = String::new();
        for (x, y) in points {
            let _ = write!(list, "{},{} ", short(*x), short(*y));
        }
        let dash = if dashed { " stroke-dasharray=\"5 3\"" } else { "" };
        let list = list.trim_end();
        self.line_of_text(&format!(
            "<polyline points=\"{list}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>"
        ));
    }

    /// Draws a rectangle with its upper left corner at `at`.
    pub fn rect(&mut self, at: (f64, f64), size: (f64, f64), fill: &str) {
        let [x, y, width, height] = [at.0, at.1, size.0, size.1].map(short);
        self.line_of_text(&format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"2\" fill=\"{fill}\"/>"
        ));
    }

    /// Draws a filled circle.
    pub fn dot(&mut self, at: (f64, f64), radius: f64, fill: &str) {
        let [x, y, radius] = [at.0, at.1, radius].map(short);
        self.line_of_text(&format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" fill=\"{fill}\"/>"));
    }

    /// One line of words, its baseline at `at`, `size` pixels high.
    pub fn words(&mut self, at: (f64, f64), size: f64, anchor: Anchor, words: &str) {
        let [x, y, size] = [at.0, at.1, size].map(short);
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let words = escape(words);
        self.line_of_text(&format!(
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" text-anchor=\"{anchor}\" fill=\"#222222\">{words}</text>"
        ));
    }

    /// The whole file.
    pub fn finish(mut self) -> String {
        self.line_of_text("</svg>");
        self.text
    }
}
