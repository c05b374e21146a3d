//! Queries to one member, beside the order of messages.

use std::{ops::Deref, sync::Arc, time::Duration};

use squall_fabric::NodeId;

use crate::{
    clients::{
        asked_members::AskedMembers,
        client::{Ask, Call, ClientError, Resolve, encode},
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
