//! The room on a node's storage: what is left, how long it lasts, and what the node does when there is little.
//!
//! - With *little* room the node warns, in its log and in its status.
//! - *Short* of room, it tells the other members. While most complete members of a durable shard are short, no member
//!   takes messages for it; reads go on. What was accepted before still finds room: a node is short while the next
//!   segments fit.
//! - With no room for the next segment, what was appended waits, as at a disk that hangs. At most half of the members
//!   are given up for that; where most stand still, none is.
//!
//! All of it is pure: [`RoomWatch`] gets figures and times. A thread of its own asks the file system.

use std::{collections::VecDeque, time::Duration};

use serde::{Deserialize, Serialize};
use squall_fabric::{NodeId, Time};
use squall_membership::{ClusterId, ShardId};
use squall_ordered::log::Options;

/// The part of a disk, as a divisor, and the bytes at most, below which the room counts as little.
const LITTLE_PART: u64 = 20;
const LITTLE_BYTES: u64 = 16 << 30;

/// The number of free inodes below which a node is short of room, for each of its logs: those of two segments and their
/// signatures, and of a manifest and a snapshot that take the place of others. And the number below which they are few.
const FILES_PER_LOG: u64 = 8;
const FEW_INODES: u64 = 1000;

/// The time for which the trend of the room is kept, the distance of its samples, and the shortest time that shows one.
const TREND: Duration = Duration::from_secs(3600);
const SAMPLE: Duration = Duration::from_secs(10);
const SHORTEST_TREND: Duration = Duration::from_secs(60);

/// A trend is taken to go on for so many times the time for which it was seen: an hour shows the next half day.
const TRUST: u32 = 12;

/// The interval at which a warning is repeated.
const AGAIN: Duration = Duration::from_secs(3600);

/// The room on the storage of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomStatus {
    /// The node's storage directory.
    pub directory: String,
    /// The bytes that new files may still take there.
    pub free_bytes: u64,
    /// The size of the file system, in bytes.
    pub total_bytes: u64,
    /// The number of free bytes below which the node is short of room.
    pub reserve_bytes: u64,
    /// The number of inodes that new files may still take; None if the file system has no limit.
    pub free_inodes: Option<u64>,
    /// The number of free inodes below which the node is short of room.
    pub reserve_inodes: u64,
    /// The time until the node is short of room, in seconds, if the room shrinks as it did lately; None if it does not.
    pub lasts_s: Option<u64>,
    /// The level.
    pub level: RoomLevel,
}

/// The level of the room on a node's storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoomLevel {
    /// Enough.
    Ample,
    /// Little: an operator should make room.
    Little,
    /// So little that writes are refused if it is so at most members.
    Short,
}

impl RoomStatus {
    /// Returns a sentence that says what is wrong, and what to do; None if there is enough room.
    pub fn warning(&self) -> Option<String> {
        let RoomStatus { directory, free_bytes, total_bytes, reserve_bytes, lasts_s, level, .. } = self;
        if let Some(free) = self.scarce_inodes() {
            const REMEDY: &str = "remove files there, or move the storage to a file system with more inodes";
            let has = format!("{free} inodes are free in {directory}");
            return Some(match level {
                RoomLevel::Short => format!(
                    "{has}, and the logs may need {} at once: {REFUSAL} there are more; {REMEDY}",
                    self.reserve_inodes
                ),
                _ => format!("{has}, which is little: {REMEDY}"),
            });
        }
        let has = format!("{free_bytes} of {total_bytes} bytes are free in {directory}");
        const REMEDY: &str =
            "make room there, move the storage to a larger disk, or let the groups' logs be shorter (`retain`)";
        match (level, lasts_s) {
            (RoomLevel::Ample, _) => None,
            (RoomLevel::Little, Some(seconds)) => {
                let minutes = seconds / 60;
                Some(format!("{has}, and as it shrank lately that lasts for {minutes} minutes more: {REMEDY}"))
            }
            (RoomLevel::Little, None) => Some(format!("{has}, which is little: {REMEDY}")),
            (RoomLevel::Short, _) => Some(format!(
                "{has}, fewer than the {reserve_bytes} that the logs may need at once: {REFUSAL} there is more; {REMEDY}"
            )),
        }
    }

