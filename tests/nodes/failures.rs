//! Nodes as processes that die without notice or stand still, over shared memory and TCP. The others go on, nothing
//! that was acknowledged is lost, and a node that comes back gets the state.

use std::time::{Duration, Instant};

use crate::process::{self, Cluster, FAILURE_TIMEOUT};

fn who_is_killed_is_missed_for_a_moment_and_comes_back_with_the_state(backend: &'static str) {
    for (victim, others) in [(3, [1, 2]), (1, [2, 3])] {
        let cluster = Cluster::new(&format!("kill{victim}"), backend, 3);
        let mut nodes = cluster.start();
        for (sum, node) in (1..).zip(&mut nodes) {
            assert_eq!(node.add(1), Ok(sum));
        }
        nodes.remove(victim as usize - 1).kill();
        for (sum, node) in (4..).zip(&mut nodes) {
            assert_eq!(node.add(1), Ok(sum), "no submit fails for it");
            node.wait_view(&others);
        }
        let mut back = cluster.launch(victim);
        back.ready();
        back.wait_view(&[others[0], others[1], victim]);
        assert_eq!(back.add(10), Ok(15));
        for node in &mut nodes {
            assert_eq!(node.ask("read"), "15");
        }
    }
}

fn two_of_five_are_killed_at_once(backend: &'static str) {
    for victims in [[1, 2], [2, 5]] {
        let cluster = Cluster::new(&format!("two{}", victims[1]), backend, 5);
        let mut nodes = cluster.start();
        assert_eq!(nodes[0].add(1), Ok(1));
        let (dead, mut living): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| victims.contains(&node.id));
        process::kill_all(dead);
        for (sum, node) in (2..).zip(&mut living) {
            assert_eq!(node.add(1), Ok(sum));
        }
    }
}

fn who_was_stopped_learns_that_it_was_dropped_and_comes_back(backend: &'static str) {
    for (victim, others) in [(3, [1, 2]), (1, [2, 3])] {
        let cluster = Cluster::new(&format!("stop{victim}"), backend, 3);
        let mut nodes = cluster.start();
        assert_eq!(nodes[0].add(1), Ok(1));
        let mut stopped = nodes.remove(victim as usize - 1);
        stopped.signal("-STOP");
        for (sum, node) in (2..).zip(&mut nodes) {
            assert_eq!(node.add(1), Ok(sum));
            node.wait_view(&others);
        }
        stopped.signal("-CONT");
        assert_eq!(stopped.serves(), 3);
        stopped.wait_view(&[others[0], others[1], victim]);
    }
}

fn one_of_three_alone_says_so_and_goes_on_when_another_is_back(backend: &'static str) {
    let cluster = Cluster::new("alone", backend, 3);
    let mut nodes = cluster.start();
    assert_eq!(nodes[0].add(1), Ok(1));
    for node in &nodes[1..] {
        node.signal("-STOP");
    }
    let asked = Instant::now();
    let error = nodes[0].add(1).expect_err("no other node has it");
    assert!(error.contains("too few of the group's members can be reached"), "{error}");
    assert!(asked.elapsed() < FAILURE_TIMEOUT + Duration::from_secs(10), "{:?}", asked.elapsed());
    assert!(nodes[0].ask("read").contains("too few"), "nor may it be read");
    for node in &nodes[1..] {
        node.signal("-CONT");
    }
    // The outcome of the 1 that was under way is unknown.
    let sum = nodes[0].serves();
    assert!((1..=2).contains(&sum), "{sum}");
    for node in &mut nodes {
        assert_eq!(node.serves(), sum, "at node {}", node.id);
    }
}

macro_rules! over_both {
    ($($test:ident),* $(,)?) => {
        mod over_shm {
            $(#[test] fn $test() { super::$test("shm") })*
        }
        mod over_tcp {
            $(#[test] fn $test() { super::$test("tcp") })*
        }
    };
}

over_both!(
    who_is_killed_is_missed_for_a_moment_and_comes_back_with_the_state,
    two_of_five_are_killed_at_once,
    who_was_stopped_learns_that_it_was_dropped_and_comes_back,
    one_of_three_alone_says_so_and_goes_on_when_another_is_back,
);
