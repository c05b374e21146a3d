//! The reading of segments whose files are in place, for receivers that came late.

use std::{io, os::unix::fs::FileExt};

use super::{
    super::{layout::Piece, source_file::difference},
    EntryState, Sink,
};

impl Sink {
    /// Fills `bytes` with a segment. Fails unless this transfer has put all files of it in place, and they are still
    /// what they were then. Other files are not read: a source could name some that it has never seen.
    pub(crate) fn read_back(&self, segment: u64, bytes: &mut [u8]) -> Result<(), String> {
        for Piece { entry, at, offset, len } in self.layout.pieces(segment) {
            let about = &self.manifest.entries()[entry];
            let failed = |cause: io::Error| format!("\"{}\" could not be read again: {cause}", about.path);
            if self.states[entry] != EntryState::Placed {
                return Err(format!("\"{}\" was not put in place here", about.path));
            }
            let file = self.root.open_file(&about.path).map_err(|cause| failed(cause.into()))?;
            file.read_exact_at(&mut bytes[offset..][..len], at).map_err(failed)?;
            if difference(&file, about).is_some() {
                return Err(format!("\"{}\" has changed since it was put in place", about.path));
            }
        }
        Ok(())
    }
}
