//! Tests that only the TCP backend permits: sockets and their buffers, sleep, real processes.

mod basics;
mod figures;
mod processes;
mod waking;
mod world;
