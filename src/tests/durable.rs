//! Durable groups: messages must be on disk before any caller hears of them.

use std::{sync::mpsc::TryRecvError, thread, time::Instant};

use squall_fabric::sync::Lock;
use squall_membership::{ClusterId, Rank};
use squall_ordered::{
    Payload,
    log::{Body, Hlc, Log, Options, Position, ViewRecord},
};

use super::*;
use crate::{
    calls::error::{Outcome, SubmitError, Unavailable},
    durable::{
        disk::Disk,
        storage_thread::{StorageThread, WriterPark},
    },
};

/// An empty log on an empty disk.
pub(super) fn log() -> (Arc<LogWriter>, DiskLog, SimStorage) {
    open(SimStorage::new(1), 4096)
}

fn open(disk: SimStorage, batch_bytes: usize) -> (Arc<LogWriter>, DiskLog, SimStorage) {
    let options = Options { batch_bytes, ..Options::new(ClusterId(7), SHARD) };
    let log = Log::open(Disk::Simulated(disk.clone()), options, &mut fastrand::Rng::with_seed(1)).unwrap().log;
    (Arc::new(LogWriter::new(&log, None, Waker::new(|| ()))), log, disk)
}

fn solo() -> Solo<Ledger> {
    Solo::new(|group| _ = group.mode(Mode::Durable))
}

/// The records of a log: for a view its epoch, for a message its version and time.
fn records(log: &DiskLog) -> Vec<(u64, u64)> {
    let mut reader = log.read(Position::START, Position::MAX).unwrap();
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        records.push(match record.body {
            Body::View(_) => (record.position.epoch.0, 0),
            Body::Message { .. } => (record.version, record.time.0),
        });
    }
    records
}

#[test]
fn a_reply_waits_until_its_message_is_on_disk() {
    let mut solo = solo();
    let mut submit = solo.group.submit(&Entry::Add(5));
    solo.settle();
    assert_eq!(solo.control.counts().applied, 1);
    assert_eq!(poll(&mut submit), Poll::Pending, "it is applied, and not on disk");
    assert!(solo.write());
    solo.settle();
    assert_eq!(poll(&mut submit), Poll::Ready(Ok(5)));
    // The thread that takes the first snapshot may have jobs for the log by now, and they write no records.
    solo.write();
    let (log_writer, ..) = solo.log.as_ref().unwrap();
    assert_eq!(log_writer.counts().records, 2, "the view's and the message's");
}

#[test]
fn a_read_waits_until_what_it_saw_is_on_disk() {
    let mut solo = solo();
    solo.write();
    solo.settle();
    assert_eq!(poll(&mut solo.group.read(|ledger| ledger.sum)), Poll::Pending);
    solo.settle();
    solo.group.send(&Entry::Add(5)).wait().unwrap();
    solo.settle();
    let mut before = solo.group.read(|ledger| ledger.sum);
    solo.settle();
    assert_eq!(poll(&mut before), Poll::Pending);
    solo.group.send(&Entry::Add(5)).wait().unwrap();
    solo.settle();
    solo.write();
    solo.settle();
    assert_eq!(poll(&mut before), Poll::Ready(Ok(5)), "as it was when it was seen");
}

/// A log that ends before a view has nothing to say of that view: by its end alone it would be an older copy than the
/// logs of those that have the view's record.
#[test]
fn a_member_says_what_it_has_on_disk_once_the_view_s_record_is_there() {
    let mut solo = solo();
    solo.group.send(&Entry::Add(5)).wait().unwrap();
    solo.settle();
    solo.write();
    solo.settle();
    solo.next_view();
    solo.settle();
    let log_writer = Arc::clone(&solo.log.as_ref().unwrap().0);
    assert_eq!((log_writer.on_disk().position, log_writer.on_disk().version), (Position::new(Epoch(1), Seq(1)), 1));
    let said = |solo: &Solo<Ledger>| solo.shard.row(Rank(0)).persisted;
    assert_eq!(said(&solo), 0, "its disk has all messages, and not the view's record");
    solo.write();
    solo.settle();
    assert_eq!((said(&solo), log_writer.on_disk().position), (1, Position::new(Epoch(2), Seq(0))));
}

/// Otherwise the others could count it as complete, while its disk does not even name the view.
#[test]
fn a_member_of_an_empty_group_is_complete_once_its_disk_has_the_view_s_record() {
    let mut solo = solo();
    solo.settle();
    assert!(!solo.shard.is_kept(), "its disk has all messages, since there are none, and not the view's record");
    solo.write();
    solo.settle();
    assert!(solo.shard.is_kept());
}

