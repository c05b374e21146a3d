//! Collective operations between processes, and their outcome when a process dies, freezes, or never comes.

use std::{
    io,
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use squall::{
    Config, NodeId, Spin,
    collectives::{
        Algorithm, Builtin, Collective, CollectiveError, Collectives, CommunicatorConfig, CommunicatorId, FormError,
    },
    config::Backend,
};
use squall_fabric::mixed::MixedFabric;

use crate::process::{self, Cluster, PATIENCE, Process};

/// Long enough for several chunks, and for RDMC where it is used.
const LONG: usize = 150_000;

/// The time within which all processes must know that one was killed.
const NOTICED_WITHIN: Duration = Duration::from_secs(5);

const OPERATIONS: [&str; 10] = [
    "barrier",
    "broadcast",
    "long-broadcast",
    "reduce",
    "allreduce",
    "gather",
    "scatter",
    "allgather",
    "reduce-scatter",
    "all-to-all",
];

#[test]
#[ignore = "it is what the other tests start as processes"]
fn node() {
    let config = process::config("ranks");
    serve(config.open_fabric().expect("a fabric"), &config);
}

/// Answers each line: `form INSTANCE NODE..`, or an operation, which is repeated until it fails.
fn serve(fabric: MixedFabric, config: &Config) {
    // Some processes go to sleep at once.
    let spin = if config.id().0.is_multiple_of(2) { Spin::Never } else { Spin::Auto };
    let mut ranks = Collectives::new(fabric, spin, config.members().len());
    let mut on = None;
    process::say("ready").expect("the test listens");
    for line in io::stdin().lines() {
        let line = line.expect("the test speaks UTF-8");
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[..] {
            ["form", instance, ref nodes @ ..] => {
                let nodes = nodes.iter().map(|id| NodeId(id.parse().expect("a number"))).collect();
                let tag = Collectives::tag(0, instance.parse().expect("a number"));
                let config = CommunicatorConfig { reproducible: true, ..CommunicatorConfig::new(nodes, tag) };
                let formed = ranks.form(config, PATIENCE).and_then(|formed| Ok((formed, ranks.barrier(formed)?)));
                formed.map_or_else(
                    |error| error.to_string(),
                    |(formed, ())| {
                        on = Some(formed);
                        "formed".to_owned()
                    },
                )
            }
            [operation] => {
                let on = on.expect("it is formed");
                once(&mut ranks, on, operation).expect("no rank is killed yet");
                process::say("running").expect("the test listens");
                loop {
                    if let Err(error) = once(&mut ranks, on, operation) {
                        break format!("{error:?}");
                    }
                }
            }
            _ => panic!("{line:?}"),
        };
        if process::say(&answer).is_err() {
            return;
        }
    }
}

/// One operation on vectors whose results are known.
fn once(ranks: &mut Collectives<MixedFabric>, on: CommunicatorId, operation: &str) -> Result<(), CollectiveError> {
    let communicator = ranks.communicator(on)?;
    let (me, n) = (communicator.rank() as u64, communicator.ranks());
    let sum = Builtin::Sum.into();
    let total: u64 = (0..n as u64).sum();
    let all: Vec<u64> = (0..n as u64).collect();
    let (result, expected) = match operation {
        "barrier" => return ranks.barrier(on),
        "broadcast" => (ranks.broadcast(on, 1, vec![me; 5])?, vec![1; 5]),
        "long-broadcast" => (ranks.broadcast(on, 1, vec![me; LONG])?, vec![1; LONG]),
        "reduce" => (ranks.reduce(on, 0, &sum, vec![me; 3])?, vec![total; if me == 0 { 3 } else { 0 }]),
        "allreduce" => (ranks.allreduce(on, &sum, vec![me; LONG])?, vec![total; LONG]),
        "gather" => (ranks.gather(on, 0, vec![me])?, if me == 0 { all } else { Vec::new() }),
        "scatter" => (ranks.scatter(on, 0, if me == 0 { all } else { vec![0] })?, vec![me]),
        "allgather" => (ranks.allgather(on, vec![me])?, all),
        "reduce-scatter" => (ranks.reduce_scatter(on, &sum, vec![me; n])?, vec![total]),
        "all-to-all" => (ranks.all_to_all(on, vec![me; n])?, all),
        _ => panic!("{operation:?}"),
    };
    assert!(result == expected, "{operation} at rank {me} of {n}");
    Ok(())
}

/// The answers of some processes.
struct Answers(Vec<Receiver<Option<String>>>);

impl Answers {
    fn of(processes: &mut [Process]) -> Answers {
        let listen = |process: &mut Process| {
            let (tell, told) = channel();
            process.listen(move |answer| _ = tell.send(answer));
            told
        };
        Answers(processes.iter_mut().map(listen).collect())
    }

    /// Checks that the next answer of each process is `expected`.
    fn all(&self, expected: &str, what: &str) {
        self.all_within(PATIENCE, expected, what);
    }

    fn all_within(&self, limit: Duration, expected: &str, what: &str) {
        let next = |told: &Receiver<_>| told.recv_timeout(limit).unwrap_or_else(|_| panic!("{what}: no answer"));
        let answers: Vec<Option<String>> = self.0.iter().map(next).collect();
        assert!(answers.iter().all(|answer| answer.as_deref() == Some(expected)), "{what}: {answers:?}");
    }
}

fn form(processes: &mut [Process], instance: usize) {
    let nodes: Vec<String> = processes.iter().map(|process| process.id.to_string()).collect();
    let line = format!("form {instance} {}", nodes.join(" "));
    processes.iter_mut().for_each(|process| process.tell(&line));
}

/// For each operation, kills one of the processes that repeat it.
fn one_is_killed_during_each_operation(backend: &'static str, ranks: u32) {
    let cluster = Cluster::new(&format!("collectives-{ranks}"), backend, ranks).with_own_node();
    for (instance, operation) in (1..).zip(OPERATIONS) {
        let mut processes = cluster.start();
        let mut answers = Answers::of(&mut processes);
        form(&mut processes, instance);
        answers.all("formed", &format!("{operation}, forming"));
        processes.iter_mut().for_each(|process| process.tell(operation));
        answers.all("running", &format!("{operation}, once"));
        let victim = instance % ranks as usize;
        processes.remove(victim).kill();
        answers.0.remove(victim);
        let failed = format!("{:?}", CollectiveError::Failed { rank: victim });
        answers.all_within(NOTICED_WITHIN, &failed, &format!("{operation}, one killed"));
        // The others go on without it.
        form(&mut processes, 100 + instance);
        answers.all("formed", &format!("{operation}, forming again"));
    }
}

#[test]
fn one_is_killed_during_each_operation_over_shared_memory() {
    one_is_killed_during_each_operation("shm", 4);
}

#[test]
fn one_of_two_is_killed_and_nobody_else_can_tell_the_other() {
    one_is_killed_during_each_operation("shm", 2);
}

#[test]
fn one_is_killed_during_each_operation_over_tcp() {
    one_is_killed_during_each_operation("tcp", 4);
}

#[test]
fn one_that_is_frozen_only_delays_the_others() {
    let cluster = Cluster::new("collectives-frozen", "shm", 3).with_own_node();
    let mut processes = cluster.start();
    let answers = Answers::of(&mut processes);
    processes[1].signal("-STOP");
    form(&mut processes, 1);
    // No process can have formed without it.
    assert!(answers.0[0].recv_timeout(Duration::from_millis(50)).is_err());
    processes[1].signal("-CONT");
    answers.all("formed", "after a freeze");
    // An operation does not go wrong either if a process stops during it.
    processes.iter_mut().for_each(|process| process.tell("allreduce"));
    answers.all("running", "once");
    processes[1].signal("-STOP");
    let quiet = Duration::from_millis(200);
    assert!([0, 2].iter().all(|&rank: &usize| answers.0[rank].recv_timeout(quiet).is_err()));
    processes[1].signal("-CONT");
    assert!(answers.0.iter().all(|told| told.recv_timeout(quiet).is_err()));
    processes.remove(2).kill();
    let failed = format!("{:?}", CollectiveError::Failed { rank: 2 });
    Answers(answers.0.into_iter().take(2).collect()).all_within(NOTICED_WITHIN, &failed, "one killed after a freeze");
}

fn config(cluster: &str, id: u32, nodes: u32) -> Config {
    Config::builder(cluster, id).members(0..nodes).backend(Backend::Shm).build().expect("a sound configuration")
}

/// Runs `body` on each of so many ranks, which are threads.
fn on_each(test: &str, nodes: u32, body: impl Fn(u32, &mut Collectives<MixedFabric>, CommunicatorId) + Sync) {
    let cluster = format!("collectives-{test}-{}", std::process::id());
    thread::scope(|scope| {
        for id in 0..nodes {
            let (cluster, body) = (&cluster, &body);
            scope.spawn(move || {
                let fabric = config(cluster, id, nodes).open_fabric().expect("shared memory");
                let mut ranks = Collectives::new(fabric, Spin::Auto, nodes as usize);
                let all = CommunicatorConfig::new((0..nodes).map(NodeId).collect(), Collectives::tag(0, 1));
                let all =
                    ranks.form(CommunicatorConfig { reproducible: true, ..all }, PATIENCE).expect("all are there");
                body(id, &mut ranks, all);
                ranks.close(all).expect("no rank fails");
            });
        }
    });
}

#[test]
fn communicators_are_split_by_color_and_ordered_by_key() {
    on_each("split", 5, |id, ranks, all| {
        // Node 4 has no color; the others' order is reversed.
        let color = (id < 4).then_some(id % 2);
        let half = ranks.split(all, color, -(id as i32), PATIENCE).expect("all are there");
        assert_eq!(half.is_some(), id < 4);
        let Some(half) = half else { return };
        let nodes = ranks.allgather(half, vec![id]).expect("no rank fails");
        assert_eq!(nodes, if id % 2 == 0 { [2, 0] } else { [3, 1] });
        let alone = ranks.split(half, Some(id), 0, PATIENCE).expect("it is").expect("it has a color");
        assert_eq!(ranks.allreduce(alone, &Builtin::Sum.into(), vec![id]), Ok(vec![id]));
        for on in [alone, half] {
            ranks.close(on).expect("no rank fails");
        }
        assert_eq!(ranks.barrier(half), Err(CollectiveError::Disconnected));
    });
}

#[test]
fn several_operations_are_under_way_while_others_are_waited_for() {
    on_each("started", 3, |id, ranks, all| {
        for round in 0..50u64 {
            let sums: Vec<_> = (0..6)
                .map(|k| {
                    let vector = vec![u64::from(id) + k + round; 1000 * (k as usize + 1)];
                    let sum = Builtin::Sum.into();
                    ranks.start(all, |all, fabric| all.start_allreduce(fabric, &sum, vector)).expect("no rank fails")
                })
                .skip(2)
                .collect();
            // The results of the first two were dropped when other operations took their lanes.
            ranks.barrier(all).expect("no rank fails");
            for (k, sum) in (2..).zip(sums).skip(1) {
                let expected = vec![3 + 3 * (k + round); 1000 * (k as usize + 1)];
                while k % 2 == 0 && !ranks.test(&sum).expect("no rank fails") {
                    thread::yield_now();
                }
                assert!(ranks.wait(sum).expect("no rank fails") == expected, "sum {k} of round {round}");
            }
        }
    });
}

#[test]
fn reproducible_sums_have_the_same_bits_a_thousand_times_by_every_algorithm() {
    on_each("bits", 4, |id, ranks, all| {
        let mut random = fastrand::Rng::with_seed(id.into());
        let vector: Vec<f64> = (0..40).map(|_| (random.f64() - 0.5) * 10f64.powi(random.i32(-12..12))).collect();
        let algorithms = [
            Algorithm::Exchange,
            Algorithm::Tree { degree: 1 },
            Algorithm::Tree { degree: 3 },
            Algorithm::Halving,
            Algorithm::Direct,
            Algorithm::Flat,
        ];
        let mut first: Option<Vec<u64>> = None;
        for repeat in 0..1000 {
            let algorithm = algorithms[repeat % algorithms.len()];
            let communicator = ranks.communicator(all).expect("it is formed");
            communicator.set_algorithm(Collective::Allreduce, Some(algorithm));
            let sums = ranks.allreduce(all, &Builtin::Sum.into(), vector.clone()).expect("no rank fails");
            let bits: Vec<u64> = sums.into_iter().map(f64::to_bits).collect();
            assert_eq!(first.get_or_insert_with(|| bits.clone()), &bits, "repeat {repeat} by {algorithm}");
        }
    });
}

#[test]
fn who_never_comes_is_named() {
    let cluster = format!("collectives-missing-{}", std::process::id());
    let fabric = config(&cluster, 0, 3).open_fabric().expect("shared memory");
    let mut ranks = Collectives::new(fabric, Spin::Auto, 3);
    let all = CommunicatorConfig::new((0..3).map(NodeId).collect(), Collectives::tag(0, 1));
    let limit = Duration::from_millis(50);
    let missing = FormError::Missing { missing: vec![NodeId(1), NodeId(2)], limit };
    assert_eq!(missing.to_string().split(" did not").next(), Some("node 1 and node 2"));
    assert_eq!(ranks.form(all, limit), Err(missing));
}
