//! Scrubbing of a durable group's log while its node runs. All of the log is read again, slowly, and damaged records
//! are replaced by another member's.
//!
//! [`Scrub`] decides what comes next, and has no clock, thread or disk. [`Scrubbing`] carries it out, on a thread of
//! its own or in the simulator. The thread that writes the log only checks the damages that were found, and puts the
//! records there.

use std::{sync::Arc, time::Duration};

use squall_fabric::{NodeId, Time};
use squall_ordered::log::{Damage, Hlc, Position, ReadError, Scrubbed, Scrubber};

use crate::durable::{
    disk::Disk,
    log_writer::LogWriter,
    recovery,
    status::{ScrubReport, ScrubStatus},
};

/// The rate at which a log is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScrubRate {
    /// The average rate while it reads. With 0 it does not read.
    pub(crate) bytes_per_second: u64,
    /// The number of bytes that are read at once.
    pub(crate) slice: u64,
    /// The pause between the end of the log and its beginning.
    pub(crate) rest: Duration,
    /// The pause before another attempt at a damage that no member could repair: twice as long each time, up to 64
    /// times.
    pub(crate) again: Duration,
}

impl ScrubRate {
    /// The rate of a running node.
    pub(crate) fn of_node(bytes_per_second: u64) -> ScrubRate {
        let (rest, again) = (Duration::from_secs(600), Duration::from_secs(5));
        ScrubRate { bytes_per_second, slice: 256 << 10, rest, again }
    }
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScrubStep {
    /// Wait until this time.
    Wait(Time),
    /// Read about so many bytes.
    Read(u64),
    /// Ask this member for the damaged records.
    Repair(Damage, NodeId),
    /// Report that no member has the damaged records.
    Alone(Damage),
}

/// The largest number of damages that are kept in mind: more are found again once these are repaired.
const MAX_FOUND: usize = 100;

#[derive(Debug)]
struct FoundDamage {
    damage: Damage,
    /// The members that were asked in vain in this round.
    asked: Vec<NodeId>,
    next: Time,
    rounds: u32,
}

/// Decides the order of reads and repairs of a log.
#[derive(Debug)]
pub(crate) struct Scrub {
    rate: ScrubRate,
    next_read: Time,
    found: Vec<FoundDamage>,
    repaired: u64,
    status: ScrubStatus,
}

impl Scrub {
    pub(crate) fn new(rate: ScrubRate, now: Time) -> Scrub {
        let status = ScrubStatus { bytes_per_second: rate.bytes_per_second, ..ScrubStatus::default() };
        Scrub { rate, next_read: now, found: Vec::new(), repaired: 0, status }
    }

    /// Returns the next thing to do. `others` have the log, too.
    pub(crate) fn next(&mut self, now: Time, others: &[NodeId]) -> ScrubStep {
        for found in self.found.iter_mut().filter(|found| found.next <= now) {
            if let Some(&other) = others.iter().find(|other| !found.asked.contains(other)) {
                found.asked.push(other);
                return ScrubStep::Repair(found.damage.clone(), other);
            }
            found.asked.clear();
            found.next = now + self.rate.again * (1 << found.rounds.min(6));
            found.rounds += 1;
            if found.rounds == 1 {
                return ScrubStep::Alone(found.damage.clone());
            }
        }
        let retry = self.found.iter().map(|found| found.next).min().unwrap_or(Time::MAX);
        match self.rate.bytes_per_second {
            0 => ScrubStep::Wait(retry),
            _ if self.next_read <= now => ScrubStep::Read(self.rate.slice),
            _ => ScrubStep::Wait(retry.min(self.next_read)),
        }
    }

    /// Notes that reading begins at the beginning of a log of about so many bytes.
    pub(crate) fn begins(&mut self, bytes: u64) {
        (self.status.read_bytes, self.status.of_bytes) = (0, bytes);
    }

    /// Notes that the log's end was reached, at this time of day.
    pub(crate) fn ends(&mut self, wall: Hlc) {
        self.status.passes += 1;
        self.status.ended_at_ns = wall.0;
    }

    /// Notes that so many bytes were read. A log that could not be read to its end is begun anew, too.
    pub(crate) fn has_read(&mut self, now: Time, bytes: u64, ended: bool) {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate.bytes_per_second.max(1));
        let pause = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.next_read = now + pause + if ended { self.rate.rest } else { Duration::ZERO };
        self.status.read_bytes += bytes;
    }

