//! The work of an operator on the directories of logs: reading them, cutting them, and repairing one from the others.

use std::ops::ControlFlow;

use fastrand::Rng;
use squall_ordered::log::{
    Aside, Body, CutAt, Hlc, Log, LogItem, OfflineError, Options, Position, Repaired, SimStorage, Skips,
    SnapshotWriter, cut, read, repair, skip,
};

use super::model::{Kept, KeptBody, Seed, any_options, open, options, read_all, records, write};
use crate::seeds::seeds;

/// A member's log that has all of these records, and knows that they were acknowledged.
fn copy(seed: u64, rng: &mut Rng, all: &[Kept]) -> (SimStorage, Options) {
    let (storage, options) = (SimStorage::new(seed), any_options(rng));
    let mut log = open(&storage, options).log;
    for part in all.chunks(rng.usize(1..20)) {
        write(&mut log, part, rng.usize(1..9));
        log.set_acknowledged(u64::MAX);
    }
    if rng.bool() {
        log.save_acknowledged().expect("the disk is well");
    }
    (storage, options)
}

/// Flips bits in records, and overwrites the end with zeros.
fn damage(storage: &SimStorage, rng: &mut Rng) -> SimStorage {
    let mut image = storage.image();
    let mut segments: Vec<_> = image.iter_mut().filter(|(name, _)| name.starts_with("segment-")).collect();
    for _ in 0..rng.usize(..4) {
        let nth = rng.usize(..segments.len());
        let file = &mut segments[nth].1;
        let used = file.iter().rposition(|&byte| byte != 0).unwrap_or(0) + 1;
        if used > 4096 {
            file[rng.usize(4096..used)] ^= 1 << rng.u32(..8);
        }
    }
    if rng.bool()
        && let Some((_, file)) = segments.iter_mut().rev().find(|(_, file)| file[4096..].iter().any(|&byte| byte != 0))
    {
        let used = file.iter().rposition(|&byte| byte != 0).expect("it has some") + 1;
        let from = rng.usize(4096..used);
        file[from..used].fill(0);
    }
    SimStorage::from_image(rng.u64(..), &image)
}

fn readable(storage: &SimStorage) -> Vec<Kept> {
    read_all(&Log::look(storage.clone(), false).expect("it can be read").log).0
}

fn repair_with(mine: &SimStorage, options: Options, others: &[SimStorage]) -> Result<Repaired, OfflineError> {
    let copies: Vec<_> =
        others.iter().map(|other| Log::look(other.clone(), false).expect("it can be read").log).collect();
    let mut log = Log::open(mine.clone(), options, &mut Rng::with_seed(mine.changes()))?.log;
    Ok(log.repair_from(&copies)?)
}

/// Checks that a log, once repaired, lacks only records that no copy has, and names them.
fn check(storage: &SimStorage, options: Options, all: &[Kept], copies: &[Vec<Kept>]) {
    let opened = open(storage, options);
    let (found, log) = (read_all(&opened.log).0, &opened.log);
    let verified = log.verify(|_| {}).expect("it can be read");
    for damage in &verified.damage {
        let Some(before) = damage.before else { continue };
        let lost = all.iter().filter(|record| record.end() > damage.after && record.end() <= before);
        assert!(lost.clone().count() > 0, "{damage}");
        assert!(lost.clone().any(|record| copies.iter().all(|copy| !copy.contains(record))), "{damage}");
    }
    for record in all.iter().filter(|record| record.version <= log.acknowledged() && !found.contains(record)) {
        let within = verified
            .damage
            .iter()
            .any(|damage| record.end() > damage.after && damage.before.is_none_or(|before| record.end() <= before));
        let missing = verified.missing.as_ref().is_some_and(|missing| missing.from <= record.version);
        let view = record.version == log.persisted().version;
        assert!(within || missing || view, "{} is not named", record.position);
    }
    if let Some(missing) = &verified.missing {
        let next = all.iter().find(|record| record.version == missing.from).expect("it was written");
        // A copy is not known to go on, behind its damage, where this log ends.
        let at_end = |copy: &&Vec<Kept>| {
            copy.contains(next) && all.iter().filter(|r| r.end() < next.end()).all(|r| copy.contains(r))
        };
        assert_eq!(copies.iter().find(at_end), None, "{missing}");
    }
    let mut rest = all.iter();
    assert!(found.iter().all(|record| rest.any(|written| written == record)), "in order, as they were written");
}

