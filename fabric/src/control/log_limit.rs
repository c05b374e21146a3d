//! Bounds the lines that peers and strangers can cause in the log.

use std::time::{Duration, Instant};

/// The number of lines that are logged in a spell at most.
const LINES: u32 = 10;

/// A limit of [`LINES`] lines in each spell.
pub(crate) struct LogLimit {
    spell: Duration,
    began: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

impl LogLimit {
    pub(crate) fn new(spell: Duration) -> LogLimit {
        LogLimit { spell, began: None, lines: 0, suppressed: 0 }
    }

    /// The number of lines that were suppressed before this one, if one more line may be logged.
    pub(crate) fn permits(&mut self, now: Instant) -> Option<u64> {
        if self.began.is_none_or(|began| now.saturating_duration_since(began) > self.spell) {
            self.began = Some(now);
            self.lines = 0;
        }
        if self.lines >= LINES {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// The addition to a line that tells of suppressed ones.
pub(crate) fn and_more(suppressed: u64) -> String {
    if suppressed == 0 { String::new() } else { format!(" (and {suppressed} more before it)") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_are_counted_and_told_later() {
        let spell = Duration::from_secs(1);
        let (mut limit, start) = (LogLimit::new(spell), Instant::now());
        for _ in 0..LINES {
            assert_eq!(limit.permits(start), Some(0));
        }
        for _ in 0..5 {
            assert_eq!(limit.permits(start), None);
        }
        assert_eq!(limit.permits(start + 2 * spell), Some(5));
    }
}
