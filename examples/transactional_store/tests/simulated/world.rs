//! A simulated cluster whose members are the clients too, and a controller that takes its time.

use std::{collections::VecDeque, time::Duration};

use squall_fabric::{
    Completion, Fabric, GroupTag, NodeId, Time,
    sim::{SimConfig, SimFabric, SimNet},
};
use squall_onepipe::{Controller, Directive, OnePipe, OnePipeConfig, SkewedClock, Topology};
use squall_transactions::{
    Completed, Member, Placement, StoreConfig, SubmitError, Transaction, TransactionError, TransactionId,
    arbiter::Arbiter,
    history::{History, Record, Seen},
};

/// How long a run may take, in virtual time: many times what any takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a member has said to the controller, and what the controller says to it.
#[derive(Default)]
struct Desk {
    said: Vec<Said>,
    told: VecDeque<Directive>,
}

enum Said {
    Suspects { epoch: u64, rank: usize },
    Reports { epoch: u64, barrier: u64 },
}

impl Controller for Desk {
    fn suspect(&mut self, epoch: u64, rank: usize) {
        self.said.push(Said::Suspects { epoch, rank });
    }

    fn report(&mut self, epoch: u64, barrier: u64) {
        self.said.push(Said::Reports { epoch, barrier });
    }

    fn poll(&mut self, _now: Time) -> Option<Directive> {
        self.told.pop_front()
    }
}

/// A message from or to the controller, on its way.
enum Mail {
    Said(Said),
    Told(Directive),
}

pub(crate) struct Node {
    fabric: SimFabric,
    pub(crate) member: Member<SkewedClock>,
    desk: Desk,
    /// By [`TransactionId`].
    pub(crate) records: Vec<Record>,
    pub(crate) ended: bool,
    /// It has something to do that the network knows nothing of.
    is_eager: bool,
}

impl Node {
    fn step(&mut self, now: Time) {
        self.is_eager = false;
        let mut completions: Vec<Completion> = Vec::new();
        self.fabric.poll(now, &mut completions);
        for completion in &completions {
            assert!(self.member.on_completion(&mut self.fabric, now, completion), "nobody else has endpoints");
        }
        self.member.step(&mut self.fabric, now, &mut self.desk);
    }
}

pub(crate) struct World {
    pub(crate) net: SimNet,
    pub(crate) random: fastrand::Rng,
    placement: Placement,
    nodes: Vec<Node>,
    /// By rank. None if the node lives.
    crashed: Vec<bool>,
    arbiter: Arbiter,
    /// To and from each rank: when it arrives, in order.
    to: Vec<VecDeque<(Time, Mail)>>,
    from: Vec<VecDeque<(Time, Mail)>>,
    /// Counts what clients do: finer than virtual time, in which much happens at once.
    clock: u64,
    limit: Time,
}

impl World {
    /// A cluster in which all sizes follow from the seed. In a short run no more than some 8 transactions are under way at a
    /// time.
    pub(crate) fn new(seed: u64, is_short: bool) -> World {
        let mut random = fastrand::Rng::with_seed(seed);
        let sim = if random.bool() { SimConfig::fast() } else { SimConfig::nasty() };
        let net = SimNet::new(sim, seed);
        let members = random.usize(3..=6);
        let replicas = random.usize(2..=3);
        let placement = Placement::new(members, random.u32(1..=2 * members as u32), replicas).expect("it is sound");
        let nodes: Vec<_> = (0..members as u32).map(|rank| NodeId(rank + 1)).collect();
        let tag = GroupTag { layer: 20, group: 1, epoch: 1 };
        let config = OnePipeConfig {
            ring_bytes: 4096 << random.usize(0..3),
            waiting_bytes: 4096,
            topology: topology(members, &mut random),
            ..OnePipeConfig::new(nodes.clone(), tag)
        };
        let store = StoreConfig {
            message_bytes: 1000,
            value_bytes: 16,
            window: random.usize(1..=if is_short { 8 / members } else { 8 }),
            record: true,
            ..StoreConfig::new(placement.clone())
        };
        // Timestamps of 48 bits wrap around during some of the runs.
        let origin = [1 << 40, (1 << 48) - 200_000][random.usize(0..2)];
        let nodes: Vec<_> = nodes
            .into_iter()
            .map(|node| {
                let mut fabric = net.fabric(node);
                let offset = random.i64(-100_000..100_000);
                let clock = SkewedClock { origin, offset, drift_ppm: random.i32(-500..500) };
                let pipe = OnePipe::create(&mut fabric, config.clone(), clock).expect("a sound configuration");
                let member = Member::new(pipe, store.clone()).expect("they go together");
                Node { fabric, member, desk: Desk::default(), records: Vec::new(), ended: false, is_eager: false }
            })
            .collect();
        let mail = || (0..members).map(|_| VecDeque::new()).collect();
        World {
            random,
            placement,
            nodes,
            crashed: vec![false; members],
            arbiter: Arbiter::new(members, config.epoch),
            to: mail(),
            from: mail(),
            clock: 0,
            limit: net.now() + PATIENCE,
            net,
        }
    }

    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    pub(crate) fn is_alive(&self, rank: usize) -> bool {
        !self.crashed[rank] && !self.nodes[rank].ended
    }

