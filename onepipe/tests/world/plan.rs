//! Random runs from seeds.

use std::time::Duration;

use squall_fabric::{
    NodeId, Time,
    sim::{Sabotage, SimConfig},
};
use squall_onepipe::{Mode, OnePipeConfig, ScatterError, SkewedClock, Topology};

use super::{World, check, config, fast};

/// The counts of a run, for checking that not all runs are tame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) delivered: [usize; 2],
    pub(crate) removed: usize,
    pub(crate) given_back: [usize; 2],
    /// Scatterings that were refused because too much waited.
    pub(crate) full: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        for mode in [0, 1] {
            self.delivered[mode] += other.delivered[mode];
            self.given_back[mode] += other.given_back[mode];
        }
        self.removed += other.removed;
        self.full += other.full;
    }
}

/// A group in any topology, with small rings.
fn random_config(n: usize, random: &mut fastrand::Rng) -> OnePipeConfig {
    let mut config = config(n);
    config.ring_bytes = [1024, 2048, 4096][random.usize(..3)];
    config.waiting_bytes = random.usize(500..5000);
    config.beacon_interval = Duration::from_micros(random.u64(2..40));
    // Without any activity, barriers are told only when a rank waits for them.
    config.activity = Duration::from_micros([0, random.u64(0..400)][random.usize(..2)]);
    // Epochs come near to the wrap-around of words, too.
    config.epoch = [0, 1, 0xfffd, 0xfffe, 0xffff][random.usize(..5)];
    if random.bool() {
        let mut ranks: Vec<usize> = (0..n).collect();
        random.shuffle(&mut ranks);
        let mut racks: Vec<Vec<usize>> = vec![Vec::new(); random.usize(1..=n)];
        for rank in ranks {
            let rack = random.usize(..racks.len());
            racks[rack].push(rank);
        }
        config.topology = Topology::Hierarchy { racks, degree: random.usize(1..4) };
    }
    config
}

/// Clocks that are off and drift, sometimes near to the wrap-around of timestamps; or that agree, so that many
/// timestamps are the same.
fn random_clocks(n: usize, random: &mut fastrand::Rng) -> Vec<SkewedClock> {
    let wrap = 1 << 48;
    let origin = [0, 1 << 40, wrap - 1_000_000, 3 * wrap - 100_000][random.usize(..4)];
    let skew = [0, 300, 100_000][random.usize(..3)];
    if random.u8(..3) == 0 {
        return vec![SkewedClock { origin, offset: 0, drift_ppm: 0 }; n];
    }
    let clock = |random: &mut fastrand::Rng| SkewedClock {
        origin,
        offset: random.i64(-skew..=skew),
        drift_ppm: random.i32(-300..=300),
    };
    (0..n).map(|_| clock(random)).collect()
}

/// Sends a random scattering from a rank.
fn send(world: &mut World, from: usize, tally: &mut Tally) {
    let n = world.ranks.len();
    let mut to: Vec<usize> = (0..n).filter(|rank| !world.logs[from].removed.contains(rank)).collect();
    world.random.shuffle(&mut to);
    to.truncate(world.random.usize(1..=to.len()));
    let mode = Mode::ALL[world.random.usize(..2)];
    let longest = world.pipe(from).max_message();
    let bytes = match world.random.u8(..16) {
        0 => 0,
        1..5 => longest,
        _ => world.random.usize(32..=100),
    };
    match world.scatter(from, mode, &to, bytes) {
        Ok(_) => {}
        Err(ScatterError::Full { .. }) => tally.full += 1,
        Err(ScatterError::Ended) => assert!(world.logs[from].has_ended || world.court.removed.contains(&from)),
        Err(error) => panic!("{error}"),
    }
}

/// The mishaps under way.
#[derive(Debug, Default)]
struct Mishaps {
    paused: Vec<usize>,
    cuts: Vec<(NodeId, NodeId)>,
}