#[test]
fn any_good_copy_of_a_record_repairs_a_log() {
    let (mut repaired, mut left) = (0, 0);
    for seed in seeds(1000) {
        let _seed = Seed(seed);
        let mut rng = Rng::with_seed(seed);
        let count = rng.usize(2..60);
        let all = records(&mut rng, count);
        let (mine, options) = copy(seed, &mut rng, &all);
        let mine = damage(&mine, &mut rng);
        let others: Vec<SimStorage> = (0..rng.u64(1..3))
            .map(|nth| {
                let other = copy(seed + nth, &mut rng, &all).0;
                damage(&other, &mut rng)
            })
            .collect();
        let images: Vec<_> = others.iter().map(SimStorage::image).collect();
        let copies: Vec<Vec<Kept>> = others.iter().map(readable).collect();
        let crashes = rng.bool();
        if crashes {
            mine.crash_at(mine.changes() + rng.u64(..12));
        }
        let done = repair_with(&mine, options, &others);
        assert!(done.is_ok() || crashes, "{done:?}");
        mine.restart();
        let done = repair_with(&mine, options, &others).unwrap_or_else(|error| panic!("{error}"));
        repaired += done.replaced + done.appended;
        left += done.left.len();
        check(&mine, options, &all, &copies);
        assert!(others.iter().map(SimStorage::image).eq(images), "the others are not touched");
    }
    assert!(repaired > 100 && left > 10 || std::env::var_os("SQUALL_SEED").is_some(), "{repaired}, {left}");
}

/// A log of 20 records with a damage in the one with this number, and its records.
fn damaged(nth: usize) -> (SimStorage, Options, Vec<Kept>) {
    let (storage, options) = (SimStorage::new(1), options(1 << 20, 1 << 16));
    let all = records(&mut Rng::with_seed(5), 20);
    write(&mut open(&storage, options).log, &all, 4);
    let file = &storage.image()["segment-0000000000"];
    let mut at = 4096;
    for _ in 0..nth {
        let len = u32::from_le_bytes(file[at..at + 4].try_into().expect("4 bytes")) as usize;
        at += (64 + len).next_multiple_of(16);
    }
    storage.flip("segment-0000000000", at as u64 + 20, 3);
    (storage, options, all)
}

#[test]
fn an_operator_cuts_a_log_at_a_version_or_before_its_damage() {
    let rng = &mut Rng::with_seed(1);
    let (storage, options, all) = damaged(12);
    let before = all[11].version;
    let error =
        cut(storage.clone(), CutAt::Version(all[15].version), true, rng).expect_err("it is unknown what lies before");
    assert!(matches!(error, OfflineError::DamagedBefore { after, .. } if after == before), "{error}");
    let error = cut(storage.clone(), CutAt::Version(99), true, rng).expect_err("there is none");
    assert!(matches!(error, OfflineError::DamagedBefore { .. }), "{error}");

    let (done, _) = cut(storage.clone(), CutAt::Damage, true, rng).expect("the disk is well");
    assert_eq!((done.end, done.aside.as_deref()), (all[11].reached(), Some("aside-1")));
    let error = cut(storage.clone(), CutAt::Version(99), true, rng).expect_err("there is none");
    assert!(matches!(error, OfflineError::NotThere { last, .. } if last == before), "{error}");
    let kept = read_all(&Log::look(Aside::new(storage.clone(), "aside-1"), false).expect("it is a log").log);
    assert_eq!((kept.0, kept.1.len()), ([&all[..12], &all[13..]].concat(), 1));

    let version = all[5].version;
    let (done, _) = cut(storage.clone(), CutAt::Version(version), true, rng).expect("the disk is well");
    let last = all.iter().rposition(|record| record.version == version).expect("it is one");
    assert_eq!((done.end, done.aside.as_deref()), (all[last].reached(), Some("aside-2")));
    let opened = open(&storage, options);
    assert_eq!((opened.missing, opened.log.acknowledged() <= version), (None, true));
    assert_eq!(read_all(&opened.log), (all[..=last].to_vec(), vec![]));
}

