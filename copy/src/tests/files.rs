//! The reading, packing, writing and placing of contents.

use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::Path,
};

use super::{
    super::{
        feed::Feed,
        scan::{KeptAttributes, LinkPolicy},
        sink::{SinkError, SinkOptions, Verdict},
    },
    pair::{Copy, Pair, SEGMENT, assert_same, copy, make_tree, noise, options, scan_all},
};

#[test]
fn a_tree_arrives_with_modes_times_and_links_and_nothing_else() {
    for sync in [true, false] {
        let pair = Pair::new();
        make_tree(&pair);
        let outcome = copy(&pair, SinkOptions { sync, ..options() });
        assert_eq!((outcome.placed, outcome.failures), (12, 0), "{outcome:?}");
        assert_same(&pair.from("tree"), &pair.to("tree"));
        assert_same(&pair.from("z"), &pair.to("z"));
        let staged: Vec<_> =
            fs::read_dir(pair.to(".squall-cp")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let is_note = |name: &std::ffi::OsString| name.to_str().unwrap().starts_with("unsynced.");
        assert!(staged.iter().all(|name| !sync && is_note(name)), "{staged:?}");
        let again = copy(&pair, SinkOptions { sync, ..options() });
        assert_eq!((again.placed, again.unchanged, again.failures), (0, 12, 0), "{again:?}");
        assert_same(&pair.from("tree"), &pair.to("tree"));
    }
}

#[test]
fn a_transfer_goes_on_after_any_segment() {
    let pair = Pair::new();
    make_tree(&pair);
    let scan = pair.scan();
    let all = pair.sink(&scan, options()).lacks;
    let segments = all.div_ceil(SEGMENT as u64);
    for stop in 0..=segments {
        let mut first = pair.sink(&scan, options());
        assert_eq!(first.lacks, all);
        first.pump(stop);
        drop(first);
        let second = pair.sink(&scan, options());
        let came = (stop * SEGMENT as u64).min(all);
        // A file that is smaller than a chunk comes whole or not at all.
        let largest = 5432;
        assert!((all - came..=all - came + largest).contains(&second.lacks), "{} after {came}", second.lacks);
        assert!(came < all || second.lacks == 0);
        assert_eq!(second.finish().failures, 0);
        assert_same(&pair.from("tree"), &pair.to("tree"));
        fs::remove_dir_all(pair.to("tree")).unwrap();
        fs::remove_file(pair.to("z")).unwrap();
    }
}

#[test]
fn blocks_of_a_segment_that_is_not_whole_need_not_come_again() {
    let pair = Pair::new();
    let noise = noise(1, 400_000);
    fs::write(pair.from("a"), &noise).unwrap();
    let scan = pair.scan();
    let mut first = pair.sink(&scan, options());
    first.pump(3);
    let mut held = squall_rdmc::BlockSet::new(4);
    held.insert(1);
    let mut bytes = vec![0xee; SEGMENT];
    bytes[250..500].copy_from_slice(&noise[3250..3500]);
    first.sink.salvage(3, &held, 250, &bytes).unwrap();
    drop(first);
    // What is there is less than a chunk, so it does not count; nothing wrong is taken for right.
    let second = pair.sink(&scan, options());
    assert_eq!(second.finish().failures, 0);
    assert_same(&pair.from("a"), &pair.to("a"));
    let staged = fs::read_dir(pair.to(".squall-cp")).unwrap().count();
    assert_eq!(staged, 0);
}

#[test]
fn of_a_file_that_changed_only_what_changed_moves_also_if_it_is_interrupted() {
    let pair = Pair::new();
    let mut bytes = noise(1, 4 << 20);
    fs::write(pair.from("a"), &bytes).unwrap();
    assert_eq!(copy(&pair, options()).placed, 1);
    bytes.splice(1_000_000..1_000_000, noise(2, 200_000));
    bytes.extend(noise(3, 100_000));
    fs::write(pair.from("a"), &bytes).unwrap();
    let scan = pair.scan();
    let mut first = pair.sink(&scan, options());
    let lacks = first.lacks;
    assert!((300_000..1_500_000).contains(&lacks), "{lacks}");
    first.pump(150);
    drop(first);
    // It changes once more: what has come of the version between counts all the same.
    bytes[3_000_000..3_000_100].fill(0);
    fs::write(pair.from("a"), &bytes).unwrap();
    let scan = pair.scan();
    let mut second = pair.sink(&scan, options());
    let lacks = second.lacks;
    assert!(lacks < 1_600_000, "{lacks}");
    second.pump(10);
    drop(second);
    let third = pair.sink(&scan, options());
    assert!(third.lacks < lacks + 300_000, "{} after {lacks}", third.lacks);
    let outcome = third.finish();
    assert_eq!((outcome.placed, outcome.failures), (1, 0), "{outcome:?}");
    assert_same(&pair.from("a"), &pair.to("a"));
    assert_eq!(fs::read_dir(pair.to(".squall-cp")).unwrap().count(), 0);
}

#[test]
fn contents_are_compared_where_size_and_time_say_nothing() {
    let pair = Pair::new();
    let bytes = noise(1, 300_000);
    fs::write(pair.from("a"), &bytes).unwrap();
    fs::write(pair.from("b"), "small").unwrap();
    let no_sync = SinkOptions { sync: false, ..options() };
    assert_eq!(copy(&pair, no_sync.clone()).placed, 2);
    let damage = || {
        let time = fs::metadata(pair.to("a")).unwrap().modified().unwrap();
        for name in ["a", "b"] {
            let file = fs::File::options().write(true).open(pair.to(name)).unwrap();
            file.write_all_at(b"XX", 1).unwrap();
            file.set_modified(fs::metadata(pair.from(name)).unwrap().modified().unwrap()).unwrap();
        }
        time
    };
    damage();
    assert_eq!(copy(&pair, no_sync.clone()).unchanged, 2, "as rsync, without --checksum");
    let outcome = copy(&pair, SinkOptions { checksum: true, ..no_sync.clone() });
    assert_eq!((outcome.placed, outcome.unchanged), (2, 0), "{outcome:?}");
    assert_same(&pair.from("a"), &pair.to("a"));
    assert_eq!(copy(&pair, SinkOptions { checksum: true, ..no_sync.clone() }).unchanged, 2);
    // The host crashes before the files are on its disk.
    damage();
    let notes = fs::read_dir(pair.to(".squall-cp")).unwrap().map(|entry| entry.unwrap().path());
    notes.for_each(|note| fs::write(note, "another boot").unwrap());
    let scan = pair.scan();
    let mut interrupted = pair.sink(&scan, no_sync.clone());
    interrupted.pump(1);
    drop(interrupted);
    let outcome = copy(&pair, no_sync);
    assert_eq!((outcome.placed, outcome.failures), (2, 0), "the push that was interrupted says nothing: {outcome:?}");
    assert_same(&pair.from("a"), &pair.to("a"));
    assert_eq!(copy(&pair, options()).unchanged, 2);
    let notes = || fs::read_dir(pair.to(".squall-cp")).unwrap().count();
    assert_eq!(notes(), 2, "files that are not among these were not compared");
    assert_eq!(copy(&pair, SinkOptions { delete: true, ..options() }).unchanged, 2);
    assert_eq!(notes(), 0);
}

#[test]
fn what_was_lost_since_is_asked_for_again() {
    let pair = Pair::new();
    fs::write(pair.from("a"), vec![1; 1500]).unwrap();
    fs::write(pair.from("b"), noise(2, 1_000_000)).unwrap();
    let scan = pair.scan();
    let mut first = pair.sink(&scan, options());
    first.pump(600);
    drop(first);
    fs::remove_file(pair.to("a")).unwrap();
    let second = pair.sink(&scan, options());
    let still = 1_001_500 - 600_000 + 1500;
    assert!((still..still + 70_000).contains(&second.lacks), "a is gone: {}", second.lacks);
    assert_eq!(second.finish().failures, 0);
    assert_same(&pair.from("a"), &pair.to("a"));
    assert_same(&pair.from("b"), &pair.to("b"));
}

#[test]
fn no_file_has_its_name_before_it_is_verified() {
    let pair = Pair::new();
    fs::write(pair.from("a"), vec![1; 500]).unwrap();
    let scan = pair.scan();
    let mut sink = pair.sink(&scan, options()).sink;
    sink.write(0, &[1; 500]).unwrap();
    assert!(!pair.to("a").exists());
    sink.verdict(0, Verdict::Intact([0; 32])).unwrap();
    sink.commit().unwrap();
    assert!(!pair.to("a").exists());
    let outcome = sink.finish().unwrap();
    assert_eq!(outcome.failed, ["\"a\": what was written is not what the source read: push it again"]);
    assert!(!pair.to("a").exists());
}

#[test]
fn a_file_that_changes_under_the_reader_is_named_and_its_neighbours_are_well() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 4] = [
        ("size changed from 1500 to 3 bytes", |path| fs::write(path, "now").unwrap()),
        ("changed after the transfer had begun", |path| fs::write(path, vec![9; 1500]).unwrap()),
        ("could not open it", |path| fs::remove_file(path).unwrap()),
        ("no file any more", |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
    ];
    for (told, change) in changes {
        let pair = Pair::new();
        fs::write(pair.from("a"), vec![1; 700]).unwrap();
        fs::write(pair.from("b"), vec![2; 1500]).unwrap();
        fs::write(pair.from("c"), vec![3; 700]).unwrap();
        let scan = pair.scan();
        change(&pair.from("b"));
        let outcome = pair.sink(&scan, options()).finish();
        assert!(outcome.failed[0].contains(told), "{outcome:?}");
        assert_eq!((outcome.placed, outcome.failures), (2, 1));
        assert!(!pair.to("b").exists());
        assert_same(&pair.from("a"), &pair.to("a"));
        assert_same(&pair.from("c"), &pair.to("c"));
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_damaged() {
    let pair = Pair::new();
    fs::write(pair.from("a"), vec![1; 3000]).unwrap();
    let Copy { mut feed, .. } = pair.sink(&pair.scan(), options());
    let (mut bytes, mut verdicts) = (vec![0; 1000], Vec::new());
    feed.read(0, &mut bytes, &mut verdicts);
    fs::File::options().write(true).open(pair.from("a")).unwrap().set_len(1500).unwrap();
    feed.read(1, &mut bytes, &mut verdicts);
    assert_eq!(bytes, [0; 1000], "the rest is padded");
    feed.read(2, &mut bytes, &mut verdicts);
    assert_eq!(verdicts, [(0, Verdict::Damaged("it shrank while it was read".to_owned()))]);
}

#[test]
fn a_file_of_the_kernel_whose_size_is_not_told_is_named() {
    let pair = Pair::new();
    let scan = scan_all(&["/proc/version".into()], KeptAttributes::default(), LinkPolicy::Keep, &[]).unwrap();
    let outcome = pair.sink(&scan, options()).finish();
    assert_eq!((outcome.placed, outcome.failures), (0, 1), "{outcome:?}");
    assert!(outcome.failed[0].contains("copy it to another file"), "{outcome:?}");
    assert!(!pair.to("version").exists());
}

#[test]
fn a_segment_is_read_again_and_each_file_judged_once() {
    let pair = Pair::new();
    make_tree(&pair);
    let scan = pair.scan();
    let Copy { mut feed, layout, .. } = pair.sink(&scan, options());
    let mut verdicts = Vec::new();
    let mut read = |feed: &mut Feed, segment| {
        let mut bytes = vec![0; layout.len(segment)];
        feed.read(segment, &mut bytes, &mut verdicts);
        bytes
    };
    let once: Vec<Vec<u8>> = (0..6).map(|segment| read(&mut feed, segment)).collect();
    let again: Vec<Vec<u8>> = (2..6).map(|segment| read(&mut feed, segment)).collect();
    assert!(once[2..] == again[..]);
    (6..layout.segments()).for_each(|segment| _ = read(&mut feed, segment));
    feed.finish(&mut verdicts);
    let mut entries: Vec<u32> = verdicts.iter().map(|(entry, _)| *entry).collect();
    let all = entries.len();
    entries.sort_unstable();
    entries.dedup();
    assert_eq!((entries.len(), all), (scan.manifest.files(), scan.manifest.files()));
}

#[test]
fn a_directory_that_is_read_only_is_filled_and_filled_again() {
    let pair = Pair::new();
    fs::create_dir(pair.from("d")).unwrap();
    fs::write(pair.from("d/x"), "x").unwrap();
    let set = |directory: &Path, mode| fs::set_permissions(directory, fs::Permissions::from_mode(mode)).unwrap();
    set(&pair.from("d"), 0o555);
    for contents in ["x", "other"] {
        fs::write(pair.from("d/x"), contents).unwrap();
        let outcome = copy(&pair, options());
        assert_eq!((outcome.placed, outcome.failures), (1, 0), "{outcome:?}");
        assert_same(&pair.from("d"), &pair.to("d"));
    }
    set(&pair.from("d"), 0o755);
    set(&pair.to("d"), 0o755);
}

#[test]
fn a_source_that_breaks_the_order_is_stopped() {
    let pair = Pair::new();
    fs::write(pair.from("a"), vec![1; 3000]).unwrap();
    let mut sink = pair.sink(&pair.scan(), options()).sink;
    for (segment, bytes) in [(1, 1000), (0, 999)] {
        assert!(matches!(sink.write(segment, &vec![0; bytes]), Err(SinkError::Order { .. })));
    }
}

#[test]
fn a_full_disk_ends_the_transfer_with_advice() {
    // Writes to /dev/full fail as writes to a full disk do.
    let error = SinkError::Contents { attempt: "write", path: "a".to_owned(), cause: rustix::io::Errno::NOSPC };
    let text = error.to_string();
    assert!(text.contains("\"a\"") && text.contains("free some space there, and push again"), "{text}");
}

#[test]
fn a_file_that_repeats_itself_is_taken_up_where_it_was_and_kept_once() {
    let pair = Pair::new();
    // Mostly the same 100,000 bytes.
    let bytes = [noise(1, 100_000).repeat(10), noise(2, 100_000), noise(1, 100_000).repeat(10)].concat();
    fs::write(pair.from("a"), &bytes).unwrap();
    for part in 1..5 {
        let mut first = pair.sink(&pair.scan(), options());
        let limit = if part == 1 { 2_100_000 } else { 200_000 };
        assert!(first.lacks > 0 && first.lacks <= limit, "{}", first.lacks);
        first.pump(if part == 1 { 1050 } else { 5 });
        drop(first);
        let transfer = fs::read_dir(pair.to(".squall-cp")).unwrap().next().unwrap().unwrap().path();
        let staged: Vec<u64> =
            fs::read_dir(transfer).unwrap().map(|entry| entry.unwrap().metadata().unwrap().blocks()).collect();
        assert_eq!(staged.len(), 1, "{staged:?}");
    }
    assert_eq!(copy(&pair, options()).placed, 1);
    assert_same(&pair.from("a"), &pair.to("a"));
    assert_eq!(copy(&pair, SinkOptions { checksum: true, ..options() }).unchanged, 1);
}

#[test]
fn what_came_of_a_file_that_could_not_be_placed_need_not_come_again() {
    let pair = Pair::new();
    fs::create_dir(pair.from("d")).unwrap();
    fs::write(pair.from("d/a"), noise(1, 500_000)).unwrap();
    fs::set_permissions(pair.from("d/a"), fs::Permissions::from_mode(0o400)).unwrap();
    fs::write(pair.to("d"), "in the way").unwrap();
    let outcome = copy(&pair, options());
    assert_eq!((outcome.placed, outcome.failures), (0, 2), "{outcome:?}");
    fs::remove_file(pair.to("d")).unwrap();
    let second = pair.sink(&pair.scan(), options());
    assert_eq!(second.lacks, 0);
    assert_eq!(second.finish().placed, 1);
    assert_same(&pair.from("d"), &pair.to("d"));
}

#[test]
fn another_version_that_changes_meanwhile_costs_its_own_file_only() {
    let pair = Pair::new();
    fs::write(pair.to("a"), noise(1, 500_000)).unwrap();
    fs::write(pair.from("a"), [noise(1, 500_000), noise(2, 50_000)].concat()).unwrap();
    fs::write(pair.from("b"), "b").unwrap();
    let mut first = pair.sink(&pair.scan(), options());
    assert!(first.lacks < 200_000, "{}", first.lacks);
    fs::write(pair.to("a"), "rotated").unwrap();
    first.pump(u64::MAX);
    let outcome = first.finish();
    assert_eq!((outcome.placed, outcome.failures), (1, 1), "{outcome:?}");
    assert!(outcome.failed[0].contains("has changed meanwhile"), "{outcome:?}");
    assert_eq!(fs::read(pair.to("a")).unwrap(), b"rotated");
    assert_eq!(copy(&pair, options()).placed, 1);
    assert_same(&pair.from("a"), &pair.to("a"));
}
