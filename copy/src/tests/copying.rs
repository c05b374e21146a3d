//! The copying of contents from the source's open files.

use std::{
    fs::{self, File},
    os::{fd::OwnedFd, unix::fs::FileExt},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    super::{
        feed::{Feed, OpenedFile},
        root::Root,
        scan::Scan,
        sink::{FileToCopy, Outcome, Sink, SinkOptions, Verdict},
    },
    pair::{ME, Pair, assert_same, make_tree, noise, options},
};

/// A receiver that copies, and the source that hands it open files.
struct Copying {
    sink: Sink,
    feed: Feed,
    /// The files that the receiver lacks.
    lacking: Vec<u32>,
    /// The number of bytes that are missing.
    missing: u64,
    given_up: Arc<AtomicBool>,
}

impl Copying {
    fn new(pair: &Pair, scan: &Scan, options: SinkOptions) -> Copying {
        let root = Arc::new(Root::open(&pair.to("")).unwrap());
        let given_up = Arc::new(AtomicBool::new(false));
        let (mut sink, lacking) =
            Sink::open(root, Arc::clone(&scan.manifest), options, ME, Arc::clone(&given_up)).unwrap();
        let mut feed = Feed::new(scan.sources.clone(), Arc::clone(&scan.manifest));
        let entries = scan.manifest.entries();
        let mut missing: u64 =
            lacking.whole.iter().map(|&entry| entries[entry as usize].contents_before(u64::MAX)).sum();
        for &entry in &lacking.other {
            let ranges = sink.compare(entry as usize, &feed.cut(entry as usize));
            missing += ranges.iter().map(|range| range.end - range.start).sum::<u64>();
        }
        Copying { sink, feed, lacking: [lacking.whole, lacking.other].concat(), missing, given_up }
    }

    fn open(&self, entry: u32) -> FileToCopy {
        let OpenedFile { entry, file, verdict } = self.feed.open_to_copy(entry);
        FileToCopy { entry, file, verdict }
    }

    /// Copies all that is lacking, in pieces of 1000 bytes.
    fn copy(&mut self, step: &mut dyn FnMut(u64)) {
        for entry in self.lacking.clone() {
            let file = self.open(entry);
            self.sink.copy(file, 1000, step).unwrap();
            self.sink.commit_copied().unwrap();
        }
    }

    fn finish(mut self) -> Outcome {
        self.copy(&mut |_| {});
        self.sink.finish().unwrap()
    }
}

fn copy(pair: &Pair, options: SinkOptions) -> Outcome {
    Copying::new(pair, &pair.scan(), options).finish()
}

#[test]
fn a_tree_is_copied_with_modes_times_and_links() {
    for sync in [true, false] {
        let pair = Pair::new();
        make_tree(&pair);
        let sparse = File::create(pair.from("tree/sparse")).unwrap();
        sparse.set_len(50_000_000).unwrap();
        sparse.write_all_at(&noise(3, 100_000), 10_000_000).unwrap();
        let outcome = copy(&pair, SinkOptions { sync, ..options() });
        assert_eq!((outcome.placed, outcome.failures), (13, 0), "{outcome:?}");
        assert_same(&pair.from("tree"), &pair.to("tree"));
        assert_same(&pair.from("z"), &pair.to("z"));
        let blocks = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(pair.to("tree/sparse")).unwrap());
        assert!(blocks * 512 < 5_000_000, "its holes are filled");
        let again = copy(&pair, SinkOptions { sync, ..options() });
        assert_eq!((again.placed, again.unchanged, again.failures), (0, 13, 0), "{again:?}");
    }
}

#[test]
fn a_copy_that_was_given_up_goes_on_with_what_is_missing() {
    let pair = Pair::new();
    fs::write(pair.from("a"), noise(1, 1 << 20)).unwrap();
    fs::write(pair.from("b"), noise(2, 1 << 20)).unwrap();
    let scan = pair.scan();
    let mut first = Copying::new(&pair, &scan, options());
    assert_eq!(first.missing, 2 << 20);
    let (mut copied, given_up) = (0, Arc::clone(&first.given_up));
    first.copy(&mut |bytes| {
        copied += bytes;
        given_up.store(copied >= 1_500_000, Ordering::Relaxed);
    });
    assert_eq!(copied, (1 << 20) + 452_000, "it ends with the piece");
    assert_eq!(first.sink.written(), copied);
    assert_eq!(first.sink.finish().unwrap().failures, 1);
    assert_same(&pair.from("a"), &pair.to("a"));
    assert!(!pair.to("b").exists());
    let second = Copying::new(&pair, &scan, options());
    // A chunk has 64 KiB at most.
    assert!((1 << 20) - 452_000 + 65_536 > second.missing, "{} are missing", second.missing);
    assert_eq!(second.finish().failures, 0);
    assert_same(&pair.from("b"), &pair.to("b"));
    assert_eq!(fs::read_dir(pair.to(".squall-cp")).unwrap().count(), 0);
}

