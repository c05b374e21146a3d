//! The log on threads of its own, in one process.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, mpsc},
    time::{Duration, Instant},
};

use squall_fabric::{NodeId, Time};
use squall_membership::{
    Epoch, Final, Incarnation, Layout, Member, Parameters, Proposal, Seq, ViewEvent, ViewLog, successor,
};
use squall_view_log::{Contact, Directory, Inlet, Log, Monitor, Settings, Start, Timing, Transport};

/// A transport that hands messages over at once, to logs that are there.
#[derive(Default)]
struct Net(Mutex<BTreeMap<NodeId, Inlet>>);

struct Port(NodeId, Arc<Net>);

impl Transport for Port {
    fn send(&self, to: &Contact, message: Vec<u8>) {
        let inlet = to.node.and_then(|node| self.1.0.lock().unwrap().get(&node).cloned());
        if let Some(inlet) = inlet {
            inlet.incoming(self.0, false, message);
        }
    }
}

struct Node {
    log: Log,
    monitor: Monitor,
    woken: mpsc::Receiver<()>,
}

impl Node {
    fn next(&mut self) -> ViewEvent {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(event) = self.log.poll(Time::ZERO) {
                return event;
            }
            assert_eq!(self.monitor.failure(), None);
            self.woken.recv_timeout(end - Instant::now()).expect("an event");
        }
    }

    fn committed(&mut self) -> Proposal {
        loop {
            if let ViewEvent::Committed(proposal) = self.next() {
                return proposal;
            }
        }
    }
}

fn start(net: &Arc<Net>, id: u32, list: &[u32], directory: Option<&std::path::Path>) -> Node {
    let node = NodeId(id);
    let members = list.iter().map(|&id| Contact { node: Some(NodeId(id)), addresses: Vec::new() }).collect();
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let life = BEGAN.get_or_init(Instant::now).elapsed().as_nanos() as u64;
    let settings = Settings {
        cluster: "test".into(),
        me: Member::new(node, Incarnation(life)),
        layout: Layout::of_all(["group".into()]),
        policy: Default::default(),
        parameters: Parameters::default(),
        start: Start::List { members, witnesses: Vec::new() },
        voters: None,
        timing: Timing::default(),
    };
    let (wake, woken) = mpsc::channel();
    let wake = Arc::new(move || {
        // The test may be over.
        let _ = wake.send(());
    });
    let directory =
        directory.map(|path| Directory::open(path, &settings.cluster, settings.me.node).expect("a directory"));
    let log = Log::start(settings, directory, Arc::new(Port(node, Arc::clone(net))), wake).expect("a log starts");
    net.0.lock().unwrap().insert(node, log.inlet());
    Node { monitor: log.monitor(), log, woken }
}

fn next(last: &Proposal, by: u32, stay: &[u32]) -> Proposal {
    let stay: Vec<NodeId> = stay.iter().copied().map(NodeId).collect();
    let ends = last.view.shards.iter().map(|shard| {
        let end = |&node: &NodeId| Final { node, count: Seq(0), complete: shard.is_complete(node), on_disk: false };
        (shard.shard, shard.members.iter().map(end).collect())
    });
    successor(&last.view, &Layout::of_all(["group".into()]), NodeId(by), &stay, &[], &ends.collect())
}

#[test]
fn when_the_leader_is_gone_a_successor_is_decided_without_waiting_for_its_lease() {
    let net = Arc::new(Net::default());
    let mut took = Vec::new();
    for _ in 0..5 {
        let mut nodes: Vec<Node> = (1..4).map(|id| start(&net, id, &[1, 2, 3], None)).collect();
        let first = nodes.iter_mut().map(Node::committed).collect::<Vec<_>>().remove(0);
        let leader = loop {
            if let Some(leader) = nodes[0].monitor.status().leader {
                break leader.0;
            }
            std::thread::yield_now();
        };
        net.0.lock().unwrap().remove(&NodeId(leader));
        let dead = nodes.remove(leader as usize - 1);
        let stay: Vec<u32> = (1..4).filter(|id| *id != leader).collect();
        let began = Instant::now();
        nodes.iter_mut().for_each(|node| node.log.peer_gone(NodeId(leader)));
        nodes[0].log.propose(next(&first, stay[0], &stay));
        for node in &mut nodes {
            assert_eq!(node.committed().view.epoch, Epoch(2));
        }
        took.push(began.elapsed());
        drop(dead);
        net.0.lock().unwrap().clear();
    }
    #[expect(clippy::print_stdout, reason = "what was measured is of interest beyond the bound")]
    {
        println!("from the news that the leader is gone to the decision, at both others: {took:?}");
    }
    // Raft alone would take at least the lease, a second: this leaves room for a slow machine.
    assert!(took.iter().min().unwrap() < &Duration::from_millis(400));
}

/// Only the leader itself tells that it is gone.
#[test]
fn a_leader_that_ends_in_order_hands_over() {
    let net = Arc::new(Net::default());
    let mut nodes: Vec<Node> = (1..4).map(|id| start(&net, id, &[1, 2, 3], None)).collect();
    let first = nodes.iter_mut().map(Node::committed).collect::<Vec<_>>().remove(0);
    let leader = loop {
        if let Some(leader) = nodes[0].monitor.status().leader {
            break leader.0;
        }
        std::thread::yield_now();
    };
    drop(nodes.remove(leader as usize - 1));
    let stay: Vec<u32> = (1..4).filter(|id| *id != leader).collect();
    nodes[0].log.propose(next(&first, stay[0], &stay));
    let began = Instant::now();
    for node in &mut nodes {
        assert_eq!(node.committed().view.epoch, Epoch(2));
    }
    // Raft's own election takes more than two seconds.
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}
