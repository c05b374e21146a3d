//! One scenario for each rule of the contract.

use crate::rig::{Rig, Verdict};

mod arrival;
mod bounds;
mod breakage;
mod chaos;
mod completion;
mod connect;
mod errors;
mod fencing;
mod graph;
mod order;
mod queue;
mod words;

/// A rule, and the run that fails when a fabric breaks it.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut Rig<'_>) -> Verdict,
}

macro_rules! scenarios {
    ($($module:ident { $($name:ident),+ $(,)? })+) => {
        /// All scenarios.
        pub(crate) const ALL: &[Scenario] = &[$($(Scenario { name: stringify!($name), run: $module::$name }),+),+];

        mod on_sim {
            $($(#[test] fn $name() { crate::sim::check(stringify!($name), super::$module::$name); })+)+
        }

        mod on_shm {
            $($(#[test] fn $name() { crate::shm::check(stringify!($name), super::$module::$name); })+)+
        }

        mod on_mixed {
            $($(#[test] fn $name() { crate::mixed::check(stringify!($name), super::$module::$name); })+)+
        }

        mod on_tcp {
            $($(#[test] fn $name() { crate::tcp::check(stringify!($name), super::$module::$name, false); })+)+
        }

        mod on_tcp_with_tls {
            $($(#[test] fn $name() { crate::tcp::check(stringify!($name), super::$module::$name, true); })+)+
        }

        #[cfg(feature = "verbs")]
        mod on_verbs {
            $($(#[test] fn $name() { crate::verbs::check(stringify!($name), super::$module::$name); })+)+
        }
    };
}

scenarios! {
    connect {
        connected_brings_regions_and_hello, tags_keep_connections_apart, a_tag_in_use_breaks_the_new_endpoint,
        a_tag_is_free_after_the_end, connect_waits_for_the_peer, a_write_may_precede_connected,
    }
    order {
        writes_land_in_order, overwrites_land_in_order, a_receive_implies_earlier_writes, a_word_announces_its_bytes,
        a_read_sees_earlier_writes,
    }
    words { words_are_whole, inline_is_captured, inline_takes_its_limit }
    arrival {
        messages_fill_receives_in_order, an_immediate_consumes_a_receive, bytes_are_in_place_on_receipt,
        a_message_without_receive_breaks, an_immediate_without_receive_breaks, a_message_too_long_breaks,
        receives_precede_connected, a_receive_is_in_force_once_posted,
    }
    completion {
        a_buffer_is_free_after_done, done_vouches_for_earlier_work, unsignaled_work_is_not_reported,
        done_comes_in_order, a_read_is_in_place_when_done,
    }
    breakage {
        disconnect_breaks_the_peer, nothing_is_reported_after_disconnect, outstanding_work_is_flushed,
        a_dead_peer_breaks, a_partition_breaks_both_sides, a_short_partition_loses_nothing,
    }
    fencing {
        no_write_after_disconnect, no_bytes_in_memory_given_back, what_is_left_behind_keeps_its_bytes,
        an_endpoint_keeps_to_its_regions, a_peer_keeps_to_its_regions,
    }
    bounds { a_wrong_key_breaks, outside_of_a_region_breaks, a_lent_region_is_read_and_not_written }
    queue { a_full_queue_says_so, a_full_receive_queue_says_so, an_endpoint_takes_some_receives }
    chaos { any_use_keeps_the_rules }
    graph {
        a_graph_hands_on_what_it_receives, a_graph_is_done_when_its_last_request_is, a_graph_keeps_the_order_of_its_list,
        a_graph_goes_behind_earlier_work, a_graph_may_precede_the_connection, a_graph_waits_for_room,
        a_graph_writes_words, a_graph_fails_once_with_its_endpoint, a_graph_ends_when_its_endpoint_is_closed,
        a_graph_refuses_a_message_of_another_length, a_refused_graph_takes_no_effect, any_graphs_keep_the_rules,
    }
    errors { a_refused_post_takes_no_effect, a_region_has_a_size }
}