impl Mishaps {
    fn resume(world: &mut World, rank: usize) {
        if world.ranks[rank].is_some() {
            world.net.resume(world.node(rank));
            world.step(rank);
        }
    }

    /// Ends all mishaps.
    fn end(&mut self, world: &mut World) {
        self.paused.drain(..).for_each(|rank| Mishaps::resume(world, rank));
        self.cuts.drain(..).for_each(|(a, b)| world.net.heal(a, b));
    }
}

/// Runs traffic, failures in its midst, and then checks the rules.
pub(crate) fn run(seed: u64, sabotage: Option<Sabotage>) -> Tally {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x9a7);
    let n = match random.u8(..20) {
        0 => 16,
        1 => 1,
        _ => random.usize(2..=9),
    };
    let config = random_config(n, &mut random);
    let clocks = random_clocks(n, &mut random);
    let nasty = SimConfig { failure_timeout: Duration::from_millis(3), ..SimConfig::nasty() };
    let sim = if random.bool() { fast() } else { nasty };
    let mut world = World::create(SimConfig { sabotage, ..sim }, seed, &config, &clocks);
    let mut tally = Tally::default();

    let turns = random.usize(20..400);
    let mut crashes = random.usize(0..=2).min(n - 1);
    let mut mishaps = random.usize(0..=3);
    // Each failure is settled before the next one, or several come together.
    let is_orderly = random.bool();
    // Only clocks that don't drift agree after an idle time.
    let idle_at = (random.bool() && clocks.iter().all(|clock| clock.drift_ppm == 0)).then(|| random.usize(..turns));
    let mut quiet_at = None;
    let mut wrong = Mishaps::default();
    begin(&mut world, &mut random, &mut crashes, &mut tally);
    for turn in 0..turns {
        let is_idle = idle_at == Some(turn);
        if is_idle || quiet_at == Some(turn) {
            wrong.end(&mut world);
            quiet(&mut world);
            world.pass(if is_idle { Duration::from_secs(50 * 3600) } else { Duration::ZERO });
            world.is_draining = false;
        }
        let alive: Vec<usize> = world.alive().filter(|&rank| world.runs(rank)).collect();
        let Some(&one) = world.random.choice(&alive) else { break };
        let before = (crashes, mishaps);
        match world.random.usize(..100) {
            0..50 => (0..world.random.usize(1..6)).for_each(|_| send(&mut world, one, &mut tally)),
            50..60 => world.step(one),
            60..64 if crashes > 0 && turn > 10 && world.others_stay(one) => {
                crashes -= 1;
                world.crash(one);
            }
            64..66 if mishaps > 0 => {
                mishaps -= 1;
                world.net.pause(world.node(one));
                wrong.paused.push(one);
            }
            66..68 if mishaps > 0 && alive.len() > 2 => {
                mishaps -= 1;
                let other = *world.random.choice(&alive).expect("there are some");
                if other != one {
                    let (a, b) = (world.node(one), world.node(other));
                    world.net.cut(a, b);
                    wrong.cuts.push((a, b));
                }
            }
            68 if mishaps > 0 => {
                mishaps -= 1;
                world.court.wedge();
            }
            69..72 if mishaps > 0 && world.others_stay(one) => {
                mishaps -= 1;
                world.court.accuse(one);
            }
            72..80 => {
                if let Some(rank) = wrong.paused.pop() {
                    Mishaps::resume(&mut world, rank);
                }
            }
            80..82 => {
                let time = Duration::from_micros(world.random.u64(1..4000));
                world.pass(time);
            }
            _ => {
                for _ in 0..world.random.usize(1..40) {
                    let limit = world.net.now() + Duration::from_micros(5);
                    world.advance(limit);
                }
            }
        }
        if is_orderly && before != (crashes, mishaps) {
            quiet_at = Some(turn + world.random.usize(1..20));
        }
    }
    wrong.end(&mut world);
    quiet(&mut world);

    for log in &world.logs {
        for mode in Mode::ALL {
            tally.delivered[mode as usize] += log.received[mode as usize].len();
            let given_back = log.sent.iter().filter(|sent| sent.mode == mode && !sent.given_back.is_empty());
            tally.given_back[mode as usize] += given_back.count();
        }
    }
    tally.removed += world.court.removed.len();
    tally
}

