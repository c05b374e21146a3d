//! Clients: programs that use a group and are not members of it.
//!
//! ```no_run
//! use std::time::Duration;
//! use squall::{Consistency, NodeId, client::{Client, ClientConfig}};
//! # use rkyv::Archived;
//! # use squall::{Applied, QueryService, Replicated};
//! # struct Counter(i64);
//! # impl Replicated for Counter {
//! #     type Command = i64;
//! #     type Reply = i64;
//! #     fn apply(&mut self, add: &Archived<i64>, _at: &Applied) -> i64 { self.0 += add.to_native(); self.0 }
//! # }
//! # impl QueryService for Counter {
//! #     type Query = ();
//! #     type Answer = i64;
//! #     fn answer(&self, _query: &()) -> i64 { self.0 }
//! # }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Three members run on this host, and were built with `NodeBuilder::serve("counter", ..)`.
//! let config = ClientConfig::on_host("bank", [NodeId(1), NodeId(2), NodeId(3)]);
//! let counter = Client::<Counter>::connect(&config, "counter")?;
//! let after = counter.submit(&5).wait()?;
//! let now = counter.query(&()).wait()?;
//! assert!(now >= after);
//! # Ok(())
//! # }
//! ```
//!
//! A client talks to one member, and learns from it the other members. It goes to another one when that member fails,
//! or says that it can do nothing. There it sends everything again that was not answered, under the same session and
//! number. A command is therefore applied once, however often the connection broke. Calls notice only the time that
//! this takes.
//!
//! Every call ends by its deadline, with a result or with an error that says [what is
//! known](ClientError::is_not_applied).

mod call;
mod config;
mod core;
mod driver;
mod effect;
mod error;
mod gathering;
mod lazy_driver;
mod raw;
mod replies;
mod shards;
#[cfg(all(test, not(squall_loom)))]
mod tests;
mod watch;
mod watch_queue;
mod watches;
mod watching;

use std::{marker::PhantomData, sync::Arc, time::Duration};

use rkyv::rancor;
use squall_fabric::{NodeId, Time};

pub use self::{
    call::Call,
    config::{ClientConfig, ClientConfigError},
    error::ClientError,
    raw::{Codec, RawClient, RawShards},
    replies::{AgreementError, Replies, SubmitAll},
    shards::{Connecting, Shards},
    watch::{Change, Watch, Watching},
};
#[cfg(feature = "sim")]
pub(crate) use self::{
    call::decode,
    core::ClientCore,
    effect::{CallId, ClientEffect, MemberCall, WatchId, WatchRequest},
    watch::typed,
    watch_queue::{WatchFeed, WatchReader},
};
pub(crate) use self::{
    call::{OwnSubmit, Resolve},
    core::SILENCE,
    driver::Driver,
    effect::Ask,
    lazy_driver::LazyDriver,
};
use crate::{
    calls::submit::Submit,
    clients::{query::QueryService, wire::Consistency},
    replica::command::Command,
};

/// A client of a group, or of one of its [`Shards`], with a session of its own, and another one for
/// [`submit_all`](Client::submit_all). Clones are handles to the same client, for any number of threads and tasks.
///
/// A member of the group has such handles too: [`ServedGroup::anywhere`](crate::ServedGroup::anywhere). There a command
/// goes through the member itself while it can send it, as its own [`submit`](crate::Group::submit), and over a session
/// to another member otherwise. Such a command goes its way only while its [`Call`] is awaited or waited for, unless
/// the member has accepted it at once; and one that waited for room may be overtaken by later ones.
///
/// Commands are applied in the order in which they are [submitted](Client::submit) while one connection lasts. Where a
/// connection breaks, commands that were under way at the same time may be applied in another order. Wait for a reply
/// before submitting what must come later.
#[derive(derive_more::Debug)]
#[debug("Client {{ timeout: {timeout:?} }}")]
pub struct Client<R: QueryService> {
    driver: Arc<LazyDriver>,
    timeout: Duration,
    /// This process' own member, if it has one.
    own: Option<Arc<dyn OwnMember<R>>>,
    service: PhantomData<fn() -> R>,
}

