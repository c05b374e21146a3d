//! The invariants of a cluster, which hold in every run.

use std::fmt;

use squall_fabric::NodeId;
use squall_membership::{Epoch, Seq};
use squall_ordered::{Mode, Tag, Undelivered};

use super::{Member, Plan};

/// A violation that was found.
#[derive(Clone, Debug)]
pub(crate) struct Wrong(pub String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A message, as it was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) epoch: Epoch,
    pub(crate) seq: u64,
    /// The sender's index among the members.
    pub(crate) sender: usize,
    /// Counts the sender's messages, from 1.
    pub(crate) number: u64,
}

impl Entry {
    /// The bytes of a message, which follow from its sender and number.
    pub(crate) fn payload(sender: usize, number: u64, len: usize) -> Vec<u8> {
        let mix = |i: usize| (number.wrapping_mul(0x9e37_79b9) as usize ^ i.wrapping_mul(31) ^ sender) as u8;
        (0..len).map(mix).collect()
    }
}

/// An observer of all events at all members.
pub(crate) struct Oracle {
    mode: Mode,
    /// All nodes that are ever members.
    nodes: Vec<NodeId>,
    /// The senders of the current view, by rank.
    senders: Vec<usize>,
    /// Ordered: the messages of the member that delivered most.
    order: Vec<Entry>,
    /// The lengths of the messages that each member's shard accepted.
    accepted: Vec<Vec<usize>>,
    /// Whether each member is wedged in the current view, or crashed.
    left: Vec<bool>,
    /// Durable mode: the version that each member has on disk, also of members that have crashed.
    on_disk: Vec<u64>,
    /// Durable mode: the last version that any member may have told a caller of.
    told: u64,
    wrong: Option<Wrong>,
}

impl Oracle {
    pub(crate) fn new(plan: &Plan, nodes: &[NodeId]) -> Oracle {
        Oracle {
            mode: plan.mode,
            nodes: nodes.to_vec(),
            senders: plan.senders.clone(),
            order: Vec::new(),
            accepted: vec![Vec::new(); nodes.len()],
            left: vec![false; nodes.len()],
            on_disk: vec![0; nodes.len()],
            told: 0,
            wrong: None,
        }
    }

    /// Notes that a view begins.
    pub(crate) fn begin(&mut self, senders: &[usize]) {
        self.senders = senders.to_vec();
        self.left.fill(false);
    }

    /// Notes a violation. The first one counts.
    pub(crate) fn wrong(&mut self, what: String) {
        self.wrong.get_or_insert(Wrong(what));
    }

