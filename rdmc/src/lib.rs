//! RDMC: a reliable multicast of large messages, made of point-to-point transfers of blocks.
//!
//! (RDMC: A Reliable RDMA Multicast for Large Objects. DSN 2018.)

#![warn(missing_docs)]

mod block_set;
mod buffer;
mod config;
mod control;
mod course;
mod engine;
mod events;
mod group;
mod message;
mod plan;
mod rdmc;
mod resume;
pub mod schedule;

pub use block_set::BlockSet;
pub use buffer::Buffer;
pub use config::{CreateError, GroupConfig, GroupId, MAX_BLOCK_BYTES};
pub use engine::AcceptError;
pub use events::{Event, Failure, Interrupted, Progress};
pub use group::{Group, SendError};
pub use plan::{Lost, Plan};
pub use rdmc::Rdmc;
