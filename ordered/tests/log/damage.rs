//! Bits that flip in written records: damage is named, never shown, never cut; and another member's log makes it good.

use fastrand::Rng;
use squall_ordered::log::{Damage, Log, Position, ReadError, SimStorage, Storage, WriteError, import};

use super::model::{Kept, Seed, any_options, open, options, read_all, records, write};
use crate::seeds::seeds;

/// The places of records in a log's files, as docs/src/internals/log-format.md draws them: file, offset, size.
fn places(storage: &SimStorage, records: &[Kept]) -> Vec<(String, u64, u64)> {
    let image = storage.image();
    let mut places = Vec::new();
    let mut segments = image.iter().filter(|(name, _)| name.starts_with("segment-"));
    let (mut segment, mut at) = (segments.next().expect("a segment"), 4096);
    for record in records {
        let bytes = |at: usize, name: &[u8]| name.get(at..at + 32).map(<[u8]>::to_vec);
        let expected: Vec<u8> = [record.position.epoch.0, record.position.seq.0, record.time.0, record.version]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        if bytes(at as usize + 8, segment.1) != Some(expected) {
            (segment, at) = (segments.next().expect("another segment"), 4096);
        }
        let len = u32::from_le_bytes(segment.1[at as usize..at as usize + 4].try_into().expect("4 bytes"));
        let size = (64 + u64::from(len)).next_multiple_of(16);
        places.push((segment.0.clone(), at, size));
        at += size;
    }
    places
}

/// Checks that all records are shown but the damaged ones, and that those are named.
fn check(log: &Log<SimStorage>, all: &[Kept], damaged: &[Damage]) {
    let (found, named) = read_all(log);
    let missing = |record: &Kept| {
        damaged
            .iter()
            .any(|damage| record.end() > damage.after && damage.before.is_none_or(|before| record.end() <= before))
    };
    let mut shown = found.iter().peekable();
    for record in all {
        if shown.next_if_eq(&record).is_none() {
            assert!(missing(record), "{} is neither shown nor named", record.position);
        }
    }
    assert_eq!(shown.next(), None, "it was not written");
    assert!(named.iter().all(|damage| damaged.contains(damage)), "{named:?} and {damaged:?}");
}

#[test]
fn a_flipped_bit_in_any_record_is_named_and_made_good_from_another_log() {
    for seed in seeds(1000) {
        let _seed = Seed(seed);
        let mut rng = Rng::with_seed(seed);
        let count = rng.usize(1..80);
        let all = records(&mut rng, count);
        // The log of another member, whose segments and batches lie elsewhere.
        let (mine, theirs) = (SimStorage::new(seed), SimStorage::new(seed + 1));
        let (my_options, their_options) = (any_options(&mut rng), any_options(&mut rng));
        let mut log = open(&mine, my_options).log;
        let mut other = open(&theirs, their_options).log;
        write(&mut log, &all, rng.usize(1..20));
        write(&mut other, &all, rng.usize(1..20));
        let places = places(&mine, &all);

        let mut flipped = Vec::new();
        for _ in 0..rng.usize(1..4) {
            let nth = rng.usize(..all.len());
            let (file, at, size) = &places[nth];
            let offset = at + rng.u64(..*size);
            mine.flip(file, offset, rng.u8(..8));
            flipped.push((nth, file.clone(), offset));
        }
        let opened = open(&mine, my_options);
        assert_eq!(opened.torn, None);
        let mut log = opened.log;
        let damage = log.verify(|_| {}).expect("it can be read").damage;
        check(&log, &all, &damage);
        if flipped.len() == 1 {
            let (nth, file, offset) = &flipped[0];
            let (_, at, size) = places[*nth];
            let of_segment = places[..=*nth].iter().filter(|(name, ..)| name == file).count() as u64;
            let [named] = &damage[..] else { panic!("{damage:?}") };
            assert_eq!((named.path.to_str(), named.from), (Some(file.as_str()), at));
            assert!(named.to.is_none_or(|to| to >= *offset && to <= at + size), "{named}");
            assert_eq!(named.record, of_segment, "{named}");
        }

        for damage in &damage {
            repair(&mut log, damage, &other);
        }
        assert_eq!(log.verify(|_| {}).expect("it can be read").damage, []);
        let again = open(&mine, my_options);
        assert_eq!((again.torn, again.damage), (None, vec![]));
        assert_eq!(read_all(&again.log), (all, vec![]));
    }
}

/// Repairs a log as a member does that gets its missing records from another.
fn repair(log: &mut Log<SimStorage>, damage: &Damage, other: &Log<SimStorage>) {
    let exported = |from, to| other.export(from, to, usize::MAX).expect("it is well").bytes;
    if let Some(before) = damage.before {
        let replaced = log.replace_damaged(damage, &exported(damage.after, before));
        return replaced.unwrap_or_else(|error| panic!("{error}"));
    }
    // The log's end is not known.
    let bytes = exported(damage.after, Position::MAX);
    let missing: Vec<Kept> = import(&bytes).expect("as it was sent").iter().map(Kept::of).collect();
    let mut appender = log.appender();
    missing[0].append_to(&mut appender).expect("it comes next");
    let error =
        log.commit(&mut appender.take_batch().expect("a record")).expect_err("it would be written over what was");
    assert!(matches!(error, WriteError::Damaged(_)), "{error}");
    assert_eq!(log.cut_to(damage.after).expect("the disk is well").end.position, damage.after);
    write(log, &missing, 10);
}

