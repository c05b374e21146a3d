//! Rules for the model as a whole.

use super::{
    Destinations, Figures, Latencies, OrderProtocol, Profile, Scenario, Switches, Traffic,
    queue::EventQueue,
    skew,
    topology::Topology,
    world::{ModelEvent, World},
};

const CHIP: OrderProtocol = OrderProtocol::OnePipe { switches: Switches::Chip, reliable: false };
const REPRESENTATIVE: OrderProtocol = OrderProtocol::OnePipe { switches: Switches::Representative, reliable: false };
const EXACT: Profile = Profile { skew_ns: 0.0, ..Profile::TESTBED };

fn scattered(processes: usize, order: OrderProtocol, loss: f64, seed: u64) -> Scenario {
    Scenario {
        profile: Profile::TESTBED,
        processes,
        order,
        traffic: Traffic::Scattered { to: Destinations::OneHost(4), mean_gap_ns: 20_000 },
        loss,
        warm_up_ns: 50_000,
        measured_ns: 300_000,
        seed,
    }
}

fn broadcast(processes: usize, order: OrderProtocol, load_percent: u64) -> Figures {
    let traffic = Traffic::Broadcast { load_percent };
    let (warm_up_ns, measured_ns) = (100_000, 400_000);
    run(Scenario { profile: Profile::TESTBED, processes, order, traffic, loss: 0.0, warm_up_ns, measured_ns, seed: 1 })
}

fn run(scenario: Scenario) -> Figures {
    scenario.run().expect("it can be simulated")
}

/// The latencies of one message between two hosts of a rack whose clocks agree, sent after `sent_ns`. Ticks are
/// multiples of 3 µs.
fn one_message(order: OrderProtocol, sent_ns: u64) -> [f64; 3] {
    let traffic = Traffic::Scattered { to: Destinations::OneHost(1), mean_gap_ns: 1_000_000_000 };
    let scenario =
        Scenario { profile: EXACT, traffic, warm_up_ns: 0, measured_ns: 40_000, ..scattered(2, order, 0.0, 1) };
    let mut world = World::new(scenario, Topology::new(vec![0, 0], EXACT));
    world.queue = EventQueue::new();
    let first = skew::ORIGIN_NS / EXACT.beacon_ns + 1;
    (0..2).for_each(|host| world.schedule_tick(host, first));
    world.queue.at(sent_ns, ModelEvent::Ready(0));
    world.run();
    let Figures { unordered, ordered, reliable, .. } = world.figures;
    [unordered, ordered, reliable].map(|latencies: Latencies| {
        assert_eq!(latencies.count(), 1);
        latencies.mean_us()
    })
}

#[test]
fn one_message_takes_what_one_counts_by_hand() {
    // Clocks show 1,000,000 at the beginning, so beacons leave at 2, 5, 8, 11, 14 µs. Sent at 10 µs, the message takes
    // 12 ns and 500 to the switch, as much to the receiver, and 200 there.
    let [unordered, best_effort, reliable] = one_message(CHIP, 10_000);
    assert_eq!(unordered, 1.224);
    // Of the beacons of 11 µs, the message's own host's and the other's, both take 7 ns and 500, twice.
    assert_eq!(best_effort, 2.014);
    // The acknowledgement is back at 12.226 µs, so that the beacon of 14 µs is the first to tell.
    assert_eq!(reliable, 5.014);
}

#[test]
fn a_representative_delays_the_barrier_and_nothing_else() {
    // The beacon of 8 µs is back from the representative at 10.507 µs, and on the receiver's link for 7 ns. The
    // message, which is there at 10.512, waits for one of them.
    let [unordered, best_effort, reliable] = one_message(REPRESENTATIVE, 10_000);
    assert_eq!([unordered, best_effort, reliable], [1.226, 4.014, 7.014]);
}

#[test]
fn a_message_that_just_misses_a_beacon_waits_for_the_next() {
    // The beacon of 11 µs comes behind the message on all links, and while the receiving thread works on it.
    assert_eq!(one_message(CHIP, 10_999)[1], 1.224);
    // At 11 µs the message's stamp is that beacon's, which promises nothing about equal stamps.
    assert_eq!(one_message(CHIP, 11_000)[1], 4.014);
}

