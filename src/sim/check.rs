//! Checks of what must hold of a run, whatever happened in it.

use std::{collections::BTreeMap, sync::Arc};

use squall_fabric::NodeId;
use squall_membership::{ClusterId, Epoch, View};

/// An entry of a replica's log: the message that it applied there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Applied {
    pub(super) sender: NodeId,
    /// The client at the sender. Each client counts its messages from 0.
    pub(super) client: u32,
    pub(super) number: u64,
    /// Whether its bytes were the ones that were submitted.
    pub(super) intact: bool,
}

/// The record of one replica, in one life of its node.
#[derive(Clone, Debug, Default)]
pub(super) struct Book {
    /// The entries that it applied, including those that came with a state captured elsewhere.
    pub(super) entries: Vec<Applied>,
    /// The group's time at each of the entries.
    pub(super) times: Vec<u64>,
    /// The number of entries that it had when each view began.
    pub(super) views: BTreeMap<Epoch, usize>,
    /// The number of entries that a durable group has shown to any client; the others may be undone. None in other
    /// groups, where none may.
    pub(super) told: Option<usize>,
    /// The first error that it saw.
    pub(super) wrong: Option<String>,
}

impl Book {
    /// Begins to take another replica's state in place of its own. Returns its own entries, as far as they must not be
    /// undone. The other state may be an older one: a replica that needs a state serves no client until it has caught
    /// up.
    pub(super) fn begin_replacing(&mut self, views: BTreeMap<Epoch, usize>) -> Vec<Applied> {
        let mut before = std::mem::take(&mut self.entries);
        before.truncate(self.told.unwrap_or(usize::MAX));
        self.times.clear();
        self.views = views;
        before
    }

    /// Compares the other replica's state, which is complete now, with the entries that were there before.
    pub(super) fn end_replacing(&mut self, before: &[Applied]) {
        let entries = &self.entries;
        if !entries.starts_with(before) && !before.starts_with(entries) {
            let why = format!("a state of {} entries took the place of {} others", entries.len(), before.len());
            self.wrong.get_or_insert(why);
        }
    }

    /// Takes note of a view.
    pub(super) fn view(&mut self, epoch: Epoch) {
        if self.views.last_key_value().is_some_and(|(&last, _)| last >= epoch) {
            self.wrong.get_or_insert(format!("{epoch} was announced after {:?}", self.views));
        }
        self.views.insert(epoch, self.entries.len());
    }
}

/// Checks that of two logs one is the beginning of the other, that times agree and rise, and that views begin at the
/// same place in all logs.
pub(super) fn same_order<'a>(books: impl Iterator<Item = (NodeId, &'a Book)> + Clone) -> Result<(), String> {
    let Some((longest, reference)) = books.clone().max_by_key(|(_, book)| book.entries.len()) else { return Ok(()) };
    let mut begins: BTreeMap<Epoch, (NodeId, usize)> = BTreeMap::new();
    for (node, Book { entries: log, times, views, wrong, .. }) in books {
        if let Some(wrong) = wrong {
            return Err(format!("{node}: {wrong}"));
        }
        let others = &reference.entries;
        if let Some(at) = (0..log.len()).find(|&i| log[i] != others[i]) {
            return Err(format!("{node} applied {:?} at {at}, where {longest} applied {:?}", log[at], others[at]));
        }
        if let Some(at) =
            (0..times.len()).find(|&i| times[i] != reference.times[i] || i > 0 && times[i] <= times[i - 1])
        {
            let (time, other) = (times[at], reference.times[at]);
            return Err(format!(
                "{node} has the time {time} at entry {at}, where {longest} has {other}, or it has gone back"
            ));
        }
        for (&epoch, &at) in views {
            let &mut (other, there) = begins.entry(epoch).or_insert((node, at));
            if at != there {
                return Err(format!("{epoch} began after {at} entries at {node}, and after {there} at {other}"));
            }
        }
    }
    Ok(())
}

/// Checks that each client's messages are applied in its order, each once, and as they were submitted. No message may
/// be missing before a later one, except the messages that the log `may_lack`.
pub(super) fn order_of_clients(
    node: NodeId,
    log: &[Applied],
    may_lack: impl Fn(&Applied) -> bool,
) -> Result<(), String> {
    let mut next: BTreeMap<(NodeId, u32), u64> = BTreeMap::new();
    for (at, entry) in log.iter().enumerate() {
        if !entry.intact {
            return Err(format!("{node} applied {entry:?} at {at} with other bytes than were submitted"));
        }
        let expected = next.entry((entry.sender, entry.client)).or_default();
        while *expected < entry.number && may_lack(&Applied { number: *expected, ..*entry }) {
            *expected += 1;
        }
        if entry.number != *expected {
            return Err(format!("{node} applied {entry:?} at {at}, where number {expected} of that client was due"));
        }
        *expected += 1;
    }
    Ok(())
}

