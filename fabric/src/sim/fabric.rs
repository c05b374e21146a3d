//! A node's attachment to the simulated network.

use std::{
    cell::{RefCell, RefMut},
    rc::Rc,
};

use super::{
    config::Sabotage,
    endpoint::{Side, SideState, WorkKind},
    payload::Payload,
    queue::NodeIx,
    world::World,
};
use crate::{
    Completion, EndpointId, Fabric, GraphError, GroupTag, MIN_RECV_DEPTH, NodeId, Op, PostError, Region, RegionKey,
    RegionKind, RegisterError, Slice, Source, Time, Token, WorkGraph,
    check::{check_op, check_range, check_size},
    recvs::Recv,
};

/// A node's attachment to a [`SimNet`](super::SimNet): one life of its process.
///
/// After the node has crashed this does nothing: posts give [`PostError::Broken`], and polls report nothing.
#[derive(derive_more::Debug)]
#[debug("SimFabric({node}, incarnation {incarnation})")]
pub struct SimFabric {
    world: Rc<RefCell<World>>,
    node: NodeId,
    ix: NodeIx,
    incarnation: u64,
}

impl SimFabric {
    pub(super) fn new(world: Rc<RefCell<World>>, ix: NodeIx) -> SimFabric {
        let (node, incarnation) = {
            let mut world = world.borrow_mut();
            let node = world.node(ix);
            (node.id, node.incarnation)
        };
        SimFabric { world, node, ix, incarnation }
    }

    /// The number of times that the node's process had been started, this start included.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The network, if the process that this belongs to still lives.
    fn alive(&self) -> Option<RefMut<'_, World>> {
        let mut world = self.world.borrow_mut();
        let node = world.node(self.ix);
        (node.up && node.incarnation == self.incarnation).then_some(world)
    }
}

// SAFETY: each region is an allocation of its own, and the simulated network places bytes only for work that waits.
// (Sabotage, by which the conformance suite shows that its checks bite, may place some later; nothing makes slices
// there.)
unsafe impl Fabric for SimFabric {
    fn node(&self) -> NodeId {
        self.node
    }

    fn register(&mut self, kind: RegionKind, bytes: usize) -> Result<Region, RegisterError> {
        let mut world = self.world.borrow_mut();
        if !world.sabotaged(Sabotage::SizesUnchecked) {
            check_size(kind, bytes)?;
        }
        let key = RegionKey(world.keys.u64(..));
        Ok(Region::heap(kind, key, bytes))
    }

    fn connect(&mut self, peer: NodeId, tag: GroupTag, expose: &[Region], hello: &[u8]) -> EndpointId {
        match self.alive() {
            Some(mut world) => world.connect(self.ix, peer, tag, expose, hello),
            None => EndpointId(u64::MAX),
        }
    }

    fn disconnect(&mut self, on: EndpointId) {
        if let Some(mut world) = self.alive()
            && world.side(on).is_none_or(|side| side.node == self.ix)
        {
            world.disconnect(self.ix, on);
        }
    }

    fn post(&mut self, on: EndpointId, op: Op<'_>, token: Token) -> Result<(), PostError> {
        if token.is_reserved() {
            return Err(PostError::ReservedToken { token: token.0 });
        }
        let mut world = self.alive().ok_or(PostError::Broken)?;
        if world.sabotaged(Sabotage::PostsUnchecked) && matches!(op, Op::Recv { .. }) {
            return Ok(());
        }
        let short_inline = world.sabotaged(Sabotage::ShortInline);
        let mine = |side: &&mut Side| side.node == self.ix && side.state != SideState::Closing;
        let side = world.side(on).filter(mine).ok_or(PostError::Broken)?;
        if side.state != SideState::Up && !matches!(op, Op::Recv { .. }) {
            return Err(PostError::NotConnected);
        }
        check_op(op, check_range, |key| side.remote.iter().find(|remote| remote.key == key).map(|remote| remote.kind))?;
        let (kind, source) = match op {
            Op::Recv { into } => return world.post_recv(on, into, token),
            Op::Write { source, target } => (WorkKind::Write { to: target, imm: None, word: None }, source),
            Op::WriteWithImm { source, target, imm } => {
                (WorkKind::Write { to: target, imm: Some(imm), word: None }, source)
            }
            Op::WriteThenWord { source, target, word, word_target } => {
                (WorkKind::Write { to: target, imm: None, word: Some((word, word_target)) }, source)
            }
            Op::Send { source, imm } => (WorkKind::Send { imm }, source),
            Op::Read { from, into } => {
                let kind = WorkKind::Read { from, into: into.region.clone(), into_offset: into.offset, len: into.len };
                return world.submit(on, kind, Payload::none(), token);
            }
        };
        let payload = match source {
            Source::Inline(bytes) => {
                let mut buffer = world.take_buffer();
                buffer.clear();
                buffer.extend_from_slice(bytes);
                if short_inline && bytes.len() > 64 {
                    buffer[64..].fill(0);
                }
                Payload::taken(buffer)
            }
            Source::Region(slice) => Payload::later(slice.region, slice.offset, slice.len),
        };
        world.submit(on, kind, payload, token)
    }

    fn post_graph(&mut self, graph: WorkGraph, token: Token) -> Result<(), GraphError> {
        let broken = GraphError::Request { request: 0, cause: PostError::Broken };
        self.alive().ok_or(broken)?.post_graph(self.ix, graph, token)
    }

    fn poll(&mut self, _now: Time, out: &mut Vec<Completion>) {
        if let Some(mut world) = self.alive() {
            world.poll(self.ix, out);
        }
    }
}

impl World {
    pub(super) fn post_recv(&mut self, on: EndpointId, into: Slice<'_>, token: Token) -> Result<(), PostError> {
        let depth = if self.sabotaged(Sabotage::FewReceives) { MIN_RECV_DEPTH - 1 } else { self.config.recv_depth };
        let drop_when_full = self.sabotaged(Sabotage::DropWhenFull);
        let side = self.side(on).ok_or(PostError::Broken)?;
        if side.recvs.len() >= depth {
            side.recv_was_full = true;
            return if drop_when_full { Ok(()) } else { Err(PostError::Full) };
        }
        side.recvs.push_back(Recv::new(into, token));
        Ok(())
    }
}
