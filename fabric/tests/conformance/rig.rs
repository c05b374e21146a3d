//! The nodes of a scenario: every call goes through a [`Monitor`].

use std::time::Duration;

use fastrand::Rng;
use squall_fabric::{
    BreakReason, Completion, EndpointId, GraphError, GraphFailure, GroupTag, NodeId, Op, PostError, Region, RegionKind,
    RemoteRegion, Slice, Source, Target, Time, Token, WorkGraph,
};

use crate::{
    monitor::{Endpoint, Monitor},
    testbed::{Capabilities, Testbed},
};

/// A scenario's verdict; the sentence names the guarantee that was broken, and the sign of it.
pub(crate) type Verdict = Result<(), String>;

/// Fails the scenario with a sentence unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($sentence:tt)+) => {
        if !$condition {
            return Err(format!($($sentence)+));
        }
    };
}
pub(crate) use ensure;

/// A connection between two nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pair {
    /// The nodes.
    pub(crate) nodes: [usize; 2],
    /// Each node's endpoint.
    pub(crate) ends: Vec<EndpointId>,
    /// The regions that each node may reach at the other.
    pub(crate) remote: [Vec<RemoteRegion>; 2],
}

impl Pair {
    /// A place in the region that node `from` sees at position `region` of the other's list.
    pub(crate) fn at(&self, from: usize, region: usize, offset: usize) -> Target {
        Target { region: self.remote[from][region].key, offset }
    }
}

pub(crate) struct Rig<'a> {
    bed: &'a mut dyn Testbed,
    pub(crate) rng: Rng,
    monitors: Vec<Monitor>,
    alive: [bool; 3],
    tokens: u64,
    /// A node that is seldom polled.
    slow: Option<usize>,
}

/// A tag for the `group`-th connection of a scenario.
pub(crate) fn tag(group: u32) -> GroupTag {
    GroupTag { layer: 9, group, epoch: 1 }
}

pub(crate) fn inline(bytes: &[u8]) -> Source<'_> {
    Source::Inline(bytes)
}

pub(crate) fn slice(region: &Region, offset: usize, len: usize) -> Slice<'_> {
    Slice { region, offset, len }
}

/// All bytes of a region.
pub(crate) fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes);
    bytes
}

impl<'a> Rig<'a> {
    pub(crate) fn new(bed: &'a mut dyn Testbed) -> Rig<'a> {
        let rng = Rng::with_seed(bed.seed());
        let monitors = (0..3).map(|_| Monitor::default()).collect();
        Rig { bed, rng, monitors, alive: [true; 3], tokens: 0, slow: None }
    }

    pub(crate) fn can(&self) -> Capabilities {
        self.bed.can()
    }

    pub(crate) fn now(&self) -> Time {
        self.bed.now()
    }

    /// A token that no other work has.
    pub(crate) fn token(&mut self) -> Token {
        self.tokens += 1;
        Token(self.tokens)
    }

    pub(crate) fn region(&mut self, node: usize, kind: RegionKind, bytes: usize) -> Result<Region, String> {
        self.bed.fabric(node).register(kind, bytes).map_err(|e| format!("registering {bytes} bytes: {e}"))
    }

    pub(crate) fn connect(
        &mut self,
        node: usize,
        peer: usize,
        tag: GroupTag,
        expose: &[Region],
        hello: &[u8],
    ) -> Result<EndpointId, String> {
        let e = self.bed.fabric(node).connect(NodeId(peer as u32), tag, expose, hello);
        self.monitors[node].on_connect(e)?;
        Ok(e)
    }

    pub(crate) fn disconnect(&mut self, node: usize, e: EndpointId) {
        self.bed.fabric(node).disconnect(e);
        self.monitors[node].on_disconnect(e);
    }

    /// Posts, and tells the monitor.
    pub(crate) fn try_post(
        &mut self,
        node: usize,
        e: EndpointId,
        op: Op<'_>,
        token: Token,
    ) -> Result<Result<(), PostError>, String> {
        let result = self.bed.fabric(node).post(e, op, token);
        self.monitors[node].on_post(e, &op, token, result)?;
        Ok(result)
    }

    /// Posts, and waits while the queue is full.
    pub(crate) fn post(&mut self, node: usize, e: EndpointId, op: Op<'_>, token: Token) -> Verdict {
        loop {
            let rooms = self.monitors[node].endpoint(e).rooms;
            match self.try_post(node, e, op, token)? {
                Ok(()) => return Ok(()),
                Err(PostError::Full) => {
                    self.until("room in a full queue", |rig| Ok(rig.endpoint(node, e).rooms > rooms))?;
                }
                Err(other) => return Err(format!("{op:?} could not be posted: {other}")),
            }
        }
    }

    /// Writes a few bytes, unsignaled.
    pub(crate) fn write(&mut self, node: usize, e: EndpointId, bytes: &[u8], target: Target) -> Verdict {
        self.post(node, e, Op::Write { source: inline(bytes), target }, Token::UNSIGNALED)
    }

    /// Posts signaled work.
    pub(crate) fn post_signaled(&mut self, node: usize, e: EndpointId, op: Op<'_>) -> Result<Token, String> {
        let token = self.token();
        self.post(node, e, op, token)?;
        Ok(token)
    }

    /// Posts a graph, and tells the monitor.
    pub(crate) fn try_post_graph(&mut self, node: usize, graph: WorkGraph) -> Result<Token, GraphError> {
        let token = self.token();
        self.bed.fabric(node).post_graph(graph, token)?;
        self.monitors[node].on_graph(token);
        Ok(token)
    }

    pub(crate) fn post_graph(&mut self, node: usize, graph: WorkGraph) -> Result<Token, String> {
        self.try_post_graph(node, graph).map_err(|error| format!("a graph was refused: {error}"))
    }

    /// The end of a graph, if it has ended.
    pub(crate) fn graph(&self, node: usize, token: Token) -> Option<Result<(), GraphFailure>> {
        self.monitors[node].graph(token)
    }

    /// Waits for a graph's end, which must be a success.
    pub(crate) fn graph_done(&mut self, node: usize, token: Token) -> Verdict {
        self.until("a graph's end", |rig| Ok(rig.graph(node, token).is_some()))?;
        let end = self.graph(node, token);
        ensure!(end == Some(Ok(())), "the graph ended as {end:?}");
        Ok(())
    }

    pub(crate) fn endpoint(&self, node: usize, e: EndpointId) -> &Endpoint {
        self.monitors[node].endpoint(e)
    }

    pub(crate) fn broken(&self, node: usize, e: EndpointId) -> Option<BreakReason> {
        self.endpoint(node, e).broken.clone()
    }

    pub(crate) fn poll(&mut self, node: usize) -> Verdict {
        if !self.alive[node] {
            return Ok(());
        }
        let now = self.bed.now();
        let mut completions: Vec<Completion> = Vec::new();
        self.bed.fabric(node).poll(now, &mut completions);
        completions.iter().try_for_each(|completion| self.monitors[node].on_completion(completion))
    }

    /// Has steps seldom poll this node from now on.
    pub(crate) fn slow_down(&mut self, node: usize) {
        self.slow = Some(node);
    }

    /// Lets something happen, and polls the nodes that have something to look at.
    pub(crate) fn step(&mut self) -> Verdict {
        let mut ready = Vec::new();
        self.bed.step(&mut ready);
        let slow = self.slow;
        ready.retain(|node| slow != Some(*node));
        ready.extend(slow.filter(|_| self.rng.u8(..16) == 0));
        ready.into_iter().try_for_each(|node| self.poll(node))
    }

    /// Lets something happen without a poll.
    pub(crate) fn idle(&mut self) {
        self.bed.step(&mut Vec::new());
    }

    /// Steps until the condition holds, which is looked at after each step.
    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Rig<'a>) -> Result<bool, String>) -> Verdict {
        let limit = self.now() + self.can().patience;
        for node in (0..3).filter(|node| self.slow != Some(*node)).collect::<Vec<_>>() {
            self.poll(node)?;
        }
        while !holds(self)? {
            ensure!(self.now() < limit, "waited in vain for {what}");
            self.step()?;
        }
        Ok(())
    }

