//! A replicated key-value store that speaks the Redis protocol: its state, its commands, and what its clients see.
//!
//! The state ([`Store`]) is a [`squall::Replicated`] service, and pure: it does no I/O, reads no clock, and has no
//! randomness of its own. So a test or a simulated cluster drives the very store that the servers run.
//!
//! The [`words`] of a request are looked up among the [`command`]s. A request that changes the state becomes a
//! [`message::StoreCommand`], which every replica applies in the same order. A request that only looks is answered by
//! one replica, by [`Store::look`]. Time is an argument of both.
//!
//! # Requests that wait
//!
//! A request such as `BLPOP` is a command of the group. Where there is nothing to take, it becomes a part of the state,
//! with the node and the number of its client's [wait](keyspace::WaiterId), and is answered [`Reply::Waiting`]. So it
//! holds no place among the commands that are under way. Behind each command, all replicas serve the requests that wait
//! for the keys that it has set, in the order in which they came. The replica of the client's node hands the answer to
//! its server, and the others drop it.
//!
//! A timeout, `CLIENT UNBLOCK` and the end of a connection submit the end of the wait. The group's order decides
//! whether the request was served before. A view ends the waits of nodes that are not among its members, and those of
//! the earlier lives of nodes that have joined. So behind that view nothing is taken for them.
//!
//! In a durable group an answer is held until a look at the state behind it was answered, as that waits for the disks.

pub mod allocator;
pub mod command;
pub mod encode;
pub mod error;
pub mod extended;
pub mod inspect;
pub mod keyspace;
pub mod message;
pub mod number;
pub mod pattern;
pub mod reply;
mod saved;
pub mod server;
pub mod store;
pub mod text;
pub mod value;
pub mod words;

#[cfg(test)]
mod testing;

pub use error::Error;
pub use reply::Reply;
pub use store::Store;
pub use text::Text;
