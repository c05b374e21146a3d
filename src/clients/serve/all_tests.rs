//! Replies of all members, and calls to chosen ones, of nodes in this process.

use std::{
    io::{self, Read},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

use rkyv::Archived;
use squall_fabric::NodeId;

use super::tests::until;
use crate::{
    Applied, Config, Consistency, Mode, Node, QueryService, Replicated, ServeOptions, ServedGroup, Snapshot,
    client::{AgreementError, Client, ClientConfig, ClientError},
};

/// A sum, which its member applies once the gate is open. A negative command is replied to with the member's number.
struct Gated {
    sum: i64,
    member: u32,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.changed.notify_all();
    }
}

impl Replicated for Gated {
    type Command = i64;
    type Reply = i64;

    fn apply(&mut self, add: &Archived<i64>, _at: &Applied) -> i64 {
        drop(self.gate.changed.wait_while(self.gate.shut.lock().unwrap(), |shut| *shut).unwrap());
        if add.to_native() < 0 {
            return i64::from(self.member);
        }
        self.sum += add.to_native();
        self.sum
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of_bytes(self.sum.to_le_bytes())
    }

    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes)?;
        self.sum = i64::from_le_bytes(bytes);
        Ok(())
    }
}

impl QueryService for Gated {
    type Query = ();
    type Answer = (u32, i64);

    fn answer(&self, _query: &()) -> (u32, i64) {
        (self.member, self.sum)
    }
}

struct World {
    name: String,
    nodes: Vec<(Node, ServedGroup<Gated>)>,
    gates: Vec<Arc<Gate>>,
    _disks: tempfile::TempDir,
}

impl World {
    /// Starts three members, of which the last one may not send.
    fn new(test: &str, mode: Mode) -> World {
        let name = format!("all-{test}-{}", std::process::id());
        let disks = tempfile::tempdir().unwrap();
        let gates: Vec<Arc<Gate>> = (1..=3).map(|_| Arc::default()).collect();
        let start = |id: u32| {
            let mut config = Config::builder(&name, id).members(1..=3).group("sum", |group| {
                group.mode(mode).senders([1, 2]);
            });
            if mode == Mode::Durable {
                config = config.storage(disks.path().join(id.to_string()));
            }
            let mut node = Node::builder(config.build().unwrap());
            let gated = Gated { sum: 0, member: id, gate: Arc::clone(&gates[id as usize - 1]) };
            let group = node.serve("sum", gated, ServeOptions { window: 8, ..ServeOptions::default() });
            (node.start().expect("the view is formed"), group)
        };
        let nodes = thread::scope(|scope| {
            let starting: Vec<_> = (1..=3).map(|id| scope.spawn(move || start(id))).collect();
            starting.into_iter().map(|node| node.join().expect("it starts")).collect()
        });
        World { name, nodes, gates, _disks: disks }
    }

    fn client(&self) -> Client<Gated> {
        let config = ClientConfig::on_host(&self.name, [NodeId(1)]).with_timeout(Duration::from_secs(60));
        Client::connect(&config, "sum").unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.gates.iter().for_each(|gate| gate.set(false));
    }
}

const MEMBERS: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

#[test]
fn every_member_replies_to_clients_and_to_members_and_readers_do_too() {
    let world = World::new("replies", Mode::Ordered);
    let client = world.client();
    let handles = [client, world.nodes[1].1.anywhere(), world.nodes[2].1.anywhere()];
    for (index, handle) in handles.iter().enumerate() {
        // Their sessions and connections are made by the first call, and used by the next ones.
        for times in 1..=3 {
            let mut replies = handle.submit_all(&1).wait().unwrap();
            assert_eq!(replies.members(), MEMBERS);
            let (first, reply) = replies.wait_next().expect("there are three");
            let rest = replies.wait_all();
            let sum = 3 * index as i64 + times;
            assert_eq!((reply, rest.len(), rest.contains_key(&first)), (Ok(sum), 2, false));
            assert!(rest.values().all(|reply| *reply == Ok(sum)), "{rest:?}");
        }
        assert_eq!(handle.submit_all(&0).wait().unwrap().wait_agreed(), Ok(3 * index as i64 + 3));
    }
    let differ = handles[0].submit_all(&-1).wait().unwrap().wait_agreed();
    assert_eq!(differ, Err(AgreementError::Differ { groups: MEMBERS.map(|node| vec![node]).to_vec() }));
    assert_eq!(handles[0].query(&()).wait().map(|(_, sum)| sum), Ok(9), "each command is applied once");
}

#[test]
fn replies_come_as_members_apply_and_one_that_leaves_before_is_named() {
    let world = World::new("leaves", Mode::Ordered);
    let client = world.client();
    assert_eq!(client.submit_all(&1).wait().unwrap().wait_agreed(), Ok(1));
    world.gates[2].set(true);
    let mut replies = client.submit_all(&1).wait().unwrap();
    let first_two: Vec<_> = [(); 2].iter().filter_map(|()| replies.wait_next()).collect();
    assert!(first_two.iter().all(|(node, reply)| *node != NodeId(3) && *reply == Ok(2)), "{first_two:?}");
    // Other commands are answered meanwhile: more than are under way at a time.
    (3..=14).for_each(|sum| assert_eq!(client.submit(&1).wait(), Ok(sum)));
    world.nodes[0].0.suspect(NodeId(3));
    let last = replies.wait_next();
    assert!(matches!(&last, Some((NodeId(3), Err(ClientError::Gone(_))))), "{last:?}");
    assert_eq!(replies.wait_next().map(|(node, _)| node), None);
    world.gates[2].set(false);
    until("the member is back", || client.submit_all(&0).wait().unwrap().wait_all().len() == 3);
}

#[test]
fn members_of_a_durable_group_reply_once_the_command_is_on_the_disks() {
    let world = World::new("durable", Mode::Durable);
    let client = world.client();
    let calls: Vec<_> = (0..20).map(|_| client.submit_all(&1)).collect();
    for (index, call) in calls.into_iter().enumerate() {
        let replies = call.wait().unwrap().wait_all();
        assert_eq!(replies, MEMBERS.map(|node| (node, Ok(index as i64 + 1))).into());
    }
}

#[test]
fn a_chosen_member_shows_its_own_replica() {
    let world = World::new("chosen", Mode::Ordered);
    let client = world.client();
    client.submit_all(&4).wait().unwrap().wait_agreed().unwrap();
    for handle in [&client, &world.nodes[0].1.anywhere()] {
        for node in MEMBERS {
            for consistency in [Consistency::Local, Consistency::Linearizable] {
                assert_eq!(handle.query_at(node, consistency, &()).wait(), Ok((node.0, 4)));
            }
        }
        let error = handle.query_at(NodeId(9), Consistency::Local, &()).wait().unwrap_err();
        assert!(matches!(&error, ClientError::Query(why) if why.contains("9 is no member")), "{error}");
    }
    // All are on this host, and the first of them answers a client, and a member itself.
    assert_eq!(client.query_nearest(Consistency::Local, &()).wait(), Ok((1, 4)));
    assert_eq!(world.nodes[2].1.anywhere().query_nearest(Consistency::Local, &()).wait(), Ok((3, 4)));
}
