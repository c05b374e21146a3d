//! Switches: they forward, and aggregate barriers.

use super::{
    OrderProtocol, Switches,
    packet::{Barriers, Packet, count},
    topology::{Node, TopologyNode},
    world::{ModelEvent, World, serial_of},
};
use squall_onepipe::Tournament;

/// One half of a switch: the traffic that goes up, or that goes down.
#[derive(Debug)]
pub(super) struct Switch {
    /// Two registers for each input: each process below has a link of its own (§6.1).
    best_effort: Tournament,
    commit: Tournament,
    /// The number of beacon intervals that its barrier had passed when it last sent beacons.
    tick: u64,
}

impl Switch {
    pub(super) fn new(registers: usize) -> Switch {
        Switch { best_effort: Tournament::new(registers, 0), commit: Tournament::new(registers, 0), tick: 0 }
    }

    /// The barriers that it promises on all its outputs.
    pub(super) fn barriers(&self) -> Barriers {
        Barriers { best_effort: self.best_effort.least(), commit: self.commit.least() }
    }

    fn update(&mut self, register: usize, barriers: Barriers) {
        for (tree, barrier) in [(&mut self.best_effort, barriers.best_effort), (&mut self.commit, barriers.commit)] {
            if barrier > tree.get(register) {
                tree.set(register, barrier);
            }
        }
    }

    /// Waits for this input no longer.
    pub(super) fn leave_out(&mut self, register: usize) {
        self.update(register, Barriers { best_effort: u64::MAX, commit: u64::MAX });
    }
}

impl World {
    pub(super) fn arrive_at_switch(&mut self, node: Node, link: usize, packet: Packet) {
        let aggregates = match self.scenario.order {
            OrderProtocol::OnePipe { switches, .. } => Some(switches),
            _ => None,
        };
        match packet {
            Packet::Train(mut train) => {
                if aggregates == Some(Switches::Chip) {
                    let process = train.sender % self.scenario.share();
                    let register = self.links[link].register + if self.is_host_link(link) { process } else { 0 };
                    self.switches[node].update(register, train.barriers);
                    train.barriers = self.switches[node].barriers();
                    self.announce(node);
                }
                let packet = Packet::Train(train);
                let numbers = self.scenario.order == OrderProtocol::SwitchSequencer && train.number.is_none();
                if numbers && node == self.topology.top() {
                    let done =
                        self.sequencer_free.max(self.now) + self.scenario.profile.sequencer_ns * count(train.messages);
                    self.sequencer_free = done;
                    self.queue.at(done, ModelEvent::Numbered(node, packet));
                } else {
                    self.forward(node, packet);
                }
            }
            Packet::Beacons(mut beacons) => {
                for barriers in &mut beacons {
                    if self.loses() {
                        *barriers = Barriers::default();
                    }
                }
                self.hear(link, Packet::Beacons(beacons), aggregates);
            }
            Packet::Beacon(barriers) => {
                // A beacon is never lost inside a switch.
                if self.topology.cables[link].links == 0 || !self.loses() {
                    self.hear(link, Packet::Beacon(barriers), aggregates);
                }
            }
            Packet::Acknowledgement { .. } | Packet::Token(_) => {
                unreachable!("a packet that carries no barrier is not followed through switches")
            }
        }
    }

    /// Hears beacons: at once, or through the representative, which stands for both halves of a switch.
    fn hear(&mut self, link: usize, packet: Packet, aggregates: Option<Switches>) {
        if aggregates == Some(Switches::Representative) && self.topology.cables[link].links > 0 {
            let there = self.now + self.scenario.profile.representative_ns;
            self.queue.at(there, ModelEvent::Represented(link, packet));
        } else {
            self.take_barriers(link, &packet);
        }
    }

    /// Puts the barriers of beacons into the registers.
    pub(super) fn take_barriers(&mut self, link: usize, packet: &Packet) {
        let (node, first) = (self.topology.cables[link].to, self.links[link].register);
        match packet {
            Packet::Beacons(beacons) => {
                for (register, &barriers) in (first..).zip(beacons) {
                    self.switches[node].update(register, barriers);
                }
            }
            Packet::Beacon(barriers) => self.switches[node].update(first, *barriers),
            _ => {}
        }
        self.announce(node);
    }

    /// Sends beacons on all outputs when the barrier has passed a multiple of the beacon interval.
    ///
    /// Beacons are in phase everywhere. So one that leaves a host at such a moment goes on from switch to switch
    /// without waiting, and no link gets more than one in an interval.
    pub(super) fn announce(&mut self, node: Node) {
        let tick = self.switches[node].barriers().best_effort / self.scenario.profile.beacon_ns;
        if tick > self.switches[node].tick {
            self.switches[node].tick = tick;
            self.send_beacons(node);
        }
    }

    fn send_beacons(&mut self, node: Node) {
        let barriers = self.switches[node].barriers();
        for i in 0..self.topology.outputs[node].len() {
            self.transmit(self.topology.outputs[node][i], Packet::Beacon(barriers));
        }
    }

    /// Sends a beacon where there was none for an interval and a half, so that a silent link is a broken link.
    pub(super) fn keep_alive(&mut self, node: Node) {
        let barriers = self.switches[node].barriers();
        for i in 0..self.topology.outputs[node].len() {
            let link = self.topology.outputs[node][i];
            if self.links[link].last_in + self.scenario.profile.beacon_ns * 3 / 2 < self.now {
                self.transmit(link, Packet::Beacon(barriers));
            }
        }
    }

    /// Gives a train the number of its scattering, at a sequencer, and sends it on.
    pub(super) fn number_and_forward(&mut self, node: Node, packet: Packet) {
        let Packet::Train(mut train) = packet else { return };
        let Some(serial) = serial_of(train.content) else { return };
        let given = self.scatterings.get(serial).and_then(|scattering| scattering.number);
        let number = given.unwrap_or_else(|| self.next_number());
        if let Some(scattering) = self.scatterings.get(serial) {
            scattering.number = Some(number);
        }
        train.number = Some(number);
        self.forward(node, Packet::Train(train));
    }

    fn forward(&mut self, node: Node, packet: Packet) {
        let Packet::Train(train) = &packet else { return };
        let (from, to) = (self.processes[train.sender].host, train.to);
        // Trains from host to host take one way, in order; a train that is sent again takes another.
        let flow = (from * 31 + to * 17) as u64 + u64::from(train.attempt);
        let numbered = train.number.is_some();
        let way = match self.scenario.order {
            OrderProtocol::SwitchSequencer if !numbered => None,
            // The host that numbers is the one behind all others.
            OrderProtocol::HostSequencer if !numbered => Some(self.hosts.len()),
            _ => Some(to),
        };
        self.transmit(self.topology.next(node, way, flow), packet);
    }

    pub(super) fn is_host_link(&self, link: usize) -> bool {
        matches!(self.topology.places[self.topology.cables[link].from], TopologyNode::Host(_))
    }
}
