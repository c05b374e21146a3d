//! The properties of files that are kept besides their contents.

use std::{
    fs,
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink},
    path::Path,
};

use super::{
    super::{
        attributes::AttributeKinds,
        dress::{Keep, Losses},
        filter::Patterns,
        scan::{KeptAttributes, LinkPolicy},
        sink::SinkOptions,
    },
    pair::{Pair, assert_same, copy, noise, options, scan_all},
};

#[test]
fn hard_links_holes_pipes_and_links_of_all_kinds_arrive() {
    let pair = Pair::new();
    let tree = pair.from("tree");
    fs::create_dir_all(tree.join("d")).unwrap();
    fs::write(tree.join("first"), noise(1, 5000)).unwrap();
    fs::hard_link(tree.join("first"), tree.join("second")).unwrap();
    fs::hard_link(tree.join("first"), tree.join("d/third")).unwrap();
    symlink("/etc/passwd", tree.join("absolute")).unwrap();
    symlink("../../secret", tree.join("up")).unwrap();
    fs::hard_link(tree.join("up"), tree.join("up-again")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, tree.join("pipe"), rustix::fs::FileType::Fifo, 0o640.into(), 0).unwrap();
    let sparse = fs::File::create(tree.join("sparse")).unwrap();
    sparse.set_len(32 << 20).unwrap();
    sparse.write_all_at(&noise(2, 70_000), 16 << 20).unwrap();
    drop(sparse);
    let scan = pair.scan();
    assert!(scan.refused.is_empty() && scan.skipped.is_empty(), "{scan:?}");
    let sink = pair.sink(&scan, options());
    assert!(sink.lacks < 5000 + 200_000, "holes do not move: {}", sink.lacks);
    let outcome = sink.finish();
    assert_eq!((outcome.placed, outcome.failures), (8, 0), "{outcome:?}");
    let check = || {
        assert_same(&tree, &pair.to("tree"));
        let number = |name: &str| fs::symlink_metadata(pair.to("tree").join(name)).unwrap().ino();
        assert_eq!((number("first"), number("first")), (number("second"), number("d/third")));
        assert_eq!(number("up"), number("up-again"));
        assert!(fs::symlink_metadata(pair.to("tree/pipe")).unwrap().file_type().is_fifo());
        assert!(fs::metadata(pair.to("tree/sparse")).unwrap().blocks() * 512 < 1 << 20);
    };
    check();
    assert_eq!(copy(&pair, options()).unchanged, 8);
    // A name that is a file of its own becomes one of the others again.
    fs::remove_file(pair.to("tree/second")).unwrap();
    fs::write(pair.to("tree/second"), "its own").unwrap();
    fs::write(tree.join("first"), noise(3, 5000)).unwrap();
    let outcome = copy(&pair, options());
    assert_eq!((outcome.placed, outcome.failures), (3, 0), "{outcome:?}");
    check();
}

/// An access control list: rights by tag and id, as `setxattr` takes it.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry = |(tag, rights, id): &(u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [2_u32.to_le_bytes().to_vec()].into_iter().chain(entries.iter().map(entry)).flatten().collect()
}

/// Returns an extended attribute.
fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 1024];
    let len = rustix::fs::getxattr(path, name, &mut value).ok()?;
    value.truncate(len);
    Some(value)
}

/// Sets an extended attribute. Returns whether this filesystem has them.
fn set_attribute(path: &Path, name: &str, value: &[u8]) -> bool {
    let set = rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty());
    let refused = set == Err(rustix::io::Errno::NOTSUP);
    assert!(set.is_ok() || refused && std::env::var_os("SQUALL_FORBID_SKIPS").is_none(), "{name}: {set:?}");
    !refused
}

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

#[test]
fn a_list_is_kept_and_without_it_no_rights_are_widened() {
    let pair = Pair::new();
    fs::create_dir(pair.from("d")).unwrap();
    fs::write(pair.from("f"), "secret").unwrap();
    // user::rw-, user:1234:rw-, group::r--, mask::rw-, other::---
    let access = list(&[(1, 6, u32::MAX), (2, 6, 1234), (4, 4, u32::MAX), (0x10, 6, u32::MAX), (0x20, 0, u32::MAX)]);
    if !set_attribute(&pair.from("f"), ACCESS, &access) || !set_attribute(&pair.from("d"), DEFAULT, &access) {
        return;
    }
    assert_eq!(fs::metadata(pair.from("f")).unwrap().mode() & 0o777, 0o660, "the group bits are the mask");
    let same = || {
        [("f", ACCESS), ("d", DEFAULT)].map(|(name, list)| {
            let (from, to) = (attribute(&pair.from(name), list), attribute(&pair.to(name), list));
            assert_eq!(from, to, "{name}");
            to.is_some()
        })
    };
    let outcome = copy(&pair, options());
    assert_eq!((outcome.losses, outcome.failures), (Losses::default(), 0));
    assert_eq!(same(), [true, true]);
    // A list that is here and not there goes.
    rustix::fs::removexattr(pair.from("f"), ACCESS).unwrap();
    rustix::fs::removexattr(pair.from("d"), DEFAULT).unwrap();
    assert_eq!(copy(&pair, options()).failures, 0);
    assert_eq!(same(), [false, false]);
    assert!(set_attribute(&pair.from("f"), ACCESS, &access));
    let keep = KeptAttributes { lists: false, ..KeptAttributes::default() };
    let scan = scan_all(&pair.paths(), keep, LinkPolicy::Keep, &[]).unwrap();
    let without = Keep { owners: true, attributes: AttributeKinds { lists: false, others: true } };
    fs::remove_file(pair.to("f")).unwrap();
    assert_eq!(pair.sink(&scan, SinkOptions { keep: without, ..options() }).finish().failures, 0);
    assert_eq!(fs::metadata(pair.to("f")).unwrap().mode() & 0o777, 0o640, "the group has what the list gave it");
}