    /// Steps for some time; the condition must hold after each step.
    pub(crate) fn throughout(&mut self, time: Duration, mut check: impl FnMut(&mut Rig<'a>) -> Verdict) -> Verdict {
        let limit = self.now() + time;
        while self.now() < limit {
            self.step()?;
            check(self)?;
        }
        Ok(())
    }

    /// Steps until all posted work has happened.
    pub(crate) fn settle(&mut self) -> Verdict {
        for node in 0..3 {
            self.poll(node)?;
        }
        self.throughout(self.can().settled, |_| Ok(()))
    }

    /// Has both nodes call `connect`; nothing is polled yet.
    pub(crate) fn open(&mut self, nodes: [usize; 2], tag: GroupTag, expose: [&[Region]; 2]) -> Result<Pair, String> {
        let [a, b] = nodes;
        let ends = vec![self.connect(a, b, tag, expose[0], b"")?, self.connect(b, a, tag, expose[1], b"")?];
        Ok(Pair { nodes, ends, remote: Default::default() })
    }

    /// Waits until both sides are connected.
    pub(crate) fn up(&mut self, pair: &mut Pair) -> Verdict {
        for side in 0..2 {
            let (node, e) = (pair.nodes[side], pair.ends[side]);
            self.until("a connection", |rig| Ok(rig.endpoint(node, e).connected.is_some()))?;
            if let Some((remote, _)) = &self.endpoint(node, e).connected {
                pair.remote[side] = remote.clone();
            }
        }
        Ok(())
    }

    /// Nodes 0 and 1, connected; node 1 exposes `regions`.
    pub(crate) fn pair(&mut self, regions: &[Region]) -> Result<Pair, String> {
        let group = self.rng.u32(..);
        let mut pair = self.open([0, 1], tag(group), [&[], regions])?;
        self.up(&mut pair)?;
        Ok(pair)
    }

    /// Waits until signaled work is done.
    pub(crate) fn done(&mut self, node: usize, e: EndpointId, token: Token) -> Verdict {
        self.until("a local completion", |rig| Ok(rig.endpoint(node, e).done.contains(&token)))
    }

    /// Waits until an endpoint has received `count` messages.
    pub(crate) fn received(&mut self, node: usize, e: EndpointId, count: usize) -> Verdict {
        self.until("a message", |rig| Ok(rig.endpoint(node, e).received.len() >= count))
    }

    /// Waits until both sides of a connection are broken for `reason`.
    pub(crate) fn both_broken(&mut self, pair: &Pair, reason: &BreakReason) -> Verdict {
        for (&node, &e) in pair.nodes.iter().zip(&pair.ends) {
            self.until("a break", |rig| Ok(rig.broken(node, e).is_some()))?;
            let why = self.broken(node, e);
            ensure!(why.as_ref() == Some(reason), "node {node} lost its peer as {why:?} instead of {reason:?}");
        }
        Ok(())
    }

    pub(crate) fn kill(&mut self, node: usize) {
        self.alive[node] = false;
        self.bed.kill(node);
    }

    pub(crate) fn cut(&mut self, a: usize, b: usize) {
        self.bed.cut(a, b);
    }

    pub(crate) fn heal(&mut self, a: usize, b: usize) {
        self.bed.heal(a, b);
    }
}
