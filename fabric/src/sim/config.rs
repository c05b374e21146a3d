//! The settings of the simulated network.

use std::time::Duration;

use crate::NodeId;

/// The properties of a simulated network, the same for every node unless those of a [link](super::LinkProperties)
/// override them.
///
/// All chances are probabilities in `0.0..=1.0`. A random time is uniform between zero and the given one.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// The rate of a node's interface in each direction at the same time, in bytes per second.
    pub bytes_per_s: u64,
    /// The size up to which operations pass between the packets of larger ones, in bytes. A NIC that serves its queue
    /// pairs in turn lets them pass; larger ones wait for each other.
    pub packet_bytes: usize,
    /// The size of the segments in which larger writes and sends pass each interface, uplink and slow link, in bytes.
    ///
    /// Operations that meet there take turns: they share its rate, as the packets of several queue pairs do. It is at
    /// least [`packet_bytes`](SimConfig::packet_bytes). 0 turns it off: an operation then has all ports on its way
    /// reserved in one piece as it is sent, which costs fewer events, but keeps others from gaps before it.
    pub segment_bytes: usize,
    /// The time from one interface to another, without queueing.
    pub latency: Duration,
    /// A random time on top of the latency, drawn for each operation.
    pub jitter: Duration,
    /// The limit of a rare, large, random delay of one operation (and so of all that follow it on its endpoint).
    pub rare_delay: Duration,
    /// The chance that an operation meets [`rare_delay`](SimConfig::rare_delay).
    pub rare_delay_chance: f64,
    /// Racks whose uplinks the nodes share; none for a network that blocks nowhere.
    pub racks: Option<Racks>,
    /// The number of writes, reads and sends that an endpoint may have outstanding.
    pub queue_depth: usize,
    /// The number of receives that an endpoint may have outstanding; [`MIN_RECV_DEPTH`](crate::MIN_RECV_DEPTH) where
    /// this is less.
    pub recv_depth: usize,
    /// The time within which an endpoint breaks whose peer can't be reached, or is dead.
    pub failure_timeout: Duration,
    /// The time that a node takes for each connection that it sets up, one after the other: the cost of handshakes on a
    /// host with little processor time.
    pub connect_time: Duration,
    /// The chance that the bytes of one operation land in two to four pieces, in random order.
    pub split_chance: f64,
    /// The limit of the random time between two pieces.
    pub split_gap: Duration,
    /// The chance that posted work waits for the next poll before it goes out, rather than going out at once.
    pub lazy_chance: f64,
    /// The chance that a region's bytes are all fetched at the post, and again that some words are fetched then and
    /// some later (so it is at most 0.5). In the remaining cases, and always for more than
    /// [`packet_bytes`](SimConfig::packet_bytes), they are fetched as they land.
    pub early_fetch_chance: f64,
    /// The chance that work whose bytes were fetched at the post completes locally before it lands at the target.
    pub early_done_chance: f64,
    /// The limit of the random time after which a node hears of events; in half of the cases it hears of them at once.
    pub notice_delay: Duration,
    /// The chance that an event also wakes a node that it does not concern.
    pub spurious_chance: f64,
    /// A guarantee that the network breaks, for showing that a check bites.
    #[doc(hidden)]
    pub sabotage: Option<Sabotage>,
}

/// Racks of nodes below switches with oversubscribed uplinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Racks {
    /// Nodes `0..nodes_per_rack` are the first rack, and so on.
    pub nodes_per_rack: u32,
    /// The rate that all nodes of a rack share towards the other racks, in each direction, in bytes per second.
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

    /// A network that is no slower than its rates and latency, for measurements: nothing is split or delayed.
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

    /// A network at its worst: [`fast`](SimConfig::fast), with every operation split and shallow queues.
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

/// Declares an enumeration, and lists its variants.
macro_rules! listed {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident,)* }) => {
        $(#[$meta])*
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// All of these.
            pub const ALL: [$name; [$($name::$variant),*].len()] = [$($name::$variant),*];
        }
    };
}

listed! {
    /// A guarantee that the network breaks, for showing that a check bites.
    #[doc(hidden)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Sabotage {
        /// G1: an operation overtakes the one before it on its endpoint.
        Overtake,
        /// G1: a read is served before the writes that precede it.
        EarlyRead,
        /// G1: the announcing word lands before the bytes.
        WordFirst,
        /// G2: a word in polled memory lands in two halves.
        TornWord,
        /// G2: inline bytes are staged in one buffer per endpoint, which the next post overwrites.
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
        /// G6: work that a peer had posted lands after this side has disconnected.
        LateWrite,
        /// G6: work that a side leaves behind when it closes fetches its bytes later.
        FetchAfterClose,
        /// G6: an endpoint reaches regions that only another endpoint of the node exposes.
        AnyRegion,
        /// G7: a wrong key reaches the first region.
        KeyUnchecked,
        /// G7: bytes outside of the region are cut off, and the rest lands.
        BoundsCut,
        /// G7: a peer writes a lent region.
        LentWritable,
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
        /// Events before a disconnect are reported after it.
        ReportAfterDisconnect,
        /// Two endpoints have one tag.
        TagShared,
        /// Connections meet whatever their tags.
        TagsIgnored,
        /// A tag stays in use when its connection has ended.
        TagKept,
        /// `connect` does not wait for a peer that comes later.
        ConnectOnce,
        /// Operations that land before the target's node has heard of the connection are lost.
        EarlyWriteLost,
        /// Receives are used last first.
        LastReceiveFirst,
        /// A limit by which only the first 64 of inline bytes are taken.
        ShortInline,
        /// A read is reported before its bytes are in place.
        EarlyReadDone,
        /// An operation that meets a partition is lost.
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
}
