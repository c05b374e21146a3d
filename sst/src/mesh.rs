//! The connections of one group: one endpoint to each other member.

use squall_fabric::{BreakReason, Completion, EndpointId, Fabric, GroupTag, HELLO_BYTES, NodeId, Region, RemoteRegion};

/// The meaning of a completion for a [`Mesh`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeshEvent {
    /// The connection to the member with this index.
    Up(usize),
    /// The break of the endpoint to the member with this index.
    Down(usize, BreakReason),
    /// The queue to the member with this index, which was full, takes posts again.
    Room(usize),
}

/// One endpoint to each other member of a group, with the members' indices.
#[derive(Debug)]
pub struct Mesh {
    me: usize,
    hello: Vec<u8>,
    links: Vec<MeshLink>,
}

#[derive(Debug)]
struct MeshLink {
    node: NodeId,
    /// The endpoint to the peer; None for this node itself.
    endpoint: Option<EndpointId>,
    state: LinkState,
}

#[derive(Debug)]
enum LinkState {
    Connecting,
    Up(Vec<RemoteRegion>),
    Down,
}

impl Mesh {
    /// Starts to connect `members[me]`, which is this node, to all others.
    ///
    /// `expose(i)` lists the regions that member `i` may reach. The `hello` must be the same at every member: a peer
    /// with another one is refused, so it should describe the memory's layout.
    ///
    /// # Panics
    ///
    /// If the hello is longer than [`HELLO_BYTES`], of which the fabric would cut off the rest.
    pub fn connect(
        fabric: &mut impl Fabric,
        members: &[NodeId],
        me: usize,
        tag: GroupTag,
        hello: &[u8],
        mut expose: impl FnMut(usize) -> Vec<Region>,
    ) -> Mesh {
        assert!(hello.len() <= HELLO_BYTES, "a hello of {} bytes", hello.len());
        let links = members
            .iter()
            .enumerate()
            .map(|(i, &node)| {
                let endpoint = (i != me).then(|| fabric.connect(node, tag, &expose(i), hello));
                MeshLink {
                    node,
                    endpoint,
                    state: if i == me { LinkState::Up(Vec::new()) } else { LinkState::Connecting },
                }
            })
            .collect();
        Mesh { me, hello: hello.to_vec(), links }
    }

    /// The number of members, this one included.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// Whether the group has no members.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// This node's index.
    pub fn me(&self) -> usize {
        self.me
    }

    /// The member with this index.
    pub fn node(&self, index: usize) -> NodeId {
        self.links[index].node
    }

    /// The endpoints that belong to this mesh, for the routing of completions.
    pub fn endpoints(&self) -> impl Iterator<Item = EndpointId> {
        self.links.iter().filter_map(|link| link.endpoint)
    }

    /// The endpoint to a member and the regions that it exposed, if it can be reached now.
    pub fn link(&self, index: usize) -> Option<(EndpointId, &[RemoteRegion])> {
        let link = &self.links[index];
        match (&link.state, link.endpoint) {
            (LinkState::Up(remote), Some(endpoint)) => Some((endpoint, remote)),
            _ => None,
        }
    }

    /// Whether every other member was reached and none is lost.
    pub fn is_complete(&self) -> bool {
        self.links.iter().all(|link| matches!(link.state, LinkState::Up(_)))
    }

    /// Takes note of a completion of one of this mesh's endpoints.
    pub fn on_completion(&mut self, fabric: &mut impl Fabric, completion: &Completion) -> Option<MeshEvent> {
        let of = completion.endpoint()?;
        let index = self.links.iter().position(|link| link.endpoint == Some(of))?;
        match completion {
            Completion::Connected { remote, hello, .. } => {
                if *hello != self.hello {
                    fabric.disconnect(of);
                    self.links[index].state = LinkState::Down;
                    let why =
                        "its configuration differs from this node's (members, groups, senders, modes or ring sizes)";
                    return Some(MeshEvent::Down(index, BreakReason::Refused(why.into())));
                }
                self.links[index].state = LinkState::Up(remote.clone());
                Some(MeshEvent::Up(index))
            }
            Completion::Room { .. } => Some(MeshEvent::Room(index)),
            Completion::Broken { reason, .. } => {
                self.links[index].state = LinkState::Down;
                Some(MeshEvent::Down(index, reason.clone()))
            }
            Completion::Done { .. } | Completion::Received { .. } | Completion::GraphDone { .. } => None,
        }
    }

    /// Closes the endpoint to one member, if it is not closed.
    pub fn disconnect_member(&mut self, fabric: &mut impl Fabric, index: usize) {
        let link = &mut self.links[index];
        if let (Some(endpoint), LinkState::Connecting | LinkState::Up(_)) = (link.endpoint, &link.state) {
            fabric.disconnect(endpoint);
            link.state = LinkState::Down;
        }
    }

    /// Closes all endpoints.
    pub fn disconnect(&mut self, fabric: &mut impl Fabric) {
        for index in 0..self.links.len() {
            self.disconnect_member(fabric, index);
        }
    }
}
