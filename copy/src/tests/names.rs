//! Names that are copied, left out, in the way, or removed.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    super::{
        filter::Patterns,
        manifest::{
            Manifest,
            tests::{file, link},
        },
        root::Root,
        scan::{KeptAttributes, LinkPolicy, ScanError},
        sink::{Sink, SinkOptions},
    },
    pair::{ME, Pair, copy, make_tree, options, scan_all},
};

#[test]
fn what_the_source_does_not_have_goes_if_asked_and_what_is_left_out_stays() {
    let pair = Pair::new();
    fs::create_dir_all(pair.from("d/e")).unwrap();
    fs::write(pair.from("d/e/x"), "x").unwrap();
    fs::write(pair.from("d/changed"), "a file now").unwrap();
    fs::create_dir_all(pair.to("d/gone/deep")).unwrap();
    fs::create_dir_all(pair.to("d/changed/was-a-directory")).unwrap();
    fs::write(pair.to("d/e"), "was a file").unwrap();
    fs::write(pair.to("d/gone/deep/y"), "y").unwrap();
    fs::write(pair.to("d/kept.log"), "log").unwrap();
    fs::write(pair.to("beside"), "not in what is copied").unwrap();
    let patterns = Patterns { exclude: vec!["*.log".to_owned()], include: Vec::new() };
    let delete = SinkOptions { delete: true, patterns, ..options() };
    let (looked, lacking) = {
        let root = Arc::new(Root::open(&pair.to("")).unwrap());
        let dry = SinkOptions { dry_run: true, ..delete.clone() };
        Sink::open(root, Arc::clone(&pair.scan().manifest), dry, ME, Arc::default()).unwrap()
    };
    assert_eq!((lacking.whole.len(), lacking.doomed), (2, 6), "{lacking:?}");
    drop(looked);
    assert!(pair.to("d/gone/deep/y").exists() && pair.to("d/e").is_file(), "nothing was changed");
    let outcome = copy(&pair, delete);
    assert_eq!((outcome.placed, outcome.deleted, outcome.failures), (2, 6, 0), "{outcome:?}");
    assert!(!pair.to("d/gone").exists() && pair.to("d/kept.log").exists() && pair.to("beside").exists());
    fs::remove_file(pair.to("d/kept.log")).unwrap();
    assert_eq!(fs::read(pair.to("d/changed")).unwrap(), b"a file now");
    assert_eq!(fs::read(pair.to("d/e/x")).unwrap(), b"x");
}

#[test]
fn what_is_left_out_is_not_listed() {
    let pair = Pair::new();
    make_tree(&pair);
    let scan = scan_all(&pair.paths(), KeptAttributes::default(), LinkPolicy::Keep, &["/tree/a", "z"]).unwrap();
    let names: Vec<String> = scan.manifest.entries().iter().map(|entry| entry.path.to_string()).collect();
    assert_eq!(names, ["tree", "tree/empty", "tree/link"]);
}

#[test]
fn no_clobber_keeps_what_is_there_and_says_so() {
    let pair = Pair::new();
    fs::write(pair.from("a"), "new").unwrap();
    fs::write(pair.from("b"), "new").unwrap();
    fs::write(pair.to("a"), "older").unwrap();
    let outcome = copy(&pair, SinkOptions { clobber: false, ..options() });
    assert_eq!((outcome.placed, outcome.kept, outcome.failures), (1, 1, 0));
    assert_eq!(fs::read(pair.to("a")).unwrap(), b"older");
    let outcome = copy(&pair, options());
    assert_eq!((outcome.placed, outcome.unchanged), (1, 1));
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
    let outcome = copy(&pair, options());
    assert_eq!((outcome.placed, outcome.failures), (1, 3), "{outcome:?}");
    for name in ["\"d\"", "\"d/inner\"", "\"f\""] {
        assert!(outcome.failed.iter().any(|failed| failed.contains(name)), "{name}: {outcome:?}");
    }
    assert_eq!(fs::read(pair.to("e")).unwrap(), b"well");
}

#[test]
fn a_linked_directory_in_the_receivers_directory_is_not_written_through() {
    let pair = Pair::new();
    let outside = pair.base.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::create_dir(pair.from("d")).unwrap();
    fs::write(pair.from("d/x"), "x").unwrap();
    symlink("../outside", pair.to("d")).unwrap();
    let outcome = copy(&pair, options());
    assert_eq!(outcome.failures, 2, "{outcome:?}");
    assert_eq!(fs::read_dir(outside).unwrap().count(), 0);
}

