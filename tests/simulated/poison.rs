//! A command with which the service panics, in simulated durable groups of three. All members end, and name the
//! command. An operator has it skipped, and the group goes on with all that was acknowledged. Members that skip
//! different commands never serve together.
//!
//! `SQUALL_SEED` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual.

use std::time::Duration;

use fastrand::Rng;
use squall::{
    EndReason, Group, NodeId,
    sim::{Cluster, NotStarted},
};

use crate::{
    padded::{self, Numbers, POISON, Submits},
    seeds,
};

/// The number of seeds that run here.
const SEEDS: u64 = 40;

const PATIENCE: Duration = Duration::from_secs(3);

struct Trial {
    rng: Rng,
    cluster: Cluster,
    groups: Vec<Group<Numbers>>,
    submits: Submits,
    numbers: u64,
}

const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

impl Trial {
    fn new(seed: u64) -> Trial {
        let mut rng = Rng::with_seed(seed);
        let snapshots = [64 << 10, 256 << 10, 1 << 30][rng.usize(0..3)];
        let (cluster, groups) = padded::cluster("poison", 3, snapshots, 32 << 10, rng.u64(..));
        Trial { rng, cluster, groups, submits: Submits::default(), numbers: 0 }
    }

    fn submit(&mut self, node: usize, number: u64) {
        self.submits.submit(&self.groups[node], number, self.rng.usize(0..1500));
    }

    /// Submits numbers at all nodes that run, for a while.
    fn work(&mut self) {
        for _ in 0..self.rng.usize(5..40) {
            for _ in 0..self.rng.usize(0..6) {
                let node = self.rng.usize(0..3);
                if self.cluster.is_up(NODES[node]) {
                    self.numbers += 1;
                    self.submit(node, self.numbers);
                }
            }
            let micros = self.rng.u64(0..=8_000);
            self.cluster.run_for(Duration::from_micros(micros));
            self.submits.answer();
        }
    }

    /// Submits the poison in the midst of work. Returns its version, as the members that end report it. A member that
    /// has not delivered it when the others end can't go on alone.
    fn poison(&mut self) -> u64 {
        self.cluster.start().expect("they form a group");
        self.work();
        let node = self.rng.usize(0..3);
        self.submit(node, POISON);
        self.work();
        let all_end = |cluster: &Cluster| NODES.iter().all(|&node| cluster.end_reason(node).is_some());
        self.cluster.run_until(PATIENCE, all_end);
        self.submits.answer();
        let said = |&node: &NodeId| match self.cluster.end_reason(node)? {
            EndReason::Poison(why) => Some(why.clone()),
            other => panic!("{node}: {other:?}"),
        };
        let said: Vec<String> = NODES.iter().filter_map(said).collect();
        let version = version(said.first().expect("the number ends the nodes that apply it"));
        for why in &said {
            assert!(why.contains(&format!("squall log skip DIR --version {version} --reason")), "{why}");
        }
        assert!(!self.groups.iter().any(|group| group.submit(&(0, Vec::new())).is_accepted()), "no node goes on");
        assert!(!self.submits.acknowledged.contains(&POISON));
        // Writes that are on their way to the disks get there, or do not.
        let millis = self.rng.u64(0..3);
        self.cluster.run_for(Duration::from_millis(millis));
        version
    }

    fn kill_all(&mut self) {
        NODES.into_iter().filter(|&node| self.cluster.is_up(node)).collect::<Vec<_>>().into_iter().for_each(|node| {
            self.cluster.kill(node);
        });
    }

    fn launch(&mut self, node: NodeId, is_mended: bool) -> Result<(), NotStarted> {
        let service = Numbers { is_mended, ..Numbers::default() };
        self.groups[node.0 as usize - 1] = self.cluster.declare(node, "numbers", service);
        self.cluster.launch(node)
    }

    /// Has an operator skip a version. Returns false if the node's log does not have it.
    fn skip(&mut self, node: NodeId, version: u64) -> bool {
        match self.cluster.skip_command(node, 0, version, "it is too much") {
            Ok(()) => true,
            Err(error) => {
                assert!(error.to_string().contains(&format!("and no version {version}")), "{node}: {error}");
                false
            }
        }
    }

    fn holders(&self) -> Vec<NodeId> {
        let views: Vec<_> = NODES.into_iter().filter_map(|node| self.cluster.view(node).cloned()).collect();
        let last = views.iter().max_by_key(|view| view.epoch);
        last.map(|view| view.shards[0].complete.clone()).unwrap_or_default()
    }

    /// Whether all of these come to have the state, and know it: a node that has not installed its first view refuses
    /// reads.
    fn come_to_hold(&mut self, nodes: &[NodeId]) -> bool {
        let is_in = |trial: &Trial, node| trial.cluster.view(node).is_some();
        let hold = |trial: &Trial| nodes.iter().all(|&node| trial.holders().contains(&node) && is_in(trial, node));
        for _ in 0..PATIENCE.as_millis() / 10 {
            if hold(self) {
                break;
            }
            self.cluster.run_for(Duration::from_millis(10));
        }
        hold(self)
    }

