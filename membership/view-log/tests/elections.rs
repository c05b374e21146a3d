//! Elections when links are cut, in one direction or both. No log is without a leader for longer than three failure
//! timeouts while a majority is connected, and a leader that a majority hears stays.

use std::{collections::BTreeMap, time::Duration};

use squall_fabric::{NodeId, Time};
use squall_membership::ViewLog;

use crate::{
    seeds::seeds,
    world::{MS, World},
};

/// The default one, for which the default times are made.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(1);
const BOUND: Duration = Duration::from_secs(3);
const ALL: [u32; 5] = [1, 2, 3, 4, 5];

/// A world whose nodes notice broken links, as membership does: after the failure timeout at the latest, and once.
struct Watched {
    world: World,
    /// By pair (listener, other), the time since which the listener hears nothing, and whether it has noticed that.
    silent: BTreeMap<(u32, u32), (Time, bool)>,
    /// The number, of a hundred breaks of a link, that are noticed at once.
    at_once: u32,
}

impl Watched {
    /// Five voters, with a leader that has led for some while.
    fn new(seed: u64, at_once: u32) -> Watched {
        let mut world = World::formed(&ALL, seed);
        world.seed = Some(seed);
        let pause = world.rng.u32(1000..6000);
        world.run(MS * pause);
        Watched { world, silent: BTreeMap::new(), at_once }
    }

    fn leader(&mut self) -> u32 {
        let statuses = ALL.iter().filter_map(|id| self.world.nodes[id].log.as_ref().map(|log| (id, log.status())));
        let leads = statuses.filter(|(id, status)| status.leader == Some(NodeId(**id)));
        *leads.max_by_key(|(_, status)| status.term).expect("a leader").0
    }

    fn hears(&self, listener: u32, other: u32) -> bool {
        self.world.is_up(other) && !self.world.cut.contains(&(other, listener))
    }

    fn cut(&mut self, from: u32, to: u32) {
        self.world.cut.push((from, to));
    }

    fn cut_pair(&mut self, a: u32, b: u32) {
        self.world.cut.extend([(a, b), (b, a)]);
    }

    /// Tells nodes which others they don't hear any more.
    fn notice(&mut self) {
        let now = self.world.now;
        for (listener, other) in pairs() {
            if !self.world.is_up(listener) || self.hears(listener, other) {
                self.silent.remove(&(listener, other));
                continue;
            }
            let is_at_once = self.world.rng.u32(..100) < self.at_once;
            let (since, is_told) = *self.silent.entry((listener, other)).or_insert((now, false));
            let is_due = (since == now && is_at_once) || now.since(since) >= FAILURE_TIMEOUT;
            if !is_told && is_due {
                self.silent.insert((listener, other), (since, true));
                self.world.log(listener).peer_gone(NodeId(other));
            }
        }
    }

    fn run(&mut self, duration: Duration) {
        let end = self.world.now + duration;
        while self.world.now < end {
            self.notice();
            let left = end.since(self.world.now);
            self.world.run(left.min(10 * MS));
        }
    }

    /// Lets a node propose a successor until it hears of this epoch. Returns the time that this took, or for which it
    /// waited in vain.
    fn decide(&mut self, by: u32, members: &[u32], epoch: u64, each: impl Fn(&mut Watched)) -> Duration {
        let began = self.world.now;
        let mut proposed = None;
        while self.world.epoch(by) < Some(epoch) && self.world.now.since(began) < 4 * BOUND {
            if self.world.epoch(by) != proposed {
                proposed = self.world.epoch(by);
                self.world.propose(by, members);
            }
            each(self);
            self.run(5 * MS);
        }
        self.world.now.since(began)
    }

    fn terms(&mut self) -> Vec<u64> {
        ALL.iter().map(|id| self.world.log(*id).status().term).collect()
    }
}

fn pairs() -> impl Iterator<Item = (u32, u32)> {
    ALL.into_iter().flat_map(|a| ALL.into_iter().filter(move |&b| b != a).map(move |b| (a, b)))
}

