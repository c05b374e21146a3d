use std::{os::unix::fs::PermissionsExt, path::Path};

use squall::{ConfigBuilder, Incarnation};
use tempfile::TempDir;

use super::*;

fn builder(storage: &Path) -> ConfigBuilder {
    Config::builder("bank", 1).members([1, 2]).storage(storage)
}

fn config(storage: &Path) -> Config {
    builder(storage).build().expect("the configuration is valid")
}

fn found(area: &Area, level: Level, word: &str) -> bool {
    area.findings.iter().any(|finding| finding.level == level && finding.text.contains(word))
}

fn looked(storage: &Path, heard: &[MemberWord]) -> Area {
    look(&config(storage), &[], heard).expect("it has storage")
}

fn word(life: u64) -> MemberWord {
    MemberWord { member: NodeId(2), life: Some(Incarnation(life)), went_back: Vec::new() }
}

/// A directory that a node of this id has had, with its lives.
fn kept(cluster: &str, node: u32) -> (TempDir, StoreSummary) {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let config = Config::builder(cluster, node).members([node]).storage(directory.path()).build();
    let group = |node: &mut squall::NodeBuilder| drop(node.group("sum", Nothing));
    let mut builder = squall::Node::builder(config.expect("the configuration is valid"));
    group(&mut builder);
    builder.start().expect("it is alone").shutdown();
    let summary = StoreSummary::of(directory.path()).expect("it can be read").expect("it is there");
    (directory, summary)
}

#[derive(Debug)]
struct Nothing;

impl squall::Replicated for Nothing {
    type Command = u64;
    type Reply = ();

    fn apply(&mut self, _: &rkyv::Archived<u64>, _: &squall::Applied) {}
}

#[test]
fn a_node_without_storage_has_no_such_area() {
    let config = Config::builder("bank", 1).members([1]).build().expect("the configuration is valid");
    assert!(look(&config, &[], &[]).is_none());
}

#[test]
fn a_new_directory_is_good_and_nothing_is_left_in_it() {
    let base = tempfile::tempdir().expect("a directory can be made");
    let area = looked(base.path(), &[]);
    assert!(area.usable(), "{:?}", area.findings);
    assert!(found(&area, Level::Good, "is there") && found(&area, Level::Good, "holds nothing of a node yet"));
    assert!(area.findings.iter().any(|finding| finding.text.contains("a sync")), "{:?}", area.findings);
    assert_eq!(fs::read_dir(base.path()).expect("it is there").count(), 0);

    let area = looked(&base.path().join("state/1"), &[]);
    assert!(area.usable() && found(&area, Level::Good, "the node makes it in"), "{:?}", area.findings);
    assert_eq!(fs::read_dir(base.path()).expect("it is there").count(), 0, "it was not made");
}

#[test]
fn a_file_in_its_place_is_named() {
    let base = tempfile::tempdir().expect("a directory can be made");
    let file = base.path().join("file");
    fs::write(&file, "").expect("it can be written");
    assert!(found(&looked(&file, &[]), Level::Bad, "is no directory"));
    let area = looked(&file.join("state"), &[]);
    assert!(!area.usable(), "{:?}", area.findings);
}

#[test]
fn what_keeps_a_user_from_writing_is_named() {
    let base = tempfile::tempdir().expect("a directory can be made");
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o500)).expect("it is this user's");
    let area = looked(base.path(), &[]);
    // The superuser may write everywhere.
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(found(&area, Level::Bad, "no file can be written"), !is_root, "{:?}", area.findings);
    let area = looked(Path::new("/proc/state"), &[]);
    assert!(!area.usable(), "{:?}", area.findings);
}

#[test]
fn a_directory_in_memory_is_no_disk() {
    let Ok(base) = tempfile::tempdir_in("/dev/shm") else { return };
    let area = looked(base.path(), &[]);
    assert!(found(&area, Level::Warning, "is in memory (tmpfs)"), "{:?}", area.findings);
}

#[test]
fn room_is_judged_as_a_node_that_runs_does() {
    let of = |free: u64, total: u64, inodes: u64, logs: usize| {
        let mut area = Area::new("storage", "");
        let figures = RoomFigures { free_bytes: free, total_bytes: total, free_inodes: Some(inodes) };
        judge_room_level(&mut area, "state", figures, logs);
        area
    };
    let findings = |free, total| of(free, total, 1 << 20, 1);
    assert!(found(&findings(100 << 20, 100 << 30), Level::Bad, "refuse writes"));
    assert!(found(&findings(1 << 30, 100 << 30), Level::Warning, "which is little"));
    assert!(found(&findings(50 << 30, 100 << 30), Level::Good, "50.0 GiB of 100.0 GiB are free"));
    assert!(found(&of(1 << 30, 100 << 30, 1 << 20, 9), Level::Bad, "refuse writes"), "nine logs need more");
    assert!(found(&of(50 << 30, 100 << 30, 3, 1), Level::Bad, "3 inodes are free in state"));
    assert!(found(&of(50 << 30, 100 << 30, 100, 1), Level::Warning, "100 inodes are free in state"));
}

