//! The view log: a Raft log (openraft) in which the successors of views are decided.
//!
//! Every node runs a [`Log`], with messages of its own between nodes ([`Transport`]). Its entries are those of
//! [`ViewLogState`](squall_membership::ViewLogState), which alone says what a valid one is. Whatever this crate
//! does about leaders, voters and messages, at most one successor of a view is ever decided.
//!
//! - *Formation.* The nodes of a configured list tell each other that they are there. When the first of the list has
//!   heard of all, it begins the log; the log's leader then writes the first view.
//! - *Joins.* A node asks until the log's leader hears it. The leader makes it a learner, and a candidate once it has
//!   (nearly) all of the log.
//! - *Proposals* go to the leader, and are sent again until something is decided.
//! - *A leader that is gone* is not waited for: the lowest-ranked voter that is left takes over at once. Raft's lease
//!   does not stand in the way, since nothing is ever read by it. A leader that ends in order says so, and so does one
//!   that reaches no majority.
//! - *Elections* begin with a question: a node stands only if most of the voters miss the leader too, and have no more
//!   of the log.
//! - *While nothing happens* little is said, and Raft's own timers stand still.
//! - *Storage* that went back, an old copy of a node's directory, is found by what others know of its node. No message
//!   counts of a node that has one.
//! - *Voters* follow the members.
//!
//! [`Log`] runs on a thread of its own; with the feature `sim`, `SimLog` is the same in virtual time, on the caller's.

mod agent;
mod disk;
mod log;
mod look;
mod machine;
mod network;
mod settings;
mod shared;
#[cfg(feature = "sim")]
mod sim;
mod store;
#[cfg(test)]
mod suite;
mod types;
mod voters;
mod wire;

pub use disk::{Directory, StorageError};
pub use log::{Inlet, Log, Monitor};
pub use look::StoreSummary;
pub use settings::{Failure, NotForced, Settings, Start, StartError, Timing};
pub use shared::{SearchStatus, ViewLogStatus};
#[cfg(feature = "sim")]
pub use sim::{Eligibility, SimDisk, SimLog};
pub use wire::{Contact, MAX_MESSAGE, Transport};
