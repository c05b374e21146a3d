//! The promises of a log's parts to their callers.

use fastrand::Rng;
use squall_fabric::NodeId;
use squall_membership::Epoch;
use squall_ordered::{
    Payload,
    log::{AppendError, End, Hlc, MAX_PAYLOAD_BYTES, Position, ReadError, SimStorage, ViewRecord, WriteError, import},
};

use super::model::{Kept, open, options, position, read_all, records, write};

fn view() -> ViewRecord {
    ViewRecord { complete: vec![NodeId(1), NodeId(2)], ..ViewRecord::default() }
}

#[test]
fn records_are_taken_in_order_only() {
    let mut appender = open(&SimStorage::new(1), options(8192, 4096)).log.appender();
    let mut message = |epoch, seq, time| {
        let end = appender.end();
        let result = appender.append(position(epoch, seq), Hlc(time), NodeId(1), Payload::kept(b"x"));
        (result, AppendError::Order { position: position(epoch, seq), time: Hlc(time), end })
    };
    let (result, refused) = message(1, 0, 5);
    assert_eq!(result, Err(refused), "no view");
    appender.append_view(Epoch(1), Hlc(5), &view()).expect("it is the first");
    let mut message = |epoch, seq, time| {
        let end = appender.end();
        let result = appender.append(position(epoch, seq), Hlc(time), NodeId(1), Payload::kept(b"x"));
        (result, AppendError::Order { position: position(epoch, seq), time: Hlc(time), end })
    };
    let end = End { position: position(1, 5), version: 1, time: Hlc(6) };
    assert_eq!(message(1, 4, 6).0, Ok(end), "turns may be missing");
    for (what, (result, refused)) in [
        ("the same place", message(1, 4, 7)),
        ("the same time", message(1, 5, 6)),
        ("a later epoch without its view", message(2, 0, 7)),
    ] {
        assert_eq!(result, Err(refused), "{what}");
    }
    assert!(appender.append_view(Epoch(1), Hlc(9), &view()).is_err(), "a view twice");
    appender.append_view(Epoch(3), Hlc(6), &view()).expect("a view may have the time of the record before");
}

#[test]
fn what_is_too_long_is_refused_before_anything_is_copied() {
    let mut appender = open(&SimStorage::new(1), options(8192, 4096)).log.appender();
    appender.append_view(Epoch(1), Hlc(5), &view()).expect("it is the first");
    let huge = vec![0; MAX_PAYLOAD_BYTES + 1];
    let refused = appender.append(position(1, 0), Hlc(6), NodeId(1), Payload::kept(&huge));
    assert_eq!(refused, Err(AppendError::TooLong { bytes: huge.len() }));
}

#[test]
fn one_batch_fills_while_another_is_written() {
    let mut log = open(&SimStorage::new(1), options(8192, 200)).log;
    let mut appender = log.appender();
    let all = records(&mut Rng::with_seed(2), 3);
    all[0].append_to(&mut appender).expect("it is the first");
    let mut first = appender.take_batch().expect("a record");
    all[1].append_to(&mut appender).expect("the other batch is empty");
    assert!(appender.take_batch().is_none(), "the first is under way");
    assert_eq!(log.commit(&mut first).expect("the disk is well"), all[0].reached());
    appender.give_back(first);
    let mut second = appender.take_batch().expect("a record");
    assert_eq!(log.commit(&mut second).expect("the disk is well"), all[1].reached());
}

#[test]
fn a_batch_takes_any_record_until_it_is_full() {
    let mut appender = open(&SimStorage::new(1), options(8192, 1000)).log.appender();
    appender.append_view(Epoch(1), Hlc(1), &view()).expect("it is the first");
    assert!(appender.has_room());
    let large = vec![7; 50_000];
    appender.append(position(1, 0), Hlc(2), NodeId(1), Payload::kept(&large)).expect("the batch is not full");
    assert!(!appender.has_room());
    let refused = appender.append(position(1, 1), Hlc(3), NodeId(1), Payload::kept(b"x"));
    assert_eq!(refused, Err(AppendError::Full { bytes: 80 }));
    appender.take_batch().expect("two records");
    appender.append(position(1, 1), Hlc(3), NodeId(1), Payload::kept(b"x")).expect("the batch is empty");
}

#[test]
fn a_record_larger_than_a_segment_has_one_of_its_own() {
    let storage = SimStorage::new(1);
    let mut log = open(&storage, options(8192, 1000)).log;
    let mut appender = log.appender();
    appender.append_view(Epoch(1), Hlc(1), &view()).expect("it is the first");
    let mut batch = appender.take_batch().expect("a record");
    log.commit(&mut batch).expect("the disk is well");
    appender.give_back(batch);
    log.prepare().expect("the disk is well");
    let large = vec![7; 50_000];
    appender.append(position(1, 0), Hlc(2), NodeId(1), Payload::kept(&large)).expect("the batch is empty");
    log.commit(&mut appender.take_batch().expect("a record")).expect("the disk is well");
    let (found, _) = read_all(&open(&storage, options(8192, 1000)).log);
    assert_eq!(found.len(), 2);
    assert_eq!(storage.image()["segment-0000000001"].len(), 57_344);
}

