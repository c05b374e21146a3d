//! What the simulated network is like.

use std::time::Duration;

use crate::NodeId;

/// The properties of a simulated network, the same for every node unless a [link](super::Link) overrides them.
///
/// All chances are probabilities in `0.0..=1.0`. A random time is uniform between zero and the given one.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// What a node's interface carries in each direction at the same time, in bytes per second.
    pub bytes_per_s: u64,
    /// Operations up to this size pass between the packets of larger ones, as a NIC that serves its queue pairs in turn
    /// lets them; larger ones wait for each other. In bytes.
    pub packet_bytes: usize,
    /// Larger writes and sends pass each interface, uplink and slow link in segments of this size, in bytes, and those that
    /// meet there take turns: they share its rate, as the packets of several queue pairs do. At least
    /// [`packet_bytes`](SimConfig::packet_bytes). Off at 0: an operation then has all ports on its way reserved in one piece
    /// as it is sent, which costs fewer events, but keeps others from gaps before it.
    pub segment_bytes: usize,
    /// From one interface to another, without queueing.
    pub latency: Duration,
    /// A random time on top of the latency, drawn for each operation.
    pub jitter: Duration,
    /// A rare, large delay of one operation (and so of all that follow it on its endpoint): up to this.
    pub rare_delay: Duration,
    /// How often an operation meets [`rare_delay`](SimConfig::rare_delay).
    pub rare_delay_chance: f64,
    /// Racks whose uplinks the nodes share; none for a network that blocks nowhere.
    pub racks: Option<Racks>,
    /// How many writes, reads and sends an endpoint may have outstanding.
    pub queue_depth: usize,
    /// How many receives an endpoint may have outstanding; [`MIN_RECV_DEPTH`](crate::MIN_RECV_DEPTH) where this is less.
    pub recv_depth: usize,
    /// An endpoint whose peer can't be reached, or is dead, breaks within this time.
    pub failure_timeout: Duration,
    /// The time that a node takes for each connection that it sets up, one after the other: what handshakes cost on a host that has
    /// little of it.
    pub connect_time: Duration,
    /// How often the bytes of one operation land in two to four pieces, in random order.
    pub split_chance: f64,
    /// The time between two pieces: random, up to this.
    pub split_gap: Duration,
    /// How often posted work waits for the next poll before it goes out, rather than going out at once.
    pub lazy_chance: f64,
    /// How often a region's bytes are all fetched at the post, and how often some words are fetched then and some later
    /// (so at most 0.5). In the remaining cases, and always for more than [`packet_bytes`](SimConfig::packet_bytes), they
    /// are fetched as they land.
    pub early_fetch_chance: f64,
    /// How often work whose bytes were fetched at the post completes locally before it lands at the target.
    pub early_done_chance: f64,
    /// A node hears of what happened at once in half of the cases, else after a random time up to this.
    pub notice_delay: Duration,
    /// How often an event also wakes a node that it does not concern.
    pub spurious_chance: f64,
    /// For showing that a check bites: a guarantee that the network breaks.
    #[doc(hidden)]
    pub sabotage: Option<Sabotage>,
}

/// Racks of nodes below switches with oversubscribed uplinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Racks {
    /// Nodes `0..nodes_per_rack` are the first rack, and so on.
    pub nodes_per_rack: u32,
    /// What all nodes of a rack share towards the other racks, in each direction, in bytes per second.
    pub uplink_bytes_per_s: u64,
}

impl Racks {
    /// The rack that a node stands in.
    pub(super) fn of(self, node: NodeId) -> u32 {
        node.0 / self.nodes_per_rack.max(1)
    }
}

impl SimConfig {
    /// A small cluster on a fast network that does the worst that the contract permits. The default for tests.
    pub fn fast() -> SimConfig {
        SimConfig {
            bytes_per_s: 12_500_000_000,
            packet_bytes: 4096,
            segment_bytes: 0,
            latency: Duration::from_micros(2),
            jitter: Duration::from_micros(3),
            rare_delay: Duration::from_millis(1),
            rare_delay_chance: 0.002,
            racks: None,
            queue_depth: 64,
            recv_depth: 1024,
            failure_timeout: Duration::from_millis(20),
            connect_time: Duration::ZERO,
            split_chance: 0.1,
            split_gap: Duration::from_micros(2),
            lazy_chance: 0.1,
            early_fetch_chance: 0.35,
            early_done_chance: 0.5,
            notice_delay: Duration::from_micros(2),
            spurious_chance: 0.01,
            sabotage: None,
        }
    }

    /// A network that is only as slow as its rates and latency say, for measurements: nothing is split or delayed.
    pub fn ideal(bytes_per_s: u64, latency: Duration) -> SimConfig {
        SimConfig {
            bytes_per_s,
            latency,
            jitter: Duration::ZERO,
            rare_delay: Duration::ZERO,
            rare_delay_chance: 0.0,
            split_chance: 0.0,
            split_gap: Duration::ZERO,
            lazy_chance: 0.0,
            early_fetch_chance: 0.0,
            early_done_chance: 0.0,
            notice_delay: Duration::ZERO,
            spurious_chance: 0.0,
            ..SimConfig::fast()
        }
    }

