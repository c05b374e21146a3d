//! Arbitrary contents of a disk, for fuzzing: a log's invariants hold whatever the disk holds.

use std::collections::BTreeMap;

use fastrand::Rng;
use squall_fabric::NodeId;
use squall_membership::{ClusterId, Epoch, ShardId};

use super::{
    End, Hlc, Log, OpenError, Options, Position, ReadError, Record, SchemaText, SimStorage, ViewRecord, import,
    manifest::Manifest,
    record::{HEADER_BYTES, RecordHeader},
    segment::{self, RECORDS_AT, name},
};
use crate::Payload;

/// The segment's size in bytes.
const SEGMENT_BYTES: u64 = 16384;

/// The segment's id.
const ID: u64 = 0x1234_5678_9abc_def0;

const OPTIONS: Options = Options {
    cluster: ClusterId(7),
    shard: ShardId(3),
    generation: 0,
    segment_bytes: SEGMENT_BYTES,
    batch_bytes: 4096,
};

/// Checks a log of one segment, whose records are `bytes` behind the first byte. That byte is the number of records
/// whose checksums are set right.
///
/// The log opens, or is of a later version. The records that it shows are in order, and are the same each time. A log
/// whose end cannot be known takes no records until it is cut, and any other log takes some.
pub fn segment(bytes: &[u8]) {
    let Some((&right, records)) = bytes.split_first() else { return };
    let mut records = records.to_vec();
    records.truncate((SEGMENT_BYTES - RECORDS_AT) as usize);
    set_checksums(&mut records, ID, RECORDS_AT, usize::from(right));
    let storage = disk(&records);
    let opened = match open(&storage) {
        Err(OpenError::Read(ReadError::Newer { .. })) => return,
        opened => opened.unwrap_or_else(|error| panic!("{error}")),
    };
    let mut log = opened.log;
    let Some(shown) = read_all(&log) else { return };
    let again = open(&storage).unwrap_or_else(|error| panic!("{error}"));
    assert!(again.torn.is_none(), "it was cut");
    assert_eq!((&again.damage, &again.missing), (&opened.damage, &opened.missing));
    assert_eq!((read_all(&again.log), again.log.persisted()), (Some(shown.clone()), log.persisted()));

    let (epoch, time) = (Epoch(log.persisted().position.epoch.0.saturating_add(1)), log.persisted().time);
    let mut appender = log.appender();
    let view = ViewRecord { ended: log.persisted().position, complete: vec![NodeId(1)], ..ViewRecord::default() };
    if appender.append_view(epoch, time, &view).is_err() {
        // There is no later epoch.
        return;
    }
    let mut batch = appender.take_batch().expect("a record");
    let ends = log.open_damage.is_none();
    assert_eq!(log.commit(&mut batch).is_ok(), ends);
    if !ends {
        log.cut_to(log.persisted().position).unwrap_or_else(|error| panic!("{error}"));
        log.commit(&mut batch).unwrap_or_else(|error| panic!("{error}"));
    }
    let opened = open(&storage).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(opened.missing, None, "it goes on from where it ends");
    let log = opened.log;
    assert_eq!(read_all(&log).map(|shown| shown.len()), Some(shown.len() + 1));
}

/// Checks records that come from another member. The first byte is as for [`segment`].
///
/// Records that are read are written again as they were.
pub fn export(bytes: &[u8]) {
    let Some((&right, records)) = bytes.split_first() else { return };
    let mut records = records.to_vec();
    set_checksums(&mut records, 0, 0, usize::from(right));
    let Ok(read) = import(&records) else { return };
    let mut log = open(&SimStorage::new(1)).expect("it is empty").log;
    let mut appender = log.appender();
    for record in &read {
        let (at, time) = (record.position, record.time);
        let appended = match &record.body {
            super::Body::Message { sender, payload } => appender.append(at, time, *sender, Payload::kept(payload)),
            super::Body::View(view) => appender.append_view(at.epoch, time, view),
        };
        // The record may be no part of any one log.
        if appended.is_err() || appended.is_ok_and(|end| end.version != record.version) {
            return;
        }
    }
    let Some(mut batch) = appender.take_batch() else { return };
    log.commit(&mut batch).expect("the disk is well");
    let written = log.export(Position::START, Position::MAX, usize::MAX).expect("it is well").bytes;
    assert!(import(&written).expect("it was just written") == read);
}

fn open(storage: &SimStorage) -> Result<super::Opened<SimStorage>, OpenError> {
    Log::open(storage.clone(), OPTIONS, &mut Rng::with_seed(1))
}

/// Returns the ends of all records that the log shows; none if there is one of a later version.
fn read_all(log: &Log<SimStorage>) -> Option<Vec<(Position, Hlc)>> {
    let mut reader = log.read(log.begin().position, Position::MAX).expect("from its beginning");
    let mut shown: Vec<(Position, Hlc)> = Vec::new();
    loop {
        match reader.next_record() {
            Ok(Some(record)) => {
                let (end, time) = (Record::end(&record), record.time);
                assert!(shown.last().is_none_or(|last| last.0 < end), "{end} behind {shown:?}");
                shown.push((end, time));
            }
            Ok(None) => break,
            Err(ReadError::Damaged(_)) => {}
            Err(ReadError::Newer { .. }) => return None,
            Err(error) => panic!("{error}"),
        }
    }
    match log.verify(|_| {}) {
        Ok(verified) => assert_eq!(verified.records, shown.len() as u64),
        Err(error) => panic!("{error}, though it was just read"),
    }
    Some(shown)
}

