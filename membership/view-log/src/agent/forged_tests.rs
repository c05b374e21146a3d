//! Calls of Raft's in the name of another node, among logs in virtual time.

use std::{collections::VecDeque, time::Duration};

use squall_fabric::{NodeId, Time};
use squall_membership::{Incarnation, Layout, Member};

use crate::{
    Contact, Settings, SimLog, Start, Timing,
    wire::{Body, Envelope},
};

const NODES: [u32; 3] = [1, 2, 3];

fn contact(id: u32) -> Contact {
    Contact { node: Some(NodeId(id)), addresses: Vec::new() }
}

/// Logs whose messages arrive at once.
struct World {
    now: Time,
    logs: Vec<SimLog>,
    in_flight: VecDeque<(u32, u32, Vec<u8>)>,
    /// The messages that were sent, with sender and receiver.
    sent: Vec<(u32, u32, Vec<u8>)>,
}

impl World {
    fn new() -> World {
        let log = |&id: &u32| {
            let settings = Settings {
                cluster: "test".into(),
                me: Member::new(NodeId(id), Incarnation(1)),
                layout: Layout::of_all(["group".into()]),
                policy: Default::default(),
                parameters: Default::default(),
                start: Start::List { members: NODES.map(contact).to_vec(), witnesses: Vec::new() },
                voters: None,
                timing: Timing::default(),
            };
            SimLog::new(settings, u64::from(id), None, Time::ZERO).expect("it starts")
        };
        World { now: Time::ZERO, logs: NODES.iter().map(log).collect(), in_flight: VecDeque::new(), sent: Vec::new() }
    }

    fn log(&mut self, id: u32) -> &mut SimLog {
        &mut self.logs[id as usize - 1]
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + Duration::from_millis(1);
            while let Some((from, to, message)) = self.in_flight.pop_front() {
                self.log(to).incoming(NodeId(from), message);
            }
            for id in NODES {
                let now = self.now;
                let log = self.log(id);
                log.advance(now);
                while log.event().is_some() {}
                for (to, message) in log.outgoing() {
                    let to = to.node.expect("contacts are known").0;
                    self.sent.push((id, to, message.clone()));
                    self.in_flight.push_back((id, to, message));
                }
            }
        }
    }
}

#[test]
fn a_call_in_another_nodes_name_is_not_answered() {
    let mut world = World::new();
    world.run(Duration::from_secs(3));
    assert!(NODES.iter().all(|&id| world.log(id).status().leader.is_some()), "they have a leader");
    // Whatever the leader says to a follower, node `thief` says it, too: once as the leader's voter, once as its own.
    let leader = world.log(1).status().leader.expect("there is one").0;
    let [follower, thief] = NODES.iter().copied().filter(|&id| id != leader).collect::<Vec<_>>()[..] else { panic!() };
    world.sent.clear();
    world.run(Duration::from_secs(3));
    let is_call = |(from, to, message): &&(u32, u32, Vec<u8>)| {
        let body = Envelope::decode(message).map(|envelope| envelope.body);
        (*from, *to) == (leader, follower) && matches!(body, Some(Body::Call { .. }))
    };
    let (.., call) = world.sent.iter().find(is_call).expect("the leader calls").clone();
    let own = world.log(thief).me();
    for is_own_voter in [false, true] {
        let mut envelope = Envelope::decode(&call).expect("it is one");
        let voter = if is_own_voter { own.voter } else { envelope.from.voter };
        envelope.from = Member { voter, ..own.clone() };
        world.sent.clear();
        world.in_flight.push_back((thief, follower, envelope.encode().expect("it is short")));
        world.run(Duration::from_millis(50));
        let is_answer = |(from, to, message): &(u32, u32, Vec<u8>)| {
            let body = Envelope::decode(message).map(|envelope| envelope.body);
            (*from, *to) == (follower, thief) && matches!(body, Some(Body::Return { .. }))
        };
        assert!(!world.sent.iter().any(is_answer), "it is answered; as its own voter: {is_own_voter}");
    }
    // The leader's own words are.
    world.sent.clear();
    world.in_flight.push_back((leader, follower, call));
    world.run(Duration::from_millis(50));
    assert!(world.sent.iter().any(|(from, to, _)| (*from, *to) == (follower, leader)));
}
