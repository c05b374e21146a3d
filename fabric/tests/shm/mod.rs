//! Tests that only the shared-memory backend permits: real processes, sockets and descriptors.

mod basics;
mod figures;
mod leaks;
mod processes;
mod sharing;
mod strangers;
mod turns;
mod waking;
mod world;
