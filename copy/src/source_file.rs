//! The check that a file of the source is still what the manifest says.

use std::{
    fs::File,
    os::unix::fs::{FileExt, MetadataExt},
};

use super::manifest::{Entry, Mtime};

/// Returns the difference between an open file and its entry, if there is one.
pub(crate) fn difference(file: &File, entry: &Entry) -> Option<String> {
    let metadata = match file.metadata() {
        Ok(metadata) => metadata,
        Err(error) => return Some(format!("the source could not look at it: {error}")),
    };
    let mtime = Mtime { seconds: metadata.mtime(), nanos: metadata.mtime_nsec() as u32 };
    if !metadata.is_file() {
        return Some("it is no file any more: push again".to_owned());
    }
    if metadata.len() != entry.bytes() {
        return Some(format!("its size changed from {} to {} bytes: push again", entry.bytes(), metadata.len()));
    }
    if mtime != entry.mtime {
        return Some("it changed after the transfer had begun: push again".to_owned());
    }
    // The kernel's own files, as in /proc, have contents and no size.
    match file.read_at(&mut [0], entry.bytes()) {
        Ok(0) => None,
        Ok(_) => Some(format!(
            "it has more contents than its size of {} bytes says: copy it to another file, and push that",
            entry.bytes()
        )),
        Err(error) => Some(could_not_read(&error)),
    }
}

/// Returns the reason for which a file of the source could not be read.
pub(crate) fn could_not_read(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "it shrank while it was read".to_owned(),
        _ => format!("the source could not read it: {error}"),
    }
}
