//! The faults of the disks of a durable scenario's nodes, and power losses of all nodes at once.
//!
//! Any number of nodes lose power, in the midst of a write too, and come back with what was synced. One node at most,
//! the *victim*, loses more: its disk fills up, fails a sync, rots or is replaced.

use std::time::Duration;

use fastrand::Rng;
use squall_fabric::{NodeId, Time};
use squall_membership::EndReason;

use super::{
    Scenario,
    faults::{DiskFault, Fault},
};

/// The mask that turns a scenario's seed into the one for the choices about a hang of all disks.
const HANG: u64 = 0xd1_5c00_0001;

/// The mask for the time after which a full disk has room again.
const ROOM: u64 = 0xd1_5c00_0002;

/// The number of the only group's shard.
const SHARD: u32 = 0;

impl Scenario<'_> {
    /// Plans random disk faults, from `begin` on and within a time.
    pub(super) fn plan_disk_faults(&mut self, begin: Time, within: Duration) {
        for _ in 0..self.rng.usize(0..=2) {
            let (node, at, micros) = (self.any_node(), begin + self.within(within), self.rng.u64(100..=5000));
            self.faults.plan(at, Fault::Disk(DiskFault::Slow(node, micros)));
        }
        if self.calm {
            return;
        }
        for _ in 0..self.rng.usize(0..=2) {
            let (node, at, change) = (self.any_node(), begin + self.within(within), self.rng.u64(0..=60));
            self.faults.plan(at, Fault::Disk(DiskFault::CrashInWrite(node, change)));
        }
        let victim = self.any_node();
        if self.rng.bool() {
            let at = begin + self.within(within);
            let fault = match self.rng.u8(0..3) {
                0 => DiskFault::Full(victim, Some(self.rng.u64(0..=200_000))),
                1 => DiskFault::FailSync(victim, self.rng.u64(0..=20)),
                _ => DiskFault::Rot(victim),
            };
            if let DiskFault::Rot(_) = fault {
                let again = at + self.millis(1, 20);
                self.faults.plan(at, Fault::Crash(victim));
                self.faults.plan(at, Fault::Disk(fault));
                self.faults.plan(again, Fault::Launch(victim));
            } else {
                if let DiskFault::Full(..) = fault {
                    // Drawn apart, so that the other faults don't depend on it.
                    let micros = Rng::with_seed(self.seed ^ ROOM).u64(100..=200_000);
                    let again = at + Duration::from_micros(micros);
                    self.faults.plan(again, Fault::Disk(DiskFault::Full(victim, None)));
                }
                self.faults.plan(at, Fault::Disk(fault));
            }
            self.faults.victim = Some(victim);
        }
        for _ in 0..self.rng.usize(0..=2) {
            let at = begin + self.within(within);
            self.plan_power_loss(at, victim);
        }
        self.plan_hang(begin, within);
        // Once all that was planned is over, most are there again.
        if self.rng.u8(0..4) > 0 {
            let last = self.faults.last().max(begin + within);
            let at = last + self.millis(0, 100);
            self.faults.plan(at, Fault::LaunchAll);
        }
    }

    /// Plans that all nodes lose power at once. They come back in any order, some late, some not at all. One may have
    /// written more than all others could, and come back when these have gone on without it.
    fn plan_power_loss(&mut self, at: Time, victim: NodeId) {
        let nodes: Vec<NodeId> = self.peers.iter().map(|peer| peer.node).collect();
        let ahead = (self.rng.u8(0..3) == 0).then(|| self.any_node());
        let others = || nodes.iter().filter(|&&node| ahead.is_some_and(|ahead| node != ahead));
        for &node in others() {
            self.faults.plan(at, Fault::Disk(DiskFault::Slow(node, 20_000)));
        }
        let at = if ahead.is_some() { at + self.millis(5, 40) } else { at };
        for &node in others() {
            self.faults.plan(at, Fault::Disk(DiskFault::Slow(node, 0)));
        }
        self.faults.plan(at, Fault::Disk(DiskFault::PowerLoss));
        // Some start while others are still starting.
        let spread = [1, 20, 60][self.rng.usize(0..3)];
        for node in nodes {
            let is_late = ahead == Some(node) || self.rng.u8(0..6) == 0;
            let late = if is_late { self.millis(60, 300) } else { self.millis(0, spread) };
            if self.rng.u8(0..8) > 0 {
                self.faults.plan(at + late, Fault::Launch(node));
            }
            if self.rng.u8(0..4) == 0 {
                let change = self.rng.u64(0..=40);
                self.faults.plan(at + late / 2, Fault::Disk(DiskFault::CrashInWrite(node, change)));
            }
        }
        let is_free = self.faults.victim.is_none_or(|other| other == victim);
        if is_free && self.rng.u8(0..3) == 0 {
            self.faults.victim = Some(victim);
            self.faults
                .plan(at, if self.rng.bool() { Fault::Wipe(victim) } else { Fault::Disk(DiskFault::Rot(victim)) });
        }
    }

    /// Sometimes plans that all disks hang while the group gives up a member that some others can't reach. Then all
    /// nodes lose power, and nothing of that time is on any disk.
    fn plan_hang(&mut self, begin: Time, within: Duration) {
        // Drawn apart, so that the other faults don't depend on it.
        let mut rng = Rng::with_seed(self.seed ^ HANG);
        if rng.u8(0..3) > 0 {
            return;
        }
        let mut nodes: Vec<NodeId> = self.peers.iter().map(|peer| peer.node).collect();
        rng.shuffle(&mut nodes);
        let (gone, others) = nodes.split_last().expect("there are members");
        let mut after = |from: u64, to: u64| Duration::from_micros(rng.u64(from * 1000..=to * 1000));
        let hangs_at = begin + after(0, within.as_millis() as u64);
        let cut_at = hangs_at + after(0, 3);
        let suspected_at = cut_at + after(0, 3);
        let lost_at = suspected_at + after(1, 30);
        let late: Vec<Duration> = nodes.iter().map(|_| after(0, 60)).collect();
        let deaf = &others[..rng.usize(1..=others.len())];
        let links: Vec<_> = deaf.iter().map(|&other| (other, *gone)).collect();
        self.faults.plan(cut_at, Fault::Cut(links.clone()));
        self.faults.plan(suspected_at, Fault::Suspect(deaf[0], *gone));
        for (&node, late) in nodes.iter().zip(late) {
            self.faults.plan(hangs_at, Fault::Disk(DiskFault::Hang(node, true)));
            self.faults.plan(lost_at, Fault::Disk(DiskFault::Hang(node, false)));
            self.faults.plan(lost_at + late, Fault::Launch(node));
        }
        self.faults.plan(lost_at, Fault::Heal(links));
        self.faults.plan(lost_at, Fault::Disk(DiskFault::PowerLoss));
    }

    pub(super) fn carry_out_on_disk(&mut self, fault: DiskFault) {
        match fault {
            DiskFault::PowerLoss => {
                for node in self.peers.iter().map(|peer| peer.node).collect::<Vec<_>>() {
                    self.crash(node);
                }
            }
            DiskFault::CrashInWrite(node, change) => self.cluster.crash_in_write(node, SHARD, change),
            DiskFault::Full(node, more) => self.cluster.limit_disk(node, SHARD, more),
            DiskFault::FailSync(node, nth) => self.cluster.fail_sync(node, SHARD, nth),
            DiskFault::Hang(node, hangs) => self.cluster.hang_disk(node, hangs),
            DiskFault::Slow(node, micros) => self.cluster.slow_disk(node, Duration::from_micros(micros)),
            DiskFault::Rot(node) => {
                if !self.cluster.is_up(node)
                    && let Some(what) = self.cluster.rot(node, SHARD)
                {
                    self.faults.has_lost = true;
                    self.tell(|| format!("{node}: {what} flips"));
                }
            }
        }
    }

    /// Takes note of nodes whose disks have ended them, and has them start again.
    pub(super) fn bury(&mut self) {
        for node in self.cluster.fallen() {
            self.tell(|| format!("{node} loses power in the midst of a write"));
            self.note_crash(node);
            self.plan_return(node);
        }
        let ended = |node: NodeId| matches!(self.cluster.end_reason(node), Some(EndReason::Storage(_)));
        let failed = self.faults.victim.filter(|&victim| ended(victim));
        if let Some(node) = failed {
            let why = self.cluster.end_reason(node).map(ToString::to_string).unwrap_or_default();
            self.tell(|| format!("{node} has ended: {why}"));
            self.cluster.limit_disk(node, SHARD, None);
            self.crash(node);
            self.plan_return(node);
        }
    }

    pub(super) fn plan_return(&mut self, node: NodeId) {
        let again = self.cluster.now() + self.millis(0, 60);
        self.faults.plan(again, Fault::Launch(node));
    }
}
