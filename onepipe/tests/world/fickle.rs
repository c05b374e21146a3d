//! A fabric that refuses posts now and then; the next post may succeed.

use std::time::Duration;

use squall_fabric::{
    Completion, EndpointId, Fabric, GroupTag, NodeId, Op, PostError, Region, RegionKind, RegisterError, Time, Token,
    hostile::{HostileFabric, Hostility},
    sim::SimFabric,
};

pub(crate) struct Fickle {
    fabric: HostileFabric<SimFabric>,
    random: fastrand::Rng,
    /// The number of posts of which one is refused; none is at 0.
    one_in: u32,
    /// The endpoints that owe a completion for room.
    refused: Vec<EndpointId>,
}

impl Fickle {
    pub(crate) fn new(fabric: SimFabric, seed: u64, one_in: u32) -> Fickle {
        let random = fastrand::Rng::with_seed(seed ^ u64::from(fabric.node().0));
        Fickle { fabric: HostileFabric::new(fabric), random, one_in, refused: Vec::new() }
    }

    /// Lets the node lie to others from now on.
    pub(crate) fn lie(&mut self, now: Time) {
        let seed = self.random.u64(..);
        self.fabric.turn(Hostility::Lies, now, Duration::from_micros(100), seed);
    }

    /// Whether a poll has something to report that the network does not know of.
    pub(crate) fn is_owing(&self) -> bool {
        !self.refused.is_empty()
    }
}

// SAFETY: it calls a fabric that promises the same.
unsafe impl Fabric for Fickle {
    fn node(&self) -> NodeId {
        self.fabric.node()
    }

    fn register(&mut self, kind: RegionKind, bytes: usize) -> Result<Region, RegisterError> {
        self.fabric.register(kind, bytes)
    }

    fn connect(&mut self, peer: NodeId, tag: GroupTag, expose: &[Region], hello: &[u8]) -> EndpointId {
        self.fabric.connect(peer, tag, expose, hello)
    }

    fn disconnect(&mut self, on: EndpointId) {
        self.refused.retain(|&refused| refused != on);
        self.fabric.disconnect(on);
    }

    fn post(&mut self, on: EndpointId, op: Op<'_>, token: Token) -> Result<(), PostError> {
        if self.one_in > 0 && self.random.u32(..self.one_in) == 0 {
            if !self.refused.contains(&on) {
                self.refused.push(on);
            }
            return Err(PostError::Full);
        }
        self.fabric.post(on, op, token)
    }

    fn poll(&mut self, now: Time, out: &mut Vec<Completion>) {
        out.extend(self.refused.drain(..).map(|endpoint| Completion::Room { endpoint }));
        self.fabric.poll(now, out);
    }
}
