//! Clusters of logs in virtual time, with a network that delays, loses and repeats messages, and nodes that crash.

use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc},
    time::Duration,
};

use squall_fabric::{NodeId, Time};
use squall_membership::{
    Epoch, Final, Incarnation, Layout, Member, Parameters, Proposal, Seq, View, ViewEvent, ViewLog,
};
use squall_view_log::{Contact, Settings, SimDisk, SimLog, Start, Timing};

pub(crate) const MS: Duration = Duration::from_millis(1);

/// A node: its log, the views of which it was told, and its disk.
pub(crate) struct Node {
    pub(crate) log: Option<SimLog>,
    pub(crate) disk: Option<SimDisk>,
    pub(crate) events: Vec<ViewEvent>,
    pub(crate) lives: u64,
}

/// The network's treatment of messages.
#[derive(Clone, Copy, Default)]
pub(crate) struct Trouble {
    /// The number of a hundred that are lost.
    pub(crate) loss: u32,
    /// The number of a hundred that arrive twice.
    pub(crate) repeats: u32,
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) nodes: BTreeMap<u32, Node>,
    pub(crate) trouble: Trouble,
    pub(crate) rng: fastrand::Rng,
    /// The longest time that messages take beyond the usual one; they take half of it at least.
    pub(crate) delay: Duration,
    /// The pairs that can't reach each other, in this direction.
    pub(crate) cut: Vec<(u32, u32)>,
    /// The pairs between which messages wait, in this direction, until the pair is taken out.
    pub(crate) held: Vec<(u32, u32)>,
    pub(crate) list: Vec<u32>,
    pub(crate) witnesses: Vec<u32>,
    pub(crate) voters: Option<Vec<NodeId>>,
    /// By node, its parameters, if it has any.
    pub(crate) parameters: BTreeMap<u32, Parameters>,
    /// The layout of nodes that are started from now on.
    pub(crate) layout: Layout,
    in_flight: BTreeMap<(Time, u64), (u32, u32, Vec<u8>)>,
    /// The number of messages that were sent.
    pub(crate) sent: u64,
    /// The successor of each epoch, whichever node was told.
    pub(crate) decided: BTreeMap<Epoch, Proposal>,
    /// Whether operators force two lives, which decide the same epochs each for itself.
    pub(crate) has_two_lives: bool,
    /// The seed, which is named when the test fails.
    pub(crate) seed: Option<u64>,
}

impl Drop for World {
    #[expect(clippy::print_stderr, reason = "a failing seed must be known")]
    fn drop(&mut self) {
        if let Some(seed) = self.seed.filter(|_| std::thread::panicking()) {
            eprintln!("SQUALL_SEED={seed}: run it again with that seed");
        }
    }
}

fn contact(id: u32) -> Contact {
    Contact { node: Some(NodeId(id)), addresses: vec![format!("10.0.0.{id}:7000")] }
}

impl World {
    pub(crate) fn new(list: &[u32], seed: u64) -> World {
        World {
            now: Time::ZERO,
            nodes: BTreeMap::new(),
            trouble: Trouble::default(),
            rng: fastrand::Rng::with_seed(seed),
            delay: Duration::ZERO,
            cut: Vec::new(),
            held: Vec::new(),
            list: list.to_vec(),
            witnesses: Vec::new(),
            voters: None,
            parameters: BTreeMap::new(),
            layout: Layout::of_all(["group".into()]),
            in_flight: BTreeMap::new(),
            sent: 0,
            decided: BTreeMap::new(),
            has_two_lives: false,
            seed: None,
        }
    }

    /// The nodes of the list, started now.
    pub(crate) fn formed(list: &[u32], seed: u64) -> World {
        let mut world = World::new(list, seed);
        for &id in list {
            world.start(id);
        }
        world.run_until(3000 * MS, "a first view", |world| list.iter().all(|&id| world.epoch(id) == Some(1)));
        world
    }

    pub(crate) fn contacts(&self, ids: &[u32]) -> Vec<Contact> {
        ids.iter().copied().map(contact).collect()
    }