#[test]
fn room_is_compared_with_what_the_logs_may_grow_to() {
    let with = |retain: Option<usize>| {
        let builder = builder(Path::new("state")).group("log", |group| {
            group.mode(Mode::Durable).snapshot_bytes(1 << 30);
            retain.into_iter().for_each(|bytes| _ = group.retain(bytes));
        });
        expected(&builder.build().expect("the configuration is valid"))
    };
    assert_eq!(with(Some(10 << 30)), Some(12 << 30));
    assert_eq!(with(None), None, "it keeps everything");
    let mut area = Area::new("storage", "");
    let figures = RoomFigures { free_bytes: 8 << 30, total_bytes: 100 << 30, free_inodes: None };
    judge_room(&mut area, figures, Some(12 << 30), 4 << 30);
    assert_eq!(area.findings, []);
    judge_room(&mut area, figures, Some(12 << 30), 3 << 30);
    assert!(found(&area, Level::Warning, "may grow to 12.0 GiB"), "{:?}", area.findings);
}

#[test]
fn two_nodes_of_one_host_with_one_directory_are_named() {
    let base = tempfile::tempdir().expect("a directory can be made");
    let config = config(base.path());
    let same = base.path().join(".");
    let area = look(&config, &[(NodeId(2), same)], &[]).expect("it has storage");
    assert!(found(&area, Level::Bad, "is also the storage of node 2"), "{:?}", area.findings);
    let area = look(&config, &[(NodeId(2), base.path().join("2"))], &[]).expect("it has storage");
    assert!(area.usable(), "{:?}", area.findings);

    let elsewhere = Config::builder("bank", 1).addresses(1, ["10.0.0.1:7700"]).addresses(2, ["10.0.0.2:7700"]);
    let elsewhere = elsewhere.security(squall::config::Security::None).storage(base.path()).build();
    let area = look(&elsewhere.expect("the configuration is valid"), &[(NodeId(2), base.path().to_owned())], &[]);
    assert!(area.is_some_and(|area| area.usable()), "the same path on another host is another directory");
}

#[test]
fn a_directory_in_use_is_named_with_the_process() {
    let (directory, _) = kept("bank", 1);
    let store = File::open(directory.path().join(STORE)).expect("it is there");
    store.lock().expect("no process has it");
    let area = looked(directory.path(), &[]);
    assert!(found(&area, Level::Warning, "is in use"), "{:?}", area.findings);
    let locks = "1: POSIX  ADVISORY  WRITE 12 00:01:77 0 EOF\n2: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF\n";
    assert_eq!((holder_in(locks, 5678), holder_in(locks, 5679), holder_in("", 1)), (Some(1234), None, None));
}

#[test]
fn another_node_s_directory_and_another_cluster_s_are_named() {
    let (directory, _) = kept("bank", 2);
    let area = looked(directory.path(), &[]);
    assert!(!area.usable() && found(&area, Level::Bad, "is the directory of node 2"), "{:?}", area.findings);
    let (directory, _) = kept("shop", 1);
    let area = looked(directory.path(), &[]);
    assert!(!area.usable() && found(&area, Level::Bad, "is of cluster \"shop\""), "{:?}", area.findings);
}

#[test]
fn an_old_copy_is_told_by_members_that_know_a_later_life() {
    let (directory, summary) = kept("bank", 1);
    let last = summary.lives.last().expect("it has lived").0;
    let area = looked(directory.path(), &[word(last)]);
    assert!(area.usable() && found(&area, Level::Good, "knows of a newer one"), "{:?}", area.findings);
    let area = looked(directory.path(), &[word(last), word(last + 1)]);
    assert!(!area.usable() && found(&area, Level::Bad, "is an old copy"), "{:?}", area.findings);
    let area = looked(directory.path(), &[]);
    assert!(area.usable() && found(&area, Level::Warning, "would not be noticed"), "{:?}", area.findings);
    let empty = tempfile::tempdir().expect("a directory can be made");
    let area = looked(empty.path(), &[word(last)]);
    assert!(area.usable() && found(&area, Level::Warning, "it joins anew"), "{:?}", area.findings);
}

#[test]
fn a_damaged_store_is_named() {
    let (directory, _) = kept("bank", 1);
    fs::write(directory.path().join(STORE), b"nonsense").expect("it can be written");
    let area = looked(directory.path(), &[]);
    assert!(!area.usable() && found(&area, Level::Bad, "is damaged"), "{:?}", area.findings);
}
