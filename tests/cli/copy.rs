//! `squall cp`, as an operator runs it: real processes, which are killed, refused and resumed.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

/// A cluster of its own: a directory, with one below it for the source's files and one for each receiver.
pub(super) struct World {
    base: TempDir,
    cluster: String,
    pub(super) receivers: Vec<(String, Child)>,
}

impl World {
    pub(super) fn new(receivers: &[&str]) -> World {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let cluster = format!("t{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let base = tempfile::tempdir().unwrap();
        fs::create_dir(base.path().join("from")).unwrap();
        let mut world = World { base, cluster, receivers: Vec::new() };
        for name in receivers {
            fs::create_dir(world.base.path().join(name)).unwrap();
            world.serve(name, &[]);
        }
        world
    }

    /// Starts a receiver, and waits until it is ready.
    pub(super) fn serve(&mut self, name: &str, more: &[&str]) {
        let mut command = self.serve_command(name);
        let mut child = command.args(more).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.contains("ready"), "{name} did not start: {ready}");
        self.receivers.push((name.to_owned(), child));
    }

    pub(super) fn serve_command(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
        command.args(["cp", "serve", "--quiet", "--cluster", &self.cluster, "--name", name, "--dir"]);
        command.arg(self.base.path().join(name));
        command
    }

    pub(super) fn from(&self, name: &str) -> PathBuf {
        self.base.path().join("from").join(name)
    }

    pub(super) fn at(&self, receiver: &str, name: &str) -> PathBuf {
        self.base.path().join(receiver).join(name)
    }

    pub(super) fn command(&self, paths: &[&str], to: &str, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
        command.args(["cp", "push", "--json", "--quiet", "--no-sync", "--cluster", &self.cluster, "--to", to]);
        command.args(more).args(paths.iter().map(|path| self.from(path)));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(super) fn push(&self, paths: &[&str], to: &str, more: &[&str]) -> Output {
        self.command(paths, to, more).output().unwrap()
    }

    /// Pushes, and checks that every receiver gets everything.
    pub(super) fn push_well(&self, paths: &[&str], to: &str, more: &[&str]) -> Value {
        let output = self.push(paths, to, more);
        let report = report(&output);
        assert!(output.status.success() && report["complete"] == true, "{report}: {}", text(&output.stderr));
        report
    }

    pub(super) fn receiver(&mut self, name: &str) -> &mut Child {
        &mut self.receivers.iter_mut().find(|(known, _)| known == name).unwrap().1
    }

    pub(super) fn kill(&mut self, name: &str) {
        let child = self.receiver(name);
        child.kill().unwrap();
        child.wait().unwrap();
        self.receivers.retain(|(known, _)| known != name);
    }

    /// Waits until a receiver has written at least `segments` segments of a transfer.
    pub(super) fn await_segments(&self, receiver: &str, segments: u64, push: &mut Child) {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(60) {
            assert!(push.try_wait().unwrap().is_none(), "the push ended too early");
            if self.segments(receiver) >= segments {
                return;
            }
            std::thread::yield_now();
        }
        panic!("{receiver} has {} of {segments} segments", self.segments(receiver));
    }

    /// The number of segments that a receiver has of files that are not whole.
    fn segments(&self, receiver: &str) -> u64 {
        let Ok(transfers) = fs::read_dir(self.at(receiver, ".squall-cp")) else { return 0 };
        let files = transfers.flatten().filter_map(|transfer| fs::read_dir(transfer.path()).ok()).flatten().flatten();
        files.filter_map(|file| Some(file.metadata().ok()?.blocks() * 512)).sum::<u64>() / 262_144
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for (_, child) in &mut self.receivers {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(super) fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no report: {}", text(&output.stderr)))
}

pub(super) fn receiver<'r>(report: &'r Value, name: &str) -> &'r Value {
    report["receivers"].as_array().unwrap().iter().find(|receiver| receiver["name"] == name).unwrap()
}

pub(super) fn number(row: &Value, field: &str) -> u64 {
    row[field].as_u64().unwrap_or_else(|| panic!("{field} is no number in {row}"))
}

/// Writes a file of bytes that differ everywhere.
pub(super) fn write(path: &Path, len: usize) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(len as u64).fill(&mut bytes);
    fs::write(path, bytes).unwrap();
}

