//! The progress of a rank in its schedule.

use std::ops::Range;

use super::{Action, Phase, Schedule};

/// A means to carry out actions.
pub(crate) trait Port {
    /// Carries out `action` on the bytes `chunk` of its range, counted from the range's beginning. Returns false if it
    /// can't be done yet; then nothing of it has happened.
    fn attempt(&mut self, action: &Action, chunk: Range<usize>) -> bool;
}

/// The next action in a list that is repeated for each chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    chunk: usize,
    action: usize,
}

impl Position {
    /// Goes on to the chunk `end`, or until an action can't be done yet.
    #[inline]
    fn run(&mut self, actions: &[Action], end: usize, chunk_bytes: usize, port: &mut impl Port) {
        while self.chunk < end {
            while let Some(action) = actions.get(self.action) {
                let start = self.chunk * chunk_bytes;
                let bytes = action.bytes();
                // An action whose range is shorter than others' has no part in the later chunks. An action without
                // bytes has a part in the first alone.
                if (start < bytes || start == 0) && !port.attempt(action, start..bytes.min(start + chunk_bytes)) {
                    return;
                }
                self.action += 1;
            }
            self.action = 0;
            self.chunk += 1;
        }
    }
}

/// A place in a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    phase: usize,
    lead: Position,
    rest: Position,
}

impl Cursor {
    /// Carries out the actions that can be done now. Returns whether the schedule's end is reached.
    #[inline]
    pub(crate) fn run(&mut self, schedule: &Schedule, chunk_bytes: usize, port: &mut impl Port) -> bool {
        while let Some(phase) = schedule.phases.get(self.phase) {
            let &Phase { ref actions, leads, bytes } = phase;
            let chunks = if bytes <= chunk_bytes { 1 } else { bytes.div_ceil(chunk_bytes) };
            let (leading, rest) = actions.split_at(leads);
            self.lead.run(leading, chunks, chunk_bytes, port);
            self.rest.run(rest, self.lead.chunk, chunk_bytes, port);
            if self.rest.chunk < chunks {
                return false;
            }
            *self = Cursor { phase: self.phase + 1, ..Cursor::default() };
        }
        true
    }
}
