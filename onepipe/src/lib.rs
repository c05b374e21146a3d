//! Scatterings in one total order by timestamps.
//!
//! A *scattering* is a group of messages to different receivers that takes effect at one logical time: every receiver
//! delivers messages in the order of their timestamps, ties by sender. There is no sequencer: each rank stamps with its
//! own clock, and receivers wait until nothing earlier can come. This is 1Pipe (SIGCOMM 2021, "the paper" on these
//! pages), for networks whose switches do not take part in it. The feature `baseline` adds the orders that
//! the paper compares itself with.
//!
//! # How data flows
//!
//! 1. A [`OnePipe`] connects its ranks. Each pair has a byte ring in the receiver's memory for each [`Mode`]; the
//!    sender keeps a copy of it, and pushes the records of the last step in one write or two.
//! 2. A [scattering](OnePipe::scatter) is stamped and written into the rings of its receivers when there is room in
//!    all; otherwise it waits, and keeps the room that it has got.
//! 3. Each rank tells its *barrier*: a promise that nothing earlier will come from it. With best effort in a flat
//!    group, that is its next timestamp, written behind the data on the same connection. A reliable scattering is
//!    covered only once all its receivers have acknowledged it. So is every scattering in a
//!    [hierarchy](Topology::Hierarchy), where barriers take other ways than data and could overtake it.
//! 4. Below the least barrier of all ranks a receiver [delivers](OnePipe::deliver): it merges the rings by their first
//!    records. Messages lie in the rings until then.
//! 5. Barriers go with data, and once in an interval while a rank is active. Later they go as far as a rank waits for
//!    them, so that an idle group writes nothing.
//!
//! # Failures
//!
//! A rank that fails holds up all barriers until a [`Controller`] has settled how far its reliable messages count. They
//! count up to the greatest barrier that any rank had accepted (each has a [`Gate`] for these), so that each is
//! delivered by all or by none. Senders recall reliable scatterings that a failed receiver had not acknowledged, and
//! are [told](PipeEvent::Undeliverable). Their barriers pass only when all ranks that are left have carried that out.
//!
//! # Limits
//!
//! No rank joins a group. A rank that was removed is out of it for good. No rank suspects one that hangs while its
//! connections stay, and all wait for it: [`OnePipe::waits_for`] names it, and the application decides.
//!
//! # Example
//!
//! ```
//! use squall_fabric::{Fabric, GroupTag, NodeId, Time, sim::{SimConfig, SimNet}};
//! use squall_onepipe::{HostClock, Message, Mode, OnePipe, OnePipeConfig};
//!
//! let net = SimNet::new(SimConfig::fast(), 42);
//! let nodes = vec![NodeId(0), NodeId(1), NodeId(2)];
//! let config = OnePipeConfig::new(nodes.clone(), GroupTag { layer: 10, group: 0, epoch: 1 });
//! let mut ranks = Vec::new();
//! for node in nodes {
//!     let mut fabric = net.fabric(node);
//!     let pipe = OnePipe::create(&mut fabric, config.clone(), HostClock::default())?;
//!     ranks.push((fabric, pipe, Vec::new()));
//! }
//! // Two ranks send to the other two each; all see what both receive in the same order.
//! for (sender, receivers) in [(0, [1, 2]), (1, [0, 2])] {
//!     let text = format!("from {sender}");
//!     let messages = receivers.map(|to| Message { to, bytes: text.as_bytes() });
//!     ranks[sender].1.scatter(net.now(), Mode::Reliable, &messages)?;
//! }
//! while ranks.iter().map(|(_, _, delivered)| delivered.len()).sum::<usize>() < 4 {
//!     let deadline = ranks.iter().map(|(_, pipe, _)| pipe.deadline()).min();
//!     let now = net.advance(deadline.unwrap_or(Time::MAX).max(net.now()), &mut Vec::new());
//!     for (fabric, pipe, delivered) in &mut ranks {
//!         let mut completions = Vec::new();
//!         fabric.poll(now, &mut completions);
//!         for completion in &completions {
//!             pipe.on_completion(fabric, now, completion);
//!         }
//!         pipe.step(fabric, now);
//!         pipe.deliver(Mode::Reliable, usize::MAX, &mut |delivery| delivered.push((delivery.stamp, delivery.sender)));
//!     }
//! }
//! assert_eq!(ranks[2].2.len(), 2);
//! assert!(ranks[2].2.is_sorted());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod barrier;
#[cfg(feature = "baseline")]
pub mod baseline;
mod clock;
mod config;
mod controller;
pub mod driver;
mod engine;
mod error;
mod event;
mod gate;
mod inbound;
mod layout;
mod links;
mod message;
mod mirror;
mod order;
mod peer_link;
mod pipe;
mod recall;
mod record;
mod ring;
mod stamps;
mod status;
mod timestamp;
mod tournament;
mod waiting;

pub use clock::{Clock, HostClock, SkewedClock};
pub use config::{OnePipeConfig, Topology};
pub use controller::{Controller, Directive, Settlement};
pub use driver::{FormError, Pipe, Unsettled, tag};
pub use error::{CreateError, ScatterError};
pub use event::PipeEvent;
pub use gate::Gate;
pub use message::{Delivery, Message, Mode, ScatteringId};
pub use pipe::OnePipe;
pub use tournament::Tournament;