#[test]
fn links_that_lead_out_are_left_out_or_followed_as_asked() {
    let pair = Pair::new();
    let tree = pair.from("tree");
    let outside = pair.base.path().join("outside");
    fs::create_dir_all(outside.join("deep")).unwrap();
    fs::write(outside.join("deep/x"), "from outside").unwrap();
    fs::create_dir(&tree).unwrap();
    symlink(&outside, tree.join("absolute")).unwrap();
    symlink("../../outside/deep/x", tree.join("up")).unwrap();
    symlink("inside", tree.join("fine")).unwrap();
    symlink("../../from", tree.join("circle")).unwrap();
    symlink("/dangling", tree.join("dangling")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, tree.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let keep = KeptAttributes { devices: false, ..KeptAttributes::default() };
    let skipped = scan_all(std::slice::from_ref(&tree), keep, LinkPolicy::Skip, &[]).unwrap();
    assert_eq!((skipped.manifest.entries().len(), skipped.skipped.len()), (2, 5), "{skipped:?}");
    assert!(skipped.refused.is_empty(), "{skipped:?}");
    let followed = scan_all(&[tree], keep, LinkPolicy::Follow, &[]).unwrap();
    assert_eq!(followed.refused.len(), 2, "a circle, and a link to nothing: {:?}", followed.refused);
    let outcome = pair.sink(&followed, options()).finish();
    assert_eq!(outcome.failures, 0, "{outcome:?}");
    assert_eq!(fs::read(pair.to("tree/absolute/deep/x")).unwrap(), b"from outside");
    assert_eq!(fs::read(pair.to("tree/up")).unwrap(), b"from outside");
    assert_eq!(fs::read_link(pair.to("tree/fine")).unwrap(), Path::new("inside"));
}

#[test]
fn two_paths_of_one_name_are_refused() {
    let pair = Pair::new();
    fs::create_dir(pair.from("d")).unwrap();
    fs::write(pair.from("d/x"), "").unwrap();
    fs::write(pair.from("x"), "").unwrap();
    let scan = |paths: &[PathBuf]| scan_all(paths, KeptAttributes::default(), LinkPolicy::Keep, &[]);
    let error = scan(&[pair.from("x"), pair.from("d/x")]).unwrap_err();
    assert!(matches!(&error, ScanError::SameName { .. }), "{error}");
    assert!(matches!(scan(&["/".into()]), Err(ScanError::NoName { .. })));
    assert!(scan(&[pair.from("absent")]).unwrap_err().to_string().contains("absent"));
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
    ] {
        assert!(Manifest::new(entries.clone()).is_err(), "{entries:?}");
    }
}
#[test]
fn what_is_left_out_stays_within_what_is_removed_and_keeps_it() {
    let pair = Pair::new();
    fs::create_dir_all(pair.from("d")).unwrap();
    fs::write(pair.from("d/conf"), "a file").unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, pair.from("d/pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    fs::create_dir_all(pair.to("d/old/deep")).unwrap();
    fs::create_dir_all(pair.to("d/conf")).unwrap();
    fs::write(pair.to("d/old/deep/keep.log"), "log").unwrap();
    fs::write(pair.to("d/old/gone"), "gone").unwrap();
    fs::write(pair.to("d/conf/keep.log"), "log").unwrap();
    fs::write(pair.to("d/pipe"), "was a file").unwrap();
    let keep = KeptAttributes { devices: false, ..KeptAttributes::default() };
    let scan = scan_all(&pair.paths(), keep, LinkPolicy::Keep, &["*.log"]).unwrap();
    let patterns = Patterns { exclude: vec!["*.log".to_owned()], include: Vec::new() };
    let delete = SinkOptions { delete: true, patterns, spared: scan.spared.clone(), ..options() };
    let outcome = pair.sink(&scan, delete).finish();
    assert_eq!((outcome.deleted, outcome.failures), (1, 1), "{outcome:?}");
    assert!(outcome.failed[0].contains("\"d/conf\""), "{outcome:?}");
    assert!(pair.to("d/old/deep/keep.log").exists() && pair.to("d/conf/keep.log").exists());
    assert!(!pair.to("d/old/gone").exists() && pair.to("d/pipe").is_file());
}