#[test]
fn attributes_arrive_change_and_go() {
    let pair = Pair::new();
    fs::create_dir(pair.from("d")).unwrap();
    fs::write(pair.from("d/f"), "x").unwrap();
    if !set_attribute(&pair.from("d/f"), "user.one", b"1") || !set_attribute(&pair.from("d"), "user.two", b"2") {
        return;
    }
    assert_eq!(copy(&pair, options()).failures, 0);
    assert_eq!(attribute(&pair.to("d/f"), "user.one").unwrap(), b"1");
    assert_eq!(attribute(&pair.to("d"), "user.two").unwrap(), b"2");
    assert!(set_attribute(&pair.from("d/f"), "user.one", b"changed"));
    rustix::fs::removexattr(pair.from("d"), "user.two").unwrap();
    assert_eq!(copy(&pair, options()).unchanged, 1, "contents are the same");
    assert_eq!(attribute(&pair.to("d/f"), "user.one").unwrap(), b"changed");
    assert_eq!(attribute(&pair.to("d"), "user.two"), None);
}

#[test]
fn owners_and_set_id_bits_are_kept_together_or_not_at_all() {
    let is_root = rustix::process::geteuid().is_root();
    let pair = Pair::new();
    fs::write(pair.from("f"), "x").unwrap();
    if is_root {
        std::os::unix::fs::chown(pair.from("f"), Some(1234), Some(2345)).unwrap();
    }
    fs::set_permissions(pair.from("f"), fs::Permissions::from_mode(0o6755)).unwrap();
    let outcome = copy(&pair, options());
    assert_eq!((outcome.losses, outcome.failures), (Losses::default(), 0));
    assert_same(&pair.from("f"), &pair.to("f"));
    fs::remove_file(pair.to("f")).unwrap();
    let keep = Keep { owners: false, ..options().keep };
    let outcome = copy(&pair, SinkOptions { keep, ..options() });
    assert_eq!((outcome.losses.set_ids, outcome.losses.owners), (1, 0), "{outcome:?}");
    assert_eq!(fs::metadata(pair.to("f")).unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn an_owner_that_is_given_makes_no_program_run_as_that_user() {
    let pair = Pair::new();
    fs::write(pair.from("f"), "x").unwrap();
    fs::set_permissions(pair.from("f"), fs::Permissions::from_mode(0o6755)).unwrap();
    let metadata = fs::metadata(pair.from("f")).unwrap();
    let scan = |user, group| {
        let filter = super::super::filter::Filter::new(&Patterns::default()).unwrap();
        let (keep, owner, links) = (KeptAttributes::default(), Some((user, group)), LinkPolicy::Keep);
        let how = super::super::scan::ScanOptions { keep, owner, links, filter: &filter };
        super::super::scan::scan(&pair.paths(), &how).unwrap().manifest.entries()[0].mode
    };
    assert_eq!(scan(metadata.uid() + 1, metadata.gid()), 0o2755);
    assert_eq!(scan(metadata.uid(), metadata.gid() + 1), 0o4755);
    assert_eq!(scan(metadata.uid(), metadata.gid()), 0o6755);
}

#[test]
fn what_gets_set_id_bits_has_the_contents_of_the_source() {
    let pair = Pair::new();
    fs::write(pair.from("f"), "good").unwrap();
    fs::write(pair.to("f"), "evil").unwrap();
    let time = fs::metadata(pair.from("f")).unwrap().modified().unwrap();
    fs::File::options().write(true).open(pair.to("f")).unwrap().set_modified(time).unwrap();
    fs::set_permissions(pair.from("f"), fs::Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(copy(&pair, options()).placed, 1);
    assert_eq!(fs::read(pair.to("f")).unwrap(), b"good");
    assert_same(&pair.from("f"), &pair.to("f"));
}

#[test]
fn names_of_one_file_here_that_are_two_there_become_two() {
    let pair = Pair::new();
    for name in ["a", "b"] {
        fs::write(pair.from(name), "same").unwrap();
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        fs::File::options().write(true).open(pair.from(name)).unwrap().set_modified(time).unwrap();
    }
    assert_eq!(copy(&pair, options()).placed, 2);
    fs::remove_file(pair.to("b")).unwrap();
    fs::hard_link(pair.to("a"), pair.to("b")).unwrap();
    fs::set_permissions(pair.from("a"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(pair.from("b"), fs::Permissions::from_mode(0o644)).unwrap();
    let outcome = copy(&pair, options());
    assert_eq!((outcome.placed, outcome.unchanged), (1, 1), "{outcome:?}");
    assert_same(&pair.from("a"), &pair.to("a"));
    assert_same(&pair.from("b"), &pair.to("b"));
}

#[test]
fn a_further_name_of_a_file_that_was_kept_is_not_made() {
    let pair = Pair::new();
    fs::write(pair.from("a"), "new").unwrap();
    fs::hard_link(pair.from("a"), pair.from("b")).unwrap();
    fs::write(pair.to("a"), "older").unwrap();
    let outcome = copy(&pair, SinkOptions { clobber: false, ..options() });
    assert_eq!((outcome.kept, outcome.placed, outcome.failures), (1, 0, 1), "{outcome:?}");
    assert!(!pair.to("b").exists());
}
