//! One wall clock that is wrong: it does not carry the group's time with it, and the other members go on.

use std::{io, time::Duration};

use rkyv::rend::u64_le;
use squall::{
    Applied, Config, Group, Hlc, Mode, NodeId, Outcome, Replicated, Snapshot, SubmitError, Unavailable,
    sim::{Cluster, Options, ViewLogKind},
};

use crate::sum::Sum;

/// The time of the last command.
#[derive(Default)]
struct Last(Sum);

impl Replicated for Last {
    type Command = u64;
    type Reply = u64;

    fn apply(&mut self, _command: &u64_le, at: &Applied) -> u64 {
        let time = at.time.0;
        assert!(time > self.0.0, "the group's time goes on");
        self.0.0 = time;
        time
    }

    fn snapshot(&self) -> Snapshot {
        Replicated::snapshot(&self.0)
    }

    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        Replicated::restore(&mut self.0, from)
    }
}

const SECOND: i64 = 1_000_000_000;
const HOUR: i64 = 3600 * SECOND;
const WITHIN: Duration = Duration::from_secs(5);
/// The default limit.
const LIMIT: i64 = 5 * SECOND;

fn config(members: u32, mode: Mode) -> Config {
    let config = Config::builder("demo", 1).members(1..=members).storage("simulated");
    config.group("last", |group| _ = group.mode(mode)).build().expect("it is valid")
}

/// A cluster whose group is durable if the seed is even, else in memory.
fn cluster(members: u32, seed: u64) -> Cluster {
    let mode = if seed.is_multiple_of(2) { Mode::Durable } else { Mode::Ordered };
    Cluster::new(config(members, mode), Options { view_log: ViewLogKind::RaftOnDisks, ..Options::default() }, seed)
}

/// Submits, and checks the command's time against the true one.
fn submit(seed: u64, cluster: &mut Cluster, group: &Group<Last>) -> Result<u64, SubmitError> {
    let time = cluster.wait(WITHIN, group.submit(&1)).expect("it is answered")?;
    let Hlc(now) = cluster.true_time();
    assert!(time <= now + LIMIT as u64, "seed {seed}: the group's time is {} s ahead", (time - now) as f64 / 1e9);
    Ok(time)
}

/// Crashes a node, and starts it again.
fn start_again(cluster: &mut Cluster, groups: &mut [Group<Last>], node: NodeId) {
    cluster.crash(node);
    groups[node.0 as usize - 1] = cluster.declare(node, "last", Last::default());
    cluster.launch(node).expect("it starts");
}

fn is_refused(answer: Result<u64, SubmitError>) -> bool {
    match answer {
        Err(
            error @ SubmitError::Unavailable { why: Unavailable::ClockAhead { .. }, outcome: Outcome::NotAccepted },
        ) => {
            let sentence = error.to_string();
            assert!(sentence.contains("s ahead of node") && sentence.contains("chrony"), "{sentence}");
            true
        }
        _ => false,
    }
}

#[test]
fn a_clock_that_jumps_ahead_is_refused_until_it_is_right_and_the_others_go_on() {
    let mut at_once = 0;
    for seed in 0..20 {
        let members = 3 + seed as u32 % 3;
        let mut cluster = cluster(members, seed);
        let groups = cluster.group("last", |_| Last::default());
        cluster.start().expect("it forms");
        for group in &groups {
            submit(seed, &mut cluster, group).expect("all clocks are right");
        }
        let mut rng = fastrand::Rng::with_seed(seed);
        let wrong = rng.usize(..members as usize);
        let node = NodeId(wrong as u32 + 1);
        cluster.run_for(Duration::from_micros(rng.u64(..500_000)));
        cluster.set_wall_clock(node, HOUR);
        for (number, group) in groups.iter().enumerate() {
            let answer = submit(seed, &mut cluster, group);
            // A node that is awake may not have looked at its clock yet, and then goes on with the time before.
            assert!(number == wrong || answer.is_ok(), "seed {seed}: {answer:?}");
            at_once += usize::from(is_refused(answer));
        }
        // The node with the wrong clock serves reads meanwhile, and is a member.
        cluster.run_for(Duration::from_secs(1));
        assert!(is_refused(submit(seed, &mut cluster, &groups[wrong])), "seed {seed}");
        let last = submit(seed, &mut cluster, &groups[(wrong + 1) % groups.len()]).expect("its clock is right");
        let seen = cluster.wait(WITHIN, groups[wrong].read(|last| last.0.0)).expect("it is answered");
        assert_eq!(seen, Ok(last), "seed {seed}");
        cluster.set_wall_clock(node, 0);
        submit(seed, &mut cluster, &groups[wrong]).expect("its clock is right again");
        cluster.set_wall_clock(node, -HOUR);
        assert!(submit(seed, &mut cluster, &groups[wrong]).expect("a clock may be behind") > last, "seed {seed}");
    }
    assert!((1..20).contains(&at_once), "the first message after the jump is refused in {at_once} of 20 seeds");
}

