//! Figure 9: delivery latency of 1Pipe's variants, idle, and with loss.

use super::model::{Destinations, Figures, OrderProtocol, Profile, Scenario, ScenarioError, Switches, Traffic};
use squall_command::plot::{Axis, Chart, Unit};

use super::{
    ExperimentRun, line, on_all_cores,
    outcome::{ExperimentOutcome, Finding, Value, columns},
    seed, testbed,
};

const SIZES: [usize; 4] = [8, 16, 32, 512];
const VARIANTS: [(&str, Switches); 2] = [("chip", Switches::Chip), ("host", Switches::Representative)];
/// The time from one message of a process to the next, when idle.
const IDLE_GAP_NS: u64 = 50_000;
/// The time from one scattering of a process, to the 16 of a host, to the next, with loss: a tenth of what it could
/// send.
const LOSSY_GAP_NS: u64 = 32_000;

/// One variant at one size and loss. Times in µs.
struct LossPoint {
    variant: &'static str,
    processes: usize,
    loss: f64,
    /// The means, between hosts that are farthest from each other.
    unordered: f64,
    best_effort: f64,
    reliable: f64,
    /// The 95th percentiles.
    unordered_p95: f64,
    best_effort_p95: f64,
    reliable_p95: f64,
    /// The 95th percentile, over hosts and runs, of the mean that best effort adds to unordered delivery for a host's
    /// messages.
    overhead_of_hosts_p95: f64,
    /// The mean overhead over unordered delivery, of all messages.
    overhead_of_all: f64,
}

pub(super) fn run(run: ExperimentRun) -> Result<ExperimentOutcome, ScenarioError> {
    let losses = run.size(vec![1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1], vec![1e-6, 1e-5, 1e-4, 1e-3, 1e-1]);
    let idle = VARIANTS.into_iter().flat_map(|variant| SIZES.map(|processes| (variant, processes, 0.0)));
    let lossy = VARIANTS.into_iter().flat_map(|variant| losses.iter().map(move |&loss| (variant, 512, loss)));
    let each: Vec<((&str, Switches), usize, f64)> = idle.chain(lossy).collect();
    let points = on_all_cores(&each, |&(variant, processes, loss)| measure(variant, processes, loss, run));
    let points = points.into_iter().collect::<Result<Vec<LossPoint>, ScenarioError>>()?;
    let Profile { retransmit_ns, representative_ns, message_cpu_ns, prepare_cpu_ns, .. } = Profile::TESTBED;
    Ok(ExperimentOutcome {
        title: "delivery latency of 1Pipe".to_owned(),
        assumed: vec![
            testbed(),
            format!(
                "Without loss, each process sends a message to a random one each {} µs; with loss, scatterings to the 16 of a random \
                 host each {} µs, a tenth of what it could: the paper does not say how much is sent.",
                IDLE_GAP_NS / 1000,
                LOSSY_GAP_NS / 1000
            ),
            "Latencies are those between hosts that are as far from each other as any: 1, 3 and 5 hops with 8, 16 and more processes."
                .to_owned(),
            format!(
                "Hosts' commit barriers travel in beacons and messages; what is not acknowledged after the longest round trip and {} µs \
                 is sent again (assumed).",
                retransmit_ns / 1000
            ),
            "Beacons leave all hosts when their clocks show the same, and a switch passes them on at once when its last input has told \
             (assumed: §6.2.2 and §6.2.3 say \"periodically\", which would add a wait at each hop)."
                .to_owned(),
            format!(
                "A representative takes {} µs for each beacon, there and back (§7.2), and passes it on at once.",
                representative_ns / 1000
            ),
            format!(
                "Each message is delivered both with best effort and reliably, so all are charged a reliable one's {} ns at both ends \
                 ({prepare_cpu_ns} of them assumed).",
                message_cpu_ns + prepare_cpu_ns
            ),
            "Beacons are lost on every link, messages and acknowledgements where they end.".to_owned(),
        ],
        columns: columns([
            ("switches", "switches"),
            ("processes", "processes"),
            ("loss", "loss"),
            ("unordered us", "unordered_us"),
            ("BE us", "best_effort_us"),
            ("BE p95 us", "best_effort_p95_us"),
            ("R us", "reliable_us"),
            ("R p95 us", "reliable_p95_us"),
            ("BE overhead us", "best_effort_overhead_us"),
            ("hosts' p95 us", "best_effort_overhead_of_hosts_p95_us"),
            ("of all us", "best_effort_overhead_of_all_us"),
        ]),
        rows: points.iter().map(row).collect(),
        charts: charts(&points),
        findings: findings(&points),
    })
}

