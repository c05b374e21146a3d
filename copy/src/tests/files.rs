//! The reading, packing, writing and placing of files.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::Arc,
};

use tempfile::TempDir;

use super::super::{
    feed::Feed,
    layout::StreamLayout,
    manifest::{
        Manifest,
        tests::{directory, file, link},
    },
    root::Root,
    scan::{Scan, ScanError, scan},
    sink::{Outcome, Sink, SinkError, SinkOptions, Verdict},
};

const SEGMENT: usize = 1000;
const OPTIONS: SinkOptions = SinkOptions { sync: true, clobber: true };

/// A source and a receiver's directory.
struct Pair {
    base: TempDir,
}

impl Pair {
    fn new() -> Pair {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir(base.path().join("from")).unwrap();
        fs::create_dir(base.path().join("to")).unwrap();
        Pair { base }
    }

    fn from(&self, name: &str) -> PathBuf {
        self.base.path().join("from").join(name)
    }

    fn to(&self, name: &str) -> PathBuf {
        self.base.path().join("to").join(name)
    }

    fn scan(&self) -> Scan {
        let mut paths: Vec<PathBuf> = fs::read_dir(self.from("")).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        scan(&paths).unwrap()
    }

    fn sink(&self, scan: &Scan, options: SinkOptions, resume: bool) -> Sink {
        let root = Arc::new(Root::open(&self.to("")).unwrap());
        Sink::open(root, Arc::clone(&scan.manifest), SEGMENT, options, resume).unwrap()
    }
}

/// Moves segments up to `end`.
fn pump(scan: &Scan, sink: &mut Sink, end: u64) {
    let written = sink.written();
    let layout = StreamLayout::new(&scan.manifest, SEGMENT);
    let mut feed = Feed::new(scan.sources.clone(), Arc::clone(&scan.manifest), SEGMENT, written.first_open);
    let mut verdicts = Vec::new();
    for segment in written.segments..end.min(layout.segments()) {
        let mut bytes = vec![0; layout.len(segment)];
        feed.read(segment, &mut bytes, &mut verdicts);
        sink.write(segment, &bytes).unwrap();
        for (entry, verdict) in verdicts.drain(..) {
            sink.verdict(entry as usize, verdict).unwrap();
        }
        sink.commit().unwrap();
    }
    if end >= layout.segments() {
        feed.finish(&mut verdicts);
        for (entry, verdict) in verdicts {
            sink.verdict(entry as usize, verdict).unwrap();
        }
    }
}

fn copy(pair: &Pair, options: SinkOptions) -> Outcome {
    let scan = pair.scan();
    let mut sink = pair.sink(&scan, options, false);
    pump(&scan, &mut sink, u64::MAX);
    sink.finish().unwrap()
}

/// Checks everything that two trees must have in common.
pub(super) fn assert_same(a: &Path, b: &Path) {
    let (left, right) = (fs::symlink_metadata(a).unwrap(), fs::symlink_metadata(b).unwrap());
    let look = |meta: &fs::Metadata| (meta.file_type(), meta.permissions().mode(), meta.mtime(), meta.mtime_nsec());
    assert_eq!(look(&left), look(&right), "{}", b.display());
    if left.is_symlink() {
        assert_eq!(fs::read_link(a).unwrap(), fs::read_link(b).unwrap());
    } else if left.is_file() {
        assert!(fs::read(a).unwrap() == fs::read(b).unwrap(), "{} differs", b.display());
    } else {
        let names = |path: &Path| {
            let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(a), names(b), "{}", b.display());
        for name in names(a) {
            assert_same(&a.join(&name), &b.join(&name));
        }
    }
}