#[test]
fn a_file_that_changes_while_it_is_copied_is_not_put_in_place() {
    type Change = fn(&File);
    let changes: [(Change, &str); 4] = [
        (|file| file.set_len(50_000).unwrap(), "its size changed from 100000 to 50000"),
        (|file| file.set_len(99_999).unwrap(), "its size changed from 100000 to 99999"),
        (|file| file.set_len(200_000).unwrap(), "its size changed from 100000 to 200000"),
        (|file| file.write_all_at(b"changed", 10).unwrap(), "it changed after the transfer had begun"),
    ];
    for (change, told) in changes {
        let pair = Pair::new();
        fs::write(pair.from("a"), noise(1, 100_000)).unwrap();
        fs::write(pair.from("b"), noise(2, 100_000)).unwrap();
        let scan = pair.scan();
        let mut copying = Copying::new(&pair, &scan, options());
        let mut at = 0;
        copying.copy(&mut |bytes| {
            at += bytes;
            if at == 60_000 {
                change(&File::options().write(true).open(pair.from("a")).unwrap());
            }
        });
        let outcome = copying.sink.finish().unwrap();
        assert_eq!((outcome.placed, outcome.failures), (1, 1), "{outcome:?}");
        assert!(outcome.failed[0].contains(told), "{outcome:?}");
        assert!(!pair.to("a").exists());
        assert_same(&pair.from("b"), &pair.to("b"));
        assert_eq!(copy(&pair, options()).failures, 0);
        assert_same(&pair.from("a"), &pair.to("a"));
    }
}

#[test]
fn a_file_that_changed_before_it_is_opened_is_not_copied() {
    let pair = Pair::new();
    for name in ["gone", "other", "pipe"] {
        fs::write(pair.from(name), noise(1, 5000)).unwrap();
    }
    let scan = pair.scan();
    let copying = Copying::new(&pair, &scan, options());
    fs::remove_file(pair.from("gone")).unwrap();
    fs::write(pair.from("other"), noise(2, 5000)).unwrap();
    fs::remove_file(pair.from("pipe")).unwrap();
    let pipe = pair.from("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let outcome = copying.finish();
    assert_eq!((outcome.placed, outcome.failures), (0, 3), "{outcome:?}");
    for told in ["could not open it", "it changed after", "it is no file any more"] {
        assert!(outcome.failed.iter().any(|failed| failed.contains(told)), "{told}: {outcome:?}");
    }
}

#[test]
fn of_another_version_only_what_differs_is_copied_and_its_hash_is_checked() {
    let pair = Pair::new();
    let mut bytes = noise(1, 2 << 20);
    fs::write(pair.from("a"), &bytes).unwrap();
    assert_eq!(copy(&pair, options()).placed, 1);
    bytes.splice(1_000_000..1_000_000, noise(2, 50_000));
    fs::write(pair.from("a"), &bytes).unwrap();
    let scan = pair.scan();
    let mut wrong = Copying::new(&pair, &scan, options());
    assert!((50_000..400_000).contains(&wrong.missing), "{}", wrong.missing);
    let file = FileToCopy { verdict: Some(Verdict::Intact([7; 32])), ..wrong.open(0) };
    wrong.sink.copy(file, 1000, &mut |_| {}).unwrap();
    let outcome = wrong.sink.finish().unwrap();
    assert!(outcome.failed[0].contains("what was written is not what the source read"), "{outcome:?}");
    let outcome = copy(&pair, options());
    assert_eq!((outcome.placed, outcome.failures), (1, 0), "{outcome:?}");
    assert_same(&pair.from("a"), &pair.to("a"));
}

#[test]
fn what_a_hostile_source_hands_out_is_no_file_of_the_manifest() {
    let pair = Pair::new();
    fs::create_dir(pair.from("d")).unwrap();
    fs::write(pair.from("d/f"), noise(1, 5000)).unwrap();
    let scan = pair.scan();
    let file = scan.manifest.entries().iter().position(|entry| entry.is_file()).unwrap() as u32;
    let (reader, _writer) = std::io::pipe().unwrap();
    let handed = [
        File::open(pair.from("d")).unwrap(),
        File::open("/proc/self/status").unwrap(),
        File::open("/dev/zero").unwrap(),
        File::from(OwnedFd::from(reader)),
    ];
    for open in handed {
        let mut copying = Copying::new(&pair, &scan, options());
        for entry in [file, 0, 7, u32::MAX] {
            let file = FileToCopy { entry, file: Some(open.try_clone().unwrap()), verdict: None };
            copying.sink.copy(file, 1000, &mut |_| {}).unwrap();
        }
        let outcome = copying.sink.finish().unwrap();
        assert_eq!((outcome.placed, outcome.failures), (0, 1), "{outcome:?}");
        assert!(!pair.to("d/f").exists());
    }
}
