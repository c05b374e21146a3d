//! The last changes of a service, as a replica keeps them for those who watch. Pure.
//!
//! They are part of the replica's state, so that a watch goes on at any member. The byte form, in a copy of the state
//! behind the table of sessions:
//!
//! ```text
//!  time u64 │ version u64 │ last u64 │ before u64 │ changes u32 │ change …
//!   change:  version u64 │ time u64 │ key u32 │ length u32 │ key … │ change …
//! ```
//!
//! Everything is little-endian. `time` and `version` are those of the last message, `last` is the number of the last
//! change, and `before` the time of the change ahead of the first that is kept.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
};

use squall_ordered::log::Hlc;

use crate::{
    clients::{
        changes::{ChangePlace, ReportedChange},
        wire::{ToldChange, WatchEnd},
    },
    replica::replicated::Stamp,
};

/// The size of a kept change besides its key and its bytes, in bytes.
const OVERHEAD_BYTES: usize = 64;

/// The most changes that are looked at for a watch at a time, and the bytes that are told at a time.
const LOOK_AT: u64 = 1024;
const TELL_BYTES: u64 = 64 << 10;

/// A change that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeptChange {
    /// The version that can't be undone any more before anybody is told; 0 where nothing is undone.
    version: u64,
    time: Hlc,
    change: ReportedChange,
}

impl KeptChange {
    fn bytes(&self) -> usize {
        OVERHEAD_BYTES + self.change.key().len() + self.change.change().len()
    }
}

/// The last changes, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChangeHistory {
    /// The number of the last change.
    last: u64,
    /// The time of the change before the first that is kept.
    before: Hlc,
    kept: VecDeque<KeptChange>,
    kept_bytes: usize,
}

/// The changes that a watch is told at a time.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// The place up to which changes were looked at.
    pub(super) upto: ChangePlace,
    pub(super) changes: Vec<ToldChange>,
    /// Their cost.
    pub(super) cost: u64,
    /// The bytes of the changes that were looked at.
    pub(super) looked: usize,
}

impl ChangeHistory {
    /// Appends changes of one message, or view. Drops the oldest as long as all take more than `max_bytes`; the last
    /// stays.
    pub(super) fn append(&mut self, changes: Vec<ReportedChange>, time: Hlc, version: u64, max_bytes: usize) {
        for change in changes {
            let kept = KeptChange { version, time, change };
            self.kept_bytes += kept.bytes();
            self.last += 1;
            self.kept.push_back(kept);
        }
        self.trim(max_bytes);
    }

    fn trim(&mut self, max_bytes: usize) {
        while self.kept_bytes > max_bytes && self.kept.len() > 1 {
            let Some(first) = self.kept.pop_front() else { break };
            self.kept_bytes -= first.bytes();
            self.before = first.time;
        }
    }

    /// The number of the first change that is kept, or of the next one.
    fn first(&self) -> u64 {
        self.last + 1 - self.kept.len() as u64
    }

    /// The place of the last change.
    pub(super) fn place(&self) -> ChangePlace {
        self.place_of(self.last).unwrap_or_default()
    }

    /// The version of the last change.
    pub(super) fn last_version(&self) -> u64 {
        self.kept.back().map_or(0, |kept| kept.version)
    }

    /// The place of a change, if it is known.
    fn place_of(&self, number: u64) -> Option<ChangePlace> {
        let time = match (number + 1).checked_sub(self.first())? {
            0 => self.before,
            behind => self.kept.get(behind as usize - 1)?.time,
        };
        Some(ChangePlace::new(number, time))
    }

    /// The place of the last change that may be told, once this version can't be undone. None where it is not known.
    pub(super) fn tellable(&self, persisted: u64) -> Option<ChangePlace> {
        let count = self.kept.partition_point(|kept| kept.version <= persisted) as u64;
        if count == 0 && !self.kept.is_empty() && self.first() > 1 {
            return None;
        }
        self.place_of(self.first() - 1 + count)
    }