/// Runs traffic of a group in which one rank lies to the others, and then takes that one away. Returns the number of
/// times that a rank was accused, and of messages that were delivered.
pub(crate) fn run_with_liar(seed: u64) -> (usize, usize) {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x11a);
    let n = random.usize(2..=7);
    let config = random_config(n, &mut random);
    let clocks = random_clocks(n, &mut random);
    let nasty = SimConfig { failure_timeout: Duration::from_millis(3), ..SimConfig::nasty() };
    let sim = if random.bool() { fast() } else { nasty };
    let mut world = World::new(sim, seed, &config, &clocks);
    let liar = random.usize(..n);
    world.lie(liar);
    let mut tally = Tally::default();
    for _ in 0..random.usize(30..200) {
        match world.random.u8(..3) {
            0 => {
                let time = Duration::from_micros(world.random.u64(1..60));
                world.pass(time);
            }
            _ => {
                let from = world.random.usize(..n);
                send(&mut world, from, &mut tally);
            }
        }
    }
    world.crash(liar);
    if config.topology == Topology::Flat {
        // Its word does not count for others: all promises hold among them.
        quiet(&mut world);
    } else {
        world.drain("without the liar");
        Mode::ALL.into_iter().for_each(|mode| check::order(&world.logs, mode));
    }
    let delivered = world.logs.iter().flat_map(|log| &log.received).map(Vec::len).sum();
    (world.accusations, delivered)
}

/// Lets ranks reach each other; in half of the runs some send before, and a few fail.
fn begin(world: &mut World, random: &mut fastrand::Rng, crashes: &mut usize, tally: &mut Tally) {
    if random.bool() {
        return world.connect();
    }
    for _ in 0..random.usize(1..10) {
        let alive: Vec<usize> = world.alive().collect();
        let one = *random.choice(&alive).expect("some stay");
        match random.u8(..10) {
            0 if *crashes > 0 && world.others_stay(one) => {
                *crashes -= 1;
                world.crash(one);
            }
            1..7 => send(world, one, tally),
            _ => {
                let limit = world.net.now() + Duration::from_micros(random.u64(1..50));
                world.advance(limit);
            }
        }
    }
}

/// Checks the rules after the last mishap, and that the ranks that are left go on.
fn quiet(world: &mut World) {
    world.drain("after the last failure");
    // The recovery could wake a rank that has got stuck, so the rules are checked before.
    check::all(world);
    recovery(world);
    check::all(world);
}

/// Lets the ranks that are left go on: their messages are delivered, and then they are quiet.
fn recovery(world: &mut World) {
    let survivors = world.survivors();
    for &from in &survivors {
        for mode in Mode::ALL {
            world.scatter(from, mode, &survivors, 40).expect("there is room in a quiet group");
        }
    }
    world.drain("after recovery");
    for &from in &survivors {
        let last = world.logs[from].sent.len() as u64 - 1;
        for (&rank, id) in survivors.iter().flat_map(|rank| [(rank, last), (rank, last - 1)]) {
            let mode = world.logs[from].sent[id as usize].mode;
            let received = &world.logs[rank].received[mode as usize];
            let is_there = received.iter().any(|received| (received.sender, received.id) == (from, id));
            assert!(is_there, "rank {rank} does not deliver {mode:?} of {from} after the last failure");
        }
    }
    assert_eq!(world.net.next_event(), None);
    assert!(survivors.iter().all(|&rank| world.pipe(rank).deadline() == Time::MAX));
}
