//! A store of keys in several shards, whose transactions are scatterings: strictly serializable, without locks.
//!
//! A transaction reads and writes any keys of any shards. It is sent to all replicas of all shards that it concerns as *one*
//! reliable scattering of 1Pipe, whose messages are all delivered at one logical time, or nowhere. Every replica carries out
//! its part when it is delivered, and answers. Nobody locks a key, coordinates, or votes: the order of delivery has decided
//! already. That is what scatterings are for (1Pipe, SIGCOMM 2021, "the paper").
//!
//! ```text
//!              client, rank 0                       stamp 17
//!     add alice -5 │ add bob 5                ┌── shard of alice ──► replicas at ranks 0, 1
//!                  └── one scattering ────────┤
//!                                             └── shard of bob ────► replicas at ranks 2, 0
//!     done  ◄── answers of all four
//! ```
//!
//! Every member is a server of its shards, and a client. How a transaction travels: [`Store::submit`] splits it by shard and
//! makes a [`Scattering`]; a pipe ([`OnePipe`](squall_onepipe::OnePipe)) stamps and delivers it; each replica carries out its
//! part on a [`Keyspace`], in the order of [`Moment`]s, and answers by a best-effort scattering of one message; when all
//! answers are there, [`Store::completed`] says what came of it. The store is pure. [`Member`] joins it with its pipe, and is
//! driven as the pipe is.
//!
//! # Why this is strictly serializable
//!
//! *Serializable.* All replicas carry out their parts in the order of moments (time stamp, then sender), which is one
//! order for all shards. An R scattering is delivered by all its receivers that don't fail, or by none. So what comes out is
//! what would if each transaction were carried out alone, in that order.
//!
//! *Strictly*: a transaction that has ended is before all that are submitted later, by any client. Say that T was
//! delivered somewhere; T's stamp was below a barrier there. A barrier is the minimum of promises by all members: each
//! will stamp whatever it sends from now on with no less. The client of a later transaction is a member, has promised,
//! and keeps its promise; so its stamp is above T's. Clocks need not agree for this. If one is slow, all wait for it.
//!
//! *Through failures*, if fewer members fail than a shard has replicas. 1Pipe promises that the members *which don't fail*
//! deliver the same. One that fails may have delivered a message which nobody else will: its barrier was ahead of that of
//! all others, and the sender failed too (or was that very member). So no client may rely on the answer of one replica: it
//! waits for **all replicas of a shard that have not been removed**. One of those stays, and its barrier, which was
//! above the transaction, goes into the failure timestamp; what it had delivered before is then delivered by everybody. And an
//! answer of a removed member doesn't count, since the replicas that are left may have carried out fewer
//! transactions before.
//!
//! The same rule keeps a member that was cut off from reading old data: without the replicas that go on, it ends no
//! transaction. What its clients had under way is [unknown](TransactionError::Ended) to them.
//!
//! # What happens when members fail
//!
//! A transaction that a failed replica had not received is recalled: it has no effect anywhere, and its client gets
//! [`TransactionError::Aborted`]. The others are carried out by the replicas that are left, and new ones go to these alone. A
//! shard that has lost all its replicas is [lost](SubmitError::Lost), with its keys. Shards get no new replicas.
//!
//! Who has failed the pipe's [`Controller`](squall_onepipe::Controller) settles, which is none of the store's business. The
//! program's members leave it to the views of their nodes: these go on as long as fewer than half of all members fail.
//!
//! # Conditions
//!
//! A [condition](Transaction::check) guards the writes of its own shard. One scattering can't let a shard veto what another
//! one does, since each acts at once. (Systems that allow it, Eris and Granola among them, let shards exchange votes,
//! and hold back later transactions on the same keys meanwhile.) Names bring keys [together](Placement::shard_of).
//!
//! # How it is checked
//!
//! [`history`] decides whether what clients saw is strictly serializable. The tests run clusters in a simulated network,
//! with skewed clocks and crashes, and check the histories with that and with an independent checker; planted errors have to
//! be found. `transactional_store --smoke` does it with processes, of which it kills or stops one.

mod client;
pub mod history;
mod keyspace;
mod member;
mod message;
mod placement;
mod server;
mod store;
mod transaction;
mod value;

pub use client::{Completed, SubmitError, TransactionId};
pub use keyspace::Keyspace;
pub use member::{Member, MemberError};
pub use placement::{Placement, PlacementError, ShardId};
pub use server::{Digest, Execution};
pub use store::{Scattering, Store, StoreConfig};
pub use transaction::{Condition, Moment, Operation, Outcome, Reply, Transaction, TransactionError};
pub use value::{Key, Value};