    /// Tells whether a watch can go on behind this place. None if this replica has not come so far. `now` is the time
    /// of its last message.
    pub(super) fn check(&self, place: ChangePlace, now: Hlc) -> Option<Result<(), WatchEnd>> {
        let other = Err(WatchEnd::OtherHistory(place.number));
        if place.number > self.last {
            // A replica that has passed the time of a change of its own history has the change.
            return (now.0 > place.time_ns).then_some(other);
        }
        Some(match self.place_of(place.number) {
            None => Err(self.too_far_behind(place)),
            Some(own) if own != place => other,
            Some(_) => Ok(()),
        })
    }

    fn too_far_behind(&self, place: ChangePlace) -> WatchEnd {
        WatchEnd::TooFarBehind { needed: place.number.saturating_add(1), oldest: self.first() }
    }

    /// Returns the next changes behind a place, up to the one with the number `until`, whose keys begin with `prefix`,
    /// as long as there is credit.
    pub(super) fn tell(&self, from: ChangePlace, until: u64, prefix: &[u8], credit: i64) -> Result<Told, WatchEnd> {
        let Some(skip) = (from.number + 1).checked_sub(self.first()) else { return Err(self.too_far_behind(from)) };
        let mut told = Told { upto: from, changes: Vec::new(), cost: 0, looked: 0 };
        let until = until.min(from.number + LOOK_AT);
        for (number, kept) in (from.number + 1..=until).zip(self.kept.range((skip as usize).min(self.kept.len())..)) {
            let at = ChangePlace::new(number, kept.time);
            let (key, change) = (kept.change.key(), kept.change.change());
            if key.starts_with(prefix) {
                if told.cost as i64 >= credit.min(TELL_BYTES as i64) {
                    break;
                }
                told.cost += ToldChange::cost_of(key.len() + change.len());
                told.changes.push(ToldChange { at, key: key.to_vec(), change: change.to_vec() });
            }
            told.upto = at;
            told.looked += kept.bytes();
        }
        Ok(told)
    }

    /// Writes the history behind the stamp of the last message.
    pub(super) fn write(&self, last: Stamp, to: &mut dyn Write) -> io::Result<()> {
        let words = [last.time.0, last.version.unwrap_or_default(), self.last, self.before.0];
        to.write_all(&words.map(u64::to_le_bytes).concat())?;
        to.write_all(&(self.kept.len() as u32).to_le_bytes())?;
        for KeptChange { version, time, change } in &self.kept {
            to.write_all(&[*version, time.0].map(u64::to_le_bytes).concat())?;
            to.write_all(&[change.key().len() as u32, change.change().len() as u32].map(u32::to_le_bytes).concat())?;
            to.write_all(change.key())?;
            to.write_all(change.change())?;
        }
        Ok(())
    }

    /// Reads the stamp and the history, of which it keeps `max_bytes`.
    pub(super) fn read(from: &mut dyn Read, max_bytes: usize) -> io::Result<(Stamp, ChangeHistory)> {
        let (time, version) = (u64::from_le_bytes(take(from)?), u64::from_le_bytes(take(from)?));
        let (last, before) = (u64::from_le_bytes(take(from)?), u64::from_le_bytes(take(from)?));
        let stamp = Stamp { time: Hlc(time), version: Some(version).filter(|version| *version != 0) };
        let count = u32::from_le_bytes(take(from)?);
        let Some(last) = last.checked_sub(u64::from(count)).filter(|_| last < u64::MAX) else {
            return Err(io::Error::other("the changes in a copy of the state are damaged: it has more than ever were"));
        };
        let mut history = ChangeHistory { last, before: Hlc(before), ..ChangeHistory::default() };
        for _ in 0..count {
            let (version, time) = (u64::from_le_bytes(take(from)?), u64::from_le_bytes(take(from)?));
            let (key, change) = (u32::from_le_bytes(take(from)?), u32::from_le_bytes(take(from)?));
            let len = u64::from(key) + u64::from(change);
            let mut bytes = Vec::new();
            // Memory is taken as bytes arrive, not as they are announced.
            from.take(len).read_to_end(&mut bytes)?;
            let change = Some(bytes).filter(|bytes| bytes.len() as u64 == len);
            let change = change.and_then(|bytes| ReportedChange::of_parts(key as usize, bytes));
            let change = change.ok_or(io::ErrorKind::UnexpectedEof)?;
            history.append(vec![change], Hlc(time), version, max_bytes);
        }
        Ok((stamp, history))
    }
}

