//! The times at which barriers are told.
//!
//! They are told with data, in a flat group. Otherwise they are told once in a beacon interval while a rank is active,
//! and later as long as a rank waits for barriers to pass a timestamp. The awaited timestamp is told beside the
//! barriers. So an idle group writes nothing.

use squall_fabric::{Fabric, Time};

use super::Engine;
use crate::{
    Gate, Mode, OnePipeConfig, Topology,
    barrier::Tells,
    links::RankPeer,
    stamps::Stamps,
    status::{self, StatusWord},
    timestamp::is_fresh,
};

#[derive(Debug)]
pub(super) struct Beacon {
    /// The greatest wide timestamp that barriers are to pass, as far as this rank knows, by mode.
    want: [u64; 2],
    /// This rank's own last timestamp, its part in `want`, by mode.
    own: [u64; 2],
    active_until: Time,
    /// The time from which on barriers may be told again.
    next: Time,
    /// The barriers that were told last, in this epoch.
    told: BeaconTimestamps,
    /// Whether this rank's own barrier is held by nothing but its clock, by mode.
    is_free: [bool; 2],
    /// Whether data was posted to a rank in this step, by rank.
    pushed: Vec<bool>,
    /// The highest barrier in a rank's status words, by rank and mode.
    said: Vec<[u64; 2]>,
}

/// The barriers and awaited timestamps that are told, by mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BeaconTimestamps {
    up: [u64; 2],
    down: [u64; 2],
    want: [u64; 2],
}

impl Beacon {
    pub(super) fn new(ranks: usize) -> Beacon {
        Beacon {
            want: [0; 2],
            own: [0; 2],
            active_until: Time::ZERO,
            next: Time::ZERO,
            told: BeaconTimestamps::default(),
            is_free: [true; 2],
            pushed: vec![false; ranks],
            said: vec![[0; 2]; ranks],
        }
    }

    /// Makes this rank active: a message was sent or has come.
    #[inline]
    pub(super) fn activate(&mut self, now: Time, config: &OnePipeConfig) {
        self.active_until = now + config.activity;
    }

    /// Takes note that a rank waits for barriers to pass a timestamp.
    #[inline]
    pub(super) fn want(&mut self, mode: Mode, stamp: u64) {
        let want = &mut self.want[mode.index()];
        *want = stamp.max(*want);
    }

    /// Takes note of a timestamp that this rank has used, which barriers are to pass.
    #[inline]
    pub(super) fn stamped(&mut self, mode: Mode, stamp: u64) {
        self.own[mode.index()] = stamp;
        self.want(mode, stamp);
    }

    /// Takes note whether data was posted to a rank.
    #[inline]
    pub(super) fn pushed(&mut self, rank: usize, pushed: bool) {
        self.pushed[rank] |= pushed;
    }

    /// Forgets the barriers that were told in the epoch before, and the timestamps that other ranks wanted: a removed
    /// rank's count no more.
    pub(super) fn begin_epoch(&mut self) {
        self.want = self.own;
        self.told = BeaconTimestamps::default();
        self.said.fill([0; 2]);
        self.next = Time::ZERO;
    }
}

impl<S: Stamps> Engine<S> {
    /// Moves this rank's own barrier, accepts the barrier of all, and decides what is to be told. Returns whether
    /// messages may have become deliverable.
    pub(super) fn beacon(&mut self, now: Time) -> bool {
        let is_active = now < self.beacon.active_until;
        if is_active || self.beacon.pushed.contains(&true) || self.is_needed() {
            self.move_own();
            let now_told = self.telling();
            if now >= self.beacon.next || self.is_urgent(&now_told) {
                self.beacon.told = now_told;
                self.beacon.next = now + self.config.beacon_interval;
            }
        }
        self.accept()
    }

    /// Whether barriers are told before a beacon is due, because other ranks wait.
    fn is_urgent(&self, now_told: &BeaconTimestamps) -> bool {
        let Beacon { told, want, .. } = &self.beacon;
        // All that a rank waits for has been acknowledged, which does not happen while messages keep coming.
        let satisfies = |mode: Mode| {
            let at = mode.index();
            let passes = |before: [u64; 2], now: [u64; 2]| (before[at]..now[at]).contains(&want[at]);
            self.acknowledges(mode) && (passes(told.up, now_told.up) || passes(told.down, now_told.down))
        };
        Mode::ALL.into_iter().any(satisfies) || (S::IS_URGENT && now_told != told)
    }

    /// Raises this rank's own barrier as far as possible.
    fn move_own(&mut self) {
        let (next, near) = (self.stamps.promise(), self.stamps.near());
        for mode in Mode::ALL {
            let held = self.held(mode, near).unwrap_or(u64::MAX);
            self.beacon.is_free[mode.index()] = next <= held;
            self.barriers.set_own(mode, next.min(held));
        }
    }

    /// The oldest timestamp that this rank's barrier may not pass, whatever the clock shows.
    fn held(&self, mode: Mode, near: u64) -> Option<u64> {
        if !self.acknowledges(mode) {
            return None;
        }
        let others = self.links.peers.iter().enumerate().filter(|(rank, _)| *rank != self.links.me);
        let oldest = others.filter_map(|(_, peer)| peer.out[mode.index()].oldest_on_its_way(near)).min();
        let recalled = self.recalls.hold().filter(|_| mode == Mode::Reliable);
        oldest.into_iter().chain(recalled).min()
    }

