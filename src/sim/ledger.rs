//! A service whose histories can be checked: whether its transactions over shards are strictly serializable.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Read},
};

use rkyv::{Archive, Archived, Deserialize, Serialize};

use crate::{
    clients::query::QueryService,
    replica::{
        replicated::{Applied, Replicated},
        schema::Schema,
        snapshot::Snapshot,
    },
    transactions::{Keys, TransactionService},
};

/// A service that keeps all writers of each key, in the order in which they have written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger(BTreeMap<u64, Vec<u64>>);

/// A read or a write of one key.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct LedgerCommand {
    /// The key.
    pub key: u64,
    /// The transaction's number, from 1 on, which no other transaction has, if it writes.
    pub writer: Option<u64>,
    /// The number of writes of the key that there must be before. Otherwise the command is refused.
    pub expects: Option<u64>,
    /// Whether the command names no key. A history with such commands is not serializable, as tests of the check show.
    pub is_careless: bool,
}

/// The state of a key before a command, or at a query.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerState {
    /// The number of its writes.
    pub version: u64,
    /// The last writer, or 0.
    pub last: u64,
}

/// A query for the state of a key; of all keys without one.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct LedgerQuery {
    /// The key.
    pub key: Option<u64>,
}

/// The answer to a query.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct LedgerAnswer {
    /// The state of the key that was asked for.
    pub state: LedgerState,
    /// The writers of each key, if all were asked for.
    pub writers: Vec<(u64, Vec<u64>)>,
}

impl Ledger {
    fn state(&self, key: u64) -> LedgerState {
        let writers = self.0.get(&key).map_or(&[][..], Vec::as_slice);
        LedgerState { version: writers.len() as u64, last: writers.last().copied().unwrap_or_default() }
    }
}

impl Replicated for Ledger {
    type Command = LedgerCommand;
    type Reply = LedgerState;

    const SCHEMA: Schema = Schema::new("squall-ledger", 1);

    fn apply(&mut self, command: &Archived<LedgerCommand>, _at: &Applied) -> LedgerState {
        let (key, before) = (command.key.to_native(), self.state(command.key.to_native()));
        if let Some(writer) = command.writer.as_ref() {
            self.0.entry(key).or_default().push(writer.to_native());
        }
        before
    }

    fn snapshot(&self) -> Snapshot {
        let state = self.0.clone();
        Snapshot::new(move |to| {
            for (key, writers) in state {
                let words = [key, writers.len() as u64].into_iter().chain(writers);
                to.write_all(&words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())?;
            }
            Ok(())
        })
    }

    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)?;
        let mut words = bytes.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word));
        self.0.clear();
        while let Some(key) = words.next() {
            let len = words.next().ok_or(io::ErrorKind::UnexpectedEof)?;
            self.0.insert(key, words.by_ref().take(len as usize).collect());
        }
        Ok(())
    }
}

impl QueryService for Ledger {
    type Query = LedgerQuery;
    type Answer = LedgerAnswer;

    fn answer(&self, query: &Archived<LedgerQuery>) -> LedgerAnswer {
        match query.key.as_ref() {
            Some(key) => LedgerAnswer { state: self.state(key.to_native()), writers: Vec::new() },
            None => {
                let writers = self.0.iter().map(|(key, writers)| (*key, writers.clone())).collect();
                LedgerAnswer { state: LedgerState { version: 0, last: 0 }, writers }
            }
        }
    }
}

impl TransactionService for Ledger {
    fn keys(command: &Archived<LedgerCommand>, keys: &mut Keys) {
        let key = command.key.to_native().to_le_bytes();
        match command.writer.as_ref() {
            _ if command.is_careless => {}
            Some(_) => keys.write(key),
            None => keys.read(key),
        }
    }

    fn query_keys(query: &Archived<LedgerQuery>, keys: &mut Keys) {
        match query.key.as_ref() {
            Some(key) => keys.read(key.to_native().to_le_bytes()),
            None => keys.read_all(),
        }
    }

    fn check(&self, command: &Archived<LedgerCommand>) -> Result<(), LedgerState> {
        let state = self.state(command.key.to_native());
        let is_expected = command.expects.as_ref().is_none_or(|version| version.to_native() == state.version);
        if is_expected { Ok(()) } else { Err(state) }
    }
}

/// A transaction, or a query, as its client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerRecord {
    /// The number of a transaction that writes; another one that no transaction has, of one that does not.
    pub writer: u64,
    /// The time at which it was submitted, on a clock that all clients share, in any unit.
    pub submitted: u64,
    /// The time at which its result came, if it did.
    pub ended: Option<u64>,
    /// The keys that it writes, each once.
    pub writes: Vec<u64>,
    /// The client's knowledge of its end.
    pub fate: LedgerFate,
}

