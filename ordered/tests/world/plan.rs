//! The parameters of a run of a cluster.

use std::time::Duration;

use fastrand::Rng;
use squall_fabric::sim::SimConfig;
use squall_ordered::{BulkPath, Mode, ShardConfig};

use super::within;

/// The parameters of a run. All times are upper bounds of random ones.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) members: usize,
    /// The members that may send, by index.
    pub(crate) senders: Vec<usize>,
    pub(crate) mode: Mode,
    pub(crate) ring_bytes: usize,
    pub(crate) net: SimConfig,
    /// The number of posts, of 256, that find the queue full at that moment.
    pub(crate) refused: u8,
    /// The number of messages that each member sends, if it may.
    pub(crate) messages: Vec<usize>,
    /// The length of the longest small message, in bytes.
    pub(crate) max_bytes: usize,
    pub(crate) bulk: Option<BulkPlan>,
    /// The number of reads that each member asks for.
    pub(crate) reads: usize,
    /// The time between two messages, or two reads, of a member.
    pub(crate) pace: Duration,
    /// The time from a deliverer's wake-up to its run.
    pub(crate) delivery_delay: Duration,
    /// The number of turns that a deliverer takes at a time.
    pub(crate) batch: usize,
    /// Durable mode: the time that a write takes.
    pub(crate) disk_delay: Duration,
    /// Durable mode: the number of messages that may be delivered and not persisted.
    pub(crate) disk_room: u64,
    /// The members that lack the state when the first view begins.
    pub(crate) incomplete: Vec<usize>,
    pub(crate) end: Option<End>,
    pub(crate) fault: Option<Fault>,
}

/// The parameters of bulk messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BulkPlan {
    /// The number of messages, of 256, that are around the threshold or above.
    pub(crate) share: u8,
    pub(crate) threshold: usize,
    pub(crate) reserve: usize,
    pub(crate) block: usize,
    pub(crate) path: BulkPath,
}

impl BulkPlan {
    fn random(rng: &mut Rng) -> BulkPlan {
        let block = 64 << rng.u32(..4);
        BulkPlan {
            share: [10, 80, 255][rng.usize(..3)],
            threshold: [0, 40, 100, 255, 600][rng.usize(..5)],
            reserve: block * [1, 2, 5, 40][rng.usize(..4)] + rng.usize(..block),
            block,
            path: if rng.bool() { BulkPath::Network } else { BulkPath::SharedMemory },
        }
    }

    /// A random length: near one of the borders, or of any number of blocks.
    pub(crate) fn length(&self, most: usize, rng: &mut Rng) -> usize {
        let near = match rng.u8(..5) {
            0 => self.threshold,
            1 => self.block * rng.usize(1..=3),
            2 => most,
            _ => rng.usize(..=most),
        };
        (near + rng.usize(..3)).saturating_sub(1).min(most)
    }
}

/// The end of a view.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) at: Duration,
    /// The members that stop at once.
    pub(crate) crashed: Vec<usize>,
    /// The members that are cut off from all others, and learn later that they were dropped.
    pub(crate) cut_off: Vec<usize>,
    /// The members that take part, and without whose counts the trim is computed: they leave, or are not complete yet.
    pub(crate) uncounted: Vec<usize>,
    /// The time within which the others wedge.
    pub(crate) wedge_within: Duration,
}

/// A broken rule, which shows that the checks notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Cleans up to the largest final `received`.
    TrimMax,
    /// Cleans up to less than the smallest one.
    TrimShort,
    /// Takes the final `received`, and goes on receiving.
    WedgeLate,
    /// Takes the version that is being written for persisted.
    TellEarly,
}

impl Plan {
    /// An ordered shard in which all members send, on a fast network.
    pub(crate) fn new(members: usize) -> Plan {
        Plan {
            members,
            senders: (0..members).collect(),
            mode: Mode::Ordered,
            ring_bytes: 1024,
            net: SimConfig::fast(),
            refused: 0,
            messages: vec![30; members],
            max_bytes: 100,
            bulk: None,
            reads: 0,
            pace: Duration::from_micros(20),
            delivery_delay: Duration::from_micros(5),
            batch: 8,
            disk_delay: Duration::from_micros(30),
            disk_room: 50,
            incomplete: Vec::new(),
            end: None,
            fault: None,
        }
    }