#[test]
fn who_reads_by_itself_does_not_see_what_a_crash_could_undo() {
    let config = Config::builder("test", 1).members([1]).read_lease(Duration::from_millis(10)).storage("nowhere");
    let config = config.group("ledger", |group| _ = group.mode(Mode::Durable)).build().unwrap();
    let (group, spec) = new_group("ledger", Ledger::default(), &config);
    let mut solo = Solo::start(group, spec, &config, &[NodeId(1)], &[NodeId(1)]);
    solo.write();
    solo.settle();
    let mut first = solo.group.read(|ledger| ledger.sum);
    solo.settle();
    assert_eq!(poll(&mut first), Poll::Ready(Ok(0)));
    assert_eq!(poll(&mut solo.group.read(|ledger| ledger.sum)), Poll::Ready(Ok(0)), "under the lease, at once");
    solo.group.send(&Entry::Add(5)).wait().unwrap();
    solo.settle();
    assert_eq!(poll(&mut solo.group.read(|ledger| ledger.sum)), Poll::Pending);
    solo.write();
    solo.settle();
    assert_eq!(poll(&mut solo.group.read(|ledger| ledger.sum)), Poll::Ready(Ok(5)));
}

#[test]
fn versions_and_times_go_on_from_view_to_view() {
    let mut solo = solo();
    solo.clock.store(5_000_123, Ordering::Relaxed);
    solo.now = Time::from_nanos(5_000_123);
    for _ in 0..2 {
        solo.group.send(&Entry::Add(1)).wait().unwrap();
    }
    solo.settle();
    solo.next_view();
    solo.group.send(&Entry::Add(1)).wait().unwrap();
    solo.settle();
    solo.write();
    let (log_writer, log, _) = solo.log.as_ref().unwrap();
    assert_eq!(records(log), [(1, 0), (1, 5_000_000), (2, 5_000_001), (2, 0), (3, 5_000_002)]);
    let (epoch, view) = log_writer.view().unwrap();
    assert_eq!((epoch, view.ended, view.complete), (Epoch(2), Position::new(Epoch(1), Seq(2)), vec![NodeId(1)]));
    assert_eq!(log_writer.end().time, Hlc(5_000_002));
}

#[test]
fn what_is_logged_is_what_was_submitted() {
    let mut solo = solo();
    for text in ["a", "a text that is longer than a word", ""] {
        solo.group.send(&Entry::Text(text.to_owned())).wait().unwrap();
    }
    solo.settle();
    solo.write();
    let (_, log, _) = solo.log.as_ref().unwrap();
    let mut reader = log.read(Position::START, Position::MAX).unwrap();
    let mut texts = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        let Body::Message { payload, .. } = record.body else { continue };
        let mut aligned = rkyv::util::AlignedVec::<16>::new();
        aligned.extend_from_slice(payload);
        match rkyv::access::<Archived<Entry>, rkyv::rancor::Error>(&aligned).unwrap() {
            Archived::<Entry>::Text(text) => texts.push(text.as_str().to_owned()),
            Archived::<Entry>::Add(_) => panic!("no number was sent"),
        }
    }
    assert_eq!(texts, solo.group.peek(|ledger| ledger.texts.clone()).wait().unwrap());
}

#[test]
fn nothing_is_acknowledged_after_a_sync_that_failed() {
    let mut solo = solo();
    solo.write();
    solo.settle();
    let (log_writer, _, disk) = solo.log.as_ref().unwrap();
    let log_writer = Arc::clone(log_writer);
    disk.fail_sync(0);
    let mut submit = solo.group.submit(&Entry::Add(5));
    solo.settle();
    solo.write();
    solo.settle();
    assert_eq!(poll(&mut submit), Poll::Pending);
    assert!(log_writer.failure().unwrap().contains("syncing"), "{:?}", log_writer.failure());
    assert_eq!(
        log_writer.ask(|log| log.persisted()).try_recv(),
        Err(TryRecvError::Disconnected),
        "no caller waits for it"
    );
    solo.write();
    solo.end(&EndReason::Storage("its disk failed".to_owned()), Fate::Unknown);
    let Poll::Ready(Err(SubmitError::Ended { reason, outcome })) = poll(&mut submit) else { panic!("it has ended") };
    assert_eq!(outcome, Outcome::Unknown { held_by: Vec::new() });
    assert!(matches!(reason, EndReason::Storage(_)));
}

#[test]
fn delivery_waits_for_a_disk_that_is_behind_and_memory_stays_bounded() {
    let mut solo = solo();
    let text = "x".repeat(1000);
    let mut submits: Vec<_> = (0..100).map(|_| solo.group.submit(&Entry::Text(text.clone()))).collect();
    solo.settle();
    let applied = solo.control.counts().applied;
    assert!((4..10).contains(&applied), "{applied} of 1 KiB fit into a batch of 4 KiB");
    while solo.write() {
        solo.settle();
    }
    assert_eq!(solo.control.counts().applied, 100);
    assert!(submits.iter_mut().all(|submit| poll(submit).is_ready()));
}

