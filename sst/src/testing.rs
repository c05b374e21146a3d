//! A fabric for this crate's tests, on which each operation lands when the test says so.

use std::collections::{BTreeMap, VecDeque};

use squall_fabric::{
    Completion, EndpointId, Fabric, GroupTag, NodeId, Op, PostError, Region, RegionKey, RegionKind, RegisterError,
    RemoteRegion, Source, Target, Time, Token,
};

use crate::mesh::Mesh;

/// One node's fabric, and all memory that it reaches. Endpoint i leads to node i.
#[derive(Debug, Default)]
pub(crate) struct HandFabric {
    memory: BTreeMap<RegionKey, Region>,
    posted: VecDeque<Posted>,
    /// The number of posts that are still taken, by all endpoints together.
    pub(crate) room: usize,
}

#[derive(Debug)]
struct Posted {
    bytes: Bytes,
    target: Target,
}

#[derive(Debug)]
enum Bytes {
    /// Bytes that are fetched when the write lands, which is as late as they may be.
    Region(Region, usize, usize),
    Inline(Vec<u8>),
}

impl HandFabric {
    /// Registers polled memory, of this node or of a peer.
    pub(crate) fn polled(&mut self, bytes: usize) -> Region {
        self.register(RegionKind::Polled, bytes).expect("memory")
    }

    /// A mesh of node 0 with `peers` other nodes, all connected.
    pub(crate) fn mesh(&mut self, peers: usize) -> Mesh {
        let nodes: Vec<NodeId> = (0..=peers as u32).map(NodeId).collect();
        let tag = GroupTag { layer: 0, group: 0, epoch: 1 };
        let mut mesh = Mesh::connect(self, &nodes, 0, tag, b"hello", |_| Vec::new());
        for peer in 1..=peers {
            let endpoint = EndpointId(peer as u64);
            let connected =
                Completion::Connected { endpoint, remote: Vec::<RemoteRegion>::new(), hello: b"hello".to_vec() };
            mesh.on_completion(self, &connected);
        }
        assert!(mesh.is_complete());
        mesh
    }

    /// The number of operations that have not landed.
    pub(crate) fn in_flight(&self) -> usize {
        self.posted.len()
    }

    /// Lets the oldest operations land, at most `count`. Returns the target of each.
    pub(crate) fn land(&mut self, count: usize) -> Vec<Target> {
        let count = count.min(self.posted.len());
        let landed: Vec<Posted> = self.posted.drain(..count).collect();
        for posted in &landed {
            let to = &self.memory[&posted.target.region];
            match &posted.bytes {
                Bytes::Region(from, offset, len) => from.copy_words(*offset, to, posted.target.offset, *len),
                Bytes::Inline(bytes) => to.write(posted.target.offset, bytes),
            }
        }
        landed.iter().map(|posted| posted.target).collect()
    }
}

// SAFETY: each region is an allocation of its own, and it carries out no receives and reads.
unsafe impl Fabric for HandFabric {
    fn node(&self) -> NodeId {
        NodeId(0)
    }

    fn register(&mut self, kind: RegionKind, bytes: usize) -> Result<Region, RegisterError> {
        let key = RegionKey(self.memory.len() as u64);
        let region = Region::heap(kind, key, bytes);
        self.memory.insert(key, region.clone());
        Ok(region)
    }

    fn connect(&mut self, peer: NodeId, _: GroupTag, _: &[Region], _: &[u8]) -> EndpointId {
        EndpointId(u64::from(peer.0))
    }

    fn disconnect(&mut self, _: EndpointId) {}

    fn post(&mut self, _: EndpointId, op: Op<'_>, _: Token) -> Result<(), PostError> {
        let Op::Write { source, target } = op else { panic!("only writes are posted here") };
        self.room = self.room.checked_sub(1).ok_or(PostError::Full)?;
        let bytes = match source {
            Source::Region(slice) => Bytes::Region(slice.region.clone(), slice.offset, slice.len),
            Source::Inline(bytes) => Bytes::Inline(bytes.to_vec()),
        };
        self.posted.push_back(Posted { bytes, target });
        Ok(())
    }

    fn poll(&mut self, _: Time, _: &mut Vec<Completion>) {}
}
