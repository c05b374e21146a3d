//! Atomic multicast: messages of several senders, delivered by all members in one order.
//!
//! Message j of the sender with rank s has the sequence number j·S + s: round robin over the S senders. Each member
//! publishes the length of the gap-free prefix of that order that it has received. A message that all members of the
//! shard have received is *stable*, and is delivered. A sender with nothing to say gives up its turns as nulls, so that
//! it delays no other.
//!
//! # The parts of a shard
//!
//! [`create`] makes three parts, for three kinds of threads:
//!
//! - [`Submitter`], for any number of application threads: writes messages straight into the sender's ring, and asks
//!   for linearizable reads.
//! - [`Shard`], for the node's own thread: pushes, receives, finds out which messages are stable, confirms reads. It is
//!   pure: it is [stepped](Shard::step), and posts to the fabric.
//! - [`Deliverer`], for the thread that runs the application: walks the order as far as it is stable, and hands each
//!   message to a [`Deliver`].
//!
//! Between them lie the ring and a few atomic words ([`Progress`] inside), and no lock.
//!
//! # Bulk messages
//!
//! A message above a threshold travels first, by RDMC, into memory that every member reserves for its sender. When each
//! member's row says that it holds the message, the sender gives it a turn: a record in the ring that names it. So
//! large messages delay only their own sender's later ones, which wait in a queue of their own. From there on, order,
//! stability and the end of a view are as for any message. The queue has a lock, which small messages meet only while
//! the queue is in use.
//!
//! # Modes
//!
//! [`Mode::Ordered`] is the above. In [`Mode::Unordered`] each sender's messages are delivered in their own order, as
//! they arrive. A sender delivers its own message once every other member holds it, so that a submit that resolves says
//! so. Bulk messages travel as in the other mode: none is delivered anywhere before all members hold it.
//!
//! [`Mode::Durable`] is ordered delivery with a log on disk. The messages of a shard (nulls are none) have *versions*:
//! from 1, alike at all members, counted on across views. The application appends each message that it is given to a
//! log in memory, if there [is room](Deliver::has_room), and applies it. A further thread writes the log, and says
//! through [`Persisted`] which version it has come to. Each member's row says so too, and the smallest of these
//! versions is [*globally persisted*](Deliver::globally_persisted): no crash undoes a message up to it, so its replies
//! may go out.
//!
//! The members that were complete when the view began count. Another counts from when its row says something, which it
//! does when it [has begun](Deliverer::begin) and its disk has caught up. So a slow disk delays replies, and delays
//! delivery only when the buffer is full. A failed disk delays replies until its member has left the view.
//!
//! # When a view ends
//!
//! [`Shard::wedge`] stops sending and receiving and gives the final `received`. Once the view's successor is committed,
//! with the trim (the smallest final `received` of the members that stay), [`Shard::clean_up`] lets delivery go exactly
//! so far. Every message that any member delivered lies within the trim: delivery needed the receipt of all members,
//! and final counts don't change. In durable mode it need not be on disk then: in the next view, a member publishes
//! nothing before it is.
//!
//! # The log on disk
//!
//! The messages that were delivered can be kept in a [`log`], which outlives all processes.

mod bulk;
mod config;
mod deliverer;
mod error;
pub mod log;
mod order;
mod payload;
mod persisted;
mod progress;
mod reads;
mod shard;
mod submitter;

use std::sync::Arc;

use squall_fabric::{Fabric, RegionKind};
use squall_membership::{ShardId, View};
use squall_sst::ring;

pub use config::{BulkPath, Mode, ShardConfig};
pub use deliverer::{Deliver, DeliverError, Deliverer, Message, Ran};
pub use error::{CreateError, SubmitRefused};
pub use payload::Payload;
pub use progress::{Persisted, Progress};
pub use shard::{Owed, Row, Shard, Stepped, Undelivered};
pub use squall_sst::ring::{Fault, Tag};
pub use submitter::{OrderPosition, Submitter};

/// Creates this node's part of a shard of a view, and starts to connect it to the other members. Fails if the view has
/// no such shard, if this node is none of its members, if a size in `config` is not possible, or if the memory can't be
/// registered.
pub fn create<F: Fabric>(
    fabric: &mut F,
    view: &View,
    shard: ShardId,
    config: &ShardConfig,
) -> Result<(Submitter, Shard, Deliverer), CreateError> {
    let members = view.shard(shard).ok_or(CreateError::NoSuchShard(shard))?;
    let node = fabric.node();
    let me = members.rank_of(node).ok_or(CreateError::NotAMember { node, shard })?;
    config.check()?;
    let mut rings = Vec::with_capacity(members.senders.len());
    for _ in &members.senders {
        rings.push(fabric.register(RegionKind::Polled, config.ring_bytes)?);
    }
    let my_sender = members.sender_rank_of(node).map(|rank| rank.index());
    let own = my_sender.map(|s| Arc::new(ring::Ring::new(rings[s].clone(), config.ring_bytes)));
    let progress = Arc::new(Progress::new(members.senders.len()));
    let mut shard =
        Shard::connect(fabric, view.epoch, members, me, config, &rings, own.clone(), Arc::clone(&progress))?;
    let bulk::BulkParts { bulk, queue, arrivals } = bulk::reserve(fabric, view.epoch, members, config, own.as_ref())?;
    shard.add_bulk(bulk);
    let inboxes = deliverer::Inboxes { rings: &rings, own: own.clone(), bulk: arrivals };
    let deliverer = Deliverer::new(view.epoch, members, config.mode, inboxes, Arc::clone(&progress));
    let submitter = Submitter::new(own, queue, config.inline_bytes(), progress);
    Ok((submitter, shard, deliverer))
}