#[test]
fn a_crash_while_damage_is_replaced_leaves_it_damaged_or_good() {
    for seed in seeds(300) {
        let _seed = Seed(seed);
        let mut rng = Rng::with_seed(seed);
        let all = records(&mut rng, 40);
        let (mine, my_options) = (SimStorage::new(seed), any_options(&mut rng));
        let mut log = open(&mine, my_options).log;
        write(&mut log, &all, rng.usize(1..9));
        let (file, at, size) = places(&mine, &all).swap_remove(rng.usize(..39));
        mine.flip(&file, at + rng.u64(..size), rng.u8(..8));
        let mut other = open(&SimStorage::new(seed + 1), any_options(&mut rng)).log;
        write(&mut other, &all, 5);
        let damage = log.verify(|_| {}).expect("it can be read").damage;
        let [damage] = &damage[..] else { panic!("{damage:?}") };
        let before = damage.before.expect("more follows");
        let missing = other.export(damage.after, before, usize::MAX).expect("it is well").bytes;
        mine.crash_at(mine.changes() + rng.u64(..2));
        log.replace_damaged(damage, &missing).expect_err("a crash");
        mine.restart();

        let mut log = open(&mine, my_options).log;
        let damage = log.verify(|_| {}).expect("it can be read").damage;
        check(&log, &all, &damage);
        damage.iter().for_each(|damage| repair(&mut log, damage, &other));
        assert_eq!(read_all(&log), (all, vec![]));
    }
}

#[test]
fn nothing_but_what_is_missing_replaces_it() {
    let all = records(&mut Rng::with_seed(5), 30);
    let storage = SimStorage::new(1);
    let mut log = open(&storage, options(1 << 20, 1 << 16)).log;
    write(&mut log, &all, 5);
    let others = log.export(Position::START, Position::MAX, usize::MAX).expect("it is well").bytes;
    let (file, at, _) = places(&storage, &all).swap_remove(10);
    storage.flip(&file, at + 3, 0);
    let damage = log.verify(|_| {}).expect("it can be read").damage.remove(0);
    let before = storage.image();

    let mut changed = others.clone();
    changed[70] ^= 1;
    for (what, bytes) in
        [("all", &others[..]), ("nothing", &[]), ("half of a record", &others[..40]), ("another", &changed)]
    {
        let error = log.replace_damaged(&damage, bytes).expect_err(what);
        assert!(matches!(error, WriteError::NoReplacement { .. }), "{what}: {error}");
    }
    assert!(storage.image() == before, "nothing was written");
}

#[test]
fn a_reader_goes_on_behind_damage() {
    let all = records(&mut Rng::with_seed(8), 20);
    let storage = SimStorage::new(1);
    let mut log = open(&storage, options(1 << 20, 1 << 16)).log;
    write(&mut log, &all, 4);
    let (file, at, _) = places(&storage, &all).swap_remove(7);
    storage.flip(&file, at + 58, 3);
    let mut reader = log.read(Position::START, Position::MAX).expect("all of it");
    for record in &all[..7] {
        assert_eq!(reader.next_record().expect("it is well").map(|record| Kept::of(&record)).as_ref(), Some(record));
    }
    let error = reader.next_record().expect_err("it is damaged");
    let ReadError::Damaged(damage) = error else { panic!("{error}") };
    assert_eq!((damage.from, damage.record, damage.after), (at, 8, all[6].end()));
    for record in &all[8..] {
        assert_eq!(reader.next_record().expect("it is well").map(|record| Kept::of(&record)).as_ref(), Some(record));
    }
    // A read that does not touch the damage succeeds.
    let mut reader = log.read(all[7].end(), Position::MAX).expect("the rest");
    assert_eq!(reader.next_record().expect("it is well").map(|record| Kept::of(&record)), Some(all[8].clone()));
}

#[test]
fn a_flip_in_what_was_acknowledged_is_damage_even_where_the_last_write_was_torn() {
    for seed in seeds(300) {
        let _seed = Seed(seed);
        let mut rng = Rng::with_seed(seed);
        let all = records(&mut rng, 40);
        let (storage, options) = (SimStorage::new(seed), any_options(&mut rng));
        let mut log = open(&storage, options).log;
        write(&mut log, &all[..30], rng.usize(1..9));
        let (file, at, size) = places(&storage, &all[..30]).swap_remove(rng.usize(..30));
        let mut appender = log.appender();
        let fitting = all[30..].iter().take_while(|record| record.append_to(&mut appender).is_ok()).count();
        storage.crash_at(storage.changes() + rng.u64(..2));
        // The commit may be done before the crash.
        let _ = log.commit(&mut appender.take_batch().expect("records"));
        storage.restart();
        storage.flip(&file, at + rng.u64(..size), rng.u8(..8));

        let opened = open(&storage, options);
        let damage = opened.log.verify(|_| {}).expect("it can be read").damage;
        let (found, _) = read_all(&opened.log);
        let written = &all[..30 + fitting];
        let there = written.iter().rposition(|record| found.contains(record)).map_or(30, |last| last.max(29) + 1);
        assert!(!damage.is_empty());
        check(&opened.log, &all[..there], &damage);
    }
}

#[test]
fn one_copy_of_a_first_block_heals_the_other() {
    let all = records(&mut Rng::with_seed(3), 60);
    let (storage, options) = (SimStorage::new(1), options(8192, 4096));
    write(&mut open(&storage, options).log, &all, 5);
    let segment = storage.image().into_keys().find(|name| name.starts_with("segment-")).expect("a segment");
    for copy in [0, 2048] {
        storage.flip(&segment, copy + 40, 5);
        assert_eq!(open(&storage, options).healed, [storage.path(&segment)]);
        let again = open(&storage, options);
        assert_eq!((again.healed, read_all(&again.log)), (vec![], (all.clone(), vec![])));
    }
}
