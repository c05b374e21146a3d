//! What must hold of a run, whatever happened in it.

use std::collections::BTreeMap;

use squall_fabric::NodeId;

/// An entry of a replica's log: the message that it applied there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Applied {
    pub(super) sender: NodeId,
    /// Which client at the sender; each counts its messages from 0.
    pub(super) client: u32,
    pub(super) number: u64,
    /// Whether its bytes were those that were submitted.
    pub(super) intact: bool,
}

/// Of two logs, one must be the beginning of the other.
pub(super) fn same_order(logs: &BTreeMap<NodeId, Vec<Applied>>) -> Result<(), String> {
    let Some((longest, reference)) = logs.iter().max_by_key(|(_, log)| log.len()) else { return Ok(()) };
    for (node, log) in logs {
        if let Some(at) = (0..log.len()).find(|&i| log[i] != reference[i]) {
            return Err(format!("{node} applied {:?} at {at}, where {longest} applied {:?}", log[at], reference[at]));
        }
    }
    Ok(())
}

/// Each client's messages are applied in its order, each once, without a gap, and as they were submitted.
pub(super) fn order_of_clients(node: NodeId, log: &[Applied]) -> Result<(), String> {
    let mut next: BTreeMap<(NodeId, u32), u64> = BTreeMap::new();
    for (at, entry) in log.iter().enumerate() {
        if !entry.intact {
            return Err(format!("{node} applied {entry:?} at {at} with other bytes than were submitted"));
        }
        let expected = next.entry((entry.sender, entry.client)).or_default();
        if entry.number != *expected {
            return Err(format!("{node} applied {entry:?} at {at}, where number {expected} of that client was due"));
        }
        *expected += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(sender: u32, number: u64) -> Applied {
        Applied { sender: NodeId(sender), client: 0, number, intact: true }
    }

    fn logs(logs: &[&[Applied]]) -> BTreeMap<NodeId, Vec<Applied>> {
        (1..).map(NodeId).zip(logs.iter().map(|log| log.to_vec())).collect()
    }

    #[test]
    fn a_log_that_differs_is_found_and_a_shorter_one_is_not_blamed() {
        let (a, b, c) = (entry(1, 0), entry(2, 0), entry(1, 1));
        assert!(same_order(&logs(&[&[a, b, c], &[a, b], &[]])).is_ok());
        assert!(same_order(&logs(&[&[a, b, c], &[b, a]])).is_err());
    }

    #[test]
    fn other_bytes_are_found() {
        let damaged = Applied { intact: false, ..entry(1, 0) };
        assert!(order_of_clients(NodeId(9), &[damaged]).is_err());
    }

    #[test]
    fn gaps_repetitions_and_swaps_are_found() {
        let ok = [entry(1, 0), entry(2, 0), entry(1, 1)];
        assert!(order_of_clients(NodeId(9), &ok).is_ok());
        for bad in [[entry(1, 0), entry(1, 2)], [entry(1, 0), entry(1, 0)], [entry(1, 1), entry(1, 0)]] {
            assert!(order_of_clients(NodeId(9), &bad).is_err(), "{bad:?}");
        }
    }
}
