//! A member's disk: a log that is written batch by batch, each of which takes its time.

use std::time::Duration;

use fastrand::Rng;
use squall_fabric::Time;

use super::within;

/// A simulated log on disk. All numbers are versions, or counts of messages.
#[derive(Debug)]
pub(crate) struct Disk {
    /// The longest time that a batch takes.
    delay: Duration,
    /// The number of messages that may be appended and not persisted. A state that came from another member may be
    /// longer, and is written in parts of this size.
    room: u64,
    appended: u64,
    /// The end of the batch that is being written.
    writing: Option<u64>,
    persisted: u64,
    stopped: bool,
    /// The time at which the batch is written.
    pub(crate) due: Time,
}

impl Disk {
    pub(crate) fn new(delay: Duration, room: u64) -> Disk {
        Disk { delay, room, appended: 0, writing: None, persisted: 0, stopped: false, due: Time::MAX }
    }

    pub(crate) fn append(&mut self, upto: u64) {
        self.appended = upto;
    }

    pub(crate) fn has_room(&self) -> bool {
        self.appended < self.persisted + self.room
    }

    /// The version up to which it is writing, or has written.
    pub(crate) fn writing(&self) -> u64 {
        self.writing.unwrap_or(self.persisted)
    }

    pub(crate) fn persisted(&self) -> u64 {
        self.persisted
    }

    /// Begins to write the messages that were appended, unless it is writing. Returns whether it began.
    pub(crate) fn write(&mut self, now: Time, rng: &mut Rng) -> bool {
        let begins = !self.stopped && self.writing.is_none() && self.appended > self.persisted;
        if begins {
            self.writing = Some(self.appended.min(self.persisted + self.room));
            self.due = now + within(rng, self.delay);
        }
        begins
    }

    /// Completes the batch that is being written.
    pub(crate) fn complete(&mut self) {
        self.due = Time::MAX;
        self.persisted = self.writing.take().unwrap_or(self.persisted);
    }

    /// Fails the write under way. Nothing more is written until it [goes on](Disk::go_on).
    pub(crate) fn stop(&mut self) {
        (self.stopped, self.writing, self.due) = (true, None, Time::MAX);
    }

    pub(crate) fn go_on(&mut self) {
        self.stopped = false;
    }
}
