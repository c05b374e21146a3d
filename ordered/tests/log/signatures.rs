//! Signatures: an unaltered log passes, and any alteration of one is named.

use std::collections::BTreeMap;

use fastrand::Rng;
use squall_fabric::NodeId;
use squall_ordered::log::{End, Flaw, Hlc, Log, Position, ReadError, SimStorage, Verified, WriteError};

use super::model::{
    Kept, KeptBody, SIGNER, Seed, any_options, chain_at_start, chain_of, key, known, open, options, read_all, records,
    write,
};
use crate::seeds::seeds;

type Image = BTreeMap<String, Vec<u8>>;

/// The offset at which slots of signatures begin, and the size of a slot, in bytes.
const SLOTS_AT: usize = 4096;
const SLOT_BYTES: usize = 136;

const SIGNATURES: &str = "signatures-0000000000";
const SEGMENT: &str = "segment-0000000000";

/// A disk with a signed log of these records.
fn signed(all: &[Kept], most: usize) -> SimStorage {
    let storage = SimStorage::new(1);
    let mut log = open(&storage, options(8192, 4096)).log;
    log.sign_with(SIGNER, key(1)).expect("the disk is well");
    write(&mut log, all, most);
    storage
}

/// The findings of a caller that is given the files and the key.
fn check(image: &Image) -> Result<Verified, String> {
    let storage = SimStorage::from_image(1, image);
    let opened = Log::look(storage.clone(), false).map_err(|error| error.to_string())?;
    let mut found = opened.log.verify_signed(&[known(SIGNER, 1)], |_| {}).map_err(|error| error.to_string())?;
    assert!(storage.image() == *image, "it was only looked at");
    // A first block that is half damaged is as good as whole.
    found.flaws.extend(opened.healed.into_iter().map(|path| Flaw::Damaged { path, offset: 0 }));
    Ok(found)
}

fn flaws(image: &Image) -> Vec<Flaw> {
    let found = check(image).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(found.damage, [], "its checksums are right");
    found.flaws
}

/// The offsets of records in the first segment.
fn offsets(image: &Image) -> Vec<usize> {
    let (mut offsets, mut at, bytes) = (Vec::new(), 4096, &image[SEGMENT]);
    while bytes[at + 4] != 0 {
        offsets.push(at);
        at += (64 + len(bytes, at)).next_multiple_of(16);
    }
    offsets
}

fn len(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes")) as usize
}

/// Sets the checksums of a record right, so that no checksum shows its alteration.
fn pass_off(image: &mut Image, at: usize) {
    let bytes = image.get_mut(SEGMENT).expect("a segment");
    let id = bytes[40..48].to_vec();
    let end = at + (64 + len(bytes, at)).next_multiple_of(16);
    let payload = crc32c::crc32c(&bytes[at + 64..end]);
    bytes[at + 56..at + 60].copy_from_slice(&payload.to_le_bytes());
    let header = crc32c::crc32c(&[&id, &(at as u64).to_le_bytes()[..], &bytes[at..at + 60]].concat());
    bytes[at + 60..at + 64].copy_from_slice(&header.to_le_bytes());
}

/// Sets the checksum of the nth signature of the first segment right.
fn pass_off_signature(image: &mut Image, nth: usize) {
    let id = image[SEGMENT][40..48].to_vec();
    let at = SLOTS_AT + nth * SLOT_BYTES;
    let bytes = image.get_mut(SIGNATURES).expect("signatures");
    let checksum = crc32c::crc32c(&[&id, &(at as u64).to_le_bytes()[..], &bytes[at..at + 132]].concat());
    bytes[at + 132..at + 136].copy_from_slice(&checksum.to_le_bytes());
}

/// A view, and messages of 100 bytes.
fn plain(messages: u64) -> Vec<Kept> {
    let mut all = records(&mut Rng::with_seed(2), 1);
    for nth in 0..messages {
        let End { position, version, time } = all[nth as usize].reached();
        let body = KeptBody::Message(NodeId(1), vec![nth as u8 + 1; 100]);
        all.push(Kept { position, time: Hlc(time.0 + 10), version: version + 1, body });
    }
    all
}

