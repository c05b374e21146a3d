//! A source and a receiver of files, without a network between them.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::Arc,
};

use tempfile::TempDir;

use super::super::{
    attributes::AttributeKinds,
    dress::Keep,
    extent::Lacks,
    feed::Feed,
    filter::{Filter, Patterns},
    layout::StreamLayout,
    manifest::Manifest,
    plan::parts,
    root::Root,
    scan::{KeptAttributes, LinkPolicy, Scan, ScanError, ScanOptions, scan},
    sink::{Lacking, Outcome, Sink, SinkOptions, Verdict},
};

pub(super) const SEGMENT: usize = 1000;

/// The receiver's node id.
pub(super) const ME: u32 = 7;

pub(super) fn options() -> SinkOptions {
    SinkOptions {
        sync: true,
        clobber: true,
        checksum: false,
        delete: false,
        dry_run: false,
        limit_rate: None,
        keep: Keep { owners: true, attributes: AttributeKinds { lists: true, others: true } },
        patterns: Patterns::default(),
        spared: Vec::new(),
    }
}

pub(super) fn scan_all(
    paths: &[PathBuf],
    keep: KeptAttributes,
    links: LinkPolicy,
    exclude: &[&str],
) -> Result<Scan, ScanError> {
    let exclude = exclude.iter().map(|&pattern| pattern.to_owned()).collect();
    let filter = Filter::new(&Patterns { exclude, include: Vec::new() }).unwrap();
    scan(paths, &ScanOptions { keep, owner: None, links, filter: &filter })
}

/// A source and a receiver's directory.
pub(super) struct Pair {
    pub(super) base: TempDir,
}

impl Pair {
    pub(super) fn new() -> Pair {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir(base.path().join("from")).unwrap();
        fs::create_dir(base.path().join("to")).unwrap();
        Pair { base }
    }

    pub(super) fn from(&self, name: &str) -> PathBuf {
        self.base.path().join("from").join(name)
    }

    pub(super) fn to(&self, name: &str) -> PathBuf {
        self.base.path().join("to").join(name)
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = fs::read_dir(self.from("")).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    }

    pub(super) fn scan(&self) -> Scan {
        scan_all(&self.paths(), KeptAttributes::default(), LinkPolicy::Keep, &[]).unwrap()
    }

    pub(super) fn sink(&self, scan: &Scan, options: SinkOptions) -> Copy {
        let root = Arc::new(Root::open(&self.to("")).unwrap());
        let (sink, lacking) = Sink::open(root, Arc::clone(&scan.manifest), options, ME, Arc::default()).unwrap();
        let feed = Feed::new(scan.sources.clone(), Arc::clone(&scan.manifest));
        let mut copy = Copy { sink, feed, layout: StreamLayout::new(&[], SEGMENT), lacks: 0, at: 0 };
        copy.plan(&scan.manifest, lacking);
        copy
    }
}

/// A source and a receiver, without a network between them.
pub(super) struct Copy {
    pub(super) sink: Sink,
    pub(super) feed: Feed,
    pub(super) layout: StreamLayout,
    /// The number of bytes that the receiver lacked.
    pub(super) lacks: u64,
    /// The next segment.
    at: u64,
}

impl Copy {
    pub(super) fn plan(&mut self, manifest: &Manifest, lacking: Lacking) {
        let mut lacks = Lacks::default();
        for &entry in &lacking.whole {
            lacks.add(entry, manifest.entries()[entry as usize].contents());
        }
        for &entry in &lacking.other {
            let chunks = self.feed.cut(entry as usize);
            lacks.add(entry, self.sink.compare(entry as usize, &chunks));
        }
        self.lacks = lacks.bytes();
        let plan = parts(&[(ME, lacks.extents())]);
        self.layout = StreamLayout::new(&plan, SEGMENT);
        self.sink.plan(&plan, SEGMENT).unwrap();
        let mut verdicts = Vec::new();
        self.feed.plan(self.layout.clone(), &[lacking.whole, lacking.other].concat(), &mut verdicts);
        self.judge(verdicts);
    }

    pub(super) fn judge(&mut self, verdicts: Vec<(u32, Verdict)>) {
        for (entry, verdict) in verdicts {
            self.sink.verdict(entry as usize, verdict).unwrap();
        }
        self.sink.commit().unwrap();
    }

    /// Moves segments up to `end`.
    pub(super) fn pump(&mut self, end: u64) {
        while self.at < end.min(self.layout.segments()) {
            let (mut bytes, mut verdicts) = (vec![0; self.layout.len(self.at)], Vec::new());
            self.feed.read(self.at, &mut bytes, &mut verdicts);
            self.sink.write(self.at, &bytes).unwrap();
            self.judge(verdicts);
            self.at += 1;
        }
    }

    pub(super) fn finish(mut self) -> Outcome {
        self.pump(u64::MAX);
        let mut verdicts = Vec::new();
        self.feed.finish(&mut verdicts);
        self.judge(verdicts);
        self.sink.finish().unwrap()
    }
}

pub(super) fn copy(pair: &Pair, options: SinkOptions) -> Outcome {
    pair.sink(&pair.scan(), options).finish()
}

/// Checks everything that two trees must have in common.
pub(super) fn assert_same(a: &Path, b: &Path) {
    let (left, right) = (fs::symlink_metadata(a).unwrap(), fs::symlink_metadata(b).unwrap());
    let look = |meta: &fs::Metadata| {
        let owner = (meta.uid(), meta.gid());
        (meta.file_type(), meta.permissions().mode(), owner, meta.mtime(), meta.mtime_nsec(), meta.rdev())
    };
    assert_eq!(look(&left), look(&right), "{}", b.display());
    if left.is_symlink() {
        assert_eq!(fs::read_link(a).unwrap(), fs::read_link(b).unwrap());
    } else if left.is_file() {
        assert!(fs::read(a).unwrap() == fs::read(b).unwrap(), "{} differs", b.display());
    } else if left.is_dir() {
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
pub(super) fn make_tree(pair: &Pair) {
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

/// Returns bytes that differ everywhere.
pub(super) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}
