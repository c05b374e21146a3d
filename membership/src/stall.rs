//! The watch over members whose heartbeat moves and that make no progress: their disk or their application hangs, or
//! they keep back what the others wait for.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use squall_fabric::{NodeId, Time};

use crate::view::ShardId;

/// The divisor of the time after which a member is given up. A member that stands still for that part is reported, and
/// counts against giving up others.
const STANDS_AFTER: u32 = 4;

/// The longest time until such a report.
const REPORTED_AFTER: Duration = Duration::from_secs(1);

/// The time for which others wait for a member that stands still, until they give it up; [`Duration::MAX`] to wait for
/// ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallLimits {
    /// The time for its disk.
    pub disk: Duration,
    /// The time for its application, and for all else.
    pub application: Duration,
}

impl StallLimits {
    fn with(&self, what: WaitsFor) -> Duration {
        match what {
            WaitsFor::Disk => self.disk,
            WaitsFor::Application | WaitsFor::Messages => self.application,
            // A member from which a sender keeps messages back must suspect it before it is taken for one that keeps
            // back its own receipts.
            WaitsFor::Turns => self.application / 2,
        }
    }

    fn reports(&self, what: WaitsFor) -> Duration {
        (self.with(what) / STANDS_AFTER).min(REPORTED_AFTER)
    }
}

/// The thing that keeps a member from going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, derive_more::Display)]
#[serde(rename_all = "snake_case")]
#[display(rename_all = "snake_case")]
pub enum WaitsFor {
    /// A write or a sync of its log.
    Disk,
    /// A call of its application.
    Application,
    /// Messages that others have received, and of which its row does not say that it has.
    Messages,
    /// Its own turns as a sender, for which others wait.
    Turns,
}

/// A member's progress in a shard, as its row says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Places of the order that it has delivered.
    pub delivered: u64,
    /// Places that it could have delivered.
    pub deliverable: u64,
    /// Versions that it has given to its log.
    pub logged: u64,
    /// Versions that its log has on disk.
    pub persisted: u64,
}

impl Progress {
    /// The next thing that it must do, and its progress in that. A log that takes no more keeps its application
    /// waiting, too.
    pub fn waits(&self) -> Option<Waits> {
        if self.logged > self.persisted {
            return Some(Waits { waits_for: WaitsFor::Disk, at: self.persisted });
        }
        let waits = Waits { waits_for: WaitsFor::Application, at: self.delivered };
        (self.deliverable > self.delivered).then_some(waits)
    }
}

/// Something that a member must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// The thing for which it waits.
    pub waits_for: WaitsFor,
    /// A number that grows as it gets on with that.
    pub at: u64,
}

/// The members that are watched together: one is given up only while at most half of them stand still.
#[derive(Clone, Debug)]
pub struct WatchedMembers {
    /// The number of members.
    pub members: usize,
    /// The work of each member in each shard, of each kind. A member that is missing has none.
    pub rows: Vec<(ShardId, NodeId, Option<Waits>)>,
}

/// A member that stands still, though it has something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The shard.
    pub shard: ShardId,
    /// The member.
    pub node: NodeId,
    /// The thing for which it waits.
    pub waits_for: WaitsFor,
    /// The time since which it stands still.
    pub since: Time,
}

#[derive(Clone, Copy, Debug)]
struct StandstillObservation {
    at: u64,
    since: Time,
    is_told: bool,
}

/// A watch over the progress of members in shards, in one view, or at the end of the one before.
///
/// A member is late that has something to do and stands still until its limit. It is given up only while at most
/// half of the members that are watched together stand still. Where most do, as when they share a disk, none of them is
/// at fault. Time in which this node did not look does not count.
#[derive(Clone, Debug)]
pub struct StallWatch {
    limits: StallLimits,
    looked: Option<Time>,
    seen: BTreeMap<(ShardId, NodeId, WaitsFor), StandstillObservation>,
}

impl StallWatch {
    /// A watch with these limits.
    pub fn new(limits: StallLimits) -> StallWatch {
        StallWatch { limits, looked: None, seen: BTreeMap::new() }
    }

    /// The time from one look to the next.
    fn interval(&self) -> Duration {
        let shortest = self.limits.reports(WaitsFor::Disk).min(self.limits.reports(WaitsFor::Application));
        (shortest / 2).max(Duration::from_millis(1))
    }

