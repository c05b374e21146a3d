//! The simulation: its parts, and the loop that lets events happen.

use fastrand::Rng;

use super::{
    Destinations, Figures, OrderProtocol, Profile, ScenarioError, Traffic,
    failure::{FailureEvent, Outage},
    packet::{Content, Members, Packet},
    process::{Process, Scatterings},
    queue::EventQueue,
    receiver::ReceivingHost,
    skew,
    switch::Switch,
    topology::{HOSTS, Node, RACK, Topology, TopologyNode},
};

/// A scenario to simulate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scenario {
    /// The machine.
    pub(crate) profile: Profile,
    /// The number of processes. Up to 32 are on hosts of their own, more (a multiple of 32, up to 2048) on 32 hosts, as
    /// many on each.
    pub(crate) processes: usize,
    /// The protocol by which messages get into one order.
    pub(crate) order: OrderProtocol,
    /// The messages that processes send.
    pub(crate) traffic: Traffic,
    /// The likelihood with which a receiver loses a message, an acknowledgement or a beacon. Beacons are lost on every
    /// link, the others where they end (§7.2).
    pub(crate) loss: f64,
    /// The time at the beginning in which nothing is measured, in nanoseconds.
    pub(crate) warm_up_ns: u64,
    /// The time of measurement after that, in nanoseconds.
    pub(crate) measured_ns: u64,
    /// The seed of everything that is random.
    pub(crate) seed: u64,
}

impl Scenario {
    /// Runs the simulation.
    ///
    /// # Errors
    ///
    /// [`ScenarioError`], if it cannot be simulated.
    pub(crate) fn run(&self) -> Result<Figures, ScenarioError> {
        self.check()?;
        let mut racks: Vec<usize> = (0..self.hosts()).map(|host| host / RACK).collect();
        if self.order == OrderProtocol::HostSequencer {
            racks.push(0);
        }
        let mut world = World::new(*self, Topology::new(racks, self.profile));
        world.run();
        Ok(world.figures)
    }

    /// The number of hosts with processes.
    pub(super) fn hosts(&self) -> usize {
        self.processes.min(HOSTS)
    }

    /// The number of processes on each host.
    pub(super) fn share(&self) -> usize {
        self.processes.div_ceil(self.hosts())
    }
}

/// A cable at work: packets leave it in the order in which they entered it.
#[derive(Debug, Default)]
pub(super) struct CableState {
    /// The time at which all packets that have entered will have left its near end.
    pub(super) free_at: u64,
    pub(super) cut: bool,
    pub(super) last_in: u64,
    pub(super) last_out: u64,
    /// The first of its registers at its far end.
    pub(super) register: usize,
}

/// An event in virtual time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ModelEvent {
    /// A packet comes out of a link.
    Arrive(usize, Packet),
    /// A packet that was not followed through the network comes to the last link of its way.
    Descend(usize, Packet),
    /// A beacon that came by this link is in the representative's memory.
    Represented(usize, Packet),
    /// A packet has been numbered, at this node.
    Numbered(Node, Packet),
    /// A host's clock shows this many beacon intervals.
    Tick(usize, u64),
    /// A process has a scattering ready.
    Ready(usize),
    /// A process has told its clock to all processes.
    Exchanged(usize),
    /// A host's processes have handled a packet.
    Handled(usize, Packet),
    /// A scattering is due to be sent again, if it is not acknowledged yet.
    Overdue(u64, u32),
    Control(FailureEvent),
}

/// The whole simulation.
#[derive(Debug)]
pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) topology: Topology,
    pub(super) rng: Rng,
    pub(super) now: u64,
    pub(super) queue: EventQueue<ModelEvent>,
    /// The states of the cables, by cable.
    pub(super) links: Vec<CableState>,
    /// The switches, by node.
    pub(super) switches: Vec<Switch>,
    pub(super) hosts: Vec<ReceivingHost>,
    /// The processes, host by host.
    pub(super) processes: Vec<Process>,
    pub(super) scatterings: Scatterings,
    /// The number of the next scattering.
    pub(super) number: u64,
    pub(super) token: usize,
    /// The time at which the switch that numbers is free.
    pub(super) sequencer_free: u64,
    pub(super) outage: Option<Outage>,
    pub(super) figures: Figures,
}

impl World {
    pub(super) fn new(scenario: Scenario, topology: Topology) -> World {
        let (hosts, share, profile) = (scenario.hosts(), scenario.share(), scenario.profile);
        let mut rng = Rng::with_seed(scenario.seed);
        let mut links: Vec<CableState> = topology.cables.iter().map(|_| CableState::default()).collect();
        let mut switches = Vec::new();
        for inputs in &topology.inputs {
            let mut registers = 0;
            for &input in inputs {
                links[input].register = registers;
                let from_host = matches!(topology.places[topology.cables[input].from], TopologyNode::Host(_));
                registers += if from_host { share } else { 1 };
            }
            switches.push(Switch::new(registers));
        }
        let interval = scenario.interval_ns();
        let world_hosts: Vec<ReceivingHost> =
            (0..hosts).map(|_| ReceivingHost::new(skew::draw(&profile, &mut rng), scenario.processes)).collect();
        let processes = (0..scenario.processes).map(|p| Process::new(p / share, rng.u64(..interval.max(1)))).collect();
        let mut world = World {
            scenario,
            topology,
            rng,
            now: 0,
            queue: EventQueue::new(),
            links,
            switches,
            hosts: world_hosts,
            processes,
            scatterings: Scatterings::default(),
            number: 0,
            token: 0,
            sequencer_free: 0,
            outage: None,
            figures: Figures { measured_ns: scenario.measured_ns, processes: scenario.processes, ..Figures::default() },
        };
        (0..scenario.processes).for_each(|process| world.prepare(process));
        if matches!(scenario.order, OrderProtocol::OnePipe { .. }) {
            for host in 0..hosts {
                let first = world.clock(host) / profile.beacon_ns + 1;
                world.schedule_tick(host, first);
            }
        }
        if scenario.order == OrderProtocol::Token {
            world.queue.at(0, ModelEvent::Handled(0, Packet::Token(0)));
        }
        world
    }

