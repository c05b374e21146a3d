//! The disks on which simulated nodes keep durable groups' logs. They outlive the nodes' processes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fastrand::Rng;
use squall_fabric::{NodeId, Waker, sync::Lock};
use squall_membership::{EndReason, Member, ShardId, VoterId};
use squall_ordered::{
    Mode,
    log::{self, Body, Position, ReadError, SimStorage},
};
use squall_view_log::SimDisk;

use super::{
    cluster::{Cluster, random},
    full_disks::FULL,
    node::{Act, FoundDisk},
    options::Options,
};
use crate::{
    durable::{
        disk::Disk,
        log_writer::{DiskLog, LogWriter},
        recovery::{self, OpenedLog, Rebuilt, RecoverError, Remembered},
        scrub::{ScrubRate, Scrubbing},
    },
    group::control::GroupSpec,
    node::plan::Plan,
    state_transfer::offer,
};

/// The disks of a cluster's nodes, with the logs of their shards.
#[derive(Default)]
pub(super) struct Disks(BTreeMap<NodeId, NodeDisk>);

struct NodeDisk {
    shards: BTreeMap<ShardId, OnDisk>,
    /// The longest time that a write and its sync take; the time is random.
    pace: Duration,
    /// Whether no write ends now.
    hangs: bool,
}

/// A shard's log on its node's disk.
struct OnDisk {
    storage: SimStorage,
    /// The record that the node's store keeps of the log.
    remembered: Option<Remembered>,
}

/// A copy of all that a node had on disk at some moment.
#[derive(Clone, Debug)]
pub struct DiskCopy {
    pub(super) part: Option<SimDisk>,
    pub(super) logs: LogFiles,
}

/// A copy of a node's logs: the files, and what its store remembered of each log.
pub(super) type LogFiles = BTreeMap<ShardId, (BTreeMap<String, Vec<u8>>, Option<Remembered>)>;

/// The pace of a disk, until another one is set.
const PACE: Duration = Duration::from_micros(50);

/// The longest pause of a snapshot before its next step.
const SNAPSHOT_PACE: Duration = Duration::from_millis(2);

/// The pause of scrubbing after a log was read again, and of a node that can't read its log now.
const REST: Duration = Duration::from_millis(50);

/// The pause of a log before it notes by itself how far it was acknowledged.
const QUIET: Duration = Duration::from_millis(20);

impl Default for NodeDisk {
    fn default() -> NodeDisk {
        NodeDisk { shards: BTreeMap::new(), pace: PACE, hangs: false }
    }
}

impl Disks {
    fn storages(&self, node: NodeId) -> impl Iterator<Item = &SimStorage> {
        self.0.get(&node).into_iter().flat_map(|disk| disk.shards.values()).map(|on_disk| &on_disk.storage)
    }

    /// A copy of a node's logs, as they are now.
    pub(super) fn copy(&self, node: NodeId) -> LogFiles {
        let shards = self.0.get(&node).into_iter().flat_map(|disk| &disk.shards);
        shards.map(|(&shard, on_disk)| (shard, (on_disk.storage.image(), on_disk.remembered))).collect()
    }

    /// Puts a copy in the place of what a node has of its logs.
    pub(super) fn put(&mut self, node: NodeId, logs: &LogFiles, rng: &mut Rng) {
        let mut on_disk = |image: &BTreeMap<String, Vec<u8>>, remembered: Option<Remembered>| OnDisk {
            storage: SimStorage::from_image(rng.u64(..), image),
            remembered,
        };
        let shards = logs.iter().map(|(&shard, (image, remembered))| (shard, on_disk(image, *remembered))).collect();
        self.0.entry(node).or_default().shards = shards;
    }

    /// Opens a shard's log, or begins one.
    pub(super) fn open(
        &mut self,
        node: NodeId,
        voter: VoterId,
        options: log::Options,
        rng: &mut Rng,
    ) -> Result<OpenedLog, RecoverError> {
        let disk = self.0.entry(node).or_default();
        let fresh = || OnDisk { storage: SimStorage::new(rng.u64(..)), remembered: None };
        let on_disk = disk.shards.entry(options.shard).or_insert_with(fresh);
        let storage = Disk::Simulated(on_disk.storage.clone());
        let opened = recovery::open(storage, options, voter, on_disk.remembered, rng)?;
        on_disk.remembered = Some(opened.remembered);
        Ok(opened)
    }