#[test]
fn a_log_whose_last_record_is_damaged_goes_on_once_an_operator_cut_it() {
    let (storage, options, all) = damaged(19);
    let (done, _) = cut(storage.clone(), CutAt::Damage, true, &mut Rng::with_seed(1)).expect("the disk is well");
    assert_eq!((done.end, done.aside), (all[18].reached(), None));
    let opened = open(&storage, options);
    assert_eq!((opened.damage.len(), &opened.missing), (0, &None));
    let mut log = opened.log;
    write(&mut log, &all[19..], 1);
    assert_eq!(read_all(&log).0, all);
}

/// The damaged record was the last one, so no mark tells whether it was acknowledged.
#[test]
fn a_log_that_was_cut_is_doubtful_or_trusted_until_something_is_appended() {
    for accepts_loss in [false, true] {
        let (storage, options, all) = damaged(19);
        cut(storage.clone(), CutAt::Damage, accepts_loss, &mut Rng::with_seed(1)).expect("the disk is well");
        let mut log = open(&storage, options).log;
        assert_eq!((log.is_doubtful(), log.is_trusted(), log.missing()), (!accepts_loss, accepts_loss, None));
        write(&mut log, &all[19..], 1);
        assert!(!log.is_doubtful() && !log.is_trusted());
        let log = open(&storage, options).log;
        assert!(!log.is_doubtful() && !log.is_trusted());
    }
}

#[test]
fn a_log_is_not_cut_below_all_snapshots_of_a_state_that_it_begins_with() {
    let (storage, options, all) = damaged(19);
    let mut log = open(&storage, options).log;
    log.cut_to(all[2].end()).expect("the disk is well");
    let begin = all[9].reached();
    log.begin_anew(begin).expect("the disk is well");
    write(&mut log, &all[10..18], 1);
    let snapshot = all[14].reached();
    let mut writer =
        SnapshotWriter::new(storage.clone(), options.cluster, options.shard, snapshot).expect("there is room");
    writer.write(b"a state").and_then(|()| writer.finish()).expect("there is room");
    drop(log);
    let cut_at = |at: usize| cut(storage.clone(), CutAt::Version(all[at].version), true, &mut Rng::with_seed(1));
    let refused = cut_at(12).expect_err("no state would be left");
    assert!(refused.to_string().contains("of no use without a snapshot"), "{refused}");
    assert_eq!(cut_at(15).expect("the snapshot is behind its beginning").0.end, all[15].reached());
}

#[test]
fn all_that_can_be_read_is_shown_and_the_rest_named() {
    let (storage, options, all) = damaged(12);
    let mut log = open(&storage, options).log;
    log.set_acknowledged(u64::MAX);
    log.save_acknowledged().expect("the disk is well");
    let mut image = storage.image();
    let file = image.get_mut("segment-0000000000").expect("it is there");
    let used = file.iter().rposition(|&byte| byte != 0).expect("it has some") + 1;
    file[used - 30..used].fill(0);
    let storage = SimStorage::from_image(1, &image);
    let (mut shown, mut damages, mut missing) = (Vec::new(), 0, None);
    let each = |part: LogItem<'_>| {
        match part {
            LogItem::Record(record) => shown.push(Kept::of(&record)),
            LogItem::Damage(_) => damages += 1,
            LogItem::Missing(found) => missing = Some(found),
        }
        ControlFlow::Continue(())
    };
    read(storage.clone(), false, each).expect("it can be read");
    let mut first = 0;
    let breaks = |_: LogItem<'_>| {
        first += 1;
        ControlFlow::Break(())
    };
    read(storage.clone(), false, breaks).expect("it can be read");
    assert_eq!(first, 1, "it goes no further");
    assert_eq!(shown, [&all[..12], &all[13..19]].concat());
    let missing = missing.expect("it is named");
    assert_eq!((damages, missing.from, missing.to), (1, all[19].version, all[19].version));
    assert!(storage.image() == image, "nothing is changed");
}

