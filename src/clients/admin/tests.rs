//! Commands against a mock of a node.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering},
};
use std::time::Duration;

use super::*;
use squall_services::{Handler, Server, Service};

const PATIENCE: Duration = Duration::from_secs(20);

/// A mock of a node that notes its orders.
#[derive(Default)]
struct Noted {
    told: Mutex<Vec<String>>,
}

impl Noted {
    fn note(&self, what: String) -> Result<(), String> {
        self.told.lock().unwrap().push(what);
        Ok(())
    }
}

impl Admin for Noted {
    fn status(&self) -> StatusReport {
        let mut report = health_tests::report(1);
        let [one, two, ..] = &mut report.shards[0].rows[..] else { unreachable!("it has three") };
        (one.delivered, two.received, two.delivered) = (9, 7, 7);
        report.shards = report.shards.into_iter().map(ShardReport::with_lags).collect();
        report
    }

    fn suspect(&self, node: NodeId) -> Result<(), String> {
        if node == NodeId(9) { Err("node 9 is not a member".into()) } else { self.note(format!("suspect {node}")) }
    }

    fn reload_keys(&self) -> Result<(), String> {
        self.note("reload keys".into())
    }

    fn leave(&self) -> Result<Farewell, String> {
        self.note("leave".into())?;
        Ok(Arc::new(Farewells::default()).hold())
    }

    fn wait_left(&self) -> Result<(), String> {
        self.note("left".into())
    }

    fn recover(&self, reason: String) -> Result<Vec<EmptiedShard>, String> {
        self.note(reason).map(|()| vec![emptied()])
    }
}

fn emptied() -> EmptiedShard {
    EmptiedShard { shard: 3, group: "bank".into(), version: 0, held_by: vec![NodeId(4), NodeId(5)] }
}

/// Starts the mock, and returns its server, its notes and its target.
fn node() -> (Server, Arc<Noted>, Target) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let cluster = format!("test-admin-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let noted = Arc::new(Noted::default());
    let admin = Arc::clone(&noted);
    let handler: Handler = Arc::new(move |stream| serve(stream, &*admin));
    let server = Server::on_host(&cluster, NodeId(1), [(Service::Admin, handler)]).unwrap();
    (server, noted, Target::on_host(cluster, 1))
}

#[test]
fn a_node_says_how_it_is_as_often_as_it_is_asked() {
    let (_server, noted, target) = node();
    let mut client = AdminClient::connect(&target, PATIENCE).unwrap();
    for _ in 0..3 {
        assert_eq!(client.status().unwrap(), noted.status());
    }
    let lags: Vec<u64> = client.status().unwrap().shards[0].rows.iter().map(|row| row.lag).collect();
    assert_eq!(lags, [1, 3, 0], "10 places are received somewhere");
}

#[test]
fn a_node_does_what_it_is_told_and_says_why_not() {
    let (_server, noted, target) = node();
    let mut client = AdminClient::connect(&target, PATIENCE).unwrap();
    client.suspect(NodeId(2)).unwrap();
    assert_eq!(client.suspect(NodeId(9)).unwrap_err().to_string(), "node 1 refuses: node 9 is not a member");
    assert_eq!(client.recover("by ann, since two hosts burnt").unwrap(), [emptied()]);
    let sentence =
        "shard 3 of \"bank\" starts empty: this node did not hold its state, which node 4 and node 5 held last";
    assert_eq!(emptied().to_string(), sentence);
    let earlier = EmptiedShard { version: 17, ..emptied() }.to_string();
    assert!(
        earlier.starts_with("shard 3 of \"bank\" goes on from version 17, the last in this node's log"),
        "{earlier}"
    );
    client.leave(PATIENCE).unwrap();
    assert_eq!(*noted.told.lock().unwrap(), ["suspect node 2", "by ann, since two hosts burnt", "leave", "left"]);
}

#[test]
fn a_node_that_does_not_run_is_named() {
    let error = AdminClient::connect(&Target::on_host("test-admin-absent", 3), PATIENCE).unwrap_err();
    assert!(
        error.to_string().starts_with("node 3 of cluster \"test-admin-absent\" does not run on this host"),
        "{error}"
    );
}