    /// The reading of a host's clock.
    pub(super) fn clock(&self, host: usize) -> u64 {
        (self.now + skew::ORIGIN_NS).saturating_add_signed(self.hosts[host].skew)
    }

    /// Whether the present is measured.
    pub(super) fn measuring(&self) -> bool {
        self.now >= self.scenario.warm_up_ns
    }

    pub(super) fn run(&mut self) {
        let end = self.scenario.warm_up_ns.saturating_add(self.scenario.measured_ns);
        while let Some((now, event)) = self.queue.pop_before(end) {
            self.now = now;
            self.happen(event);
        }
        for mean in self.hosts.iter().filter_map(|host| host.ordering.mean()) {
            self.figures.ordering.add(mean, 1);
        }
    }

    fn happen(&mut self, event: ModelEvent) {
        match event {
            ModelEvent::Arrive(link, packet) => {
                if self.links[link].cut {
                    return;
                }
                self.links[link].last_out = self.now;
                let node = self.topology.cables[link].to;
                match self.topology.places[node] {
                    TopologyNode::Host(host) if host < self.hosts.len() => self.arrive_at_host(host, packet),
                    TopologyNode::Host(_) => self.number_and_forward(node, packet),
                    _ => self.arrive_at_switch(node, link, packet),
                }
            }
            ModelEvent::Descend(link, packet) => self.transmit(link, packet),
            ModelEvent::Represented(link, packet) => self.take_barriers(link, &packet),
            ModelEvent::Numbered(node, packet) => self.number_and_forward(node, packet),
            ModelEvent::Tick(host, tick) => self.tick(host, tick),
            ModelEvent::Ready(process) => self.ready(process),
            ModelEvent::Exchanged(process) => self.exchange(process),
            ModelEvent::Handled(host, packet) => self.handled(host, packet),
            ModelEvent::Overdue(serial, attempt) => self.send_again(serial, attempt),
            ModelEvent::Control(control) => self.control(control),
        }
    }

    /// Puts a packet into a link. A cut link swallows it.
    pub(super) fn transmit(&mut self, link: usize, packet: Packet) {
        let at = &mut self.links[link];
        if at.cut {
            return;
        }
        let (cable, profile) = (&self.topology.cables[link], &self.scenario.profile);
        let busy = if cable.links == 0 { 0 } else { profile.wire_ns(packet.bytes(profile), cable.links) };
        at.free_at = at.free_at.max(self.now) + busy;
        at.last_in = self.now;
        self.queue.at(at.free_at + cable.delay_ns, ModelEvent::Arrive(link, packet));
    }

    /// Sends a packet that carries no barrier from one host to another. Between the two ends' own links it meets no
    /// queue.
    pub(super) fn transmit_express(&mut self, from: usize, to: usize, packet: Packet) {
        let (up, down) = (self.hosts_link(from), self.topology.link_to_host(to));
        if self.links[up].cut {
            return;
        }
        let profile = &self.scenario.profile;
        let at = &mut self.links[up];
        at.free_at = at.free_at.max(self.now) + profile.wire_ns(packet.bytes(profile), 1);
        let path = self.topology.path_ns(self.topology.hops(from, to)) - profile.host_hop_ns;
        self.queue.at(at.free_at + path, ModelEvent::Descend(down, packet));
    }

    /// The link out of a host.
    pub(super) fn hosts_link(&self, host: usize) -> usize {
        // Hosts are the first nodes, and have one link each.
        self.topology.outputs[host][0]
    }

    /// Draws whether something is lost, with the scenario's likelihood.
    pub(super) fn loses(&mut self) -> bool {
        self.scenario.loss > 0.0 && self.rng.f64() < self.scenario.loss
    }

    /// Draws the messages that are not lost.
    pub(super) fn left_of(&mut self, mut messages: Members) -> Members {
        if self.scenario.loss > 0.0 {
            let sent = messages;
            for bit in (0..Members::BITS).map(|i| 1 << i).filter(|bit| sent & bit != 0) {
                if self.loses() {
                    messages &= !bit;
                }
            }
        }
        messages
    }
}

impl Scenario {
    /// The time of each of a process's threads for one message.
    pub(super) fn cpu_ns(&self) -> u64 {
        let prepares = matches!(self.order, OrderProtocol::OnePipe { reliable: true, .. });
        self.profile.message_cpu_ns + if prepares { self.profile.prepare_cpu_ns } else { 0 }
    }

    /// The mean time from one scattering of a process to the next.
    pub(super) fn interval_ns(&self) -> u64 {
        match self.traffic {
            Traffic::Broadcast { load_percent } => {
                self.processes as u64 * self.profile.message_cpu_ns * 100 / load_percent
            }
            Traffic::Scattered { mean_gap_ns, .. } => mean_gap_ns,
        }
    }

    /// The number of messages of one scattering.
    pub(super) fn width(&self) -> usize {
        match self.traffic {
            Traffic::Scattered { to: Destinations::OneHost(width), .. } => width.min(self.share()),
            _ => self.processes,
        }
    }
}

/// The serial number of a train's scattering.
pub(super) fn serial_of(content: Content) -> Option<u64> {
    match content {
        Content::Messages(serial) => Some(serial),
        Content::Clock => None,
    }
}