    pub(crate) fn start(&mut self, id: u32) {
        let start = if self.list.contains(&id) {
            let contacts = |ids: &[u32]| ids.iter().copied().map(contact).collect();
            Start::List { members: contacts(&self.list), witnesses: contacts(&self.witnesses) }
        } else if self.witnesses.contains(&id) {
            Start::Witness { contacts: self.list.iter().copied().map(contact).collect() }
        } else {
            Start::Join { contacts: self.list.iter().copied().map(contact).collect() }
        };
        self.start_as(id, start, Timing::default());
    }

    pub(crate) fn start_as(&mut self, id: u32, start: Start, timing: Timing) {
        let node = self.nodes.entry(id).or_insert(Node { log: None, disk: None, events: Vec::new(), lives: 0 });
        node.lives += 1;
        node.events.clear();
        let incarnation = Incarnation(node.lives);
        let me = Member { addresses: contact(id).addresses, ..Member::new(NodeId(id), incarnation) };
        let settings = Settings {
            cluster: "test".into(),
            me,
            layout: self.layout.clone(),
            policy: Default::default(),
            parameters: self.parameters.get(&id).cloned().unwrap_or_default(),
            start,
            voters: self.voters.clone(),
            timing,
        };
        let log = SimLog::new(settings, self.rng.u64(..), node.disk.clone(), self.now);
        node.log = Some(log.expect("a log starts"));
    }

    pub(crate) fn with_disk(&mut self, id: u32) {
        let disk = Some(SimDisk::new(self.rng.u64(..)));
        self.nodes.insert(id, Node { log: None, disk, events: Vec::new(), lives: 0 });
    }

    pub(crate) fn crash(&mut self, id: u32) {
        let node = self.node(id);
        node.log = None;
        if let Some(disk) = &node.disk {
            disk.crash();
        }
        // What is held is on its way through a network that does not know of it.
        let held = &self.held;
        self.in_flight.retain(|_, (from, to, _)| held.contains(&(*from, *to)) || *from != id && *to != id);
    }

    pub(crate) fn node(&mut self, id: u32) -> &mut Node {
        self.nodes.get_mut(&id).expect("a node of the world")
    }

    pub(crate) fn log(&mut self, id: u32) -> &mut SimLog {
        self.node(id).log.as_mut().expect("a node that runs")
    }