fn take<const N: usize>(from: &mut dyn Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clients::changes::Changes;

    /// The size of a change of these tests.
    const BYTES: usize = OVERHEAD_BYTES + 1 + 8;

    /// A history of `count` changes with keys 0 to 2 by turns, at times 10, 20 and so on, of versions 1, 2 and so on.
    /// The last `kept` are kept.
    fn history(count: u64, kept: usize) -> ChangeHistory {
        let mut history = ChangeHistory::default();
        for number in 1..=count {
            let mut changes = Changes::default();
            changes.push([(number % 3) as u8], &number);
            history.append(changes.take(), Hlc(10 * number), number, kept * BYTES);
        }
        history
    }

    fn place(number: u64) -> ChangePlace {
        ChangePlace { number, time_ns: 10 * number }
    }

    fn numbers(told: &Told) -> Vec<u64> {
        told.changes.iter().map(|told| told.at.number).collect()
    }

    #[test]
    fn changes_are_told_by_key_behind_a_place_as_far_as_they_may_be_and_credit_reaches() {
        let history = history(10, 100);
        let told = history.tell(place(2), 9, &[0], 1 << 20).unwrap();
        assert_eq!((numbers(&told), told.upto), (vec![3, 6, 9], place(9)));
        assert_eq!(told.changes[0].at, place(3));
        let told = history.tell(place(2), 9, &[0], 1).unwrap();
        assert_eq!((numbers(&told), told.upto), (vec![3], place(5)), "one change may exceed the credit");
        let told = history.tell(place(2), 9, &[0], 0).unwrap();
        assert_eq!((numbers(&told), told.upto), (vec![], place(2)));
        assert_eq!(numbers(&history.tell(place(7), 10, &[], 1 << 20).unwrap()), [8, 9, 10]);
    }

    #[test]
    fn a_change_is_tellable_once_its_version_is_persisted() {
        let history = history(10, 4);
        assert_eq!(history.tellable(10), Some(place(10)));
        assert_eq!(history.tellable(8), Some(place(8)));
        assert_eq!(history.tellable(6), None, "whether change 6 is persisted is known no more");
        assert_eq!(self::history(2, 4).tellable(0), Some(place(0)));
        assert_eq!(ChangeHistory::default().tellable(0), Some(place(0)));
    }

    #[test]
    fn a_watch_goes_on_only_behind_a_place_of_this_history_whose_next_change_is_kept() {
        let history = history(10, 4);
        let check = |place, now| history.check(place, Hlc(now));
        let too_far = |needed| Some(Err(WatchEnd::TooFarBehind { needed, oldest: 7 }));
        assert_eq!([6, 7, 10].map(|number| check(place(number), 100)), [const { Some(Ok(())) }; 3]);
        assert_eq!([0, 5].map(|number| check(place(number), 100)), [too_far(1), too_far(6)]);
        for number in [6, 8] {
            let other = ChangePlace { time_ns: 1, ..place(number) };
            assert_eq!(check(other, 100), Some(Err(WatchEnd::OtherHistory(number))));
        }
        assert_eq!(check(place(11), 110), None, "it may come yet");
        assert_eq!(check(place(11), 111), Some(Err(WatchEnd::OtherHistory(11))));
        assert_eq!(history.tell(place(5), 10, &[], 1), Err(WatchEnd::TooFarBehind { needed: 6, oldest: 7 }));
    }

    proptest! {
        #[test]
        fn a_copy_is_the_history(count in 0..20u64, kept in 0..20usize, fewer in 0..20usize, version in 0..3u64) {
            let stamp = Stamp { time: Hlc(500), version: Some(version).filter(|version| *version != 0) };
            let (history, mut bytes) = (history(count, kept), Vec::new());
            history.write(stamp, &mut bytes).unwrap();
            let read = |max_bytes| ChangeHistory::read(&mut &bytes[..], max_bytes).unwrap();
            prop_assert_eq!(read(usize::MAX), (stamp, history.clone()));
            let fewer = fewer.min(kept);
            prop_assert_eq!(read(fewer * BYTES).1, self::history(count, fewer));
            for len in 0..bytes.len() {
                prop_assert!(ChangeHistory::read(&mut &bytes[..len], usize::MAX).is_err());
            }
        }

        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ChangeHistory::read(&mut &bytes[..], 1000);
        }
    }
}