/// A group's member in this process, through which calls go while it can serve them.
pub(crate) trait OwnMember<R: QueryService>: Send + Sync {
    /// Whether it has the group's whole state, in a view that is in force.
    fn is_here(&self) -> bool;

    /// Submits a command.
    fn submit(&self, command: &[u8]) -> Submit<R::Reply>;

    /// Asks its replica; and where that can't answer now, other members.
    fn query(
        &self,
        consistency: Consistency,
        query: Vec<u8>,
        limit: Duration,
        others: &Arc<LazyDriver>,
    ) -> Call<R::Answer>;

    /// Asks this member of the group, or another.
    fn query_at(&self, node: NodeId, consistency: Consistency, query: &R::Query, limit: Duration) -> Call<R::Answer>;
}

impl<R: QueryService> Client<R> {
    /// Makes a client of the group of this name. It connects by itself, with the first call and whenever it must later.
    /// Fails only if the system gives no thread, or if the configuration's `silence` is out of its limits.
    pub fn connect(config: &ClientConfig, group: &str) -> Result<Client<R>, ClientError> {
        let client = Client::lazy(config, group);
        client.driver.get().map(|_| client)
    }

    /// Makes a client of a shard, by its [name](crate::clients::wire::ShardName), whose threads begin with the first
    /// call.
    fn lazy(config: &ClientConfig, shard: &str) -> Client<R> {
        let driver = LazyDriver::new(shard.to_owned());
        driver.start(config.caller().clone(), config.contacts(), config.max_waiting, config.checked_silence());
        Client { driver: Arc::new(driver), timeout: config.timeout, own: None, service: PhantomData }
    }

    /// Makes the handle of a member, which goes through the node itself while that can serve.
    pub(crate) fn of_member(own: Arc<dyn OwnMember<R>>, others: Arc<LazyDriver>) -> Client<R> {
        Client { driver: others, timeout: ClientConfig::TIMEOUT, own: Some(own), service: PhantomData }
    }

    /// Returns a handle whose calls have this long until their deadlines.
    pub fn within(&self, timeout: Duration) -> Client<R> {
        Client { timeout, ..self.clone() }
    }

