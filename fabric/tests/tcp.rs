//! Tests that only the TCP backend permits: sockets and their buffers, sleep, real processes.

#[path = "tcp/basics.rs"]
mod basics;
#[path = "shm/child.rs"]
mod child;
#[path = "tcp/figures.rs"]
mod figures;
#[path = "shm/nodes.rs"]
mod nodes;
#[path = "tcp/processes.rs"]
mod processes;
#[path = "tcp/waking.rs"]
mod waking;
#[path = "tcp/world.rs"]
mod world;
