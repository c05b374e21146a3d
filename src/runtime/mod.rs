//! What surrounds a node's pure core in earnest: its engine thread, delivery threads, and when they spin, yield and sleep.

mod delivery_thread;
mod engine;
mod fetcher;
mod idle;
mod report;
mod run_delay;

pub(crate) use engine::{Engine, GroupSlot, Request};
pub(crate) use idle::{Idle, Rest};
