use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
};

use tempfile::TempDir;

use super::*;

fn path(name: &str) -> RelPath {
    RelPath::new(name.as_bytes()).unwrap()
}

/// Makes a root with and one without `openat2`, each with `out`, a link to a directory outside.
fn roots() -> Vec<(TempDir, Root)> {
    let root = |has_openat2| {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir(base.path().join("inside")).unwrap();
        fs::create_dir(base.path().join("outside")).unwrap();
        symlink("../outside", base.path().join("inside/out")).unwrap();
        let mut root = Root::open(&base.path().join("inside")).unwrap();
        root.has_openat2 &= has_openat2;
        (base, root)
    };
    vec![root(true), root(false)]
}

#[test]
fn a_file_is_put_in_place_with_its_directory() {
    for (base, root) in roots() {
        let staging = root.staging(TransferId([7; 16])).unwrap();
        root.make_directory(&path("a")).unwrap();
        root.make_directory(&path("a/b")).unwrap();
        staging.open("f0", true).unwrap();
        assert!(root.place(&staging, "f0", &path("a/b/file"), true).unwrap());
        assert!(base.path().join("inside/a/b/file").exists());
    }
}

#[test]
fn a_link_that_leads_out_is_not_followed() {
    for (base, root) in roots() {
        let staging = root.staging(TransferId([7; 16])).unwrap();
        staging.open("f0", true).unwrap();
        let error = root.place(&staging, "f0", &path("out/file"), true).unwrap_err();
        assert!(error.to_string().contains("\"out/file\""), "{error}");
        root.make_directory(&path("out")).unwrap_err();
        root.make_directory(&path("out/x")).unwrap_err();
        fs::write(base.path().join("outside/file"), "").unwrap();
        assert!(root.find(&path("out/file")).is_none() && root.open_file(&path("out/file")).is_err());
        root.names(&path("out")).unwrap_err();
        root.remove(&path("out/file"), false).unwrap_err();
        root.remove(&path("out"), true).unwrap_err();
        root.remove(&path("out"), false).unwrap();
        assert!(base.path().join("outside/file").exists());
        fs::remove_file(base.path().join("outside/file")).unwrap();
        assert_eq!(fs::read_dir(base.path().join("outside")).unwrap().count(), 0);
    }
}

#[test]
fn a_link_in_the_place_of_a_file_is_replaced_not_written_through() {
    for (base, root) in roots() {
        let secret = base.path().join("outside/secret");
        fs::write(&secret, "secret").unwrap();
        symlink(&secret, base.path().join("inside/file")).unwrap();
        let staging = root.staging(TransferId([7; 16])).unwrap();
        staging.open("f0", true).unwrap();
        assert!(root.place(&staging, "f0", &path("file"), true).unwrap());
        assert_eq!(fs::read(&secret).unwrap(), b"secret");
        assert!(fs::symlink_metadata(base.path().join("inside/file")).unwrap().is_file());
    }
}

#[test]
fn without_clobber_what_is_there_stays() {
    for (base, root) in roots() {
        fs::write(base.path().join("inside/file"), "old").unwrap();
        let staging = root.staging(TransferId([7; 16])).unwrap();
        staging.open("f0", true).unwrap();
        assert!(!root.place(&staging, "f0", &path("file"), false).unwrap());
        assert_eq!(fs::read(base.path().join("inside/file")).unwrap(), b"old");
    }
}

#[test]
fn a_directory_is_served_once() {
    let (base, _root) = roots().remove(0);
    let error = Root::open(&base.path().join("inside")).unwrap_err();
    assert!(matches!(error, RootError::Served { .. }), "{error}");
}

#[test]
fn a_staging_directory_that_others_may_write_to_is_not_used() {
    let (base, root) = roots().remove(0);
    let other = base.path().join("inside/.squall-cp").join(TransferId([7; 16]).to_string());
    fs::create_dir(&other).unwrap();
    fs::set_permissions(&other, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    assert!(root.staging(TransferId([7; 16])).is_err() && root.staging_if_any(TransferId([7; 16])).is_none());
}

#[test]
fn a_staging_directory_that_was_removed_is_made_anew() {
    for (base, root) in roots() {
        fs::remove_dir_all(base.path().join("inside/.squall-cp")).unwrap();
        let staging = root.staging(TransferId([7; 16])).unwrap();
        staging.open("f0", true).unwrap();
        assert_eq!(root.partial().len(), 1);
        root.discard(&staging).unwrap();
        assert!(root.partial().is_empty());
    }
}

#[test]
fn files_that_were_not_synced_before_a_crash_are_known() {
    let (base, root) = roots().remove(0);
    root.note_unsynced(b"a", false).unwrap();
    assert!(!root.has_unsynced(b"a") && !root.has_unsynced(b"b"), "the host has not crashed since");
    fs::write(base.path().join("inside/.squall-cp").join(unsynced(b"a")), "another boot").unwrap();
    root.note_unsynced(b"a", false).unwrap();
    assert!(root.has_unsynced(b"a") && !root.has_unsynced(b"b"));
    assert!(root.partial().is_empty());
    root.note_unsynced(b"a", true).unwrap();
    assert!(!root.has_unsynced(b"a"));
    let note = base.path().join("inside/.squall-cp").join(unsynced(b"a"));
    let number = fs::metadata(&note).unwrap().ino();
    // The new one is another file, as long as the old one is open.
    let _open = File::open(&note).unwrap();
    root.note_unsynced(b"a", true).unwrap();
    assert_eq!(fs::metadata(&note).unwrap().ino(), number, "a note of this boot is not written again");
    root.forget_unsynced(b"a").unwrap();
    assert!(!root.has_unsynced(b"a"));
}

#[test]
fn a_file_where_a_directory_must_be_is_named() {
    for (base, root) in roots() {
        fs::write(base.path().join("inside/d"), "").unwrap();
        let error = root.make_directory(&path("d")).unwrap_err().to_string();
        assert!(error.contains("\"d\"") && error.contains("not a directory is in the way"), "{error}");
    }
}