#[test]
fn who_is_dropped_does_not_know_whether_what_it_delivered_is_on_all_disks() {
    let mut solo = solo();
    let mut submit = solo.group.submit(&Entry::Add(5));
    solo.settle();
    let why = Unavailable::Dropped { epoch: Epoch(2) };
    solo.shard.wedge();
    solo.task.change(outside(Vec::new(), why.clone()));
    let outcome = Outcome::Unknown { held_by: Vec::new() };
    assert_eq!(poll(&mut submit), Poll::Ready(Err(SubmitError::Unavailable { why, outcome })));
}

#[test]
fn who_is_dropped_does_not_know_whether_what_others_deliver_is_on_any_disk() {
    let config = config(|group| _ = group.mode(Mode::Durable));
    let (group, spec) = new_group("ledger", Ledger::default(), &config);
    let nodes = [NodeId(1), NodeId(2)];
    let mut solo = Solo::start(group, spec, &config, &nodes, &nodes);
    let mut submit = solo.group.submit(&Entry::Add(5));
    solo.step_shard();
    solo.shard.wedge();
    let undelivered = solo.shard.undelivered().unwrap();
    let why = Unavailable::Dropped { epoch: Epoch(2) };
    solo.task.change(outside(with_fate(undelivered, Fate::Delivered), why.clone()));
    let outcome = Outcome::Unknown { held_by: Vec::new() };
    assert_eq!(poll(&mut submit), Poll::Ready(Err(SubmitError::Unavailable { why, outcome })));
}

#[test]
fn what_was_globally_persisted_in_a_log_is_not_in_the_one_that_takes_its_place() {
    let mut solo = solo();
    let (log_writer, ..) = solo.log.as_ref().unwrap();
    let log_writer = Arc::clone(log_writer);
    let mut submit = solo.group.submit(&Entry::Add(5));
    solo.settle();
    solo.write();
    solo.settle();
    assert_eq!((poll(&mut submit), log_writer.globally_persisted()), (Poll::Ready(Ok(5)), 1));
    let begun = log_writer.change_end(|log| log.begin_anew(squall_ordered::log::End::START).map(|_| None));
    solo.write();
    assert_eq!(begun.try_recv().map(|end| end.version), Ok(0));
    assert_eq!(log_writer.globally_persisted(), 0);
}

#[test]
fn a_job_sees_all_that_was_appended_before_it_was_asked_for() {
    let mut solo = solo();
    solo.group.send(&Entry::Add(1)).wait().unwrap();
    solo.settle();
    let (log_writer, ..) = solo.log.as_ref().unwrap();
    let answer = log_writer.ask(|log| log.persisted().version);
    solo.write();
    assert_eq!(answer.try_recv(), Ok(1));
}

/// Room that comes between the attempts to write a first batch lets no job overtake a second one.
#[test]
fn a_job_follows_all_that_was_appended_before_it_while_that_waits_for_room() {
    for looks in 1..4 {
        let (log_writer, mut log, disk) = log();
        let append = |seq| {
            let at = Position::new(Epoch(1), Seq(seq));
            let payload = [1; 3000];
            log_writer.append().message(at, Hlc(0), NodeId(1), Payload::kept(&payload)).unwrap().version
        };
        log_writer.append().view(Epoch(1), &ViewRecord::default()).unwrap();
        disk.limit_for(disk.used(), looks);
        append(0);
        log_writer.write(&mut log);
        assert!(log_writer.no_room().is_some(), "{looks}");
        let last = append(1);
        let behind = log_writer.ask(|log| log.persisted().version);
        let until = Instant::now() + Duration::from_secs(20);
        let found = loop {
            assert!(Instant::now() < until, "{looks}");
            log_writer.write(&mut log);
            match behind.try_recv() {
                Err(TryRecvError::Empty) => {}
                found => break found,
            }
        };
        assert_eq!((found, last), (Ok(2), 2), "{looks}");
    }
}

/// A log that is pumped has no thread that could wait.
#[test]
fn a_job_that_its_caller_has_given_up_is_not_done_later_and_others_keep_their_order() {
    let (log_writer, log, disk) = log();
    let log = Arc::new(Lock::new(log));
    let (of, writes) = (Arc::downgrade(&log_writer), Arc::clone(&log));
    log_writer.pump(Box::new(move || _ = of.upgrade().unwrap().write(&mut writes.lock())));
    let done = Arc::new(Lock::new(Vec::new()));
    let note = |what| {
        let done = Arc::clone(&done);
        move |_: &mut DiskLog| done.lock().push(what)
    };
    log_writer.append().view(Epoch(1), &ViewRecord::default()).unwrap();
    disk.limit(disk.used());
    drop(log_writer.ask(note("first")));
    assert_eq!(log_writer.run(note("given up")), None);
    drop(log_writer.ask(note("second")));
    assert_eq!(log_writer.run_at_once(note("at once")), Some(()));
    assert_eq!(*done.lock(), ["at once"]);
    disk.limit(u64::MAX);
    log_writer.write(&mut log.lock());
    assert_eq!(*done.lock(), ["at once", "first", "second"]);
}