/// Checks that there is one view of each epoch of a life of the group, the one that was decided.
pub(super) fn one_view_per_epoch<'a>(
    decided: impl Iterator<Item = &'a Arc<View>>,
    installed: impl Iterator<Item = (NodeId, &'a Arc<View>)>,
) -> Result<(), String> {
    let decided: BTreeMap<(ClusterId, Epoch), &View> = decided.map(|view| ((view.life, view.epoch), &**view)).collect();
    for (node, view) in installed {
        let known = decided.get(&(view.life, view.epoch));
        if known != Some(&&**view) {
            return Err(format!("{node} installed {view:?}, and {known:?} was decided"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(sender: u32, number: u64) -> Applied {
        Applied { sender: NodeId(sender), client: 0, number, intact: true }
    }

    /// The entries that a member applied, and the number of entries at which each of its views began.
    type Log<'a> = (&'a [Applied], &'a [(u64, usize)]);

    fn order(logs: &[Log<'_>]) -> Result<(), String> {
        let book = |(log, views): &Log<'_>| Book {
            entries: log.to_vec(),
            views: views.iter().map(|&(epoch, at)| (Epoch(epoch), at)).collect(),
            ..Book::default()
        };
        let books: Vec<(NodeId, Book)> = (1..).map(NodeId).zip(logs.iter().map(book)).collect();
        same_order(books.iter().map(|(node, book)| (*node, book)))
    }

    #[test]
    fn a_log_that_differs_is_found_and_a_shorter_one_is_not_blamed() {
        let (a, b, c) = (entry(1, 0), entry(2, 0), entry(1, 1));
        assert!(order(&[(&[a, b, c], &[]), (&[a, b], &[]), (&[], &[])]).is_ok());
        assert!(order(&[(&[a, b, c], &[]), (&[b, a], &[])]).is_err());
    }

    #[test]
    fn a_view_that_begins_elsewhere_is_found() {
        let log = [entry(1, 0), entry(2, 0)];
        assert!(order(&[(&log, &[(1, 0), (2, 1)]), (&log[..1], &[(2, 1)])]).is_ok());
        assert!(order(&[(&log, &[(1, 0), (2, 1)]), (&log, &[(2, 2)])]).is_err());
    }

    #[test]
    fn a_state_of_another_order_is_found() {
        let mut book = Book { entries: vec![entry(1, 0), entry(2, 0)], ..Book::default() };
        replace(&mut book, &[entry(2, 0)]);
        assert!(book.wrong.is_some());
    }

    fn replace(book: &mut Book, entries: &[Applied]) {
        let before = book.begin_replacing(BTreeMap::new());
        book.entries.extend(entries);
        book.end_replacing(&before);
    }

    #[test]
    fn a_durable_group_may_undo_what_it_has_not_shown() {
        let mut book = Book { entries: vec![entry(1, 0), entry(2, 0)], told: Some(1), ..Book::default() };
        replace(&mut book, &[entry(1, 0), entry(1, 1)]);
        assert_eq!(book.wrong, None);
        replace(&mut book, &[entry(2, 0)]);
        assert!(book.wrong.is_some());
    }

    #[test]
    fn other_bytes_are_found() {
        let damaged = Applied { intact: false, ..entry(1, 0) };
        assert!(order_of_clients(NodeId(9), &[damaged], |_| false).is_err());
    }

    #[test]
    fn gaps_repetitions_and_swaps_are_found() {
        let ok = [entry(1, 0), entry(2, 0), entry(1, 1)];
        assert!(order_of_clients(NodeId(9), &ok, |_| false).is_ok());
        for bad in [[entry(1, 0), entry(1, 2)], [entry(1, 0), entry(1, 0)], [entry(1, 1), entry(1, 0)]] {
            assert!(order_of_clients(NodeId(9), &bad, |_| false).is_err(), "{bad:?}");
        }
        assert!(order_of_clients(NodeId(9), &[entry(1, 0), entry(1, 2)], |lacks| lacks.number == 1).is_ok());
    }
}