/// Makes directories, files of many sizes, empty ones of each, links, odd modes, and names that are not UTF-8.
fn make_tree(pair: &Pair) {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let tree = pair.from("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::create_dir_all(tree.join("empty")).unwrap();
    for (i, size) in [0, 1, 999, 1000, 1001, 0, 5432, 17].into_iter().enumerate() {
        let bytes: Vec<u8> = (0..size).map(|at| (at * 7 + i) as u8).collect();
        fs::write(tree.join(format!("a/{i}")), bytes).unwrap();
    }
    fs::write(tree.join(OsStr::from_bytes(b"a/b/\xff\xfe")), "odd").unwrap();
    symlink("a/3", tree.join("link")).unwrap();
    symlink("../../a", tree.join("a/b/up")).unwrap();
    fs::set_permissions(tree.join("a/4"), fs::Permissions::from_mode(0o400)).unwrap();
    fs::set_permissions(tree.join("a/6"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(tree.join("a/b"), fs::Permissions::from_mode(0o710)).unwrap();
    fs::write(pair.from("z"), "at the top").unwrap();
}

#[test]
fn a_tree_arrives_with_modes_times_and_links_and_nothing_else() {
    for sync in [true, false] {
        let pair = Pair::new();
        make_tree(&pair);
        let outcome = copy(&pair, SinkOptions { sync, clobber: true });
        assert_eq!((outcome.placed, outcome.failures), (12, 0), "{outcome:?}");
        assert_same(&pair.from("tree"), &pair.to("tree"));
        assert_same(&pair.from("z"), &pair.to("z"));
        assert_eq!(fs::read_dir(pair.to(".squall-cp")).unwrap().count(), 0);
    }
}

#[test]
fn a_transfer_resumes_after_any_segment() {
    let pair = Pair::new();
    make_tree(&pair);
    let scan = pair.scan();
    let segments = StreamLayout::new(&scan.manifest, SEGMENT).segments();
    for stop in 0..=segments {
        let mut sink = pair.sink(&scan, OPTIONS, false);
        pump(&scan, &mut sink, stop);
        drop(sink);
        let mut sink = pair.sink(&scan, OPTIONS, true);
        assert_eq!(sink.segments(), stop, "what was written is not asked for again");
        pump(&scan, &mut sink, u64::MAX);
        assert_eq!(sink.finish().unwrap().failures, 0);
        assert_same(&pair.from("tree"), &pair.to("tree"));
        fs::remove_dir_all(pair.to("tree")).unwrap();
        fs::remove_file(pair.to("z")).unwrap();
    }
}

#[test]
fn what_an_earlier_attempt_kept_is_replaced_if_asked_and_copied_if_it_is_gone() {
    let keep = SinkOptions { sync: true, clobber: false };
    for (options, gone) in [(OPTIONS, false), (keep, true)] {
        let pair = Pair::new();
        fs::write(pair.from("a"), [1; SEGMENT]).unwrap();
        fs::write(pair.from("b"), [2; 2 * SEGMENT]).unwrap();
        fs::write(pair.to("a"), "old").unwrap();
        let scan = pair.scan();
        let mut sink = pair.sink(&scan, keep, false);
        pump(&scan, &mut sink, 2);
        drop(sink);
        if gone {
            fs::remove_file(pair.to("a")).unwrap();
        }
        let mut sink = pair.sink(&scan, options, true);
        pump(&scan, &mut sink, u64::MAX);
        let outcome = sink.finish().unwrap();
        assert_eq!((outcome.placed, outcome.kept, outcome.failures), (2, 0, 0), "{outcome:?}");
        assert_same(&pair.from("a"), &pair.to("a"));
    }
}

#[test]
fn without_resume_what_was_left_is_discarded() {
    let pair = Pair::new();
    make_tree(&pair);
    let scan = pair.scan();
    let mut sink = pair.sink(&scan, OPTIONS, false);
    pump(&scan, &mut sink, 4);
    drop(sink);
    assert_eq!(pair.sink(&scan, OPTIONS, false).segments(), 0);
}

#[test]
fn what_was_lost_since_is_asked_for_again() {
    let pair = Pair::new();
    fs::write(pair.from("a"), vec![1; 1500]).unwrap();
    fs::write(pair.from("b"), vec![2; 4000]).unwrap();
    let scan = pair.scan();
    let mut sink = pair.sink(&scan, OPTIONS, false);
    pump(&scan, &mut sink, 4);
    drop(sink);
    fs::remove_file(pair.to("a")).unwrap();
    let mut sink = pair.sink(&scan, OPTIONS, true);
    assert_eq!(sink.segments(), 0, "a is gone");
    pump(&scan, &mut sink, u64::MAX);
    assert_eq!(sink.finish().unwrap().failures, 0);
    assert_same(&pair.from("a"), &pair.to("a"));
    assert_same(&pair.from("b"), &pair.to("b"));
}

#[test]
fn no_file_has_its_name_before_it_is_verified() {
    let pair = Pair::new();
    fs::write(pair.from("a"), vec![1; 500]).unwrap();
    let scan = pair.scan();
    let mut sink = pair.sink(&scan, OPTIONS, false);
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
        let mut sink = pair.sink(&scan, OPTIONS, false);
        pump(&scan, &mut sink, u64::MAX);
        let outcome = sink.finish().unwrap();
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
    let scan = pair.scan();
    let mut feed = Feed::new(scan.sources.clone(), Arc::clone(&scan.manifest), SEGMENT, 0);
    let (mut bytes, mut verdicts) = (vec![0; 1000], Vec::new());
    feed.read(0, &mut bytes, &mut verdicts);
    fs::File::options().write(true).open(pair.from("a")).unwrap().set_len(1500).unwrap();
    feed.read(1, &mut bytes, &mut verdicts);
    assert_eq!(bytes, [0; 1000], "the rest is padded");
    feed.read(2, &mut bytes, &mut verdicts);
    assert_eq!(verdicts, [(0, Verdict::Damaged("it shrank while it was read".to_owned()))]);
}

#[test]
fn a_segment_is_read_again_without_a_second_verdict() {
    let pair = Pair::new();
    make_tree(&pair);
    let scan = pair.scan();
    let layout = StreamLayout::new(&scan.manifest, SEGMENT);
    let mut feed = Feed::new(scan.sources.clone(), Arc::clone(&scan.manifest), SEGMENT, 0);
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
    entries.dedup();
    assert_eq!((entries.len(), all), (scan.manifest.files(), scan.manifest.files()));
}

#[test]
fn no_clobber_keeps_what_is_there_and_says_so() {
    let pair = Pair::new();
    fs::write(pair.from("a"), "new").unwrap();
    fs::write(pair.from("b"), "new").unwrap();
    fs::write(pair.to("a"), "old").unwrap();
    let outcome = copy(&pair, SinkOptions { sync: true, clobber: false });
    assert_eq!((outcome.placed, outcome.kept, outcome.failures), (1, 1, 0));
    assert_eq!(fs::read(pair.to("a")).unwrap(), b"old");
    let outcome = copy(&pair, OPTIONS);
    assert_eq!(outcome.placed, 2);
    assert_eq!(fs::read(pair.to("a")).unwrap(), b"new");
}

#[test]
fn what_is_in_the_way_fails_one_name_only() {
    let pair = Pair::new();
    fs::create_dir(pair.from("d")).unwrap();
    fs::write(pair.from("d/inner"), "inner").unwrap();
    fs::write(pair.from("e"), "well").unwrap();
    fs::write(pair.from("f"), "file").unwrap();
    fs::write(pair.to("d"), "a file where a directory is expected").unwrap();
    fs::create_dir(pair.to("f")).unwrap();
    let outcome = copy(&pair, OPTIONS);
    assert_eq!((outcome.placed, outcome.failures), (1, 3), "{outcome:?}");
    for name in ["\"d\"", "\"d/inner\"", "\"f\""] {
        assert!(outcome.failed.iter().any(|failed| failed.contains(name)), "{name}: {outcome:?}");
    }
    assert_eq!(fs::read(pair.to("e")).unwrap(), b"well");
}

#[test]
fn a_directory_that_is_read_only_is_filled_and_filled_again() {
    let pair = Pair::new();
    fs::create_dir(pair.from("d")).unwrap();
    fs::write(pair.from("d/x"), "x").unwrap();
    let set = |directory: &Path, mode| fs::set_permissions(directory, fs::Permissions::from_mode(mode)).unwrap();
    set(&pair.from("d"), 0o555);
    for _ in 0..2 {
        let outcome = copy(&pair, OPTIONS);
        assert_eq!((outcome.placed, outcome.failures), (1, 0), "{outcome:?}");
        assert_same(&pair.from("d"), &pair.to("d"));
    }
    set(&pair.from("d"), 0o755);
    set(&pair.to("d"), 0o755);
}

#[test]
fn a_linked_directory_in_the_receivers_directory_is_not_written_through() {
    let pair = Pair::new();
    let outside = pair.base.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::create_dir(pair.from("d")).unwrap();
    fs::write(pair.from("d/x"), "x").unwrap();
    symlink("../outside", pair.to("d")).unwrap();
    let outcome = copy(&pair, OPTIONS);
    assert_eq!(outcome.failures, 2, "{outcome:?}");
    assert_eq!(fs::read_dir(outside).unwrap().count(), 0);
}

#[test]
fn links_that_lead_out_and_pipes_are_named_by_the_source() {
    let pair = Pair::new();
    let tree = pair.from("tree");
    fs::create_dir(&tree).unwrap();
    symlink("/etc/passwd", tree.join("absolute")).unwrap();
    symlink("../../secret", tree.join("up")).unwrap();
    symlink("inside", tree.join("fine")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, tree.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(fs::symlink_metadata(tree.join("pipe")).unwrap().file_type().is_fifo());
    let scan = pair.scan();
    assert_eq!(scan.manifest.entries().len(), 2, "{:?}", scan.manifest);
    assert_eq!(scan.refused.len(), 2, "{:?}", scan.refused);
    assert!(scan.skipped[0].contains("pipe"), "{:?}", scan.skipped);
}

#[test]
fn two_paths_of_one_name_are_refused() {
    let pair = Pair::new();
    fs::create_dir(pair.from("d")).unwrap();
    fs::write(pair.from("d/x"), "").unwrap();
    fs::write(pair.from("x"), "").unwrap();
    let error = scan(&[pair.from("x"), pair.from("d/x")]).unwrap_err();
    assert!(matches!(&error, ScanError::SameName { .. }), "{error}");
    assert!(matches!(scan(&["/".into()]), Err(ScanError::NoName { .. })));
    assert!(scan(&[pair.from("absent")]).unwrap_err().to_string().contains("absent"));
}

#[test]
fn a_source_that_breaks_the_order_is_stopped() {
    let pair = Pair::new();
    fs::write(pair.from("a"), vec![1; 3000]).unwrap();
    let mut sink = pair.sink(&pair.scan(), OPTIONS, false);
    for (segment, bytes) in [(1, 1000), (0, 999)] {
        assert!(matches!(sink.write(segment, &vec![0; bytes]), Err(SinkError::Order { .. })));
    }
}

#[test]
fn a_full_disk_ends_the_transfer_with_advice() {
    // Writes to /dev/full fail as writes to a full disk do.
    let error = SinkError::Contents { attempt: "write", path: "a".to_owned(), cause: rustix::io::Errno::NOSPC };
    let text = error.to_string();
    assert!(text.contains("\"a\"") && text.contains("free some space there, and push again with --resume"), "{text}");
}

#[test]
fn a_hostile_manifest_is_refused_whole() {
    for entries in [
        vec![file("../x", 1)],
        vec![file("/etc/passwd", 1)],
        vec![file("", 1)],
        vec![file("a\0b", 1)],
        vec![file(".squall-cp/x", 1)],
        vec![link("l", "/etc"), file("l/passwd", 1)],
        vec![link("l", "..")],
        vec![directory("d"), link("d/l", "../..")],
    ] {
        assert!(Manifest::new(entries.clone()).is_err(), "{entries:?}");
    }
}