/// Checks that two trees are the same in all respects that a copy keeps.
pub(super) fn assert_same(a: &Path, b: &Path) {
    let (left, right) = (
        fs::symlink_metadata(a).unwrap(),
        fs::symlink_metadata(b).unwrap_or_else(|error| panic!("{}: {error}", b.display())),
    );
    let look = |meta: &fs::Metadata| {
        (meta.file_type(), meta.permissions().mode(), meta.uid(), meta.gid(), meta.mtime(), meta.mtime_nsec())
    };
    assert_eq!(look(&left), look(&right), "{}", b.display());
    if left.is_symlink() {
        assert_eq!(fs::read_link(a).unwrap(), fs::read_link(b).unwrap());
    } else if left.is_file() {
        assert!(fs::read(a).unwrap() == fs::read(b).unwrap(), "{} differs", b.display());
    } else {
        for entry in fs::read_dir(a).unwrap() {
            let name = entry.unwrap().file_name();
            assert_same(&a.join(&name), &b.join(&name));
        }
        assert_eq!(fs::read_dir(a).unwrap().count(), fs::read_dir(b).unwrap().count(), "{}", b.display());
    }
}

/// Small multicasts, so that an interruption falls between many.
pub(super) const SMALL: [&str; 6] =
    ["--algorithm", "interleaved", "--segment-bytes", "262144", "--block-bytes", "32768"];

/// A rate at which receivers copy from the source's open files, so that an interruption falls into that.
pub(super) const SLOW: [&str; 2] = ["--limit-rate", "64MiB/s"];

pub(super) const BLOCK: u64 = 32768;
/// The number of blocks that may be on their way to a receiver.
const RECEIVES_AHEAD: u64 = 8;

#[test]
fn a_tree_reaches_all_receivers_with_modes_times_and_links() {
    let world = World::new(&["a", "b", "c"]);
    for i in 0..300 {
        write(&world.from(&format!("tree/{}/{i}", i % 10)), i * 11);
    }
    write(&world.from("tree/large"), 20_000_000);
    fs::create_dir(world.from("tree/empty")).unwrap();
    symlink("3/33", world.from("tree/link")).unwrap();
    fs::set_permissions(world.from("tree/large"), fs::Permissions::from_mode(0o440)).unwrap();
    fs::set_permissions(world.from("tree/empty"), fs::Permissions::from_mode(0o700)).unwrap();
    write(&world.from("single"), 5);
    let report = world.push_well(&["tree", "single"], "a,b,c", &[]);
    assert_eq!(number(&report, "files"), 302);
    assert_eq!(number(&report, "multicasts"), 0, "receivers copy from the source's open files: {report}");
    for name in ["a", "b", "c"] {
        assert_same(&world.from("tree"), &world.at(name, "tree"));
        assert_same(&world.from("single"), &world.at(name, "single"));
        let left = fs::read_dir(world.at(name, ".squall-cp")).unwrap().map(|entry| entry.unwrap().file_name());
        let is_note = |name: std::ffi::OsString| name.to_str().unwrap().starts_with("unsynced.");
        assert!(left.into_iter().all(is_note), "nothing is left behind");
    }
}

#[test]
fn a_source_that_was_killed_resumes_with_what_is_missing() {
    for way in [&SMALL[..], &SLOW] {
        let world = World::new(&["a", "b", "c"]);
        write(&world.from("file"), 200_000_000);
        let mut push = world.command(&["file"], "a,b,c", way).spawn().unwrap();
        world.await_segments("b", 20, &mut push);
        push.kill().unwrap();
        push.wait().unwrap();
        for name in ["a", "b", "c"] {
            assert!(!world.at(name, "file").exists(), "no half file bears the final name");
        }
        let report = world.push_well(&["file"], "a,b,c", way);
        for name in ["a", "b", "c"] {
            let row = receiver(&report, name);
            // The progress of the other receivers was not awaited.
            assert!(name != "b" || number(row, "bytes_held") >= 18 * 262_144, "{row}");
            assert!(
                number(row, "bytes_moved") <= number(&report, "bytes") - number(row, "bytes_held") + BLOCK,
                "{row}"
            );
            assert_same(&world.from("file"), &world.at(name, "file"));
        }
    }
}

#[test]
fn a_receiver_that_was_killed_costs_the_others_nothing_and_is_named() {
    for way in [&SMALL[..], &SLOW] {
        let mut world = World::new(&["a", "b", "c"]);
        write(&world.from("file"), 200_000_000);
        let mut push = world.command(&["file"], "a,b,c", way).spawn().unwrap();
        world.await_segments("b", 20, &mut push);
        world.kill("b");
        let output = push.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("b: its process is gone"), "{}", text(&output.stderr));
        let report = report(&output);
        assert!(number(&report, "groups") >= 2 || way == SLOW, "{report}");
        for name in ["a", "c"] {
            let row = receiver(&report, name);
            assert!(row["error"].is_null(), "{row}");
            // Blocks that were on their way when a group failed may move again: at most the receives that were posted
            // for them.
            let limit = number(&report, "bytes") + number(&report, "groups") * RECEIVES_AHEAD * BLOCK;
            assert!(number(row, "bytes_moved") <= limit, "what it held moves again: {row}");
            assert_same(&world.from("file"), &world.at(name, "file"));
        }
        // The receiver comes back, and gets the rest; the others get nothing.
        world.serve("b", &[]);
        let report = world.push_well(&["file"], "a,b,c", way);
        let row = receiver(&report, "b");
        assert!(number(row, "bytes_held") > 0, "{row}");
        assert!(number(row, "bytes_moved") <= number(&report, "bytes") - number(row, "bytes_held") + BLOCK, "{row}");
        assert_same(&world.from("file"), &world.at("b", "file"));
    }
}

