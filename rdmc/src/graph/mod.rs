//! Transfers as work graphs: the whole schedule of one message is handed to the fabric at the start.
//!
//! The engine's relay step, which is to send a block on once it is there, needs the node's process to run just then. A
//! NIC that can make one request wait for another needs no process (CORE-Direct; RDMC, DSN 2018, §2 and §5.2.3).
//! [`compile`] turns a node's [`Schedule`] into a [`WorkGraph`], and [`GraphTransfer`] runs one message that way.
//!
//! All members must know the message's length beforehand. All receives are posted at the start: a receiver posts its
//! graph between `connect` and the next poll, so they are in place before the peer may send (G3). In return a
//! connection carries no more blocks than a receive queue takes; with more, [`GraphError::Receives`] asks for larger
//! ones.
//!
//! A graph whose sends go as soon as they can suffers from inversions: a block that comes before its step takes its
//! receiver's bandwidth from one that other members wait for (§2 foresees that). So it keeps the engine's windows: for
//! each block, the receiver tells the sender, by an empty message on a second connection, that it is ready. For the
//! first block of a connection it is ready once that is up, so nothing moves before the root's graph is posted.

mod transfer;

pub use transfer::{GraphTransfer, TransferError, TransferEvent, TransferFailure};

use std::collections::{BTreeMap, BTreeSet};

use squall_fabric::{EndpointId, GraphError, Op, Slice, Source, WorkGraph, graph::RequestId};

use crate::{
    config::GroupConfig,
    schedule::{Rank, Schedule, Transfer},
};

/// The connections to one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphLink {
    /// The endpoint that carries blocks.
    pub blocks: EndpointId,
    /// The endpoint that carries empty messages: the receiver of a block is ready for it.
    pub ready: EndpointId,
}

/// Compiles a node's whole part of one message.
///
/// `message` is the memory of the message (at the root), or for it. Of `config` the block size and the windows count. A
/// send waits for its block, for its receiver to be ready, for the send `sends_in_flight` before it, and for the
/// receive `steps_ahead` steps before it. A receiver is ready for a block when it has the one `receives_ahead` before
/// it, or its first. Immediates are the number of blocks.
///
/// Fails if the message needs more requests than a graph takes.
///
/// # Panics
///
/// If the message has 2³² blocks or more, or a window or the block size is zero.
pub fn compile(
    schedule: &Schedule,
    message: Slice<'_>,
    config: &GroupConfig,
    link: impl Fn(Rank) -> GraphLink,
) -> Result<WorkGraph, GraphError> {
    let block_bytes = config.block_bytes;
    let blocks = config.blocks(message.len).expect("at most 2^32 - 1 blocks");
    let slice = |block: u32| {
        let offset = block as usize * block_bytes;
        Slice { offset: message.offset + offset, len: block_bytes.min(message.len - offset), ..message }
    };
    let nothing = Slice { len: 0, ..message };
    let steps = (0..schedule.steps(blocks))
        .flat_map(|step| schedule.parts().iter().map(move |part| (step, part.at(blocks, step))));
    let (mut receives, mut sends) = (Vec::new(), Vec::new());
    for (step, at) in steps {
        receives.extend(at.receive.map(|receive| (step, receive)));
        sends.extend(at.send.map(|send| (step, send)));
    }

    let mut graph = WorkGraph::new();
    let mut arrivals: Vec<(u64, RequestId)> = Vec::new();
    let mut of_block: BTreeMap<u32, RequestId> = BTreeMap::new();
    for &(step, Transfer { peer, block }) in &receives {
        let received = graph.add(link(peer).blocks, Op::Recv { into: slice(block) }, &[])?;
        arrivals.push((step, received));
        of_block.insert(block, received);
    }
    let mut told: BTreeSet<Rank> = BTreeSet::new();
    let mut readies: Vec<Option<RequestId>> = Vec::new();
    for &(_, Transfer { peer, .. }) in &sends {
        let ready = (!told.insert(peer)).then(|| graph.add(link(peer).ready, Op::Recv { into: nothing }, &[]));
        readies.push(ready.transpose()?);
    }
    told.clear();
    for (i, &(_, Transfer { peer, .. })) in receives.iter().enumerate() {
        if !told.insert(peer) {
            let before = arrivals[i.saturating_sub(config.receives_ahead)].1;
            graph.add(link(peer).ready, Op::Send { source: Source::Inline(&[]), imm: None }, &[before])?;
        }
    }
    let mut sent: Vec<RequestId> = Vec::new();
    for (i, &(step, Transfer { peer, block })) in sends.iter().enumerate() {
        let arrived = arrivals.partition_point(|(at, _)| at.saturating_add(config.steps_ahead) <= step);
        let pace = arrived.checked_sub(1).map(|last| arrivals[last].1);
        let before = i.checked_sub(config.sends_in_flight).map(|before| sent[before]);
        let after: Vec<RequestId> =
            [of_block.get(&block).copied(), readies[i], pace, before].into_iter().flatten().collect();
        let send = Op::Send { source: Source::Region(slice(block)), imm: Some(blocks) };
        sent.push(graph.add(link(peer).blocks, send, &after)?);
    }
    Ok(graph)
}