/// Prints the measured times, and checks the bound.
#[expect(clippy::print_stdout, reason = "what was measured is of interest beyond the bound")]
fn check(what: &str, mut took: Vec<(Duration, u64)>) {
    took.sort_unstable();
    let (median, worst) = (took[took.len() / 2].0, took[took.len() - 1]);
    let late = took.iter().filter(|(took, _)| *took > BOUND).count();
    println!(
        "{what}: {} times, median {median:?}, longest {:?} (seed {}), {late} too late",
        took.len(),
        worst.0,
        worst.1
    );
    assert!(late == 0, "{what}: {:?} with seed {}", worst.0, worst.1);
}

#[test]
fn a_leader_that_dies_while_a_pair_is_cut_is_replaced_in_time() {
    for at_once in [100, 0] {
        let mut took = Vec::new();
        for seed in seeds(60) {
            let mut watched = Watched::new(seed, at_once);
            let leader = watched.leader();
            let mut left: Vec<u32> = ALL.into_iter().filter(|&id| id != leader).collect();
            watched.world.rng.shuffle(&mut left);
            watched.world.crash(leader);
            watched.cut_pair(left[0], left[1]);
            let mut stay = left[1..].to_vec();
            stay.sort_unstable();
            let by = stay[watched.world.rng.usize(..3)];
            took.push((watched.decide(by, &stay, 2, |_| {}), seed));
        }
        check(&format!("a dead leader and a cut pair, noticed at once in {at_once} of 100"), took);
    }
}

/// Cut for less than the failure timeout, and then whole; the proposal comes while it is cut.
#[test]
fn a_one_way_cut_that_is_short_stops_nothing_for_long() {
    let kinds = [
        "from the leader to one",
        "from one to the leader",
        "from the leader to all",
        "from all to the leader",
        "others",
    ];
    for (kind, what) in kinds.into_iter().enumerate() {
        let mut took = Vec::new();
        for seed in seeds(30) {
            let mut watched = Watched::new(seed, 50);
            let leader = watched.leader();
            let mut others: Vec<u32> = ALL.into_iter().filter(|&id| id != leader).collect();
            watched.world.rng.shuffle(&mut others);
            match kind {
                0 => watched.cut(leader, others[0]),
                1 => watched.cut(others[0], leader),
                2 => others.iter().for_each(|&other| watched.cut(leader, other)),
                3 => others.iter().for_each(|&other| watched.cut(other, leader)),
                _ => watched.cut(others[0], others[1]),
            }
            let (by, heals_at) = (others[watched.world.rng.usize(..4)], watched.world.now + FAILURE_TIMEOUT * 7 / 10);
            let heal = |watched: &mut Watched| {
                if watched.world.now >= heals_at {
                    watched.world.cut.clear();
                }
            };
            let pause = watched.world.rng.u32(..600);
            watched.run(MS * pause);
            took.push((watched.decide(by, &ALL, 2, heal), seed));
        }
        check(&format!("cut for 0.7 s {what}"), took);
    }
}

/// As before, but the cut stays: a leader that reaches no majority, or is reached by none, leads no more.
#[test]
fn a_one_way_cut_that_stays_keeps_no_majority_waiting() {
    for from_leader in [true, false] {
        let mut took = Vec::new();
        for seed in seeds(40) {
            let mut watched = Watched::new(seed, if seed % 2 == 0 { 0 } else { 50 });
            let leader = watched.leader();
            let mut others: Vec<u32> = ALL.into_iter().filter(|&id| id != leader).collect();
            watched.world.rng.shuffle(&mut others);
            for &other in &others[..3] {
                let (from, to) = if from_leader { (leader, other) } else { (other, leader) };
                watched.cut(from, to);
            }
            let stay: Vec<u32> = ALL.into_iter().filter(|id| others.contains(id)).collect();
            let by = others[watched.world.rng.usize(..3)];
            took.push((watched.decide(by, &stay, 2, |_| {}), seed));
        }
        check(if from_leader { "a leader that three don't hear" } else { "a leader that does not hear three" }, took);
    }
}

