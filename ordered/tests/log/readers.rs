//! Readers that begin at a version, and go on as the log does.

use fastrand::Rng;
use squall_ordered::log::{End, Hlc, ReadError, Reader, SimStorage};

use super::model::{Kept, KeptBody, Seed, any_options, next_record, open, options, records, write};
use crate::seeds::seeds;

/// The records that a reader shows up to its end.
fn rest(reader: &mut Reader<SimStorage>) -> Vec<Kept> {
    let mut shown = Vec::new();
    while let Some(record) = reader.next_record().expect("the log is well") {
        shown.push(Kept::of(&record));
    }
    shown
}

#[test]
fn a_reader_that_goes_on_shows_every_record_once() {
    for seed in seeds(200) {
        let _seed = Seed(seed);
        let mut rng = Rng::with_seed(seed);
        let mut log = open(&SimStorage::new(seed), any_options(&mut rng)).log;
        // One reader from the empty log on, and one from each place at which there was another.
        let mut readers = vec![(log.read_behind(0).expect("it begins there"), Vec::new(), 0)];
        let mut all: Vec<Kept> = Vec::new();
        for _ in 0..rng.usize(1..12) {
            let from = all.len();
            for _ in 0..rng.usize(..40) {
                let end = all.last().map_or(End::START, Kept::reached);
                all.push(next_record(&mut rng, end));
            }
            write(&mut log, &all[from..], rng.usize(1..20));
            let version = rng.u64(..=log.persisted().version);
            readers.push((log.read_behind(version).expect("it is there"), Vec::new(), version));
            let tip = log.tip();
            for (reader, shown, _) in &mut readers {
                if rng.bool() {
                    reader.extend(tip).expect("the log goes on");
                    shown.append(&mut rest(reader));
                }
            }
        }
        for (mut reader, mut shown, version) in readers {
            reader.extend(log.tip()).expect("the log goes on");
            shown.append(&mut rest(&mut reader));
            let is_behind = |record: &&Kept| match record.body {
                KeptBody::Message(..) => record.version > version,
                KeptBody::View(_) => record.version >= version,
            };
            let expected: Vec<Kept> = all.iter().filter(is_behind).cloned().collect();
            assert_eq!(shown, expected, "behind version {version}");
        }
    }
}

#[test]
fn a_reader_before_whose_place_the_log_was_cut_is_told() {
    let all = records(&mut Rng::with_seed(5), 300);
    let mut log = open(&SimStorage::new(1), options(8192, 4096)).log;
    write(&mut log, &all, 10);
    let mut reader = log.read_behind(0).expect("it begins there");
    assert_eq!(rest(&mut reader).len(), 300);
    log.cut_to(all[200].end()).expect("the disk is well");
    let other = next_record(&mut Rng::with_seed(6), log.persisted());
    write(&mut log, &[other], 1);
    assert!(matches!(reader.extend(log.tip()), Err(ReadError::Gone { .. })));

    let mut reader = log.read_behind(0).expect("it begins there");
    assert_eq!(rest(&mut reader).len(), 202);
    let at = End { time: Hlc(u64::MAX / 2), version: 1000, ..log.persisted() };
    log.begin_anew(at).expect("the disk is well");
    assert!(reader.extend(log.tip()).is_err());
    assert!(matches!(log.read_behind(999), Err(ReadError::OldVersion { asked: 999, begin: 1000 })));
}

#[test]
fn what_lies_behind_a_place_takes_what_its_segments_do() {
    let all = records(&mut Rng::with_seed(5), 300);
    let mut log = open(&SimStorage::new(1), options(8192, 4096)).log;
    write(&mut log, &all, 10);
    let behind: Vec<u64> = all.iter().map(|record| log.bytes_behind(record.end()).expect("the disk is well")).collect();
    assert!(behind.is_sorted_by(|a, b| a >= b), "{behind:?}");
    let payloads = |records: &[Kept]| -> u64 {
        let bytes = |record: &Kept| if let KeptBody::Message(_, bytes) = &record.body { bytes.len() as u64 } else { 0 };
        records.iter().map(bytes).sum()
    };
    assert!(behind[0] > payloads(&all[1..]) && behind[299] <= 40_960, "{behind:?}");
}
