//! Failures: a switch that hears nothing on a link for too long tells the controller, which settles them.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Destinations, Latencies, OrderProtocol, Profile, Scenario, ScenarioError, Switches, Traffic,
    packet::count,
    receiver::Arrived,
    skew,
    topology::{Node, Topology, TopologyNode},
    world::{ModelEvent, World},
};

/// The part that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailedComponent {
    /// A host, with its process.
    Host,
    /// The switch of a rack: all hosts of the rack are cut off.
    RackSwitch,
    /// A link between a spine and a core, in both directions.
    CoreLink,
    /// A core.
    CoreSwitch,
}

/// One failure on a testbed whose hosts have a process each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Recovery {
    /// The machine.
    pub(crate) profile: Profile,
    /// The part that fails.
    pub(crate) failure: FailedComponent,
    /// The number of hosts, in the racks of both pods in turn.
    pub(crate) hosts: usize,
    /// The seed of everything that is random.
    pub(crate) seed: u64,
}

/// The result of a failure.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Recovered {
    /// The time from the failure until a host's commit barrier passed it, for each surviving host.
    pub(crate) times: Latencies,
    /// The time from the failure until the controller had the first report, in nanoseconds.
    pub(crate) reported_ns: u64,
    /// The number of scatterings of survivors that were recalled, since one of their receivers had failed.
    pub(crate) recalled: usize,
    /// The number of hosts that failed, or were cut off.
    pub(crate) failed: usize,
}

/// The earliest time of the failure: all rates are steady by then.
const CALM_NS: u64 = 100_000;
/// The time for which recovery is awaited.
const PATIENCE_NS: u64 = 1_200_000;
/// The mean time from one scattering of a host to the next: short enough that most failures meet some under way.
const GAP_NS: u64 = 100_000;

/// The controller's messages, at their receipt, and other events of a failure.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FailureEvent {
    Fail,
    /// A switch checks its links.
    Check(Node),
    /// A notice to the controller: a link is silent.
    Silent(usize),
    /// The controller has waited for other reports of the same failure.
    Decide,
    /// An order to a host: heed no commit barrier.
    Wedge(usize),
    /// A notice to the controller: a host is wedged, at this barrier.
    Wedged(u64),
    /// The decision is in the log.
    Logged,
    /// The decision, to a host.
    Settle(usize),
    /// A host's recalls have been answered.
    Recalled(usize),
    /// A notice to the controller: a host has carried out the decision.
    Settled,
    /// An order to a switch: wait for this link no longer.
    LeaveOut(usize),
}

/// The failure under way, and the controller.
#[derive(Debug)]
pub(super) struct Outage {
    failure: FailedComponent,
    at: u64,
    dead: Vec<Node>,
    /// Links that a switch has reported, and those of them that are not dealt with.
    reported: Vec<bool>,
    open: Vec<usize>,
    deciding: bool,
    controller_free: u64,
    /// Whether a host is out, by host.
    failed: Vec<bool>,
    /// Whether this round has failed hosts, and the number of survivors that are awaited.
    settling: bool,
    awaited: usize,
    /// The failure timestamp: the greatest barrier of the survivors.
    failure_stamp: u64,
    recovered: Vec<Option<u64>>,
    result: Recovered,
    /// The hosts that delivered a scattering, by scattering.
    delivered: BTreeMap<u64, BTreeSet<usize>>,
}

impl Recovery {
    /// Simulates the failure, in traffic of reliable scatterings from every host to every host.
    ///
    /// # Errors
    ///
    /// [`ScenarioError`], if it cannot be simulated.
    pub(crate) fn run(&self) -> Result<Recovered, ScenarioError> {
        self.check()?;
        let mut outage = self.happen().outage.expect("it was given one");
        let survivors = (0..self.hosts).filter(|&host| !outage.failed[host]);
        for time in survivors.map(|host| outage.recovered[host]) {
            outage.result.times.add(time.unwrap_or(PATIENCE_NS), 1);
        }
        outage.result.failed = outage.failed.iter().filter(|failed| **failed).count();
        Ok(outage.result)
    }