    /// The same shard, durable.
    pub(crate) fn durable(self) -> Plan {
        Plan { mode: Mode::Durable, ..self }
    }

    /// A random plan, of the given mode.
    pub(crate) fn random(mode: Mode, rng: &mut Rng) -> Plan {
        let members = rng.usize(2..=7);
        let mut senders: Vec<usize> = (0..members).filter(|_| rng.u8(..4) > 0).collect();
        if senders.is_empty() {
            senders.push(rng.usize(..members));
        }
        let mut net = if rng.bool() { SimConfig::fast() } else { SimConfig::nasty() };
        net.queue_depth = [2, 4, 64][rng.usize(..3)];
        let talkative = rng.usize(1..60);
        let pace = Duration::from_micros([1, 10, 100][rng.usize(..3)]);
        let (disk_delay, disk_room) = match mode {
            Mode::Durable => ([0, 10, 1000][rng.usize(..3)], [1, 5, 100][rng.usize(..3)]),
            Mode::Ordered | Mode::Unordered => (0, 0),
        };
        Plan {
            disk_delay: Duration::from_micros(disk_delay),
            disk_room,
            senders,
            mode,
            ring_bytes: 1024 << rng.u32(..3),
            net,
            refused: [0, 3, 60][rng.usize(..3)],
            messages: (0..members).map(|_| if rng.bool() { talkative } else { rng.usize(..5) }).collect(),
            max_bytes: [0, 8, 100, 256][rng.usize(..4)],
            bulk: rng.bool().then(|| BulkPlan::random(rng)),
            reads: if mode.is_ordered() { rng.usize(..20) } else { 0 },
            pace,
            delivery_delay: Duration::from_micros([0, 5, 300][rng.usize(..3)]),
            batch: rng.usize(1..10),
            ..Plan::new(members)
        }
    }

    pub(crate) fn config(&self) -> ShardConfig {
        ShardConfig {
            mode: self.mode,
            ring_bytes: self.ring_bytes,
            bulk_threshold: self.bulk.map_or(0, |bulk| bulk.threshold),
            bulk_reserve_bytes: self.bulk.map_or(0, |bulk| bulk.reserve),
            bulk_block_bytes: self.bulk.map_or(64, |bulk| bulk.block),
            bulk_path: self.bulk.map_or(BulkPath::Network, |bulk| bulk.path),
            read_lease: Duration::ZERO,
            ..ShardConfig::default()
        }
    }

    /// A random end of the view: some members are lost, and more than half stay. One member that is `complete` stays.
    pub(crate) fn random_end(&self, current: &[usize], complete: &[usize], rng: &mut Rng) -> End {
        let counted = complete[rng.usize(..complete.len())];
        let mut members: Vec<usize> = current.iter().copied().filter(|&member| member != counted).collect();
        rng.shuffle(&mut members);
        members.truncate(rng.usize(..=(current.len() - 1) / 2));
        let crashed = members.split_off(rng.usize(..=members.len()));
        let stays = |member: &usize| !members.contains(member) && !crashed.contains(member) && *member != counted;
        let mut is_uncounted = |member: &usize| !complete.contains(member) || rng.u8(..4) == 0;
        let uncounted = current.iter().copied().filter(stays).filter(|member| is_uncounted(member)).collect();
        let span = Duration::from_micros(500).max(self.pace * 40);
        End {
            at: Duration::from_micros(20) + within(rng, span),
            crashed,
            cut_off: members,
            uncounted,
            wedge_within: Duration::from_micros([1, 20, 2000][rng.usize(..3)]),
        }
    }
}

/// A plan whose view ends while all members are busy.
pub(crate) fn ending(mode: Mode, rng: &mut Rng) -> Plan {
    let mut plan = Plan::random(mode, rng);
    // There are always more messages to send when the view ends.
    plan.messages = plan.messages.iter().map(|messages| messages * 20).collect();
    plan.reads *= 20;
    let all: Vec<usize> = (0..plan.members).collect();
    plan.end = Some(plan.random_end(&all, &all, rng));
    plan
}
