//! Operations that a group of nodes carry out together by remote writes: barrier, broadcast, reductions and their
//! family.
//!
//! Algorithms and cost model are those of Gupta's thesis (*Efficient Collective Communication using Remote Memory
//! Operations on VIA-Based Clusters*, Ohio State University, 2002), "the thesis" on these pages, and usual ones beside
//! them.
//!
//! # How data flows
//!
//! 1. A [`Communicator`] connects its ranks, and exposes one region to them, with slots for messages from each.
//! 2. An operation is started with a vector that the communicator owns until the end. The [cost model](cost) chooses an
//!    algorithm; from it, a pure function makes the steps of this rank. All ranks start the same operations in the same
//!    order, so messages need no headers.
//! 3. [`Communicator::step`] carries out the actions that are possible: it writes chunks into the next free slots of a
//!    peer, each followed by the word that announces it, and looks for such words in its own region. Slots are used
//!    again after the receiver has freed them.
//! 4. Where reading is quicker (as [measured](Parameters::fetch_above)), a sender lends a chunk and only writes its
//!    place, and the receiver reads it from there.
//! 5. A long vector is [broadcast](Algorithm::Rdmc) past the slots: by an RDMC group of its root's own, which is made
//!    at the first such broadcast, into memory that each receiver provides when it starts the operation.
//! 6. The result is taken with the operation's handle. A rank that fails ends all operations on all others, with an
//!    error that names it.
//!
//! Reads and RDMC go on with completions alone, so the fabric is polled [often](Communicator::needs_completions)
//! meanwhile.
//!
//! Reductions combine in rank order, by the same tree whatever the algorithm, except around a [ring](Algorithm::Ring),
//! which a [reproducible](CommunicatorConfig::reproducible) communicator does without.
//!
//! # Limits
//!
//! Vectors don't lie in registered memory: they are copied into it on their way, and out of it. Blocks have the same
//! length on all ranks. The length from which on RDMC is faster is not measured.
//!
//! # Example
//!
//! ```
//! use squall_collectives::{Builtin, Communicator, CommunicatorConfig};
//! use squall_fabric::{Fabric, GroupTag, NodeId, Time, sim::{SimConfig, SimNet}};
//!
//! let net = SimNet::new(SimConfig::fast(), 42);
//! let nodes = vec![NodeId(0), NodeId(1), NodeId(2)];
//! let config = CommunicatorConfig::new(nodes.clone(), GroupTag { layer: 9, group: 0, epoch: 1 });
//! let mut ranks = Vec::new();
//! for node in nodes {
//!     let mut fabric = net.fabric(node);
//!     let mut communicator = Communicator::create(&mut fabric, config.clone())?;
//!     let vector = vec![0.5, f64::from(node.0)];
//!     let sum = communicator.start_allreduce(&mut fabric, &Builtin::Sum.into(), vector)?;
//!     ranks.push((fabric, communicator, sum));
//! }
//! while !ranks.iter().all(|(_, communicator, sum)| communicator.test(sum) == Ok(true)) {
//!     let now = net.advance(Time::MAX, &mut Vec::new());
//!     for (fabric, communicator, _) in &mut ranks {
//!         let mut completions = Vec::new();
//!         fabric.poll(now, &mut completions);
//!         for completion in &completions {
//!             communicator.on_completion(fabric, now, completion);
//!         }
//!         communicator.step(fabric, now);
//!     }
//! }
//! for (_, mut communicator, sum) in ranks {
//!     assert_eq!(communicator.finish(sum)?, [1.5, 3.0]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod algorithm;
mod bulk;
mod channel;
mod combine;
mod communicator;
mod config;
pub mod cost;
pub mod driver;
mod element;
mod error;
mod group_name;
mod lane;
mod layout;
mod lending;
mod memory;
mod reduction;
mod schedule;

pub use algorithm::{Algorithm, Collective};
pub use combine::Builtin;
pub use communicator::{Communicator, Operation};
pub use config::CommunicatorConfig;
pub use cost::Parameters;
pub use driver::{Collectives, CommunicatorId, FormError, Started};
pub use element::Element;
pub use error::{CollectiveError, CreateCommunicatorError};
pub use reduction::Reduction;