/// A client's knowledge of the end of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerFate {
    /// It took effect, with these states of its keys.
    Applied(Vec<(u64, LedgerState)>),
    /// It took effect in no shard, and one had this state of one of its keys, if the client was told one.
    Refused(Option<(u64, LedgerState)>),
    /// It took effect wholly, or not at all.
    Unknown,
}

/// The numbers of transactions in a history that was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerCounts {
    /// Those that took effect and whose clients were told so.
    pub applied: usize,
    /// Those that took effect without their clients being told.
    pub untold: usize,
    /// Those that took no effect.
    pub refused: usize,
}

/// Checks that a history is strictly serializable: that the transactions can be put in one order that explains all that
/// clients saw, and in which none precedes another that had ended when it was submitted. `writers` are those of each
/// key at the end, in their order.
///
/// The order of writes is known, so a history is serializable exactly if its graph has no circle. The arrows of the
/// graph go from a write to the next one of the key, from a write to its readers, from a reader to the next write, and
/// from each transaction to those that were submitted after its end (Adya, 1999; Kingsbury and Alvaro, VLDB 2020).
pub fn check_ledger(records: &[LedgerRecord], writers: &BTreeMap<u64, Vec<u64>>) -> Result<LedgerCounts, String> {
    let counts = check_effects(records, writers)?;
    let nodes: HashMap<u64, usize> = records.iter().enumerate().map(|(node, record)| (record.writer, node)).collect();
    let mut graph = Graph(vec![Vec::new(); records.len()]);
    for pair in writers.values().flat_map(|writers| writers.windows(2)) {
        graph.add(nodes[&pair[0]], nodes[&pair[1]]);
    }
    for (node, record) in records.iter().enumerate() {
        let seen = match &record.fate {
            LedgerFate::Applied(seen) => &seen[..],
            LedgerFate::Refused(seen) => seen.as_slice(),
            LedgerFate::Unknown => &[],
        };
        for (key, state) in seen {
            let writers = writers.get(key).map_or(&[][..], Vec::as_slice);
            let at = state.version as usize;
            if at > writers.len() || at.checked_sub(1).map_or(0, |last| writers[last]) != state.last {
                return Err(format!("{record:?} saw a state of key {key} that never was: {writers:?}"));
            }
            if state.last != 0 {
                graph.add(nodes[&state.last], node);
            }
            if let Some(next) = writers.get(at) {
                graph.add(node, nodes[next]);
            }
        }
    }
    add_times(&mut graph, records);
    match graph.circle() {
        None => Ok(counts),
        Some(circle) => {
            let circle: Vec<_> = circle.into_iter().filter_map(|node| records.get(node)).collect();
            Err(format!(
                "no order explains these transactions, each before the next, and the last before the first: {circle:#?}"
            ))
        }
    }
}

/// Checks that each transaction has written all of its keys once, or none.
fn check_effects(records: &[LedgerRecord], writers: &BTreeMap<u64, Vec<u64>>) -> Result<LedgerCounts, String> {
    let mut written: HashMap<u64, Vec<u64>> = HashMap::new();
    for (key, writers) in writers {
        writers.iter().for_each(|writer| written.entry(*writer).or_default().push(*key));
    }
    let mut counts = LedgerCounts::default();
    for record in records {
        let mut keys = record.writes.clone();
        keys.sort_unstable();
        let written = written.remove(&record.writer).unwrap_or_default();
        let (is_whole, is_nothing) = (written == keys, written.is_empty());
        let (count, is_right) = match record.fate {
            LedgerFate::Applied(_) => (&mut counts.applied, is_whole),
            LedgerFate::Refused(_) => (&mut counts.refused, is_nothing),
            LedgerFate::Unknown if is_nothing => (&mut counts.refused, true),
            LedgerFate::Unknown => (&mut counts.untold, is_whole),
        };
        *count += 1;
        if !is_right {
            return Err(format!("{record:?} has written {written:?}"));
        }
    }
    match written.into_iter().next() {
        Some((writer, keys)) => Err(format!("nobody is {writer}, and it has written {keys:?}")),
        None => Ok(counts),
    }
}

/// Adds an arrow from each transaction to those that were submitted after its end, by way of nodes that stand for the
/// moments at which transactions ended.
fn add_times(graph: &mut Graph, records: &[LedgerRecord]) {
    let ends = records.iter().enumerate();
    let mut ends: Vec<(u64, usize)> = ends.filter_map(|(node, record)| Some((record.ended?, node))).collect();
    ends.sort_unstable();
    let first = graph.0.len();
    graph.0.resize(first + ends.len(), Vec::new());
    for (moment, (_, node)) in ends.iter().enumerate() {
        graph.add(*node, first + moment);
        if moment > 0 {
            graph.add(first + moment - 1, first + moment);
        }
    }
    for (node, record) in records.iter().enumerate() {
        let before = ends.partition_point(|(ended, _)| *ended < record.submitted);
        if before > 0 {
            graph.add(first + before - 1, node);
        }
    }
}

