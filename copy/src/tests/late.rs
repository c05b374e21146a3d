//! Receivers that come late: they are served by those that have the blocks.

use std::{
    fs,
    net::TcpListener,
    sync::{atomic::AtomicBool, mpsc},
    thread,
};

use super::{
    super::{PushOptions, PushProgress, PushReport, push},
    network::{Cluster, Way, write},
    pair::noise,
};

/// The bytes of what is copied. Those before the receiver comes are more than what one group moves at most then.
const BYTES: usize = 3_000_000;

/// Pushes to all receivers of a cluster, and to `late`, which comes when the others have begun to write. `watch` sees
/// the progress, with the late one last.
fn push_with_late(
    cluster: &mut Cluster,
    late: &'static str,
    watch: impl FnMut(&Cluster, &PushProgress) + Send,
) -> (PushOptions, PushReport) {
    fs::create_dir(cluster.at(late, "")).unwrap();
    let mut options = cluster.options();
    // Nobody else takes the port of a listener that has just gone.
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap().to_string();
    options.to.push(if cluster.way() == Way::Network { address.clone() } else { late.to_owned() });
    // So slow that there is time to come.
    options.limit_rate = Some(1_000_000);
    let (begin, begun) = mpsc::channel();
    let (tell, told) = mpsc::channel::<PushProgress>();
    let report = thread::scope(|scope| {
        let mut see = move |progress: &PushProgress| {
            if progress.receivers[0].written > 0 {
                // Only the first time somebody waits for it.
                let _ = begin.send(());
            }
            let _ = tell.send(progress.clone());
        };
        let (pushed, mut watch) = (&options, watch);
        let pushed = scope.spawn(move || push(pushed, &AtomicBool::new(false), &mut see).unwrap());
        begun.recv().unwrap();
        cluster.serve_at(late, &address);
        let cluster = &*cluster;
        told.iter().for_each(|progress| watch(cluster, &progress));
        pushed.join().unwrap()
    });
    (options, report)
}

/// Tells whether the first receivers have all, and the last, which came late, has not.
fn only_the_last_lacks(progress: &PushProgress) -> bool {
    let (last, others) = progress.receivers.split_last().unwrap();
    others.iter().all(|at| at.written == progress.bytes) && last.over.is_none() && last.written < progress.bytes
}

#[test]
fn a_receiver_that_comes_late_copies_at_once() {
    let mut cluster = Cluster::by(Way::OpenFiles, 1);
    write(&cluster.from("file"), 8, BYTES);
    let (_, report) = push_with_late(&mut cluster, "b", |_, _| {});
    assert!(report.is_complete() && report.groups == 0, "{report:?}");
    cluster.assert_copied("file");
}

#[test]
fn a_receiver_that_comes_late_gets_from_the_others_what_they_have() {
    for mut cluster in Cluster::by_rdmc(2) {
        write(&cluster.from("d/file"), 8, BYTES);
        for i in 0..50 {
            write(&cluster.from(&format!("d/small{i}")), i, i as usize * 10);
        }
        let (options, report) = push_with_late(&mut cluster, "c", |_, _| {});
        assert!(report.is_complete() && report.groups > 1, "{report:?}");
        for receiver in &report.receivers {
            assert!(receiver.moved <= report.bytes + options.block_bytes as u64, "nothing moves twice: {report:?}");
        }
        let by_source = report.multicasts - report.relayed;
        // What was sent before ends in a segment of its own, and so does the rest.
        let once = report.bytes.div_ceil(options.segment_bytes as u64) + 2;
        assert!(report.relayed >= 16 && by_source <= once, "the source sends all once: {report:?}");
        cluster.assert_copied("d");
    }
}

#[test]
fn a_receiver_that_ends_while_it_sends_is_replaced() {
    for mut cluster in Cluster::by_rdmc(2) {
        write(&cluster.from("file"), 8, BYTES);
        let mut was_in_time = false;
        // Of two that have the same, the last sends.
        let (_, report) = push_with_late(&mut cluster, "c", |cluster, progress| {
            if only_the_last_lacks(progress) && !std::mem::replace(&mut was_in_time, true) {
                cluster.stop("b");
            }
        });
        assert!(was_in_time, "{report:?}");
        let errors: Vec<bool> = report.receivers.iter().map(|at| at.error.is_some()).collect();
        assert_eq!(errors, [false, true, false], "{report:?}");
        cluster.assert_copied("file");
    }
}

#[test]
fn a_file_that_was_changed_after_it_was_put_in_place_is_sent_by_the_source() {
    for mut cluster in Cluster::by_rdmc(1) {
        write(&cluster.from("file"), 8, BYTES);
        let mut was_in_time = false;
        let (_, report) = push_with_late(&mut cluster, "b", |cluster, progress| {
            let path = cluster.at("a", "file");
            if only_the_last_lacks(progress) && path.exists() && !std::mem::replace(&mut was_in_time, true) {
                fs::write(path, noise(9, BYTES)).unwrap();
            }
        });
        assert!(was_in_time && report.is_complete(), "{report:?}");
        assert!(fs::read(cluster.at("b", "file")).unwrap() == noise(8, BYTES));
    }
}