    /// The time of the next look.
    pub fn deadline(&self) -> Time {
        self.looked.map_or(Time::ZERO, |looked| looked + self.interval())
    }

    /// Forgets what was seen: another view has begun.
    pub fn forget(&mut self) {
        self.seen.clear();
    }

    /// The members that stand still, each for long enough to be told.
    pub fn stalls(&self, now: Time) -> impl Iterator<Item = Stall> + '_ {
        let stalls = self.seen.iter().map(|(&(shard, node, waits_for), seen)| Stall {
            shard,
            node,
            waits_for,
            since: seen.since,
        });
        stalls.filter(move |stall| now.since(stall.since) >= self.limits.reports(stall.waits_for))
    }

    /// Looks at all that are watched. Returns the ones that are to be given up.
    pub fn look(&mut self, now: Time, watched: &[WatchedMembers]) -> Vec<Stall> {
        // This node stood still, and what it saw before is out of date.
        if self.looked.is_some_and(|looked| now.since(looked) > self.interval() * 4) {
            self.forget();
        }
        self.looked = Some(now);
        let rows = watched.iter().flat_map(|watched| &watched.rows);
        let work: BTreeMap<_, _> = rows
            .filter_map(|&(shard, node, waits)| waits.map(|waits| ((shard, node, waits.waits_for), waits.at)))
            .collect();
        self.seen.retain(|key, seen| work.get(key) == Some(&seen.at));
        for (key, at) in work {
            self.seen.entry(key).or_insert(StandstillObservation { at, since: now, is_told: false });
        }
        let stands: Vec<Stall> = self.stalls(now).collect();
        self.tell(now, &stands);
        watched.iter().flat_map(|watched| self.late(now, watched, &stands)).collect()
    }

    /// The stalls among these of members that are watched together, and are to be given up.
    fn late(&self, now: Time, watched: &WatchedMembers, stands: &[Stall]) -> Vec<Stall> {
        let is_watched = |stall: &Stall| {
            let is_it = |&(shard, node, _): &(ShardId, NodeId, _)| (shard, node) == (stall.shard, stall.node);
            watched.rows.iter().any(is_it)
        };
        let mut late: Vec<Stall> = stands.iter().copied().filter(is_watched).collect();
        let standing = late.iter().map(|stall| stall.node).collect::<BTreeSet<_>>().len();
        let most_stand = 2 * standing > watched.members;
        late.retain(|stall| now.since(stall.since) >= self.limits.with(stall.waits_for) && !most_stand);
        late
    }

    /// Logs the members that stand still, once for each time.
    fn tell(&mut self, now: Time, stalls: &[Stall]) {
        for stall in stalls {
            let Stall { shard, node, waits_for, since } = *stall;
            let seen = self.seen.get_mut(&(shard, node, waits_for));
            let Some(seen) = seen.filter(|seen| !seen.is_told) else { continue };
            seen.is_told = true;
            let waited = now.since(since);
            tracing::warn!(%shard, %node, %waits_for, ?waited, "a member stands still, though it has something to do");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: ShardId = ShardId(0);
    const PATIENCE: Duration = Duration::from_millis(400);

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn watch() -> StallWatch {
        StallWatch::new(StallLimits { disk: PATIENCE, application: PATIENCE * 2 })
    }

    fn hung() -> Progress {
        Progress { delivered: 9, deliverable: 9, logged: 9, persisted: 5 }
    }

    fn applies() -> Progress {
        Progress { delivered: 5, deliverable: 9, logged: 5, persisted: 5 }
    }

    /// The members that are to be given up, each with the time, where they make this progress from `from` to `to`.
    fn looks(watch: &mut StallWatch, from: u64, to: u64, of: impl Fn(u64) -> Vec<Progress>) -> Vec<(u32, u64)> {
        let mut late = Vec::new();
        for ms in (from..=to).step_by(25) {
            let row = |(i, row): (usize, Progress)| (SHARD, NodeId(i as u32 + 1), row.waits());
            let rows: Vec<_> = of(ms).into_iter().enumerate().map(row).collect();
            let watched = WatchedMembers { members: rows.len(), rows };
            late.extend(watch.look(at(ms), &[watched]).into_iter().map(|stall| (stall.node.0, ms)));
        }
        late
    }

    #[test]
    fn a_member_whose_disk_hangs_is_given_up_after_its_limit_and_told_before() {
        let mut watch = watch();
        assert_eq!(looks(&mut watch, 0, 375, |_| vec![Progress::default(), hung(), Progress::default()]), []);
        let told: Vec<_> = watch.stalls(at(375)).map(|stall| (stall.node.0, stall.waits_for)).collect();
        assert_eq!(told, [(2, WaitsFor::Disk)]);
        let late = looks(&mut watch, 400, 400, |_| vec![Progress::default(), hung(), Progress::default()]);
        assert_eq!(late, [(2, 400)]);
    }

    #[test]
    fn an_application_has_its_own_limit() {
        assert_eq!(looks(&mut watch(), 0, 800, |_| vec![Progress::default(), applies()]), [(2, 800)]);
    }

    /// The members that are to be given up, each with the time, where the second one waits for these.
    fn waits(to: u64, of: impl Fn(u64) -> Vec<Waits>) -> Vec<(u32, u64)> {
        let mut watch = watch();
        let mut late = Vec::new();
        for ms in (0..=to).step_by(25) {
            let mut rows = vec![(SHARD, NodeId(1), None), (SHARD, NodeId(2), None)];
            rows.extend(of(ms).into_iter().map(|waits| (SHARD, NodeId(2), Some(waits))));
            let watched = WatchedMembers { members: 2, rows };
            late.extend(watch.look(at(ms), &[watched]).into_iter().map(|stall| (stall.node.0, ms)));
        }
        late
    }

    #[test]
    fn a_sender_is_given_up_before_a_member_that_has_not_received() {
        let [messages, turns] = [WaitsFor::Messages, WaitsFor::Turns].map(|waits_for| Waits { waits_for, at: 3 });
        assert_eq!(waits(800, |_| vec![messages]), [(2, 800)]);
        assert_eq!(waits(400, |_| vec![turns]), [(2, 400)]);
        assert_eq!(waits(3000, |ms| vec![Waits { at: ms / 700, ..messages }, Waits { at: ms / 300, ..turns }]), []);
    }

    #[test]
    fn a_member_that_gets_on_with_one_thing_is_late_with_the_other() {
        let disk = Waits { waits_for: WaitsFor::Disk, at: 5 };
        let of = |ms| vec![Waits { waits_for: WaitsFor::Messages, at: ms }, disk];
        assert_eq!(waits(400, of), [(2, 400)]);
    }

    #[test]
    fn who_goes_on_slowly_or_has_nothing_to_do_is_not_late() {
        let slow = |ms: u64| Progress { persisted: ms / 300, logged: 100, delivered: 100, deliverable: 100 };
        let done = Progress { delivered: 9, deliverable: 9, logged: 9, persisted: 9 };
        assert_eq!(looks(&mut watch(), 0, 3000, |ms| vec![done, slow(ms)]), []);
    }

    #[test]
    fn where_most_stand_still_nobody_is_given_up() {
        // Of the two that hang, the first does so a little later.
        let of = |ms| vec![if ms < 200 { Progress::default() } else { hung() }, hung(), Progress::default()];
        let mut watch = watch();
        assert_eq!(looks(&mut watch, 0, 3000, of), []);
        assert_eq!(watch.stalls(at(3000)).count(), 2, "they are told all the same");
    }

    #[test]
    fn of_two_the_one_that_stands_still_is_given_up() {
        assert_eq!(looks(&mut watch(), 0, 400, |_| vec![hung(), Progress::default()]), [(1, 400)]);
    }

    #[test]
    fn own_stalls_accuse_nobody() {
        let mut watch = watch();
        looks(&mut watch, 0, 100, |_| vec![hung(), Progress::default()]);
        assert_eq!(looks(&mut watch, 60_000, 60_300, |_| vec![hung(), Progress::default()]), []);
    }

    #[test]
    fn who_is_never_given_up_is_told() {
        let mut watch = StallWatch::new(StallLimits { disk: Duration::MAX, application: Duration::MAX });
        assert_eq!(looks(&mut watch, 0, 5000, |_| vec![hung(), Progress::default()]), []);
        assert_eq!(watch.stalls(at(5000)).count(), 1);
    }
}
