//! What a log shows.

use rkyv::{Archived, rancor};
use squall_fabric::NodeId;
use squall_membership::{Epoch, Seq};
use squall_ordered::log::Hlc;

use crate::{replicated::Command, view_change::ViewChange};

/// An entry of a durable group's log: a message, or a view.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// A message's number in the log, from 1 on; a view has that of the message before. Alike at all members.
    pub version: u64,
    /// When a message's sender submitted it, or just behind the message before where that is later.
    pub time: Hlc,
    /// The view in which it was ordered, or which it is.
    pub epoch: Epoch,
    /// A message's place in that view's order.
    pub seq: Seq,
    /// Whether nobody applies it, as an operator has said.
    pub is_skipped: bool,
    /// What it is.
    pub body: EntryBody<'a>,
}

/// What an entry is.
#[derive(Clone, Copy, Debug)]
pub enum EntryBody<'a> {
    /// A command.
    Command {
        /// Who submitted it.
        sender: NodeId,
        /// Its bytes, as rkyv has made them, aligned.
        bytes: &'a [u8],
    },
    /// A message that is no command of the application: clients' sessions are replicated, too.
    Other {
        /// Who submitted it.
        sender: NodeId,
    },
    /// A view, before the first message of its epoch.
    View(&'a ViewChange),
}

/// The bytes of an entry are no such command.
#[derive(Debug, thiserror::Error)]
#[error("version {version} is no such command: {source}")]
pub struct CommandError {
    version: u64,
    source: rancor::Error,
}

impl<'a> Entry<'a> {
    /// The command that it is, if it is one; checked, and where it lies.
    pub fn command<C: Command>(&self) -> Result<Option<&'a Archived<C>>, CommandError> {
        let EntryBody::Command { bytes, .. } = self.body else { return Ok(None) };
        let command = rkyv::access::<Archived<C>, rancor::Error>(bytes);
        command.map(Some).map_err(|source| CommandError { version: self.version, source })
    }

    /// Who submitted it. None for a view.
    pub fn sender(&self) -> Option<NodeId> {
        match self.body {
            EntryBody::Command { sender, .. } | EntryBody::Other { sender } => Some(sender),
            EntryBody::View(_) => None,
        }
    }
}
