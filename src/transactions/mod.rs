//! Transactions over the shards of a group: commands of several shards, of which all are applied or none, strictly
//! serializable.
//!
//! A service implements [`TransactionService`], and a group serves it as [`Transactional`], with
//! [`NodeBuilder::serve_sharded`](crate::NodeBuilder::serve_sharded). Members and clients submit with [`Transactions`].
//! The book's chapter *Transactions over shards* has an example, the contract and the protocol.
//!
//! ```text
//!  Transactions ── requests ──▶ Driver (a thread) ── calls ──▶ Shards<Transactional<S>>
//!                                 │ Coordinator: attempts, settlements, pauses; pure
//!                                 │   Round: the votes on one attempt
//!  at each member of a shard:   Transactional<S>: Table (votes, Locks), and the service
//! ```

mod coordinator;
mod driver;
mod error;
mod handle;
mod keys;
mod message;
mod replica;
mod request;
mod round;
mod script;
mod service;
mod table;
#[cfg(all(test, not(squall_loom)))]
mod tests;

#[cfg(feature = "sim")]
pub(crate) use self::{
    coordinator::{Coordinator, Effect},
    script::{ReplyPlaces, Script, decode},
};
pub use self::{
    error::TransactionError,
    handle::{PendingTransaction, Transaction, Transactions},
    keys::Keys,
    message::{
        Holder, Refusal, Scope, TransactionAnswer, TransactionCommand, TransactionId, TransactionQuery,
        TransactionReply,
    },
    replica::Transactional,
    service::TransactionService,
};
