//! The time that bytes take: interfaces, uplinks, slow links, and partitions.

use std::{collections::BTreeMap, time::Duration};

use super::{config::SimConfig, queue::NodeIx};
use crate::{NodeId, Time};

/// The properties of one direction between two nodes, where it differs from the [configuration](SimConfig).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkProperties {
    /// Its rate in bytes per second, if it is slower than the interfaces.
    pub bytes_per_s: Option<u64>,
    /// Its latency.
    pub latency: Option<Duration>,
}

/// A device that carries bytes at a fixed rate, one operation after the other.
#[derive(Clone, Copy, Debug)]
struct Port {
    bytes_per_s: u64,
    free_at: u64,
}

impl Port {
    fn new(bytes_per_s: u64) -> Port {
        Port { bytes_per_s: bytes_per_s.max(1), free_at: 0 }
    }

    /// The nanoseconds that `bytes` take.
    fn duration(&self, bytes: usize) -> u64 {
        (bytes as u128 * 1_000_000_000).div_ceil(self.bytes_per_s as u128) as u64
    }

    /// Carries `bytes` of which the first comes at `from`. Returns the times at which it starts, and at which the last
    /// byte is through.
    fn carry(&mut self, from: u64, bytes: usize) -> (u64, u64) {
        let start = self.free_at.max(from);
        self.free_at = start + self.duration(bytes);
        (start, self.free_at)
    }

    /// Carries `bytes` between the packets of others, which it delays.
    fn squeeze(&mut self, from: u64, bytes: usize) -> u64 {
        let duration = self.duration(bytes);
        self.free_at = self.free_at.max(from) + duration;
        duration
    }
}

#[derive(Debug)]
struct LinkState {
    port: Option<Port>,
    latency: Option<u64>,
    /// The number of the partition that cuts it.
    cut: Option<u64>,
}

/// The times of an operation that is sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Passage {
    /// The time from which the next large operation of the same endpoint may go.
    pub(super) clear: Time,
    /// The time at which the last byte is at the target's interface.
    pub(super) arrive: Time,
}

/// The times of a segment in a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entered {
    /// The time at which its first byte is through, and comes to the next port.
    pub(super) begun: Time,
    /// The time at which its last byte is through, in nanoseconds.
    pub(super) end: u64,
    /// The latency of the whole way, in nanoseconds.
    pub(super) latency: u64,
    /// Whether there is no further port.
    pub(super) last: bool,
}

#[derive(Debug, Default)]
pub(super) struct Network {
    /// Each node's interface: the port that it sends through, and the port that it receives through.
    ports: Vec<(NodeId, Port, Port)>,
    /// The port out of each rack.
    uplinks: BTreeMap<u32, Port>,
    /// The port into each rack.
    downlinks: BTreeMap<u32, Port>,
    links: BTreeMap<(NodeId, NodeId), LinkState>,
    /// The number of directions that are cut now.
    cuts: usize,
    partitions: u64,
}

impl Network {
    pub(super) fn add_node(&mut self, node: NodeId, config: &SimConfig) {
        let port = Port::new(config.bytes_per_s);
        self.ports.push((node, port, port));
        if let Some(racks) = config.racks {
            let port = Port::new(racks.uplink_bytes_per_s);
            self.uplinks.entry(racks.of(node)).or_insert(port);
            self.downlinks.entry(racks.of(node)).or_insert(port);
        }
    }

    /// The latency of a link, if it has one of its own.
    pub(super) fn latency(&self, from: NodeId, to: NodeId) -> Option<Duration> {
        self.links.get(&(from, to)).and_then(|link| link.latency).map(Duration::from_nanos)
    }

