//! The shared state table: one row per member, one column per named value, pushed by one-sided writes.
//!
//! Every member holds a copy of the whole [`Table`]. Each writes only its own row, locally, and pushes the changes to
//! the others' copies. Columns are monotonic: a reader may see an old value, never a wrong or torn one.
//!
//! # How data flows
//!
//! 1. A [`Layout`] is built at run time; every member builds the same, which the connection's hello proves.
//! 2. A [`Mesh`] connects the members, and exposes to each peer the table and that peer's [`ring`].
//! 3. Application threads write messages into their own ring; the node's thread pushes them as contiguous runs
//!    ([`ring::Outbox::push`]), then the counters that announce them ([`Table::push`]). Whatever accumulated since the
//!    last push goes out together.
//! 4. The node's thread [refreshes](Table::refresh) its snapshot of the others' rows and acts on it, by hand or through
//!    [`Predicates`].
//!
//! # What is seen together
//!
//! Within a row, bytes come before counters, and counters before flags. A reader that sees a counter sees all ring data
//! and byte arrays set before it. A reader that sees a flag sees all counters and byte arrays set before it. Nothing is
//! promised between two counters, nor between rows.
//!
//! ```
//! use squall_sst::Layout;
//!
//! let mut layout = Layout::builder();
//! let received = layout.counter("received");
//! let echoes = layout.counters("echo", 3);
//! let wedged = layout.flag("wedged");
//! let layout = layout.build();
//! assert_eq!(layout.row_bytes() % 64, 0);
//! assert_ne!(echoes.nth(0), echoes.nth(2));
//! # let _ = (received, wedged);
//! ```

mod layout;
mod mesh;
mod predicate;
pub mod ring;
mod sync;
mod table;
#[cfg(all(test, not(squall_loom)))]
mod testing;

pub use layout::{Bytes, ColumnSet, Counter, Counters, Flag, Layout, LayoutBuilder};
pub use mesh::{Mesh, MeshEvent};
pub use predicate::{Predicates, When};
pub use squall_fabric::Fingerprint;
pub use table::Table;