    /// Checks that all of these serve, and show the same, in the same order: all that was acknowledged, and not the
    /// poison.
    fn shows(&mut self, nodes: &[NodeId]) {
        let hold = self.come_to_hold(nodes);
        assert!(hold, "{:?}: {:?}", self.holders(), NODES.map(|node| self.cluster.end_reason(node).cloned()));
        self.submits.answer();
        let mut shown = Vec::new();
        for &node in nodes {
            let read = self.groups[node.0 as usize - 1].read(|numbers| numbers.given.clone());
            shown.push(self.cluster.wait(PATIENCE, read).expect("it serves").expect("it can be read"));
        }
        // Each was read behind the one before.
        assert!(shown.windows(2).all(|pair| pair[1].starts_with(&pair[0])), "members differ");
        assert!(!shown[0].contains(&POISON));
        let lost = self.submits.acknowledged.iter().find(|number| !shown[0].contains(number));
        assert_eq!(lost, None, "of {} acknowledged", self.submits.acknowledged.len());
    }
}

/// The version that a sentence names.
fn version(why: &str) -> u64 {
    let behind = why.split("applied version ").nth(1).and_then(|rest| rest.split(' ').next());
    behind.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{why:?} names no version"))
}

/// The sentence with which a node did not start.
fn refused(launched: Result<(), NotStarted>) -> String {
    match launched {
        Err(NotStarted::Disk { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

fn each(play: fn(&mut Trial)) {
    // The panics of a trial are many, and expected.
    std::panic::set_hook(Box::new(|info| {
        let said = info.to_string();
        if !said.contains("as the test wants it") {
            eprintln!("{said}");
        }
    }));
    for seed in seeds::seeds(SEEDS) {
        let Err(panic) = std::panic::catch_unwind(|| play(&mut Trial::new(seed))) else { continue };
        let what = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        panic!("seed {seed}: {}", what.unwrap_or("it panicked"));
    }
}

#[test]
fn a_group_goes_on_without_a_command_that_all_members_skip() {
    each(|trial| {
        let version = trial.poison();
        trial.kill_all();
        for node in NODES {
            let has_it = match trial.launch(node, false) {
                Err(NotStarted::Disk { why, .. }) => self::version(&why) == version,
                launched => launched.map(|()| false).expect("it starts without"),
            };
            if trial.cluster.is_up(node) {
                trial.cluster.kill(node);
            }
            assert_eq!(trial.skip(node, version), has_it, "{node}");
            if has_it {
                let again = trial.cluster.skip_command(node, 0, version, "again").expect_err("it is skipped");
                assert!(again.to_string().contains("skipped already: it is too much"), "{again}");
            }
        }
        NODES.into_iter().for_each(|node| trial.launch(node, false).expect("it passes over the command"));
        trial.shows(&NODES);
        trial.work();
        trial.shows(&NODES);
        // A node with an empty disk gets the record, or a state, and the list of skipped commands.
        let joiner = NODES[trial.rng.usize(0..3)];
        trial.cluster.kill(joiner);
        trial.work();
        trial.cluster.wipe(joiner);
        let is_mended = trial.rng.bool();
        trial.launch(joiner, is_mended).expect("its disk is empty");
        trial.shows(&NODES);
        trial.work();
        trial.kill_all();
        NODES.into_iter().for_each(|node| trial.launch(node, is_mended).expect("its log is whole"));
        trial.shows(&NODES);
    });
}

#[test]
fn a_member_that_does_not_skip_what_the_others_do_is_refused_and_loses_nothing() {
    each(|trial| {
        let version = trial.poison();
        trial.kill_all();
        let other = NODES[trial.rng.usize(0..3)];
        let have_it: Vec<NodeId> =
            NODES.into_iter().filter(|&node| node != other && trial.skip(node, version)).collect();
        // A mended program does not panic any more; the other panics again.
        let is_mended = trial.rng.bool();
        let launched = trial.launch(other, is_mended);
        let others: Vec<NodeId> = NODES.into_iter().filter(|&node| node != other).collect();
        others.iter().for_each(|&node| trial.launch(node, false).expect("it passes over the command"));
        if have_it.len() < 2 {
            // It is not known whether the record was anywhere else.
            return;
        }
        let has_it = match launched {
            Err(launched) => {
                let why = refused(Err(launched));
                assert_eq!(self::version(&why), version);
                true
            }
            Ok(()) => {
                let is_refused = |cluster: &Cluster| cluster.end_reason(other).is_some();
                let is_refused = trial.cluster.run_until(PATIENCE, is_refused);
                if is_refused {
                    let Some(EndReason::Skips(why)) = trial.cluster.end_reason(other) else {
                        panic!("{:?}", trial.cluster.end_reason(other))
                    };
                    let (own, group) = ("skips no command", format!("the group's members skip version {version}"));
                    assert!(why.contains(own) && why.contains(&group), "{why}");
                }
                is_refused
            }
        };
        // The last view may have been of two, of which one is down.
        if trial.cluster.end_reason(other).is_some() || trial.come_to_hold(&others) {
            trial.shows(&others);
            trial.work();
            trial.shows(&others);
        } else {
            assert!(!trial.cluster.is_up(other), "no node is missing");
        }
        // A node whose log ends before the command has got it, and the skip, from the others.
        if has_it {
            if trial.cluster.is_up(other) {
                trial.cluster.kill(other);
            }
            assert!(trial.skip(other, version), "{other} has it");
            trial.launch(other, is_mended).expect("it passes over the command");
        }
        trial.shows(&NODES);
    });
}
