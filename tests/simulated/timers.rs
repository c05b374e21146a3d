//! Replicas that are woken in the group's time, in groups whose members fail, join and lose power: all are woken at the
//! same places, and never for good too late.
//!
//! `SQUALL_SEED` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual.

use std::{io, time::Duration};

use fastrand::Rng;
use rkyv::Archived;
use squall::{
    Applied, Config, Group, Hlc, Mode, NodeId, QueryService, Replicated, ServeOptions, Served, Snapshot,
    sim::{Cluster, Options, ViewLogKind},
};

use crate::seeds;

/// The number of seeds that run here.
const SEEDS: u64 = 20;

const PATIENCE: Duration = Duration::from_secs(20);

/// The time between two wake-ups, in nanoseconds.
const EVERY: u64 = 3_000_000;

/// Counts commands and wake-ups. From the first command on it is woken again and again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Clock {
    commands: u64,
    /// The time of the last command or wake-up; 0 before the first command.
    last: u64,
    /// For each wake-up the time, and the number of commands before it.
    woken: Vec<[u64; 2]>,
}

impl Replicated for Clock {
    type Command = u64;
    type Reply = u64;

    fn apply(&mut self, _: &Archived<u64>, at: &Applied) -> u64 {
        (self.commands, self.last) = (self.commands + 1, at.time.0);
        self.commands
    }

    fn wake_at(&self) -> Option<Hlc> {
        (self.last > 0).then_some(Hlc(self.last + EVERY))
    }

    fn woken(&mut self, at: &Applied) {
        assert!(at.time.0 >= self.last + EVERY, "it is too early");
        self.woken.push([at.time.0, self.commands]);
        self.last = at.time.0;
    }

    fn snapshot(&self) -> Snapshot {
        let words = [self.commands, self.last].into_iter().chain(self.woken.iter().copied().flatten());
        Snapshot::of_bytes(words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
    }

    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)?;
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word)).collect();
        let (&[commands, last], rest) = words.split_first_chunk().ok_or(io::ErrorKind::UnexpectedEof)?;
        *self = Clock { commands, last, woken: rest.as_chunks().0.to_vec() };
        Ok(())
    }
}

impl QueryService for Clock {
    type Query = ();
    type Answer = u64;

    fn answer(&self, _query: &()) -> u64 {
        self.commands
    }
}

struct Run {
    rng: Rng,
    cluster: Cluster,
    groups: Vec<Group<Served<Clock>>>,
    mode: Mode,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = Rng::with_seed(seed);
        let mode = if rng.bool() { Mode::Durable } else { Mode::Ordered };
        let config = Config::builder("timers", 1)
            .members(1..=3)
            .failure_timeout(Duration::from_millis(20))
            .restart_wait(Duration::from_millis(50))
            .storage("simulated")
            .group("clock", |group| _ = group.mode(mode));
        let options = Options { view_log: ViewLogKind::RaftOnDisks, ..Options::default() };
        let mut cluster = Cluster::new(config.build().expect("it is valid"), options, rng.u64(..));
        let groups = (1..=3).map(|node| declare(&mut cluster, node)).collect();
        cluster.start().expect("it starts");
        Run { rng, cluster, groups, mode }
    }

    fn launch(&mut self, node: u32) {
        if !self.cluster.is_up(NodeId(node)) {
            self.groups[node as usize - 1] = declare(&mut self.cluster, node);
            self.cluster.launch(NodeId(node)).expect("it starts");
        }
    }

    fn pause(&mut self, most_ms: u64) {
        let micros = self.rng.u64(0..=most_ms * 1000);
        self.cluster.run_for(Duration::from_micros(micros));
    }

    /// The state that a node shows to linearizable reads.
    fn state(&mut self, node: u32) -> Clock {
        for _ in 0..200 {
            let group = &self.groups[node as usize - 1];
            let read = group.read(|clock| (**clock).clone());
            if let Some(Ok(clock)) = self.cluster.wait(PATIENCE, read) {
                return clock;
            }
            self.cluster.run_for(Duration::from_millis(50));
        }
        panic!("{node} does not serve: {:?}", self.cluster.view(NodeId(node)));
    }

    /// Whether all nodes hold the state, so that a group in memory survives the loss of one.
    fn is_whole(&self) -> bool {
        let view = |node| self.cluster.view(NodeId(node)).filter(|_| self.cluster.is_up(NodeId(node)));
        (1..=3).all(|node| view(node).is_some_and(|view| view.shards[0].complete.len() == 3))
    }

    /// Makes something go wrong, or well again.
    fn inject(&mut self) {
        let node = self.rng.u32(1..=3);
        match self.rng.u8(0..8) {
            0 | 1 if self.mode == Mode::Durable || self.is_whole() => self.cluster.crash(NodeId(node)),
            2 if self.mode == Mode::Durable => {
                (1..=3).for_each(|node| self.cluster.crash(NodeId(node)));
                (1..=3).for_each(|node| self.launch(node));
            }
            3 => {
                let ahead = self.rng.i64(-50_000_000..=50_000_000);
                self.cluster.set_wall_clock(NodeId(node), ahead);
            }
            _ => {
                (1..=3).for_each(|node| self.launch(node));
                drop(self.groups[node as usize - 1].submit(&1));
            }
        }
    }
}

fn declare(cluster: &mut Cluster, node: u32) -> Group<Served<Clock>> {
    cluster.serve(NodeId(node), "clock", Clock::default(), ServeOptions::default())
}

#[test]
fn all_replicas_are_woken_at_the_same_places_whatever_fails() {
    seeds::run_all(seeds::seeds(SEEDS), |seed| {
        let mut run = Run::new(seed);
        for _ in 0..30 {
            run.inject();
            run.pause(40);
        }
        (1..=3).for_each(|node| run.launch(node));
        run.cluster.run_for(Duration::from_millis(500));
        let before = run.state(1);
        let group = &run.groups[0];
        let submitted = group.submit(&1);
        let applied = run.cluster.wait(PATIENCE, submitted);
        assert!(matches!(applied, Some(Ok(_))), "seed {seed}: {applied:?}");
        // The clocks are 100 ms apart at most.
        run.cluster.run_for(Duration::from_millis(500));
        let states = [1, 2, 3].map(|node| run.state(node));
        assert!(states[0].woken.len() > before.woken.len() + 10, "seed {seed}: it is not woken any more: {before:?}");
        for state in &states[1..] {
            let common = state.woken.len().min(states[0].woken.len());
            assert_eq!(state.woken[..common], states[0].woken[..common], "seed {seed}");
        }
        Ok(())
    });
}

#[test]
fn a_wrong_clock_of_the_first_sender_holds_no_timer_up() {
    for ahead in [3600, -3600] {
        let mut run = Run::new(1);
        run.cluster.set_wall_clock(NodeId(1), ahead * 1_000_000_000);
        run.cluster.run_for(Duration::from_millis(100));
        let submitted = run.groups[1].submit(&1);
        assert_eq!(run.cluster.wait(PATIENCE, submitted), Some(Ok(1)));
        run.cluster.run_for(Duration::from_secs(3));
        let read = run.groups[1].read(|served| served.woken.len());
        let woken = run.cluster.wait(PATIENCE, read).expect("it answers").expect("it serves");
        // The next sender waits for 100 ms each time.
        assert!((10..=31).contains(&woken), "{woken} with a clock {ahead} s ahead");
    }
}