    /// Takes away a node's power: what was not synced may be lost.
    pub(super) fn lose_power(&mut self, node: NodeId) {
        self.storages(node).for_each(SimStorage::restart);
    }

    /// Whether a node's disk has failed in the midst of a change, and the node's power with it.
    pub(super) fn has_crashed(&self, node: NodeId) -> bool {
        self.storages(node).any(SimStorage::has_crashed)
    }

    pub(super) fn wipe(&mut self, node: NodeId) {
        self.0.remove(&node);
    }

    pub(super) fn pace(&self, node: NodeId) -> Duration {
        self.0.get(&node).map_or(PACE, |disk| disk.pace)
    }

    pub(super) fn hangs(&self, node: NodeId) -> bool {
        self.0.get(&node).is_some_and(|disk| disk.hangs)
    }
}

/// A log, as the thread that writes it would have it, and its log writer, which other threads use.
#[derive(Clone)]
pub(super) struct Logging {
    pub(super) log: Arc<Lock<DiskLog>>,
    pub(super) log_writer: Arc<LogWriter>,
}

impl Logging {
    /// Takes an opened log. `writer` is called when there is something to write.
    pub(super) fn new(log: DiskLog, rebuilt: &Rebuilt, is_kept: bool, writer: Waker) -> Logging {
        let log_writer = Arc::new(LogWriter::new(&log, rebuilt.view.clone(), writer));
        log_writer.set_stale(!rebuilt.is_whole());
        log_writer.set_anew(!is_kept);
        let log = Arc::new(Lock::new(log));
        let pump = {
            let (log, log_writer) = (Arc::clone(&log), Arc::downgrade(&log_writer));
            move || {
                let Some(log_writer) = log_writer.upgrade() else { return };
                log_writer.write(&mut log.lock());
            }
        };
        log_writer.pump(Box::new(pump));
        Logging { log, log_writer }
    }
}

impl Cluster {
    /// Opens the logs of a node's durable groups, and takes their replicas to the logs' ends.
    pub(super) fn open_logs(
        &mut self,
        me: &Member,
        plan: &Plan,
        specs: &[Box<dyn GroupSpec>],
    ) -> Result<BTreeMap<ShardId, FoundDisk>, RecoverError> {
        let cluster = recovery::cluster_id(self.config.cluster());
        let Options { segment_bytes, batch_bytes, .. } = self.options;
        let mut found = BTreeMap::new();
        for ((&shard, config), spec) in plan.shards.iter().zip(specs) {
            if config.mode != Mode::Durable {
                continue;
            }
            let options = log::Options { segment_bytes, batch_bytes, ..log::Options::new(cluster, shard) };
            let OpenedLog { mut log, is_kept, .. } = self.disks.open(me.node, me.voter, options, &mut self.rng)?;
            let rebuilt = spec.recover(&mut log)?;
            let held = recovery::held(&rebuilt, is_kept, &log);
            found.insert(shard, FoundDisk { log, is_kept, rebuilt, held });
        }
        Ok(found)
    }

    /// Lets a write to a node's disk take up to `pace` from now on. It is 50 µs at first.
    pub fn slow_disk(&mut self, node: NodeId, pace: Duration) {
        self.disks.0.entry(node).or_default().pace = pace;
    }

    /// Lets no write to the logs on a node's disk end while `hangs` is set.
    pub fn hang_disk(&mut self, node: NodeId, hangs: bool) {
        self.disks.0.entry(node).or_default().hangs = hangs;
        self.schedule_writes(node);
    }

    /// Lets a node lose power in the midst of a change to its disk. Of the changes to one of its shards that are to
    /// come, it is the one with the number `change`, from 0. See [`fallen`](Cluster::fallen).
    pub fn crash_in_write(&mut self, node: NodeId, shard: u32, change: u64) {
        if let Some(storage) = self.storage(node, shard) {
            storage.crash_at(storage.changes() + change);
        }
    }

    /// Fails one of the syncs that are to come for a shard of a node: the one with the number `nth`, from 0.
    pub fn fail_sync(&mut self, node: NodeId, shard: u32, nth: u64) {
        if let Some(storage) = self.storage(node, shard) {
            storage.fail_sync(nth);
        }
    }