#[test]
fn a_receiver_with_a_full_disk_costs_the_others_nothing_and_resumes() {
    for way in [&SMALL[..], &SLOW] {
        let mut world = World::new(&["a", "c"]);
        let disk = world.at("b", "");
        fs::create_dir(&disk).unwrap();
        let Some(_mounted) = Tmpfs::mount(&disk, 8 << 20) else { return };
        world.serve("b", &[]);
        write(&world.from("first"), 3_000_000);
        write(&world.from("second"), 40_000_000);
        let output = world.push(&["first", "second"], "a,b,c", way);
        assert_eq!(output.status.code(), Some(1));
        let errors = text(&output.stderr);
        assert!(errors.contains("b: could not write") && errors.contains("\"second\""), "{errors}");
        assert!(errors.contains("free some space there, and push again"), "{errors}");
        let row = report(&output);
        for name in ["a", "c"] {
            assert!(receiver(&row, name)["error"].is_null(), "{row}");
            assert_same(&world.from("second"), &world.at(name, "second"));
        }
        assert!(!world.at("b", "second").exists());
        // The file system gets more space.
        let resized = Command::new("mount").args(["-o", "remount,size=100m"]).arg(&disk).status().unwrap();
        assert!(resized.success());
        let row = world.push_well(&["first", "second"], "a,b,c", way);
        assert!(number(receiver(&row, "b"), "bytes_held") >= 3_000_000, "{row}");
        assert_same(&world.from("second"), &world.at("b", "second"));
        world.kill("b");
    }
}

/// A file system of a few bytes.
pub(super) struct Tmpfs(PathBuf);

impl Tmpfs {
    /// None where this user may not mount: the test is skipped, unless skips are forbidden.
    pub(super) fn mount(at: &Path, bytes: usize) -> Option<Tmpfs> {
        let size = format!("size={bytes}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "squall-cp"]).arg(at).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Tmpfs(at.to_owned()));
        }
        assert!(std::env::var_os("SQUALL_FORBID_SKIPS").is_none(), "a tmpfs can't be mounted here");
        eprintln!("skipped: a tmpfs can't be mounted here, which takes root");
        None
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_receiver_that_stands_still_is_given_up() {
    for way in [&SMALL[..], &SLOW] {
        let mut world = World::new(&["a", "b", "c"]);
        write(&world.from("file"), 100_000_000);
        let mut push = world.command(&["file"], "a,b,c", &[way, &["--silence", "2"]].concat()).spawn().unwrap();
        world.await_segments("b", 10, &mut push);
        let stopped = world.receiver("b").id().to_string();
        assert!(Command::new("kill").args(["-STOP", &stopped]).status().unwrap().success());
        let output = push.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("b: nothing was heard of it for 2 s"), "{}", text(&output.stderr));
        for name in ["a", "c"] {
            assert_same(&world.from("file"), &world.at(name, "file"));
        }
    }
}

#[test]
fn a_receiver_that_is_stopped_by_ctrl_c_says_so_and_a_source_too() {
    for way in [&SMALL[..], &SLOW] {
        let mut world = World::new(&["a", "b"]);
        write(&world.from("file"), 200_000_000);
        let mut push = world.command(&["file"], "a,b", way).spawn().unwrap();
        world.await_segments("b", 10, &mut push);
        let id = world.receiver("b").id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        assert!(world.receiver("b").wait().unwrap().success());
        let output = push.wait_with_output().unwrap();
        assert!(text(&output.stderr).contains("b: it was stopped"), "{}", text(&output.stderr));
        assert_same(&world.from("file"), &world.at("a", "file"));

        fs::remove_file(world.at("a", "file")).unwrap();
        let mut push = world.command(&["file"], "a", way).spawn().unwrap();
        world.await_segments("a", 10, &mut push);
        assert!(Command::new("kill").args(["-INT", &push.id().to_string()]).status().unwrap().success());
        let output = push.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("interrupted: push again"), "{}", text(&output.stderr));
        world.push_well(&["file"], "a", way);
        assert_same(&world.from("file"), &world.at("a", "file"));
    }
}