#[test]
fn a_log_that_does_not_open_is_cut_before_what_keeps_it_from_that() {
    for seed in seeds(1000) {
        let _seed = Seed(seed);
        let mut rng = Rng::with_seed(seed);
        let (all, options) = (records(&mut rng, 60), options(8192, 4096));
        let storage = SimStorage::new(seed);
        let mut log = open(&storage, options).log;
        write(&mut log, &all, 5);
        log.set_acknowledged(u64::MAX);
        log.save_acknowledged().expect("the disk is well");
        let last = log.persisted().version;
        if rng.bool() {
            log.cut_to(log.begin().position.max(all[50].end())).expect("the disk is well");
        }
        let mut image = storage.image();
        let segments: Vec<String> = image.keys().filter(|name| name.starts_with("segment-")).cloned().collect();
        for _ in 0..rng.usize(1..3) {
            let Some(file) = image.get_mut(rng.choice(&segments).expect("a segment")) else { continue };
            match rng.u32(..3) {
                0 if file.len() > 4096 => [40, 2088].into_iter().for_each(|at| file[at] ^= 1),
                1 => file.truncate(rng.usize(..file.len())),
                _ => _ = image.remove(rng.choice(&segments).expect("a segment")),
            }
        }
        let storage = SimStorage::from_image(seed, &image);
        storage.crash_at(storage.changes() + rng.u64(..40));
        let _ = cut(storage.clone(), CutAt::Damage, true, &mut rng);
        storage.restart();
        cut(storage.clone(), CutAt::Damage, true, &mut rng).unwrap_or_else(|error| panic!("{error}"));
        let opened = open(&storage, options);
        let found = read_all(&opened.log);
        assert_eq!((&opened.missing, &found.1), (&None, &vec![]));
        assert!(all.starts_with(&found.0), "what was before");
        assert!(opened.log.acknowledged() <= opened.log.persisted().version && opened.log.persisted().version <= last);
        // No record that was whole is gone.
        let is_there =
            |bytes: &[u8]| storage.image().values().any(|file| file.windows(bytes.len()).any(|part| part == bytes));
        if let Some((_, file)) =
            image.iter().rev().find(|(name, file)| name.starts_with("segment-") && file.len() > 4400)
            && file[4096] != 0
        {
            assert!(is_there(&file[4096..4300]), "of the last segment");
        }
    }
}

#[test]
fn a_directory_is_repaired_from_another() {
    let (storage, options, all) = damaged(12);
    let done = repair(storage.clone(), [damaged(3).0], &mut Rng::with_seed(1)).expect("the disk is well");
    assert_eq!(done, Repaired { replaced: 1, ..Repaired::default() });
    assert_eq!(read_all(&open(&storage, options).log), (all, vec![]));
}

#[test]
fn records_of_another_life_replace_nothing() {
    let (_, options, all) = damaged(12);
    let gap = all[13].time.0 - all[12].time.0;
    // The records at the same places in the other log have another time: earlier than that of the next record here, or
    // later.
    for late in [gap / 2, gap + 1] {
        let storage = damaged(12).0;
        let mut changed = all.clone();
        for record in &mut changed[12..] {
            record.time.0 += late;
            if let KeptBody::Message(_, bytes) = &mut record.body {
                bytes.iter_mut().for_each(|byte| *byte ^= 0x40);
            }
        }
        let mut other = open(&SimStorage::new(2), options).log;
        write(&mut other, &changed, 4);
        let done = open(&storage, options).log.repair_from(&[other]).expect("the disk is well");
        assert_eq!((done.replaced, done.left.len()), (0, 1), "{late}");
    }
}

