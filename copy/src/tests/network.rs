//! Pushes to receivers in threads, over shared memory and over TCP.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use squall_fabric::net::Security;
use tempfile::TempDir;

use super::{
    super::{PushOptions, PushProgress, PushReport, Receiver, ReceiverNetwork, ServeEvent, ServeOptions, push},
    pair::{assert_same, noise},
};

/// Receivers `a`, `b`, … of a cluster of their own, each with a directory, that serve until this is dropped.
pub(super) struct Cluster {
    base: TempDir,
    cluster: String,
    way: Way,
    threads: Vec<Served>,
}

/// The way that contents take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Receivers copy from the source's open files.
    OpenFiles,
    SharedMemory,
    Network,
}

/// A receiver that serves.
struct Served {
    name: &'static str,
    /// The name or address by which sources call it.
    to: String,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<ServeEvent>>,
}

impl Cluster {
    pub(super) fn new(receivers: usize) -> Cluster {
        Cluster::by(Way::SharedMemory, receivers)
    }

    /// Starts one cluster whose contents go by shared memory, and one over a network.
    pub(super) fn by_rdmc(receivers: usize) -> [Cluster; 2] {
        [Way::SharedMemory, Way::Network].map(|way| Cluster::by(way, receivers))
    }

    /// Starts a cluster for each way.
    fn by_all(receivers: usize) -> [Cluster; 3] {
        [Way::OpenFiles, Way::SharedMemory, Way::Network].map(|way| Cluster::by(way, receivers))
    }

    pub(super) fn by(way: Way, receivers: usize) -> Cluster {
        let base = tempfile::tempdir().unwrap();
        let cluster = base.path().file_name().unwrap().to_str().unwrap().trim_start_matches('.').to_owned();
        fs::create_dir(base.path().join("from")).unwrap();
        let mut cluster = Cluster { base, cluster, way, threads: Vec::new() };
        for name in ["a", "b", "c", "d", "e"].into_iter().take(receivers) {
            fs::create_dir(cluster.base.path().join(name)).unwrap();
            cluster.serve(name);
        }
        cluster
    }

    fn serve(&mut self, name: &'static str) {
        self.serve_at(name, "127.0.0.1:0");
    }

    /// Starts a receiver; over a network, at an address.
    pub(super) fn serve_at(&mut self, name: &'static str, address: &str) {
        let network = ReceiverNetwork { listen: vec![address.to_owned()], security: Security::LoopbackOnly };
        let options = ServeOptions {
            directory: self.base.path().join(name),
            name: name.to_owned(),
            cluster: self.cluster.clone(),
            network: (self.way == Way::Network).then_some(network),
        };
        let mut receiver = Receiver::open(&options).unwrap();
        let to = receiver.addresses().first().map_or(name.to_owned(), ToString::to_string);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let body = move || {
            let mut events = Vec::new();
            while receiver.receive(&stopped, &mut |event| events.push(event)) {}
            events
        };
        self.threads.push(Served { name, to, stop, thread: thread::spawn(body) });
    }

    /// Stops a receiver, soon.
    pub(super) fn stop(&self, name: &str) {
        let served = self.threads.iter().filter(|served| served.name == name);
        served.for_each(|served| served.stop.store(true, Ordering::Relaxed));
    }

    pub(super) fn from(&self, name: &str) -> PathBuf {
        self.base.path().join("from").join(name)
    }

    pub(super) fn at(&self, receiver: &str, name: &str) -> PathBuf {
        self.base.path().join(receiver).join(name)
    }

    pub(super) fn way(&self) -> Way {
        self.way
    }

    pub(super) fn name(&self) -> &str {
        &self.cluster
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.threads.iter().map(|served| served.name)
    }

    /// Returns the names or addresses by which sources call some receivers.
    fn to(&self, names: &[&str]) -> Vec<String> {
        self.threads.iter().filter(|served| names.contains(&served.name)).map(|served| served.to.clone()).collect()
    }

    /// Returns options with small segments and blocks, so that little data takes many.
    pub(super) fn options(&self) -> PushOptions {
        let mut paths: Vec<PathBuf> =
            fs::read_dir(self.base.path().join("from")).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let to = self.to(&self.names().collect::<Vec<_>>());
        let mut options = match self.way {
            Way::Network => PushOptions::over_network(paths, to, self.cluster.clone(), Security::LoopbackOnly),
            Way::OpenFiles | Way::SharedMemory => PushOptions::new(paths, to, self.cluster.clone()),
        };
        options.algorithm = super::super::flat("interleaved").filter(|_| self.way == Way::SharedMemory);
        (options.segment_bytes, options.block_bytes, options.sync) = (64 << 10, 8 << 10, false);
        options
    }

    pub(super) fn push(&self, options: &PushOptions) -> PushReport {
        push(options, &AtomicBool::new(false), &mut |_| {}).unwrap()
    }

