//! Group communication in the line of Derecho: replicated services at the speed of the network.
//!
//! A *group* is a set of nodes that each hold a replica of a service. All of them apply the commands that any of them
//! submits, in one order, each once all members have received it. Reads see the latest state, and take no place in the
//! order. Data moves by RDMA-style one-sided writes, without a leader that all of it would have to pass.
//!
//! # How to use it
//!
//! 1. Implement [`Replicated`] for the state machine: the effect of a command on a replica, and its reply. Or write
//!    methods, and let [`service`](macro@service) make commands and typed calls of them.
//! 2. Make a [`Config`]: from a file, the environment, or code. Every node of the cluster lists the same members.
//! 3. Declare the groups with [`Node::builder`], and [start](NodeBuilder::start) the node, which waits for the others.
//! 4. Use the [`Group`] handles, from any thread or task: [`submit`](Group::submit), [`send`](Group::send),
//!    [`read`](Group::read), [`peek`](Group::peek).
//!
//! ```no_run
//! use squall::{Applied, Config, Node, Replicated};
//!
//! /// Counts.
//! struct Counter(i64);
//!
//! impl Replicated for Counter {
//!     type Command = i64;
//!     type Reply = i64;
//!
//!     fn apply(&mut self, add: &rkyv::Archived<i64>, _at: &Applied) -> i64 {
//!         self.0 += add.to_native();
//!         self.0
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Three processes run this, with SQUALL_ID=1, 2 and 3: of one host, or of three whose addresses the file has.
//! let config = Config::load("squall.toml")?;
//! let mut node = Node::builder(config);
//! let counter = node.group("counter", Counter(0));
//! let node = node.start()?;
//!
//! let after = counter.submit(&5).wait()?;
//! let now = counter.read(|counter| counter.0).wait()?;
//! assert!(now >= after);
//! node.shutdown();
//! # Ok(())
//! # }
//! ```
//!
//! # How data flows
//!
//! [`Group::submit`] serializes the command straight into the node's ring and wakes the node's *engine* thread. The
//! engine writes it to all other members, together with all other messages that have accumulated. Each engine notices
//! arrivals by reading its own memory, and tells the others in the shared state table. A message that all have received
//! is applied, by the engine or by a thread of the group's own, and the submitter gets its own replica's reply.
//!
//! # What is promised
//!
//! - Replicas apply the same commands in the same order. Commands of one thread are applied in that thread's order.
//! - A command that got its reply was received by every member. An accepted command is applied once, by all members
//!   that stay, unless this node is dropped or ends before: then [`SubmitError`] says what is known.
//! - A [`read`](Group::read) is linearizable.
//! - A group outlives its members. When one fails, the others go on in a new [`View`] without it. Members that go from
//!   one view to the next have applied the same commands in the first ([`Replicated::view_changed`]). Handles go on
//!   working.
//! - A member that was only stopped, or cut off, learns that it was dropped, and tells its callers
//!   ([`SubmitError::Unavailable`]). It joins again with the group's state ([`Replicated::snapshot`]). So does a
//!   process that is started again, and any other node that is [configured](config) to join. A node that
//!   [leaves](Node::leave) is not waited for.
//! - There is never more than one group: at least half of a view's members go on to the next view, and most of the
//!   voters decide which. Two members that are to survive the loss of either need a third node that votes, a
//!   [`Witness`].
//! - Members that can't decide wait, say so, and go on by themselves once enough are back. If the missing
//!   ones are lost for ever, `squall recover` lets an operator override that.
//!
//! # Shards
//!
//! A group may have many *shards* ([`NodeBuilder::sharded`]), each with some of the nodes as its members, and an order
//! and a state of its own. The view and the configuration (`shards`, `min_replicas`, `max_replicas`, racks, pins and
//! weights) decide which nodes hold which shard. The placement changes as little as possible when the view does.

mod calls;
mod capture;
mod clients;
pub mod config;
mod delivery;
mod durable;
mod fabric;
mod group;
#[cfg(feature = "keys")]
pub mod keys;
mod node;
mod replica;
#[cfg(feature = "sim")]
pub mod sim;
mod state_transfer;
#[cfg(all(test, not(squall_loom)))]
mod tests;
pub mod transactions;

