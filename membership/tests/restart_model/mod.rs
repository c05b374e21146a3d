//! A model of restarts, small and exhaustive: the contents of disks, the reports of members that come back, and the
//! view that follows.
//!
//! Any node may die at any step, and comes back with its disk. Tables and networks are not modelled: all know which
//! members are wedged, and any half of a view may be proposed. The pure parts are called: [`ViewLogState`], [`restart`]
//! and [`successor`].
//!
//! [`ViewLogState`]: squall_membership::ViewLogState
//! [`restart`]: squall_membership::restart
//! [`successor`]: squall_membership::successor

mod steps;
mod world;

use self::steps::{Bug, Group, KEPT};
use crate::exhaustive::{self, holds};

const TWO: Group =
    Group { members: 2, joiners: 0, messages: 1, views: 2, crashes: 2, wipes: 0, in_memory: false, bug: None };

/// With a bug, a property fails.
fn is_caught(bug: Bug, group: Group, property: &'static str) {
    exhaustive::is_caught(Group { bug: Some(bug), ..group }, property);
}

#[test]
fn two_members_outlive_two_crashes() {
    holds(TWO);
}

#[test]
fn three_members_outlive_a_crash() {
    holds(Group { members: 3, views: 1, crashes: 1, ..TWO });
}

#[test]
#[ignore = "millions of states"]
fn two_members_outlive_two_crashes_and_go_on_for_longer() {
    holds(Group { views: 3, ..TWO });
}

#[test]
#[ignore = "half a million states"]
fn two_members_with_two_messages_outlive_a_crash() {
    holds(Group { messages: 2, crashes: 1, ..TWO });
}

#[test]
#[ignore = "millions of states"]
fn three_members_outlive_two_crashes() {
    holds(Group { members: 3, views: 1, ..TWO });
}

/// Node 0 alone has the state when the second joins.
const JOINING: Group = Group { joiners: 1, views: 3, crashes: 1, ..TWO };

#[test]
fn who_joins_counts_once_its_disk_has_what_is_acknowledged() {
    holds(Group { views: 2, ..JOINING });
}

#[test]
fn a_source_whose_joiner_s_disk_lags_reopens_what_the_joiner_alone_held() {
    holds(Group { messages: 2, views: 2, ..JOINING });
}

#[test]
#[ignore = "millions of states"]
fn who_joins_counts_after_two_crashes_once_its_disk_has_what_is_acknowledged() {
    holds(Group { crashes: 2, ..JOINING });
}

#[test]
#[ignore = "millions of states"]
fn a_disk_that_was_replaced_reopens_nothing() {
    holds(Group { wipes: 1, ..JOINING });
}

#[test]
fn one_whose_log_was_lost_and_begun_anew_is_caught_if_it_counts() {
    is_caught(Bug::LostLogCounts, Group { wipes: 1, crashes: 2, ..JOINING }, KEPT);
}

#[test]
fn nothing_is_lost_where_a_joiner_says_too_early_that_it_is_complete() {
    holds(Group { bug: Some(Bug::CompleteBeforeDisk), views: 2, ..JOINING });
}

#[test]
#[ignore = "millions of states"]
fn two_who_join_count_once_their_disks_have_what_is_acknowledged() {
    holds(Group { members: 3, joiners: 2, views: 2, crashes: 3, ..TWO });
}

/// As [`JOINING`], of a group without disks: node 0 may be dropped while the second stays, which suspends the shard.
const IN_MEMORY: Group = Group { in_memory: true, crashes: 0, ..JOINING };

#[test]
fn a_shard_goes_on_from_the_memory_of_a_process_that_was_dropped() {
    holds(IN_MEMORY);
}

#[test]
fn a_process_that_crashed_has_nothing_to_go_on_with() {
    holds(Group { crashes: 1, views: 2, ..IN_MEMORY });
}

#[test]
fn one_that_still_runs_and_says_only_what_it_has_delivered_is_caught() {
    is_caught(Bug::SaysWhatItDelivered, TWO, KEPT);
}

#[test]
fn one_that_receives_after_it_has_said_what_it_has_is_caught() {
    is_caught(Bug::ReceivesAfterWedging, TWO, KEPT);
}
