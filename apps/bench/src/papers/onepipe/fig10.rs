//! Figure 10: the time that reliable 1Pipe takes to recover.

use super::model::{FailedComponent, Latencies, Profile, Recovery, ScenarioError};
use squall_command::plot::{Axis, Chart};

use super::{
    ExperimentRun, line, on_all_cores,
    outcome::{ExperimentOutcome, Finding, Value, columns},
    seed, testbed,
};

const SIZES: [usize; 5] = [2, 4, 8, 16, 32];
const FAILURES: [(&str, FailedComponent); 4] = [
    ("host", FailedComponent::Host),
    ("ToR switch", FailedComponent::RackSwitch),
    ("core link", FailedComponent::CoreLink),
    ("core switch", FailedComponent::CoreSwitch),
];
/// The end of the paper's axis, in µs.
const AXIS_US: f64 = 600.0;

struct RecoveryPoint {
    failure: &'static str,
    hosts: usize,
    times: Latencies,
    /// The time until the controller had the first report, in the mean, in µs.
    reported_us: f64,
    /// Scatterings that were recalled, in the mean.
    recalled: f64,
}

pub(super) fn run(run: ExperimentRun) -> Result<ExperimentOutcome, ScenarioError> {
    let trials = run.size(60, 8);
    let each: Vec<_> = FAILURES.into_iter().flat_map(|failure| SIZES.map(|hosts| (failure, hosts))).collect();
    let points = on_all_cores(&each, |&((name, failure), hosts)| measure((name, failure), hosts, trials, run));
    let points = points.into_iter().collect::<Result<Vec<RecoveryPoint>, ScenarioError>>()?;
    let Profile { silent_intervals, controller_ns, log_ns, .. } = Profile::TESTBED;
    let us = |value| Value::Measured(value, 1);
    Ok(ExperimentOutcome {
        title: "recovery of reliable 1Pipe".to_owned(),
        assumed: vec![
            testbed(),
            format!(
                "A switch reports a link that was silent for {silent_intervals} beacon intervals (assumed). The controller is 5 hops away, takes \
                 {} µs for a message and {} µs to write a decision to its replicated log, one for each failure (assumed).",
                controller_ns / 1000,
                log_ns / 1000
            ),
            "Each host has one process, which sends reliable scatterings to all. Hosts are in the racks of both pods in turn.".to_owned(),
            format!(
                "{trials} failures each, of a random part at a random time. The recovery time is that until a survivor's commit barrier \
                 has passed the failure."
            ),
        ],
        columns: columns([
            ("failure", "failure"),
            ("hosts", "hosts"),
            ("mean us", "recovery_mean_us"),
            ("p5 us", "recovery_p5_us"),
            ("p95 us", "recovery_p95_us"),
            ("reported us", "reported_us"),
            ("recalled", "recalled"),
        ]),
        rows: points
            .iter()
            .map(|point| {
                vec![
                    point.failure.into(),
                    point.hosts.into(),
                    us(point.times.mean_us()),
                    us(point.times.percentile_us(5.0)),
                    us(point.times.percentile_us(95.0)),
                    us(point.reported_us),
                    us(point.recalled),
                ]
            })
            .collect(),
        charts: vec![Chart {
            title: "by what fails".to_owned(),
            x: Axis::linear("hosts"),
            y: Axis::linear("recovery time, µs"),
            lines: FAILURES
                .map(|(name, _)| {
                    let mine = points.iter().filter(|point| point.failure == name);
                    line(name, mine, |point| (point.hosts as f64, point.times.mean_us()))
                })
                .into(),
        }],
        findings: findings(&points),
    })
}

fn measure(
    (name, failure): (&'static str, FailedComponent),
    hosts: usize,
    trials: u64,
    run: ExperimentRun,
) -> Result<RecoveryPoint, ScenarioError> {
    let (mut times, mut reported, mut recalled) = (Latencies::default(), 0, 0);
    for trial in 0..trials {
        let recovered = Recovery { profile: Profile::TESTBED, failure, hosts, seed: seed(run, trial) }.run()?;
        times.merge(&recovered.times);
        reported += recovered.reported_ns;
        recalled += recovered.recalled;
    }
    let trials = trials as f64;
    Ok(RecoveryPoint {
        failure: name,
        hosts,
        times,
        reported_us: reported as f64 / trials / 1e3,
        recalled: recalled as f64 / trials,
    })
}

fn findings(points: &[RecoveryPoint]) -> Vec<Finding> {
    let mean = |failure: &str, hosts: usize| {
        let found = points.iter().find(|point| point.failure == failure && point.hosts == hosts);
        found.map_or(f64::NAN, |point| point.times.mean_us())
    };
    let ends = |failure: &str| format!("{failure} {:.0} to {:.0} µs", mean(failure, 2), mean(failure, 32));
    let longest = points.iter().map(|point| point.times.percentile_us(95.0)).fold(0.0, f64::max);
    let first = points.iter().map(|point| point.reported_us).fold(f64::MAX, f64::min);
    let (cut_off, whole) = (["host", "ToR switch"], ["core link", "core switch"]);
    vec![
        Finding {
            claim: format!("recovery takes less than {AXIS_US:.0} µs (Figure 10's axis, not its text; computed, with controller_ns and log_ns \
                 assumed)"),
            holds: longest < AXIS_US,
            figures: format!("at most {longest:.0} µs at the 95th percentile; the first report is there after {first:.0} µs"),
        },
        Finding {
            claim: "what cuts hosts off takes longer than what others' paths go round: survivors wedge, drop and recall (the protocol's \
                    steps; computed)"
                .to_owned(),
            holds: SIZES.iter().all(|&n| cut_off.iter().all(|f| whole.iter().all(|w| mean(f, n) > mean(w, n)))),
            figures: cut_off.iter().chain(&whole).map(|failure| ends(failure)).collect::<Vec<_>>().join(", "),
        },
        Finding {
            claim: "and it takes longer the more hosts there are to ask (the protocol's steps; computed, with controller_ns assumed)".to_owned(),
            holds: cut_off.iter().all(|failure| SIZES.is_sorted_by(|&a, &b| mean(failure, a) < mean(failure, b)))
                && whole.iter().all(|failure| mean(failure, 32) < 1.2 * mean(failure, 2)),
            figures: format!("{}; {}", ends("host"), ends("core link")),
        },
    ]
}