pub use calls::{
    error::{Outcome, ReadError, SubmitError, Unavailable},
    read::Read,
    submit::{Sending, Submit},
};
#[doc(hidden)]
pub use clients::typed as __macro;
pub use clients::{
    admin,
    ask::{ServedGroup, ServedShards},
    changes::{ChangePlace, Changes},
    client, log_service,
    partition::{Partitioned, shard_of_bytes},
    query::{JsonForm, Portable, QueryService, Watched},
    serve::{ServeOptions, Served},
    typed::TypedCall,
    wire::Consistency,
};
pub use config::{Config, ConfigBuilder, ConfigError, Spin, carrier::Carrier};
pub use durable::{
    history::{CommandError, Entry, EntryBody, HistoryError, LogFollower, LogReader, Next, Past},
    log_keys,
    log_writer::LogCounts,
    recovery::RecoverError,
    room::{RoomFigures, RoomLevel, RoomLimits, RoomStatus},
    status::{AsideStatus, LogStatus, ScrubStatus},
};
pub use fabric::FabricError;
pub use group::{
    control::GroupCounts,
    handle::{Group, WeakGroup},
    sharded::Sharded,
};
pub use node::{
    builder::NodeBuilder,
    onepipe,
    placements::Placements,
    plan::PlanError,
    running::Node,
    start_error::StartError,
    starting::Starting,
    status::{BulkStatus, GroupStatus, MemberStatus, Status, ViewChangeTimes},
    views::Views,
    witness::Witness,
};
#[doc(hidden)]
pub use replica::service::{Invalid, Service};
pub use replica::{
    command::Command,
    replicated::{Applied, Logged, Replicated, Stamp},
    schema::Schema,
    snapshot::Snapshot,
    view_change::ViewChange,
};
pub use squall_collectives as collectives;
pub use squall_fabric::{NodeId, Time, share::CallerNetwork};
/// Methods in place of messages, for services that need not use their commands in place.
///
/// ```
/// # #![doc = "A crate whose lints are stricter than most."]
/// # #![deny(warnings, missing_docs, unreachable_pub, unused_qualifications, private_interfaces)]
/// use std::collections::BTreeMap;
///
/// use squall::{Applied, Group, SubmitError};
///
/// /// Balances by account.
/// #[derive(Default)]
/// pub struct Bank(BTreeMap<u64, u64>);
///
/// #[squall::service(json, schema = "bank", version = 1)]
/// impl Bank {
///     /// Adds to a balance, and returns it with the number of the command.
///     #[command]
///     pub fn deposit(&mut self, account: u64, sum: u64, at: &Applied) -> (u64, u64) {
///         let balance = self.0.entry(account).or_default();
///         *balance = balance.saturating_add(sum);
///         (*balance, at.seq.0)
///     }
///
///     /// Returns a balance.
///     #[query]
///     pub fn balance(&self, account: u64) -> Option<u64> {
///         self.0.get(&account).copied()
///     }
/// }
///
/// /// Adds to a balance.
/// pub fn add(bank: &Group<Bank>) -> Result<u64, SubmitError> {
///     let (balance, _place) = bank.deposit(7, 100).wait()?;
///     Ok(balance)
/// }
/// #
/// # fn main() {}
/// ```
pub use squall_macros::service;
pub use squall_membership::{EndReason, Epoch, Incarnation, Member, Seq, ShardId, ShardState, ShardView, View};
#[doc(hidden)]
pub use squall_ordered::Message;
pub use squall_ordered::{Mode, log::Hlc};
pub use squall_rdmc::{self as rdmc, bulk};
pub use squall_services::ControlError;
pub use squall_view_log::{StorageError, StoreSummary};
pub use state_transfer::fetcher::Fetching;

/// The examples of the README and the book must compile.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../README.md")]
    struct Readme;

    #[doc = include_str!("../docs/src/start/service.md")]
    struct OwnService;

    #[doc = include_str!("../docs/src/start/languages.md")]
    struct Languages;

    #[doc = include_str!("../docs/src/operate/logs.md")]
    struct Logs;

    #[doc = include_str!("../docs/src/concepts/watching.md")]
    struct Watching;

    #[doc = include_str!("../docs/src/concepts/transactions.md")]
    struct TransactionsOverShards;
}