#[test]
fn zeros_are_written_ahead_of_small_batches_once_for_many_of_them() {
    // The changes of a commit on the disk: its batch, a sync, and the zeros.
    let changes = |payload: usize| {
        let storage = SimStorage::new(1);
        let mut log = open(&storage, options(4 << 20, 4 << 20)).log;
        let mut appender = log.appender();
        appender.append_view(Epoch(1), Hlc(1), &view()).expect("it is the first");
        let mut commits = Vec::new();
        for n in 0..4 {
            appender.append(position(1, n), Hlc(2 + n), NodeId(1), Payload::kept(&vec![7; payload])).expect("it fits");
            let mut batch = appender.take_batch().expect("a record");
            let before = storage.changes();
            log.commit(&mut batch).expect("the disk is well");
            commits.push(storage.changes() - before);
            appender.give_back(batch);
        }
        commits.split_off(1)
    };
    assert_eq!(changes(1000), [2, 2, 2], "all within the first zeros");
    assert_eq!(changes(100 << 10), [2, 3, 2], "one passes them");
    assert_eq!(changes(300 << 10), [2, 2, 2], "none is small");
}

#[test]
fn a_batch_from_before_a_cut_is_refused() {
    let mut log = open(&SimStorage::new(1), options(1 << 20, 4096)).log;
    let all = records(&mut Rng::with_seed(4), 10);
    write(&mut log, &all[..9], 3);
    let mut appender = log.appender();
    all[9].append_to(&mut appender).expect("it comes next");
    log.cut_to(all[4].end()).expect("the disk is well");
    let error = log.commit(&mut appender.take_batch().expect("a record")).expect_err("it does not follow");
    assert!(matches!(error, WriteError::NotNext { .. }), "{error}");
}

#[test]
fn a_reader_sees_the_log_as_it_was() {
    let mut log = open(&SimStorage::new(1), options(8192, 4096)).log;
    let all = records(&mut Rng::with_seed(4), 60);
    write(&mut log, &all[..30], 3);
    let mut reader = log.read(Position::START, Position::MAX).expect("all of it");
    write(&mut log, &all[30..], 3);
    let mut found = Vec::new();
    while let Some(record) = reader.next_record().expect("it is well") {
        found.push(Kept::of(&record));
    }
    assert_eq!(found, all[..30]);
}

#[test]
fn what_was_trimmed_is_an_error_that_says_so() {
    let mut log = open(&SimStorage::new(1), options(8192, 4096)).log;
    let all = records(&mut Rng::with_seed(4), 100);
    write(&mut log, &all, 3);
    let mut reader = log.read(Position::START, Position::MAX).expect("all of it");
    let begin = log.trim_before(all[80].end()).expect("the disk is well").position;
    assert!(begin > all[20].end() && begin <= all[80].end());
    let error = reader.next_record().expect_err("its first segment is gone");
    assert!(matches!(error, ReadError::Gone { .. }), "{error}");
    let error = log.read(Position::START, Position::MAX).expect_err("it begins later");
    assert!(matches!(error, ReadError::Trimmed { .. }), "{error}");
    let error = log.at_time(Hlc(1)).expect_err("it begins later");
    assert!(matches!(error, ReadError::NotYet { .. }), "{error}");
    let error = log.at_version(1).expect_err("it begins later");
    assert!(matches!(error, ReadError::OldVersion { .. }), "{error}");
}

#[test]
fn a_log_begins_anew_behind_a_state_from_elsewhere() {
    let storage = SimStorage::new(1);
    let all = records(&mut Rng::with_seed(4), 40);
    let mut log = open(&storage, options(8192, 4096)).log;
    write(&mut log, &all[..10], 3);
    log.begin_anew(all[19].reached()).expect("the disk is well");
    write(&mut log, &all[20..], 3);
    let log = open(&storage, options(8192, 4096)).log;
    assert_eq!((log.begin(), read_all(&log)), (all[19].reached(), (all[20..].to_vec(), vec![])));
}

#[test]
fn beginning_anew_leaves_the_old_log_or_the_new_one() {
    let all = records(&mut Rng::with_seed(4), 40);
    let mut step = 0;
    loop {
        let storage = SimStorage::new(step);
        let mut log = open(&storage, options(8192, 4096)).log;
        write(&mut log, &all[..20], 3);
        storage.crash_at(storage.changes() + step);
        let begun = log.begin_anew(all[29].reached());
        let crashed = storage.has_crashed();
        storage.restart();
        let log = open(&storage, options(8192, 4096)).log;
        let is_new = log.begin() == all[29].reached();
        let expected = if is_new { vec![] } else { all[..20].to_vec() };
        assert_eq!(read_all(&log), (expected, vec![]), "a crash in change {step}");
        assert!(is_new || begun.is_err(), "change {step}");
        if !crashed {
            break;
        }
        step += 1;
    }
    assert!(step > 5);
}

#[test]
fn a_shorter_log_catches_up_from_a_longer_one() {
    let all = records(&mut Rng::with_seed(6), 80);
    let (mut longer, mut shorter) =
        (open(&SimStorage::new(1), options(8192, 4096)).log, open(&SimStorage::new(2), options(16384, 999)).log);
    write(&mut longer, &all, 6);
    write(&mut shorter, &all[..33], 2);
    let mut from = Some(shorter.persisted().position);
    while let Some(position) = from {
        let export = longer.export(position, Position::MAX, 2000).expect("it is well");
        let missing: Vec<Kept> = import(&export.bytes).expect("as it was sent").iter().map(Kept::of).collect();
        write(&mut shorter, &missing, 50);
        from = export.rest;
    }
    assert_eq!(read_all(&shorter).0, all);
}

#[test]
fn what_comes_from_elsewhere_is_checked() {
    let mut log = open(&SimStorage::new(1), options(1 << 20, 4096)).log;
    write(&mut log, &records(&mut Rng::with_seed(6), 5), 6);
    let good = log.export(Position::START, Position::MAX, usize::MAX).expect("it is well").bytes;
    for bit in 0..8 * good.len() {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(import(&bad).is_err(), "bit {bit}");
    }
    assert!(import(&good[..good.len() - 1]).is_err());
}
