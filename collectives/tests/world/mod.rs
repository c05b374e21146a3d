//! A simulated cluster whose nodes are the ranks of one communicator.

use std::time::Duration;

use squall_collectives::{CollectiveError, Communicator, CommunicatorConfig, Element, Operation, Parameters};
use squall_fabric::{
    Completion, EndpointId, Fabric, GroupTag, NodeId, Time,
    sim::{SimConfig, SimFabric, SimNet},
};

pub(crate) struct Rank {
    pub(crate) fabric: SimFabric,
    pub(crate) communicator: Communicator,
    closed: bool,
    /// The connections whose end the rank does not hear of.
    pub(crate) deaf: Vec<EndpointId>,
    /// The connections that the rank has.
    pub(crate) connected: Vec<EndpointId>,
}

impl Rank {
    pub(crate) fn new(fabric: SimFabric, communicator: Communicator) -> Rank {
        Rank { fabric, communicator, closed: false, deaf: Vec::new(), connected: Vec::new() }
    }

    fn step(&mut self, now: Time) {
        let mut completions: Vec<Completion> = Vec::new();
        self.fabric.poll(now, &mut completions);
        for completion in &completions {
            match completion {
                Completion::Connected { endpoint, .. } => self.connected.push(*endpoint),
                Completion::Broken { endpoint, .. } if self.deaf.contains(endpoint) => continue,
                _ => {}
            }
            assert!(self.communicator.on_completion(&mut self.fabric, now, completion), "only it has endpoints");
        }
        self.communicator.step(&mut self.fabric, now);
    }
}

pub(crate) struct World {
    pub(crate) net: SimNet,
    /// None where the node has crashed.
    pub(crate) ranks: Vec<Option<Rank>>,
    pub(crate) random: fastrand::Rng,
}

/// A configuration with small slots, so that short vectors take several messages and soon wait for free ones.
pub(crate) fn config(n: usize) -> CommunicatorConfig {
    let tag = GroupTag { layer: 20, group: 1, epoch: 1 };
    // Ranks are not in the order of ids.
    let ranks = (0..n as u32).map(|rank| NodeId(rank ^ 1)).map(|id| NodeId(id.0 + 3)).collect();
    CommunicatorConfig { lanes: 2, slots: 2, slot_bytes: 64, ..CommunicatorConfig::new(ranks, tag) }
}

/// A configuration with small blocks, so that short vectors have several of them.
pub(crate) fn long_config(n: usize) -> CommunicatorConfig {
    CommunicatorConfig { block_bytes: Some(64), ..config(n) }
}

/// A seed from `SQUALL_SEED`, or a new one; a test that fails shows it.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("SQUALL_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().expect("a number"));
    eprintln!("SQUALL_SEED={seed}");
    seed
}

impl World {
    pub(crate) fn new(sim: SimConfig, seed: u64, config: &CommunicatorConfig) -> World {
        let net = SimNet::new(sim, seed);
        let mut random = fastrand::Rng::with_seed(seed);
        // All messages are written, or none, or the short ones.
        let fetch_above = [usize::MAX, 0, config.slot_bytes / 2][random.usize(0..3)];
        let ranks = config.ranks.iter().map(|&node| {
            let mut fabric = net.fabric(node);
            let mut communicator = Communicator::create(&mut fabric, config.clone()).expect("a sound configuration");
            communicator.set_parameters(Parameters { fetch_above, ..Parameters::default() });
            Some(Rank::new(fabric, communicator))
        });
        World { ranks: ranks.collect(), net, random }
    }

    pub(crate) fn alive(&mut self) -> impl Iterator<Item = (usize, &mut Rank)> {
        self.ranks.iter_mut().enumerate().filter_map(|(index, rank)| rank.as_mut().map(|rank| (index, rank)))
    }

    /// Lets the network go on until something has happened, and steps the ranks that it concerns. Returns false if
    /// nothing is left to happen.
    pub(crate) fn advance(&mut self) -> bool {
        let deadline = self.alive().map(|(_, rank)| rank.communicator.deadline()).min().unwrap_or(Time::MAX);
        if self.net.next_event().is_none() && deadline == Time::MAX {
            return false;
        }
        let mut ready = Vec::new();
        let now = self.net.advance(deadline, &mut ready);
        for (_, rank) in self.alive() {
            if ready.contains(&rank.fabric.node()) || rank.communicator.deadline() <= now {
                rank.step(now);
            }
        }
        true
    }

