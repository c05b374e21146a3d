//! The copying of files and directories to many nodes at once, by RDMC.
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//! use squall_copy::{PushOptions, push};
//!
//! # fn main() -> Result<(), squall_copy::PushError> {
//! // The receivers run `squall cp serve --dir DIRECTORY --name a`, or a `Receiver` of their own.
//! let to = vec!["a".to_owned(), "b".to_owned()];
//! let options = PushOptions::new(vec!["release".into()], to, "cp");
//! let report = push(&options, &AtomicBool::new(false), &mut |_progress| {})?;
//! assert!(report.is_complete(), "{report:?}");
//! # Ok(())
//! # }
//! ```
//!
//! # How data flows
//!
//! The *manifest* lists every file, directory and link. The bytes of all files, in its order, are one stream, cut into
//! *segments* of one size: small files share a segment, large ones take many. Each segment is one RDMC message.
//!
//! ```text
//!   source                                        each receiver
//!   files ─▶ reader thread ─▶ 4 buffers ─▶ RDMC ═▶ 3 buffers ─▶ writer thread ─▶ .squall-cp/TRANSFER/ ─▶ in place
//!              │ BLAKE3 of each file                             │ BLAKE3 of each file        ▲
//!              └──────────────── control connection ─────────────┴─▶ are they the same? ──────┘
//! ```
//!
//! Buffers bound the memory, and hold up a thread that is too fast: a receiver whose disk is slow gives RDMC no memory,
//! so its senders wait. A node has at most 4 × 8 MiB of its own (over a network 4 × 16 MiB). On shared memory it maps
//! as much of each neighbour in the schedule. It also holds the manifest: some 200 bytes for each file.
//!
//! A file grows in the staging directory. When it is whole and equals what the source read, it gets its mode and time.
//! It is then synced (unless told otherwise), and renamed to its name. Directories get their modes and times at the
//! end.
//!
//! # Guarantees
//!
//! - A file under its own name is whole, and equals what the source read. A file that changed while it was read is
//!   reported, and is not put in place.
//! - Nothing outside the receiver's directory is written, whatever names a source sends: the directory is held open,
//!   and names are resolved beneath it. A manifest with one bad name is refused whole. Links on the way are not
//!   followed.
//! - A receiver that fails does not cost the others the transfer. A group that fails is followed by a group of the
//!   remaining nodes, which resumes the interrupted segments where they were: no block moves twice.
//! - With [`resume`](PushOptions::resume), a push continues an interrupted push of the same files, whichever process
//!   was interrupted: it moves what is missing at each receiver. Files are the same if names, sizes, modes and
//!   modification times are.
//!
//! Not copied are owners, set-id bits, extended attributes and holes. Files that are hard links of each other become
//! separate files.
//!
//! # After a crash
//!
//! A receiver's journal records the segments that are written and the files that are in place. As long as its host
//! runs, all of that is there, whichever process died. After a crash of the host only files that were synced and put in
//! place count. Of the interrupted segment, a receiver keeps the blocks in memory, until its process ends or takes
//! another transfer.

mod algorithm;
mod control;
mod feed;
mod journal;
mod layout;
mod manifest;
mod path;
mod plan;
mod pool;
mod push;
mod root;
mod scan;
mod serve;
mod sink;
#[cfg(test)]
mod tests;
mod worker;

pub use self::{
    algorithm::{flat, flat_names},
    control::{ReceiverNetwork, RendezvousError},
    push::{PushError, PushOptions, PushProgress, PushReport, ReceiverProgress, ReceiverReport, push},
    root::RootError,
    scan::ScanError,
    serve::{Receiver, ServeError, ServeEvent, ServeOptions},
};
