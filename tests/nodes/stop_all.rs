//! All processes of a durable group are asked to end at once, as a supervisor does with SIGTERM, in the midst of
//! submits. Each calls `leave`, all end within the limit, and all that was acknowledged is there when they are started
//! again.

use std::{
    io::{self, BufRead},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use rustix::process::Signal;
use signal_hook::consts::SIGTERM;
use squall::{Group, Node};

use crate::{
    process::{self, Cluster, PATIENCE, Process, say},
    sum::Sum,
};

/// The number of times that all stop, over each backend.
const ROUNDS: u64 = 15;

/// The time after which a supervisor kills a process that has not ended.
const LIMIT: Duration = Duration::from_secs(10);

/// The number of submits of each process that are under way, to each shard.
const WINDOW: usize = 8;

#[test]
#[ignore = "it is what the other tests start as processes"]
fn node() {
    let asked = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGTERM, Arc::clone(&asked)).expect("signals can be handled");
    let mut node = Node::builder(process::config("sum"));
    let sums = node.sharded("sum", |_| Sum::default());
    let node = node.start().expect("it becomes a member");
    say("ready").expect("the test listens");
    for line in io::stdin().lock().lines() {
        if line.expect("the test speaks UTF-8") == "write" {
            break;
        }
        let sums =
            sums.iter().map(|shard| shard.read(|sum| sum.0).wait().map_or("-".to_owned(), |sum| sum.to_string()));
        say(&sums.collect::<Vec<_>>().join(" ")).expect("the test listens");
    }
    let writers: Vec<_> = sums
        .iter()
        .map(|shard| {
            let (shard, asked) = (shard.clone(), Arc::clone(&asked));
            thread::spawn(move || write(&shard, &asked))
        })
        .collect();
    while !asked.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(1));
    }
    let has_left = node.leave(LIMIT);
    // All accepted submits have an answer by now.
    let counts = writers.into_iter().map(|writer| writer.join().expect("it does not panic"));
    let counts: Vec<String> = counts.map(|(added, asked)| format!("{added} {asked}")).collect();
    node.shutdown();
    say(&format!("{has_left} {}", counts.join(" "))).expect("the test listens");
}

/// Adds ones until it is asked to stop. Returns the number that were acknowledged, and the number that may have been
/// added.
fn write(shard: &Group<Sum>, asked: &AtomicBool) -> (u64, u64) {
    let (mut added, mut sent) = (0, 0);
    while !asked.load(Ordering::Relaxed) {
        let submits: Vec<_> = (0..WINDOW).map(|_| shard.submit(&1).deadline(LIMIT)).collect();
        for submit in submits {
            match submit.wait() {
                Ok(_) => (added, sent) = (added + 1, sent + 1),
                Err(error) if error.is_not_applied() => thread::sleep(Duration::from_micros(100)),
                Err(_) => sent += 1,
            }
        }
    }
    (added, sent)
}

/// The shards' sums at all members that serve them, once each shard is served by one.
fn sums(nodes: &mut [Process], shards: usize) -> Vec<Vec<u64>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut found = vec![Vec::new(); shards];
        for node in &mut *nodes {
            let answer = node.ask("sums");
            found.iter_mut().zip(answer.split(' ')).for_each(|(sums, sum)| sums.extend(sum.parse::<u64>()));
        }
        if found.iter().all(|sums| !sums.is_empty()) {
            return found;
        }
        assert!(Instant::now() < deadline, "shards are not served: {found:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Sends all of them the signal, one soon after the other, and waits until all have ended. Returns, for each shard, the
/// number that was added for certain, and the number that was added at most.
fn stop(nodes: &mut [Process], gap: Duration, rng: &mut Rng, shards: usize) -> Vec<(u64, u64)> {
    let began = Instant::now();
    rng.shuffle(nodes);
    for node in &*nodes {
        node.send(Signal::TERM);
        thread::sleep(gap.mul_f64(rng.f64()));
    }
    let mut counts = vec![(0, 0); shards];
    for node in nodes {
        let said = node.answer();
        let (has_left, numbers) = said.split_once(' ').expect("whether it has left, and counts");
        assert_eq!(has_left, "true", "node {} is stranded", node.id);
        let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().expect("a number")).collect();
        for (count, own) in counts.iter_mut().zip(numbers.chunks_exact(2)) {
            *count = (count.0 + own[0], count.1 + own[1]);
        }
    }
    assert!(began.elapsed() < LIMIT, "they took {:?}", began.elapsed());
    counts
}

fn all_stop_and_come_back(backend: &'static str, members: u32, shards: u32) {
    let cluster = Cluster::durable("stop", backend, members).with_own_node().with_shards(shards, members.min(3));
    let mut rng = Rng::new();
    let mut bounds = vec![(0, 0); shards as usize];
    for round in 0..=ROUNDS {
        let mut nodes = cluster.start();
        for (shard, (sums, bound)) in sums(&mut nodes, shards as usize).iter().zip(&mut bounds).enumerate() {
            let (least, most) = *bound;
            assert!(sums.iter().all(|sum| *sum == sums[0]), "round {round}: shard {shard} is {sums:?}");
            assert!((least..=most).contains(&sums[0]), "round {round}: {least} to {most} in shard {shard}: {sums:?}");
            *bound = (sums[0], sums[0]);
        }
        nodes.iter_mut().for_each(|node| node.tell("write"));
        thread::sleep(Duration::from_millis(rng.u64(0..100)));
        let gap = Duration::from_millis([0, 2, 20, 200][rng.usize(0..4)]);
        for (bound, (added, sent)) in bounds.iter_mut().zip(stop(&mut nodes, gap, &mut rng, shards as usize)) {
            *bound = (bound.0 + added, bound.1 + sent);
        }
    }
}

#[test]
fn over_shm_all_stop_at_once_and_nothing_is_lost() {
    all_stop_and_come_back("shm", 3, 1);
}

#[test]
fn over_tcp_all_stop_at_once_and_nothing_is_lost() {
    all_stop_and_come_back("tcp", 4, 3);
}
