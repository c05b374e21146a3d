//! The choice of the snapshots and of the part of the log that are kept.

use squall_ordered::log::{End, Position};

/// A snapshot's place, its size, and the bytes of the log behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptSnapshot {
    pub(super) at: End,
    pub(super) bytes: u64,
    pub(super) behind: u64,
}

/// The part of the log that must be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    All,
    /// A number of bytes before the newest snapshot.
    Bytes(u64),
    /// All states from this version on.
    From(u64),
}

/// The snapshots and the part of the log that are removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RetentionPlan {
    /// The places of the snapshots to remove.
    pub(super) remove: Vec<Position>,
    /// The place before which the log is removed.
    pub(super) trim: Option<Position>,
}

/// Works out what may be removed of a log that has these snapshots, oldest first.
///
/// - The two newest snapshots stay, in case that the newest one can't be read some day, and the log from the older one
///   on.
/// - The newest snapshot before the part to keep stays as well, since states behind it are built from it.
/// - All snapshots that stay take no more room than the log does, as far as there are others than these. Of the
///   snapshots between, the one is removed whose neighbours are the closest.
pub(super) fn plan(snapshots: &[KeptSnapshot], keep: Keep) -> RetentionPlan {
    let Some(second) = snapshots.len().checked_sub(2) else { return RetentionPlan::default() };
    let newest = snapshots[second + 1];
    let reaches = |snapshot: &KeptSnapshot| match keep {
        Keep::All => false,
        Keep::Bytes(bytes) => snapshot.behind.saturating_sub(newest.behind) >= bytes,
        Keep::From(version) => snapshot.at.version <= version,
    };
    let first = snapshots[..=second].iter().rposition(reaches);
    let from = first.unwrap_or(0);
    let mut remove: Vec<Position> = snapshots[..from].iter().map(|snapshot| snapshot.at.position).collect();
    let mut kept = snapshots[from..].to_vec();
    let room = kept[0].behind;
    while kept.len() > 3 && kept.iter().map(|snapshot| snapshot.bytes).sum::<u64>() > room {
        let gap = |at: &usize| kept[at - 1].behind.saturating_sub(kept[at + 1].behind);
        let closest = (1..kept.len() - 2).min_by_key(gap).expect("there is one between");
        remove.push(kept.remove(closest).at.position);
    }
    RetentionPlan { remove, trim: first.map(|first| snapshots[first].at.position) }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use squall_membership::{Epoch, Seq};
    use squall_ordered::log::Hlc;

    use super::*;

    fn position(version: u64) -> Position {
        Position::new(Epoch(1), Seq(version))
    }

    /// Makes snapshots of a log of 1000 commands, a byte each.
    fn snapshots(bytes: u64, versions: &[u64]) -> Vec<KeptSnapshot> {
        let snapshot = |&version: &u64| KeptSnapshot {
            at: End { position: position(version), version, time: Hlc(version) },
            bytes,
            behind: 1000 - version,
        };
        versions.iter().map(snapshot).collect()
    }

    fn removed(versions: &[u64]) -> Vec<Position> {
        versions.iter().map(|&version| position(version)).collect()
    }

    #[test]
    fn the_two_newest_stay_and_the_log_behind_the_older_one() {
        let snapshots = snapshots(1, &[0, 300, 600, 900]);
        let plan = plan(&snapshots, Keep::Bytes(0));
        assert_eq!(plan, RetentionPlan { remove: removed(&[0, 300]), trim: Some(position(600)) });
    }

    #[test]
    fn what_is_retained_can_be_built_from_a_snapshot_that_stays() {
        let snapshots = snapshots(1, &[0, 300, 600, 900]);
        let trimmed = |bytes| plan(&snapshots, Keep::Bytes(bytes)).trim;
        assert_eq!(trimmed(300), Some(position(600)));
        assert_eq!(trimmed(301), Some(position(300)));
        assert_eq!(trimmed(900), Some(position(0)));
        assert_eq!(trimmed(901), None, "there is not so much");
        assert_eq!(plan(&snapshots, Keep::All), RetentionPlan::default());
    }

    #[test]
    fn by_hand_states_from_a_version_on_stay() {
        let snapshots = snapshots(1, &[100, 300, 600, 900]);
        let trimmed = |version| plan(&snapshots, Keep::From(version)).trim;
        assert_eq!(trimmed(99), None);
        assert_eq!(trimmed(299), Some(position(100)));
        assert_eq!(trimmed(300), Some(position(300)));
        assert_eq!(trimmed(5000), Some(position(600)));
    }

    #[test]
    fn snapshots_take_no_more_room_than_the_log_if_they_need_not() {
        let snapshots = snapshots(300, &[0, 100, 400, 500, 800, 900]);
        let RetentionPlan { remove, trim } = plan(&snapshots, Keep::All);
        assert_eq!((remove, trim), (removed(&[100, 500, 400]), None));
    }

    #[test]
    fn with_one_snapshot_nothing_goes() {
        assert_eq!(plan(&snapshots(1, &[700]), Keep::Bytes(0)), RetentionPlan::default());
        assert_eq!(plan(&[], Keep::Bytes(0)), RetentionPlan::default());
    }
}