    /// Pushes until every receiver has written about so many bytes, and stops then.
    fn push_some(&self, options: &PushOptions, bytes: u64) -> PushReport {
        let stop = AtomicBool::new(false);
        let mut options = options.clone();
        // A copy of the kernel's would be over at once.
        options.limit_rate = Some(20_000_000).filter(|_| self.way == Way::OpenFiles);
        let mut watch = |progress: &PushProgress| {
            if progress.receivers.iter().all(|receiver| receiver.written >= bytes) {
                stop.store(true, Ordering::Relaxed);
            }
        };
        push(&options, &stop, &mut watch).unwrap()
    }

    /// Removes every receiver's copy, each of which must be whole. Returns whether there was any.
    fn clear(&self, name: &str) -> bool {
        let copies = self.names().map(|receiver| self.at(receiver, name)).filter(|copy| copy.exists());
        let check = |copy: &PathBuf| {
            assert_same(&self.from(name), copy);
            fs::remove_file(copy).unwrap();
        };
        copies.inspect(check).count() > 0
    }

    pub(super) fn assert_copied(&self, name: &str) {
        for receiver in self.names() {
            assert_same(&self.from(name), &self.at(receiver, name));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.threads.iter().for_each(|served| served.stop.store(true, Ordering::Relaxed));
        for Served { thread, .. } in self.threads.drain(..) {
            let events = thread.join();
            if thread::panicking() {
                eprintln!("{events:?}");
            }
        }
    }
}

pub(super) fn write(path: &Path, seed: u64, len: usize) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, noise(seed, len)).unwrap();
}

#[test]
fn files_reach_all_receivers_whatever_the_algorithm() {
    for cluster in Cluster::by_rdmc(3) {
        write(&cluster.from("large"), 1, 1_000_000);
        for i in 0..200 {
            write(&cluster.from(&format!("small/{}/{i}", i % 7)), i, i as usize * 3);
        }
        for name in super::super::flat_names() {
            for receiver in cluster.names() {
                let _ = fs::remove_file(cluster.at(receiver, "large"));
                let _ = fs::remove_dir_all(cluster.at(receiver, "small"));
            }
            let mut options = cluster.options();
            options.algorithm = super::super::flat(name);
            let report = cluster.push(&options);
            assert!(report.is_complete(), "{name}: {report:?}");
            assert!(report.receivers.iter().all(|receiver| receiver.placed == 201), "{report:?}");
            assert_eq!(report.groups, 1, "{report:?}");
            assert!(report.multicasts <= 18, "small files share multicasts: {report:?}");
            cluster.assert_copied("large");
            cluster.assert_copied("small");
        }
        let mut options = cluster.options();
        options.racks = Some(vec![vec![], cluster.to(&["a", "b"]), cluster.to(&["c"])]);
        assert!(cluster.push(&options).is_complete());
    }
}

#[test]
fn receivers_on_the_source_s_host_copy_from_its_open_files() {
    let cluster = Cluster::by(Way::OpenFiles, 3);
    write(&cluster.from("large"), 1, 40_000_000);
    for i in 0..400 {
        write(&cluster.from(&format!("small/{}/{i}", i % 7)), i, i as usize * 3);
    }
    for sync in [false, true] {
        let report = cluster.push(&PushOptions { sync, ..cluster.options() });
        assert!(report.is_complete(), "{report:?}");
        assert_eq!((report.groups, report.multicasts), (0, 0), "{report:?}");
        for receiver in &report.receivers {
            assert_eq!((receiver.placed, receiver.written, receiver.moved), (401, report.bytes, report.bytes));
            fs::remove_file(cluster.at(&receiver.name, "large")).unwrap();
            assert_same(&cluster.from("small"), &cluster.at(&receiver.name, "small"));
            fs::remove_dir_all(cluster.at(&receiver.name, "small")).unwrap();
        }
    }
    for slow in
        [PushOptions { checksum: true, ..cluster.options() }, PushOptions { dry_run: true, ..cluster.options() }]
    {
        let report = cluster.push(&slow);
        assert!(report.is_complete() && (report.multicasts > 0 || slow.dry_run), "{report:?}");
    }
}

#[test]
fn nothing_but_empty_files_and_directories_takes_no_group() {
    let cluster = Cluster::new(2);
    write(&cluster.from("d/empty"), 0, 0);
    let report = cluster.push(&cluster.options());
    assert!(report.is_complete(), "{report:?}");
    assert_eq!((report.groups, report.multicasts), (0, 0));
    cluster.assert_copied("d");
}

