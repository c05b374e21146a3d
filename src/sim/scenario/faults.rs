//! The faults of a scenario, and the times at which they happen.

use std::{collections::BTreeSet, time::Duration};

use squall_fabric::{NodeId, Time, sim::LinkProperties};

use super::{
    super::cluster::{Cluster, random},
    Scenario, SimPeer, WITNESS,
    ledger::{Ledger, Log},
};

/// The highest id of a node that may join.
pub(super) const LAST_JOINER: u32 = 9;

#[derive(Clone, Debug)]
pub(super) enum Fault {
    Pause(NodeId),
    /// A pause of the node's engine alone; its clients go on.
    PauseEngine(NodeId),
    Resume(NodeId),
    /// An operator tells the first node that the second is gone.
    Suspect(NodeId, NodeId),
    /// Messages from the first node of each pair do not reach the second.
    Cut(Vec<(NodeId, NodeId)>),
    Heal(Vec<(NodeId, NodeId)>),
    /// Messages from the first node to the second take this time.
    Slow(NodeId, NodeId, Duration),
    Crash(NodeId),
    /// The node that leads the view then crashes; with `of_log`, the node that leads the log that decides on views.
    CrashLeader {
        of_log: bool,
    },
    /// A node starts, for the first time or again.
    Launch(NodeId),
    /// The start of all nodes that crashed.
    LaunchAll,
    /// A node that is down loses its disk.
    Wipe(NodeId),
    /// A node's clock runs at another rate from then on.
    Drift(NodeId),
    /// A node's clock stands still, while the network and its threads go on.
    StopClock(NodeId),
    Leave(NodeId),
    /// The process of a node ends, if its part in the group is over.
    Exit(NodeId),
    Disk(DiskFault),
    CrashWitness,
    LaunchWitness,
}

/// A fault of a disk, or of all.
#[derive(Clone, Debug)]
pub(super) enum DiskFault {
    /// A loss of power at all nodes at once.
    PowerLoss,
    /// A node loses power in the midst of a change to its disk. The number is that of the changes before it.
    CrashInWrite(NodeId, u64),
    /// A disk has room for so many bytes more; or, with None, for any number again.
    Full(NodeId, Option<u64>),
    /// A sync fails. The number is that of the syncs before it.
    FailSync(NodeId, u64),
    /// Writes take up to so many microseconds.
    Slow(NodeId, u64),
    /// A hang in which no write to a log ends any more; or, if false, its end.
    Hang(NodeId, bool),
    /// A random bit of a disk flips, while its node is down.
    Rot(NodeId),
}

#[derive(Debug, Default)]
pub(super) struct Faults {
    planned: Vec<(Time, Fault)>,
    /// The number of faults that were carried out, without the ends of faults.
    pub(super) injected: usize,
    /// The nodes that crashed, left, stood still, or could not be reached, in any life.
    pub(super) met: BTreeSet<NodeId>,
    /// The one node whose disk may lose what was synced, in a durable scenario.
    pub(super) victim: Option<NodeId>,
    /// Whether the victim's disk has lost anything.
    pub(super) has_lost: bool,
}

impl Faults {
    /// Whether no fault is still to come, nor the end of one.
    pub(super) fn are_over(&self) -> bool {
        self.planned.is_empty()
    }

    pub(super) fn plan(&mut self, at: Time, fault: Fault) {
        self.planned.push((at, fault));
    }

    /// The time for which the last fault is planned.
    pub(super) fn last(&self) -> Time {
        self.planned.iter().map(|(at, _)| *at).max().unwrap_or(Time::ZERO)
    }
}

