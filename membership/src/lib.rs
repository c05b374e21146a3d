//! Who is in the group: views, the formation of the first one, failures, and the cleanup after them.
//!
//! [`Membership`] is a pure state machine over a table of its own, one row per member. It is [stepped](Membership::step)
//! with what happened ([`Input`]) and says what the layers must do ([`Effect`]); it never calls them. Successors of a view
//! come from a [`ViewLog`], which decides once for all members.
//!
//! # A view's life
//!
//! 1. *Formation*: all members of a configured list must appear. The first view follows from the list alone.
//! 2. *Suspicion*, on own evidence: a broken connection, a heartbeat that stands still, bytes that no correct member sends.
//!    It is never withdrawn within a view.
//! 3. *Wedge*, on seeing a suspicion or a wedge in any row: shards stop, publish their final counts, then `wedged`.
//! 4. *Decide*: the leader of those who stay proposes the next view and the trims, once all of them are wedged.
//! 5. *Clean up* to the committed trims.
//!
//! In this version a view has no installed successor: without a view log the group ends when it wedges, with one (a
//! scripted one, in tests) after it is cleaned up.

mod detector;
mod end;
mod lead;
mod leases;
mod machine;
mod view;
mod view_log;

pub use detector::Detector;
pub use end::EndReason;
pub use lead::{Accusations, staying};
pub use machine::{Effect, Input, Membership, Settings, Trims};
pub use view::{Epoch, Incarnation, Member, Rank, Seq, ShardId, ShardView, View};
pub use view_log::{Proposal, ViewEvent, ViewLog};
