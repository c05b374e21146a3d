//! The copying of files and directories to many nodes at once: by RDMC over a network, and through the source's open
//! files on its own host.
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
//! The *manifest* lists every file, directory, link and device. Each receiver says which files it lacks, and of
//! which it has another version, or a part: of those, source and receivers compare *chunks*, which are cut where the
//! contents say so.
//!
//! A receiver on the source's host is handed the files that it lacks, open, and copies from them, which the kernel
//! does. To others contents go by RDMC. The *plan* is what all those lack, sorted by who lacks it. Its bytes are one
//! stream, cut into *segments* of one size: small files share a segment, large ones take many. Each segment is one
//! RDMC message to those that lack it.
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
//! # Guarantees
//!
//! - A file that was copied is whole under its own name, and equals what the source read: by its hash where contents
//!   were sent, and else as far as the source's file has the size and time of the list when it is copied. A file that
//!   changed while it was read is reported, and is not put in place. Files of the same size and time are not copied,
//!   unless contents are to be [compared](PushOptions::checksum).
//! - Nothing outside the receiver's directory is written or removed, whatever names a source sends: the directory is
//!   held open, and names are resolved beneath it. A manifest with one bad name is refused whole. Links on the way
//!   are not followed.
//! - A receiver that fails does not cost the others the transfer. A group that fails is followed by a group of the
//!   remaining nodes, which resumes the interrupted segments where they were.
//! - A push moves what receivers lack, whatever interrupted an earlier one.
//! - Kept are modes, times, owners, set-id bits, access control lists, extended attributes, hard links, holes, symbolic
//!   links and devices, as far as a receiver's user may set them. What can't be kept is [counted](CopyLosses), and
//!   gives nobody more rights.
//!
//! # After a crash
//!
//! As long as a receiver's host runs, what was written is there, whichever process died. After a crash of the host,
//! files that were not synced are compared by their contents.

mod algorithm;
mod attributes;
mod chunks;
mod control;
mod dress;
mod extent;
mod feed;
mod filter;
mod layout;
mod manifest;
mod pace;
mod path;
mod plan;
mod pool;
mod push;
mod root;
mod scan;
mod serve;
mod sink;
mod source_file;
#[cfg(test)]
mod tests;
mod worker;

pub use self::{
    algorithm::{flat, flat_names},
    control::{ReceiverNetwork, RendezvousError},
    filter::{BadPattern, Patterns},
    push::{CopyLosses, PushError, PushOptions, PushProgress, PushReport, ReceiverProgress, ReceiverReport, push},
    root::RootError,
    scan::{KeptAttributes, LinkPolicy, ScanError},
    serve::{Receiver, ServeError, ServeEvent, ServeOptions},
};