impl Scenario<'_> {
    pub(super) fn any_node(&mut self) -> NodeId {
        self.peers[self.rng.usize(0..self.peers.len())].node
    }

    pub(super) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(self.rng.u64(from * 1000..=to * 1000))
    }

    /// Plans random faults from now on. A calm scenario gets only faults that must not harm.
    pub(super) fn plan_faults(&mut self, within: Duration) {
        let begin = self.cluster.now();
        for _ in 0..self.rng.usize(0..=2) {
            let (node, at) = (self.any_node(), begin + self.within(within));
            // Shorter than the failure timeout, so it must not harm.
            let over = at + self.millis(0, 8);
            self.faults.plan(at, Fault::Pause(node));
            self.faults.plan(over, Fault::Resume(node));
        }
        if self.durable && self.calm {
            self.plan_disk_faults(begin, within);
        }
        if self.calm {
            return;
        }
        // Some at the same moment, some after the group has got over the ones before.
        let lasts = [within, Duration::from_millis(30), Duration::from_millis(100)][self.rng.usize(0..3)];
        let mut joiner = self.peers.len() as u32 + 1;
        let mut at = begin + self.within(lasts);
        for _ in 0..self.rng.usize(1..=5) {
            let node = self.any_node();
            match self.rng.u8(0..18) {
                0 | 1 => {
                    let over = at + self.millis(30, 60);
                    let pause = if self.rng.bool() { Fault::Pause(node) } else { Fault::PauseEngine(node) };
                    self.faults.plan(at, pause);
                    self.faults.plan(over, Fault::Resume(node));
                    self.plan_suspicion(at, node);
                }
                2..=4 => self.plan_cut(at, node),
                5 => {
                    let (other, by) = (self.any_node(), self.millis(0, 3));
                    self.faults.plan(at, Fault::Slow(node, other, by));
                }
                6 => {
                    let ends = at + self.millis(0, 100);
                    self.faults.plan(at, Fault::Leave(node));
                    self.faults.plan(ends, Fault::Exit(node));
                }
                7 | 8 if self.ordered && joiner <= LAST_JOINER => {
                    self.faults.plan(at, Fault::Launch(NodeId(joiner)));
                    joiner += 1;
                }
                9 | 10 => self.plan_crashes_of_leaders(at),
                _ => {
                    self.faults.plan(at, Fault::Crash(node));
                    if self.ordered && self.rng.bool() {
                        let again = at + self.millis(0, 60);
                        // Else all copies of a durable group's log could be wiped.
                        if self.rng.u8(0..4) == 0 && !self.durable {
                            self.faults.plan(again, Fault::Wipe(node));
                        }
                        self.faults.plan(again, Fault::Launch(node));
                    }
                }
            }
            // Many faults strike at some step of what the group does about the one before.
            at = if self.rng.bool() { at + self.millis(0, 5) } else { begin + self.within(lasts) };
        }
        if self.durable {
            self.plan_disk_faults(begin, lasts);
        }
        self.plan_clocks(begin, lasts);
    }

    /// Plans that clocks run at other rates from some moment on. Where no reads depend on them, some clocks also stand
    /// still for a while, some of these with their nodes' threads.
    fn plan_clocks(&mut self, begin: Time, lasts: Duration) {
        for _ in 0..self.rng.usize(0..=4) {
            let (node, at) = (self.any_node(), begin + self.within(lasts));
            self.faults.plan(at, Fault::Drift(node));
        }
        for _ in 0..if self.leases { 0 } else { self.rng.usize(0..=2) } {
            let (node, at) = (self.any_node(), begin + self.within(lasts));
            let over = at + self.millis(0, 60);
            self.faults.plan(at, Fault::StopClock(node));
            if self.rng.bool() {
                self.faults.plan(at, Fault::Pause(node));
                self.faults.plan(over, Fault::Resume(node));
            }
            self.faults.plan(over, Fault::Drift(node));
        }
    }

    /// Plans crashes of one leader after the other, as each takes over.
    fn plan_crashes_of_leaders(&mut self, mut at: Time) {
        for _ in 0..self.rng.usize(1..=3) {
            let of_log = self.rng.bool();
            self.faults.plan(at, Fault::CrashLeader { of_log });
            at = at + self.millis(0, 10);
        }
        if self.ordered && self.rng.bool() {
            let again = at + self.millis(0, 60);
            self.faults.plan(again, Fault::LaunchAll);
        }
    }

    pub(super) fn within(&mut self, most: Duration) -> Duration {
        random(&mut self.rng, most)
    }

    /// Sometimes plans that a node is told that another is gone, before it could have found out.
    fn plan_suspicion(&mut self, at: Time, gone: NodeId) {
        let by = self.any_node();
        if by != gone && self.rng.u8(0..4) == 0 {
            let at = at + self.millis(0, 3);
            self.faults.plan(at, Fault::Suspect(by, gone));
        }
    }

    /// Plans that some links are cut, in one direction or both, once or again and again.
    fn plan_cut(&mut self, at: Time, node: NodeId) {
        let nodes: Vec<NodeId> = self.peers.iter().map(|peer| peer.node).collect();
        let other = self.any_node();
        let (here, there): (Vec<NodeId>, Vec<NodeId>) = match self.rng.u8(0..4) {
            0 | 1 => (vec![node], vec![other]),
            2 => nodes.iter().copied().partition(|_| self.rng.bool()),
            _ => nodes.iter().copied().partition(|&any| any == node),
        };
        let mut links: Vec<_> = here.iter().flat_map(|&a| there.iter().map(move |&b| (a, b))).collect();
        links.retain(|(a, b)| a != b);
        if self.rng.u8(0..3) == 0 {
            links.iter_mut().for_each(|(a, b)| (*a, *b) = (*b, *a));
        }
        if self.rng.u8(0..3) > 0 {
            links.extend(links.clone().iter().map(|&(a, b)| (b, a)));
        }
        self.plan_suspicion(at, node);
        let (times, lasts) = match self.rng.u8(0..3) {
            0 => (self.rng.usize(2..=6), self.millis(1, 10)),
            _ => (1, self.millis(1, 60)),
        };
        for time in 0..times as u32 {
            let at = at + 2 * time * lasts;
            self.faults.plan(at, Fault::Cut(links.clone()));
            self.faults.plan(at + lasts, Fault::Heal(links.clone()));
        }
    }

    /// Carries out the faults that are due.
    pub(super) fn inject(&mut self) -> Result<(), String> {
        if self.durable {
            self.bury();
        }
        let now = self.cluster.now();
        let mut due: Vec<(Time, Fault)> = self.faults.planned.extract_if(.., |(at, _)| *at <= now).collect();
        due.sort_by_key(|(at, _)| *at);
        for (_, fault) in due {
            self.tell(|| format!("{fault:?}"));
            self.faults.injected += usize::from(!matches!(fault, Fault::Resume(_) | Fault::Heal(_) | Fault::Drift(_)));
            self.carry_out(fault)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, fault: Fault) -> Result<(), String> {
        match fault {
            Fault::Pause(node) => {
                self.faults.met.insert(node);
                if let Some(peer) = self.peer(node).filter(|peer| peer.is_up) {
                    peer.is_paused = true;
                    self.cluster.pause(node);
                }
            }
            Fault::PauseEngine(node) => {
                self.faults.met.insert(node);
                self.cluster.pause(node);
            }
            Fault::Resume(node) => {
                if let Some(peer) = self.peer(node) {
                    peer.is_paused = false;
                }
                self.cluster.resume(node);
            }
            // Within the fault model's bound, so no member may come to harm.
            Fault::Drift(node) => self.cluster.drift_clock(node),
            Fault::StopClock(node) => {
                self.faults.met.insert(node);
                self.cluster.run_clock(node, 0);
            }
            Fault::Suspect(by, gone) => {
                self.faults.met.extend([by, gone]);
                self.cluster.suspect(by, gone);
            }
            Fault::Cut(links) => {
                self.faults.met.extend(links.iter().flat_map(|&(a, b)| [a, b]));
                links.iter().for_each(|&(a, b)| self.cluster.net().cut_one_way(a, b));
            }
            Fault::Heal(links) => links.iter().for_each(|&(a, b)| self.cluster.net().heal(a, b)),
            Fault::Slow(a, b, by) => {
                self.faults.met.extend([a, b]);
                let link = LinkProperties { latency: Some(by), ..LinkProperties::default() };
                self.cluster.net().set_link(a, b, link);
            }
            // In half of the cases only the process ends: what it wrote and did not sync is still there.
            Fault::Crash(node) if self.durable && self.rng.bool() => {
                if self.note_crash(node) {
                    self.cluster.kill(node);
                }
            }
            Fault::Crash(node) => self.crash(node),
            Fault::CrashLeader { of_log } => {
                if let Some(leader) = self.cluster.leader(of_log) {
                    self.crash(leader);
                }
            }
            Fault::LaunchAll => {
                let down = self.peers.iter().filter(|peer| !peer.is_up).map(|peer| peer.node);
                for node in down.collect::<Vec<_>>() {
                    self.launch(node)?;
                }
            }
            Fault::Wipe(node) => {
                if !self.cluster.is_up(node) {
                    self.faults.has_lost |= self.durable;
                    self.cluster.wipe(node);
                }
            }
            Fault::Launch(node) => self.launch(node)?,
            Fault::CrashWitness => self.cluster.raft.crash(WITNESS),
            Fault::LaunchWitness => {
                if !self.cluster.is_witness_up(WITNESS) {
                    self.cluster.launch_witness(WITNESS);
                }
            }
            Fault::Disk(fault) => self.carry_out_on_disk(fault),
            Fault::Exit(node) => {
                if self.cluster.end_reason(node).is_some() {
                    self.crash(node);
                }
            }
            Fault::Leave(node) => {
                if let Some(peer) = self.peer(node).filter(|peer| peer.is_up) {
                    peer.leaves = true;
                    self.faults.met.insert(node);
                    self.cluster.leave(node);
                }
            }
        }
        Ok(())
    }

    /// Whether all nodes of the list would run and know of no group once this node starts. They would then begin
    /// another one, as they must.
    fn would_found_anew(&self, node: NodeId) -> bool {
        // At least one disk still has its part of the view log.
        if self.durable {
            return false;
        }
        let is_new =
            |other: &NodeId| *other == node || self.cluster.is_up(*other) && self.cluster.view(*other).is_none();
        self.cluster.config.members().iter().all(is_new)
    }

    pub(super) fn crash(&mut self, node: NodeId) {
        if self.note_crash(node) {
            self.cluster.crash(node);
        }
    }

    /// Takes note that a node is down. Returns whether it was up.
    pub(super) fn note_crash(&mut self, node: NodeId) -> bool {
        let Some(peer) = self.peer(node).filter(|peer| peer.is_up) else { return false };
        (peer.is_up, peer.is_paused, peer.leaves) = (false, false, false);
        self.faults.met.insert(node);
        true
    }

    fn launch(&mut self, node: NodeId) -> Result<(), String> {
        if self.cluster.is_up(node) || self.would_found_anew(node) {
            return Ok(());
        }
        self.start_again(node)
    }

    /// Starts a node that does not run.
    pub(super) fn start_again(&mut self, node: NodeId) -> Result<(), String> {
        let durable = self.durable;
        let declare = |cluster: &mut Cluster| {
            let log = Log::new(durable);
            (cluster.declare(node, "ledger", Ledger(log.clone())), log)
        };
        let (mut group, mut log) = declare(&mut self.cluster);
        if let Err(error) = self.cluster.launch(node) {
            self.tell(|| format!("{node} did not start: {error}"));
            if self.cluster.fallen().contains(&node) {
                self.plan_return(node);
                return Ok(());
            }
            if self.faults.victim != Some(node) {
                return Err(format!("{node} did not start: {error}"));
            }
            // An operator who reads that error would do the same.
            self.cluster.wipe(node);
            (group, log) = declare(&mut self.cluster);
            self.cluster.launch(node).map_err(|error| format!("{node} did not start with an empty disk: {error}"))?;
        }
        let peer = SimPeer { node, group, log, is_up: true, is_paused: false, leaves: false };
        match self.peer(node) {
            Some(before) => {
                let before = std::mem::replace(before, peer);
                self.past.push((node, before.log));
            }
            None => self.peers.push(peer),
        }
        Ok(())
    }
}
