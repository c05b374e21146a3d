//! The threads around a node's pure core: its engine thread, delivery threads, and their choice to spin, yield or
//! sleep.

mod delivery_thread;
mod engine;
mod fetcher;
mod idle;
mod report;
mod returning;
mod run_delay;
mod scrub_thread;
mod storage_thread;

pub(crate) use engine::{Engine, GroupSlot, Request};
pub(crate) use idle::{Idle, Rest};
pub(crate) use returning::Returning;
pub(crate) use scrub_thread::ScrubThread;
pub(crate) use storage_thread::{Bed, StorageThread};
