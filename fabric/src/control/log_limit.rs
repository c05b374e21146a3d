//! Bounds the lines that peers and strangers can cause in the log.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

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

/// The time after which the same is logged again of the same party.
const AGAIN: Duration = Duration::from_mins(10);

/// The number of parties of which the last line is remembered.
const MAX_PARTIES: usize = 1024;

/// A limit of the lines that tell the same of the same party: one, until it changes.
pub(crate) struct LogChanges<K>(BTreeMap<K, (String, Instant)>);

impl<K: Ord> LogChanges<K> {
    pub(crate) fn new() -> LogChanges<K> {
        LogChanges(BTreeMap::new())
    }

    /// The number of lines that `limit` suppressed before this one, if `text` was not logged of this party just before
    /// and one more line may be logged. Then it counts as logged; one that `limit` suppresses does not.
    pub(crate) fn permits(&mut self, limit: &mut LogLimit, party: K, text: &str, now: Instant) -> Option<u64> {
        let is_known = |(last, at): &(String, Instant)| last == text && now.saturating_duration_since(*at) < AGAIN;
        if self.0.get(&party).is_some_and(is_known) {
            return None;
        }
        let suppressed = limit.permits(now)?;
        if self.0.len() >= MAX_PARTIES && !self.0.contains_key(&party) {
            self.0.clear();
        }
        self.0.insert(party, (text.to_owned(), now));
        Some(suppressed)
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
    fn the_same_of_the_same_party_is_told_once_until_it_changes() {
        let (mut changes, start) = (LogChanges::new(), Instant::now());
        let mut is_told = |party, text, at| {
            let is_told = changes.permits(&mut LogLimit::new(AGAIN), party, text, at).is_some();
            assert!(changes.0.len() <= MAX_PARTIES);
            is_told
        };
        let told = (0..1000).filter(|try_| is_told(1, "another CA", start + *try_ * AGAIN / 2000)).count();
        assert_eq!(told, 1);
        assert!(is_told(2, "another CA", start));
        assert!(is_told(1, "it left", start) && is_told(1, "another CA", start));
        assert!(is_told(1, "another CA", start + AGAIN));
        (0..10_000).for_each(|party| assert!(is_told(party, "a flood", start)));
    }

    #[test]
    fn a_line_that_was_suppressed_is_told_when_there_is_room() {
        let spell = Duration::from_secs(1);
        let (mut changes, mut limit, start) = (LogChanges::new(), LogLimit::new(spell), Instant::now());
        (0..LINES).for_each(|_| assert_eq!(limit.permits(start), Some(0)));
        assert_eq!(changes.permits(&mut limit, 1, "another CA", start), None);
        assert_eq!(changes.permits(&mut limit, 1, "another CA", start + 2 * spell), Some(1));
        assert_eq!(changes.permits(&mut limit, 1, "another CA", start + 2 * spell), None);
    }

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
