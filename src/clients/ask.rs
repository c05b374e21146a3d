//! Queries to one member, beside the order of messages.

use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{Arc, OnceLock},
    time::Duration,
};

use squall_fabric::{NodeId, sync::Lock};
use squall_services::{Caller, DialTarget};

use crate::{
    clients::{
        client::{Ask, Call, ClientError, Driver, Resolve, encode},
        contacts::Contacts,
        serve::{self, Consistency, QueryService, Served},
    },
    group::handle::Group,
};

/// A handle to a group that serves clients: a [`Group`], with the calls that only such a group has.
#[derive(derive_more::Debug)]
#[debug("ServedGroup({:?})", self.name())]
pub struct ServedGroup<R: QueryService> {
    group: Group<Served<R>>,
    asks: Arc<Asks>,
}

impl<R: QueryService> ServedGroup<R> {
    pub(crate) fn new(group: Group<Served<R>>, asks: Arc<Asks>) -> ServedGroup<R> {
        ServedGroup { group, asks }
    }

    /// Asks one member's replica to answer a query, within `limit`. The query takes no place in the order, and costs
    /// the other members nothing, except the cost of a linearizable read.
    ///
    /// Queries to one member share a stream, and may be answered in any order. One that was lost with the stream is
    /// asked again, until the limit.
    pub fn ask(&self, member: NodeId, consistency: Consistency, query: &R::Query, limit: Duration) -> Call<R::Answer> {
        let query = match encode(query) {
            Ok(query) => query,
            Err(error) => return Call::failed(error),
        };
        if self.asks.caller.get().map(Caller::node) == Some(member) {
            let (call, resolve) = Resolve::new();
            serve::ask(&self.group, consistency, query, move |answer| {
                resolve.resolve(match answer {
                    Ok(told) => told.map_err(ClientError::Query),
                    Err(error) => Err(ClientError::Query(error.to_string())),
                });
            });
            let admission = &self.shared().admission;
            let call = call.until(admission.deadlines.set(limit));
            admission.wake();
            return call;
        }
        match self.asks.driver(self.name(), member) {
            Ok(driver) => driver.call(Ok(Ask::Query(consistency, query)), limit),
            Err(error) => Call::failed(error),
        }
    }
}

impl<R: QueryService> Deref for ServedGroup<R> {
    type Target = Group<Served<R>>;

    fn deref(&self) -> &Group<Served<R>> {
        &self.group
    }
}

impl<R: QueryService> Clone for ServedGroup<R> {
    fn clone(&self) -> ServedGroup<R> {
        ServedGroup { group: self.group.clone(), asks: Arc::clone(&self.asks) }
    }
}

/// The number of queries to one member that may wait for answers.
const MAX_WAITING: usize = 1024;

/// The peers and streams over which a group's members are asked.
#[derive(Default)]
pub(crate) struct Asks {
    /// This node as a caller of others, from its start on.
    caller: OnceLock<Caller>,
    peers: Lock<BTreeMap<NodeId, AskedMember>>,
}

struct AskedMember {
    addresses: Vec<String>,
    /// The driver of the queries, from the first query on.
    driver: Option<Arc<Driver>>,
}

impl Asks {
    /// Notes the node's start: from now on it can ask others.
    pub(crate) fn start(&self, caller: Caller) {
        assert!(self.caller.set(caller).is_ok(), "a node starts once");
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

    fn driver(&self, group: &str, member: NodeId) -> Result<Arc<Driver>, ClientError> {
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
