//! Several fabrics as one: a node may have peers on its own host and others on a network.
//!
//! Each peer is reached through one of them, by a route that both nodes know alike or [find out](Transport::Best).
//! Regions are registered once and may be exposed, sent from and received into through any fabric: one that did not
//! make a region uses it by its address. One [`wait`](crate::Wait::wait) spans all, and so may a work graph.
//!
//! An endpoint's id names the fabric that it belongs to, so that a post costs one branch more than without this.

mod choice;
mod fabric;
mod held_endpoints;
mod host;
mod router;
mod transport;
mod wait;

pub use fabric::MixedFabric;
pub use transport::Transport;