#[test]
fn a_repair_from_a_shorter_copy_leaves_the_rest_missing() {
    let (storage, options) = (SimStorage::new(1), options(8192, 4096));
    let all = records(&mut Rng::with_seed(5), 120);
    let (part, last) = (&all[..90], all[119].version);
    let mut log = open(&storage, options).log;
    write(&mut log, &all, 5);
    log.set_acknowledged(last);
    log.save_acknowledged().expect("the disk is well");
    let mut other = open(&SimStorage::new(2), options).log;
    write(&mut other, part, 5);

    // All segments but the first are gone.
    let mut image = storage.image();
    image.retain(|name, _| !name.starts_with("segment-") || name == "segment-0000000000");
    let storage = SimStorage::from_image(1, &image);
    let rng = &mut Rng::with_seed(1);
    let directory = cut_missing_segments(&storage);
    let mut log = open(&directory, options).log;
    let from = log.persisted().version + 1;
    let done = log.repair_from(&[other]).expect("the disk is well");
    let missing = done.missing.expect("the copy is too short");
    assert_eq!((missing.from, missing.to), (part[89].version + 1, last));
    assert!(done.appended > 20 && from < missing.from);
    let opened = open(&directory, options);
    assert_eq!((opened.missing, read_all(&opened.log).0), (Some(missing), part.to_vec()));

    // A cut leaves nothing that tells of more records.
    let version = part[70].version;
    cut(directory.clone(), CutAt::Version(version), true, rng).expect("the disk is well");
    let opened = open(&directory, options);
    assert_eq!((opened.missing, opened.log.persisted().version), (None, version));
}

/// The log in its first segment alone, with its mark.
fn cut_missing_segments(storage: &SimStorage) -> SimStorage {
    let mut image = storage.image();
    let manifest = image.get_mut("log").expect("it is there");
    for copy in [0, 2048] {
        manifest[copy + 48..copy + 56].copy_from_slice(&1u64.to_le_bytes());
        let checksum = crc32c::crc32c(&manifest[copy..copy + 508]);
        manifest[copy + 508..copy + 512].copy_from_slice(&checksum.to_le_bytes());
    }
    SimStorage::from_image(1, &image)
}

#[test]
fn another_log_is_no_copy() {
    let (storage, ..) = damaged(12);
    let other = SimStorage::new(2);
    let options = Options { shard: squall_membership::ShardId(9), ..options(1 << 20, 1 << 16) };
    open(&other, options);
    let error = repair(storage, [other], &mut Rng::with_seed(1)).expect_err("it is another shard's");
    assert!(matches!(error, OfflineError::OtherLog { .. }), "{error}");
}

/// The versions in a log's list.
fn listed(skips: &Skips) -> Vec<u64> {
    skips.iter().map(|skip| skip.version).collect()
}