#[test]
fn with_clocks_that_agree_the_overhead_is_half_an_interval_at_any_distance() {
    for processes in [8, 16, 32] {
        let scenario = Scenario { profile: EXACT, measured_ns: 5_000_000, ..scattered(processes, CHIP, 0.0, 3) };
        let [unordered, ordered, _] = run(scenario).farthest.map(|latencies| latencies.mean_us());
        // The receiving thread's time for the message passes while it waits.
        let overhead = ordered - unordered + EXACT.message_cpu_ns as f64 / 1e3;
        assert!((overhead - 1.5).abs() < 0.1, "{processes} processes: {overhead} µs");
    }
}

#[test]
fn one_message_takes_as_long_where_a_host_has_many_processes() {
    let least = |processes| {
        let traffic = Traffic::Scattered { to: Destinations::OneHost(1), mean_gap_ns: 500_000 };
        run(Scenario { traffic, ..scattered(processes, CHIP, 0.0, 1) }).farthest[0].percentile_us(5.0)
    };
    assert_eq!(least(512), least(32));
}

#[test]
fn a_run_follows_from_its_seed() {
    let figures = |seed| run(scattered(64, CHIP, 1e-2, seed));
    assert_eq!(figures(1), figures(1));
    assert_ne!(figures(1), figures(2));
}

/// Receivers assert that no message comes after its barrier, and that they deliver in order.
#[test]
fn nothing_comes_after_its_barrier_whatever_is_lost() {
    for order in [CHIP, REPRESENTATIVE] {
        for (processes, loss) in [(2, 0.3), (16, 0.0), (64, 1e-2), (64, 0.2)] {
            for seed in 0..4 {
                let figures = run(scattered(processes, order, loss, seed));
                assert!(figures.reliable.count() > 0, "{order:?}, {processes} processes, loss {loss}, seed {seed}");
                assert_eq!(figures.lost > 0, loss > 0.0, "{order:?}, {processes} processes, loss {loss}, seed {seed}");
            }
        }
    }
}

#[test]
fn what_is_lost_is_delivered_reliably_all_the_same() {
    let scenario = Scenario { measured_ns: 2_000_000, ..scattered(32, CHIP, 0.1, 5) };
    let figures = run(scenario);
    let (sent, got) = (figures.unordered.count() as f64 / 0.9, figures.reliable.count() as f64);
    assert!((got / sent - 1.0).abs() < 0.05, "{got} of {sent}");
    assert!((figures.ordered.count() as f64 / sent - 0.9).abs() < 0.05, "best effort sends nothing again");
}

/// Senders assert that acknowledged messages have come.
#[test]
fn what_is_sent_again_in_vain_is_acknowledged_once() {
    let profile = Profile { message_cpu_ns: 2_000, retransmit_ns: 0, ..Profile::TESTBED };
    for seed in 0..4 {
        let figures = run(Scenario { profile, ..scattered(64, CHIP, 0.2, seed) });
        assert!(figures.lost > 0 && figures.reliable.count() > 0, "seed {seed}");
    }
}

#[test]
fn every_order_delivers_what_is_sent() {
    let orders = [
        CHIP,
        REPRESENTATIVE,
        OrderProtocol::SwitchSequencer,
        OrderProtocol::HostSequencer,
        OrderProtocol::Token,
        OrderProtocol::Lamport { exchange_percent: 50 },
    ];
    for order in orders {
        for processes in [2, 8, 64] {
            let figures = broadcast(processes, order, 20);
            let (received, delivered) = (figures.unordered.count() as f64, figures.ordered.count() as f64);
            assert!(received > 0.0, "{order:?} with {processes}");
            assert!((delivered / received - 1.0).abs() < 0.2, "{order:?} with {processes}: {delivered} of {received}");
        }
    }
}

#[test]
fn a_process_that_prepares_sends_less() {
    let [best_effort, reliable] = [false, true].map(|reliable| {
        let figures = broadcast(32, OrderProtocol::OnePipe { switches: Switches::Chip, reliable }, 100);
        if reliable { figures.reliable_rate() } else { figures.ordered_rate() }
    });
    assert!((0.7..0.8).contains(&(reliable / best_effort)), "{reliable} of {best_effort} M/s");
}

#[test]
fn one_sequencer_passes_on_no_more_than_its_link_does() {
    let figures = broadcast(64, OrderProtocol::HostSequencer, 100);
    let all = figures.ordered_rate() * 64.0;
    let link = Profile::TESTBED;
    // Messages to the two processes of a host go together.
    let most = 2e3 / link.wire_ns(2 * link.message_bytes, 1) as f64;
    assert!((0.8 * most..1.01 * most).contains(&all), "{all} of {most} M/s");
}