#[test]
fn an_unaltered_log_passes_and_two_members_have_the_same_chain() {
    for seed in seeds(200) {
        let _seed = Seed(seed);
        let mut rng = Rng::with_seed(seed);
        let count = rng.usize(1..150);
        let all = records(&mut rng, count);
        let (at, later) = (all[rng.usize(..count)].end(), all[rng.usize(..count)].end());
        let mut chains = Vec::new();
        for member in [1, 2] {
            let storage = SimStorage::new(seed);
            let mut log = open(&storage, any_options(&mut rng)).log;
            log.sign_with(NodeId(member), key(member as u8)).expect("the disk is well");
            write(&mut log, &all, rng.usize(1..20));

            let found = log.verify_signed(&[known(NodeId(member), member as u8)], |_| {}).expect("it can be read");
            assert_eq!((found.damage, found.flaws), (vec![], vec![]));
            let [signed] = found.signed[..] else { panic!("one member signed") };
            assert!(signed.is_known);
            assert_eq!((signed.member, signed.to), (NodeId(member), log.persisted()));
            assert_eq!(found.chain, Some(chain_of(&log, chain_at_start())));
            let chain = |at| log.chain_at(at).expect("it is well");
            assert_eq!(chain(Position::MAX), found.chain);
            chains.push((found.chain, chain(at), log.digest(at, later).expect("it is well")));
        }
        assert_eq!(chains[0], chains[1]);
    }
}

#[test]
fn without_signatures_members_still_agree_or_not_by_a_digest() {
    let all = plain(20);
    let (mine, theirs) = (SimStorage::new(1), SimStorage::new(2));
    let mut log = open(&mine, options(8192, 4096)).log;
    write(&mut log, &all, 3);
    let mut other = open(&theirs, options(1 << 20, 4096)).log;
    let mut changed = all.clone();
    changed[5].body = KeptBody::Message(NodeId(1), vec![9; 100]);
    write(&mut other, &changed, 7);
    let digests = |from, to| [&log, &other].map(|log| log.digest(from, to).expect("it is well"));
    let [same, too] = digests(all[5].end(), Position::MAX);
    assert_eq!(same, too);
    let [one, another] = digests(Position::START, all[10].end());
    assert_ne!(one, another);
    assert_eq!(log.verify_signed(&[], |_| {}).expect("it is well").signed, []);
    assert_eq!(log.chain_at(all[5].end()).expect("it is well"), None);
}

#[test]
fn every_bit_counts() {
    let image = signed(&plain(3), 2).image();
    assert!(check(&image).is_ok_and(|found| found.flaws.is_empty()));
    let end = image[SEGMENT].iter().rposition(|&byte| byte != 0).expect("records") / 16 * 16 + 16;
    let blocks = [0..512, 2048..2560];
    let of = |name: &str, rest: std::ops::Range<usize>| {
        let offsets = blocks.iter().cloned().chain([rest]).flatten();
        offsets.map(|at| (name.to_string(), at)).collect::<Vec<_>>()
    };
    let mut places = of(SEGMENT, 4096..end);
    places.extend(of(SIGNATURES, SLOTS_AT..image[SIGNATURES].len()));
    for (name, at) in places {
        for bit in 0..8 {
            let mut changed = image.clone();
            changed.get_mut(&name).expect("a file")[at] ^= 1 << bit;
            let Ok(found) = check(&changed) else { continue };
            let named = found.flaws.iter().any(|flaw| flaw.to_string().contains(&name));
            let damaged = found.damage.iter().any(|damage| damage.path.to_str() == Some(&name));
            assert!(named || damaged, "{name}, offset {at}, bit {bit}: {found:?}");
        }
    }
}

/// The flaw that the records behind version `after`, up to `version`, are not those of the nth signature.
fn altered(nth: usize, after: u64, version: u64) -> Flaw {
    let offset = if nth == 0 { 0 } else { SLOTS_AT + (nth - 1) * SLOT_BYTES } as u64;
    Flaw::Altered { path: SIGNATURES.into(), offset, member: SIGNER, after, version }
}

