//! The control plane's common half: what `shm` and `net` do alike on their control threads.
//!
//! A control thread greets peers, has endpoints meet, and notices the end of both. The media differ: `shm` has Unix
//! sockets that pass descriptors between processes of one user, `net` has TCP with TLS, heartbeats and services. The
//! rest is here. What decides ([`Pairing`], [`PendingPeers`], refusals, [`LogLimit`]) has no socket and no clock, so
//! that it is tested without either; the channels and [`Watched`] are the thread's ways in and out.

mod channel;
mod log_limit;
mod pairing;
mod pending_peers;
mod refusals;
mod watched;

pub(crate) use channel::{CommandReceiver, Commands, EventSender, Events, Untaken, commands, events};
pub(crate) use log_limit::{LogChanges, LogLimit, and_more};
pub(crate) use pairing::{Counterpart, LinkId, MAX_OFFERS, Medium, Pairing, PairingEffect, PairingMessage};
pub(crate) use pending_peers::{PendingPeer, PendingPeers};
use refusals::Refusals;
pub(crate) use refusals::mismatch;
pub(crate) use watched::Watched;