    /// Flips a random bit of what a node that does not run has on disk of a shard. Returns which bit it was; None if
    /// the node has nothing.
    ///
    /// # Panics
    ///
    /// If the node runs.
    pub fn rot(&mut self, node: NodeId, shard: u32) -> Option<String> {
        assert!(!self.nodes.contains_key(&node), "{node} runs");
        let storage = self.storage(node, shard)?;
        let image = storage.image();
        let files: Vec<_> = image.iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
        let &(name, bytes) = files.get(self.rng.usize(0..files.len().max(1)))?;
        // Rather in the used part than in the space for what is to come.
        let used = bytes.iter().rposition(|&byte| byte != 0).map_or(bytes.len(), |last| last + 1);
        let (offset, bit) = (self.rng.u64(0..used as u64), self.rng.u8(0..8));
        storage.flip(name, offset, bit);
        Some(format!("bit {bit} of byte {offset} of {name}"))
    }

    /// The segments of a log with the number of their bytes that are in use, where these are more than the first block.
    fn segments(image: &BTreeMap<String, Vec<u8>>) -> Vec<(&String, u64)> {
        let is_segment = |name: &str| name.starts_with("segment-") && !name.ends_with(".new");
        let used = |bytes: &[u8]| bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last as u64 + 1);
        let segments = image.iter().filter(|(name, _)| is_segment(name)).map(|(name, bytes)| (name, used(bytes)));
        segments.filter(|(_, used)| *used > 4096).collect()
    }

    /// Flips a random bit of the records of a shard that a node has on disk. The node may run. Returns which bit it
    /// was; None if the node has no records.
    pub fn rot_record(&mut self, node: NodeId, shard: u32) -> Option<String> {
        let storage = self.storage(node, shard)?;
        let image = storage.image();
        // The first blocks of segments are kept twice.
        let segments = Cluster::segments(&image);
        let &(name, used) = segments.get(self.rng.usize(0..segments.len().max(1)))?;
        let (offset, bit) = (self.rng.u64(4096..used), self.rng.u8(0..8));
        storage.flip(name, offset, bit);
        Some(format!("bit {bit} of byte {offset} of {name}"))
    }

    fn logging(&self, node: NodeId, shard: ShardId) -> Option<&Logging> {
        self.nodes.get(&node)?.groups.get(&shard)?.logging.as_ref()
    }

    /// The version of the last message of a shard that a node has on disk. None if its process does not exist.
    pub fn last_version(&self, node: NodeId, shard: u32) -> Option<u64> {
        Some(self.logging(node, ShardId(shard))?.log_writer.on_disk().version)
    }

    /// The damages that are in the log of a shard of a node that runs, and the number of those that it has repaired
    /// while it runs.
    pub fn damages(&self, node: NodeId, shard: u32) -> Option<(Vec<String>, u64)> {
        let logging = self.logging(node, ShardId(shard))?;
        let found = logging.log.lock().verify(|_| {}).ok()?;
        let damage = found.damage.iter().map(ToString::to_string).collect();
        Some((damage, logging.log_writer.scrubbed.lock().repaired))
    }

    /// Zeroes the end of the newest used segment that a node which does not run has of a shard: at most `bytes` bytes
    /// that are in use. Returns which ones; None if the node has none.
    ///
    /// # Panics
    ///
    /// If the node runs.
    pub fn zero_end(&mut self, node: NodeId, shard: u32, bytes: u64) -> Option<String> {
        assert!(!self.nodes.contains_key(&node), "{node} runs");
        let storage = self.storage(node, shard)?;
        let image = storage.image();
        // The first block of a segment stays.
        let (name, used) = Cluster::segments(&image).pop()?;
        let from = used.saturating_sub(bytes).max(4096);
        storage.zero(name, from..used);
        Some(format!("bytes {from} to {used} of {name}"))
    }

    /// Repairs what a node that does not run has of a shard from all other nodes' logs, as an operator does with
    /// `squall log repair`.
    pub fn repair_log(&mut self, node: NodeId, shard: u32) -> Result<log::Repaired, log::OfflineError> {
        let others: Vec<NodeId> = self.disks.0.keys().copied().filter(|other| *other != node).collect();
        let others: Vec<SimStorage> = others.into_iter().filter_map(|other| self.storage(other, shard)).collect();
        let Some(storage) = self.storage(node, shard) else { return Ok(log::Repaired::default()) };
        log::repair(storage, others, &mut self.rng)
    }

    /// Cuts what a node that does not run has of a shard before its first damage, as an operator does with
    /// `squall log cut`. With `accepts_loss`, the operator accepts that what was acknowledged behind it is lost.
    pub fn cut_log(&mut self, node: NodeId, shard: u32, accepts_loss: bool) -> Result<(), log::OfflineError> {
        let Some(storage) = self.storage(node, shard) else { return Ok(()) };
        log::cut(storage, log::CutAt::Damage, accepts_loss, &mut self.rng).map(|_| ())
    }

    /// Has no node apply a command that a node which does not run has in its log of a shard, as an operator does with
    /// `squall log skip`.
    pub fn skip_command(
        &mut self,
        node: NodeId,
        shard: u32,
        version: u64,
        reason: &str,
    ) -> Result<(), log::OfflineError> {
        let Some(storage) = self.storage(node, shard) else { return Ok(()) };
        log::skip(storage, version, self.true_time(), reason, &mut self.rng).map(drop)
    }

    /// The nodes that lost power by themselves, [in the midst of a change](Cluster::crash_in_write), since the last
    /// call.
    pub fn fallen(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.fallen)
    }

    pub(super) fn storage(&self, node: NodeId, shard: u32) -> Option<SimStorage> {
        Some(self.disks.0.get(&node)?.shards.get(&ShardId(shard))?.storage.clone())
    }

    /// Whether all that a node's durable groups have appended is on its disk.
    pub(super) fn is_written(&self, node: NodeId) -> bool {
        let is_written = |logging: &Logging| logging.log_writer.on_disk() == logging.log_writer.end();
        let Some(node) = self.nodes.get(&node) else { return false };
        node.groups.values().filter_map(|group| group.logging.as_ref()).all(is_written)
    }

    /// The messages of a shard that a running node has on disk: `each` gets the version, the sender and the bytes of
    /// each. Returns the last version.
    pub(super) fn logged(
        &self,
        node: NodeId,
        shard: ShardId,
        mut each: impl FnMut(u64, NodeId, &[u8]) -> Result<(), String>,
    ) -> Result<u64, String> {
        let logging = self.logging(node, shard).ok_or_else(|| format!("{node} has no log of {shard}"))?;
        let log = logging.log.lock();
        let mut reader = log.read(log.begin().position, Position::MAX).map_err(|error| format!("{node}: {error}"))?;
        // A start reads only what is behind the newest snapshot. Scrubbing has to find what is damaged before that.
        let status = self.nodes[&node].groups[&shard].control.history().status();
        let (snapshot, mut read) = (status.and_then(|status| status.snapshot).unwrap_or(0), log.begin().version);
        loop {
            match reader.next_record() {
                Ok(Some(record)) => {
                    read = record.version;
                    if let Body::Message { sender, payload } = record.body {
                        each(record.version, sender, payload)?;
                    }
                }
                Ok(None) => break,
                Err(ReadError::Damaged(_)) if read < snapshot => {}
                Err(error) => return Err(format!("{node}: {error}")),
            }
        }
        Ok(log.persisted().version)
    }

    /// Puts on the agenda what is to be written: records, and snapshots.
    pub(super) fn schedule_writes(&mut self, id: NodeId) {
        let now = self.net.now();
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let mut puts = Vec::new();
        for (&shard, group) in &mut node.groups {
            let is_due = group.logging.as_ref().is_some_and(|logging| logging.log_writer.is_due());
            if (is_due || group.is_full()) && !group.writes && !self.disks.hangs(id) {
                group.writes = true;
                let pace = if group.is_full() { FULL } else { random(&mut self.rng, self.disks.pace(id)) };
                puts.push((now + pace, Act::Write(shard)));
            }
            if group.control.history().wants_step() && !std::mem::replace(&mut group.snapshots, true) {
                puts.push((now + random(&mut self.rng, SNAPSHOT_PACE), Act::Snapshot(shard)));
            }
        }
        for (at, act) in puts {
            self.put(at, id, act);
        }
    }

    /// Writes what was appended to a log, and does what else was asked for.
    pub(super) fn write(&mut self, id: NodeId, shard: ShardId) {
        let hangs = self.disks.hangs(id);
        let Some(group) = self.nodes.get_mut(&id).and_then(|node| node.groups.get_mut(&shard)) else { return };
        group.writes = false;
        let Some(logging) = group.logging.as_ref().filter(|_| !hangs) else { return };
        if logging.log_writer.write(&mut logging.log.lock()) {
            if !std::mem::replace(&mut group.notes, true) {
                self.put(self.net.now() + QUIET, id, Act::Note(shard));
            }
            self.step_within(id, self.options.step_delay);
        }
        self.schedule_writes(id);
    }

    /// Notes in a log how far it was acknowledged, if it has nothing to write.
    pub(super) fn note(&mut self, id: NodeId, shard: ShardId) {
        let hangs = self.disks.hangs(id);
        let Some(group) = self.nodes.get_mut(&id).and_then(|node| node.groups.get_mut(&shard)) else { return };
        let Some(logging) = group.logging.as_ref() else { return };
        group.notes =
            hangs || logging.log_writer.is_due() || logging.log_writer.save_acknowledged(&mut logging.log.lock());
        if group.notes {
            self.put(self.net.now() + QUIET, id, Act::Note(shard));
        }
        self.step_within(id, self.options.step_delay);
    }

    /// Goes on with a snapshot of the state, as the thread that takes it would.
    pub(super) fn take_snapshot(&mut self, id: NodeId, shard: ShardId) {
        let Some(group) = self.nodes.get_mut(&id).and_then(|node| node.groups.get_mut(&shard)) else { return };
        group.snapshots = false;
        group.control.history().step_snapshot();
        self.schedule_deliveries(id);
        self.step_within(id, self.options.step_delay);
    }

    /// Begins to scrub the logs of a node that starts.
    pub(super) fn begin_scrubs(&mut self, id: NodeId) {
        let (now, bytes_per_second) = (self.net.now(), self.options.scrub_bytes_per_second);
        if bytes_per_second == 0 {
            return;
        }
        let rate = ScrubRate { bytes_per_second, slice: 8 << 10, rest: REST, again: REST };
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let mut shards = Vec::new();
        for (&shard, group) in &mut node.groups {
            let Some(logging) = &group.logging else { continue };
            let (name, log_writer) = (group.control.name().to_owned(), Arc::clone(&logging.log_writer));
            group.scrubbing = Some(Scrubbing::new(name, log_writer, rate, now));
            shards.push(shard);
        }
        shards.into_iter().for_each(|shard| self.put(now, id, Act::Scrub(shard)));
    }

    /// Reads some of a log again, or repairs what was found.
    pub(super) fn scrub(&mut self, id: NodeId, shard: ShardId) {
        let (now, wall) = (self.net.now(), self.true_time());
        let hangs = self.disks.hangs(id);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let view = node.installed.clone();
        let Some(mut scrubbing) = node.groups.get_mut(&shard).and_then(|group| group.scrubbing.take()) else { return };
        let complete = view.as_ref().and_then(|view| view.shard(shard)).map(|shard| shard.complete.clone());
        let others: Vec<NodeId> = complete.unwrap_or_default().into_iter().filter(|node| *node != id).collect();
        let fetch = |other: NodeId, from: Position, to: Position| -> Result<Vec<u8>, String> {
            let source = self.nodes.get(&other).and_then(|node| node.groups.get(&shard));
            let source =
                source.filter(|_| self.reach(id, other) && !self.disks.hangs(other)).ok_or("it can't be reached")?;
            offer::records_of(&*source.control, from, to)
        };
        let next = if hangs || view.is_none() { now + REST } else { scrubbing.step((now, wall), &others, fetch) };
        if let Some(group) = self.nodes.get_mut(&id).and_then(|node| node.groups.get_mut(&shard)) {
            group.scrubbing = Some(scrubbing);
        }
        let next = next.clamp(now + Duration::from_micros(1), now + REST);
        self.put(next, id, Act::Scrub(shard));
        self.schedule_writes(id);
        self.step_within(id, self.options.step_delay);
    }

    /// Cuts a log, as a thread of its own would.
    pub(super) fn cut(&mut self, id: NodeId, shard: ShardId) {
        let Some(group) = self.nodes.get_mut(&id).and_then(|node| node.groups.get_mut(&shard)) else { return };
        group.cuts = false;
        self.let_deliver(id, shard);
        let Some(group) = self.nodes.get_mut(&id).and_then(|node| node.groups.get_mut(&shard)) else { return };
        let Some((end, rebuilds)) = group.cut.take() else { return };
        let cut = group.control.cut(end, rebuilds);
        self.with_core(id, |core, effects| match cut {
            Ok(()) => core.cut_done(shard),
            Err(error) => core.fail(EndReason::Storage(error.to_string()), effects),
        });
        self.schedule_deliveries(id);
    }

    /// Ends a node whose disk has lost power.
    pub(super) fn look_at_disk(&mut self, id: NodeId) {
        if self.nodes.contains_key(&id) && self.disks.has_crashed(id) {
            self.crash(id);
            self.fallen.push(id);
        }
    }
}