    pub(crate) fn verdict(&self) -> Result<(), Wrong> {
        self.wrong.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn accepted(&mut self, member: usize, len: usize) {
        self.accepted[member].push(len);
    }

    pub(crate) fn left(&mut self, member: usize) {
        self.left[member] = true;
    }

    pub(crate) fn persisted(&mut self, member: usize, version: u64) {
        self.on_disk[member] = version;
    }

    /// Notes that a member may tell its callers of all messages up to this version, and checks the disks of the members
    /// that count.
    pub(crate) fn globally_persisted(&mut self, at: usize, version: u64, counts: &[usize]) {
        self.told = self.told.max(version);
        if let Some(&lacks) = counts.iter().find(|&&member| self.on_disk[member] < version) {
            let has = self.on_disk[lacks];
            self.wrong(format!("member {at} takes version {version} for safe, and {lacks} has {has} on disk"));
        }
    }

    /// Checks that each of these members alone has enough on disk to go on from, should all crash now.
    pub(crate) fn check_disks(&self, complete: &[usize]) -> Result<(), Wrong> {
        match complete.iter().find(|&&member| self.on_disk[member] < self.told) {
            None => Ok(()),
            Some(&member) => {
                let (has, told) = (self.on_disk[member], self.told);
                Err(Wrong(format!("complete member {member} has {has} on disk, and version {told} was acknowledged")))
            }
        }
    }

    /// Returns the number of messages that a read must see if it is asked now, and whether it can't be answered, since
    /// another member is not there to confirm it.
    pub(crate) fn read_asked(&self, by: usize) -> (u64, bool) {
        let hopeless = self.left.iter().enumerate().any(|(member, &left)| left && member != by);
        (self.order.len() as u64, hopeless)
    }

    /// Checks a message that a member delivers behind `log`.
    pub(crate) fn delivered(
        &mut self,
        at: usize,
        log: &[Entry],
        (epoch, seq, sender, its_tag): (Epoch, Seq, NodeId, Tag),
        bytes: &[u8],
    ) -> Entry {
        let sender = self.nodes.iter().position(|&node| node == sender).unwrap_or(usize::MAX);
        let number = 1 + log.iter().rev().find(|entry| entry.sender == sender).map_or(0, |entry| entry.number);
        let entry = Entry { epoch, seq: seq.0, sender, number };
        let rank = self.senders.iter().position(|&s| s == sender);
        let accepted = self.accepted.get(sender).and_then(|lens| lens.get(number as usize - 1)).copied();
        let before = match self.mode {
            Mode::Ordered | Mode::Durable => log.last(),
            Mode::Unordered => log.iter().rev().find(|earlier| earlier.sender == sender),
        };
        // Each message is sent at another time.
        let tag = Tag { ticket: if sender == at { number as u32 } else { 0 }, time: number };
        if accepted.is_none_or(|len| bytes != Entry::payload(sender, number, len)) {
            self.wrong(format!("member {at} delivered {entry:?}: a gap, a duplicate, or other bytes than were sent"));
        } else if rank != Some((entry.seq % self.senders.len() as u64) as usize) {
            self.wrong(format!("member {at} delivered {entry:?}, which is not the sender's turn"));
        } else if before.is_some_and(|before| (before.epoch, before.seq) >= (entry.epoch, entry.seq)) {
            self.wrong(format!("member {at} delivered {entry:?} after {before:?}"));
        } else if its_tag != tag {
            self.wrong(format!("member {at} delivered {entry:?} with {its_tag:?}"));
        }
        if self.mode.is_ordered() {
            match self.order.get(log.len()).copied() {
                Some(same) if same == entry => {}
                Some(other) => self.wrong(format!("member {at} delivered {entry:?} where another delivered {other:?}")),
                None => self.order.push(entry),
            }
        }
        entry
    }

    /// Checks a message that a member has to send again, or to report to its caller.
    fn check_undelivered(&self, trim: Seq, at: usize, undelivered: &Undelivered) -> Result<(), Wrong> {
        let number = undelivered.tag.ticket as usize;
        let expected = match self.mode {
            Mode::Unordered if undelivered.place.is_some() => Vec::new(),
            _ => Entry::payload(at, number as u64, self.accepted[at][number - 1]),
        };
        let is_its_turn = |place: Seq| self.senders.get(place.0 as usize % self.senders.len()) == Some(&at);
        if undelivered.payload != expected {
            return Err(Wrong(format!("{at} has other bytes of its undelivered message {number} than were sent")));
        }
        if undelivered.place.is_some_and(|place| !is_its_turn(place)) {
            return Err(Wrong(format!("{undelivered:?} of {at} can't have that place")));
        }
        let is_delivered = self.order.iter().any(|entry| (entry.sender, entry.number) == (at, number as u64));
        if self.mode.is_ordered() && is_delivered != undelivered.place.is_some_and(|place| place < trim) {
            return Err(Wrong(format!("{undelivered:?} of {at} with trim {trim}: delivered is {is_delivered}")));
        }
        Ok(())
    }

    /// Checks the end of a view whose survivors have cleaned up.
    pub(crate) fn check_end(
        &self,
        epoch: Epoch,
        trim: Seq,
        current: &[usize],
        survivors: &[usize],
        members: &[Member],
        undelivered: &[(usize, Vec<Undelivered>)],
    ) -> Result<(), Wrong> {
        self.verdict()?;
        let wrong = |what: String| Err(Wrong(what));
        for (at, member) in current.iter().map(|&at| (at, &members[at])) {
            let survives = survivors.contains(&at);
            let log = &member.app.log;
            match self.mode {
                Mode::Ordered | Mode::Durable => {
                    if let Some(beyond) = log.iter().find(|entry| entry.epoch == epoch && entry.seq >= trim.0) {
                        return wrong(format!("member {at} delivered {beyond:?}, beyond the trim {trim}"));
                    }
                    // `order` is the longest log, so none reaches further than the survivors'.
                    if survives && member.app.is_complete() && !member.is_short() && log.len() != self.order.len() {
                        return wrong(format!(
                            "survivor {at} delivered {} of {} messages",
                            log.len(),
                            self.order.len()
                        ));
                    }
                    let end = trim.min(member.received());
                    if survives && (member.row().delivered != end.0 || member.is_short() != (end < trim)) {
                        return wrong(format!("survivor {at} says {:?} with trim {trim}", member.row()));
                    }
                }
                // All members hold the messages that a sender has delivered of its own.
                Mode::Unordered if survives => {
                    for (s, sender) in members.iter().enumerate() {
                        let own = sender.app.log.iter().filter(|entry| entry.sender == s).count();
                        let here = log.iter().filter(|entry| entry.sender == s).count();
                        if own > here {
                            return wrong(format!("survivor {at} has {here} of the {own} messages that {s} delivered"));
                        }
                    }
                }
                Mode::Unordered => {}
            }
        }
        for (at, listed) in undelivered {
            let may_be_delivered = !survivors.contains(at) || members[*at].is_short();
            if !may_be_delivered && listed.iter().any(|undelivered| undelivered.place.is_some_and(|place| place < trim))
            {
                return wrong(format!("survivor {at} lists as undelivered what lies within the trim {trim}"));
            }
            let own = |member: usize| members[member].app.log.iter().filter(|entry| entry.sender == *at).count() as u64;
            let expected: Vec<u32> = (own(*at) + 1..=members[*at].accepted).map(|number| number as u32).collect();
            let found: Vec<u32> = listed.iter().map(|undelivered| undelivered.tag.ticket).collect();
            if found != expected {
                return wrong(format!("member {at} lists {found:?} as undelivered instead of {expected:?}"));
            }
            for undelivered in listed {
                self.check_undelivered(trim, *at, undelivered)?;
                let holders = survivors.iter().filter(|&&m| undelivered.held_by.contains(&self.nodes[m]) && m != *at);
                for &holder in holders {
                    if own(holder) < u64::from(undelivered.tag.ticket) {
                        return wrong(format!("{undelivered:?} of {at} was not delivered by member {holder}"));
                    }
                }
            }
        }
        Ok(())
    }
}
