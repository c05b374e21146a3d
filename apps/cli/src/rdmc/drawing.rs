//! A schedule as a drawing: time across, nodes down.

use squall_command::plot::{Anchor, Svg};
use squall_rdmc::schedule::{Algorithm, Rank};

use super::moves::{Move, Moves};

const LEFT: f64 = 120.0;
const HEAD: f64 = 84.0;
const MARGIN: f64 = 30.0;
const LANE: f64 = 40.0;
const STEP: f64 = 96.0;
const BOX: (f64, f64) = (26.0, 20.0);
const INSET: f64 = 6.0;

/// The colour of a block. Neighbouring blocks have hues far apart: the golden angle.
fn colour(block: u32) -> String {
    let hue = (f64::from(block) * 137.508) % 360.0;
    format!("hsl({hue:.0},65%,72%)")
}

/// Draws each transfer of a block: its sender, its receiver and its step.
pub(super) fn draw(title: &str, algorithm: &Algorithm, moves: &Moves) -> String {
    let width = (LEFT + moves.steps as f64 * STEP + MARGIN).max(560.0);
    let height = HEAD + moves.nodes as f64 * LANE + MARGIN;
    let mut svg = Svg::new(width, height, title);
    svg.words((20.0, 26.0), 16.0, Anchor::Start, title);
    svg.words(
        (20.0, 46.0),
        12.0,
        Anchor::Start,
        "In each step: at its start the block that a node sends, at its end the one that it has received.",
    );
    let lane = |node: usize| HEAD + node as f64 * LANE + LANE / 2.0;
    let right = LEFT + moves.steps as f64 * STEP;
    for node in 0..moves.nodes {
        let (label, rack) = match algorithm {
            Algorithm::Hybrid(racks) => {
                let rack = racks.rack_of(Rank(node as u32));
                (format!("rank {node} (rack {rack})"), rack)
            }
            _ => (format!("rank {node}"), 0),
        };
        if rack % 2 == 1 {
            svg.rect((0.0, lane(node) - LANE / 2.0), (right, LANE), "#f1f1f1");
        }
        svg.words((LEFT - 14.0, lane(node) + 4.0), 12.0, Anchor::End, &label);
        svg.line((LEFT, lane(node)), (right, lane(node)), "#e4e4e4", 1.0);
    }
    for step in 0..=moves.steps {
        let x = LEFT + step as f64 * STEP;
        svg.line((x, HEAD - 6.0), (x, height - MARGIN), "#cccccc", 1.0);
        if step < moves.steps {
            svg.words((x + STEP / 2.0, HEAD - 12.0), 12.0, Anchor::Middle, &format!("step {step}"));
        }
    }
    let places = send_places(moves);
    let begins = |step: usize| LEFT + step as f64 * STEP;
    for (one, place) in moves.list.iter().zip(&places) {
        let leaves = (begins(one.step) + INSET + BOX.0, lane(one.from) + place.offset());
        let arrives = (begins(one.step) + STEP - INSET - BOX.0, lane(one.to));
        svg.arrow(leaves, arrives, "#777777");
    }
    for (one, place) in moves.list.iter().zip(&places) {
        let x = begins(one.step);
        let height = place.height();
        boxed(&mut svg, (x + INSET, lane(one.from) + place.offset() - height / 2.0), height, one.block);
        boxed(&mut svg, (x + STEP - INSET - BOX.0, lane(one.to) - BOX.1 / 2.0), BOX.1, one.block);
    }
    svg.finish()
}

/// The place of a sent block in its lane: a rack's leader may send two in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneHalf {
    Alone,
    Upper,
    Lower,
}

impl LaneHalf {
    fn offset(self) -> f64 {
        match self {
            LaneHalf::Alone => 0.0,
            LaneHalf::Upper => -LANE / 4.0,
            LaneHalf::Lower => LANE / 4.0,
        }
    }

    fn height(self) -> f64 {
        if self == LaneHalf::Alone { BOX.1 } else { LANE / 2.0 - 3.0 }
    }
}

fn send_places(moves: &Moves) -> Vec<LaneHalf> {
    let same = |a: &Move, b: &Move| (a.step, a.from) == (b.step, b.from);
    let place = |i: usize| {
        let one = &moves.list[i];
        let other = |j: Option<usize>| j.and_then(|j| moves.list.get(j)).filter(|other| same(one, other));
        match (other(i.checked_sub(1)), other(Some(i + 1))) {
            (Some(before), _) if before.block != one.block => LaneHalf::Lower,
            (_, Some(after)) if after.block != one.block => LaneHalf::Upper,
            _ => LaneHalf::Alone,
        }
    };
    (0..moves.list.len()).map(place).collect()
}

fn boxed(svg: &mut Svg, at: (f64, f64), height: f64, block: u32) {
    svg.rect(at, (BOX.0, height), &colour(block));
    svg.words((at.0 + BOX.0 / 2.0, at.1 + height / 2.0 + 4.0), 11.0, Anchor::Middle, &block.to_string());
}
