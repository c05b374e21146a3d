//! Names of nodes, endpoints, connections and posted work.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::random;

/// A process that takes part in a cluster. Chosen by configuration, unique in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(transparent)]
#[display("node {_0}")]
pub struct NodeId(pub u32);

impl NodeId {
    /// A random id for a caller that is no node. Nodes with ids of this kind, from 2^31 up, are not excluded.
    pub fn nameless() -> NodeId {
        // Not of the thread's generator alone, whose next numbers processes share after a fork.
        let seed = random::number().unwrap_or_else(|_| fastrand::u64(..));
        NodeId(fastrand::Rng::with_seed(seed).u32(1 << 31..u32::MAX))
    }
}

/// One side of a reliable connection, within one fabric. An id is never used again for another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u64);

/// The name under which two nodes meet.
///
/// Both derive it from the layer, its group and its epoch, so each view and each RDMC group has endpoints of its own
/// (G6). The fabric only compares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupTag {
    /// The layer that owns the connection, by a number that the layers agree on.
    pub layer: u32,
    /// The group (shard, transfer) within the layer.
    pub group: u32,
    /// The epoch of the view, or the instance of the group.
    pub epoch: u64,
}

/// The mark by which the poster of work recognises its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

impl Token {
    /// The token of work whose end is of no interest: no completion is reported when it succeeds, nor when it is
    /// flushed. (Receives are always reported, whatever their token.)
    pub const UNSIGNALED: Token = Token(u64::MAX);

    /// The first token that is the fabric's own, for requests of [work graphs](crate::graph). From it up, only
    /// [`UNSIGNALED`](Token::UNSIGNALED) can be posted.
    pub const RESERVED: Token = Token(1 << 63);

    /// Whether work with this token is a graph's.
    #[inline]
    pub(crate) fn is_reserved(self) -> bool {
        self >= Token::RESERVED && self != Token::UNSIGNALED
    }
}

/// A list of nodes, displayed as in a sentence.
#[derive(Clone, Copy, Debug)]
pub struct NodeList<'a>(pub &'a [NodeId]);

impl fmt::Display for NodeList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, node) in self.0.iter().enumerate() {
            let before = match at {
                0 => "",
                _ if at + 1 == self.0.len() => " and ",
                _ => ", ",
            };
            write!(f, "{before}{node}")?;
        }
        Ok(())
    }
}