#[test]
fn a_command_is_skipped_by_its_version_and_content_and_stays_in_the_log() {
    for seed in seeds(30) {
        let _seed = Seed(seed);
        let rng = &mut Rng::with_seed(seed);
        let all = records(rng, 60);
        let (storage, options) = copy(seed, rng, &all);
        let messages: Vec<&Kept> = all.iter().filter(|kept| matches!(kept.body, KeptBody::Message { .. })).collect();
        let (chosen, last) = (messages[rng.usize(1..messages.len() - 1)], messages[messages.len() - 1]);
        let version = chosen.version;
        let skip = |version, reason: &str| skip(storage.clone(), version, Hlc(9), reason, &mut Rng::with_seed(1));
        assert!(matches!(skip(version, "  "), Err(OfflineError::Reason(0))));
        assert!(matches!(skip(last.version + 1, "why"), Err(OfflineError::NoSuchVersion { .. })));
        let done = skip(version, " why ").expect("the disk is well");
        assert_eq!((done.version, done.position, done.reason.as_str()), (version, chosen.position, "why"));
        assert!(matches!(skip(version, "again"), Err(OfflineError::AlreadySkipped { .. })));
        skip(last.version, "another").expect("the disk is well");
        assert_eq!(readable(&storage), all, "the records are what they were");

        storage.restart();
        let mut log = open(&storage, options).log;
        assert_eq!(listed(log.skips()), [version, last.version]);
        let mut reader = log.read(log.begin().position, Position::MAX).expect("it is whole");
        while let Some(record) = reader.next_record().expect("it is whole") {
            let is_message = matches!(record.body, Body::Message { .. });
            let is_listed = is_message && [version, last.version].contains(&record.version);
            assert_eq!(log.skips().has(&record), is_listed);
        }
        // An entry that a cut takes away does not come back with another command of the same number.
        log.cut_to(last.position).expect("the disk is well");
        assert_eq!(listed(log.skips()), [version]);
        drop(log);
        assert_eq!(listed(Log::look(storage.clone(), false).expect("it can be read").log.skips()), [version]);
        let (_, missing) = cut(storage.clone(), CutAt::Version(version - 1), true, rng).expect("the disk is well");
        assert_eq!(missing, None);
        let log = open(&storage, options).log;
        assert!(log.skips().is_empty());
        assert!(!storage.image().keys().any(|name| name.starts_with("skips-")));
    }
}

#[test]
fn a_command_that_a_state_on_the_disk_includes_is_not_skipped() {
    let rng = &mut Rng::with_seed(3);
    let all = records(rng, 40);
    let (storage, options) = copy(3, rng, &all);
    let messages: Vec<&Kept> = all.iter().filter(|kept| matches!(kept.body, KeptBody::Message { .. })).collect();
    let at = messages[10].reached();
    SnapshotWriter::new(storage.clone(), options.cluster, options.shard, at)
        .expect("the disk is well")
        .finish()
        .unwrap();
    let skip = |version| skip(storage.clone(), version, Hlc(9), "why", &mut Rng::with_seed(1));
    assert!(matches!(skip(messages[10].version), Err(OfflineError::IsApplied { .. })));
    assert_eq!(skip(messages[11].version).expect("it is behind").version, messages[11].version);
}

#[test]
fn a_list_that_can_not_be_read_keeps_a_log_from_being_taken() {
    let rng = &mut Rng::with_seed(4);
    let all = records(rng, 40);
    let (storage, options) = copy(4, rng, &all);
    let last = all.last().expect("there are some").version;
    skip(storage.clone(), last, Hlc(9), "why", rng).expect("the disk is well");
    for at in [4096 + 30, 4096 + 70] {
        let mut image = storage.image();
        image.get_mut("skips-1").expect("it is there")[at] ^= 1;
        let damaged = SimStorage::from_image(1, &image);
        let error = Log::open(damaged, options, rng).expect_err("it is unknown what is skipped");
        assert!(error.to_string().contains("skips-1 is missing or damaged"), "{error}");
    }
    let mut image = storage.image();
    image.remove("skips-1");
    let error = Log::open(SimStorage::from_image(1, &image), options, rng).expect_err("it is unknown what is skipped");
    assert!(error.to_string().contains("is missing or damaged"), "{error}");
}

#[test]
fn a_repair_takes_the_word_along_with_the_command() {
    let rng = &mut Rng::with_seed(5);
    let all = records(rng, 60);
    let messages: Vec<&Kept> = all.iter().filter(|kept| matches!(kept.body, KeptBody::Message { .. })).collect();
    let (mine, options) = copy(5, rng, &all);
    let (other, _) = copy(6, rng, &all);
    let version = messages[messages.len() - 2].version;
    cut(mine.clone(), CutAt::Version(version - 1), false, rng).expect("the disk is well");
    skip(other.clone(), version, Hlc(9), "why", rng).expect("the disk is well");
    let repaired = repair(mine.clone(), [other], rng).expect("the disk is well");
    assert!(repaired.appended > 0, "{repaired:?}");
    assert_eq!(listed(open(&mine, options).log.skips()), [version]);
}
