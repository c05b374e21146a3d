//! A command in whose `apply` the application panicked, as the operator is told of it.

use std::path::Path;

use squall_fabric::NodeId;
use squall_ordered::{Message, log::Position};

use crate::replica::replicated::Stamp;

/// A message that is given to the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) position: Position,
    pub(crate) sender: NodeId,
    /// The version, in a durable group.
    pub(crate) version: Option<u64>,
}

/// Notes a message if the application panics while it is given the message. Costs nothing if it does not.
pub(crate) struct OnPanic<'a> {
    noted: &'a mut Option<Given>,
    given: Given,
}

impl<'a> OnPanic<'a> {
    #[inline]
    pub(crate) fn note(message: &Message<'_>, stamp: Stamp, noted: &'a mut Option<Given>) -> OnPanic<'a> {
        let position = Position::new(message.epoch, message.seq);
        OnPanic { noted, given: Given { position, sender: message.sender, version: stamp.version } }
    }

    /// Notes that the call has returned.
    #[inline]
    pub(crate) fn over(self) {
        std::mem::forget(self);
    }
}

impl Drop for OnPanic<'_> {
    #[cold]
    fn drop(&mut self) {
        *self.noted = Some(self.given);
    }
}

impl Given {
    /// A sentence about a message in the log of `directory`: what has happened, and what can be done.
    pub(crate) fn help(&self, directory: &Path) -> String {
        let Given { position, sender, version } = self;
        let (version, directory) = (version.unwrap_or_default(), directory.display());
        format!(
            "the application panicked when it applied version {version} of the log in {directory} ({position}, submitted by \
             {sender}), as it will at each start: start a program in which that is mended; or let the group go on without that \
             command: end all nodes, give each whose log has it `squall log skip DIR --version {version} --reason TEXT`, and \
             start them again (unless it panicked in `woken`, which it would be again)"
        )
    }
}
