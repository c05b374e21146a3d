//! Nodes over TCP, several in this process: they meet by their addresses, except for nodes whose keys are not the
//! cluster's.

use std::{net::TcpListener, thread, time::Duration};

use rkyv::Archived;
use squall::{
    Applied, Carrier, Config, EndReason, Group, Node, NodeId, Replicated, StartError,
    config::{Backend, Security},
    keys::{Authority, Files},
};
use tempfile::TempDir;

/// The sum of the lengths of its commands.
struct Length(u64);

impl Replicated for Length {
    type Command = Vec<u8>;
    type Reply = u64;

    fn apply(&mut self, bytes: &Archived<Vec<u8>>, _at: &Applied) -> u64 {
        self.0 += bytes.len() as u64;
        self.0
    }
}

/// A cluster's addresses, and a directory for its keys that is removed after the test.
struct Cluster {
    name: String,
    addresses: Vec<String>,
    directory: TempDir,
}

impl Cluster {
    fn new(test: &str, members: u32) -> Cluster {
        let name = format!("network-{test}-{}", std::process::id());
        let held: Vec<_> = (0..members).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
        let addresses = held.iter().map(|held| held.local_addr().expect("it has one").to_string()).collect();
        Cluster { addresses, directory: tempfile::tempdir().expect("a directory can be made"), name }
    }

    /// Keys of a CA, for these nodes.
    fn make_keys(&self, authority: &str, nodes: impl IntoIterator<Item = u32>) {
        let files = self.keys(authority);
        let ca = Authority::create(&self.name).expect("a CA");
        ca.save(&files, false).expect("the directory is new");
        for node in nodes {
            ca.issue(NodeId(node), 1).and_then(|keys| keys.save(&files, false)).expect("keys");
        }
    }

    fn keys(&self, authority: &str) -> Files {
        Files::in_directory(self.directory.path().join(authority))
    }

    fn protected(&self, authority: &str, id: u32) -> Security {
        Security::Tls(self.keys(authority).of(NodeId(id)))
    }

    fn config(&self, id: u32, security: Security, wait: Duration) -> Config {
        let all = (1..).zip(&self.addresses);
        let config = all.fold(Config::builder(&self.name, id), |config, (id, at)| config.addresses(id, [at]));
        let config = config.backend(Backend::Tcp).security(security).formation_timeout(wait);
        config.build().expect("the configuration is possible")
    }
}

fn start(config: Config) -> Result<(Node, Group<Length>), StartError> {
    let mut node = Node::builder(config);
    let group = node.group("lengths", Length(0));
    Ok((node.start()?, group))
}

/// Starts them together.
fn start_all(configs: Vec<Config>) -> Vec<Result<(Node, Group<Length>), StartError>> {
    thread::scope(|scope| {
        let starting: Vec<_> = configs.into_iter().map(|config| scope.spawn(|| start(config))).collect();
        starting.into_iter().map(|node| node.join().expect("it does not panic")).collect()
    })
}

const PATIENCE: Duration = Duration::from_secs(30);

fn small_and_large_messages_are_applied_by_all(cluster: &Cluster, security: impl Fn(u32) -> Security) {
    let configs: Vec<_> = (1..=3).map(|id| cluster.config(id, security(id), PATIENCE)).collect();
    assert!(configs.iter().all(|config| config.carrier() == Carrier::Tcp));
    let nodes: Vec<_> = start_all(configs).into_iter().map(|node| node.expect("the view is formed")).collect();
    let mut sum = 0;
    // One message goes through the rings, the other by RDMC.
    for (sender, bytes) in [(0, 100), (1, 1_000_000), (2, 7)] {
        sum += bytes as u64;
        assert_eq!(nodes[sender].1.submit(&vec![7; bytes]).wait().expect("it is applied"), sum);
    }
    // A node that only looks, as `squall doctor` does, disturbs no member.
    let looking = cluster.config(1, security(1), PATIENCE);
    looking.greet(NodeId(2), PATIENCE).expect("node 2 knows node 1");
    for (node, group) in &nodes {
        assert_eq!(group.read(|length| length.0).wait().expect("it is read"), sum, "at {}", node.id());
    }
}

#[test]
fn nodes_meet_over_tcp() {
    small_and_large_messages_are_applied_by_all(&Cluster::new("plain", 3), |_| Security::LoopbackOnly);
}

#[test]
fn nodes_meet_over_tls() {
    let cluster = Cluster::new("tls", 3);
    cluster.make_keys("ca", 1..=3);
    small_and_large_messages_are_applied_by_all(&cluster, |id| cluster.protected("ca", id));
}

#[test]
fn a_node_with_keys_of_another_authority_is_not_met() {
    let cluster = Cluster::new("stranger", 2);
    cluster.make_keys("ca", [1]);
    cluster.make_keys("another", [2]);
    let wait = Duration::from_millis(700);
    let configs = [(1, "ca"), (2, "another")].map(|(id, ca)| cluster.config(id, cluster.protected(ca, id), wait));
    for started in start_all(configs.into()) {
        match started {
            Err(StartError::NotFormed(EndReason::NotFormed { missing, .. })) => assert_eq!(missing.len(), 1),
            other => panic!("it should have waited in vain: {other:?}"),
        }
    }
}

#[test]
fn a_node_that_shows_no_keys_is_not_met() {
    let cluster = Cluster::new("naked", 2);
    cluster.make_keys("ca", [1]);
    let wait = Duration::from_millis(700);
    let configs =
        [cluster.config(1, cluster.protected("ca", 1), wait), cluster.config(2, Security::LoopbackOnly, wait)];
    for started in start_all(configs.into()) {
        assert!(matches!(started, Err(StartError::NotFormed(EndReason::NotFormed { .. }))), "{started:?}");
    }
}

#[test]
fn another_node_s_keys_are_refused_at_once() {
    let cluster = Cluster::new("mixed-up", 2);
    cluster.make_keys("ca", [2]);
    let error = start(cluster.config(1, cluster.protected("ca", 2), PATIENCE)).unwrap_err().to_string();
    assert!(error.contains("is the certificate of node 2, but this is node 1") && error.contains("{id}"), "{error}");
}

#[test]
fn who_shuts_down_is_missed_by_nobody() {
    let cluster = Cluster::new("leaves", 2);
    let configs = (1..=2).map(|id| cluster.config(id, Security::LoopbackOnly, PATIENCE)).collect();
    let mut nodes: Vec<_> = start_all(configs).into_iter().map(|node| node.expect("the view is formed")).collect();
    let (leaving, _group) = nodes.pop().expect("two started");
    leaving.shutdown();
    let (node, group) = &nodes[0];
    let view = node.wait_view(PATIENCE, |view| view.members.len() == 1).expect("its part is not over");
    assert!(view.is_some_and(|view| view.left == [NodeId(2)]), "{:?}", node.view());
    assert_eq!(group.submit(&vec![7; 3]).wait(), Ok(3));
}