    /// Ranks that have not failed, and were not taken for failed.
    pub(crate) fn alive(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|&rank| self.is_alive(rank)).collect()
    }

    pub(crate) fn node(&mut self, rank: usize) -> &mut Node {
        &mut self.nodes[rank]
    }

    pub(crate) fn survivors(&self) -> usize {
        self.arbiter.survivors().count()
    }

    /// Submits a transaction. Returns false if the member has enough of them under way.
    pub(crate) fn submit(&mut self, rank: usize, transaction: Transaction) -> bool {
        let node = &mut self.nodes[rank];
        match node.member.store().submit(&transaction) {
            Ok(TransactionId(number)) => {
                assert_eq!(number, node.records.len() as u64, "they are numbered in order");
                node.is_eager = true;
                self.clock += 1;
                let (submitted, ended, seen) = (self.clock, u64::MAX, Seen::Unknown);
                node.records.push(Record { client: rank, number, submitted, ended, transaction, seen });
                true
            }
            Err(SubmitError::Busy { .. }) => false,
            Err(error) => panic!("rank {rank}: {error}"),
        }
    }

    /// Waits until all members have reached each other.
    pub(crate) fn connect(&mut self) {
        while !self.nodes.iter().all(|node| node.member.pipe().is_connected()) {
            assert!(self.advance(), "nothing is left to happen");
        }
    }

    /// Lets something happen, and notes which transactions are over. Returns false if there is nothing that could happen.
    pub(crate) fn advance(&mut self) -> bool {
        assert!(self.net.now() < self.limit, "not over within {PATIENCE:?}: ranks {:?} live", self.alive());
        let due = (0..self.nodes.len()).map(|rank| self.due(rank)).min().unwrap_or(Time::MAX);
        if due == Time::MAX && self.net.next_event().is_none() {
            return false;
        }
        let mut ready = Vec::new();
        let now = self.net.advance(due, &mut ready);
        for rank in 0..self.nodes.len() {
            self.carry_mail(rank, now);
            let node = &mut self.nodes[rank];
            let (id, is_due) = (node.fabric.node(), node.is_eager || node.member.deadline() <= now);
            if self.net.runs(id) && (is_due || ready.contains(&id)) {
                node.step(now);
                self.note(rank, now);
            }
        }
        true
    }

    /// When a rank or its mail has something to do.
    fn due(&self, rank: usize) -> Time {
        let node = &self.nodes[rank];
        let own = match self.net.runs(node.fabric.node()) {
            true if node.is_eager => self.net.now(),
            true => node.member.deadline(),
            false => Time::MAX,
        };
        let mail = [&self.to[rank], &self.from[rank]].into_iter().filter_map(VecDeque::front);
        mail.fold(own, |due, (at, _)| due.min(*at))
    }

    /// Delivers what is due from and to the controller.
    fn carry_mail(&mut self, rank: usize, now: Time) {
        let is_due = |(at, _): &mut (Time, Mail)| *at <= now;
        while let Some((_, Mail::Said(said))) = self.from[rank].pop_front_if(is_due) {
            let directives = match said {
                Said::Suspects { epoch, rank: suspect } => self.arbiter.suspect(rank, epoch, suspect),
                Said::Reports { epoch, barrier } => self.arbiter.report(rank, epoch, barrier),
            };
            for directive in directives {
                for to in 0..self.nodes.len() {
                    let at = self.later(now);
                    push(&mut self.to[to], at, Mail::Told(directive.clone()));
                }
            }
        }
        while let Some((_, Mail::Told(directive))) = self.to[rank].pop_front_if(is_due) {
            self.nodes[rank].desk.told.push_back(directive);
            self.nodes[rank].is_eager = true;
        }
    }

    fn later(&mut self, now: Time) -> Time {
        let most = [10, 1_000_000][self.random.usize(0..2)];
        now + Duration::from_nanos(self.random.u64(0..most))
    }

    fn note(&mut self, rank: usize, now: Time) {
        let said = std::mem::take(&mut self.nodes[rank].desk.said);
        for said in said {
            let at = self.later(now);
            push(&mut self.from[rank], at, Mail::Said(said));
        }
        let node = &mut self.nodes[rank];
        while let Some(Completed { id: TransactionId(number), result }) = node.member.store().completed() {
            self.clock += 1;
            let record = &mut node.records[number as usize];
            let seen = match result {
                Ok(outcome) => Seen::Committed(outcome),
                Err(TransactionError::Aborted) => Seen::Aborted,
                Err(TransactionError::Ended) => {
                    node.ended = true;
                    continue;
                }
                Err(error @ TransactionError::Lost(_)) => panic!("rank {rank}: {error}"),
            };
            (record.ended, record.seen) = (self.clock, seen);
        }
        node.ended |= node.member.store().has_ended();
    }

    /// Ends a process, or its host.
    pub(crate) fn crash(&mut self, rank: usize) {
        let id = self.nodes[rank].fabric.node();
        if self.random.bool() {
            self.net.crash(id);
        } else {
            self.net.power_off(id);
        }
        self.crashed[rank] = true;
    }

    /// Cuts two ranks off from each other, for good: one of them is taken for failed.
    pub(crate) fn cut(&mut self, a: usize, b: usize) {
        self.net.cut(self.nodes[a].fabric.node(), self.nodes[b].fabric.node());
    }

    /// Stops a process from running, or lets it run again.
    pub(crate) fn pause(&mut self, rank: usize, paused: bool) {
        let node = &mut self.nodes[rank];
        node.is_eager |= !paused;
        if paused { self.net.pause(node.fabric.node()) } else { self.net.resume(node.fabric.node()) }
    }

    /// What clients saw, and what the members that live have carried out.
    pub(crate) fn history(&mut self) -> History {
        let mut history = History::new(self.placement.clone());
        for rank in 0..self.nodes.len() {
            let alive = self.is_alive(rank);
            let node = &mut self.nodes[rank];
            if alive {
                let learnt = history.learn(rank, node.member.store().take_executions());
                learnt.unwrap_or_else(|violation| panic!("rank {rank}: {violation}"));
            }
            for record in node.records.drain(..) {
                history.record(record);
            }
        }
        history
    }
}

/// Mail from or to one rank keeps its order.
fn push(mail: &mut VecDeque<(Time, Mail)>, at: Time, letter: Mail) {
    let at = mail.back().map_or(at, |(last, _)| at.max(*last));
    mail.push_back((at, letter));
}

fn topology(members: usize, random: &mut fastrand::Rng) -> Topology {
    if random.bool() {
        return Topology::Flat;
    }
    let mut ranks: Vec<usize> = (0..members).collect();
    random.shuffle(&mut ranks);
    let racks = ranks.chunks(random.usize(1..=3)).map(<[usize]>::to_vec).collect();
    Topology::Hierarchy { racks, degree: random.usize(1..=3) }
}