#[test]
fn a_record_that_was_altered_with_its_checksums_is_named_by_the_signature() {
    let image = signed(&plain(8), 3).image();
    let at = offsets(&image);
    // The view alone is one batch; then there are three messages in each.
    for (nth, record) in at.iter().enumerate().skip(1) {
        let batch = (nth - 1) / 3;
        let (after, version) = (3 * batch as u64, (3 * batch as u64 + 3).min(8));
        // The first byte of its payload and the last, its time, its sender.
        for byte in [64, 163, 24, 40] {
            let mut image = image.clone();
            image.get_mut(SEGMENT).expect("a segment")[record + byte] ^= 1;
            pass_off(&mut image, *record);
            assert_eq!(flaws(&image), [altered(batch + 2, after, version)], "byte {byte} of record {nth}");
        }
    }
}

#[test]
fn records_that_changed_places_are_named() {
    let mut image = signed(&plain(8), 3).image();
    let at = offsets(&image);
    let (one, another) = image.get_mut(SEGMENT).expect("a segment").split_at_mut(at[3]);
    one[at[2] + 64..at[2] + 164].swap_with_slice(&mut another[64..164]);
    pass_off(&mut image, at[2]);
    pass_off(&mut image, at[3]);
    assert_eq!(flaws(&image), [altered(2, 0, 3)]);
}

/// Ends the first segment's records before the nth, so that no checksum shows it.
fn end_before(image: &mut Image, nth: usize) {
    let at = offsets(image)[nth];
    image.get_mut(SEGMENT).expect("a segment")[at..].fill(0);
}

#[test]
fn a_tail_that_was_taken_away_is_named_as_long_as_a_signature_tells() {
    let mut image = signed(&plain(8), 3).image();
    end_before(&mut image, 6);
    let beyond = |nth: usize, version| {
        let offset = (SLOTS_AT + nth * SLOT_BYTES) as u64;
        Flaw::Beyond { path: SIGNATURES.into(), offset, member: SIGNER, version, end: 5 }
    };
    assert_eq!(flaws(&image), [beyond(2, 6), beyond(3, 8)]);
    // With the signatures gone, too, nothing here shows the loss, except that the log is signed up to there only.
    // Another member's log shows more.
    image.get_mut(SIGNATURES).expect("signatures").truncate(SLOTS_AT + 2 * SLOT_BYTES);
    let found = check(&image).expect("it can be read");
    assert_eq!((found.flaws, found.signed[0].to.version), (vec![], 3));
}

#[test]
fn another_key_s_signatures_are_told_from_the_member_s() {
    let all = plain(8);
    let mine = signed(&all, 3).image();
    let path = || SIGNATURES.into();
    // The file of another member, which wrote it whole.
    let storage = SimStorage::new(1);
    let mut log = open(&storage, options(8192, 4096)).log;
    log.sign_with(SIGNER, key(9)).expect("the disk is well");
    write(&mut log, &all, 3);
    let theirs = storage.image();
    let unknown = Flaw::UnknownKey { path: path(), member: SIGNER, key: key(9).public_key() };
    assert_eq!(flaws(&theirs), [unknown]);

    // One of the other's signatures among the member's.
    let mut mixed = mine.clone();
    let slot = SLOTS_AT + SLOT_BYTES..SLOTS_AT + 2 * SLOT_BYTES;
    mixed.get_mut(SIGNATURES).expect("signatures")[slot.clone()].copy_from_slice(&theirs[SIGNATURES][slot.clone()]);
    pass_off_signature(&mut mixed, 1);
    let forged = Flaw::Forged { path: path(), offset: slot.start as u64, member: SIGNER, version: 3 };
    assert_eq!(flaws(&mixed), std::slice::from_ref(&forged));

    // One bit of a signature, with its checksum.
    let mut changed = mine;
    changed.get_mut(SIGNATURES).expect("signatures")[slot.start + 7] ^= 1;
    pass_off_signature(&mut changed, 1);
    assert_eq!(flaws(&changed), [forged]);
}