#[test]
fn a_push_that_was_stopped_resumes_with_what_is_missing() {
    for cluster in Cluster::by_all(3) {
        // With one of these sizes no receiver has finished before it is stopped. No half file ever has the final name.
        let (options, first) = [40_000_000, 160_000_000, 640_000_000]
            .into_iter()
            .map(|bytes| {
                write(&cluster.from("file"), 5, bytes);
                let options = cluster.options();
                let report = cluster.push_some(&options, 1);
                (options, report)
            })
            .find(|_| !cluster.clear("file"))
            .expect("a push that was stopped before a receiver had the file");
        assert!(first.interrupted, "{first:?}");
        let report = cluster.push(&options);
        assert!(report.is_complete(), "{report:?}");
        for receiver in &report.receivers {
            assert!(receiver.held > 0, "{report:?}");
            let missing = report.bytes - receiver.held;
            assert!(receiver.moved <= missing + options.block_bytes as u64, "{report:?}");
        }
        cluster.assert_copied("file");
    }
}

#[test]
fn who_is_behind_gets_what_he_lacks_and_nobody_gets_anything_twice() {
    for cluster in Cluster::by_all(3) {
        write(&cluster.from("file"), 6, 10_000_000);
        let mut options = cluster.options();
        options.to = cluster.to(&["b"]);
        assert!(cluster.push_some(&options, 1).interrupted || cluster.at("b", "file").exists());
        options.to = cluster.to(&["c"]);
        assert!(cluster.push(&options).is_complete());
        let options = cluster.options();
        let report = cluster.push(&options);
        assert!(report.is_complete(), "{report:?}");
        for receiver in &report.receivers {
            let missing = report.bytes - receiver.held;
            assert!(receiver.moved <= missing + options.block_bytes as u64, "{report:?}");
        }
        cluster.assert_copied("file");
    }
}

#[test]
fn a_receiver_that_is_not_there_is_named_and_costs_the_others_nothing() {
    let cluster = Cluster::new(1);
    write(&cluster.from("file"), 8, 1000);
    let mut options = cluster.options();
    options.to.push("nobody".to_owned());
    let tell = |options: &PushOptions| push(options, &AtomicBool::new(false), &mut |_| {});
    let required = PushOptions { require_all: true, ..options.clone() };
    let error = tell(&required).unwrap_err().to_string();
    assert!(error.contains("no receiver \"nobody\" runs") && error.contains("squall cp serve"), "{error}");
    assert!(!cluster.at("a", "file").exists());
    let report = tell(&options).unwrap();
    assert!(!report.is_complete() && report.receivers[0].error.is_none(), "{report:?}");
    assert!(report.receivers[1].error.as_ref().unwrap().contains("no receiver \"nobody\" runs"), "{report:?}");
    cluster.assert_copied("file");
    options.to = vec!["nobody".to_owned()];
    assert!(tell(&options).unwrap_err().to_string().contains("no receiver \"nobody\" runs"));
}

#[test]
fn a_second_push_moves_nothing_and_one_of_changes_moves_those() {
    for cluster in Cluster::by_all(2) {
        write(&cluster.from("d/large"), 1, 3_000_000);
        write(&cluster.from("d/small"), 2, 100);
        assert!(cluster.push(&cluster.options()).is_complete());
        let again = cluster.push(&cluster.options());
        assert!(again.is_complete(), "{again:?}");
        assert!(again.receivers.iter().all(|at| (at.moved, at.unchanged, at.written) == (0, 2, 0)), "{again:?}");
        let mut bytes = noise(1, 3_000_000);
        bytes[1_500_000..1_500_100].fill(0);
        fs::write(cluster.from("d/large"), bytes).unwrap();
        fs::remove_file(cluster.at("b", "d/small")).unwrap();
        let dry = cluster.push(&PushOptions { dry_run: true, ..cluster.options() });
        assert!(dry.is_complete() && !cluster.at("b", "d/small").exists(), "{dry:?}");
        assert_eq!((dry.receivers[0].lacked, dry.receivers[1].lacked), (1, 2), "{dry:?}");
        let report = cluster.push(&cluster.options());
        assert!(report.is_complete(), "{report:?}");
        for (before, at) in dry.receivers.iter().zip(&report.receivers) {
            assert!(at.moved > 0 && at.moved < 600_000, "{report:?}");
            assert_eq!(before.written, at.written);
        }
        cluster.assert_copied("d");
    }
}

#[test]
fn names_that_make_no_sense_are_usage_errors() {
    let cluster = Cluster::new(1);
    write(&cluster.from("file"), 9, 1000);
    let refused = |change: fn(&mut PushOptions)| {
        let mut options = cluster.options();
        change(&mut options);
        let error = push(&options, &AtomicBool::new(false), &mut |_| {}).unwrap_err();
        assert!(error.is_usage(), "{error}");
    };
    refused(|options| options.to.push("a".to_owned()));
    refused(|options| options.to.clear());
    refused(|options| options.to.push("x/y".to_owned()));
    refused(|options| options.racks = Some(vec![vec!["z".to_owned()]]));
    refused(|options| options.paths.push(options.paths[0].clone()));
}
