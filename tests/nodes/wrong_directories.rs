//! Processes that are started with storage directories of others, or with old copies of their own: they say so, and
//! nothing is lost.

use std::{fs, path::Path, process::Command};

use crate::process::{self, Cluster, Process};

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.expect("cp can be started").success());
}

fn exchange(a: &Path, b: &Path) {
    let aside = a.with_extension("aside");
    for (from, to) in [(a, aside.as_path()), (b, a), (&aside, b)] {
        fs::rename(from, to).expect("they are on one disk");
    }
}

fn all_serve(cluster: &Cluster, sum: u64) {
    let mut nodes: Vec<Process> = cluster.nodes().map(|id| cluster.launch(id)).collect();
    nodes.iter_mut().for_each(Process::ready);
    for node in &mut nodes {
        assert_eq!(node.serves(), sum, "at node {}", node.id);
    }
}

#[test]
fn directories_that_were_exchanged_are_refused_and_serve_again_in_their_places() {
    let cluster = Cluster::durable("exchanged", "shm", 3);
    let mut nodes = cluster.start();
    assert_eq!(nodes[0].add(7), Ok(7));
    process::kill_all(nodes);
    exchange(&cluster.directory(1), &cluster.directory(2));
    for (id, of) in [(1, 2), (2, 1)] {
        let said = cluster.launch(id).answer();
        assert!(said.contains(&format!("is the directory of node {of}, and this is node {id}")), "{said}");
    }
    exchange(&cluster.directory(1), &cluster.directory(2));
    all_serve(&cluster, 7);
}

#[test]
fn an_old_copy_ends_its_node_and_the_others_go_on() {
    let cluster = Cluster::durable("old", "tcp", 3);
    let mut nodes = cluster.start();
    assert_eq!(nodes[0].add(1), Ok(1));
    nodes.remove(2).kill();
    let (own, old) = (cluster.directory(3), cluster.directory(3).with_extension("old"));
    copy(&own, &old);
    let mut third = cluster.launch(3);
    third.ready();
    assert_eq!(third.serves(), 1);
    assert_eq!(third.add(10), Ok(11));
    third.kill();
    fs::remove_dir_all(&own).expect("it is there");
    fs::rename(&old, &own).expect("it is there");
    let said = cluster.launch(3).answer();
    assert!(said.contains("is an old copy"), "{said}");
    assert_eq!(nodes[0].add(100), Ok(111));
    nodes[0].wait_members(&[1, 2]);
    // With an empty directory it joins.
    fs::remove_dir_all(&own).expect("it is there");
    let mut third = cluster.launch(3);
    third.ready();
    assert_eq!(third.serves(), 111);
}
