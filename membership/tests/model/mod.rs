//! A model of wedge, lead, decide, clean up and install, small and exhaustive.
//!
//! Messages, rows and proposals take as long as they like; any step may be the one after which a node crashes or a link
//! breaks. The pure parts of the crate are not modelled but called: the lead rule, the making of a successor, and the
//! view log's [`ViewLogState`](squall_membership::ViewLogState). Time is not modelled: a member that may act
//! after a while may act at any time. The log itself is taken to be reachable.

mod properties;
mod steps;
mod world;

use self::{
    properties::{GOES_ON, NO_STALE_READ, NOTHING_LOST, NOTHING_TWICE, ONE_SUCCESSOR, WITHIN_TRIM},
    steps::{Bug, Group},
};
use crate::exhaustive::{self, holds};

const TWO: Group = Group { members: 2, joiners: 0, messages: 1, faults: 1, bug: None };
const THREE: Group = Group { members: 3, ..TWO };

/// With a bug, a property fails.
fn is_caught(bug: Bug, group: Group, property: &'static str) {
    exhaustive::is_caught(Group { bug: Some(bug), ..group }, property);
}

#[test]
fn two_members_outlive_two_faults() {
    holds(Group { messages: 2, faults: 2, ..TWO });
}

#[test]
fn three_members_outlive_a_fault() {
    holds(THREE);
}

#[test]
fn a_member_joins_one() {
    holds(Group { members: 1, joiners: 1, ..TWO });
}

#[test]
fn a_member_joins_two() {
    holds(Group { joiners: 1, faults: 0, ..TWO });
}

#[test]
#[ignore = "a million states"]
fn three_members_outlive_two_faults() {
    holds(Group { faults: 2, ..THREE });
}

#[test]
#[ignore = "a million states"]
fn three_members_with_two_messages_outlive_a_fault() {
    holds(Group { messages: 2, ..THREE });
}

#[test]
#[ignore = "two million states"]
fn a_member_joins_two_of_which_one_is_lost() {
    holds(Group { joiners: 1, ..TWO });
}

#[test]
#[ignore = "a quarter of a million states"]
fn four_members_without_messages_outlive_a_fault() {
    holds(Group { members: 4, messages: 0, ..TWO });
}

#[test]
fn a_trim_that_is_the_maximum_is_caught() {
    is_caught(Bug::TrimIsTheMaximum, THREE, WITHIN_TRIM);
}

#[test]
fn a_leader_that_acts_before_commit_is_caught() {
    is_caught(Bug::ActsBeforeCommit, TWO, ONE_SUCCESSOR);
}

#[test]
fn a_member_that_counts_after_wedging_is_caught() {
    is_caught(Bug::CountsAfterWedging, THREE, WITHIN_TRIM);
}

#[test]
fn suspicion_adopted_from_others_is_caught() {
    is_caught(Bug::AdoptsSuspicion, THREE, GOES_ON);
}

#[test]
fn a_joiner_that_is_complete_too_early_is_caught() {
    is_caught(Bug::JoinerIsComplete, Group { members: 1, joiners: 1, ..TWO }, NOTHING_LOST);
}

#[test]
fn a_member_that_does_not_wait_for_leases_is_caught() {
    is_caught(Bug::DoesNotWaitForLeases, TWO, NO_STALE_READ);
}

#[test]
fn a_sender_that_resends_what_is_within_the_trim_is_caught() {
    is_caught(Bug::ResendsWithinTheTrim, TWO, NOTHING_TWICE);
}
