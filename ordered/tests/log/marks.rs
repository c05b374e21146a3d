//! The acknowledged mark: with it, a damaged end is told from one that was never longer, and from one that a loss of
//! power left.

use std::collections::BTreeMap;

use fastrand::Rng;
use squall_fabric::NodeId;
use squall_ordered::{
    Payload,
    log::{CutAt, End, Hlc, Log, Options, Position, SimStorage, WriteError, cut},
};

use super::model::{Kept, KeptBody, Seed, any_options, next_record, open, options, read_all, records, write};
use crate::seeds::seeds;

type Image = BTreeMap<String, Vec<u8>>;

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// The fields of a file's first block, if one copy is right.
fn fields(file: &[u8]) -> Option<&[u8]> {
    let copies = [0, 2048].into_iter().filter_map(|at| file.get(at..at + 512));
    let mut good = copies.filter(|copy| copy[0] != 0 && crc32c::crc32c(&copy[..508]) == u32_at(copy, 508));
    good.next()
}

/// The marks in a segment's records whose headers are right, up to the place where it was cut. Their payloads may be
/// damaged.
fn marks(file: &[u8], cut: Option<usize>) -> Vec<u64> {
    let Some(id) = fields(file).map(|fields| u64_at(fields, 40)) else { return Vec::new() };
    let mut found = Vec::new();
    for at in (4096..cut.unwrap_or(file.len()).min(file.len())).step_by(16) {
        let Some(header) = file.get(at..at + 64) else { break };
        let covered = [&id.to_le_bytes()[..], &(at as u64).to_le_bytes(), &header[..60]].concat();
        if header[4] != 0 && crc32c::crc32c(&covered) == u32_at(header, 60) {
            let (version, behind) = (u64_at(header, 32), u64::from(u32_at(header, 52)));
            found.extend((behind > 0).then(|| version + 1 - behind));
        }
    }
    found
}

/// The highest mark that can be read in any file, as docs/src/internals/log-format.md says.
fn highest(image: &Image) -> u64 {
    let manifest = fields(&image["log"]).expect("it is well");
    let (first, next, cut) = (u64_at(manifest, 40), u64_at(manifest, 48), (u64_at(manifest, 56), u64_at(manifest, 64)));
    let mut highest = u64_at(manifest, 272);
    for index in first..next {
        let file = &image[&format!("segment-{index:010}")];
        let end = (cut.1 > 0 && cut.0 == index).then_some(cut.1 as usize);
        highest = marks(file, end).into_iter().fold(highest, u64::max);
        highest = highest.max(fields(file).map_or(0, |fields| u64_at(fields, 96)));
    }
    highest
}

/// A log with marks as a group sets them: behind the records that are written, soon or late.
struct World {
    rng: Rng,
    storage: SimStorage,
    options: Options,
    all: Vec<Kept>,
    /// The mark that the log was told.
    told: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let (storage, options) = (SimStorage::new(rng.u64(..)), any_options(&mut rng));
        World { rng, storage, options, all: Vec::new(), told: 0 }
    }

    /// Appends batches until their number is reached, or the disk has no power. The mark stays within the records that
    /// were synced.
    fn run(&mut self, log: &mut Log<SimStorage>, batches: usize) {
        for _ in 0..batches {
            let mut appender = log.appender();
            let mut records = Vec::new();
            for _ in 0..self.rng.usize(1..8) {
                let record = next_record(&mut self.rng, appender.end());
                if record.append_to(&mut appender).is_err() {
                    break;
                }
                records.push(record);
            }
            self.all.extend(records);
            if log.commit(&mut appender.take_batch().expect("a record")).is_err() || log.prepare().is_err() {
                return;
            }
            if self.rng.u32(..3) > 0 {
                self.told = self.told.max(log.persisted().version.saturating_sub(self.rng.u64(..6)));
                log.set_acknowledged(self.told);
            }
            if self.rng.u32(..8) == 0 && log.save_acknowledged().is_err() {
                return;
            }
        }
    }

    /// Damages the last segments: bits, zeros up to the end, or a file that ends early.
    fn damage(&mut self, image: &mut Image) {
        let segments: Vec<String> = image.keys().filter(|name| name.starts_with("segment-")).cloned().collect();
        let Some(last) = segments.iter().rev().take(2).nth(self.rng.usize(..2)).or(segments.last()) else { return };
        let file = image.get_mut(last).expect("it is there");
        let used = file.iter().rposition(|&byte| byte != 0).unwrap_or(0) + 1;
        if used <= 4096 {
            return;
        }
        let mut from = self.rng.usize(4096..used);
        if self.rng.bool() {
            // The place at which a record begins.
            let mut at = 4096;
            while at < used && at < from {
                at += (64 + u32_at(file, at) as usize).next_multiple_of(16);
            }
            from = at.min(used - 1);
        }
        match self.rng.u32(..4) {
            0 => file[from] ^= 1 << self.rng.u32(..8),
            1 => file[from..used].fill(0),
            2 => file.truncate(from),
            _ => {
                let to = self.rng.usize(from..used);
                file[from..to].fill(0);
            }
        }
    }
}

