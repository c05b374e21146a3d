//! Drawings as SVG: line charts, and the primitives below them.

mod axis;
mod chart;
mod svg;

use std::path::Path;

pub use self::{
    axis::{Axis, Unit},
    chart::{Chart, Line, draw},
    svg::{Anchor, Svg},
};
use crate::CommandError;

/// Writes a drawing to a file, and replaces what was there.
pub fn write(path: &Path, drawing: &str) -> Result<(), CommandError> {
    std::fs::write(path, drawing).map_err(|error| {
        let path = path.display();
        CommandError::Failed(format!("the drawing could not be written to {path}: {error}; choose another --svg file"))
    })
}
