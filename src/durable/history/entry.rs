//! The entries of a log.

use rkyv::{Archived, rancor};
use squall_fabric::NodeId;
use squall_membership::{Epoch, Seq};
use squall_ordered::log::Hlc;

use crate::replica::{command::Command, view_change::ViewChange};

/// An entry of a durable group's log: a message, or a view.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// A message's number in the log, from 1 on; a view has that of the message before. The same at all members.
    pub version: u64,
    /// The time at which a message's sender submitted it, or a time just behind the message before where that is later.
    pub time: Hlc,
    /// The view in which the message was ordered; for a view, its own epoch.
    pub epoch: Epoch,
    /// A message's place in that view's order.
    pub seq: Seq,
    /// Whether no member applies it, by an operator's decision.
    pub is_skipped: bool,
    /// The entry's kind and contents.
    pub body: EntryBody<'a>,
}

/// The kind and contents of an entry.
#[derive(Clone, Copy, Debug)]
pub enum EntryBody<'a> {
    /// A command.
    Command {
        /// The member that submitted it.
        sender: NodeId,
        /// Its bytes, as rkyv encoded them, aligned.
        bytes: &'a [u8],
    },
    /// A message that is no command of the application: clients' sessions are replicated, too, and so is the group's
    /// time when a replica is [woken](crate::Replicated::woken).
    Other {
        /// The member that submitted it.
        sender: NodeId,
    },
    /// A view, before the first message of its epoch.
    View(&'a ViewChange),
}

/// The error that the bytes of an entry are no such command.
#[derive(Debug, thiserror::Error)]
#[error("version {version} is no such command: {source}")]
pub struct CommandError {
    version: u64,
    source: rancor::Error,
}

impl<'a> Entry<'a> {
    /// Returns the entry's command, if it is one; checked, and not copied. Fails if its bytes are no such command.
    pub fn command<C: Command>(&self) -> Result<Option<&'a Archived<C>>, CommandError> {
        let EntryBody::Command { bytes, .. } = self.body else { return Ok(None) };
        let command = rkyv::access::<Archived<C>, rancor::Error>(bytes);
        command.map(Some).map_err(|source| CommandError { version: self.version, source })
    }

    /// Returns the member that submitted it; None for a view.
    pub fn sender(&self) -> Option<NodeId> {
        match self.body {
            EntryBody::Command { sender, .. } | EntryBody::Other { sender } => Some(sender),
            EntryBody::View(_) => None,
        }
    }
}