    fn happen(&self) -> World {
        let scenario = Scenario {
            profile: self.profile,
            processes: self.hosts,
            order: OrderProtocol::OnePipe { switches: Switches::Chip, reliable: true },
            traffic: Traffic::Scattered { to: Destinations::All, mean_gap_ns: GAP_NS },
            loss: 0.0,
            warm_up_ns: 0,
            measured_ns: CALM_NS + PATIENCE_NS,
            seed: self.seed,
        };
        // The racks of both pods in turn, so that two hosts already have all layers between them.
        let racks = (0..self.hosts).map(|host| [0, 2, 1, 3][host % 4]).collect();
        let mut world = World::new(scenario, Topology::new(racks, self.profile));
        let at = CALM_NS + world.rng.u64(..self.profile.beacon_ns);
        world.outage = Some(Outage {
            failure: self.failure,
            at,
            dead: Vec::new(),
            reported: vec![false; world.links.len()],
            open: Vec::new(),
            deciding: false,
            controller_free: 0,
            failed: vec![false; self.hosts],
            settling: false,
            awaited: 0,
            failure_stamp: 0,
            recovered: vec![None; self.hosts],
            result: Recovered::default(),
            delivered: BTreeMap::new(),
        });
        world.queue.at(at, ModelEvent::Control(FailureEvent::Fail));
        for node in self.hosts..world.topology.places.len() {
            let phase = world.rng.u64(..self.profile.beacon_ns);
            world.queue.at(phase, ModelEvent::Control(FailureEvent::Check(node)));
        }
        world.run();
        world
    }
}

impl World {
    pub(super) fn control(&mut self, control: FailureEvent) {
        match control {
            FailureEvent::Fail => self.fail(),
            FailureEvent::Check(node) => self.check(node),
            FailureEvent::Silent(link) => self.silent(link),
            FailureEvent::Decide => self.decide(),
            FailureEvent::Wedge(host) => {
                self.hosts[host].wedged = true;
                self.send_to_controller(FailureEvent::Wedged(self.hosts[host].barriers.commit));
            }
            FailureEvent::Wedged(barrier) => {
                let outage = self.outage();
                outage.failure_stamp = outage.failure_stamp.max(barrier);
                if self.all_answered() {
                    self.write_decision();
                }
            }
            FailureEvent::Logged if self.outage().settling => self.tell_survivors(FailureEvent::Settle),
            FailureEvent::Logged => self.leave_out(),
            FailureEvent::Settle(host) => self.settle(host),
            FailureEvent::Recalled(host) => self.recalled(host),
            FailureEvent::Settled => {
                if self.all_answered() {
                    self.leave_out();
                }
            }
            FailureEvent::LeaveOut(link) => {
                let (node, first) = (self.topology.cables[link].to, self.links[link].register);
                let registers = if self.is_host_link(link) { self.scenario.share() } else { 1 };
                (first..first + registers).for_each(|register| self.switches[node].leave_out(register));
                self.announce(node);
            }
        }
    }

    fn outage(&mut self) -> &mut Outage {
        self.outage.as_mut().expect("only an outage makes such events")
    }

    fn fail(&mut self) {
        let failure = self.outage().failure;
        let victim = self.rng.usize(..self.hosts.len());
        let switches = |world: &World, fit: fn(&TopologyNode) -> bool| {
            let places = world.topology.places.iter().enumerate();
            places.filter(|(_, place)| fit(place)).map(|(node, _)| node).collect::<Vec<Node>>()
        };
        let dead = match failure {
            FailedComponent::Host => {
                self.hosts[victim].down = true;
                vec![victim]
            }
            FailedComponent::RackSwitch => self.topology.rack_switch(self.topology.rack_of(victim)).to_vec(),
            FailedComponent::CoreSwitch | FailedComponent::CoreLink => {
                let cores = switches(self, |place| matches!(place, TopologyNode::Core(_)));
                vec![cores[self.rng.usize(..cores.len())]]
            }
        };
        if failure == FailedComponent::CoreLink {
            let spines = switches(self, |place| matches!(place, TopologyNode::SpineUp(_)));
            let up = spines[self.rng.usize(..spines.len())];
            let TopologyNode::SpineUp(spine) = self.topology.places[up] else { return };
            for (link, cable) in self.topology.cables.iter().enumerate() {
                let down = self.topology.places[cable.to] == TopologyNode::SpineDown(spine) && cable.from == dead[0];
                self.links[link].cut |= down || (cable.from == up && cable.to == dead[0]);
            }
        } else {
            for (link, cable) in self.topology.cables.iter().enumerate() {
                self.links[link].cut |= dead.contains(&cable.from) || dead.contains(&cable.to);
            }
            self.outage().dead = dead;
        }
    }

