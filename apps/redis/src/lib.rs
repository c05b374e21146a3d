//! A replicated key-value store that speaks the Redis protocol: its state, its commands, and what its clients see.
//!
//! The state ([`Store`]) is a [`squall::Replicated`] service, and pure: it does no I/O, reads no clock, and has no
//! randomness of its own. So a test or a simulated cluster drives the very store that the servers run.
//!
//! The [`words`] of a request are looked up among the [`command`]s. A request that changes the state becomes a
//! [`message::StoreCommand`], which every replica applies in the same order. A request that only looks is answered by
//! one replica, by [`Store::look`]. Time is an argument of both.

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
