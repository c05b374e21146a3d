//! The scenarios on the simulated network, and on simulated networks that break a guarantee.

use std::time::Duration;

use squall_fabric::{
    Fabric, NodeId, Time,
    sim::{Sabotage, SimConfig, SimFabric, SimNet},
};

use crate::{
    rig::{Rig, Verdict},
    scenarios, seeds,
    testbed::{Capabilities, Testbed},
};

/// The number of seeds that each scenario runs from.
const SEEDS: u64 = 200;

/// The number of seeds within which a broken guarantee must show.
const SEEDS_TO_BITE: u64 = 40;

struct SimBed {
    net: SimNet,
    fabrics: Vec<SimFabric>,
    seed: u64,
    failure_timeout: Duration,
}

impl SimBed {
    /// The testbed of a seed. Of three seeds, one has the network at its worst, and one a network that only its rate
    /// slows down.
    fn new(seed: u64, sabotage: Option<Sabotage>) -> SimBed {
        let mut config = match seed % 3 {
            0 => SimConfig::fast(),
            1 => SimConfig::nasty(),
            _ => SimConfig { recv_depth: 16, ..SimConfig::ideal(1_000_000_000, Duration::from_micros(1)) },
        };
        config.segment_bytes = if seed % 6 < 3 { 0 } else { 2 * config.packet_bytes };
        config.sabotage = sabotage;
        let failure_timeout = config.failure_timeout;
        let net = SimNet::new(config, seed);
        let fabrics = (0..3).map(|node| net.fabric(NodeId(node))).collect();
        SimBed { net, fabrics, seed, failure_timeout }
    }
}

impl Testbed for SimBed {
    fn fabric(&mut self, node: usize) -> &mut dyn Fabric {
        &mut self.fabrics[node]
    }

    fn step(&mut self, ready: &mut Vec<usize>) {
        let mut nodes = Vec::new();
        let limit = self.net.now() + Duration::from_micros(50);
        self.net.advance(limit, &mut nodes);
        ready.extend(nodes.into_iter().map(|node| node.0 as usize));
    }

