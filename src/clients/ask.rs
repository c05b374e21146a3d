//! Queries to one member, beside the order of messages.

use std::{ops::Deref, sync::Arc, time::Duration};

use squall_fabric::{NodeId, Time};

use crate::{
    calls::{envelope::Envelope, error::ReadError, session::Trailer, submit::Submit},
    clients::{
        asked_members::AskedMembers,
        client::{Ask, Call, Client, ClientError, LazyDriver, OwnMember, Resolve, Shards, encode},
        query::QueryService,
        serve::{self, Served},
        wire::Consistency,
    },
    group::handle::Group,
};

/// A handle to a group that serves clients: a [`Group`], with the calls that only such a group has.
#[derive(derive_more::Debug)]
#[debug("ServedGroup({:?})", self.name())]
pub struct ServedGroup<R: QueryService> {
    group: Group<Served<R>>,
    asks: Arc<AskedMembers>,
}

impl<R: QueryService> ServedGroup<R> {
    pub(crate) fn new(group: Group<Served<R>>, asks: Arc<AskedMembers>) -> ServedGroup<R> {
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
        if self.asks.node() == Some(member) {
            return self.ask_here(consistency, query, limit, None);
        }
        match self.asks.driver(member) {
            Ok(driver) => driver.call(Ask::Query(consistency, query), limit),
            Err(error) => Call::failed(error),
        }
    }

    /// Returns a handle whose calls go to whichever member can serve them: through this node while it has the group's
    /// state, else to another. So they work at a node that is no member of the group's shard, and while this node is
    /// cut off from it.
    pub fn anywhere(&self) -> Client<R> {
        Client::of_member(Arc::new(self.clone()), Arc::clone(self.asks.any()))
    }

    /// Asks this node's own replica. Where it can't answer now, `others` are asked, if there are any.
    fn ask_here(
        &self,
        consistency: Consistency,
        query: Vec<u8>,
        limit: Duration,
        others: Option<Arc<LazyDriver>>,
    ) -> Call<R::Answer> {
        let (call, resolve) = Resolve::new();
        let deadline = Time::boot_clock() + limit;
        let again = others.map(|others| (others, query.clone()));
        serve::ask(&self.group, consistency, query, move |answer| match (answer, again) {
            (Err(ReadError::Unavailable { .. }), Some((others, query))) => {
                let left = deadline.since(Time::boot_clock());
                others.call_into(Ask::Query(consistency, query), left, resolve);
            }
            (Ok(told), _) => resolve.resolve(told.map_err(ClientError::Query)),
            (Err(error), _) => resolve.resolve(Err(ClientError::Query(error.to_string()))),
        });
        let admission = &self.shared().admission;
        let call = call.until(admission.deadlines.set(limit));
        admission.wake();
        call
    }
}

impl<R: QueryService> OwnMember<R> for ServedGroup<R> {
    fn is_here(&self) -> bool {
        self.asks.is_here()
    }

    fn submit(&self, command: &[u8]) -> Submit<R::Reply> {
        Submit::new(self.shared(), Ok(Envelope::bytes(command).with_trailer(&Trailer::Plain)))
    }

    fn query(
        &self,
        consistency: Consistency,
        query: Vec<u8>,
        limit: Duration,
        others: &Arc<LazyDriver>,
    ) -> Call<R::Answer> {
        self.ask_here(consistency, query, limit, Some(Arc::clone(others)))
    }

    fn query_at(&self, node: NodeId, consistency: Consistency, query: &R::Query, limit: Duration) -> Call<R::Answer> {
        self.ask(node, consistency, query, limit)
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

/// A member's handles to the shards of a group that serves clients: [`Shards`], whose calls work from anywhere, and the
/// [group](ServedShards::group) of this node for each, whose replica it reads.
#[derive(derive_more::Debug)]
#[debug("ServedShards({:?}, {})", self.name(), self.len())]
pub struct ServedShards<R: QueryService> {
    shards: Shards<R>,
    groups: Arc<[ServedGroup<R>]>,
}

impl<R: QueryService> ServedShards<R> {
    pub(crate) fn new(name: &str, groups: Vec<ServedGroup<R>>) -> ServedShards<R> {
        ServedShards { shards: Shards::new(name, groups.iter().map(ServedGroup::anywhere)), groups: groups.into() }
    }

    /// Returns this node's group of a shard, from 0 on, of which it may be a member.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub fn group(&self, index: usize) -> &ServedGroup<R> {
        &self.groups[index]
    }
}

impl<R: QueryService> Deref for ServedShards<R> {
    type Target = Shards<R>;

    fn deref(&self) -> &Shards<R> {
        &self.shards
    }
}

impl<R: QueryService> Clone for ServedShards<R> {
    fn clone(&self) -> ServedShards<R> {
        ServedShards { shards: self.shards.clone(), groups: Arc::clone(&self.groups) }
    }
}