    /// As bad as it gets: [`fast`](SimConfig::fast), with every operation split and shallow queues.
    pub fn nasty() -> SimConfig {
        SimConfig {
            queue_depth: 4,
            split_chance: 1.0,
            rare_delay_chance: 0.05,
            lazy_chance: 0.5,
            spurious_chance: 0.1,
            ..SimConfig::fast()
        }
    }
}

/// A guarantee that the network breaks: for showing that a check bites.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// G1: an operation overtakes the one before it on its endpoint.
    Overtake,
    /// G1: a read is served before the writes that precede it.
    EarlyRead,
    /// G1: the announcing word lands before the bytes.
    WordFirst,
    /// G2: a word in polled memory lands in two halves.
    TornWord,
    /// G2: inline bytes are staged in one buffer per endpoint, that the next post overwrites.
    StaleInline,
    /// G3: a receive completes before its bytes are in place.
    EarlyReceive,
    /// G3: a receive completes twice.
    DoubleReceive,
    /// G3: the newest receive is not in force before another is posted.
    NewestReceiveWaits,
    /// G3: an endpoint has room for three receives.
    FewReceives,
    /// G3: a message without a receive vanishes, and breaks nothing.
    IgnoreNotReady,
    /// G3: a message longer than its receive is cut, and breaks nothing.
    CutMessage,
    /// G3: receives that were posted before the first poll come into force with `Connected` only.
    LateReceives,
    /// G4: success is reported before the bytes are fetched.
    FetchAfterDone,
    /// G4: completions of one endpoint are reported out of order.
    DoneOutOfOrder,
    /// G5: the other side does not learn of a break.
    SilentBreak,
    /// G5: a break is reported twice.
    BreakTwice,
    /// G5: outstanding work is not flushed.
    NoFlush,
    /// G5: work is flushed after the break was reported.
    LateFlush,
    /// G5: a partition goes unnoticed.
    NoTimeout,
    /// G6: what a peer had posted lands after this side has disconnected.
    LateWrite,
    /// G6: what a side leaves behind when it closes fetches its bytes later.
    FetchAfterClose,
    /// G6: an endpoint reaches regions that only another endpoint of the node exposes.
    AnyRegion,
    /// G7: a wrong key reaches the first region.
    KeyUnchecked,
    /// G7: what lies outside of the region is cut off, and the rest lands.
    BoundsCut,
    /// G7: a wrong access harms nothing, and breaks nothing.
    AccessIgnored,
    /// A post beyond the queue's depth is dropped.
    DropWhenFull,
    /// `Room` is not reported.
    NoRoom,
    /// The peer's regions come in another order.
    ShuffledRegions,
    /// The peer's private data is lost.
    NoHello,
    /// Unsignaled work is reported.
    SignalAll,
    /// What happened before a disconnect is reported after it.
    ReportAfterDisconnect,
    /// Two endpoints with one tag.
    TagShared,
    /// Connections meet whatever their tags.
    TagsIgnored,
    /// A tag stays in use when its connection has ended.
    TagKept,
    /// `connect` does not wait for a peer that comes later.
    ConnectOnce,
    /// What lands before the target's node has heard of the connection is lost.
    EarlyWriteLost,
    /// Receives are used last first.
    LastReceiveFirst,
    /// Of inline bytes, only the first 64 are taken.
    ShortInline,
    /// A read is reported before its bytes are in place.
    EarlyReadDone,
    /// What meets a partition is lost.
    CutLoses,
    /// Posts are not checked.
    PostsUnchecked,
    /// Sizes of regions are not checked.
    SizesUnchecked,
    /// A graph's requests do not wait for others.
    GraphUnordered,
    /// A graph is reported as done before its last request is.
    GraphEarly,
    /// A graph is reported as done twice.
    GraphTwice,
    /// A graph whose endpoint is gone is not reported.
    GraphLost,
    /// A graph's request that finds its queue full is dropped.
    GraphDrops,
    /// A graph's requests are reported.
    GraphTells,
}

impl Sabotage {
    /// All of them.
    pub const ALL: [Sabotage; 48] = {
        use Sabotage::*;
        [
            Overtake,
            EarlyRead,
            WordFirst,
            TornWord,
            StaleInline,
            EarlyReceive,
            DoubleReceive,
            NewestReceiveWaits,
            FewReceives,
            IgnoreNotReady,
            CutMessage,
            LateReceives,
            FetchAfterDone,
            DoneOutOfOrder,
            SilentBreak,
            BreakTwice,
            NoFlush,
            LateFlush,
            NoTimeout,
            LateWrite,
            FetchAfterClose,
            AnyRegion,
            KeyUnchecked,
            BoundsCut,
            AccessIgnored,
            DropWhenFull,
            NoRoom,
            ShuffledRegions,
            NoHello,
            SignalAll,
            ReportAfterDisconnect,
            TagShared,
            TagsIgnored,
            TagKept,
            ConnectOnce,
            EarlyWriteLost,
            LastReceiveFirst,
            ShortInline,
            EarlyReadDone,
            CutLoses,
            PostsUnchecked,
            SizesUnchecked,
            GraphUnordered,
            GraphEarly,
            GraphTwice,
            GraphLost,
            GraphDrops,
            GraphTells,
        ]
    };
}
