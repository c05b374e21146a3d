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
mod error;
#[cfg(all(test, not(squall_loom)))]
mod tests;

use std::{marker::PhantomData, sync::Arc, time::Duration};

use rkyv::rancor;
pub use squall_fabric::net::Security;

#[cfg(feature = "sim")]
pub(crate) use self::core::{CallId, ClientCore, ClientEffect};
pub use self::{call::Call, config::ClientConfig, error::ClientError};
pub(crate) use self::{call::Resolve, core::Ask, driver::Driver};
use crate::{
    clients::{query::QueryService, wire::Consistency},
    replica::command::Command,
};

/// A client of a group, with a session of its own. Clones are handles to the same client, for any number of threads and
/// tasks.
///
/// Commands are applied in the order in which they are submitted while one connection lasts. Where a connection breaks,
/// commands that were under way at the same time may be applied in another order. Wait for a reply before submitting
/// what must come later.
#[derive(derive_more::Debug)]
#[debug("Client {{ timeout: {timeout:?} }}")]
pub struct Client<R> {
    driver: Arc<Driver>,
    timeout: Duration,
    service: PhantomData<fn() -> R>,
}

impl<R: QueryService> Client<R> {
    /// Makes a client of the group of this name. It connects by itself, with the first call and whenever it must later.
    /// Fails only if the system gives no thread.
    pub fn connect(config: &ClientConfig, group: &str) -> Result<Client<R>, ClientError> {
        let driver = Driver::start(group, config.contacts(), config.caller().clone(), config.max_waiting)?;
        Ok(Client { driver: Arc::new(driver), timeout: config.timeout, service: PhantomData })
    }

    /// Returns a handle whose calls have this long until their deadlines.
    pub fn within(&self, timeout: Duration) -> Client<R> {
        Client { timeout, ..self.clone() }
    }

    /// Submits a command. The reply is that of the replica of the member that this client talks to, or of the one that
    /// applied the command's first copy: all are alike.
    pub fn submit(&self, command: &R::Command) -> Call<R::Reply> {
        self.driver.call(encode(command).map(Ask::Command), self.timeout)
    }

    /// Asks a linearizable query: the answer shows the effect of every command whose reply any caller has seen before
    /// this call.
    pub fn query(&self, query: &R::Query) -> Call<R::Answer> {
        self.query_as(Consistency::Linearizable, query)
    }

    /// Asks a query whose answer need not be the latest.
    pub fn query_as(&self, consistency: Consistency, query: &R::Query) -> Call<R::Answer> {
        self.driver.call(encode(query).map(|query| Ask::Query(consistency, query)), self.timeout)
    }
}

/// Encodes a command or query as bytes.
pub(crate) fn encode(value: &impl Command) -> Result<Vec<u8>, ClientError> {
    let bytes = rkyv::to_bytes::<rancor::Error>(value);
    bytes.map(|bytes| bytes.to_vec()).map_err(|error| ClientError::Serialize(error.to_string()))
}

impl<R> Clone for Client<R> {
    fn clone(&self) -> Client<R> {
        Client { driver: Arc::clone(&self.driver), timeout: self.timeout, service: PhantomData }
    }
}
