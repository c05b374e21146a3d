//! Figure 8: throughput and latency of total order broadcasts, by the number of processes.

use super::model::{Figures, OrderProtocol, Profile, Scenario, ScenarioError, Switches, Traffic};
use squall_command::plot::{Axis, Chart, Unit};

use super::{
    ExperimentRun, line, on_all_cores,
    outcome::{ExperimentOutcome, Finding, Value, columns},
    testbed,
};

const TESTBED: Profile = Profile::TESTBED;
/// The share of a process's time that goes into exchanging Lamport's timestamps.
const EXCHANGE_PERCENT: u64 = 50;
/// The load at which latencies are measured, in percent of what one process can send.
const HALF: u64 = 50;
const FULL: u64 = 100;

/// One way to get messages into order.
#[derive(Clone, Copy)]
struct System {
    name: &'static str,
    order: OrderProtocol,
    /// Whether reliable deliveries count.
    reliable: bool,
    /// Whether each of the paper's two charts shows it.
    charts: [bool; 2],
}

const fn one_pipe(switches: Switches, reliable: bool) -> OrderProtocol {
    OrderProtocol::OnePipe { switches, reliable }
}

const SYSTEMS: [System; 7] = [
    System { name: "1Pipe/BE", order: one_pipe(Switches::Chip, false), reliable: false, charts: [true, true] },
    System {
        name: "1Pipe/BE host",
        order: one_pipe(Switches::Representative, false),
        reliable: false,
        charts: [false, true],
    },
    System { name: "1Pipe/R", order: one_pipe(Switches::Chip, true), reliable: true, charts: [true, false] },
    System { name: "SwitchSeq", order: OrderProtocol::SwitchSequencer, reliable: false, charts: [true, true] },
    System { name: "HostSeq", order: OrderProtocol::HostSequencer, reliable: false, charts: [true, true] },
    System { name: "Token", order: OrderProtocol::Token, reliable: false, charts: [true, true] },
    System {
        name: "Lamport",
        order: OrderProtocol::Lamport { exchange_percent: EXCHANGE_PERCENT },
        reliable: false,
        charts: [true, true],
    },
];

/// The figures of one system with so many processes.
struct ScalingPoint {
    system: &'static str,
    processes: usize,
    /// Millions of messages per second and process, as fast as they can.
    rate: f64,
    /// The latency at half the load, in µs: the mean, and the 5th and 95th percentiles.
    latency: [f64; 3],
    /// Whether more is offered at half the load than its sequencer can number, so that the window alone bounds its
    /// latency.
    saturated: bool,
}

pub(super) fn run(run: ExperimentRun) -> Result<ExperimentOutcome, ScenarioError> {
    let sizes: Vec<usize> = run.size(vec![2, 4, 8, 16, 32, 64, 128, 256, 512], vec![2, 8, 32, 128, 512]);
    let each = SYSTEMS.into_iter().flat_map(|system| sizes.iter().map(move |&processes| (system, processes)));
    let other_shares = [("Lamport 25 %", 25), ("Lamport 75 %", 75)].map(|(name, exchange_percent)| {
        let order = OrderProtocol::Lamport { exchange_percent };
        (System { name, order, reliable: false, charts: [false; 2] }, 512)
    });
    let each: Vec<(System, usize)> = each.chain(other_shares).collect();
    let points = on_all_cores(&each, |(system, processes)| measure(system, *processes, run));
    let points = points.into_iter().collect::<Result<Vec<ScalingPoint>, ScenarioError>>()?;
    let chart = |of: usize, title: &str, y: Axis, value: fn(&ScalingPoint) -> f64| Chart {
        title: title.to_owned(),
        x: Axis::logarithmic("processes", Unit::Number),
        y,
        lines: SYSTEMS
            .iter()
            .filter(|system| system.charts[of])
            .map(|system| {
                let mine = points.iter().filter(|point| point.system == system.name);
                line(system.name, mine, |point| (point.processes as f64, value(point)))
            })
            .collect(),
    };
    Ok(ExperimentOutcome {
        title: "total order broadcasts of 64 bytes, from all processes to all".to_owned(),
        assumed: assumed(),
        columns: columns([
            ("system", "system"),
            ("processes", "processes"),
            ("M msg/s per process", "mmsg_per_s"),
            ("latency us", "latency_mean_us"),
            ("p5 us", "latency_p5_us"),
            ("p95 us", "latency_p95_us"),
        ]),
        rows: points
            .iter()
            .map(|point| {
                let mut row = vec![point.system.into(), point.processes.into(), Value::Measured(point.rate, 3)];
                row.extend(point.latency.map(|us| Value::Measured(us, 1)));
                row
            })
            .collect(),
        charts: vec![
            chart(0, "throughput, as fast as they can", Axis::linear("M messages/s per process"), |point| point.rate),
            chart(1, "latency at half of 1Pipe's load", Axis::logarithmic("latency, µs", Unit::Number), |point| {
                point.latency[0]
            }),
        ],
        findings: findings(&points),
    })
}

