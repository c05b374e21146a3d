//! A snapshot of a replica, as the application gives it.

use std::io::{self, Write};

/// The function that writes a state out.
pub(crate) type WriteOut = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + Send>;

/// A replica's state at one moment, with the function that writes it out, later and on another thread.
#[derive(derive_more::Debug)]
#[debug("{}", if write.is_some() { "Snapshot" } else { "Snapshot(unsupported)" })]
pub struct Snapshot {
    /// The function that writes it out, if it can be transferred.
    pub(crate) write: Option<WriteOut>,
    pub(crate) bytes: Option<u64>,
}

impl Snapshot {
    /// Makes a state that `write` writes out. It must not change while the replica does: let the closure own what it
    /// writes.
    pub fn new(write: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static) -> Snapshot {
        Snapshot { write: Some(Box::new(write)), bytes: None }
    }

    /// Makes a state that is written out already.
    pub fn of_bytes(bytes: impl Into<Vec<u8>>) -> Snapshot {
        let bytes = bytes.into();
        let len = bytes.len() as u64;
        Snapshot::new(move |to| to.write_all(&bytes)).of_about(len)
    }

    /// Tells the approximate number of bytes that will be written. It is shown as the size in the progress of the
    /// transfer.
    pub fn of_about(self, bytes: u64) -> Snapshot {
        Snapshot { bytes: Some(bytes), ..self }
    }

    /// The same state, behind the output of `first`. A state that can't be transferred stays so.
    pub(crate) fn behind(self, first: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static) -> Snapshot {
        let Snapshot { write, bytes } = self;
        let write = write.map(|write| -> WriteOut {
            Box::new(move |to| {
                first(to)?;
                write(to)
            })
        });
        Snapshot { write, bytes }
    }

    /// Makes a state that can't be transferred, so that no node can join the group.
    pub fn unsupported() -> Snapshot {
        Snapshot { write: None, bytes: None }
    }
}
