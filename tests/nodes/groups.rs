//! Nodes over shared memory, several in this process: groups side by side, slow applications, ends and refusals.

use std::{thread, time::Duration};

use rkyv::Archived;
use squall::{
    Applied, Config, ConfigBuilder, EndReason, Group, Mode, Node, Replicated, StartError, SubmitError, Unavailable,
};

use crate::process::until;

/// A counter that adds, and can be slow or submit to itself.
struct Counter {
    sum: i64,
    slow: Duration,
    /// The group to which it submits 1 when it applies 1000.
    echo: Option<Group<Counter>>,
    waited_inside: Option<SubmitError>,
}

impl Counter {
    fn new() -> Counter {
        Counter { sum: 0, slow: Duration::ZERO, echo: None, waited_inside: None }
    }
}

impl Replicated for Counter {
    type Command = i64;
    type Reply = i64;

    fn apply(&mut self, add: &Archived<i64>, _at: &Applied) -> i64 {
        // The call takes long, as an application's may.
        thread::sleep(self.slow);
        self.sum += add.to_native();
        if add.to_native() == 1000
            && let Some(echo) = &self.echo
        {
            self.waited_inside = echo.submit(&1).wait().err();
        }
        self.sum
    }
}

fn cluster(test: &str) -> String {
    format!("node-{test}-{}", std::process::id())
}

fn config(test: &str, id: u32, members: u32) -> Config {
    builder(test, id, members).build().expect("the configuration is valid")
}

fn builder(test: &str, id: u32, members: u32) -> ConfigBuilder {
    let config = Config::builder(cluster(test), id).members(1..=members);
    config.group("gossip", |group| {
        group.mode(Mode::Unordered);
    })
}

type Started = (Node, Group<Counter>, Group<Counter>);

/// Starts `members` nodes with two groups each, and waits until all have formed the view.
fn start(test: &str, members: u32, slow: Duration) -> Vec<Started> {
    let start = |id| {
        let mut node = Node::builder(config(test, id, members));
        let gossip = node.group("gossip", Counter::new());
        let ledger = node.group("ledger", Counter { slow, ..Counter::new() });
        (node.start().expect("the view is formed"), ledger, gossip)
    };
    thread::scope(|scope| {
        let starting: Vec<_> = (1..=members).map(|id| scope.spawn(move || start(id))).collect();
        starting.into_iter().map(|node| node.join().expect("it starts")).collect()
    })
}

#[test]
fn groups_of_one_node_do_not_mix() {
    let nodes = start("mix", 3, Duration::ZERO);
    thread::scope(|scope| {
        for (_, ledger, gossip) in &nodes {
            scope.spawn(move || (0..200).for_each(|_| assert!(ledger.submit(&1).wait().is_ok())));
            scope.spawn(move || (0..100).for_each(|_| assert!(gossip.submit(&10).wait().is_ok())));
        }
    });
    for (_, ledger, gossip) in &nodes {
        assert_eq!(ledger.read(|counter| counter.sum).wait(), Ok(600));
        until("the gossip has come everywhere", || gossip.peek(|counter| counter.sum).wait() == Ok(3000));
        assert!(gossip.read(|counter| counter.sum).wait().is_err(), "no linearizable reads where there is no order");
    }
}