fn disk(records: &[u8]) -> SimStorage {
    let header = segment::SegmentHeader {
        cluster: OPTIONS.cluster,
        shard: OPTIONS.shard,
        index: 0,
        id: ID,
        begin: End::START,
        previous_id: 0,
        previous_end: 0,
        acknowledged: 0,
    };
    let mut file = header.encode();
    file.extend_from_slice(records);
    file.resize(SEGMENT_BYTES as usize, 0);
    let storage = SimStorage::from_image(1, &BTreeMap::from([(name(0), file)]));
    let manifest = Manifest {
        generation: 0,
        first: 0,
        next: 1,
        cut: None,
        acknowledged: 0,
        asides: 0,
        word: None,
        schema: SchemaText::NONE,
        skips: 0,
        cluster: OPTIONS.cluster,
        shard: OPTIONS.shard,
    };
    manifest.write(&storage).expect("the disk is well");
    storage
}

/// Sets the checksums of the first records right, so that their fields are checked, too.
fn set_checksums(bytes: &mut [u8], segment: u64, at: u64, records: usize) {
    let mut place = 0;
    for _ in 0..records {
        let Some(head) = bytes.get(place..place + HEADER_BYTES) else { return };
        let len = u32::from_le_bytes(head[..4].try_into().expect("4 bytes")) as usize;
        let Some(end) = (HEADER_BYTES + len).checked_next_multiple_of(16).map(|size| place + size) else { return };
        let Some(payload) = bytes.get(place + HEADER_BYTES..end) else { return };
        let checksum = crc32c::crc32c(payload);
        bytes[place + 56..place + 60].copy_from_slice(&checksum.to_le_bytes());
        RecordHeader::set_checksum(&mut bytes[place..place + HEADER_BYTES], segment, at + place as u64);
        place = end;
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use squall_membership::Seq;

    use super::{super::record::NoHeader, *};

    /// The variable that, if set, has the test write the files instead of comparing them.
    const WRITE: &str = "SQUALL_WRITE_SEEDS";

    fn records(count: u64) -> Vec<u8> {
        let mut log = open(&SimStorage::new(1)).expect("it is empty").log;
        let mut appender = log.appender();
        let view = ViewRecord { complete: vec![NodeId(1), NodeId(2)], ..ViewRecord::default() };
        appender.append_view(Epoch(1), Hlc(1), &view).expect("it is the first");
        for nth in 0..count {
            let payload = vec![nth as u8 + 1; 37 * nth as usize];
            let at = Position::new(Epoch(1), Seq(2 * nth));
            appender.append(at, Hlc(10 + nth), NodeId(1), Payload::kept(&payload)).expect("it comes next");
        }
        log.commit(&mut appender.take_batch().expect("records")).expect("the disk is well");
        log.export(Position::START, Position::MAX, usize::MAX).expect("it is well").bytes
    }

    /// The inputs with which the targets begin. Other files in the folders are findings.
    #[test]
    fn known_inputs_are_taken_as_they_should() {
        let input = |right: u8, bytes: &[u8]| [&[right], bytes].concat();
        let all = records(12);
        let (mut hole, mut torn) = (all.clone(), all.clone());
        hole[300] ^= 1;
        torn[700..1300].fill(0);
        let made = [
            ("empty", input(0, &[])),
            ("whole", input(255, &all)),
            ("cut", input(255, &all[..all.len() - 100])),
            ("damaged", input(5, &hole)),
            ("torn", input(255, &torn)),
            ("wrong", input(0, &all)),
        ];
        for (target, run) in [("segment", segment as fn(&[u8])), ("export", export)] {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
            if std::env::var_os(WRITE).is_some() {
                fs::create_dir_all(&directory).expect("it can be made");
            }
            for (name, bytes) in &made {
                let path = directory.join(name);
                if std::env::var_os(WRITE).is_some() {
                    fs::write(&path, bytes).expect("it can be written");
                }
                let stored =
                    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; set {WRITE}=1", path.display()));
                assert!(stored == *bytes, "{} is not what is written today; set {WRITE}=1", path.display());
            }
            for entry in fs::read_dir(&directory).expect("it is there") {
                let path = entry.expect("a file").path();
                eprintln!("{}", path.display());
                run(&fs::read(&path).expect("it can be read"));
            }
        }
    }

    /// A few rounds of the fuzzer's work, wherever tests run.
    #[test]
    fn changed_records_break_nothing() {
        let all = records(12);
        for seed in 0..3000 {
            let mut rng = Rng::with_seed(seed);
            let mut bytes = [&[rng.u8(..20)], &all[..]].concat();
            for _ in 0..rng.usize(..6) {
                let (at, len) = (rng.usize(..bytes.len()), rng.usize(..600));
                let end = (at + len).min(bytes.len());
                match rng.u32(..6) {
                    0 => bytes[at] = rng.u8(..),
                    1 => bytes[at..end].fill(0),
                    2 => bytes.truncate(at.max(1)),
                    // A byte of a mark, if the record has one there, or a part of a payload.
                    3 | 4 => _ = bytes.get_mut(at / 16 * 16 + 53).map(|byte| *byte = rng.u8(1..4)),
                    _ => {
                        let to = rng.usize(..=bytes.len() - (end - at));
                        bytes.copy_within(at..end, to);
                    }
                }
            }
            eprintln!("seed {seed}");
            segment(&bytes);
            export(&bytes);
        }
    }

    #[test]
    fn a_header_of_a_later_version_is_told_from_damage() {
        let mut bytes = records(3);
        bytes[5] = 1;
        set_checksums(&mut bytes, ID, RECORDS_AT, 1);
        assert_eq!(RecordHeader::decode(&bytes, ID, RECORDS_AT), Err(NoHeader::Unknown { kind: 2, flags: 1 }));
        let error = open(&disk(&bytes)).map(drop).expect_err("it is refused");
        assert!(matches!(error, OpenError::Read(ReadError::Newer { flags: 1, .. })), "{error}");
    }
}