fn versions(records: &[Kept]) -> Vec<u64> {
    let messages = records.iter().filter(|record| matches!(record.body, KeptBody::Message(..)));
    messages.map(|record| record.version).collect()
}

/// Checks that every record up to the highest mark is readable, or named: as damage, or as missing. Returns whether any
/// is missing.
fn check(storage: &SimStorage, opened: &squall_ordered::log::Opened<SimStorage>, all: &[Kept]) -> bool {
    let log = &opened.log;
    let verified = log.verify(|_| {}).expect("it can be read");
    assert_eq!((&verified.missing, &opened.missing), (&log.missing(), &log.missing()));
    assert_eq!(log.acknowledged(), highest(&storage.image()), "the highest that can be read");
    assert!(opened.torn.is_none() || opened.missing.is_none(), "what was acknowledged was not being written");
    let found = read_all(log).0;
    let missing = log.missing();
    for record in all.iter().filter(|record| record.version <= log.acknowledged()) {
        let within = |damage: &squall_ordered::log::Damage| {
            record.end() > damage.after && damage.before.is_none_or(|before| record.end() <= before)
        };
        // A view has the version of the message before, and the mark may be about that message alone.
        let is_missing = missing.as_ref().is_some_and(|missing| (missing.from..=missing.to).contains(&record.version));
        let may_be = matches!(record.body, KeptBody::View(_)) && record.version == log.persisted().version;
        let named = verified.damage.iter().any(within);
        assert!(found.contains(record) || named || is_missing || may_be, "{} is not named", record.position);
    }
    if let Some(missing) = &missing {
        assert_eq!((missing.from, missing.to), (log.persisted().version + 1, log.acknowledged()));
        assert!(versions(&found).into_iter().all(|version| version < missing.from), "{missing}");
    }
    missing.is_some()
}

#[test]
fn what_was_acknowledged_and_is_not_readable_is_named() {
    let (mut missing, mut went_on) = (0, 0);
    for seed in seeds(3000) {
        let _seed = Seed(seed);
        let mut world = World::new(seed);
        let mut log = open(&world.storage, world.options).log;
        if world.rng.bool() {
            world.storage.crash_at(world.storage.changes() + world.rng.u64(1..120));
        }
        let batches = world.rng.usize(1..30);
        world.run(&mut log, batches);
        world.storage.restart();
        let opened = open(&world.storage, world.options);
        assert_eq!(opened.missing, None, "a loss of power takes nothing that was acknowledged");
        check(&world.storage, &opened, &world.all);
        let written: Vec<Kept> = read_all(&opened.log).0;

        let mut image = world.storage.image();
        world.damage(&mut image);
        let storage = SimStorage::from_image(seed, &image);
        // A segment that is too short for its records is refused.
        let Ok(opened) = Log::open(storage.clone(), world.options, &mut Rng::with_seed(seed)) else { continue };
        if !check(&storage, &opened, &written) {
            continue;
        }
        missing += 1;
        // Opening reports the missing records each time, until the log goes on without them.
        let again = open(&storage, world.options);
        assert_eq!(again.missing, opened.missing);
        let mut log = again.log;
        let mut appender = log.appender();
        next_record(&mut world.rng, log.persisted()).append_to(&mut appender).expect("it comes next");
        let mut more = appender.take_batch().expect("a record");
        if world.rng.bool() || log.commit(&mut more).is_err() {
            log.cut_to(log.persisted().position).expect("the disk is well");
        } else {
            went_on += 1;
        }
        let end = log.persisted();
        assert_eq!(log.missing(), None);
        let opened = open(&storage, world.options);
        assert_eq!((opened.missing, opened.log.persisted()), (None, end));
        assert!(opened.log.acknowledged() <= end.version);
    }
    eprintln!("missing {missing} times, went on {went_on} times");
    assert!(went_on > 30 || std::env::var_os("SQUALL_SEED").is_some(), "{missing}, {went_on}");
}

