//! Directories that are not a log of this node are refused, with a sentence that says what to do.

use std::collections::BTreeMap;

use fastrand::Rng;
use squall_membership::{ClusterId, ShardId};
use squall_ordered::log::{Log, OpenError, Options, SimStorage};

use super::model::{open, options, records, write};

const SMALL: u64 = 8192;

/// A log of several segments.
fn several() -> (SimStorage, Options) {
    let (storage, options) = (SimStorage::new(1), options(SMALL, 4096));
    let mut log = open(&storage, options).log;
    write(&mut log, &records(&mut Rng::with_seed(1), 100), 7);
    log.raise_generation(4).expect("the disk is well");
    (storage, options)
}

fn refusal(storage: &SimStorage, options: Options) -> OpenError {
    Log::open(storage.clone(), options, &mut Rng::with_seed(1)).map(drop).expect_err("it is refused")
}

fn changed(storage: &SimStorage, change: impl FnOnce(&mut BTreeMap<String, Vec<u8>>)) -> SimStorage {
    let mut image = storage.image();
    change(&mut image);
    SimStorage::from_image(1, &image)
}

#[test]
fn another_clusters() {
    let (storage, options) = several();
    let error = refusal(&storage, Options { cluster: ClusterId(8), ..options });
    assert!(matches!(error, OpenError::OtherCluster { .. }), "{error}");
}

#[test]
fn another_shards() {
    let (storage, options) = several();
    let error = refusal(&storage, Options { shard: ShardId(4), ..options });
    assert!(matches!(error, OpenError::OtherShard { .. }), "{error}");
}

#[test]
fn an_old_copy() {
    let (storage, options) = several();
    let error = refusal(&storage, Options { generation: 5, ..options });
    assert!(matches!(error, OpenError::Older { found: 4, expected: 5, .. }), "{error}");
    assert_eq!(open(&storage, Options { generation: 4, ..options }).log.generation(), 4);
}

#[test]
fn none_where_there_was_one() {
    let error = refusal(&SimStorage::new(1), Options { generation: 1, ..options(SMALL, 1) });
    assert!(matches!(error, OpenError::Lost(_)), "{error}");
}

#[test]
fn a_later_versions() {
    let (storage, options) = several();
    for file in ["log", "segment-0000000001"] {
        let storage = changed(&storage, |image| {
            let bytes = image.get_mut(file).expect("it is there");
            for copy in [0, 2048] {
                bytes[copy + 8] = 4;
                let checksum = crc32c::crc32c(&bytes[copy..copy + 508]);
                bytes[copy + 508..copy + 512].copy_from_slice(&checksum.to_le_bytes());
            }
        });
        let error = refusal(&storage, options);
        assert!(matches!(error, OpenError::Version { found: 4, .. }), "{error}");
    }
}

#[test]
fn a_missing_segment() {
    let (storage, options) = several();
    let segments: Vec<String> = storage.image().into_keys().filter(|name| name.starts_with("segment-")).collect();
    assert!(segments.len() > 4);
    for segment in &segments {
        let storage = changed(&storage, |image| drop(image.remove(segment)));
        let error = refusal(&storage, options);
        assert!(matches!(&error, OpenError::Missing(path) if path.ends_with(segment)), "{error}");
    }
}

#[test]
fn a_segment_of_another_copy() {
    let (storage, options) = several();
    let other = SimStorage::new(2);
    let mut log = Log::open(other.clone(), options, &mut Rng::with_seed(99)).expect("it opens").log;
    write(&mut log, &records(&mut Rng::with_seed(1), 100), 7);
    let foreign = other.image()["segment-0000000002"].clone();
    let storage = changed(&storage, |image| {
        image.insert("segment-0000000002".to_string(), foreign);
    });
    let error = refusal(&storage, options);
    assert!(matches!(error, OpenError::Mixed(_)), "{error}");
}

#[test]
fn a_segment_that_is_cut_short() {
    let (storage, options) = several();
    let storage = changed(&storage, |image| image.get_mut("segment-0000000001").expect("it is there").truncate(5000));
    let error = refusal(&storage, options);
    assert!(matches!(error, OpenError::Mixed(_)), "{error}");
}

#[test]
fn segments_without_a_manifest() {
    let (storage, options) = several();
    let error = refusal(&changed(&storage, |image| drop(image.remove("log"))), options);
    assert!(matches!(error, OpenError::NoManifest(_)), "{error}");
}

#[test]
fn a_first_block_of_which_no_copy_is_right() {
    let (storage, options) = several();
    for file in ["log", "segment-0000000000", "segment-0000000002"] {
        let storage = changed(&storage, |_| {});
        storage.flip(file, 30, 0);
        storage.flip(file, 2048 + 31, 0);
        let error = refusal(&storage, options);
        assert!(matches!(&error, OpenError::Block(path) if path.ends_with(file)), "{error}");
    }
}

#[test]
fn segments_of_impossible_sizes() {
    for bytes in [0, 4096, 10_000, (1 << 30) + 4096] {
        let error = refusal(&SimStorage::new(1), options(bytes, 1));
        assert!(matches!(error, OpenError::SegmentBytes(_)), "{error}");
    }
}
