//! The application of a member: a log of the messages that were delivered, in memory and, in a durable shard, on a
//! disk.

use std::{cell::RefCell, collections::VecDeque, rc::Rc};

use squall_fabric::NodeId;
use squall_membership::{Epoch, Seq};
use squall_ordered::{Deliver, Message, Mode, Tag, log::Hlc};

use super::{Disk, Entry, Oracle, Plan};

/// A read that waits.
pub(super) struct Read {
    /// The largest number of messages that any member had delivered when the read was asked.
    pub(super) at_least: u64,
    /// Whether another member was lost or wedged by then: such a read is never answered.
    pub(super) hopeless: bool,
}

/// The application of one member.
pub(crate) struct App {
    me: usize,
    oracle: Rc<RefCell<Oracle>>,
    pub(crate) log: Vec<Entry>,
    /// The messages that were delivered to a member that does not have the state, which is a log.
    pub(super) backlog: Option<Vec<Kept>>,
    /// The end of the log that it got from another member.
    pub(super) restored: Option<(Epoch, Seq)>,
    pub(super) reads: VecDeque<Read>,
    pub(crate) answered: usize,
    /// Durable mode.
    pub(super) disk: Option<Disk>,
    /// Durable mode: the members that were complete when the view began, by index.
    pub(super) counts: Vec<usize>,
    /// Durable mode: the version that it may tell its callers, and the versions of the reads that it may not tell them
    /// yet.
    pub(crate) globally_persisted: u64,
    pub(crate) held: VecDeque<u64>,
}

/// A message that waits for the state.
pub(super) struct Kept {
    epoch: Epoch,
    seq: Seq,
    sender: NodeId,
    time: u64,
    bytes: Vec<u8>,
}

impl App {
    pub(super) fn new(me: usize, plan: &Plan, oracle: Rc<RefCell<Oracle>>) -> App {
        App {
            me,
            oracle,
            log: Vec::new(),
            backlog: None,
            restored: None,
            reads: VecDeque::new(),
            answered: 0,
            disk: (plan.mode == Mode::Durable).then(|| Disk::new(plan.disk_delay, plan.disk_room)),
            counts: Vec::new(),
            globally_persisted: 0,
            held: VecDeque::new(),
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.backlog.is_none()
    }

    /// Takes another member's log, and the messages that were kept behind it.
    pub(super) fn restore(&mut self, log: &[Entry]) {
        let Some(backlog) = self.backlog.take() else { return };
        self.log = log.to_vec();
        self.append();
        self.restored = log.last().map(|last| (last.epoch, Seq(last.seq)));
        for Kept { epoch, seq, sender, time, bytes } in backlog {
            self.apply((epoch, seq, sender, Tag { ticket: 0, time }), &bytes);
        }
    }

    fn apply(&mut self, message: (Epoch, Seq, NodeId, Tag), bytes: &[u8]) {
        if self.restored.is_some_and(|end| (message.0, message.1) <= end) {
            return;
        }
        let entry = self.oracle.borrow_mut().delivered(self.me, &self.log, message, bytes);
        self.log.push(entry);
        self.append();
    }

    fn append(&mut self) {
        let version = self.delivered();
        if let Some(disk) = &mut self.disk {
            disk.append(version);
        }
    }

    pub(crate) fn delivered(&self) -> u64 {
        self.log.len() as u64
    }
}

impl Deliver for App {
    fn deliver(&mut self, message: Message<'_>) {
        let mut bytes = Vec::new();
        message.payload.copy_to(&mut bytes);
        let Message { epoch, seq, sender, time: Hlc(time), ticket, .. } = message;
        if let Some(backlog) = &mut self.backlog {
            return backlog.push(Kept { epoch, seq, sender, time, bytes });
        }
        self.apply((epoch, seq, sender, Tag { ticket, time }), &bytes);
    }

    fn answer(&mut self, count: u64) {
        for _ in 0..count {
            let delivered = self.delivered();
            let mut oracle = self.oracle.borrow_mut();
            match self.reads.pop_front() {
                None => oracle.wrong(format!("member {} was told to answer a read that no caller asked", self.me)),
                Some(read) if read.hopeless => {
                    oracle.wrong(format!("member {} answered a read when another had wedged or was lost", self.me));
                }
                Some(read) if read.at_least > delivered => oracle.wrong(format!(
                    "member {} answered a read from {delivered} messages, when {} had been delivered before it",
                    self.me, read.at_least
                )),
                Some(_) => {
                    self.answered += 1;
                    if self.disk.is_some() && delivered > self.globally_persisted {
                        self.held.push_back(delivered);
                    }
                }
            }
        }
    }

    fn has_room(&mut self) -> bool {
        self.backlog.is_some() || self.disk.as_ref().is_none_or(Disk::has_room)
    }

    fn globally_persisted(&mut self, version: u64) {
        self.oracle.borrow_mut().globally_persisted(self.me, version, &self.counts);
        // In the view before, the globally persisted version may have come further than this member knows yet in this
        // one.
        self.globally_persisted = self.globally_persisted.max(version);
        while self.held.front().is_some_and(|&held| held <= version) {
            self.held.pop_front();
        }
    }
}