fn assumed() -> Vec<String> {
    vec![
        testbed(),
        format!(
            "A process's sending and receiving threads take {} ns for a message (from the paper's 5 M per second), and {} ns more \
             for one that is reliable (assumed).",
            TESTBED.message_cpu_ns, TESTBED.prepare_cpu_ns
        ),
        format!(
            "A message takes {} bytes of a link, since 80 M per second and host fit into 100 Gb/s; its acknowledgement {} (assumed).",
            TESTBED.message_bytes, TESTBED.acknowledgement_bytes
        ),
        format!(
            "Sequencers number every message: one on a core switch takes {} ns for each (assumed: the clock of one pipeline), one on \
             a server what its link takes. A process has {} messages under way at most (assumed).",
            TESTBED.sequencer_ns, TESTBED.window
        ),
        format!(
            "Lamport's processes give {EXCHANGE_PERCENT} % of their time to the exchange, unless another share is named."
        ),
        "Latencies are those of single messages, from when their broadcast is ready to leave; 1Pipe/R's are of reliable delivery."
            .to_owned(),
    ]
}

fn measure(system: &System, processes: usize, run: ExperimentRun) -> Result<ScalingPoint, ScenarioError> {
    let of = |load_percent| {
        let (warm_up_ns, measured_ns) = times(system.order, processes as u64, load_percent);
        let traffic = Traffic::Broadcast { load_percent };
        let order = system.order;
        let scenario = Scenario {
            profile: TESTBED,
            processes,
            order,
            traffic,
            loss: 0.0,
            warm_up_ns,
            measured_ns,
            seed: run.seed,
        };
        scenario.run()
    };
    let fast = of(FULL)?;
    let rate = if system.reliable { fast.reliable_rate() } else { fast.ordered_rate() };
    let Figures { ordered, reliable, .. } = of(HALF)?;
    let latencies = if system.reliable { reliable } else { ordered };
    let latency = [latencies.mean_us(), latencies.percentile_us(5.0), latencies.percentile_us(95.0)];
    let saturated = utilisation(system.order, processes as u64, HALF) > 1.0;
    Ok(ScalingPoint { system: system.name, processes, rate, latency, saturated })
}

/// The time that a sequencer takes for one message, in nanoseconds; 0 for systems without one.
fn bottleneck_ns(order: OrderProtocol) -> f64 {
    match order {
        OrderProtocol::SwitchSequencer => TESTBED.sequencer_ns as f64,
        OrderProtocol::HostSequencer => (TESTBED.message_bytes * 8) as f64 / TESTBED.bits_per_ns as f64,
        _ => 0.0,
    }
}

/// The load that is offered to a sequencer, as a part of its capacity.
fn utilisation(order: OrderProtocol, processes: u64, load_percent: u64) -> f64 {
    let one_ns = TESTBED.message_cpu_ns as f64 * 100.0 / load_percent as f64;
    processes as f64 * bottleneck_ns(order) / one_ns
}

/// The time to warm up, and to measure: some broadcasts of each process, or of what the bottleneck lets through.
fn times(order: OrderProtocol, n: u64, load_percent: u64) -> (u64, u64) {
    let one = n * TESTBED.message_cpu_ns * 100 / load_percent;
    // A sequencer takes this long for all that the windows hold. A growing queue holds all that after several times as
    // long.
    let windows = (TESTBED.window * n) as f64 * bottleneck_ns(order);
    let bound = match order {
        OrderProtocol::OnePipe { .. } => one,
        OrderProtocol::SwitchSequencer | OrderProtocol::HostSequencer => one.max(windows as u64),
        // A round, in which each process sends once, and the token goes some hops.
        OrderProtocol::Token => n * (n * 11 + 2_000),
        OrderProtocol::Lamport { exchange_percent } => one + n * TESTBED.message_cpu_ns * 100 / exchange_percent,
    };
    match order {
        OrderProtocol::SwitchSequencer | OrderProtocol::HostSequencer => {
            let utilisation = utilisation(order, n, load_percent);
            let full =
                if utilisation > 1.0 { (windows / (1.0 - 1.0 / utilisation)).min(8.0 * windows) } else { windows };
            (60_000 + one + 5 * full as u64 / 4, 150_000 + 3 * bound / 4)
        }
        OrderProtocol::OnePipe { .. } | OrderProtocol::Lamport { .. } => (60_000 + 3 * bound, 150_000 + 5 * bound),
        OrderProtocol::Token => (5 * bound / 4, bound),
    }
}

