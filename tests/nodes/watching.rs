//! A client watches a durable group whose nodes are killed, one by one and all at once: it sees each change once and in
//! order.

use std::{io, mem, thread, time::Duration};

use squall::{
    Node, ServeOptions, Snapshot, ViewChange,
    client::{Client, Watch},
};

use crate::process::{self, Cluster, PATIENCE, Process};

/// A count, and the values that it has had since the changes were reported last.
#[derive(Default)]
struct Count {
    value: u64,
    changes: Vec<(String, u64)>,
}

#[squall::service(schema = "test-count", version = 1)]
impl Count {
    #[command]
    fn step(&mut self) -> u64 {
        self.value += 1;
        self.changes.push((["step/even", "step/odd"][self.value as usize % 2].to_owned(), self.value));
        self.value
    }

    #[query]
    fn value(&self) -> u64 {
        self.value
    }

    #[view_changed]
    fn see(&mut self, change: &ViewChange) {
        self.changes.push(("view".to_owned(), change.members.len() as u64));
    }

    #[changes]
    fn changes(&mut self) -> Vec<(String, u64)> {
        mem::take(&mut self.changes)
    }

    #[snapshot]
    fn snapshot(&self) -> Snapshot {
        Snapshot::of_bytes(self.value.to_le_bytes())
    }

    #[restore]
    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes)?;
        self.value = u64::from_le_bytes(bytes);
        Ok(())
    }
}

#[test]
#[ignore = "it is what the other tests start as processes"]
fn node() {
    let mut node = Node::builder(process::config("count"));
    node.serve("count", Count::default(), ServeOptions::default());
    let _node = node.start().expect("it starts");
    process::say("ready").expect("the test listens");
    let mut line = String::new();
    // The test's end is the end of its input.
    while io::stdin().read_line(&mut line).is_ok_and(|bytes| bytes > 0) {}
}

/// The next change, which must be there in time.
fn next(watch: &mut Watch<Count>) -> u64 {
    watch.wait_next(PATIENCE).expect("the watch goes on").expect("it comes in time").change
}

fn nodes_are_killed_and_a_watch_goes_on(backend: &'static str) {
    let cluster = Cluster::durable("watching", backend, 3);
    let cluster = cluster.with_own_node();
    let mut nodes: Vec<Option<Process>> = cluster.start().into_iter().map(Some).collect();
    let count = Client::<Count>::connect(&cluster.clients(), "count").expect("it starts");
    let (value, mut all) = count.watch_with_query("step/", &CountQuery::Value).wait().expect("it begins");
    assert!(matches!(value, CountAnswer::Value(0)));
    let mut odd = count.watch("step/odd").wait().expect("it begins");
    let mut views = count.watch("view").wait().expect("it begins");
    let steps = |times: u64| (0..times).for_each(|_| _ = count.step().wait().expect("it is applied"));
    steps(20);
    for id in 1..=3 {
        drop(nodes[id as usize - 1].take());
        if id == 1 {
            // No command follows, so the group itself must tell that the view can't be undone.
            while next(&mut views) != 2 {}
        }
        steps(20);
        let mut back = cluster.launch(id);
        back.ready();
        nodes[id as usize - 1] = Some(back);
        cluster.wait_whole(id);
    }
    // Half of what was told is taken before all go down, and the rest behind that.
    (1..=40).for_each(|value| assert_eq!(next(&mut all), value));
    nodes.clear();
    let place = all.place();
    let restarted = thread::scope(|scope| {
        let nodes: Vec<_> = cluster
            .nodes()
            .map(|id| {
                scope.spawn({
                    let cluster = &cluster;
                    move || {
                        let mut node = cluster.launch(id);
                        node.ready();
                        node
                    }
                })
            })
            .collect();
        nodes.into_iter().map(|node| node.join().expect("it starts")).collect::<Vec<_>>()
    });
    steps(20);
    (41..=100).for_each(|value| assert_eq!(next(&mut all), value));
    (0..50).for_each(|index| assert_eq!(next(&mut odd), 2 * index + 1));
    let mut again = count.watch_from("step/", place).wait().expect("it is kept");
    (41..=100).for_each(|value| assert_eq!(next(&mut again), value));
    assert!(all.wait_next(Duration::ZERO).expect("it goes on").is_none());
    drop(restarted);
}

#[test]
fn over_shm() {
    nodes_are_killed_and_a_watch_goes_on("shm");
}

#[test]
fn over_tcp() {
    nodes_are_killed_and_a_watch_goes_on("tcp");
}