    /// Whether this process' own member has the group's whole state, in a view that is in force.
    pub(crate) fn is_here(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.is_here())
    }

    /// Submits a command. The reply is that of the replica of the member that this client talks to, or of the one that
    /// applied the command's first copy: all are alike.
    pub fn submit(&self, command: &R::Command) -> Call<R::Reply> {
        let command = match encode(command) {
            Ok(command) => command,
            Err(error) => return Call::failed(error),
        };
        let Some(own) = self.own.as_ref().filter(|own| own.is_here()) else {
            return self.driver.call(Ask::Command(command), self.timeout);
        };
        let submit = own.submit(&command);
        let (others, deadline) = (Arc::clone(&self.driver), Time::boot_clock() + self.timeout);
        let otherwise = move |resolve| {
            others.call_into(Ask::Command(command), deadline.since(Time::boot_clock()), resolve);
        };
        Call::own(OwnSubmit { submit, deadline: Some(deadline), otherwise: Box::new(otherwise) })
    }

    /// Submits a command to which every member of the shard replies: each its own replica's reply, once it has applied
    /// the command. All are alike, if the service is deterministic: see [`Replies::agreed`]. The command is applied
    /// once, as that of a [`submit`](Client::submit).
    ///
    /// The client has a session and connections of their own for this, one to each member, from the first such call on.
    /// So there is no order between these commands and others unless a reply is awaited. A member's handle sends such a
    /// command over a session, too, and hears its own reply over a stream.
    ///
    /// Until each member has replied or is gone, or the deadline has passed, the group keeps the replies for this
    /// client. Later commands for all wait behind it once as many are under way as the group's
    /// [`window`](crate::ServeOptions::window), or once the replies that are kept take its
    /// [`reply_bytes`](crate::ServeOptions::reply_bytes). Other commands do not.
    pub fn submit_all(&self, command: &R::Command) -> SubmitAll<R::Reply> {
        let (call, gathering) = SubmitAll::new();
        match encode(command) {
            Ok(command) => self.driver.call_into(Ask::All(command), self.timeout, Resolve::All(gathering)),
            Err(error) => gathering.fail(&error),
        }
        call
    }

    /// Returns the handle through which the commands of a service that [`squall::service`](macro@crate::service) has
    /// made go to all members, as with [`submit_all`](Client::submit_all): `bank.everywhere().deposit(1, 100)`. Each
    /// call resolves to [`Replies`] of the method's results.
    pub fn everywhere(&self) -> Everywhere<R> {
        Everywhere(self.clone())
    }

    /// Asks a linearizable query: the answer shows the effect of every command whose reply any caller has seen before
    /// this call.
    pub fn query(&self, query: &R::Query) -> Call<R::Answer> {
        self.query_as(Consistency::Linearizable, query)
    }

    /// Asks a query whose answer need not be the latest.
    pub fn query_as(&self, consistency: Consistency, query: &R::Query) -> Call<R::Answer> {
        let query = match encode(query) {
            Ok(query) => query,
            Err(error) => return Call::failed(error),
        };
        match self.own.as_ref().filter(|own| own.is_here()) {
            None => self.driver.call(Ask::Query(consistency, query), self.timeout),
            Some(own) => own.query(consistency, query, self.timeout, &self.driver),
        }
    }

    /// Asks the replica of this member of the shard. A [local](Consistency::Local) answer shows that replica as it is.
    /// Fails if the node has not the shard's state, as the client knows from the newest view, or if it leaves.
    pub fn query_at(&self, node: NodeId, consistency: Consistency, query: &R::Query) -> Call<R::Answer> {
        if let Some(own) = &self.own {
            return own.query_at(node, consistency, query, self.timeout);
        }
        match encode(query) {
            Ok(query) => self.driver.call(Ask::At(node, consistency, query), self.timeout),
            Err(error) => Call::failed(error),
        }
    }

    /// Asks the nearest member of the shard: this process' own while it has the shard's state, else one on this host,
    /// by its addresses, else the one to which the way and back was shortest. The client measures the ways with the
    /// first such query in each view, and asks the first member that answers meanwhile. If a member fails, the next one
    /// is asked.
    pub fn query_nearest(&self, consistency: Consistency, query: &R::Query) -> Call<R::Answer> {
        let query = match encode(query) {
            Ok(query) => query,
            Err(error) => return Call::failed(error),
        };
        match self.own.as_ref().filter(|own| own.is_here()) {
            None => self.driver.call(Ask::Nearest(consistency, query), self.timeout),
            Some(own) => own.query(consistency, query, self.timeout, &self.driver),
        }
    }
}

/// A handle whose typed commands are replied to by every member: see [`Client::everywhere`].
#[derive(derive_more::Debug)]
#[debug("Everywhere({_0:?})")]
pub struct Everywhere<R: QueryService>(pub(crate) Client<R>);

/// Encodes a command or query as bytes.
pub(crate) fn encode(value: &impl Command) -> Result<Vec<u8>, ClientError> {
    let bytes = rkyv::to_bytes::<rancor::Error>(value);
    bytes.map(|bytes| bytes.to_vec()).map_err(|error| ClientError::Serialize(error.to_string()))
}

impl<R: QueryService> Clone for Client<R> {
    fn clone(&self) -> Client<R> {
        let (driver, own) = (Arc::clone(&self.driver), self.own.clone());
        Client { driver, timeout: self.timeout, own, service: PhantomData }
    }
}