fn findings(points: &[ScalingPoint]) -> Vec<Finding> {
    let at = |system: &str, processes: usize| {
        points.iter().find(|point| point.system == system && point.processes == processes).expect("it was measured")
    };
    let rates = |system: &str| {
        let mine = points.iter().filter(|point| point.system == system);
        mine.map(|point| (point.processes, point.rate)).collect::<Vec<_>>()
    };
    let ends = |rates: &[(usize, f64)]| {
        rates.iter().fold((f64::MAX, f64::MIN), |(low, high), &(_, rate)| (low.min(rate), high.max(rate)))
    };
    let (low, high) = ends(&rates("1Pipe/BE"));
    let against = |system: &str| -> Vec<(usize, f64)> {
        let pairs = rates(system).into_iter().zip(rates("1Pipe/BE"));
        pairs.map(|((n, rate), (_, best))| (n, rate / best)).collect()
    };
    let (host_low, host_high) = ends(&against("1Pipe/BE host"));
    let (r_low, r_high) = ends(&against("1Pipe/R"));
    let sequencers = ["SwitchSeq", "HostSeq"].map(|name| (at(name, 2), at(name, 512)));
    let [(switch_few, switch_many), (host_few, host_many)] = &sequencers;
    let saturated = |system: &str| {
        let first = points.iter().find(|point| point.system == system && point.saturated);
        first.map_or("nowhere".to_owned(), |point| format!("from {} processes on", point.processes))
    };
    let token = [32, 512].map(|n| at("Token", n).rate / at("1Pipe/BE", n).rate);
    let lamport = ["Lamport 25 %", "Lamport", "Lamport 75 %"].map(|name| at(name, 512));
    vec![
        Finding {
            claim: "1Pipe scales linearly to 512 processes, 5 M messages/s each, 80 M a host (§7.2; to 5 %; 5 M is an \
                    input, message_cpu_ns, and that nothing else slows them down is computed)"
                .to_owned(),
            holds: low > 4.75 && high < 5.25,
            figures: format!(
                "{low:.2} to {high:.2} M per process, with 512 of them {:.1} M a host",
                at("1Pipe/BE", 512).rate * 16.0
            ),
        },
        Finding {
            claim: "chip and representatives deliver the same throughput (§7.2; to 3 %; an input: no message passes a representative)"
                .to_owned(),
            holds: host_low > 0.97 && host_high < 1.03,
            figures: format!("representatives {host_low:.3} to {host_high:.3} of the chip's"),
        },
        Finding {
            claim: "reliable 1Pipe has 25 % lower throughput than best effort (§7.2; 20 to 30 %; an input: prepare_cpu_ns)"
                .to_owned(),
            holds: r_low > 0.7 && r_high < 0.8,
            figures: format!("{:.1} to {:.1} % lower", (1.0 - r_high) * 100.0, (1.0 - r_low) * 100.0),
        },
        Finding {
            claim: "sequencers are a bottleneck: throughput falls, and latency soars when they saturate (§7.2; where they saturate is an \
                    input, sequencer_ns and the link, and so is how high latency gets, the window; the rest is computed)"
                .to_owned(),
            holds: sequencers.iter().all(|(few, many)| {
                many.rate < 0.5 * few.rate && many.latency[0] > 10.0 * few.latency[0]
            }),
            figures: format!(
                "from 2 to 512 processes, switch {:.2} to {:.2} M and {:.1} to {:.0} µs, host {:.2} to {:.2} M and {:.1} to {:.0} µs; \
                 1Pipe/BE stays at {:.2} M, {:.1} and {:.1} µs; at half of its load the switch is saturated {}, the host {}: there the \
                 window of {} messages alone bounds latency",
                switch_few.rate,
                switch_many.rate,
                switch_few.latency[0],
                switch_many.latency[0],
                host_few.rate,
                host_many.rate,
                host_few.latency[0],
                host_many.latency[0],
                at("1Pipe/BE", 512).rate,
                at("1Pipe/BE", 2).latency[0],
                at("1Pipe/BE", 512).latency[0],
                saturated("SwitchSeq"),
                saturated("HostSeq"),
                TESTBED.window,
            ),
        },
        Finding {
            claim: "the token has low throughput, since one process sends at any time (§7.2; under a fifth of 1Pipe's from 32 on; \
                    computed)"
                .to_owned(),
            holds: token.iter().all(|part| *part < 0.2),
            figures: format!(
                "{:.1} % of 1Pipe/BE's with 32 processes, {:.1} % with 512",
                token[0] * 100.0,
                token[1] * 100.0
            ),
        },
        Finding {
            claim: "Lamport trades latency for throughput: 512 processes that exchange half the time take 200 µs (§7.2; to 30 %; \
                    computed)"
                .to_owned(),
            holds: (140.0..260.0).contains(&lamport[1].latency[0])
                && lamport.is_sorted_by(|a, b| a.latency[0] > b.latency[0] && a.rate > b.rate),
            figures: lamport
                .iter()
                .zip([25, EXCHANGE_PERCENT, 75])
                .map(|(point, percent)| format!("{percent} %: {:.0} µs, {:.2} M", point.latency[0], point.rate))
                .collect::<Vec<_>>()
                .join("; "),
        },
    ]
}