#[test]
fn signatures_that_are_missing_or_another_segment_s_are_named() {
    let storage = SimStorage::new(1);
    let mut log = open(&storage, options(8192, 4096)).log;
    log.sign_with(SIGNER, key(1)).expect("the disk is well");
    write(&mut log, &plain(80), 3);
    let image = storage.image();
    let second = "signatures-0000000001";
    let mut missing = image.clone();
    missing.remove(second);
    assert_eq!(flaws(&missing), [Flaw::Missing(second.into())]);
    let mut foreign = image.clone();
    foreign.insert(second.to_string(), image[SIGNATURES].clone());
    assert_eq!(flaws(&foreign), [Flaw::Foreign(second.into())]);
}

#[test]
fn behind_damage_the_next_signature_tells_the_chain_again() {
    let storage = signed(&plain(8), 3);
    let at = offsets(&storage.image());
    storage.flip(SEGMENT, at[2] as u64 + 70, 3);
    let found = check(&storage.image()).expect("it can be read");
    assert_eq!(found.damage.len(), 1);
    let path = SIGNATURES.into();
    let offset = (SLOTS_AT + SLOT_BYTES) as u64;
    assert_eq!(found.flaws, [Flaw::Unchecked { path, offset, after: 0, version: 3 }]);
    assert_eq!(found.signed[0].to.version, 8);
    assert!(found.chain.is_some());
}

#[test]
fn a_log_that_was_not_signed_is_signed_when_it_begins_to_be() {
    let all = plain(60);
    let storage = SimStorage::new(1);
    let mut log = open(&storage, options(8192, 4096)).log;
    write(&mut log, &all[..40], 3);
    let anew = log.sign_with(SIGNER, key(1)).expect("the disk is well");
    assert_eq!((anew.from, anew.records), (End::START, 40));
    write(&mut log, &all[40..], 3);
    let found = log.verify_signed(&[known(SIGNER, 1)], |_| {}).expect("it can be read");
    assert_eq!((found.flaws, found.signed[0].to, found.signed[0].from), (vec![], log.persisted(), End::START));
    assert_eq!(found.chain, Some(chain_of(&log, chain_at_start())));

    let mut again = open(&storage, options(8192, 4096)).log;
    let anew = again.sign_with(SIGNER, key(1)).expect("the disk is well");
    assert_eq!((anew.from, anew.records), (log.persisted(), 0), "it is signed");
}

#[test]
fn another_key_goes_on_from_the_last_segment() {
    let all = plain(60);
    let storage = SimStorage::new(1);
    let mut log = open(&storage, options(8192, 4096)).log;
    log.sign_with(SIGNER, key(1)).expect("the disk is well");
    write(&mut log, &all[..40], 3);
    let mut log = open(&storage, options(8192, 4096)).log;
    log.sign_with(SIGNER, key(9)).expect("the disk is well");
    write(&mut log, &all[40..], 3);
    let found = log.verify_signed(&[known(SIGNER, 1), known(SIGNER, 9)], |_| {}).expect("it can be read");
    assert_eq!(found.flaws, []);
    let [one, another] = found.signed[..] else { panic!("{:?}", found.signed) };
    assert_eq!((one.from, one.to, another.to), (End::START, another.from, log.persisted()));
    assert_eq!(found.chain, Some(chain_of(&log, chain_at_start())));
}

#[test]
fn a_log_that_begins_with_another_s_state_goes_on_with_its_chain() {
    let all = plain(60);
    let source = signed(&all, 3);
    let source = open(&source, options(8192, 4096)).log;
    let at = all[30].reached();
    let chain = source.chain_at(at.position).expect("it is well");
    assert!(chain.is_some());

    let storage = SimStorage::new(2);
    let mut log = open(&storage, options(8192, 4096)).log;
    log.sign_with(NodeId(3), key(3)).expect("the disk is well");
    write(&mut log, &plain(5), 2);
    log.begin_anew_with(at, chain).expect("the disk is well");
    write(&mut log, &all[31..], 4);
    let end = source.chain_at(Position::MAX).expect("it is well");
    assert_eq!(log.chain_at(Position::MAX).expect("it is well"), end);
    let found = log.verify_signed(&[known(NodeId(3), 3)], |_| {}).expect("it can be read");
    assert_eq!((found.flaws, found.chain), (vec![], end));
    assert_eq!((found.signed[0].from, found.signed[0].to), (at, log.persisted()));
}