    /// The number of free inodes, if they are what there is too little of. Where bytes are short, too, these count.
    fn scarce_inodes(&self) -> Option<u64> {
        let below = match self.level {
            RoomLevel::Ample => 0,
            RoomLevel::Little => few_inodes(self.reserve_inodes),
            RoomLevel::Short if self.free_bytes < self.reserve_bytes => 0,
            RoomLevel::Short => self.reserve_inodes + FILES_PER_LOG,
        };
        self.free_inodes.filter(|&free| free < below)
    }
}

/// The effect of a lack of room.
const REFUSAL: &str = "if it is so at most members, durable groups refuse writes until";

/// The answer of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomFigures {
    /// The bytes that new files may still take.
    pub free_bytes: u64,
    /// The size of the file system, in bytes.
    pub total_bytes: u64,
    /// The number of inodes that new files may still take; None if the file system has no limit.
    pub free_inodes: Option<u64>,
}

/// The bounds by which room is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomLimits {
    reserve: u64,
    segment: u64,
    inodes: u64,
}

/// Returns the number of free inodes below which they are few.
fn few_inodes(reserve: u64) -> u64 {
    FEW_INODES.max(2 * reserve)
}

/// Returns the number of bytes that a snapshot leaves free: one segment, beside what segments leave free. That is less
/// than a node needs so as not to be short of room, since only behind a snapshot can a log be made shorter.
pub(crate) fn kept_by_snapshots(options: &Options) -> u64 {
    options.kept_free() + options.segment_bytes
}

impl RoomLimits {
    /// Returns the bounds of a node that has so many logs on one file system. It is short of room with less than two
    /// segments for each, beside what segments leave free.
    pub fn of_node(logs: usize) -> RoomLimits {
        let (options, logs) = (Options::new(ClusterId::default(), ShardId(0)), logs.max(1) as u64);
        let reserve = options.kept_free() + 2 * options.segment_bytes * logs;
        RoomLimits { reserve, segment: options.segment_bytes, inodes: FILES_PER_LOG * logs }
    }

    /// Judges the room by its size. A node that `was_short` is short until there is room for a segment more.
    fn level(&self, figures: RoomFigures, was_short: bool) -> RoomLevel {
        let RoomFigures { free_bytes, total_bytes, free_inodes } = figures;
        let more = |more| if was_short { more } else { 0 };
        let of = |free: u64, short_below: u64, little_below: u64| match free {
            free if free < short_below => RoomLevel::Short,
            free if free < little_below => RoomLevel::Little,
            _ => RoomLevel::Ample,
        };
        let little_below = (2 * self.reserve).max((total_bytes / LITTLE_PART).min(LITTLE_BYTES));
        let of_bytes = of(free_bytes, self.reserve + more(self.segment), little_below);
        let of_inodes = |free| of(free, self.inodes + more(FILES_PER_LOG), few_inodes(self.inodes));
        of_bytes.max(free_inodes.map_or(RoomLevel::Ample, of_inodes))
    }

    /// Judges the room as it is at one moment.
    pub fn judge(&self, directory: &str, figures: RoomFigures) -> RoomStatus {
        RoomStatus {
            directory: directory.to_owned(),
            free_bytes: figures.free_bytes,
            total_bytes: figures.total_bytes,
            reserve_bytes: self.reserve,
            free_inodes: figures.free_inodes,
            reserve_inodes: self.inodes,
            lasts_s: None,
            level: self.level(figures, false),
        }
    }
}

/// Judges the room on a node's storage from look to look.
#[derive(Debug)]
pub(crate) struct RoomWatch {
    directory: String,
    limits: RoomLimits,
    /// Free bytes at earlier times.
    samples: VecDeque<(Time, u64)>,
    level: RoomLevel,
    told: Option<Time>,
}

impl RoomWatch {
    pub(crate) fn new(directory: String, limits: RoomLimits) -> RoomWatch {
        RoomWatch { directory, limits, samples: VecDeque::new(), level: RoomLevel::Ample, told: None }
    }

