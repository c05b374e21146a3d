//! Nodes that come and go, several in this process, over shared memory and TCP. A group forms in any order in which its
//! nodes start, gives its state to nodes that join, and lets nodes leave.

use std::{
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use rkyv::Archived;
use squall::{
    Applied, Config, ConfigBuilder, EndReason, Group, Node, Replicated, Schema, StartError, Time, View, config::Backend,
};

use crate::sum::Sum;

const PATIENCE: Duration = Duration::from_secs(60);

/// Nodes 1 to n, of which the first ones are the list.
struct Cluster {
    name: String,
    listed: u32,
    backend: Backend,
    /// The addresses at which the nodes listen, over TCP.
    addresses: Vec<String>,
}

impl Cluster {
    fn new(test: &str, backend: Backend, listed: u32, all: u32) -> Cluster {
        let name = format!("members-{test}-{backend:?}-{}", std::process::id()).to_lowercase();
        let held: Vec<_> = (0..all).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
        let addresses = held.iter().map(|held| held.local_addr().expect("it has one").to_string()).collect();
        Cluster { name, listed, backend, addresses }
    }

    fn address(&self, id: u32) -> &str {
        &self.addresses[id as usize - 1]
    }

    fn config(&self, id: u32) -> Config {
        let config = Config::builder(&self.name, id).backend(self.backend).formation_timeout(PATIENCE);
        if id > self.listed {
            return self.joiner(id, self.listed);
        }
        let config = match self.backend {
            Backend::Shm => config.members(1..=self.listed),
            _ => (1..=self.listed).fold(config, |config, id| config.addresses(id, [self.address(id)])),
        };
        config.build().expect("the configuration is valid")
    }

    /// The configuration of a node that knows one other.
    fn joiner(&self, id: u32, contact: u32) -> Config {
        self.joiner_with(id, contact, |config| config)
    }

    /// The configuration of a node that knows one other, with other options.
    fn joiner_with(&self, id: u32, contact: u32, with: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> Config {
        let config = Config::builder(&self.name, id).backend(self.backend).formation_timeout(PATIENCE);
        let config = match self.backend {
            Backend::Shm => config.join([contact.to_string()]),
            _ => config.addresses(id, [self.address(id)]).join([self.address(contact)]),
        };
        with(config).build().expect("the configuration is valid")
    }

    fn start(&self, ids: impl IntoIterator<Item = u32>) -> Vec<(Node, Group<Sum>)> {
        thread::scope(|scope| {
            let starting: Vec<_> = ids.into_iter().map(|id| scope.spawn(move || start(self.config(id)))).collect();
            starting.into_iter().map(|node| node.join().expect("it starts")).collect()
        })
    }
}

fn start(config: Config) -> (Node, Group<Sum>) {
    let mut node = Node::builder(config);
    let sum = node.group("sum", Sum::default());
    (node.start().expect("it becomes a member"), sum)
}

/// Waits for a view of `members` members, all of which hold the state.
fn wait_complete(node: &Node, members: usize) {
    let complete = |view: &View| view.members.len() == members && view.shards[0].senders.len() == members;
    let view = node.wait_view(PATIENCE, complete).expect("its part is not over");
    assert!(view.is_some(), "node {} has {:?}, not {members} complete members", node.id(), node.view());
}

fn a_group_forms_in_any_order(backend: Backend) {
    for (run, order) in [[1, 2, 3], [3, 2, 1], [2, 3, 1]].into_iter().enumerate() {
        let cluster = Cluster::new(&format!("order{run}"), backend, 3, 3);
        let nodes = cluster.start(order);
        for (sum, (node, group)) in (1..).zip(&nodes) {
            assert_eq!(node.view().nodes(), [1, 2, 3].map(squall::NodeId));
            assert_eq!(group.submit(&1).wait(), Ok(sum));
        }
    }
}

fn ten_nodes_at_the_same_moment_form_one_group(backend: Backend) {
    let cluster = Cluster::new("ten", backend, 3, 10);
    let nodes = cluster.start(1..=10);
    for (node, _) in &nodes {
        wait_complete(node, 10);
    }
    for (sum, (_, group)) in (1..).zip(&nodes) {
        assert_eq!(group.submit(&1).wait(), Ok(sum));
    }
    for (node, group) in &nodes {
        assert_eq!(group.read(|sum| sum.0).wait(), Ok(10), "at node {}", node.id());
    }
}

fn who_joins_gets_the_state_while_the_group_works(backend: Backend) {
    let cluster = Cluster::new("join", backend, 2, 3);
    let nodes = cluster.start(1..=2);
    thread::scope(|scope| {
        let writers: Vec<_> = nodes.iter().map(|(_, group)| scope.spawn(|| write_for(group, 500))).collect();
        let (node, group) = start(cluster.joiner(3, 1));
        wait_complete(&node, 3);
        write_for(&group, 100);
        writers.into_iter().for_each(|writer| writer.join().expect("nothing fails"));
        for (_, group) in nodes.iter().chain([&(node, group)]) {
            assert_eq!(group.read(|sum| sum.0).wait(), Ok(1100));
        }
    });
}

/// Starts a node with a group `sum` that is to be refused. Returns the reason.
fn refused<R: Replicated>(config: Config, replica: R) -> String {
    let mut node = Node::builder(config);
    let _group = node.group("sum", replica);
    match node.start() {
        Err(StartError::NotFormed(EndReason::Incompatible { why, .. })) => why,
        Err(error) => panic!("another error: {error}"),
        Ok(node) => panic!("it is a member of {:?}", node.view()),
    }
}

fn who_differs_is_refused_before_it_costs_a_view(backend: Backend) {
    /// A replica whose commands have the size of `Sum`'s, but whose version is its own.
    struct Newer;
    impl Replicated for Newer {
        type Command = u64;
        type Reply = ();
        const SCHEMA: Schema = Schema::new("sum", 2);
        fn apply(&mut self, _: &Archived<u64>, _: &Applied) {}
    }
    /// A replica that declares no version, but has smaller commands.
    struct Smaller;
    impl Replicated for Smaller {
        type Command = u16;
        type Reply = ();
        fn apply(&mut self, _: &Archived<u16>, _: &Applied) {}
    }

    let cluster = Cluster::new("differs", backend, 2, 3);
    let nodes = cluster.start(1..=2);
    let epoch = nodes[0].0.view().epoch;
    let larger = |config: ConfigBuilder| config.group("sum", |group| _ = group.ring_bytes(2 << 20));
    let why = refused(cluster.joiner_with(3, 1, larger), Sum::default());
    assert!(why.contains("groups.sum.ring_bytes is 1 MiB at node") && why.contains("2 MiB at node 3"), "{why}");
    let why = refused(cluster.joiner(3, 1), Newer);
    assert!(
        why.contains("groups.sum.schema is undeclared, commands of 8 bytes") && why.contains("sum version 2"),
        "{why}"
    );
    let why = refused(cluster.joiner(3, 1), Smaller);
    assert!(
        why.contains("commands of 8 bytes aligned to 8") && why.contains("commands of 2 bytes aligned to 2"),
        "{why}"
    );
    write_for(&nodes[1].1, 10);
    assert!(nodes.iter().all(|(node, _)| node.view().epoch == epoch), "it cost a view");
    let (node, _) = start(cluster.joiner(3, 1));
    wait_complete(&node, 3);
}

fn write_for(group: &Group<Sum>, count: u32) {
    for number in 0..count {
        group.submit(&1).wait().unwrap_or_else(|error| panic!("submit {number}: {error}"));
    }
}

fn who_leaves_is_missed_by_nobody(backend: Backend) {
    let cluster = Cluster::new("leave", backend, 3, 3);
    for leaver in [0, 2] {
        let mut nodes = cluster.start(1..=3);
        let (leaving, left_behind) = nodes.remove(leaver);
        thread::scope(|scope| {
            let writers: Vec<_> = nodes.iter().map(|(_, group)| scope.spawn(|| write_for(group, 300))).collect();
            let asked = Instant::now();
            assert!(leaving.leave(PATIENCE), "it has left");
            assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
            assert_eq!(leaving.end_reason(), Some(EndReason::Left));
            assert!(left_behind.submit(&1).wait().is_err());
            writers.into_iter().for_each(|writer| writer.join().expect("nothing fails"));
        });
        drop((leaving, left_behind));
        // Starts the same node again, without state.
        let id = leaver as u32 + 1;
        let (node, group) = start(cluster.config(id));
        wait_complete(&node, 3);
        assert_eq!(group.submit(&1).wait(), Ok(601));
    }
}

fn all_members_are_replaced_one_by_one(backend: Backend) {
    let cluster = Cluster::new("replace", backend, 3, 6);
    let mut nodes = cluster.start(1..=3);
    for newcomer in 4..=6 {
        let contact = newcomer - 3;
        let (node, group) = start(cluster.joiner(newcomer, contact));
        wait_complete(&node, 4);
        nodes.push((node, group));
        let (leaving, _group) = nodes.remove(0);
        assert!(leaving.leave(PATIENCE), "node {contact} has left");
        write_for(&nodes[0].1, 10);
    }
    for (node, group) in &nodes {
        assert_eq!(group.read(|sum| sum.0).wait(), Ok(30), "at node {}", node.id());
    }
}

/// Stops all nodes at once, as supervisors do: each of them leaves and ends.
fn all_leave_at_once_and_none_is_stranded(backend: Backend) {
    for round in 0..5 {
        let cluster = Cluster::new(&format!("all-{round}"), backend, 3, 3);
        let nodes = cluster.start(1..=3);
        write_for(&nodes[0].1, 10);
        thread::scope(|scope| {
            for (node, _) in nodes {
                let pause = Duration::from_micros(fastrand::u64(..20_000));
                scope.spawn(move || {
                    thread::sleep(pause);
                    assert!(node.leave(PATIENCE), "round {round}: {} is stranded: {:?}", node.id(), node.status());
                    node.shutdown();
                });
            }
        });
    }
}

fn one_call_ends_the_group(backend: Backend) {
    let cluster = Cluster::new("close", backend, 3, 3);
    let nodes = cluster.start(1..=3);
    write_for(&nodes[2].1, 10);
    assert!(nodes[1].0.shutdown_group(PATIENCE), "{:?}", nodes[1].0.status());
    for (node, group) in &nodes {
        assert_eq!(node.wait_ended(), EndReason::Left);
        assert_eq!(group.peek(|sum| sum.0).wait(), Ok(10), "at {}", node.id());
    }
}

#[test]
fn a_change_of_view_is_told_in_its_phases() {
    let cluster = Cluster::new("phases", Backend::Shm, 3, 3);
    let mut nodes = cluster.start(1..=3);
    let began = Time::boot_clock();
    drop(nodes.pop());
    for (node, _) in &nodes {
        let view = node.wait_view(PATIENCE, |view| view.members.len() == 2).expect("its part is not over");
        let change = node.last_change();
        assert_eq!(Some(change.epoch), view.map(|view| view.epoch.0));
        let times = [began, change.suspected, change.wedged, change.decided, change.installed];
        assert!(times.is_sorted(), "{times:?}");
        assert!(change.suspected < change.decided, "a decision takes time: {change:?}");
    }
}

macro_rules! over_both {
    ($($test:ident),* $(,)?) => {
        mod over_shm {
            $(#[test] fn $test() { super::$test(squall::config::Backend::Shm) })*
        }
        mod over_tcp {
            $(#[test] fn $test() { super::$test(squall::config::Backend::Tcp) })*
        }
    };
}

over_both!(
    a_group_forms_in_any_order,
    ten_nodes_at_the_same_moment_form_one_group,
    who_joins_gets_the_state_while_the_group_works,
    who_differs_is_refused_before_it_costs_a_view,
    who_leaves_is_missed_by_nobody,
    all_leave_at_once_and_none_is_stranded,
    one_call_ends_the_group,
    all_members_are_replaced_one_by_one,
);