#[test]
fn who_starts_with_a_clock_that_is_ahead_stamps_nothing() {
    for seed in 0..20 {
        let mut cluster = cluster(3, seed);
        let wrong = seed as usize % 3;
        let node = NodeId(wrong as u32 + 1);
        cluster.set_wall_clock(node, HOUR);
        let mut groups = cluster.group("last", |_| Last::default());
        cluster.start().expect("it forms");
        for (number, group) in groups.iter().enumerate() {
            let answer = submit(seed, &mut cluster, group);
            assert_eq!(is_refused(answer.clone()), number == wrong, "seed {seed}: {answer:?}");
        }
        // A member that comes back serves as well, with a submit that waits for its first view.
        start_again(&mut cluster, &mut groups, node);
        let back = |cluster: &Cluster| cluster.view(node).is_some_and(|view| view.members.len() == 3);
        assert!(cluster.run_until(WITHIN, back), "seed {seed}");
        let answer = submit(seed, &mut cluster, &groups[wrong]);
        assert!(answer.is_err(), "seed {seed}: {answer:?}");
        submit(seed, &mut cluster, &groups[(wrong + 1) % 3]).expect("its clock is right");
    }
}

/// The joining member's messages carry times behind the group's own, which it has to learn with the state.
#[test]
fn a_member_that_joins_goes_on_with_the_group_s_time() {
    for seed in 0..20 {
        let mut cluster = cluster(3, seed);
        let mut groups = cluster.group("last", |_| Last::default());
        cluster.start().expect("it forms");
        cluster.set_wall_clock(NodeId(1), LIMIT / 2);
        cluster.run_for(Duration::from_millis(500));
        let ahead = submit(seed, &mut cluster, &groups[0]).expect("its clock is within the limit");
        start_again(&mut cluster, &mut groups, NodeId(3));
        let is_back =
            |cluster: &Cluster| cluster.view(NodeId(3)).is_some_and(|view| view.shards[0].complete.len() == 3);
        assert!(cluster.run_until(WITHIN, is_back), "seed {seed}");
        let last = submit(seed, &mut cluster, &groups[1]).expect("its clock is right");
        assert!(last > ahead, "seed {seed}");
        for group in &groups {
            let seen = cluster.wait(WITHIN, group.read(|last| last.0.0)).expect("it is answered");
            assert_eq!(seen, Ok(last), "seed {seed}");
        }
    }
}

/// No other event could wake the member.
#[test]
fn a_message_that_comes_before_the_others_clocks_are_known_is_sent_once_they_are() {
    for seed in 0..40 {
        let mut cluster = cluster(3, seed);
        let mut groups = cluster.group("last", |_| Last::default());
        cluster.start().expect("it forms");
        submit(seed, &mut cluster, &groups[0]).expect("all clocks are right");
        start_again(&mut cluster, &mut groups, NodeId(3));
        let answered = loop {
            cluster.run_for(Duration::from_micros(20));
            let mut submit = groups[2].submit(&1);
            match cluster.wait(Duration::ZERO, &mut submit) {
                Some(Err(SubmitError::NotStarted | SubmitError::Unavailable { .. })) => {}
                Some(answer) => break answer,
                None => break cluster.wait(WITHIN, submit).expect("it is answered"),
            }
        };
        assert!(answered.is_ok(), "seed {seed}: {answered:?}");
    }
}

#[test]
fn of_two_the_clock_that_is_behind_counts() {
    for seed in 7..9 {
        let mut cluster = cluster(2, seed);
        let groups = cluster.group("last", |_| Last::default());
        cluster.start().expect("it forms");
        cluster.set_wall_clock(NodeId(2), -HOUR);
        cluster.run_for(Duration::from_secs(1));
        assert!(is_refused(submit(seed, &mut cluster, &groups[0])));
        submit(seed, &mut cluster, &groups[1]).expect("its clock is the one that is behind");
    }
}