    /// Takes the figures of now. Returns the status, and whether its warning, or the end of one, is to be told now.
    pub(crate) fn look(&mut self, now: Time, figures: RoomFigures) -> (RoomStatus, bool) {
        let lasts = self.lasts(now, figures.free_bytes);
        let mut level = self.limits.level(figures, self.level == RoomLevel::Short);
        if lasts.is_some_and(|(lasts, seen)| lasts < seen * TRUST) {
            level = level.max(RoomLevel::Little);
        }
        let is_news =
            level != self.level || level > RoomLevel::Ample && self.told.is_none_or(|told| now >= told + AGAIN);
        if is_news {
            self.told = Some(now);
        }
        self.level = level;
        let lasts_s = lasts.map(|(lasts, _)| lasts.as_secs());
        (RoomStatus { lasts_s, level, ..self.limits.judge(&self.directory, figures) }, is_news)
    }

    /// The time until the node is short of room by the trend, and the time for which the trend was seen.
    fn lasts(&mut self, now: Time, free: u64) -> Option<(Duration, Duration)> {
        if self.samples.back().is_none_or(|(at, _)| now >= *at + SAMPLE) {
            self.samples.push_back((now, free));
        }
        while self.samples.len() > 1 && now.since(self.samples[0].0) > TREND {
            self.samples.pop_front();
        }
        let &(begun, had) = self.samples.front()?;
        let seen = now.since(begun);
        let used = had.checked_sub(free).filter(|&used| used > 0 && seen >= SHORTEST_TREND)?;
        let left = u128::from(free.saturating_sub(self.limits.reserve));
        let lasts = left * seen.as_nanos() / u128::from(used);
        Some((Duration::from_nanos(u64::try_from(lasts).unwrap_or(u64::MAX)), seen))
    }
}

