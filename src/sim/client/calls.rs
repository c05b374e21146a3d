//! The calls of a simulated client, and the connections over which it asks one member alone.

use std::{sync::Arc, time::Duration};

use squall_fabric::{NodeId, Time};
use squall_services::DialTarget;

use super::{super::cluster::Cluster, Client, ClientNode};
use crate::clients::{
    client::{Ask, Call, CallId, ClientCore, ClientEffect, MemberCall, Resolve, SubmitAll, encode},
    query::{Portable, QueryService},
    wire::Consistency,
};

impl Cluster {
    /// Asks one member, over a connection of a client to it alone.
    pub(super) fn ask_at(&mut self, number: usize, call: MemberCall, member: DialTarget, ask: Ask, deadline: Time) {
        let Some(node) = member.node else { return };
        let name = self.clients[number].name.clone();
        let pinned = self.clients[number].pinned.get(&node).copied().unwrap_or_else(|| {
            let random = fastrand::Rng::with_seed(self.rng.u64(..));
            let core = ClientCore::pinned(name.clone(), member, random);
            self.clients.push(ClientNode::new(core, name, Some(number as u32)));
            self.clients.len() as u32 - 1
        });
        self.clients[number].pinned.insert(node, pinned);
        let told = Arc::clone(&self.clients[number].told);
        let resolve = Resolve::then(move |result| told.lock().push((node, call, result)));
        let limit = deadline.since(self.net.now());
        self.call_into(pinned, ask, limit, resolve);
    }

    /// Ends a client's connection to one member alone.
    pub(super) fn forget(&mut self, number: usize, node: NodeId) {
        let Some(pinned) = self.clients[number].pinned.remove(&node) else { return };
        let mut effects = Vec::new();
        self.clients[pinned as usize].core.close(&mut effects);
        self.clients[pinned as usize].of = None;
        self.carry_out(pinned as usize, effects);
    }

    /// Lets a client take the results of its calls to one member.
    pub(super) fn take_told(&mut self, number: usize) {
        let now = self.net.now();
        let told = std::mem::take(&mut *self.clients[number].told.lock());
        for (node, call, result) in told {
            let mut effects = Vec::new();
            self.clients[number].core.told_at(now, node, call, result, &mut effects);
            self.carry_out(number, effects);
        }
        self.schedule_client(number);
    }

    fn call<T: Portable>(&mut self, number: u32, ask: Ask, limit: Duration) -> Call<T> {
        let (call, resolve) = Resolve::new();
        self.call_into(number, ask, limit, resolve);
        call
    }

    fn call_into(&mut self, number: u32, ask: Ask, limit: Duration, resolve: Resolve) {
        let id = CallId(self.new_number(number));
        self.clients[number as usize].calls.insert(id, resolve);
        self.tell_core(number, |core, now, effects| core.call(now, id, ask, now + limit, effects));
    }

    /// Returns a number for a call or a watch of a client.
    pub(in crate::sim) fn new_number(&mut self, number: u32) -> u64 {
        let client = &mut self.clients[number as usize];
        client.made += 1;
        client.made - 1
    }

    /// Tells a client's core something.
    pub(in crate::sim) fn tell_core(
        &mut self,
        number: u32,
        tell: impl FnOnce(&mut ClientCore, Time, &mut Vec<ClientEffect>),
    ) {
        let (now, mut effects) = (self.net.now(), Vec::new());
        tell(&mut self.clients[number as usize].core, now, &mut effects);
        self.carry_out(number as usize, effects);
        self.schedule_client(number as usize);
    }
}

impl<R: QueryService> Client<R> {
    /// Submits a command, which has the time `limit` for its answer.
    pub fn submit(&self, cluster: &mut Cluster, command: &R::Command, limit: Duration) -> Call<R::Reply> {
        match encode(command) {
            Ok(command) => cluster.call(self.number, Ask::Command(command), limit),
            Err(error) => Call::failed(error),
        }
    }

    /// Submits a command to which all members reply, within the time `limit`.
    pub fn submit_all(&self, cluster: &mut Cluster, command: &R::Command, limit: Duration) -> SubmitAll<R::Reply> {
        let (call, gathering) = SubmitAll::new();
        match encode(command) {
            Ok(command) => cluster.call_into(self.number, Ask::All(command), limit, Resolve::All(gathering)),
            Err(error) => gathering.fail(&error),
        }
        call
    }

    /// Asks the replica of this member a query, which has the time `limit` for its answer.
    pub fn query_at(
        &self,
        cluster: &mut Cluster,
        node: NodeId,
        consistency: Consistency,
        query: &R::Query,
        limit: Duration,
    ) -> Call<R::Answer> {
        match encode(query) {
            Ok(query) => cluster.call(self.number, Ask::At(node, consistency, query), limit),
            Err(error) => Call::failed(error),
        }
    }

    /// Asks a query, which has the time `limit` for its answer.
    pub fn query(
        &self,
        cluster: &mut Cluster,
        consistency: Consistency,
        query: &R::Query,
        limit: Duration,
    ) -> Call<R::Answer> {
        match encode(query) {
            Ok(query) => cluster.call(self.number, Ask::Query(consistency, query), limit),
            Err(error) => Call::failed(error),
        }
    }
}
