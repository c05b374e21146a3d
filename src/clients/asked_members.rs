//! The streams over which a member of a group asks others.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use squall_fabric::{NodeId, sync::Lock};
use squall_services::{Caller, DialTarget};

use crate::clients::{
    client::{ClientError, Driver, LazyDriver, SILENCE},
    contacts::Contacts,
    wire::{Members, ShardName},
};

/// The number of queries to one member that may wait for answers.
const MAX_WAITING: usize = 1024;

/// The peers and streams over which the members of a group's shard are asked.
pub(crate) struct AskedMembers {
    /// The shard's [name](ShardName).
    name: String,
    /// This node as a caller of others, from its start on.
    caller: OnceLock<Caller>,
    peers: Lock<BTreeMap<NodeId, AskedMember>>,
    /// The calls for which any member will do.
    any: Arc<LazyDriver>,
    /// Whether this node has the shard's whole state, in a view that is in force.
    is_here: AtomicBool,
}

struct AskedMember {
    addresses: Vec<String>,
    /// The driver of the queries, from the first query on.
    driver: Option<Arc<Driver>>,
}

impl AskedMembers {
    /// Makes the streams to a shard, which nobody uses before [`start`](AskedMembers::start).
    pub(crate) fn new(group: &str, (shard, shards): (u32, u32)) -> AskedMembers {
        let name = if shards == 1 { group.to_owned() } else { ShardName::of(group, shard) };
        let any = Arc::new(LazyDriver::new(name.clone()));
        let (caller, peers, is_here) = (OnceLock::new(), Lock::default(), AtomicBool::new(false));
        AskedMembers { name, caller, peers, any, is_here }
    }

    /// Notes the node's start: from now on it can ask others. `first` are the nodes that it knows before any view, and
    /// `max_waiting` the number of calls that may wait for any of them.
    pub(crate) fn start(&self, caller: Caller, first: Vec<DialTarget>, max_waiting: usize) {
        self.any.start(caller.clone(), Contacts::new(first, fastrand::usize(..)), max_waiting, Ok(SILENCE));
        assert!(self.caller.set(caller).is_ok(), "a node starts once");
    }

    /// This node, once it has started.
    pub(super) fn node(&self) -> Option<NodeId> {
        self.caller.get().map(Caller::node)
    }

    /// Returns the way to any member of the shard.
    pub(super) fn any(&self) -> &Arc<LazyDriver> {
        &self.any
    }

    /// Whether this node has the shard's whole state, in a view that is in force.
    pub(super) fn is_here(&self) -> bool {
        self.is_here.load(Ordering::Relaxed)
    }

    /// Takes the addresses of the shard's members, from a new view on, and those of the members that serve clients.
    pub(crate) fn learn(&self, members: BTreeMap<NodeId, Vec<String>>, serving: Members, is_here: bool) {
        self.is_here.store(is_here, Ordering::Relaxed);
        self.any.learn(serving);
        let mut peers = self.peers.lock();
        let mut before = std::mem::take(&mut *peers);
        for (node, addresses) in members {
            let driver = before.remove(&node).filter(|peer| peer.addresses == addresses).and_then(|peer| peer.driver);
            peers.insert(node, AskedMember { addresses, driver });
        }
    }

    /// Notes that this node can do nothing in the shard until the next view.
    pub(crate) fn interrupted(&self) {
        self.is_here.store(false, Ordering::Relaxed);
    }

    pub(super) fn driver(&self, member: NodeId) -> Result<Arc<Driver>, ClientError> {
        let Some(caller) = self.caller.get() else {
            return Err(ClientError::Start("call `NodeBuilder::start` first".to_owned()));
        };
        let mut peers = self.peers.lock();
        let none = || ClientError::Query(format!("{member} is no member of group {:?} now", self.name));
        let peer = peers.get_mut(&member).ok_or_else(none)?;
        if let Some(driver) = &peer.driver {
            return Ok(Arc::clone(driver));
        }
        let contact = DialTarget { node: Some(member), addresses: peer.addresses.clone() };
        let contacts = Contacts::new(vec![contact], 0).only(member);
        let driver = Arc::new(Driver::start(&self.name, contacts, caller.clone(), MAX_WAITING, SILENCE)?);
        peer.driver = Some(Arc::clone(&driver));
        Ok(driver)
    }
}