#[test]
fn a_log_that_is_cut_goes_on_behind_the_cut() {
    let mut solo = solo();
    for _ in 0..3 {
        solo.group.send(&Entry::Add(1)).wait().unwrap();
    }
    solo.settle();
    let (log_writer, mut log, disk) = solo.log.take().unwrap();
    let cut = log_writer.change_end(|log| {
        log.cut_to(Position::new(Epoch(1), Seq(1)))?;
        Ok(None)
    });
    log_writer.write(&mut log);
    assert_eq!(cut.try_recv().unwrap().version, 1);
    let end = log_writer.append().message(Position::new(Epoch(1), Seq(1)), Hlc(0), NodeId(1), Payload::kept(b"other"));
    assert_eq!(end.unwrap().version, 2);
    log_writer.write(&mut log);
    assert_eq!(log_writer.on_disk().version, 2);
    drop(log);
    let (_, log, _) = open(disk, 4096);
    assert_eq!(log.persisted().version, 2);
}

#[test]
fn a_log_on_disk_tells_how_far_it_was_acknowledged_and_catches_up_when_it_is_quiet() {
    let (log_writer, mut log, disk) = log();
    log_writer.append().view(Epoch(1), &ViewRecord::default()).unwrap();
    for version in 1..=3 {
        let at = Position::new(Epoch(1), Seq(version));
        log_writer.append().message(at, Hlc(0), NodeId(1), Payload::kept(b"one")).unwrap();
        log_writer.write(&mut log);
        // As at a member that knows no better.
        log_writer.set_globally_persisted(version);
    }
    let marked = || open(disk.clone(), 4096).1.acknowledged();
    assert_eq!(marked(), 2, "with the last record came what was known before it");
    assert!(!log_writer.save_acknowledged(&mut log), "there is no more to note");
    assert_eq!(marked(), 3);
}

#[test]
fn a_log_that_is_closed_tells_all_that_was_acknowledged() {
    let disk = SimStorage::new(1);
    let (_, log, _) = open(disk.clone(), 4096);
    let park = WriterPark::default();
    let log_writer = Arc::new(LogWriter::new(&log, None, park.waker()));
    let thread = StorageThread::start(vec![(Arc::clone(&log_writer), log)], park, Waker::new(|| ())).unwrap();
    log_writer.append().view(Epoch(1), &ViewRecord::default()).unwrap();
    log_writer.append().message(Position::new(Epoch(1), Seq(0)), Hlc(0), NodeId(1), Payload::kept(b"one")).unwrap();
    assert_eq!(log_writer.ask(|log| log.persisted().version).recv(), Ok(1));
    log_writer.set_globally_persisted(1);
    drop(thread);
    assert_eq!(open(disk, 4096).1.acknowledged(), 1);
}

#[test]
fn a_quiet_log_is_marked_also_beside_one_that_is_written() {
    let park = WriterPark::default();
    let logs = [1, 2].map(|seed| {
        let log = open(SimStorage::new(seed), 4096).1;
        (Arc::new(LogWriter::new(&log, None, park.waker())), log)
    });
    let [quiet, busy] = [0, 1].map(|nth: usize| Arc::clone(&logs[nth].0));
    let _thread = StorageThread::start(logs.into(), park, Waker::new(|| ())).unwrap();
    let append = |log_writer: &LogWriter, seq| {
        log_writer
            .append()
            .message(Position::new(Epoch(1), Seq(seq)), Hlc(0), NodeId(1), Payload::kept(b"one"))
            .unwrap();
    };
    for log_writer in [&quiet, &busy] {
        log_writer.append().view(Epoch(1), &ViewRecord::default()).unwrap();
        append(log_writer, 0);
    }
    assert_eq!(quiet.ask(|log| log.persisted().version).recv(), Ok(1));
    quiet.set_globally_persisted(1);
    let until = Instant::now() + Duration::from_secs(20);
    let mut seq = 0;
    while quiet.ask(|log| log.acknowledged()).recv() != Ok(1) {
        assert!(Instant::now() < until, "nothing is noted while another log is written");
        seq += 1;
        append(&busy, seq);
        thread::sleep(Duration::from_millis(50));
    }
}