fn row(point: &LossPoint) -> Vec<Value> {
    let us = |value| Value::Measured(value, 2);
    vec![
        point.variant.into(),
        point.processes.into(),
        Value::Exponential(point.loss),
        us(point.unordered),
        us(point.best_effort),
        us(point.best_effort_p95),
        us(point.reliable),
        us(point.reliable_p95),
        us(point.best_effort - point.unordered),
        us(point.overhead_of_hosts_p95),
        us(point.overhead_of_all),
    ]
}

/// Measures one point in many runs, since clocks keep their offsets within a run.
fn measure(
    (variant, switches): (&'static str, Switches),
    processes: usize,
    loss: f64,
    run: ExperimentRun,
) -> Result<LossPoint, ScenarioError> {
    let (width, mean_gap_ns, runs) =
        if loss > 0.0 { (16, LOSSY_GAP_NS, run.size(20, 3)) } else { (1, IDLE_GAP_NS, run.size(200, 40)) };
    // Idle, each host sends enough for the mean of its messages to tell its clock's skew from the beacons' phase.
    let measured_ns = match processes {
        _ if loss > 0.0 => 400_000,
        ..=32 => 10_000_000,
        _ => 1_000_000,
    };
    let mut sum = Figures::default();
    for i in 0..runs {
        let scenario = Scenario {
            profile: Profile::TESTBED,
            processes,
            order: OrderProtocol::OnePipe { switches, reliable: true },
            traffic: Traffic::Scattered { to: Destinations::OneHost(width), mean_gap_ns },
            loss,
            warm_up_ns: 100_000,
            measured_ns,
            seed: seed(run, i),
        };
        sum.merge(&scenario.run()?);
    }
    let [unordered, best_effort, reliable] = &sum.farthest;
    Ok(LossPoint {
        variant,
        processes,
        loss,
        unordered: unordered.mean_us(),
        best_effort: best_effort.mean_us(),
        reliable: reliable.mean_us(),
        unordered_p95: unordered.percentile_us(95.0),
        best_effort_p95: best_effort.percentile_us(95.0),
        reliable_p95: reliable.percentile_us(95.0),
        overhead_of_hosts_p95: sum.ordering.percentile_us(95.0),
        overhead_of_all: sum.ordered.mean_us() - sum.unordered.mean_us(),
    })
}

fn charts(points: &[LossPoint]) -> Vec<Chart> {
    let lines = |lossy: bool, x: fn(&LossPoint) -> f64| {
        let of = |variant: &str, name: &str, value: fn(&LossPoint) -> f64| {
            let mine = points.iter().filter(|point| point.variant == variant && (point.loss > 0.0) == lossy);
            line(name, mine, |point| (x(point), value(point)))
        };
        let mut lines = Vec::new();
        for (variant, _) in VARIANTS {
            lines.push(of(variant, &format!("BE-{variant}"), |point| point.best_effort));
            lines.push(of(variant, &format!("R-{variant}"), |point| point.reliable));
        }
        lines.push(of("chip", "unordered", |point| point.unordered));
        lines
    };
    vec![
        Chart {
            title: "(a) idle".to_owned(),
            x: Axis::logarithmic("processes", Unit::Number),
            y: Axis::linear("latency, µs"),
            lines: lines(false, |point| point.processes as f64),
        },
        Chart {
            title: "(b) 512 processes, with loss".to_owned(),
            x: Axis::logarithmic("loss", Unit::Number),
            y: Axis::linear("mean latency, µs"),
            lines: lines(true, |point| point.loss),
        },
    ]
}

fn findings(points: &[LossPoint]) -> Vec<Finding> {
    let idle = |variant: &'static str| points.iter().filter(move |point| point.variant == variant && point.loss == 0.0);
    let listed = |values: &[f64]| values.iter().map(|us| format!("{us:.1}")).collect::<Vec<_>>().join(", ");
    let within = |values: &[f64], low: f64, high: f64| values.iter().all(|us| (low..=high).contains(us));
    let overheads: Vec<f64> = idle("chip").map(|point| point.best_effort - point.unordered).collect();
    let tails: Vec<f64> = idle("chip").map(|point| point.overhead_of_hosts_p95).collect();
    let of_messages: Vec<f64> = idle("chip").map(|point| point.best_effort_p95 - point.unordered_p95).collect();
    // With clocks that agree. The time that the receiving thread takes for the message passes meanwhile.
    let Profile { beacon_ns, message_cpu_ns, prepare_cpu_ns, .. } = Profile::TESTBED;
    let least = 0.95 * beacon_ns as f64 / 1e3 - (message_cpu_ns + prepare_cpu_ns) as f64 / 1e3;
    let detours: Vec<f64> =
        idle("host").zip(idle("chip")).map(|(host, chip)| host.best_effort - chip.best_effort).collect();
    let round_trips: Vec<f64> = idle("chip").map(|point| point.reliable - point.best_effort).collect();
    let lossy = |variant: &str, loss: f64| {
        let found = points.iter().find(|point| point.variant == variant && point.loss == loss);
        found.expect("it was measured")
    };
    // The growth of the mean latencies by a loss: of best effort, and of reliable delivery.
    let growth = |loss: f64| {
        VARIANTS.map(|(variant, _)| {
            let (with, without) = (lossy(variant, loss), lossy(variant, 1e-6));
            [with.best_effort - without.best_effort, with.reliable - without.reliable]
        })
    };
    let ([few, more, many], added) = ([1e-5, 1e-4, 1e-3].map(growth), |growth: &[[f64; 2]; 2]| {
        let [[chip_be, chip_r], [host_be, host_r]] = growth;
        format!("BE {chip_be:.1} and {host_be:.1}, R {chip_r:.1} and {host_r:.1} µs")
    });
    let flat = |variant: &str| {
        let (one, other) = (lossy(variant, 1e-6), lossy(variant, 1e-1));
        (other.unordered - one.unordered).abs() < 0.5
    };
    vec![
        Finding {
            claim: "BE-chip takes half a beacon interval and the clock skew more than unordered delivery, 1.7 to 2.3 µs, whatever the \
                    number of hops (§7.2; to 0.3 µs; computed, with beacons in phase assumed)"
                .to_owned(),
            holds: within(&overheads, 1.4, 2.6),
            figures: format!("{} µs with 8, 16, 32 and 512 processes", listed(&overheads)),
        },
        Finding {
            claim: "its tail overhead, half of the beacon interval and the maximum skew, is 1.7 to 3.3 µs (§7.2; to 0.3 µs; \
                    computed: the 95th percentile over hosts of their messages' mean overhead)"
                .to_owned(),
            holds: within(&tails, 1.4, 3.6),
            figures: format!(
                "{} µs; of single messages the 95th percentile is {} µs above unordered's, and at least {least:.1} with a beacon each {} \
                 µs, since some wait for nearly all of an interval",
                listed(&tails),
                listed(&of_messages),
                beacon_ns / 1000
            ),
        },
        Finding {
            claim: "representatives add 2 µs a hop, 10 µs with 5 hops (§7.2; to 10 %; an input: representative_ns)".to_owned(),
            holds: detours.iter().zip([2.0, 6.0, 10.0, 10.0]).all(|(us, hops)| (us / hops - 1.0f64).abs() < 0.1),
            figures: format!("{} µs", listed(&detours)),
        },
        Finding {
            claim: "reliable 1Pipe adds a round trip, 2 to 10 µs (§7.2; to 1 µs; the round trips are inputs, host_hop_ns and \
                    switch_hop_ns, and that it is one is computed)"
                .to_owned(),
            holds: round_trips.iter().zip([2.0, 6.0, 10.0, 10.0]).all(|(us, trip)| (us - trip).abs() < 1.0),
            figures: format!("{} µs", listed(&round_trips)),
        },
        Finding {
            claim: "latency grows when the loss is higher than 1e-5, R's more than BE's (§7.2; computed)".to_owned(),
            holds: few.iter().all(|[be, r]| be.abs() < 1.0 && r.abs() < 3.0)
                && few.iter().zip(&more).zip(&many).all(|((few, more), many)| {
                    few[1] < more[1] && more[1] < many[1] && more[0] < many[0] && many[1] > many[0] && more[1] > more[0]
                }),
            figures: format!(
                "chip and host, more than with 1e-6: at 1e-5 {}; at 1e-4 {}; at 1e-3 {}",
                added(&few),
                added(&more),
                added(&many)
            ),
        },
        Finding {
            claim: "unordered delivery does not notice it (Figure 9b; an input: it counts what is received at the first attempt)"
                .to_owned(),
            holds: flat("chip") && flat("host"),
            figures: format!(
                "{:.1} µs with 1e-6, {:.1} with 1e-1",
                lossy("chip", 1e-6).unordered,
                lossy("chip", 1e-1).unordered
            ),
        },
    ]
}
