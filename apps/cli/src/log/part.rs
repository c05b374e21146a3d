//! The part of a log in a directory that a command was asked for.

use std::{fmt::Display, ops::RangeInclusive};

use squall_ordered::log::{Body, Damage, LogItem, Record};

/// A part of a log, by versions. Names the damage in it, once it is known which versions that concerns.
pub(super) struct LogPart {
    versions: RangeInclusive<u64>,
    /// The version of the last record that was read.
    last: u64,
    /// The damage behind that record.
    damage: Vec<Damage>,
    /// The number of places in this part that can't be read.
    pub(super) unreadable: u64,
}

impl LogPart {
    /// A part of a log that begins behind the version `begin`.
    pub(super) fn new(versions: RangeInclusive<u64>, begin: u64) -> LogPart {
        LogPart { versions, last: begin, damage: Vec::new(), unreadable: 0 }
    }

    /// Takes what a log has next. Returns a record that lies in the part.
    pub(super) fn take<'r>(&mut self, item: LogItem<'r>) -> Option<Record<'r>> {
        match item {
            LogItem::Record(record) => {
                let before = match record.body {
                    Body::Message { .. } => record.version - 1,
                    Body::View(_) => record.version,
                };
                self.name_damage(before);
                self.last = record.version;
                return Some(record).filter(|record| self.versions.contains(&record.version));
            }
            LogItem::Damage(damage) => self.damage.push(damage),
            LogItem::Missing(missing) => {
                if self.has_any(missing.from, missing.to) {
                    self.cannot_read(&missing);
                }
            }
        }
        None
    }

    /// Whether what follows lies behind the part.
    pub(super) fn is_over(&self) -> bool {
        self.last > *self.versions.end()
    }

    /// Takes note that the log has nothing more.
    pub(super) fn end(&mut self) {
        self.name_damage(u64::MAX);
    }

    /// Names the damage behind the last record, if it took versions of this part, the last of them `to` at most. Damage
    /// that took none lies before the next version.
    fn name_damage(&mut self, to: u64) {
        let first = self.last.saturating_add(1);
        let is_here = self.has_any(first, to.max(first));
        for damage in std::mem::take(&mut self.damage) {
            if is_here {
                self.cannot_read(&damage);
            }
        }
    }

    fn has_any(&self, from: u64, to: u64) -> bool {
        from <= *self.versions.end() && to >= *self.versions.start()
    }

    fn cannot_read(&mut self, why: &dyn Display) {
        self.unreadable += 1;
        eprintln!("squall: {why}");
    }
}

#[cfg(test)]
mod tests {
    use squall::{Hlc, NodeId};
    use squall_ordered::log::{Missing, Position, ViewRecord};

    use super::*;

    fn record(version: u64) -> LogItem<'static> {
        let body = Body::Message { sender: NodeId(1), payload: b"" };
        LogItem::Record(Record { position: Position::START, time: Hlc(0), version, body })
    }

    fn view(version: u64) -> LogItem<'static> {
        let body = Body::View(ViewRecord::default());
        LogItem::Record(Record { position: Position::START, time: Hlc(0), version, body })
    }

    fn damage() -> LogItem<'static> {
        let (path, position) = ("segment".into(), Position::START);
        LogItem::Damage(Damage { path, segment: 0, from: 0, to: None, record: 1, after: position, before: None })
    }

    /// The number of places that can't be read in a part of a log that begins behind version 4.
    fn unreadable(versions: RangeInclusive<u64>, items: impl IntoIterator<Item = LogItem<'static>>) -> u64 {
        let mut part = LogPart::new(versions, 4);
        for item in items {
            part.take(item);
            if part.is_over() {
                break;
            }
        }
        part.end();
        part.unreadable
    }

    #[test]
    fn only_damage_within_the_part_counts() {
        let log = || [damage(), record(7), damage(), record(8), record(9), damage(), view(11), record(12), damage()];
        assert_eq!(unreadable(1..=u64::MAX, log()), 4);
        assert_eq!(unreadable(7..=7, log()), 0);
        assert_eq!([unreadable(1..=4, log()), unreadable(1..=5, log()), unreadable(6..=7, log())], [0, 1, 1]);
        assert_eq!(unreadable(8..=8, log()), 1, "it took no version, and lies before this one");
        assert_eq!([unreadable(9..=9, log()), unreadable(10..=10, log()), unreadable(11..=11, log())], [0, 1, 1]);
        assert_eq!([unreadable(12..=12, log()), unreadable(12..=13, log()), unreadable(99..=99, log())], [0, 1, 1]);
        let missing = || {
            let missing = Missing { path: "segment".into(), offset: 0, from: 6, to: 8 };
            [record(5), LogItem::Missing(missing)]
        };
        assert_eq!(
            [unreadable(1..=5, missing()), unreadable(8..=8, missing()), unreadable(9..=9, missing())],
            [0, 1, 0]
        );
    }
}