    /// Notes a damage. Returns whether it was not known.
    pub(crate) fn finds(&mut self, now: Time, damage: &Damage) -> bool {
        let place = |damage: &Damage| (damage.segment, damage.from);
        if self.found.len() >= MAX_FOUND || self.found.iter().any(|found| place(&found.damage) == place(damage)) {
            return false;
        }
        self.found.push(FoundDamage { damage: damage.clone(), asked: Vec::new(), next: now, rounds: 0 });
        self.status.found += 1;
        true
    }

    /// Notes that a damage is gone: it was repaired, or its place is in the log no more.
    pub(crate) fn is_gone(&mut self, damage: &Damage, repaired: bool) {
        self.found.retain(|found| found.damage != *damage);
        self.repaired += u64::from(repaired);
    }

    pub(crate) fn report(&self) -> ScrubReport {
        let damaged = self.found.iter().map(|found| found.damage.to_string()).collect();
        ScrubReport { damaged, repaired: self.repaired, scrub: self.status }
    }
}

pub(crate) struct Scrubbing {
    group: String,
    scrub: Scrub,
    log_writer: Arc<LogWriter>,
    reader: Option<Scrubber<Disk>>,
    /// Whether the reason for which it can't read was logged.
    is_told: bool,
}

impl Scrubbing {
    pub(crate) fn new(group: String, log_writer: Arc<LogWriter>, rate: ScrubRate, now: Time) -> Scrubbing {
        let scrub = Scrub::new(rate, now);
        *log_writer.scrubbed.lock() = scrub.report();
        Scrubbing { group, scrub, log_writer, reader: None, is_told: false }
    }

    /// Does what is due, and returns the time of the next call; `now` if there is more. `others` are the members whose
    /// logs are complete, `wall` is the time of day. `fetch` gets records between two places from one of them.
    pub(crate) fn step(
        &mut self,
        (now, wall): (Time, Hlc),
        others: &[NodeId],
        fetch: impl FnOnce(NodeId, Position, Position) -> Result<Vec<u8>, String>,
    ) -> Time {
        match self.scrub.next(now, others) {
            ScrubStep::Wait(until) => return until,
            ScrubStep::Read(bytes) => self.read(now, wall, bytes),
            ScrubStep::Alone(damage) => {
                let (group, why) = (&self.group, "no other member that can be asked has these records");
                tracing::error!(group, %damage, why, "damaged records can't be replaced yet: the group goes on");
            }
            ScrubStep::Repair(damage, other) => {
                let repaired = recovery::repair(&self.log_writer, &damage, |from, to| fetch(other, from, to));
                match repaired {
                    Ok(()) => self.scrub.is_gone(&damage, true),
                    Err(_) if self.is_damaged(&damage) == Some(false) => self.scrub.is_gone(&damage, false),
                    Err(why) => {
                        let group = &self.group;
                        tracing::info!(group, from = %other, %damage, why, "damaged records are not replaced");
                    }
                }
            }
        }
        *self.log_writer.scrubbed.lock() = self.scrub.report();
        now
    }

    fn read(&mut self, now: Time, wall: Hlc, bytes: u64) {
        if self.reader.is_none() {
            self.scrub.begins(self.log_writer.bytes());
            self.reader = self.log_writer.run_at_once(|log| log.scrubber());
        }
        let Some(reader) = &mut self.reader else { return self.scrub.has_read(now, 0, true) };
        match reader.step(bytes) {
            Ok(Scrubbed { bytes, damage, ended }) => {
                for damage in damage {
                    // The log may have been cut meanwhile.
                    if self.is_damaged(&damage) == Some(true) && self.scrub.finds(now, &damage) {
                        let group = &self.group;
                        tracing::error!(group, %damage, "records on the disk are damaged: they are replaced by another member's");
                    }
                }
                self.scrub.has_read(now, bytes, ended);
                if ended {
                    self.reader = None;
                    self.scrub.ends(wall);
                }
            }
            Err(error) => {
                if !matches!(error, ReadError::Gone { .. }) && !std::mem::replace(&mut self.is_told, true) {
                    tracing::error!(group = self.group, %error, "the log can't be read again");
                }
                self.reader = None;
                self.scrub.has_read(now, bytes, true);
            }
        }
    }

