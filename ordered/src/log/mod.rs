//! The log on disk: the messages that were delivered, in order, kept so that they outlive all members' processes.
//!
//! A log is a directory of *segments*, files of a fixed size that have their space before anything is written to them.
//! Each is a sequence of *records*: messages, and a view before the first message of its epoch.
//! `docs/src/internals/log-format.md` draws every byte.
//!
//! # The parts
//!
//! - An [`Appender`] belongs to the thread that delivers. It copies records into a [`Batch`], and hands it over when
//!   the one before came back: so while a batch is written, the next one fills.
//! - The [`Log`] belongs to the thread that writes. It [commits](Log::commit) batches, one sync for each; between two
//!   it [makes the next segment](Log::prepare), cuts, trims and repairs.
//! - A [`Reader`] is for any thread, and sees the log as it was when it was [asked for](Log::read).
//! - Another process [looks](Log::look) at a log, which may be in use, without changing it, and
//!   [verifies](Log::verify_signed) the records that were [signed](Log::sign_with).
//! - An operator [reads](read), [cuts](cut) and [repairs](repair) a log that no node has, and [has a command
//!   skipped](skip). The records that a cut took away are an [`Aside`].
//! - A [`SnapshotWriter`] and a [`Snapshot`] are for states that let old segments go.
//!
//! All of it is synchronous, and reaches the disk through a [`Storage`]: [`Files`] is a real directory, [`SimStorage`]
//! a disk that loses, tears, rots, fills and fails as a test wishes.
//!
//! ```
//! use squall_membership::{ClusterId, Epoch, Seq, ShardId};
//! use squall_ordered::{Payload, log::{Hlc, Log, Options, Position, SimStorage, ViewRecord}};
//!
//! let (storage, options) = (SimStorage::new(1), Options::new(ClusterId(7), ShardId(0)));
//! let mut log = Log::open(storage, options, &mut fastrand::Rng::with_seed(1))?.log;
//! let mut appender = log.appender();
//! appender.append_view(Epoch::FIRST, Hlc(5), &ViewRecord::default())?;
//! let at = Position::new(Epoch::FIRST, Seq(0));
//! let end = appender.append(at, Hlc(6), squall_fabric::NodeId(1), Payload::kept(b"hello"))?;
//!
//! let mut batch = appender.take_batch().expect("it has records, and none is on its way");
//! assert_eq!(log.commit(&mut batch)?, end); // from here on it can be acknowledged
//! appender.give_back(batch);
//!
//! let mut reader = log.read(at, Position::MAX)?;
//! while let Some(record) = reader.next_record()? {
//!     println!("{} {}: {:?}", record.position, record.time, record.body);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees
//!
//! - All records before the end that a commit returned are there after any crash; behind them, at most a prefix of the
//!   records that were being written.
//! - A record is read as it was written, or is named as [`Damage`], with its file, its offset and its number. It is
//!   never shown otherwise, nor cut off by itself. [`Log::replace_damaged`] puts another member's copy in its place.
//! - A log knows the version up to which it was [acknowledged](Log::acknowledged). If it ends before, the missing
//!   records are named as [`Missing`].
//! - Good records that a cut or a new beginning takes away are [set aside](asides).
//! - A sync that failed is not tried again: the log takes nothing more.
//! - Memory is bounded, whatever the log's size: two batches, an index of at most 32,768 places, 256 KiB for each
//!   reader, or its largest record; 64 KiB of signatures while they are checked.

mod append;
mod aside;
mod block;
mod chain;
mod cut;
mod files;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod index;
mod manifest;
mod mark;
mod offline;
mod open;
mod position;
mod read;
mod record;
mod refill;
mod repair;
mod scan;
mod schema;
mod scrub;
mod segment;
mod sign;
mod signatures;
mod signing;
#[cfg(feature = "sim")]
mod sim;
mod skips;
mod snapshot;
mod storage;
mod verify;
mod walk;
mod write;

pub use append::{AppendError, Appender, Batch};
pub use aside::{Aside, AsideSummary, asides, summary_of};
pub use chain::ChainValue;
pub use cut::CutOutcome;
pub use files::{DirectoryError, Files};
pub use mark::Missing;
pub use offline::{CutAt, LogItem, OfflineError, cut, read, repair, skip};
pub use open::{OpenError, Opened, Torn};
pub use position::{End, Hlc, Position};
pub use read::{Reader, Tip};
pub use record::{Body, MAX_PAYLOAD_BYTES, Record, ViewRecord};
pub use refill::Repaired;
pub use repair::{Export, ImportError, import};
pub use schema::SchemaText;
pub use scrub::{Gap, Scrubbed, Scrubber};
pub use sign::{KeyError, PublicKey, SigningKey};
pub use signing::SignedAnew;
#[cfg(feature = "sim")]
pub use sim::{SimFile, SimStorage};
pub use skips::{MAX_REASON_BYTES, MAX_SKIPS, Skip, Skips};
pub use snapshot::{Snapshot, SnapshotError, SnapshotWriter, remove_snapshot, remove_snapshots, snapshots};
pub use storage::{SECTOR_BYTES, Storage};
pub use verify::{Flaw, MemberKey, Signed, Verified};
pub use walk::{Damage, ReadError};
pub use write::{Log, Options, WriteError, is_full};