/// The arrows of a graph, by the node where they begin.
struct Graph(Vec<Vec<usize>>);

impl Graph {
    fn add(&mut self, from: usize, to: usize) {
        if from != to {
            self.0[from].push(to);
        }
    }

    /// Returns the nodes of a circle, if there is one.
    fn circle(&self) -> Option<Vec<usize>> {
        let mut arriving = vec![0; self.0.len()];
        self.0.iter().flatten().for_each(|&to| arriving[to] += 1);
        let mut free: Vec<usize> = (0..arriving.len()).filter(|&node| arriving[node] == 0).collect();
        while let Some(node) = free.pop() {
            for &to in &self.0[node] {
                arriving[to] -= 1;
                if arriving[to] == 0 {
                    free.push(to);
                }
            }
        }
        // Each node that is left has a predecessor that is left: walk backwards until a node comes again.
        let mut before = vec![None; self.0.len()];
        for (node, next) in self.0.iter().enumerate().filter(|(node, _)| arriving[*node] > 0) {
            next.iter().for_each(|&to| before[to] = Some(node));
        }
        let mut path = vec![arriving.iter().position(|&arriving| arriving > 0)?];
        loop {
            let node = before[*path.last()?]?;
            if let Some(start) = path.iter().position(|&at| at == node) {
                let mut circle = path.split_off(start);
                circle.reverse();
                return Some(circle);
            }
            path.push(node);
        }
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    fn record(writer: u64, times: [u64; 2], writes: &[u64], fate: LedgerFate) -> LedgerRecord {
        LedgerRecord { writer, submitted: times[0], ended: Some(times[1]), writes: writes.to_vec(), fate }
    }

    fn saw(states: &[(u64, u64, u64)]) -> LedgerFate {
        LedgerFate::Applied(states.iter().map(|&(key, version, last)| (key, LedgerState { version, last })).collect())
    }

    #[test]
    fn a_history_that_an_order_explains_is_accepted() {
        let writers = BTreeMap::from([(1, vec![10, 12]), (2, vec![10])]);
        let records = [
            record(10, [0, 5], &[1, 2], saw(&[(1, 0, 0), (2, 0, 0)])),
            record(11, [1, 9], &[], saw(&[(1, 1, 10), (2, 1, 10)])),
            record(12, [4, 6], &[1], LedgerFate::Unknown),
            record(13, [7, 8], &[2], LedgerFate::Refused(Some((2, LedgerState { version: 1, last: 10 })))),
        ];
        let counts = check_ledger(&records, &writers).unwrap();
        assert_eq!(counts, LedgerCounts { applied: 2, untold: 1, refused: 1 });
    }

    #[test]
    fn what_no_order_explains_is_noticed() {
        let writers = BTreeMap::from([(1, vec![10, 12]), (2, vec![10])]);
        let first = record(10, [0, 5], &[1, 2], saw(&[(1, 0, 0), (2, 0, 0)]));
        let second = record(12, [4, 6], &[1], LedgerFate::Unknown);
        for (wrong, why) in [
            (record(11, [1, 9], &[], saw(&[(1, 1, 10), (2, 0, 0)])), "it saw a part of the first"),
            (record(11, [6, 9], &[], saw(&[(1, 0, 0)])), "the first had ended before"),
            (record(11, [1, 9], &[], saw(&[(1, 1, 12)])), "this never was"),
            (record(11, [1, 9], &[2], saw(&[(2, 1, 10)])), "its write is not there"),
        ] {
            assert!(check_ledger(&[first.clone(), second.clone(), wrong], &writers).is_err(), "{why}");
        }
        let torn = record(12, [4, 6], &[1, 2], LedgerFate::Unknown);
        assert!(check_ledger(&[first.clone(), torn], &writers).is_err(), "it took effect in part");
        let refused = record(12, [4, 6], &[1], LedgerFate::Refused(None));
        assert!(check_ledger(&[first, refused], &writers).is_err(), "it was refused");
    }

    #[test]
    fn writes_that_depend_on_what_the_other_has_not_written_are_noticed() {
        let writers = BTreeMap::from([(1, vec![10]), (2, vec![11])]);
        let records = [
            record(10, [0, 9], &[1], saw(&[(1, 0, 0), (2, 0, 0)])),
            record(11, [0, 9], &[2], saw(&[(1, 0, 0), (2, 0, 0)])),
        ];
        assert!(check_ledger(&records, &writers).is_err());
        assert!(check_ledger(&records[..1], &BTreeMap::from([(1, vec![10])])).is_ok());
    }
}