    /// Whether a damage is there still, if the log can be asked.
    fn is_damaged(&self, damage: &Damage) -> Option<bool> {
        let damage = damage.clone();
        self.log_writer.run_at_once(move |log| log.gap(&damage).map(|gap| gap.is_some()))?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn damage(from: u64) -> Damage {
        let (after, before) = (Position::START, Some(Position::START));
        Damage { path: "segment".into(), segment: 1, from, to: Some(from + 64), record: 1, after, before }
    }

    fn scrub() -> Scrub {
        let rate = ScrubRate { bytes_per_second: 1000, slice: 500, rest: 60 * SECOND, again: 10 * SECOND };
        Scrub::new(rate, Time::ZERO)
    }

    #[test]
    fn a_log_is_read_at_its_rate_and_begun_anew_after_a_rest() {
        let (mut scrub, mut now) = (scrub(), Time::ZERO);
        for _ in 0..10 {
            assert_eq!(scrub.next(now, &[]), ScrubStep::Read(500));
            scrub.has_read(now, 500, false);
            assert_eq!(scrub.next(now, &[]), ScrubStep::Wait(now + SECOND / 2));
            now = now + SECOND / 2;
        }
        scrub.has_read(now, 100, true);
        assert_eq!(scrub.next(now, &[]), ScrubStep::Wait(now + SECOND / 10 + 60 * SECOND));
    }

    #[test]
    fn a_rate_of_0_reads_nothing_and_repairs_what_is_known() {
        let rate = ScrubRate { bytes_per_second: 0, ..ScrubRate::of_node(0) };
        let mut scrub = Scrub::new(rate, Time::ZERO);
        assert_eq!(scrub.next(Time::ZERO, &[NodeId(2)]), ScrubStep::Wait(Time::MAX));
        assert!(scrub.finds(Time::ZERO, &damage(1)));
        assert_eq!(scrub.next(Time::ZERO, &[NodeId(2)]), ScrubStep::Repair(damage(1), NodeId(2)));
    }

    #[test]
    fn each_member_is_asked_once_a_round_and_rounds_come_ever_later() {
        let (mut scrub, others) = (scrub(), [NodeId(2), NodeId(3)]);
        scrub.has_read(Time::ZERO, 0, true);
        assert!(scrub.finds(Time::ZERO, &damage(1)));
        assert!(!scrub.finds(Time::ZERO, &damage(1)), "it is known");
        let mut now = Time::ZERO;
        for round in 0..5 {
            assert_eq!(scrub.next(now, &others), ScrubStep::Repair(damage(1), NodeId(2)));
            assert_eq!(scrub.next(now, &others), ScrubStep::Repair(damage(1), NodeId(3)));
            if round == 0 {
                assert_eq!(scrub.next(now, &others), ScrubStep::Alone(damage(1)), "said once");
                scrub.next_read = Time::MAX;
            }
            let ScrubStep::Wait(again) = scrub.next(now, &others) else { panic!("it is to wait") };
            assert_eq!(again, now + 10 * SECOND * (1 << round));
            now = again;
        }
        assert_eq!(scrub.report().damaged.len(), 1);
        scrub.is_gone(&damage(1), true);
        let report = scrub.report();
        assert_eq!((report.damaged.len(), report.repaired, report.scrub.found), (0, 1, 1));
    }

    #[test]
    fn the_status_says_how_far_the_log_was_read_and_when_it_was_read_to_its_end() {
        let mut scrub = scrub();
        scrub.begins(1100);
        scrub.has_read(Time::ZERO, 500, false);
        scrub.has_read(Time::ZERO, 500, false);
        let status = scrub.report().scrub;
        assert_eq!((status.bytes_per_second, status.read_bytes, status.of_bytes), (1000, 1000, 1100));
        assert_eq!((status.passes, status.ended_at_ns), (0, 0));
        scrub.has_read(Time::ZERO, 100, true);
        scrub.ends(Hlc(7));
        let status = scrub.report().scrub;
        assert_eq!((status.read_bytes, status.passes, status.ended_at_ns), (1100, 1, 7));
        scrub.begins(1200);
        let status = scrub.report().scrub;
        assert_eq!((status.read_bytes, status.of_bytes, status.passes, status.ended_at_ns), (0, 1200, 1, 7));
    }
}