#[test]
fn a_member_does_not_go_on_with_a_log_that_lost_what_it_signed() {
    let mut image = signed(&plain(8), 3).image();
    end_before(&mut image, 8);
    let storage = SimStorage::from_image(1, &image);
    let mut log = open(&storage, options(8192, 4096)).log;
    let error = log.sign_with(SIGNER, key(1)).expect_err("it was changed");
    assert!(matches!(error, WriteError::Read(ReadError::NotSigned { version: 8, .. })), "{error}");
    let mut appender = log.appender();
    let next = Kept {
        position: Position::new(log.persisted().position.epoch, log.persisted().position.seq),
        ..plain(9).remove(8)
    };
    next.append_to(&mut appender).expect("it comes next");
    let error = log.commit(&mut appender.take_batch().expect("a record")).expect_err("nor later");
    assert!(matches!(error, WriteError::Read(ReadError::NotSigned { .. })), "{error}");
}

#[test]
fn damage_is_replaced_before_a_log_is_signed() {
    let all = plain(8);
    let storage = SimStorage::new(1);
    let mut log = open(&storage, options(8192, 4096)).log;
    write(&mut log, &all, 3);
    let at = offsets(&storage.image());
    storage.flip(SEGMENT, at[2] as u64 + 70, 3);
    let opened = open(&storage, options(8192, 4096));
    let mut log = opened.log;
    let error = log.sign_with(SIGNER, key(1)).expect_err("a record is damaged");
    assert!(matches!(error, WriteError::Read(ReadError::Damaged(_))), "{error}");
    let other = open(&signed(&all, 1), options(8192, 4096)).log;
    let [damage] = &opened.damage[..] else { panic!("{:?}", opened.damage) };
    let missing = other.export(damage.after, damage.before.expect("more follows"), usize::MAX).expect("it is well");
    log.replace_damaged(damage, &missing.bytes).expect("it is what is missing");
    write(&mut log, &plain(9)[9..], 1);
    let found = log.verify_signed(&[known(SIGNER, 1)], |_| {}).expect("it can be read");
    assert_eq!((found.flaws, found.signed[0].to), (vec![], log.persisted()));
}

#[test]
fn a_look_changes_nothing_and_takes_a_torn_tail_for_what_it_is() {
    for seed in seeds(300) {
        let _seed = Seed(seed);
        let mut rng = Rng::with_seed(seed);
        let all = records(&mut rng, 40);
        let (storage, options) = (SimStorage::new(seed), any_options(&mut rng));
        let mut log = open(&storage, options).log;
        log.sign_with(SIGNER, key(1)).expect("the disk is well");
        write(&mut log, &all[..30], rng.usize(1..9));
        let persisted = log.persisted();
        let mut appender = log.appender();
        let _ = all[30..].iter().take_while(|record| record.append_to(&mut appender).is_ok()).count();
        storage.crash_at(storage.changes() + rng.u64(..3));
        // The commit may be done before the crash.
        let _ = log.commit(&mut appender.take_batch().expect("records"));
        storage.restart();

        let image = storage.image();
        let mut looked = Log::look(storage.clone(), rng.bool()).expect("it can be read").log;
        let found = looked.verify_signed(&[known(SIGNER, 1)], |_| {}).expect("it can be read");
        assert_eq!((found.damage, found.flaws), (vec![], vec![]));
        assert!(looked.persisted().position >= persisted.position);
        assert!(looked.cut_to(Position::START).is_err_and(|error| matches!(error, WriteError::LookedAt)));
        assert!(storage.image() == image, "it was only looked at");
        assert_eq!(read_all(&looked), read_all(&open(&storage, options).log));
    }
}