    fn check(&mut self, node: Node) {
        if self.outage().dead.contains(&node) {
            return;
        }
        let profile = self.scenario.profile;
        self.queue.at(self.now + profile.beacon_ns, ModelEvent::Control(FailureEvent::Check(node)));
        self.keep_alive(node);
        for i in 0..self.topology.inputs[node].len() {
            let link = self.topology.inputs[node][i];
            let silent = self.links[link].last_out + profile.silent_intervals * profile.beacon_ns < self.now;
            if silent && !self.outage().reported[link] {
                self.outage().reported[link] = true;
                self.send_to_controller(FailureEvent::Silent(link));
            }
        }
    }

    /// Sends a message to the controller, which is as far away as the farthest host, and handles one message at a time.
    fn send_to_controller(&mut self, control: FailureEvent) {
        let there = self.now + self.topology.path_ns(5);
        let cost = self.scenario.profile.controller_ns;
        let free = &mut self.outage().controller_free;
        *free = (*free).max(there) + cost;
        let done = *free;
        self.queue.at(done, ModelEvent::Control(control));
    }

    fn send_from_controller(&mut self, control: FailureEvent) {
        let (now, cost) = (self.now, self.scenario.profile.controller_ns);
        let free = &mut self.outage().controller_free;
        *free = (*free).max(now) + cost;
        let sent = *free;
        self.queue.at(sent + self.topology.path_ns(5), ModelEvent::Control(control));
    }

    fn silent(&mut self, link: usize) {
        let (now, wait) = (self.now, self.scenario.profile.beacon_ns);
        let outage = self.outage();
        outage.open.push(link);
        if outage.result.reported_ns == 0 {
            outage.result.reported_ns = now - outage.at;
        }
        // Other switches miss the same beacon at the same time, up to an interval.
        if !outage.deciding {
            outage.deciding = true;
            self.queue.at(now + wait, ModelEvent::Control(FailureEvent::Decide));
        }
    }

    /// Decides which hosts have failed: those that cannot reach the core over links that no switch has reported.
    fn decide(&mut self) {
        let cut_off: Vec<usize> = (0..self.hosts.len()).filter(|&host| !self.reaches_core(host)).collect();
        let outage = self.outage();
        let new: Vec<usize> = cut_off.into_iter().filter(|&host| !outage.failed[host]).collect();
        new.iter().for_each(|&host| outage.failed[host] = true);
        outage.settling = !new.is_empty();
        if outage.settling { self.tell_survivors(FailureEvent::Wedge) } else { self.write_decision() }
    }

    fn reaches_core(&mut self, host: usize) -> bool {
        let (mut seen, mut rest) = (vec![false; self.topology.places.len()], vec![host]);
        while let Some(node) = rest.pop() {
            if matches!(self.topology.places[node], TopologyNode::Core(_)) {
                return true;
            }
            seen[node] = true;
            for i in 0..self.topology.outputs[node].len() {
                let link = self.topology.outputs[node][i];
                let to = self.topology.cables[link].to;
                if !seen[to] && !self.outage().reported[link] {
                    rest.push(to);
                }
            }
        }
        false
    }

    fn tell_survivors(&mut self, what: fn(usize) -> FailureEvent) {
        let outage = self.outage();
        let survivors: Vec<usize> = (0..outage.failed.len()).filter(|&host| !outage.failed[host]).collect();
        outage.awaited = survivors.len();
        survivors.into_iter().for_each(|host| self.send_from_controller(what(host)));
    }

    fn all_answered(&mut self) -> bool {
        let outage = self.outage();
        outage.awaited -= 1;
        outage.awaited == 0
    }

    fn write_decision(&mut self) {
        let logged = self.now + self.scenario.profile.log_ns;
        self.queue.at(logged, ModelEvent::Control(FailureEvent::Logged));
    }

    /// Drops, at a host, what failed hosts have sent beyond the failure timestamp, and recalls what they will never
    /// acknowledge.
    fn settle(&mut self, host: usize) {
        let outage = self.outage.as_ref().expect("only an outage makes such events");
        let (failed, stamp) = (outage.failed.clone(), outage.failure_stamp);
        let processes = &self.processes;
        let at = &mut self.hosts[host];
        at.wedged = false;
        at.prepared.retain(|waiting| !failed[processes[waiting.0.sender].host] || waiting.0.place < stamp);
        at.gone = failed;
        let round_trip = 2 * self.topology.path_ns(self.topology.most_hops());
        let wait = if self.unacknowledged(host).is_empty() { 0 } else { round_trip };
        self.queue.at(self.now + wait, ModelEvent::Control(FailureEvent::Recalled(host)));
    }

