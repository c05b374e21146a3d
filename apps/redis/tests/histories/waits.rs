//! Requests that wait for elements, in simulated clusters whose members crash, come back, stop, are cut off and leave.
//!
//! Each element that was pushed is in the end in a list, or was given to one client. It may also have been taken for a
//! request whose outcome its client was told to be unknown, or whose client went with its node: at most one for each.
//! No replica has waits of clients that are gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use fastrand::Rng;
use squall::{
    Config, Group, NodeId, SubmitError,
    sim::{Cluster, Options},
};
use squall_redis::{
    Reply, Store,
    keyspace::{Publish, WaitEnd},
    message::{AnsweredBy, StoreCommand},
    words,
};

use super::{FAILURE_TIMEOUT, LOAD, RECOVERY, Simulation, faults::Stop, seeds};

/// The number of seeds that run.
const SEEDS: u64 = 100;

/// The lists.
const LISTS: [&str; 3] = ["q0", "q1", "moved"];

/// The requests that wait. Each takes one element.
const WAITS: &[&str] = &["blpop q0 q1 0", "brpop q1 0", "blmpop 0 2 q1 q0 left", "blmove q0 moved left right 0"];

/// The ends of waits, as the replicas tell their nodes.
#[derive(Clone, Default)]
pub(super) struct Ends(Arc<Mutex<BTreeMap<(NodeId, u64), WaitEnd>>>, Arc<Mutex<BTreeSet<NodeId>>>);

struct OfNode(NodeId, Ends);

impl Publish for OfNode {
    fn publish(&self, _: &[u8], _: &[u8]) -> usize {
        0
    }

    fn tell_of_gap(&self) {
        self.1.1.lock().expect("no thread panics").insert(self.0);
    }

    fn end_wait(&self, ticket: u64, end: WaitEnd) {
        self.1.0.lock().expect("no thread panics").entry((self.0, ticket)).or_insert(end);
    }
}

impl Ends {
    /// A node's replica, which tells of the ends of waits.
    pub(super) fn store(&self, node: NodeId) -> Store {
        let mut store = Store::at(node);
        store.set_publisher(Arc::new(OfNode(node, self.clone())));
        store
    }

    fn take(&self, node: NodeId, ticket: u64) -> Option<WaitEnd> {
        self.0.lock().expect("no thread panics").remove(&(node, ticket))
    }