/// A log of 20 records in batches of five, all acknowledged, and its records.
fn acknowledged() -> (SimStorage, Options, Vec<Kept>) {
    let (storage, options) = (SimStorage::new(1), options(1 << 20, 1 << 16));
    let all = records(&mut Rng::with_seed(5), 20);
    let mut log = open(&storage, options).log;
    for batch in all.chunks(5) {
        write(&mut log, batch, 5);
        log.set_acknowledged(u64::MAX);
    }
    assert_eq!(log.acknowledged(), log.persisted().version, "never more than is here");
    (storage, options, all)
}

#[test]
fn a_quiet_log_s_mark_is_saved_once() {
    let (storage, options, all) = acknowledged();
    let last = all.last().expect("records").version;
    let mut log = open(&storage, options).log;
    assert!(log.acknowledged() < last, "the last batch tells of the one before");
    log.set_acknowledged(last);
    assert!(log.save_acknowledged().expect("the disk is well"));
    assert!(!log.save_acknowledged().expect("the disk is well"), "it is there");
    log.set_acknowledged(1);
    assert_eq!((log.acknowledged(), open(&storage, options).log.acknowledged()), (last, last));
}

#[test]
fn a_tail_of_zeros_is_damage_if_the_manifest_or_a_record_tells_of_more() {
    let (storage, options, all) = acknowledged();
    let segment = "segment-0000000000";
    let mut image = storage.image();
    image.get_mut(segment).expect("it is there")[4096..].fill(0);
    let untold = SimStorage::from_image(1, &image);
    assert_eq!(open(&untold, options).missing, None, "nothing tells of it");

    let mut log = open(&storage, options).log;
    log.set_acknowledged(u64::MAX);
    log.save_acknowledged().expect("the disk is well");
    let mut image = storage.image();
    image.get_mut(segment).expect("it is there")[4096..].fill(0);
    let told = SimStorage::from_image(1, &image);
    let missing = open(&told, options).missing.expect("the manifest tells");
    let last = all.last().expect("records").version;
    assert_eq!((missing.from, missing.to, missing.offset), (1, last, 4096));
    let text = missing.to_string();
    assert!(text.contains(segment) && text.contains(&format!("versions 1 to {last}")), "{text}");
}

#[test]
fn a_cut_takes_the_mark_along() {
    let (storage, options, all) = acknowledged();
    let mut log = open(&storage, options).log;
    log.set_acknowledged(u64::MAX);
    let end = log.cut_to(all[6].end()).expect("the disk is well").end;
    assert_eq!(log.acknowledged(), end.version);
    let opened = open(&storage, options);
    assert_eq!((opened.missing, opened.log.acknowledged()), (None, end.version));
    // The records before a new beginning may have been of another order.
    log = opened.log;
    log.begin_anew(End { version: 2, ..End::START }).expect("the disk is well");
    let opened = open(&storage, options);
    assert_eq!((opened.missing, opened.log.acknowledged()), (None, 0));
    assert_eq!(opened.log.persisted().position, Position::START);
}

#[test]
fn a_part_of_a_batch_that_has_room_ends_what_an_operator_has_said() {
    for accepts_loss in [false, true] {
        let (storage, options) = (SimStorage::new(1), options(8192, 16_384));
        let all = records(&mut Rng::with_seed(5), 20);
        write(&mut open(&storage, options).log, &all[..3], 1);
        cut(storage.clone(), CutAt::Version(all[1].version), accepts_loss, &mut Rng::with_seed(1)).expect("it is well");
        let mut log = open(&storage, options).log;
        assert_eq!((log.is_doubtful(), log.is_trusted()), (!accepts_loss, accepts_loss));
        let mut appender = log.appender();
        let mut end = appender.end();
        while let Ok(reached) = appender.append(end.position, Hlc(end.time.0 + 1), NodeId(1), Payload::kept(&[1; 100]))
        {
            end = reached;
        }
        // There is room for one segment.
        storage.limit(storage.used() + 2 * 8192);
        let mut batch = appender.take_batch().expect("it has records");
        let begin = log.persisted();
        let error = log.commit(&mut batch).expect_err("there is no room for all of it");
        assert!(matches!(error, WriteError::NoRoom { .. }), "{error}");
        assert!(log.persisted().version > begin.version, "a part has room");
        assert!(!log.is_doubtful() && !log.is_trusted());
        drop(log);
        let log = open(&storage, options).log;
        assert!(!log.is_doubtful() && !log.is_trusted(), "nor after a start");
    }
}
