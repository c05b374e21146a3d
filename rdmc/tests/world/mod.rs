//! A simulated cluster whose nodes are members of one group.

use std::sync::Arc;

use squall_fabric::{
    Completion, Fabric, NodeId, Time,
    sim::{SimConfig, SimFabric, SimNet},
};
use squall_rdmc::{Buffer, Event, Failure, Group, GroupConfig, GroupId, Interrupted, Rdmc};

/// A message's bytes, which differ between blocks and messages.
pub(crate) fn content(message: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 7) as u8 ^ message as u8).collect()
}

pub(crate) struct Member {
    pub(crate) fabric: SimFabric,
    pub(crate) rdmc: Rdmc,
    pub(crate) id: GroupId,
    pub(crate) received: Vec<(u64, Arc<Buffer>, usize)>,
    pub(crate) released: Vec<u64>,
    pub(crate) failures: Vec<Failure>,
    pub(crate) destroyed: usize,
    pub(crate) connected: usize,
}

impl Member {
    fn new(fabric: SimFabric, rdmc: Rdmc, id: GroupId) -> Member {
        Member {
            fabric,
            rdmc,
            id,
            received: Vec::new(),
            released: Vec::new(),
            failures: Vec::new(),
            destroyed: 0,
            connected: 0,
        }
    }

    pub(crate) fn group(&mut self) -> &mut Group {
        self.rdmc.group(self.id).expect("was created, and not removed")
    }

    pub(crate) fn step(&mut self, now: Time, phantom: bool) {
        let mut completions: Vec<Completion> = Vec::new();
        self.fabric.poll(now, &mut completions);
        for completion in &completions {
            self.rdmc.on_completion(&mut self.fabric, completion);
        }
        let mut events = Vec::new();
        while self.rdmc.step(&mut self.fabric, &mut events) {
            for (_, event) in events.drain(..) {
                assert!(self.failures.is_empty() && self.destroyed == 0, "{event:?} after the last event");
                match event {
                    Event::Connected => self.connected += 1,
                    Event::Incoming { message, max_bytes, .. } => {
                        let register = if phantom { Buffer::phantom } else { Buffer::register };
                        let buffer = register(&mut self.fabric, max_bytes).expect("memory");
                        // The group may have failed meanwhile.
                        let _ = self.group().accept(message, buffer);
                    }
                    Event::Received { message, buffer, len } => self.received.push((message, buffer, len)),
                    Event::Released { message } => self.released.push(message),
                    Event::Failed(failure) => self.failures.push(failure),
                    Event::Destroyed => self.destroyed += 1,
                }
            }
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        !self.failures.is_empty() || self.destroyed > 0
    }
}

pub(crate) struct World {
    pub(crate) net: SimNet,
    /// None where the node has crashed.
    pub(crate) members: Vec<Option<Member>>,
    /// Whether messages have no bytes.
    pub(crate) phantom: bool,
}

pub(crate) const GROUP: GroupId = GroupId { group: 7, instance: 1 };

pub(crate) fn config(n: usize) -> GroupConfig {
    GroupConfig::new(GROUP, (0..n as u32).map(NodeId).collect())
}

impl World {
    pub(crate) fn new(sim: SimConfig, seed: u64, config: &GroupConfig) -> World {
        let net = SimNet::new(sim, seed);
        let members = config.members.iter().map(|&node| {
            let mut fabric = net.fabric(node);
            let mut rdmc = Rdmc::new();
            rdmc.create(&mut fabric, config.clone()).expect("a sound configuration");
            Some(Member::new(fabric, rdmc, config.id))
        });
        World { members: members.collect(), net, phantom: config.phantom }
    }

    /// Moves the survivors to another group, with the members that `config` names.
    pub(crate) fn resume(
        self,
        config: &GroupConfig,
        mut what: impl FnMut(NodeId, &mut SimFabric) -> Interrupted,
    ) -> World {
        let mut members: Vec<Option<Member>> = self.members;
        let resumed = members.iter_mut().flatten().filter(|member| config.members.contains(&member.fabric.node()));
        for member in resumed {
            // A member that has failed leaves its old group behind.
            member.rdmc.remove(&mut member.fabric, member.id);
            let interrupted = what(member.fabric.node(), &mut member.fabric);
            member.failures.clear();
            member.destroyed = 0;
            member.received.clear();
            member.released.clear();
            member.rdmc.resume(&mut member.fabric, config.clone(), interrupted).expect("a sound resume");
            member.id = config.id;
        }
        World { net: self.net, members, phantom: self.phantom }
    }

    pub(crate) fn root(&mut self) -> &mut Member {
        self.members[0].as_mut().expect("the root is alive")
    }

    pub(crate) fn alive(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().flatten()
    }

    /// Queues a message at the root.
    pub(crate) fn send(&mut self, len: usize) -> Arc<Buffer> {
        let root = self.root();
        let mut buffer = Buffer::register(&mut root.fabric, len).expect("memory");
        let message = root.group().progress().message;
        buffer[..len].copy_from_slice(&content(message, len));
        let buffer = Arc::new(buffer);
        assert_eq!(root.group().send(Arc::clone(&buffer), len).expect("the root may send"), message);
        buffer
    }

    pub(crate) fn crash(&mut self, member: usize) {
        self.net.crash(NodeId(member as u32));
        self.members[member] = None;
    }

    /// Lets the network do one thing, and steps the nodes that it concerns. Returns false if nothing is left to happen.
    pub(crate) fn step(&mut self) -> bool {
        let mut ready = Vec::new();
        let now = self.net.advance(Time::MAX, &mut ready);
        for id in &ready {
            if let Some(member) = &mut self.members[id.0 as usize] {
                member.step(now, self.phantom);
            }
        }
        !ready.is_empty()
    }

    /// Steps all members, as after a request to them.
    pub(crate) fn kick(&mut self) {
        let now = self.net.now();
        self.members.iter_mut().flatten().for_each(|member| member.step(now, self.phantom));
    }

    /// Runs until all are connected. A member that dies before is missing, and the others go on waiting.
    pub(crate) fn connect(&mut self) {
        self.kick();
        while self.alive().any(|member| member.connected == 0) {
            assert!(self.step(), "all are connected");
        }
    }

    /// Runs until all living members' groups have ended, or nothing is left to happen.
    pub(crate) fn run(&mut self) {
        self.kick();
        while !self.members.iter().flatten().all(Member::has_ended) && self.step() {}
    }

    /// Runs until nothing is left to happen.
    pub(crate) fn run_dry(&mut self) {
        self.kick();
        while self.step() {}
    }

    /// Makes a member leave its group.
    pub(crate) fn leave(&mut self, member: usize) {
        let now = self.net.now();
        let member = self.members[member].as_mut().expect("alive");
        member.rdmc.remove(&mut member.fabric, member.id);
        member.step(now, self.phantom);
    }

    /// Runs until nothing is left to happen, and steps only the nodes that hear of something.
    pub(crate) fn settle(&mut self) {
        while self.step() {}
    }
}