    /// The rank that must act first, so that the messages that this rank knows of can be delivered, or waiting
    /// scatterings be sent.
    pub(crate) fn waits_for(&self, mode: Mode) -> Option<usize> {
        let want = self.beacon.want[mode.index()];
        // A new group waits for nothing.
        let is_behind = want > 0 && self.orders[mode.index()].barrier() <= want;
        let behind = is_behind.then(|| self.barriers.waits_for(mode, want)).flatten();
        let of_barrier = match behind {
            Some(rank) if rank == self.links.me => self.held_by(mode),
            other => other,
        };
        of_barrier.or_else(|| self.waiting.waits_for(mode))
    }

    /// The rank that holds this rank's own barrier: the receiver of the oldest message that is not known to have
    /// arrived, or of a recalled one.
    fn held_by(&self, mode: Mode) -> Option<usize> {
        let near = self.stamps.near();
        let held = self.held(mode, near)?;
        let is_oldest = |peer: &RankPeer| peer.out[mode.index()].oldest_on_its_way(near) == Some(held);
        let receiver =
            (0..self.links.peers.len()).find(|&rank| rank != self.links.me && is_oldest(&self.links.peers[rank]));
        receiver.or_else(|| self.recalls.waits_for())
    }

    /// The barriers and awaited timestamps as they would be told now.
    fn telling(&self) -> BeaconTimestamps {
        let down = |mode| if self.barriers.has_children() { self.barriers.all(mode) } else { 0 };
        let up = Mode::ALL.map(|mode| self.barriers.up(mode));
        BeaconTimestamps { up, down: Mode::ALL.map(down), want: self.beacon.want }
    }

    /// Accepts the barriers of all, and notes the timestamps that are still waited for.
    fn accept(&mut self) -> bool {
        let mut progress = false;
        for mode in Mode::ALL {
            let order = &mut self.orders[mode.index()];
            let all = self.barriers.all(mode).min(Gate::HIGHEST);
            if all > order.barrier() && (mode == Mode::BestEffort || self.gate.raise(order.barrier(), all)) {
                progress |= order.accept(all);
            }
            if let Some(stamp) = order.first_waiting() {
                self.stamps.hear_want(stamp);
                self.beacon.want(mode, stamp);
            }
        }
        progress
    }

    /// Whether a rank waits for a barrier that this one has not told, or for others that don't know of it.
    fn is_needed(&self) -> bool {
        let Beacon { told, want, .. } = &self.beacon;
        let has_children = self.barriers.has_children();
        Mode::ALL.into_iter().any(|mode| {
            let at = mode.index();
            let least_told = if has_children { told.up[at].min(told.down[at]) } else { told.up[at] };
            let is_news = want[at] > told.want[at] && self.orders[at].barrier() <= want[at];
            // A new group waits for nothing.
            want[at] > 0 && (least_told <= want[at] || is_news)
        })
    }

    /// The time at which barriers are to be told next, if nothing comes before.
    pub(super) fn next_beacon(&self, now: Time) -> Time {
        let beacon = &self.beacon;
        let by_time = || {
            let waits =
                |mode: Mode| beacon.is_free[mode.index()] && self.barriers.own(mode) <= beacon.want[mode.index()];
            S::GROWS_WITH_TIME && Mode::ALL.into_iter().any(waits)
        };
        let is_due = now < beacon.active_until || (self.is_needed() && (by_time() || self.telling() != beacon.told));
        if is_due { beacon.next } else { Time::MAX }
    }

    /// Posts the reports to peers: acknowledgements, barriers behind the data that they cover, and recalls.
    pub(super) fn report(&mut self, fabric: &mut impl Fabric) {
        for rank in 0..self.links.peers.len() {
            let has_data = std::mem::take(&mut self.beacon.pushed[rank]);
            if self.links.peers[rank].link.is_none() {
                continue;
            }
            match self.barriers.tells(rank) {
                Tells::Up => self.tell_up(rank, has_data),
                Tells::Down => self.say(rank, StatusWord::Down, self.beacon.told.down),
                Tells::Nothing => {}
            }
            let peer = &mut self.links.peers[rank];
            let Some(link) = &peer.link else { continue };
            self.recalls.post(fabric, rank, link);
            for mode in Mode::ALL {
                let anyway = peer.status.is_changed();
                if let Some(freed) = self.orders[mode.index()].rings[rank].credit(anyway) {
                    peer.status.set(StatusWord::Freed(mode), freed);
                }
            }
            peer.status.post(fabric, link);
        }
    }

    #[inline]
    fn tell_up(&mut self, rank: usize, has_data: bool) {
        let peer = &self.links.peers[rank];
        let mut barriers = self.beacon.told.up;
        if self.config.topology == Topology::Flat {
            // It costs nothing to tell the latest barriers with words that are told anyway.
            if has_data || peer.status.is_changed() {
                barriers = Mode::ALL.map(|mode| self.barriers.own(mode));
            }
            // A barrier says that all messages stamped before it are there.
            if !peer.out[Mode::BestEffort.index()].is_posted() {
                barriers[Mode::BestEffort.index()] = 0;
            }
        }
        self.say(rank, StatusWord::Barrier, barriers);
    }

    #[inline]
    fn say(&mut self, rank: usize, word: fn(Mode) -> StatusWord, barriers: [u64; 2]) {
        let near = self.stamps.near();
        let status = &mut self.links.peers[rank].status;
        for mode in Mode::ALL {
            let (barrier, want) = (barriers[mode.index()], self.beacon.told.want[mode.index()]);
            let said = &mut self.beacon.said[rank][mode.index()];
            if barrier > *said && is_fresh(barrier, near) {
                *said = barrier;
                status.set(word(mode), status::encode(self.epoch, barrier));
            }
            if want > 0 && is_fresh(want, near) {
                status.set(StatusWord::Want(mode), status::encode(self.epoch, want));
            }
        }
    }
}