/// Each question and each vote takes a fifth of a second: nodes that stand must leave each other the time for it.
#[test]
fn over_slow_links_a_leader_is_elected_in_few_terms() {
    for delay in [20, 60, 100] {
        let mut took = Vec::new();
        for seed in seeds(40) {
            let mut watched = Watched::new(seed, 100);
            watched.world.delay = MS * delay;
            watched.run(3 * FAILURE_TIMEOUT);
            let (leader, term) = (watched.leader(), watched.terms()[0]);
            watched.world.crash(leader);
            let left: Vec<u32> = ALL.into_iter().filter(|&id| id != leader).collect();
            took.push((watched.decide(left[0], &left, 2, |_| {}), seed));
            let terms = watched.world.log(left[0]).status().term - term;
            assert!(terms <= 3, "seed {seed}: {terms} terms with messages that take {delay} ms");
        }
        check(&format!("a dead leader, and messages that take up to {delay} ms"), took);
    }
}

/// No node says that the second leader is gone, and the first one, which hears no other, has not stopped to say that it
/// leads.
#[test]
fn who_led_before_is_not_taken_for_the_leader() {
    let mut took = Vec::new();
    for seed in seeds(40) {
        let mut watched = Watched::new(seed, 100);
        let first = watched.leader();
        let others: Vec<u32> = ALL.into_iter().filter(|&id| id != first).collect();
        others.iter().for_each(|&other| watched.cut(other, first));
        watched.run(3 * FAILURE_TIMEOUT);
        let second = watched.leader();
        assert_ne!(second, first, "seed {seed}");
        watched.world.crash(second);
        let left: Vec<u32> = others.into_iter().filter(|&id| id != second).collect();
        let began = watched.world.now;
        watched.world.propose(left[0], &left);
        let is_decided = |world: &World| world.epoch(left[0]) == Some(2);
        watched.world.run_until(4 * BOUND, "a view", is_decided);
        took.push((watched.world.now.since(began), seed));
    }
    check("a second leader that dies without a word", took);
}

#[test]
fn a_follower_that_was_isolated_deposes_nobody() {
    for seed in seeds(40) {
        let mut watched = Watched::new(seed, 50);
        let (leader, terms) = (watched.leader(), watched.terms());
        let follower = 1 + (leader + watched.world.rng.u32(..4)) % 5;
        for other in ALL.into_iter().filter(|&id| id != follower) {
            match seed % 4 {
                0 => watched.cut(other, follower),
                1 => watched.cut(follower, other),
                2 => watched.cut_pair(follower, other),
                _ if other == leader => watched.cut(leader, follower),
                _ => {}
            }
        }
        let pause = watched.world.rng.u32(500..9000);
        watched.run(MS * pause);
        watched.world.cut.clear();
        watched.run(5 * FAILURE_TIMEOUT);
        assert_eq!((watched.leader(), watched.terms()), (leader, terms), "seed {seed}, {follower} was cut off");
    }
}

/// Links between all come and go in each direction, except those of a majority, which can talk to each other from a
/// random moment on.
#[test]
fn while_a_majority_is_connected_something_is_decided_in_time() {
    let mut took = Vec::new();
    for seed in seeds(100) {
        let mut watched = Watched::new(seed, 30);
        for _ in 0..4 {
            let calm = watched.world.rng.u32(100..4000);
            let start = watched.world.now;
            while watched.world.now.since(start) < MS * calm {
                flap(&mut watched, &[]);
                watched.run(10 * MS);
            }
            let mut nodes = ALL;
            watched.world.rng.shuffle(&mut nodes);
            let majority = nodes[..3].to_vec();
            watched.world.cut.retain(|(a, b)| !(majority.contains(a) && majority.contains(b)));
            let next = watched.world.decided.keys().last().expect("a view").0 + 1;
            let by = majority[0];
            took.push((watched.decide(by, &ALL, next, |watched| flap(watched, &majority)), seed));
        }
    }
    check("while links flap", took);
}

/// Now and then cuts or heals links that are not among these nodes: each stays as it is for half a second on average.
fn flap(watched: &mut Watched, connected: &[u32]) {
    for (a, b) in pairs() {
        let world = &mut watched.world;
        if (connected.contains(&a) && connected.contains(&b)) || world.rng.u32(..50) > 0 {
            continue;
        }
        let before = world.cut.len();
        world.cut.retain(|pair| *pair != (a, b));
        if world.cut.len() == before {
            world.cut.push((a, b));
        }
    }
}