    pub(crate) fn is_up(&self, id: u32) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.log.is_some())
    }

    /// The last proposal that a node was told of.
    pub(crate) fn last(&self, id: u32) -> Option<Proposal> {
        self.nodes.get(&id)?.events.iter().rev().find_map(|event| match event {
            ViewEvent::Committed(proposal) => Some(proposal.clone()),
            _ => None,
        })
    }

    pub(crate) fn epoch(&self, id: u32) -> Option<u64> {
        self.last(id).map(|last| last.view.epoch.0)
    }

    pub(crate) fn members(&self, id: u32) -> Vec<u32> {
        self.last(id).map(|last| last.view.members.iter().map(|member| member.node.0).collect()).unwrap_or_default()
    }

    pub(crate) fn candidates(&self, id: u32) -> Vec<u32> {
        let candidates = self.nodes[&id].events.iter().rev().find_map(|event| match event {
            ViewEvent::Candidates(members) => Some(members.iter().map(|member| member.node.0).collect()),
            _ => None,
        });
        candidates.unwrap_or_default()
    }

    /// The successor of the view that a node knows, with these members; new ones must be candidates.
    pub(crate) fn successor(&self, by: u32, members: &[u32]) -> Proposal {
        let last = self.last(by).expect("a view to follow");
        let asking = self.nodes[&by].events.iter().rev().find_map(|event| match event {
            ViewEvent::Candidates(members) => Some(members.clone()),
            _ => None,
        });
        successor(&last.view, by, members, &asking.unwrap_or_default())
    }

    pub(crate) fn propose(&mut self, by: u32, members: &[u32]) {
        let proposal = self.successor(by, members);
        self.log(by).propose(proposal);
    }

    /// Lets an operator force a node to go on alone, and waits until it does.
    pub(crate) fn force(&mut self, id: u32) {
        let (done, answer) = mpsc::channel();
        let proposal = self.successor(id, &[id]);
        // The caller may have gone.
        self.log(id).force(proposal, "test".into(), move |result| _ = done.send(result));
        self.run_until(5000 * MS, "a view", |world| world.members(id) == [id]);
        assert_eq!(answer.try_recv(), Ok(Ok(())));
    }

    pub(crate) fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.step(end) {}
    }

    pub(crate) fn run_until(&mut self, patience: Duration, what: &str, done: impl Fn(&World) -> bool) -> Duration {
        let (began, end) = (self.now, self.now + patience);
        while !done(self) {
            if !self.step(end) {
                let states: Vec<_> = self
                    .nodes
                    .iter()
                    .map(|(id, node)| (id, node.log.as_ref().map(|log| (log.status(), log.failure())), self.epoch(*id)))
                    .collect();
                panic!("no {what} after {patience:?}: {states:#?}");
            }
        }
        self.now.since(began)
    }

    /// Takes the next step, if that is before `end`.
    fn step(&mut self, end: Time) -> bool {
        let timers = self.nodes.values().filter_map(|node| node.log.as_ref()).map(|log| log.deadline());
        let held = |from: &u32, to: &u32| self.held.contains(&(*from, *to));
        let mut moving = self.in_flight.iter().filter(|(_, (from, to, _))| !held(from, to));
        let arrival = moving.next().map_or(Time::MAX, |(key, _)| key.0);
        let next = timers.min().unwrap_or(Time::MAX).min(arrival).max(self.now);
        if next > end {
            self.now = end;
            return false;
        }
        self.now = next;
        let arrives = |key: &(Time, u64), (from, to, _): &mut (u32, u32, Vec<u8>)| {
            key.0 <= next && !self.held.contains(&(*from, *to))
        };
        for (_, (from, to, message)) in self.in_flight.extract_if(.., arrives) {
            if let Some(log) = self.nodes.get_mut(&to).and_then(|node| node.log.as_mut()) {
                log.incoming(NodeId(from), message);
            }
        }
        let ids: Vec<u32> = self.nodes.keys().copied().collect();
        for id in ids {
            self.settle(id);
        }
        true
    }

    fn settle(&mut self, id: u32) {
        let now = self.now;
        let node = self.nodes.get_mut(&id).expect("a node of the world");
        let Some(log) = &mut node.log else { return };
        if log.deadline() > now {
            return;
        }
        log.advance(now);
        while let Some(event) = log.poll(now) {
            if let ViewEvent::Committed(proposal) = &event {
                let decided = self.decided.entry(proposal.view.epoch).or_insert_with(|| proposal.clone());
                assert!(self.has_two_lives || decided == proposal, "two successors of one view");
                let before = node.events.iter().rev().find_map(|event| match event {
                    ViewEvent::Committed(before) if before.view.life == proposal.view.life => Some(before.view.epoch),
                    _ => None,
                });
                assert!(before.is_none_or(|before| before < proposal.view.epoch), "views out of order at {id}");
            }
            node.events.push(event);
        }
        for (to, message) in log.outgoing() {
            let to = to.node.expect("contacts are known").0;
            if self.cut.contains(&(id, to)) || self.rng.u32(..100) < self.trouble.loss {
                continue;
            }
            let copies = 1 + u32::from(self.rng.u32(..100) < self.trouble.repeats);
            for _ in 0..copies {
                self.sent += 1;
                let delay = self.delay.as_micros() as u64;
                let arrival = now + Duration::from_micros(self.rng.u64(50..300) + self.rng.u64(delay / 2..=delay));
                self.in_flight.insert((arrival, self.sent), (id, to, message.clone()));
            }
        }
    }
}

/// A proposal that follows all rules: no member received anything.
pub(crate) fn successor(current: &Arc<View>, by: u32, nodes: &[u32], candidates: &[Member]) -> Proposal {
    let layout = Layout::of_all(["group".into()]);
    let nodes: Vec<NodeId> = nodes.iter().copied().map(NodeId).collect();
    let joining: Vec<Member> = candidates.iter().filter(|asks| nodes.contains(&asks.node)).cloned().collect();
    let stay: Vec<NodeId> = nodes.iter().copied().filter(|node| current.rank_of(*node).is_some()).collect();
    let stay: Vec<NodeId> = stay.into_iter().filter(|node| joining.iter().all(|asks| asks.node != *node)).collect();
    let ends = current.shards.iter().map(|shard| {
        let end = |&node: &NodeId| Final { node, count: Seq(0), complete: shard.is_complete(node), on_disk: false };
        (shard.shard, shard.members.iter().map(end).collect())
    });
    squall_membership::successor(current, &layout, NodeId(by), &stay, &joining, &ends.collect())
}