    /// The nodes whose replicas have missed a part of the order since the last call.
    fn take_gaps(&self) -> BTreeSet<NodeId> {
        std::mem::take(&mut self.1.lock().expect("no thread panics"))
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<Reply, SubmitError>>>>;

enum Activity {
    Idle,
    Push(u32, Answer),
    Sent(u64, Answer),
    Waits(u64, Duration),
    Cancels(u64, Answer),
    /// Takes back waits whose clients know no more of them.
    CleansUp(Vec<u64>, Answer),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Producer,
    Consumer,
    Cleaner,
}

struct Client {
    node: NodeId,
    role: Role,
    activity: Activity,
    next_at: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pushed {
    Acknowledged,
    Unknown,
    NotApplied,
}

struct Waiting {
    simulation: Simulation,
    rng: Rng,
    clients: Vec<Client>,
    /// Waits to be cancelled whose clients know no more of them.
    to_cancel: Vec<(NodeId, u64)>,
    tickets: u64,
    elements: u32,
    pushed: BTreeMap<u32, Pushed>,
    given: BTreeSet<u32>,
    /// The number of requests that may have taken an element of which no client knows.
    unknown: usize,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    given: usize,
    served: usize,
    cancelled: usize,
    dropped: usize,
    unknown: usize,
    missing: usize,
    lost: u64,
}

fn submit(group: &Group<Store>, command: &StoreCommand) -> Answer {
    Box::pin(group.submit(command))
}

impl Waiting {
    fn new(seed: u64) -> Waiting {
        let mut simulation = Simulation::new(seed);
        simulation.clients.clear();
        Waiting {
            simulation,
            rng: Rng::with_seed(!seed),
            clients: Vec::new(),
            to_cancel: Vec::new(),
            tickets: 0,
            elements: 0,
            pushed: BTreeMap::new(),
            given: BTreeSet::new(),
            unknown: 0,
            counts: Counts::default(),
        }
    }

    fn is_loading(&self) -> bool {
        self.simulation.now() < LOAD
    }

    /// Removes the clients of processes that are gone, and adds those of new ones.
    fn follow_nodes(&mut self) {
        let Waiting { simulation, clients, to_cancel, unknown, .. } = self;
        let is_there = |node: &NodeId| simulation.replicas.contains_key(node);
        for client in clients.extract_if(.., |client| !is_there(&client.node)) {
            match client.activity {
                Activity::Sent(..) | Activity::Waits(..) | Activity::Cancels(..) => *unknown += 1,
                Activity::Push(element, _) => _ = self.pushed.insert(element, Pushed::Unknown),
                Activity::Idle | Activity::CleansUp(..) => {}
            }
        }
        to_cancel.retain(|(node, _)| is_there(node));
        let new: Vec<NodeId> = simulation.replicas.keys().copied().collect();
        for node in new {
            if clients.iter().all(|client| client.node != node) {
                let roles = [Role::Producer, Role::Producer, Role::Consumer, Role::Consumer, Role::Cleaner];
                let client = |role| Client { node, role, activity: Activity::Idle, next_at: Duration::ZERO };
                clients.extend(roles.map(client));
            }
        }
    }

    fn go_on(&mut self, place: usize) {
        let Client { node, role, next_at, .. } = self.clients[place];
        let Some(replica) = self.simulation.replicas.get(&node).filter(|one| one.stopped != Some(Stop::Process)) else {
            return;
        };
        let group = replica.group.clone();
        let activity = std::mem::replace(&mut self.clients[place].activity, Activity::Idle);
        let is_idle = matches!(activity, Activity::Idle);
        let now = self.simulation.now();
        let next = match activity {
            Activity::Idle if now < next_at => Activity::Idle,
            Activity::Idle => self.begin(node, role, &group),
            other => self.continue_with(node, &group, other),
        };
        if !is_idle && matches!(next, Activity::Idle) {
            // What is pushed is to be waited for.
            let most = if role == Role::Producer { 5_000_000 } else { [100_000, 3_000_000][self.rng.usize(..2)] };
            self.clients[place].next_at = now + Duration::from_nanos(self.rng.u64(..most));
        }
        self.clients[place].activity = next;
    }

    fn begin(&mut self, node: NodeId, role: Role, group: &Group<Store>) -> Activity {
        match role {
            Role::Producer if self.is_loading() => {
                self.elements += 1;
                let push = words::join(["rpush", LISTS[self.rng.usize(..2)], &self.elements.to_string()]);
                let run = StoreCommand::Run { at_ms: 1, request: push, answered_by: AnsweredBy::Sender };
                Activity::Push(self.elements, submit(group, &run))
            }
            Role::Consumer if self.is_loading() => {
                self.tickets += 1;
                let line = *self.rng.choice(WAITS).expect("some");
                let request = words::join(line.split(' '));
                let wait = StoreCommand::Wait { at_ms: 1, ticket: self.tickets, request };
                Activity::Sent(self.tickets, submit(group, &wait))
            }
            Role::Cleaner => {
                let tickets: Vec<u64> = self.to_cancel.extract_if(.., |(of, _)| *of == node).map(|(_, t)| t).collect();
                if tickets.is_empty() {
                    return Activity::Idle;
                }
                let answer = submit(group, &StoreCommand::CancelWaits { at_ms: 1, tickets: tickets.clone() });
                Activity::CleansUp(tickets, answer)
            }
            Role::Producer | Role::Consumer => Activity::Idle,
        }
    }

    fn continue_with(&mut self, node: NodeId, group: &Group<Store>, mut activity: Activity) -> Activity {
        let mut context = Context::from_waker(Waker::noop());
        let answer = match &mut activity {
            Activity::Idle | Activity::Waits(..) => None,
            Activity::Push(_, answer)
            | Activity::Sent(_, answer)
            | Activity::Cancels(_, answer)
            | Activity::CleansUp(_, answer) => match answer.as_mut().poll(&mut context) {
                Poll::Ready(answer) => Some(answer),
                Poll::Pending => return activity,
            },
        };
        match (activity, answer) {
            (Activity::Push(element, _), Some(answer)) => {
                let pushed = match answer {
                    Ok(_) => Pushed::Acknowledged,
                    Err(error) if error.is_not_applied() => Pushed::NotApplied,
                    Err(_) => Pushed::Unknown,
                };
                self.pushed.insert(element, pushed);
            }
            (Activity::Sent(ticket, _), Some(answer)) => match answer {
                Ok(Reply::Waiting) => {
                    let until = self.simulation.now() + Duration::from_micros(self.rng.u64(..20_000));
                    return Activity::Waits(ticket, until);
                }
                Ok(reply) => self.note_given(&reply),
                Err(error) => self.forget(node, ticket, !error.is_not_applied()),
            },
            (Activity::Waits(ticket, until), _) => match self.simulation.ends.take(node, ticket) {
                Some(end) => self.note_end(node, ticket, end),
                None if self.is_loading() && self.simulation.now() < until => return Activity::Waits(ticket, until),
                None => {
                    let cancel = StoreCommand::CancelWaits { at_ms: 1, tickets: vec![ticket] };
                    return Activity::Cancels(ticket, submit(group, &cancel));
                }
            },
            (Activity::Cancels(ticket, _), Some(answer)) => match answer {
                Ok(Reply::Integer(1)) => self.counts.cancelled += 1,
                Ok(_) => {
                    let end = self.simulation.ends.take(node, ticket).unwrap_or(WaitEnd::Lost);
                    self.note_end(node, ticket, end);
                }
                Err(_) => self.forget(node, ticket, true),
            },
            (Activity::CleansUp(tickets, _), Some(Err(error))) if !matches!(error, SubmitError::Ended { .. }) => {
                self.to_cancel.extend(tickets.into_iter().map(|ticket| (node, ticket)));
            }
            _ => {}
        }
        Activity::Idle
    }

    fn note_end(&mut self, node: NodeId, ticket: u64, end: WaitEnd) {
        match end {
            WaitEnd::Served(reply) => {
                self.counts.served += 1;
                self.note_given(&reply);
            }
            WaitEnd::Dropped => self.counts.dropped += 1,
            WaitEnd::Lost | WaitEnd::Outside => self.forget(node, ticket, true),
        }
    }

    /// Leaves a wait whose end is not known.
    fn forget(&mut self, node: NodeId, ticket: u64, may_have_taken: bool) {
        self.unknown += usize::from(may_have_taken);
        self.to_cancel.push((node, ticket));
    }

    fn note_given(&mut self, reply: &Reply) {
        let element = match reply {
            // It is in another list now.
            Reply::Text(_) => return,
            Reply::Array(parts) => match &parts[1] {
                Reply::Array(elements) => elements[0].clone(),
                element => element.clone(),
            },
            other => panic!("{other:?} for a wait"),
        };
        let Reply::Text(text) = element else { panic!("{element:?} is no element") };
        let element = text.integer().expect("only numbers are pushed") as u32;
        assert!(self.given.insert(element), "{element} was given twice");
    }

    fn run(&mut self) {
        let is_busy = |client: &Client| !matches!(client.activity, Activity::Idle);
        loop {
            let is_over = !self.is_loading() && self.simulation.faults.is_empty();
            let is_quiet = self.to_cancel.is_empty() && !self.clients.iter().any(is_busy);
            if is_over && (is_quiet || self.simulation.is_lost()) {
                return;
            }
            assert!(self.simulation.now() < LOAD + RECOVERY, "a client is busy although the faults are over");
            let slice = self.simulation.within(Duration::from_micros(20));
            self.simulation.cluster.run_for(slice);
            self.simulation.inject();
            self.follow_nodes();
            for node in self.simulation.ends.take_gaps() {
                // What was told before the gap counts.
                for client in self.clients.iter_mut().filter(|client| client.node == node) {
                    if let Activity::Waits(ticket, _) = client.activity
                        && self.simulation.ends.0.lock().expect("no thread panics").get(&(node, ticket)).is_none()
                    {
                        client.activity = Activity::Idle;
                        self.unknown += 1;
                        self.to_cancel.push((node, ticket));
                    }
                }
            }
            for place in 0..self.clients.len() {
                self.go_on(place);
            }
        }
    }

    /// Compares the replicas' elements with what clients saw.
    fn check(&mut self) {
        self.simulation.settle();
        let nodes: Vec<NodeId> = self.simulation.replicas.keys().copied().collect();
        let look = |store: &Store| {
            let range = |list: &&str| match store.look(&words::join(["lrange", list, "0", "-1"]), 1) {
                Reply::Array(elements) => elements,
                other => panic!("{other:?} for a list"),
            };
            let elements: Vec<Reply> = LISTS.iter().flat_map(range).collect();
            (elements, store.keys().waiters().ids().collect::<Vec<_>>())
        };
        let serving = nodes.into_iter().find_map(|node| {
            let read = self.simulation.replicas[&node].group.read(look);
            self.simulation.cluster.wait(Duration::from_millis(20), read)?.ok()
        });
        let Some((elements, waiters)) = serving.filter(|_| self.simulation.seen.lost == 0) else { return };
        assert!(waiters.is_empty(), "{waiters:?} still wait, and nobody knows of them");
        let mut held = BTreeSet::new();
        for element in &elements {
            let Reply::Text(text) = element else { panic!("{element:?} is no element") };
            let element = text.integer().expect("only numbers are pushed") as u32;
            assert!(held.insert(element), "{element} is there twice");
            assert!(!self.given.contains(&element), "{element} was given to a client, and is there");
        }
        for (&element, &pushed) in &self.pushed {
            let is_known = held.contains(&element) || self.given.contains(&element);
            assert!(pushed != Pushed::NotApplied || !is_known, "{element} was not pushed, and is there");
            self.counts.missing += usize::from(pushed == Pushed::Acknowledged && !is_known);
        }
        let Waiting { unknown, counts, .. } = self;
        assert!(counts.missing <= *unknown, "{} elements are missing, for {unknown} unknown waits", counts.missing);
    }
}

fn run(seed: u64) -> Counts {
    let mut waiting = Waiting::new(seed);
    waiting.run();
    waiting.check();
    let Waiting { given, unknown, simulation, .. } = &waiting;
    Counts { given: given.len(), unknown: *unknown, lost: simulation.seen.lost, ..waiting.counts }
}

#[test]
fn each_element_is_given_once_through_many_views() {
    let all = seeds::run_all(seeds::seeds(SEEDS), |seed| Ok(run(seed)));
    let sum = |of: fn(&Counts) -> usize| all.iter().map(of).sum::<usize>();
    let runs = all.len();
    let (served, cancelled, unknown) =
        (sum(|counts| counts.served), sum(|counts| counts.cancelled), sum(|counts| counts.unknown));
    let shown = format!(
        "{runs} runs: {} given, {served} of them to waits; {cancelled} cancelled, {} dropped, {unknown} unknown, {} missing, \
         {} lost for good",
        sum(|counts| counts.given),
        sum(|counts| counts.dropped),
        sum(|counts| counts.missing),
        sum(|counts| counts.lost as usize),
    );
    eprintln!("{shown}");
    // Few seeds say little.
    if runs as u64 >= SEEDS {
        assert!(served > 20 * runs && cancelled > runs && unknown > runs / 4, "they are no test: {shown}");
    }
}

#[test]
fn a_seed_of_waits_does_the_same_again() {
    for seed in 0..3 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

#[test]
fn a_wait_at_a_node_that_has_died_takes_nothing_behind_the_view_without_it() {
    let config = Config::builder("waits", 1).members(1..=3).failure_timeout(FAILURE_TIMEOUT).group("kv", |_| {});
    let config = config.build().expect("the configuration is valid");
    let mut cluster = Cluster::new(config, Options::default(), 1);
    let ends = Ends::default();
    let groups = cluster.group("kv", |node| ends.store(node));
    cluster.start().expect("the cluster starts");
    let patience = Duration::from_secs(1);
    let wait = |ticket| StoreCommand::Wait { at_ms: 1, ticket, request: words::join(["blpop", "l", "0"]) };
    for (node, ticket) in [(2, 7), (0, 8)] {
        let sent = groups[node].submit(&wait(ticket));
        assert_eq!(cluster.wait(patience, sent), Some(Ok(Reply::Waiting)));
    }
    let waiting = |cluster: &mut Cluster| {
        let read = groups[0].read(|store: &Store| store.keys().waiters().len());
        cluster.wait(patience, read).expect("an answer in time").expect("it serves")
    };
    assert_eq!(waiting(&mut cluster), 2);
    cluster.crash(NodeId(3));
    let is_dropped = |cluster: &Cluster| cluster.view(NodeId(1)).is_some_and(|view| view.members.len() == 2);
    cluster.run_until(patience, is_dropped);
    assert_eq!(waiting(&mut cluster), 1);
    let push = |cluster: &mut Cluster, element: &str| {
        let request = words::join(["rpush", "l", element]);
        let run = StoreCommand::Run { at_ms: 1, request, answered_by: AnsweredBy::Sender };
        let pushed = groups[1].submit(&run);
        assert_eq!(cluster.wait(patience, pushed), Some(Ok(Reply::Integer(1))));
    };
    push(&mut cluster, "first");
    push(&mut cluster, "second");
    cluster.run_for(Duration::from_millis(1));
    let served = Reply::Array(vec![Reply::bytes("l"), Reply::Text((&b"first"[..]).into())]);
    assert_eq!(ends.take(NodeId(1), 8), Some(WaitEnd::Served(served)));
    let length = groups[0].read(|store: &Store| store.look(&words::join(["lrange", "l", "0", "-1"]), 1));
    let length = cluster.wait(patience, length).expect("an answer in time").expect("it serves");
    assert_eq!(length, Reply::Array(vec![Reply::Text((&b"second"[..]).into())]));
}

#[test]
fn many_waits_hold_no_place_of_those_that_submit() {
    let config = Config::builder("many", 1).members(1..=3).group("kv", |group| {
        group.ring_bytes(1 << 12).max_waiting(2);
    });
    let mut cluster = Cluster::new(config.build().expect("the configuration is valid"), Options::default(), 2);
    let ends = Ends::default();
    let groups = cluster.group("kv", |node| ends.store(node));
    cluster.start().expect("the cluster starts");
    let patience = Duration::from_secs(1);
    for ticket in 0..2000 {
        let request = words::join(["blpop", "l", "0"]);
        let sent = groups[ticket as usize % 3].submit(&StoreCommand::Wait { at_ms: 1, ticket, request });
        assert_eq!(cluster.wait(patience, sent), Some(Ok(Reply::Waiting)), "wait {ticket}");
    }
    let elements = (0..500).map(|element| element.to_string()).collect::<Vec<_>>();
    let request = words::join(["rpush", "l"].into_iter().chain(elements.iter().map(String::as_str)));
    let run = StoreCommand::Run { at_ms: 1, request, answered_by: AnsweredBy::Sender };
    let pushed = groups[0].submit(&run);
    assert_eq!(cluster.wait(patience, pushed), Some(Ok(Reply::Integer(500))));
    cluster.run_for(Duration::from_millis(1));
    // The first that came are served, over all nodes.
    for ticket in 0..2000 {
        let served = ends.take(NodeId(ticket as u32 % 3 + 1), ticket);
        let element = |ticket: u64| Reply::Array(vec![Reply::bytes("l"), Reply::Text((ticket as i64).into())]);
        assert_eq!(served, (ticket < 500).then(|| WaitEnd::Served(element(ticket))), "wait {ticket}");
    }
}
