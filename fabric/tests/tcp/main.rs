//! Tests that only the TCP backend permits: sockets and their buffers, sleep, real processes.

mod basics;
#[path = "../shm/child.rs"]
mod child;
mod figures;
#[path = "../shm/nodes.rs"]
mod nodes;
mod processes;
mod waking;
mod world;