/// Returns the members for whose sake a durable shard takes no messages: those of its complete members that are short
/// of room, if they are more than half. Of fewer, each is given up once it stands still, so that the others go on.
pub(crate) fn refused_for(complete: &[NodeId], short: &[NodeId]) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> = complete.iter().copied().filter(|node| short.contains(node)).collect();
    if 2 * nodes.len() <= complete.len() {
        nodes.clear();
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn figures(free_bytes: u64) -> RoomFigures {
        RoomFigures { free_bytes, total_bytes: 1000 * GIB, free_inodes: None }
    }

    fn watch() -> RoomWatch {
        RoomWatch::new("state".to_owned(), RoomLimits::of_node(1))
    }

    #[test]
    fn a_level_follows_the_size_of_the_room() {
        let level = |free, total| {
            let figures = RoomFigures { free_bytes: free, total_bytes: total, free_inodes: None };
            RoomLimits::of_node(1).judge("state", figures).level
        };
        assert_eq!(level(144 * MIB, 100 * GIB), RoomLevel::Little);
        assert_eq!(level(144 * MIB - 1, 100 * GIB), RoomLevel::Short);
        assert_eq!(level(0, 0), RoomLevel::Short);
        assert_eq!([level(5 * GIB - 1, 100 * GIB), level(5 * GIB, 100 * GIB)], [RoomLevel::Little, RoomLevel::Ample]);
        assert_eq!(level(16 * GIB, 10_000 * GIB), RoomLevel::Ample, "a large disk need not have a twentieth free");
        assert_eq!(level(288 * MIB, GIB), RoomLevel::Ample);
        assert_eq!(level(u64::MAX, u64::MAX), RoomLevel::Ample);
    }

    #[test]
    fn each_log_on_the_file_system_needs_room() {
        let level = |logs, free| RoomLimits::of_node(logs).judge("state", figures(free)).level;
        let (little, short) = (RoomLevel::Little, RoomLevel::Short);
        assert_eq!([level(10, 1296 * MIB - 1), level(10, 1296 * MIB)], [short, little]);
        assert_eq!(level(1, 1295 * MIB), little);
    }

    #[test]
    fn a_file_system_without_inodes_is_short_of_room_and_the_warning_names_them() {
        let mut watch = RoomWatch::new("state".to_owned(), RoomLimits::of_node(2));
        let mut levels = Vec::new();
        for (second, free) in [2000, 999, 16, 15, 16, 23, 24, 1000].into_iter().enumerate() {
            let figures = RoomFigures { free_inodes: Some(free), ..figures(300 * GIB) };
            let (status, _) = watch.look(at(second as u64), figures);
            let warning = status.warning();
            assert_eq!(warning.is_some(), status.level > RoomLevel::Ample);
            assert!(
                warning.is_none_or(|why| why.starts_with(&format!("{free} inodes are free in state"))),
                "{status:?}"
            );
            levels.push(status.level);
        }
        let (ample, little, short) = (RoomLevel::Ample, RoomLevel::Little, RoomLevel::Short);
        assert_eq!(levels, [ample, little, little, short, short, short, little, ample]);
        let both = RoomFigures { free_inodes: Some(15), ..figures(0) };
        let why = RoomLimits::of_node(2).judge("state", both).warning().expect("there is no room");
        assert!(why.starts_with("0 of"), "{why}");
    }

    #[test]
    fn a_node_that_was_short_takes_writes_again_only_with_a_segment_more() {
        let mut watch = watch();
        let mut levels = Vec::new();
        for (second, free) in [(0, 200), (1, 143), (2, 150), (3, 207), (4, 208), (5, 150)] {
            levels.push(watch.look(at(second), figures(free * MIB)).0.level);
        }
        let (little, short) = (RoomLevel::Little, RoomLevel::Short);
        assert_eq!(levels, [little, short, short, short, little, little]);
    }

    #[test]
    fn room_that_shrinks_fast_is_little_in_time() {
        let mut watch = watch();
        let mut first = None;
        // 100 GiB that shrink by 100 MiB a second last for 17 minutes.
        for second in 0..1024 {
            let free = 100 * GIB - second * 100 * MIB;
            let (status, _) = watch.look(at(second), figures(free));
            if status.level > RoomLevel::Ample && first.is_none() {
                let left = status.lasts_s.expect("a trend");
                assert!((900..1000).contains(&left), "{left}");
                assert!(status.warning().is_some_and(|why| why.contains("minutes more")), "{status:?}");
                first = Some(second);
            }
        }
        assert!(first.is_some_and(|second| second < 120), "{first:?}");
    }

    #[test]
    fn room_that_does_not_shrink_lasts_whatever_goes_to_and_fro() {
        let mut watch = watch();
        for second in 0..20_000 {
            // A log that is trimmed.
            let (status, is_news) = watch.look(at(second), figures(300 * GIB - second % 600 * MIB));
            assert_eq!((status.level, is_news), (RoomLevel::Ample, false), "{second}: {status:?}");
        }
    }

    #[test]
    fn a_warning_is_told_when_it_begins_and_ends_and_each_hour() {
        let mut watch = watch();
        let mut told = Vec::new();
        for second in 0..10_000 {
            let free = if (100..9000).contains(&second) { GIB } else { 300 * GIB };
            if watch.look(at(second), figures(free)).1 {
                told.push(second);
            }
        }
        assert_eq!(told, [100, 3700, 7300, 9000]);
    }

    #[test]
    fn writes_are_refused_where_most_are_short() {
        const NOBODY: [u32; 0] = [];
        let refused = |complete: &[u32], short: &[u32]| {
            let nodes = |ids: &[u32]| ids.iter().copied().map(NodeId).collect::<Vec<_>>();
            refused_for(&nodes(complete), &nodes(short)).iter().map(|node| node.0).collect::<Vec<_>>()
        };
        assert_eq!(refused(&[1, 2, 3], &[2]), NOBODY);
        assert_eq!(refused(&[1, 2, 3], &[2, 4, 5]), NOBODY, "a member that is not complete does not count");
        assert_eq!(refused(&[1, 2, 3], &[3, 2]), [2, 3]);
        assert_eq!(refused(&[1, 2], &[1]), NOBODY);
        assert_eq!(refused(&[1], &[1]), [1]);
        assert_eq!(refused(&[], &[1]), NOBODY);
    }
}
