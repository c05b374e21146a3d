//! The checks of what must hold once a scenario is over.

use std::collections::BTreeSet;

use rkyv::{Archived, rancor, util::AlignedVec};
use squall_fabric::NodeId;
use squall_membership::{EndReason, Member, Proposal, ShardState};

use super::{
    SHARD, Scenario, SimPeer,
    client::Later,
    ledger::{Append, Log, padding},
};
use crate::sim::check::{self, Applied, Book};

impl Scenario<'_> {
    /// Checks all that can be said when everything is over.
    pub(super) fn verify(&mut self) -> Result<(), String> {
        for peer in &self.peers {
            match self.cluster.end_reason(peer.node) {
                Some(reason) if !peer.leaves || !matches!(reason, EndReason::Left) => {
                    return Err(format!("{} has ended: {reason}", peer.node));
                }
                _ => {}
            }
        }
        if let Some(contradiction) = self.cluster.raft.contradiction() {
            return Err(contradiction);
        }
        let history = self.cluster.history();
        self.verify_suspensions(&history)?;
        self.verify_members(&history)?;
        let installed = self.cluster.installed();
        check::one_view_per_epoch(history.iter().map(|next| &next.view), installed.iter().map(|(n, v)| (*n, v)))?;
        let present = self.peers.iter().map(|peer| (peer.node, peer.log.clone()));
        let logs: Vec<(NodeId, Log)> = self.past.iter().cloned().chain(present).collect();
        let mut books: Vec<_> = logs.iter().map(|(node, log)| (*node, log.book().clone())).collect();
        if self.durable {
            self.forget_what_is_void(&mut books);
        }
        for (node, book) in &books {
            check::order_of_clients(*node, &book.entries, |entry| {
                self.refused.contains(entry) || self.unknown.contains(entry)
            })?;
            self.digest.number(book.entries.len() as u64);
        }
        if self.calm {
            let submitted: u64 = self.numbers.values().sum();
            if let Some((node, book)) = books.iter().find(|(_, book)| book.entries.len() as u64 != submitted) {
                let applied = book.entries.len();
                return Err(format!("{submitted} messages were submitted, and {applied} applied at {node}"));
            }
        }
        if !self.ordered {
            return self.verify_arrival(&books);
        }
        check::same_order(books.iter().map(|(node, book)| (*node, book)))?;
        let reference = books.iter().map(|(_, book)| &book.entries).max_by_key(|log| log.len()).expect("some");
        for (len, entry) in &self.acknowledged {
            if reference.get(*len as usize - 1) != Some(entry) {
                return Err(format!("{entry:?} was acknowledged as entry {len}, and is not there"));
            }
        }
        self.verify_delivered(reference)?;
        none_applied(reference, &self.refused)
    }

    /// Checks that the messages that were said to be delivered are in the log, unless they are lost with all nodes that
    /// had them. An answer to an operation that began afterwards must show them.
    fn verify_delivered(&self, reference: &[Applied]) -> Result<(), String> {
        // The length of a log that shows the first `i` of them, at index `i`.
        let mut shows = vec![0];
        for entry in &self.delivered {
            let place = reference.iter().position(|other| other == entry);
            let most = *shows.last().expect("one at least");
            match place {
                Some(place) => shows.push(most.max(place as u64 + 1)),
                None if self.is_lost() => shows.push(most),
                None => return Err(format!("{entry:?} was said to be delivered, and is nowhere")),
            }
        }
        match self.later.iter().find(|later| later.len < shows[later.behind]) {
            Some(Later { node, what, behind, len }) => {
                let shown = shows[*behind];
                Err(format!("{node}: {what:?} showed {len} entries, after it was said that {shown} are delivered"))
            }
            None => Ok(()),
        }
    }

    /// Removes what may be undone from the records of a durable group. What its members applied and showed to no client
    /// may be undone when all lose power. Only nodes that are members at the end are sure to have nothing of that.
    fn forget_what_is_void(&self, books: &mut [(NodeId, Book)]) {
        let goes_on = !self.is_lost();
        let present = books.len() - self.peers.len();
        for (index, (node, book)) in books.iter_mut().enumerate() {
            let is_member = index >= present && goes_on && self.living().any(|peer| peer.node == *node);
            if !is_member {
                let told = book.told.unwrap_or(0);
                book.entries.truncate(told);
                book.times.truncate(told);
                book.views.retain(|_, at| *at <= told);
            }
        }
    }

    /// Checks the replicas and the logs on disk of a durable group at the end. Each replica has all that was shown, and
    /// each log agrees with its replica, version by version, to the end.
    pub(super) fn verify_disks(&mut self) -> Result<(), String> {
        if self.is_lost() {
            return Ok(());
        }
        for peer in self.living() {
            let (node, book) = (peer.node, peer.log.book());
            if !book.entries.starts_with(&self.shown) {
                let (has, shown) = (book.entries.len(), self.shown.len());
                return Err(format!("{node} has {has} entries, and not the {shown} that were shown"));
            }
            let mut aligned = AlignedVec::<16>::new();
            let last = self.cluster.logged(node, SHARD, |version, sender, payload| {
                aligned.clear();
                aligned.extend_from_slice(payload);
                let append = rkyv::access::<Archived<Append>, rancor::Error>(&aligned);
                let append = append.map_err(|error| format!("{node} has logged no command as {version}: {error}"))?;
                let (client, number) = (append.client.to_native(), append.number.to_native());
                let intact = append.padding == padding(sender, client, number, append.padding.len());
                let (entry, applied) =
                    (Applied { sender, client, number, intact }, book.entries.get(version as usize - 1));
                if applied == Some(&entry) {
                    return Ok(());
                }
                Err(format!("{node} has logged {entry:?} as version {version}, and has applied {applied:?}"))
            })?;
            if last != book.entries.len() as u64 {
                return Err(format!("{node} has applied {} messages, and its log ends at {last}", book.entries.len()));
            }
        }
        Ok(())
    }

    /// Checks that, of three or more members, a single one that is disturbed does not have others dropped, whatever it
    /// holds against them.
    fn verify_members(&self, history: &[Proposal]) -> Result<(), String> {
        for (before, after) in history.iter().zip(&history[1..]) {
            let dropped =
                |member: &&Member| !self.faults.met.contains(&member.node) && !after.view.members.contains(member);
            if let Some(member) = before.view.members.iter().find(dropped)
                && before.view.members.len() >= 3
                && self.faults.met.len() <= 1
            {
                return Err(format!("{} is without {}, which met no fault", after.view.epoch, member.node));
            }
        }
        Ok(())
    }

    /// Checks that a state is given up only where all members that had it were disturbed.
    fn verify_suspensions(&self, history: &[Proposal]) -> Result<(), String> {
        let state = |next: &Proposal| next.view.shard(SHARD).map(|shard| shard.state.clone());
        for (before, after) in history.iter().zip(&history[1..]) {
            if !matches!(state(after), Some(ShardState::Suspended { .. })) {
                continue;
            }
            let holders = before.view.shard(SHARD).map_or(&[][..], |shard| &shard.complete);
            if let Some(holder) = holders.iter().find(|&&holder| !self.faults.met.contains(&holder)) {
                return Err(format!("{} gives the state up, which {holder} has, which met no fault", after.view.epoch));
            }
        }
        Ok(())
    }

    /// Checks arrival in unordered mode. What was acknowledged is applied by every member that could go on. What was
    /// said not to be delivered is applied by none.
    fn verify_arrival(&self, books: &[(NodeId, Book)]) -> Result<(), String> {
        books.iter().try_for_each(|(_, book)| none_applied(&book.entries, &self.refused))?;
        if self.is_lost() {
            return Ok(());
        }
        for (_, entry) in &self.acknowledged {
            let lacks = |peer: &&SimPeer| !peer.log.book().entries.contains(entry);
            if let Some(peer) = self.living().find(lacks) {
                return Err(format!("{entry:?} was acknowledged, and {} lacks it", peer.node));
            }
        }
        Ok(())
    }
}

/// Checks that no message that was said not to be delivered is in a log.
fn none_applied(log: &[Applied], refused: &BTreeSet<Applied>) -> Result<(), String> {
    match log.iter().find(|entry| refused.contains(entry)) {
        Some(entry) => Err(format!("{entry:?} was said not to be delivered, and is applied")),
        None => Ok(()),
    }
}