    /// Goes on until `done`, within a second of virtual time.
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut World) -> bool) {
        let limit = self.net.now() + Duration::from_secs(1);
        while !done(self) {
            assert!(self.net.now() < limit, "{what}: not within a second");
            assert!(self.advance(), "{what}: nothing is left to happen");
        }
    }

    /// Starts an operation on one rank.
    pub(crate) fn start_one<T>(
        &mut self,
        rank: usize,
        start: impl FnOnce(&mut SimFabric, &mut Communicator) -> Result<Operation<T>, CollectiveError>,
    ) -> Operation<T> {
        let Rank { fabric, communicator, .. } = self.ranks[rank].as_mut().expect("it is alive");
        start(fabric, communicator).expect("a sound operation")
    }

    /// Lets fewer than `events` events happen, a random number.
    pub(crate) fn some(&mut self, events: u32) {
        for _ in 0..self.random.u32(0..events) {
            self.advance();
        }
    }

    /// Waits until all ranks have reached each other.
    pub(crate) fn connect(&mut self) {
        self.until("connecting", |world| world.alive().all(|(_, rank)| rank.communicator.is_connected()));
    }

    /// Starts an operation on every rank, at different times.
    pub(crate) fn start<T>(
        &mut self,
        mut start: impl FnMut(usize, &mut SimFabric, &mut Communicator) -> Result<Operation<T>, CollectiveError>,
    ) -> Vec<Option<Operation<T>>> {
        let mut order: Vec<usize> = (0..self.ranks.len()).filter(|&rank| self.ranks[rank].is_some()).collect();
        self.random.shuffle(&mut order);
        let mut operations: Vec<Option<Operation<T>>> = self.ranks.iter().map(|_| None).collect();
        for rank in order {
            let Rank { fabric, communicator, .. } = self.ranks[rank].as_mut().expect("it is alive");
            operations[rank] = Some(start(rank, fabric, communicator).expect("a sound operation"));
            for _ in 0..self.random.u32(0..3) {
                self.advance();
            }
        }
        operations
    }

    /// Waits until operations are over on all ranks.
    pub(crate) fn wait<T>(&mut self, operations: &[Option<Operation<T>>]) {
        self.until("an operation", |world| world.are_over(operations));
    }

    fn are_over<T>(&mut self, operations: &[Option<Operation<T>>]) -> bool {
        self.alive().all(|(index, rank)| {
            let operation = operations[index].as_ref().expect("it was started");
            rank.communicator.test(operation).expect("no rank fails")
        })
    }

    /// Carries out an operation, and returns each rank's result.
    pub(crate) fn run<T: Element>(
        &mut self,
        start: impl FnMut(usize, &mut SimFabric, &mut Communicator) -> Result<Operation<T>, CollectiveError>,
    ) -> Vec<Vec<T>> {
        let operations = self.start(start);
        self.wait(&operations);
        self.finish(operations)
    }

    pub(crate) fn finish<T: Element>(&mut self, operations: Vec<Option<Operation<T>>>) -> Vec<Vec<T>> {
        let started = operations.into_iter().zip(&mut self.ranks);
        started
            .map(|(operation, rank)| {
                let communicator = &mut rank.as_mut().expect("it is alive").communicator;
                communicator.finish(operation.expect("it was started")).expect("it is over")
            })
            .collect()
    }

    /// Ends the process of a rank, or its host.
    pub(crate) fn crash(&mut self, rank: usize) {
        let node = self.ranks[rank].take().expect("it is alive").fabric.node();
        if self.random.bool() { self.net.crash(node) } else { self.net.power_off(node) }
    }

    /// Lets all ranks leave in good order.
    pub(crate) fn close(&mut self) {
        self.until("closing", |world| {
            world.alive().fold(true, |all, (_, rank)| {
                rank.closed = rank.communicator.close(&mut rank.fabric);
                all && rank.closed
            })
        });
    }
}