#[test]
fn a_slow_application_moves_to_a_thread_of_its_own_and_goes_on() {
    let nodes = start("slow", 2, Duration::from_millis(3));
    let (node, ledger, gossip) = &nodes[0];
    let own_thread = || {
        let status = node.status().expect("the engine answers");
        status.groups.iter().any(|group| group.name == "ledger" && group.own_thread)
    };
    let mut submitted = 0;
    until("it has moved", || {
        ledger.submit(&1).wait().expect("it is delivered");
        submitted += 1;
        own_thread()
    });
    for _ in 0..20 {
        ledger.submit(&1).wait().expect("it is delivered");
        submitted += 1;
    }
    assert_eq!(ledger.read(|counter| counter.sum).wait(), Ok(submitted));
    assert_eq!(ledger.peek(|counter| counter.sum).wait(), Ok(submitted));
    assert!(gossip.submit(&1).wait().is_ok(), "the other group stays where it was");
    let late = ledger.submit(&1).deadline(Duration::from_nanos(1)).wait();
    assert!(matches!(late, Err(SubmitError::Deadline) | Ok(_)), "{late:?}");
    let mut nodes = nodes.into_iter();
    let (first, ledger, _) = nodes.next().expect("there are two");
    first.shutdown();
    assert!(matches!(ledger.submit(&1).wait(), Err(SubmitError::Ended { reason: EndReason::ShutDown, .. })));
    let (second, ledger, _) = nodes.next().expect("there are two");
    // If the first took part in the decision, the second goes on; else it waits for the first.
    let after = ledger.submit(&1).wait();
    assert!(matches!(after, Ok(_) | Err(SubmitError::Unavailable { why: Unavailable::NoQuorum, .. })), "{after:?}");
    assert_eq!(second.end_reason(), None);
}

#[test]
fn an_application_may_submit_but_not_wait_inside_apply() {
    let mut node = Node::builder(config("inside", 1, 1));
    drop(node.group("gossip", Counter::new()));
    let first = node.group("first", Counter::new());
    let second = node.group("second", Counter { echo: Some(first.clone()), ..Counter::new() });
    let _node = node.start().expect("a view of one");
    assert_eq!(second.submit(&1000).wait(), Ok(1000));
    let waited = second.peek(|counter| counter.waited_inside.clone()).wait().expect("it answers");
    assert_eq!(waited, Some(SubmitError::InsideApply));
    until("what it submitted is delivered all the same", || first.read(|counter| counter.sum).wait() == Ok(1));
}

#[test]
fn nodes_that_declare_other_groups_refuse_each_other() {
    // The one that is refused ends, and the other waits for it in vain.
    let config = |id| {
        let config = builder("other", id, 2).formation_timeout(Duration::from_secs(5));
        config.build().expect("the configuration is valid")
    };
    let (one, two) = thread::scope(|scope| {
        let one = scope.spawn(|| {
            let mut node = Node::builder(config(1));
            drop((node.group("gossip", Counter::new()), node.group("ledger", Counter::new())));
            node.start().map(drop)
        });
        let two = scope.spawn(|| {
            let mut node = Node::builder(config(2));
            drop((node.group("gossip", Counter::new()), node.group("journal", Counter::new())));
            node.start().map(drop)
        });
        (one.join().expect("no panic"), two.join().expect("no panic"))
    });
    let refused = |result: &Result<(), StartError>| {
        matches!(result, Err(StartError::NotFormed(EndReason::Incompatible { .. } | EndReason::NotFormed { .. })))
    };
    assert!(refused(&one) && refused(&two), "{one:?} {two:?}");
    let named =
        |result: &Result<(), StartError>| matches!(result, Err(StartError::NotFormed(EndReason::Incompatible { .. })));
    assert!(named(&one) || named(&two), "{one:?} {two:?}");
}

#[test]
fn a_group_that_the_program_does_not_serve_is_named() {
    let node = Node::builder(config("unknown", 1, 1));
    let error = node.start().map(drop).expect_err("[groups.gossip] is not declared");
    assert!(error.to_string().contains("gossip"), "{error}");
}

#[test]
fn callers_learn_of_a_panic_in_apply() {
    struct Panics;
    impl Replicated for Panics {
        type Command = i64;
        type Reply = i64;
        fn apply(&mut self, _: &Archived<i64>, _: &Applied) -> i64 {
            panic!("as this test wants it")
        }
    }
    let config = Config::builder(cluster("panic"), 1).members([1]).build().expect("the configuration is valid");
    let mut node = Node::builder(config);
    let group = node.group("panics", Panics);
    let node = node.start().expect("a view of one");
    assert!(group.submit(&1).wait().is_err());
    assert_eq!(node.wait_ended(), EndReason::Panicked);
}
