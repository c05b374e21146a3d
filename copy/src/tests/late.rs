//! Receivers that come late: they are served by those that have the blocks.

use std::{
    collections::HashMap,
    fs,
    net::TcpListener,
    sync::{atomic::AtomicBool, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, unbounded};
use squall_fabric::{
    NodeId, Time,
    shm::{ShmConfig, ShmFabric},
};
use squall_rdmc::{Buffer, Event, GroupConfig, GroupId, bulk::Bulk};
use squall_runtime::Spin;
use squall_services::ControlStream;

use super::{
    super::{
        PushOptions, PushProgress, PushReport,
        control::{ControlLink, Heard, Over, Report, ToReceiver, ToSource, fabric_cluster, listen, node_id},
        plan::Holding,
        push,
        sink::{Lacking, Outcome},
    },
    network::{Cluster, Way, write},
    pair::noise,
};

/// The bytes of what is copied. Those before the receiver comes are more than what one group moves at most then.
const BYTES: usize = 3_000_000;

/// Pushes to all receivers of a cluster, and to `late`, which comes when the others have begun to write. `watch` sees
/// the progress, with the late one last.
fn push_with_late(
    cluster: &mut Cluster,
    options: PushOptions,
    late: &'static str,
    watch: impl FnMut(&Cluster, &PushProgress) + Send,
) -> (PushOptions, PushReport) {
    fs::create_dir(cluster.at(late, "")).unwrap();
    let mut options = options;
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

/// Pushes so with the usual options.
fn push_late(
    cluster: &mut Cluster,
    late: &'static str,
    watch: impl FnMut(&Cluster, &PushProgress) + Send,
) -> (PushOptions, PushReport) {
    let options = cluster.options();
    push_with_late(cluster, options, late, watch)
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
    let (_, report) = push_late(&mut cluster, "b", |_, _| {});
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
        let (options, report) = push_late(&mut cluster, "c", |_, _| {});
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
        // Of two that have the same, the first sends.
        let (options, report) = push_late(&mut cluster, "c", |cluster, progress| {
            if only_the_last_lacks(progress) && !std::mem::replace(&mut was_in_time, true) {
                cluster.stop("a");
            }
        });
        assert!(was_in_time, "{report:?}");
        let errors: Vec<bool> = report.receivers.iter().map(|at| at.error.is_some()).collect();
        assert_eq!(errors, [true, false, false], "{report:?}");
        // Interrupted segments are resumed by the source.
        let by_source = report.multicasts - report.relayed;
        assert!(by_source <= BYTES.div_ceil(options.segment_bytes) as u64 + 2 + 4, "{report:?}");
        cluster.assert_copied("file");
    }
}

#[test]
fn a_file_that_was_changed_after_it_was_put_in_place_is_sent_by_the_source() {
    for mut cluster in Cluster::by_rdmc(1) {
        write(&cluster.from("file"), 8, BYTES);
        let mut was_in_time = false;
        let (_, report) = push_late(&mut cluster, "b", |cluster, progress| {
            let path = cluster.at("a", "file");
            if only_the_last_lacks(progress) && path.exists() && !std::mem::replace(&mut was_in_time, true) {
                fs::write(path, noise(9, BYTES)).unwrap();
            }
        });
        assert!(was_in_time && report.is_complete(), "{report:?}");
        assert!(fs::read(cluster.at("b", "file")).unwrap() == noise(8, BYTES));
    }
}

/// A receiver `b` that lacks file 0, takes part in groups, and in one in which it is to send does what it is told
/// instead.
struct WrongRoot {
    me: u32,
    bulk: Bulk<ShmFabric>,
    link: ControlLink,
    heard: Receiver<Heard<ToReceiver>>,
    /// The segment after the last of each group.
    ends: HashMap<GroupId, u64>,
    as_root: fn(&mut Bulk<ShmFabric>, GroupConfig),
    /// Whether it is to send, or was.
    was_root: bool,
}

impl WrongRoot {
    /// Starts it. The thread returns whether it was to send.
    fn start(cluster: &Cluster, as_root: fn(&mut Bulk<ShmFabric>, GroupConfig)) -> JoinHandle<bool> {
        let listener = listen(cluster.name(), "b").unwrap();
        let me = node_id(cluster.name(), "b");
        let fabric = ShmFabric::open(ShmConfig::new(fabric_cluster(cluster.name()), me)).unwrap();
        thread::spawn(move || {
            let bulk = Bulk::new(fabric, Spin::Never, 2);
            let (hear, heard) = unbounded();
            let stream = ControlStream::local(NodeId(0), listener.accept().unwrap());
            let link = ControlLink::start(stream, 0, hear, bulk.waker()).unwrap();
            let ends = HashMap::new();
            WrongRoot { me: me.0, bulk, link, heard, ends, as_root, was_root: false }.run()
        })
    }

    fn run(mut self) -> bool {
        let (mut events, mut signed) = (Vec::new(), Instant::now());
        loop {
            let mut busy = self.bulk.turn(&mut events);
            events.drain(..).for_each(|(id, event)| self.on_event(id, event));
            while let Ok(Heard { message, .. }) = self.heard.try_recv() {
                busy = true;
                let Ok(message) = message else { return self.was_root };
                self.on_message(message);
            }
            if signed.elapsed() > Duration::from_millis(100) {
                signed = Instant::now();
                self.say(&ToSource::Progress { written: 1 });
            }
            if !busy {
                self.bulk.rest(Time::boot_clock() + Duration::from_millis(10));
            }
        }
    }

    fn say(&mut self, word: &ToSource) {
        // A source that has gone is noticed by what is heard.
        let _ = self.link.send(word);
    }

    fn over(&mut self, id: GroupId, failure: Option<&str>) {
        self.bulk.remove(id);
        let holding = Holding { segments: self.ends[&id], ..Holding::default() };
        let failure = failure.map(|reason| (None, reason.to_owned()));
        self.say(&ToSource::Over(Over { instance: id.instance, holding, failure }));
    }

    fn on_event(&mut self, id: GroupId, event: Event) {
        match event {
            Event::Incoming { message, max_bytes, .. } => {
                let buffer = Buffer::register(self.bulk.fabric(), max_bytes).unwrap();
                self.bulk.group(id).unwrap().accept(message, buffer).unwrap();
            }
            Event::Destroyed => self.over(id, None),
            Event::Failed(failure) => self.over(id, Some(&failure.reason)),
            Event::Connected | Event::Received { .. } | Event::Released { .. } => {}
        }
    }

    fn on_message(&mut self, message: ToReceiver) {
        match message {
            ToReceiver::Offer(_) => self.say(&ToSource::Ready(Lacking { whole: vec![0], ..Lacking::default() })),
            ToReceiver::Join(join) => {
                let config = join.config().unwrap();
                self.ends.insert(join.id(), join.end);
                if join.members[0] == self.me {
                    self.was_root = true;
                    (self.as_root)(&mut self.bulk, config);
                } else {
                    self.bulk.create(config).unwrap();
                }
            }
            ToReceiver::EndGroup { instance } => {
                let id = *self.ends.keys().find(|id| id.instance == instance).unwrap();
                self.over(id, Some("the source ended it"));
            }
            ToReceiver::Finish => self.say(&ToSource::Done(Report { outcome: Outcome::default(), moved: 0 })),
            _ => {}
        }
    }
}

#[test]
fn a_receiver_that_sends_nothing_or_too_little_costs_the_late_one_nothing() {
    type AsRoot = fn(&mut Bulk<ShmFabric>, GroupConfig);
    let nothing: AsRoot = |_, _| {};
    let ends_at_once: AsRoot = |bulk, config| {
        let id = config.id;
        bulk.create(config).unwrap();
        bulk.group(id).unwrap().destroy().unwrap();
    };
    for as_root in [nothing, ends_at_once] {
        let mut cluster = Cluster::by(Way::SharedMemory, 0);
        write(&cluster.from("file"), 8, BYTES);
        let wrong = WrongRoot::start(&cluster, as_root);
        // Longer than the interval of signs of life.
        let silence = Duration::from_millis(1500);
        let options = PushOptions { to: vec!["b".to_owned()], silence, ..cluster.options() };
        let (_, report) = push_with_late(&mut cluster, options, "c", |_, _| {});
        assert!(report.is_complete() && report.relayed == 0, "{report:?}");
        assert!(wrong.join().unwrap(), "it was to send");
        cluster.assert_copied("file");
    }
}
