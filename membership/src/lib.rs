//! The membership of a group: its views, the end of each view, and the choice of its successor.
//!
//! [`Membership`] is a pure state machine over a table of its own, one row per member. It is
//! [stepped](Membership::step) with what happened ([`Input`]) and says what the layers must do ([`Effect`]); it never
//! calls them. Successors of a view come from a [`ViewLog`], which decides once for all members.
//!
//! # A view's life
//!
//! 1. *Install*: a view that is decided is in force. A member that does not appear in it is suspected in it.
//! 2. *Suspicion*, on a node's own evidence: a broken connection, a heartbeat that stands still, bytes that no correct
//!    member sends. It is never withdrawn within a view.
//! 3. *Wedge*, on seeing a suspicion, a wish to join or leave, or a wedge in any row: shards stop, publish their final
//!    counts, then `wedged`.
//! 4. *Decide*: the leader of the members that stay proposes the next view and the trims, once all of them are wedged.
//! 5. *Clean up* to the committed trims, once no dropped member can read any more; then install the next.
//!
//! If less than half of a view goes on, as when all nodes lose power, its members come [back](ReturnReport) with their
//! disks. Each says what it has, and a [`restart`] follows from that.
//!
//! Safety is the view log's: [`check`] holds for every successor, whichever member proposed it, and the final counts of
//! a wedged member do not change. The proposer and the time of the proposal only decide how soon there is a successor.

mod active_view;
mod appearance;
mod clocks;
mod detector;
mod end;
#[cfg(test)]
#[path = "../../tests/support/exposed.rs"]
mod exposed;
mod input;
mod layout;
mod layout_policy;
mod lead;
mod leases;
mod machine;
mod membership_table;
#[cfg(test)]
mod membership_table_tests;
mod parameters;
mod placement;
mod planned_change;
mod propose;
mod ranks;
mod rejoin_backoff;
mod reopen;
mod restart;
mod return_report;
mod returning;
mod rules;
mod stall;
mod tables;
mod view;
mod view_log;
mod view_log_state;

pub use active_view::ViewChangeWait;
pub use detector::Detector;
pub use end::{Cause, EndReason};
pub use input::{Effect, Input, MemberEvidence, Settings};
pub use layout::{
    Counts, GroupLayout, Layout, LayoutError, MAX_SHARDS, MAX_WEIGHT, MOVES_AT_ONCE, ShardLayout, ShardOptions,
};
pub use layout_policy::LayoutPolicy;
pub use lead::{Accusations, staying, staying_with};
pub use machine::Membership;
pub use parameters::Parameters;
pub use reopen::reopening;
pub use restart::{alone_from_disk, check_restart, restart};
pub use return_report::{HeldCopy, ReturnReport, Skipped};
pub use rules::{alone, check, successor};
pub use stall::{Progress, Stall, StallLimits, StallWatch, Waits, WaitsFor, WatchedMembers};
pub use view::{
    ClusterId, Epoch, Former, Holder, Incarnation, MAX_MEMBERS, Member, OrderEnd, Preferred, Rank, Seq, ShardId,
    ShardState, ShardView, View, VoterId,
};
pub use view_log::{Ends, Final, Finals, Proposal, Refused, Report, Trims, ViewEvent, ViewLog};
pub use view_log_state::{Applied, Began, Entry, ViewLogState};
