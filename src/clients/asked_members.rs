//! The streams over which a member of a group asks others.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use squall_fabric::{NodeId, sync::Lock};
use squall_services::{Caller, DialTarget};

use crate::clients::{
    client::{ClientError, Driver},
    contacts::Contacts,
};

/// The number of queries to one member that may wait for answers.
const MAX_WAITING: usize = 1024;

/// The peers and streams over which a group's members are asked.
#[derive(Default)]
pub(crate) struct AskedMembers {
    /// This node as a caller of others, from its start on.
    caller: OnceLock<Caller>,
    peers: Lock<BTreeMap<NodeId, AskedMember>>,
}

struct AskedMember {
    addresses: Vec<String>,
    /// The driver of the queries, from the first query on.
    driver: Option<Arc<Driver>>,
}

impl AskedMembers {
    /// Notes the node's start: from now on it can ask others.
    pub(crate) fn start(&self, caller: Caller) {
        assert!(self.caller.set(caller).is_ok(), "a node starts once");
    }

    /// This node, once it has started.
    pub(super) fn node(&self) -> Option<NodeId> {
        self.caller.get().map(Caller::node)
    }

    /// Takes the addresses of the group's members, from a new view on.
    pub(crate) fn learn(&self, members: BTreeMap<NodeId, Vec<String>>) {
        let mut peers = self.peers.lock();
        let mut before = std::mem::take(&mut *peers);
        for (node, addresses) in members {
            let driver = before.remove(&node).filter(|peer| peer.addresses == addresses).and_then(|peer| peer.driver);
            peers.insert(node, AskedMember { addresses, driver });
        }
    }

    pub(super) fn driver(&self, group: &str, member: NodeId) -> Result<Arc<Driver>, ClientError> {
        let Some(caller) = self.caller.get() else {
            return Err(ClientError::Start("call `NodeBuilder::start` first".to_owned()));
        };
        let mut peers = self.peers.lock();
        let peer = peers.get_mut(&member);
        let peer = peer.ok_or_else(|| ClientError::Query(format!("{member} is no member of group {group:?} now")))?;
        if let Some(driver) = &peer.driver {
            return Ok(Arc::clone(driver));
        }
        let contact = DialTarget { node: Some(member), addresses: peer.addresses.clone() };
        let contacts = Contacts::new(vec![contact], 0).only(member);
        let driver = Arc::new(Driver::start(group, contacts, caller.clone(), MAX_WAITING)?);
        peer.driver = Some(Arc::clone(&driver));
        Ok(driver)
    }
}
