//! Tests that only the shared-memory backend permits: real processes, sockets and descriptors.

#[path = "shm/basics.rs"]
mod basics;
#[path = "shm/child.rs"]
mod child;
#[path = "shm/figures.rs"]
mod figures;
#[path = "shm/leaks.rs"]
mod leaks;
#[path = "shm/nodes.rs"]
mod nodes;
#[path = "shm/processes.rs"]
mod processes;
#[path = "shm/sharing.rs"]
mod sharing;
#[path = "shm/strangers.rs"]
mod strangers;
#[path = "shm/turns.rs"]
mod turns;
#[path = "shm/waking.rs"]
mod waking;
#[path = "shm/world.rs"]
mod world;