    fn now(&self) -> Time {
        self.net.now()
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn can(&self) -> Capabilities {
        Capabilities {
            kill: true,
            cut: true,
            fences_memory: true,
            settled: Duration::from_millis(5),
            failure_timeout: self.failure_timeout,
            patience: Duration::from_millis(200),
        }
    }

    fn kill(&mut self, node: usize) {
        self.net.crash(NodeId(node as u32));
    }

    fn cut(&mut self, a: usize, b: usize) {
        self.net.cut(NodeId(a as u32), NodeId(b as u32));
    }

    fn heal(&mut self, a: usize, b: usize) {
        self.net.heal(NodeId(a as u32), NodeId(b as u32));
    }
}

fn run(scenario: fn(&mut Rig<'_>) -> Verdict, seed: u64, sabotage: Option<Sabotage>) -> Verdict {
    scenario(&mut Rig::new(&mut SimBed::new(seed, sabotage)))
}

/// Runs a scenario from many seeds, or from the one in `SQUALL_SEED`.
pub(crate) fn check(name: &str, scenario: fn(&mut Rig<'_>) -> Verdict) {
    for seed in seeds(SEEDS) {
        if let Err(why) = run(scenario, seed, None) {
            panic!("{name}: {why} (again with SQUALL_SEED={seed})");
        }
    }
}

/// The broken guarantees that each scenario must notice.
const BITES: &[(&str, &[Sabotage])] = {
    use Sabotage::*;
    &[
        ("connected_brings_regions_and_hello", &[ShuffledRegions, NoHello]),
        ("tags_keep_connections_apart", &[TagsIgnored]),
        ("a_tag_in_use_breaks_the_new_endpoint", &[TagShared]),
        ("a_tag_is_free_after_the_end", &[TagKept]),
        ("connect_waits_for_the_peer", &[ConnectOnce]),
        ("a_write_may_precede_connected", &[EarlyWriteLost]),
        ("writes_land_in_order", &[Overtake]),
        ("overwrites_land_in_order", &[Overtake]),
        ("a_receive_implies_earlier_writes", &[Overtake]),
        ("a_word_announces_its_bytes", &[WordFirst]),
        ("a_read_sees_earlier_writes", &[EarlyRead, Overtake]),
        ("words_are_whole", &[TornWord]),
        ("inline_is_captured", &[StaleInline]),
        ("inline_takes_its_limit", &[ShortInline]),
        ("messages_fill_receives_in_order", &[DoubleReceive, LastReceiveFirst, EarlyReceive]),
        ("an_immediate_consumes_a_receive", &[DoubleReceive]),
        ("bytes_are_in_place_on_receipt", &[EarlyReceive]),
        ("a_message_without_receive_breaks", &[IgnoreNotReady, SilentBreak]),
        ("an_immediate_without_receive_breaks", &[IgnoreNotReady, SilentBreak]),
        ("a_message_too_long_breaks", &[CutMessage]),
        ("receives_precede_connected", &[LateReceives]),
        ("a_receive_is_in_force_once_posted", &[NewestReceiveWaits]),
        ("a_buffer_is_free_after_done", &[FetchAfterDone]),
        ("done_vouches_for_earlier_work", &[FetchAfterDone]),
        ("unsignaled_work_is_not_reported", &[SignalAll]),
        ("done_comes_in_order", &[DoneOutOfOrder]),
        ("a_read_is_in_place_when_done", &[EarlyReadDone]),
        ("disconnect_breaks_the_peer", &[SilentBreak, BreakTwice, NoFlush, LateFlush]),
        ("nothing_is_reported_after_disconnect", &[ReportAfterDisconnect]),
        ("outstanding_work_is_flushed", &[NoFlush, LateFlush, BreakTwice]),
        ("a_dead_peer_breaks", &[SilentBreak]),
        ("a_partition_breaks_both_sides", &[NoTimeout]),
        ("a_short_partition_loses_nothing", &[CutLoses]),
        ("no_write_after_disconnect", &[LateWrite]),
        ("no_bytes_in_memory_given_back", &[LateWrite]),
        ("what_is_left_behind_keeps_its_bytes", &[FetchAfterClose]),
        ("an_endpoint_keeps_to_its_regions", &[AnyRegion, KeyUnchecked]),
        ("a_peer_keeps_to_its_regions", &[AnyRegion, KeyUnchecked]),
        ("a_wrong_key_breaks", &[KeyUnchecked, AccessIgnored, SilentBreak]),
        ("outside_of_a_region_breaks", &[BoundsCut, AccessIgnored]),
        ("a_lent_region_is_read_and_not_written", &[LentWritable, AccessIgnored]),
        ("a_full_queue_says_so", &[DropWhenFull, NoRoom]),
        ("a_full_receive_queue_says_so", &[DropWhenFull, NoRoom]),
        ("an_endpoint_takes_some_receives", &[FewReceives]),
        (
            "any_use_keeps_the_rules",
            &[BreakTwice, NoFlush, LateFlush, DoubleReceive, LastReceiveFirst, SignalAll, DoneOutOfOrder],
        ),
        ("a_graph_hands_on_what_it_receives", &[GraphUnordered, GraphTells]),
        ("a_graph_is_done_when_its_last_request_is", &[GraphEarly, GraphTwice]),
        ("a_graph_keeps_the_order_of_its_list", &[GraphUnordered]),
        ("a_graph_goes_behind_earlier_work", &[Overtake]),
        ("a_graph_may_precede_the_connection", &[LateReceives]),
        ("a_graph_waits_for_room", &[GraphDrops]),
        ("a_graph_writes_words", &[GraphUnordered]),
        ("a_graph_fails_once_with_its_endpoint", &[GraphLost, GraphTwice]),
        ("a_graph_ends_when_its_endpoint_is_closed", &[GraphLost, GraphTwice]),
        ("a_graph_refuses_a_message_of_another_length", &[GraphLost]),
        ("a_refused_graph_takes_no_effect", &[PostsUnchecked]),
        ("any_graphs_keep_the_rules", &[GraphTells, GraphTwice, GraphLost]),
        ("a_refused_post_takes_no_effect", &[PostsUnchecked]),
        ("a_region_has_a_size", &[SizesUnchecked]),
    ]
};

/// Tests the suite itself: a scenario that passes on a network that breaks its rule proves nothing.
#[test]
fn every_scenario_notices_what_it_is_for() {
    let mut missed = Vec::new();
    for scenario in scenarios::ALL {
        let sabotages = BITES.iter().find(|(name, _)| *name == scenario.name).map_or(&[][..], |(_, list)| list);
        assert!(!sabotages.is_empty(), "{}: say in BITES what it notices", scenario.name);
        for &sabotage in sabotages {
            let caught = (0..SEEDS_TO_BITE).filter(|&seed| run(scenario.run, seed, Some(sabotage)).is_err()).count();
            if std::env::var_os("SQUALL_VERBOSE").is_some() {
                eprintln!("{} notices {sabotage:?} from {caught} of {SEEDS_TO_BITE} seeds", scenario.name);
            }
            if caught == 0 {
                missed.push(format!("{} does not notice {sabotage:?}", scenario.name));
            }
        }
    }
    for sabotage in Sabotage::ALL {
        if !BITES.iter().any(|(_, list)| list.contains(&sabotage)) {
            missed.push(format!("no scenario is for {sabotage:?}"));
        }
    }
    assert!(missed.is_empty(), "within {SEEDS_TO_BITE} seeds:\n{}", missed.join("\n"));
}

/// The same seed gives the same run, event by event.
#[test]
fn a_seed_replays() {
    use std::{cell::RefCell, rc::Rc};
    let trace = |seed: u64| {
        let lines = Rc::new(RefCell::new(Vec::new()));
        let mut bed = SimBed::new(seed, None);
        let sink = lines.clone();
        bed.net.set_trace(Some(Box::new(move |time, event| sink.borrow_mut().push(format!("{time} {event}")))));
        for scenario in scenarios::ALL.iter().filter(|scenario| scenario.name.contains("partition")) {
            (scenario.run)(&mut Rig::new(&mut bed)).expect("the scenario passes");
        }
        drop(bed);
        lines.take()
    };
    for seed in 0..6 {
        let first = trace(seed);
        assert!(first.len() > 50, "a run of {} events", first.len());
        assert_eq!(first, trace(seed), "seed {seed}");
    }
    assert_ne!(trace(0), trace(3));
}