    /// The ports on the way, in order, and the latency in nanoseconds.
    fn way(&mut self, from: NodeIx, to: NodeIx, config: &SimConfig) -> ([Option<&mut Port>; 5], u64) {
        let [from, to] = self.ports.get_disjoint_mut([from as usize, to as usize]).expect("two different nodes");
        let link = if self.links.is_empty() { None } else { self.links.get_mut(&(from.0, to.0)) };
        let latency = link.as_ref().and_then(|l| l.latency).unwrap_or(config.latency.as_nanos() as u64);
        let (mut up, mut down) = (None, None);
        if let Some(racks) = config.racks.filter(|racks| racks.of(from.0) != racks.of(to.0)) {
            up = self.uplinks.get_mut(&racks.of(from.0));
            down = self.downlinks.get_mut(&racks.of(to.0));
        }
        ([Some(&mut from.1), up, link.and_then(|l| l.port.as_mut()), down, Some(&mut to.2)], latency)
    }

    /// Sends `bytes`: every port on the way passes the first byte on as it comes, so the slowest decides.
    pub(super) fn send(&mut self, now: Time, from: NodeIx, to: NodeIx, bytes: usize, config: &SimConfig) -> Passage {
        let (way, latency) = self.way(from, to, config);
        let now = now.as_nanos();
        let through = way.into_iter().flatten();
        let clear = if bytes <= config.packet_bytes {
            now + through.map(|port| port.squeeze(now, bytes)).max().unwrap_or(0)
        } else {
            let mut start = now;
            through.fold(now, |clear, port| {
                let (begun, end) = port.carry(start, bytes);
                start = begun;
                clear.max(end)
            })
        };
        Passage { clear: Time::from_nanos(clear), arrive: Time::from_nanos(clear + latency) }
    }

    /// Lets a segment of `bytes` into the port number `hop` of its way, at the end of that port's queue.
    pub(super) fn enter(
        &mut self,
        now: Time,
        (from, to): (NodeIx, NodeIx),
        hop: usize,
        bytes: usize,
        config: &SimConfig,
    ) -> Entered {
        let (way, latency) = self.way(from, to, config);
        let mut rest = way.into_iter().flatten().skip(hop);
        let (begun, end) =
            rest.next().map_or((now.as_nanos(), now.as_nanos()), |port| port.carry(now.as_nanos(), bytes));
        Entered { begun: Time::from_nanos(begun), end, latency, last: rest.next().is_none() }
    }

    pub(super) fn set_link(&mut self, from: NodeId, to: NodeId, link: LinkProperties) {
        let state = self.link(from, to);
        state.port = link.bytes_per_s.map(Port::new);
        state.latency = link.latency.map(|l| l.as_nanos() as u64);
    }

    fn link(&mut self, from: NodeId, to: NodeId) -> &mut LinkState {
        self.links.entry((from, to)).or_insert(LinkState { port: None, latency: None, cut: None })
    }

    /// Cuts one direction. Returns the partition's number, unless it is cut already.
    pub(super) fn cut(&mut self, from: NodeId, to: NodeId) -> Option<u64> {
        let number = self.partitions + 1;
        let link = self.link(from, to);
        if link.cut.is_some() {
            return None;
        }
        link.cut = Some(number);
        self.partitions = number;
        self.cuts += 1;
        Some(number)
    }

    /// Heals one direction. Returns whether it was cut.
    pub(super) fn heal(&mut self, from: NodeId, to: NodeId) -> bool {
        let healed = self.links.get_mut(&(from, to)).is_some_and(|link| link.cut.take().is_some());
        self.cuts -= usize::from(healed);
        healed
    }

    /// The number of the partition that cuts this direction.
    #[inline]
    pub(super) fn is_cut(&self, from: NodeId, to: NodeId) -> Option<u64> {
        if self.cuts == 0 {
            return None;
        }
        self.links.get(&(from, to))?.cut
    }

    /// The number of a partition that cuts either direction.
    pub(super) fn is_parted(&self, a: NodeId, b: NodeId) -> Option<u64> {
        self.is_cut(a, b).or(self.is_cut(b, a))
    }
}
