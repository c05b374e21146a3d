//! What must be true of a cluster, whatever happens to it.

use std::fmt;

use squall_fabric::NodeId;
use squall_membership::Seq;
use squall_ordered::{Message, Mode, Undelivered};

use super::{Member, Plan};

/// What was found to be wrong.
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
    pub(crate) seq: u64,
    /// The sender's index among the members.
    pub(crate) sender: usize,
    /// Counts the sender's messages, from 1.
    pub(crate) number: u64,
}

impl Entry {
    /// What a message looks like: its bytes follow from sender and number.
    pub(crate) fn payload(sender: usize, number: u64, len: usize) -> Vec<u8> {
        let mix = |i: usize| (number.wrapping_mul(0x9e37_79b9) as usize ^ i.wrapping_mul(31) ^ sender) as u8;
        (0..len).map(mix).collect()
    }
}

/// Sees all that happens at all members.
pub(crate) struct Oracle {
    mode: Mode,
    nodes: Vec<NodeId>,
    senders: Vec<usize>,
    /// Ordered: what was delivered by whoever delivered most.
    order: Vec<Entry>,
    /// The lengths of the messages that each member's shard accepted.
    accepted: Vec<Vec<usize>>,
    /// Who is wedged, or crashed.
    left: Vec<bool>,
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
            wrong: None,
        }
    }

    /// The first that is wrong counts.
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

    /// A read asked now must see so many messages; and may not be answered, if another member is not there to confirm.
    pub(crate) fn read_asked(&self, by: usize) -> (u64, bool) {
        let hopeless = self.left.iter().enumerate().any(|(member, &left)| left && member != by);
        (self.order.len() as u64, hopeless)
    }

    /// Checks a message that a member delivers behind `log`.
    pub(crate) fn delivered(&mut self, at: usize, log: &[Entry], message: &Message<'_>, bytes: &[u8]) -> Entry {
        let sender = self.nodes.iter().position(|&node| node == message.sender).unwrap_or(usize::MAX);
        let number = 1 + log.iter().rev().find(|entry| entry.sender == sender).map_or(0, |entry| entry.number);
        let entry = Entry { seq: message.seq.0, sender, number };
        let rank = self.senders.iter().position(|&s| s == sender);
        let accepted = self.accepted.get(sender).and_then(|lens| lens.get(number as usize - 1)).copied();
        let before = match self.mode {
            Mode::Ordered => log.last(),
            Mode::Unordered => log.iter().rev().find(|earlier| earlier.sender == sender),
        };
        let ticket = if sender == at { number as u32 } else { 0 };
        if accepted.is_none_or(|len| bytes != Entry::payload(sender, number, len)) {
            self.wrong(format!("member {at} delivered {entry:?}: a gap, a duplicate, or other bytes than were sent"));
        } else if rank != Some((entry.seq % self.senders.len() as u64) as usize) {
            self.wrong(format!("member {at} delivered {entry:?}, which is not the sender's turn"));
        } else if before.is_some_and(|before| before.seq >= entry.seq) {
            self.wrong(format!("member {at} delivered {entry:?} after {before:?}"));
        } else if message.ticket != ticket {
            self.wrong(format!("member {at} delivered {entry:?} with ticket {}", message.ticket));
        }
        if self.mode == Mode::Ordered {
            match self.order.get(log.len()).copied() {
                Some(same) if same == entry => {}
                Some(other) => self.wrong(format!("member {at} delivered {entry:?} where another delivered {other:?}")),
                None => self.order.push(entry),
            }
        }
        entry
    }

    /// Checks the end of a view whose survivors have cleaned up.
    pub(crate) fn check_end(
        &self,
        mode: Mode,
        trim: Seq,
        survivors: &[usize],
        members: &[Member],
        undelivered: &[(usize, Vec<Undelivered>)],
    ) -> Result<(), Wrong> {
        self.verdict()?;
        let wrong = |what: String| Err(Wrong(what));
        for (at, member) in members.iter().enumerate() {
            let survives = survivors.contains(&at);
            let log = &member.app.log;
            match mode {
                Mode::Ordered => {
                    if let Some(beyond) = log.iter().find(|entry| entry.seq >= trim.0) {
                        return wrong(format!("member {at} delivered {beyond:?}, beyond the trim {trim}"));
                    }
                    // `order` is the longest log, so none reaches further than the survivors'.
                    if survives && log.len() != self.order.len() {
                        return wrong(format!(
                            "survivor {at} delivered {} of {} messages",
                            log.len(),
                            self.order.len()
                        ));
                    }
                    if survives && member.row(at).delivered != trim.0 {
                        return wrong(format!("survivor {at} says {:?} with trim {trim}", member.row(at)));
                    }
                }
                // What a sender has delivered, all hold.
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
            let own = |member: usize| members[member].app.log.iter().filter(|entry| entry.sender == *at).count() as u64;
            let expected: Vec<u32> = (own(*at) + 1..=members[*at].accepted).map(|number| number as u32).collect();
            let found: Vec<u32> = listed.iter().map(|undelivered| undelivered.ticket).collect();
            if found != expected {
                return wrong(format!("survivor {at} lists {found:?} as undelivered instead of {expected:?}"));
            }
            for undelivered in listed {
                let holders = survivors.iter().filter(|&&m| undelivered.held_by.contains(&self.nodes[m]) && m != *at);
                for &holder in holders {
                    if own(holder) < u64::from(undelivered.ticket) {
                        return wrong(format!("{undelivered:?} of {at} was not delivered by member {holder}"));
                    }
                }
            }
        }
        Ok(())
    }
}