    /// A host's scatterings that wait for failed hosts, each with the number of such messages.
    fn unacknowledged(&mut self, host: usize) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        for &serial in &self.processes[host].outstanding {
            if let Some(scattering) = self.scatterings.get(serial) {
                let gone = self.hosts[host].gone.iter().zip(&scattering.awaited);
                let messages = gone.map(|(&gone, &awaited)| if gone { count(awaited) } else { 0 }).sum();
                found.push((serial, messages));
            }
        }
        found.retain(|&(_, messages)| messages > 0);
        found
    }

    fn recalled(&mut self, host: usize) {
        for (serial, messages) in self.unacknowledged(host) {
            self.outage().result.recalled += 1;
            for other in &mut self.hosts {
                other.prepared.retain(|waiting| waiting.0.serial != serial);
            }
            let gone = self.hosts[host].gone.clone();
            if let Some(scattering) = self.scatterings.get(serial) {
                scattering.recalled = true;
                scattering.awaited.iter_mut().zip(gone).filter(|(_, gone)| *gone).for_each(|(awaited, _)| *awaited = 0);
            }
            self.settled(serial, messages);
        }
        self.send_to_controller(FailureEvent::Settled);
    }

    fn leave_out(&mut self) {
        let outage = self.outage();
        outage.deciding = false;
        for link in std::mem::take(&mut outage.open) {
            self.send_from_controller(FailureEvent::LeaveOut(link));
        }
    }

    /// Notes the time at which a host's commit barrier has passed the failure.
    pub(super) fn note_recovery(&mut self, host: usize) {
        let Some(outage) = &mut self.outage else { return };
        // A failed host's clock may have been ahead, and it has promised up to an interval more.
        let passed = skew::ORIGIN_NS + outage.at + 2 * self.scenario.profile.beacon_ns;
        if self.now > outage.at && self.hosts[host].barriers.commit > passed {
            outage.recovered[host].get_or_insert(self.now - outage.at);
        }
    }

    pub(super) fn note_delivery(&mut self, host: usize, arrived: &Arrived) {
        if let Some(outage) = &mut self.outage {
            outage.delivered.entry(arrived.serial).or_default().insert(host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH: [FailedComponent; 4] =
        [FailedComponent::Host, FailedComponent::RackSwitch, FailedComponent::CoreLink, FailedComponent::CoreSwitch];

    fn each(check: impl Fn(Recovery)) {
        for failure in EACH {
            for hosts in [2, 8, 32] {
                (0..6).for_each(|seed| check(Recovery { profile: Profile::TESTBED, failure, hosts, seed }));
            }
        }
    }

    #[test]
    fn survivors_deliver_a_scattering_all_or_none() {
        each(|recovery| {
            let world = recovery.happen();
            let outage = world.outage.expect("it was given one");
            let survivors: BTreeSet<usize> = (0..recovery.hosts).filter(|&host| !outage.failed[host]).collect();
            let settled = survivors.iter().map(|&host| world.hosts[host].barriers.commit).min().expect("one survives");
            assert!(settled > skew::ORIGIN_NS + outage.at, "{recovery:?}: the barrier stays where it was");
            let undecided: BTreeSet<u64> = survivors
                .iter()
                .flat_map(|&host| &world.hosts[host].prepared)
                .map(|waiting| waiting.0.serial)
                .collect();
            for (serial, at) in outage.delivered.iter().filter(|(serial, _)| !undecided.contains(serial)) {
                let here = at.intersection(&survivors).count();
                assert!([0, survivors.len()].contains(&here), "{recovery:?}: {serial} was delivered at {at:?} only");
            }
        });
    }

    #[test]
    fn everybody_recovers_from_every_failure() {
        each(|recovery| {
            let recovered = recovery.run().expect("it can be simulated");
            let most = recovered.times.percentile_us(100.0);
            assert!(most < 600.0, "{recovery:?}: {most} µs");
            assert!(recovered.reported_ns > 30_000, "{recovery:?}: ten intervals of 3 µs come first");
            let cut_off = match recovery.failure {
                FailedComponent::Host => 1,
                FailedComponent::RackSwitch => recovery.hosts.div_ceil(4),
                FailedComponent::CoreLink | FailedComponent::CoreSwitch => 0,
            };
            assert_eq!(recovered.failed, cut_off, "{recovery:?}");
        });
    }
}