#[test]
fn who_is_not_there_and_what_makes_no_sense_is_told_with_what_to_do() {
    let world = World::new(&["a"]);
    write(&world.from("x"), 10);
    write(&world.from("d/x"), 10);
    for (paths, to, more, code, told) in [
        (
            &["x"][..],
            "a,nobody",
            &["--require-all"][..],
            1,
            "start it with `squall cp serve --dir DIRECTORY --name nobody",
        ),
        (&["x", "d/x"], "a", &[], 2, "would both be \"x\""),
        (&["x"], "a,a", &[], 2, "named twice"),
        (&["absent"], "a", &[], 1, "absent can't be copied"),
        (&["x"], "a", &["--algorithm", "pigeons"], 2, "pipeline"),
        (&["x"], "a", &["--racks", "b"], 2, "no receiver"),
        (&["x"], "a", &["--limit-rate", "fast"], 2, "give a rate such as 10MiB/s"),
        (&["x"], "a", &["--silence", "soon"], 2, "give a time such as 500ms"),
        (&["x"], "a", &["--exclude", "a["], 2, "\"a[\" is no pattern"),
        (&["x"], "a", &["--owner", "nobody-of-this-name"], 2, "give an id"),
        (&["x"], "nobody", &[], 1, "start it with `squall cp serve"),
    ] {
        let output = world.push(paths, to, more);
        assert_eq!(output.status.code(), Some(code), "{paths:?} {to} {more:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(told), "{}", text(&output.stderr));
        // Whatever the arguments are taken for, a script gets its object.
        let said: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        assert!(said["complete"] == false || code == 2, "{said}");
    }
    assert!(!world.at("a", "x").exists());
    let serve = |name: &str, directory: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
        command.args(["cp", "serve", "--cluster", &world.cluster, "--name", name, "--dir"]).arg(directory);
        text(&command.output().unwrap().stderr)
    };
    assert!(serve("a", &world.from("d")).contains("runs already"));
    assert!(serve("b", &world.at("a", "")).contains("served by another process"));
    assert!(serve("b", &world.from("absent")).contains("name a directory that exists"));
}

#[test]
fn files_that_are_there_are_replaced_or_kept() {
    let world = World::new(&["a"]);
    write(&world.from("x"), 10);
    fs::write(world.at("a", "x"), "old").unwrap();
    let report = world.push_well(&["x"], "a", &["--no-clobber"]);
    assert_eq!(number(receiver(&report, "a"), "kept"), 1);
    assert_eq!(fs::read(world.at("a", "x")).unwrap(), b"old");
    world.push_well(&["x"], "a", &[]);
    assert_same(&world.from("x"), &world.at("a", "x"));
}

#[test]
fn one_transfer_is_enough_for_a_script() {
    let mut world = World::new(&[]);
    fs::create_dir(world.at("a", "")).unwrap();
    world.serve("a", &["--once"]);
    write(&world.from("x"), 10);
    world.push_well(&["x"], "a", &[]);
    assert!(world.receiver("a").wait().unwrap().success());
}

/// The peak memory of a process, in bytes; None when it is gone.
fn peak(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

/// 10,000 small files and one of 2 GiB, with at most 256 MiB of memory:
/// `cargo test --release -p squall-cli --test cli copy:: -- --ignored`
#[test]
#[ignore = "takes 8 GiB of disk"]
fn large_transfers_take_little_memory() {
    let world = World::new(&["a", "b", "c"]);
    for i in 0..10_000 {
        write(&world.from(&format!("small/{}/{i}", i % 100)), 1 + i * 7 % 4096);
    }
    // Mostly a hole, so that the test does not measure the source's disk.
    let large = fs::File::create(world.from("large")).unwrap();
    large.set_len(2 << 30).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&large, b"the end", (2 << 30) - 7).unwrap();
    for what in ["small", "large"] {
        let mut push = world.command(&[what], "a,b,c", &[]).spawn().unwrap();
        let mut source = 0;
        while push.try_wait().unwrap().is_none() {
            // Read again and again, since it is gone with the process.
            source = peak(push.id()).unwrap_or(source).max(source);
            std::thread::sleep(Duration::from_millis(20));
        }
        let report = report(&push.wait_with_output().unwrap());
        assert!(report["complete"] == true, "{report}");
        let receivers: Vec<u64> = world.receivers.iter().filter_map(|(_, child)| peak(child.id())).collect();
        eprintln!(
            "{what}: {} files, {} bytes, {} multicasts in {} s; peak memory {} MiB at the source, {:?} MiB at receivers",
            report["files"],
            report["bytes"],
            report["multicasts"],
            report["seconds"],
            source >> 20,
            receivers.iter().map(|bytes| bytes >> 20).collect::<Vec<_>>()
        );
        assert!(receivers.iter().chain([&source]).all(|&bytes| bytes <= 256 << 20));
        for name in ["a", "b", "c"] {
            assert_same(&world.from(what), &world.at(name, what));
        }
    }
}
