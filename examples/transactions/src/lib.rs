//! A store of keys in several shards, whose transactions are scatterings: strictly serializable, without locks.
//!
//! A transaction reads and writes any keys of any shards. It is sent to all replicas of all shards that it concerns as
//! *one* reliable scattering of 1Pipe. The scattering's messages are all delivered at one logical time, or nowhere.
//! Every replica carries out its part when it is delivered, and answers. No member locks a key, coordinates, or votes:
//! the order of delivery decides. Scatterings were made for this (1Pipe, SIGCOMM 2021, "the paper").
//!
//! ```text
//!              client, rank 0                       stamp 17
//!     add alice -5 │ add bob 5                ┌── shard of alice ──► replicas at ranks 0, 1
//!                  └── one scattering ────────┤
//!                                             └── shard of bob ────► replicas at ranks 2, 0
//!     done  ◄── answers of all four
//! ```
//!
//! Every member is a server of its shards, and a client. A transaction travels so:
//!
//! 1. [`Store::submit`] splits it by shard; [`Store::scatter`] gives the messages to a pipe as one scattering.
//! 2. The pipe ([`OnePipe`](squall_onepipe::OnePipe)) stamps and delivers them.
//! 3. Each replica carries out its part on a [`Keyspace`], in the order of [`Moment`]s. It answers by a best-effort
//!    scattering of one message.
//! 4. When all answers are there, [`Store::completed`] returns the result.
//!
//! # How a member is driven
//!
//! The store is pure. Three calls join it with its pipe, in this order. `examples/transactional_store.rs` is a program
//! of such members.
//!
//! ```no_run
//! use std::{iter, time::Duration};
//! use squall_onepipe::{Unsettled, driver::Pipe};
//! use squall_transactions::Store;
//! # use squall_fabric::shm::ShmFabric;
//! # fn drive(mut pipe: Pipe<ShmFabric, Unsettled>, mut store: Store) {
//! loop {
//!     // It scatters what was submitted, and the answers to what was delivered.
//!     store.scatter(|mode, messages| pipe.scatter(mode, messages, Duration::ZERO));
//!     pipe.receive_any(256, Duration::from_millis(10), |delivery| store.on_delivery(&delivery));
//!     store.on_events(iter::from_fn(|| pipe.next_event()));
//!     while let Some(completed) = store.completed() {
//!         println!("{completed:?}");
//!     }
//! }
//! # }
//! ```
//!
//! # Why this is strictly serializable
//!
//! *Serializable.* All replicas carry out their parts in the order of moments (time stamp, then sender), which is one
//! order for all shards. An R scattering is delivered by all its receivers that don't fail, or by none. So the result
//! is the same as if each transaction were carried out alone, in that order.
//!
//! *Strictly*: a transaction that has ended is before all that are submitted later, by any client. Say that T was
//! delivered at some member. T's stamp was below a barrier there. A barrier is the minimum of promises by all members:
//! each will stamp whatever it sends from then on with no less. The client of a later transaction is a member, has
//! promised, and keeps its promise, so its stamp is above T's. Clocks need not agree for this. If one is slow, all wait
//! for it.
//!
//! *Through failures*, if fewer members fail than a shard has replicas. 1Pipe promises that the members *which don't
//! fail* deliver the same. A member that fails may have delivered a message that no other will deliver. Its barrier was
//! then ahead of that of all others, and the sender failed too (or was that very member). So a client must not rely on
//! the answer of one replica: it waits for **all replicas of a shard that have not been removed**. One of those stays.
//! Its barrier, which was above the transaction, goes into the failure timestamp, and what it had delivered before is
//! then delivered by every member. The answer of a removed member does not count, since the replicas that are left may
//! have carried out fewer transactions before.
//!
//! The same rule keeps a member that was cut off from reading old data: without the replicas that go on, it ends no
//! transaction. The result of what its clients had under way is [unknown](TransactionError::Ended) to them.
//!
//! # What happens when members fail
//!
//! A transaction that a failed replica had not received is recalled. It has no effect anywhere, and its client gets
//! [`TransactionError::Aborted`]. The others are carried out by the replicas that are left, and new ones go to these
//! alone. A shard that has lost all its replicas is [lost](SubmitError::Lost), with its keys. Shards get no new
//! replicas.
//!
//! The pipe's [`Controller`](squall_onepipe::Controller) settles which members have failed; the store takes no part in
//! it. The programs' members leave it to the views of their nodes, which go on as long as fewer than half of all
//! members fail.
//!
//! # Conditions
//!
//! A [condition](Transaction::check) guards the writes of its own shard. One scattering can't let a shard veto what
//! another one does, since each acts at once. (Systems that allow it, such as Eris and Granola, let shards exchange
//! votes, and hold back later transactions on the same keys meanwhile.) A part of their names in braces puts keys into
//! [one shard](Placement::shard_of).
//!
//! # How it is checked
//!
//! [`history`] decides whether what clients saw is strictly serializable. The tests run clusters in a simulated
//! network, with skewed clocks and crashes. They check the histories with that and with an independent checker, and
//! planted errors have to be found. `squall-bench transactions --check` does it with processes, of which it kills or
//! stops one.

mod client;
mod config;
pub mod history;
mod keyspace;
mod message;
mod placement;
mod server;
mod store;
mod transaction;
mod value;

pub use client::{Completed, SubmitError, TransactionId};
pub use config::StoreConfig;
pub use keyspace::Keyspace;
pub use placement::{Placement, PlacementError, ShardId};
pub use server::Execution;
pub use store::{PipeMismatch, Store};
pub use transaction::{Condition, Moment, Operation, Outcome, Reply, Transaction, TransactionError};
pub use value::{Key, Value};
