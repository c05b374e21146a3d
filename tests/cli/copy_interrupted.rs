//! Pushes that are interrupted at random moments, by the source, by receivers, by a full disk, or by changes of the
//! files; and gone on with.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use super::copy::{SMALL, Tmpfs, World, assert_same, number, receiver, report, text, write};

/// The bytes that may move again: a block of the default size.
const AGAIN: u64 = 1 << 20;

const RECEIVERS: [&str; 3] = ["a", "b", "c"];

/// Returns the sizes of all files in a directory.
pub(super) fn sizes(root: &Path) -> HashMap<PathBuf, u64> {
    let mut all = HashMap::new();
    let Ok(names) = fs::read_dir(root) else { return all };
    for entry in names.flatten() {
        let metadata = entry.metadata().unwrap();
        if metadata.is_dir() {
            all.extend(sizes(&entry.path()));
        } else {
            all.insert(entry.path(), metadata.len().min(metadata.blocks() * 512));
        }
    }
    all
}

/// Returns the number of bytes of the tree that a receiver does not have, in place or in its staging directory. What is
/// staged is of no use if the file has other contents now.
fn missing(world: &World, receiver: &str, changed: bool) -> u64 {
    let from = sizes(&world.from("tree"));
    let all: u64 = from.values().sum();
    let in_place = sizes(&world.at(receiver, "tree"));
    let is_same = |path: &Path| {
        let here = world.at(receiver, "tree").join(path.strip_prefix(world.from("tree")).unwrap());
        fs::metadata(&here).is_ok_and(|here| here.mtime_nsec() == fs::metadata(path).unwrap().mtime_nsec())
    };
    let placed: u64 = from.iter().filter(|(path, _)| is_same(path)).map(|(_, bytes)| bytes).sum();
    let staged: u64 = sizes(&world.at(receiver, ".squall-cp")).values().sum();
    assert!(placed <= in_place.values().sum());
    all.saturating_sub(placed + if changed { 0 } else { staged })
}

fn signal(process: u32, name: &str) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

/// Makes a tree, interrupts a push of it, and goes on with it.
fn interrupt(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    // Contents go by RDMC, or receivers copy from the source's open files.
    let way = if random.bool() { &SMALL[..] } else { &[] };
    let mut world = World::new(&RECEIVERS[..2]);
    let disk = world.at("c", "");
    fs::create_dir(&disk).unwrap();
    // Of some the disk is too small for all.
    let small_disk = random.u8(..4) == 0;
    let mounted = small_disk.then(|| Tmpfs::mount(&disk, random.usize(1 << 20..24 << 20))).flatten();
    world.serve("c", &[]);
    for file in 0..random.u32(1..40) {
        write(&world.from(&format!("tree/{}/{file}", file % 5)), random.usize(..60_000));
    }
    for file in 0..random.u32(1..4) {
        write(&world.from(&format!("tree/large{file}")), random.usize(1 << 20..9 << 20));
    }
    let rate = format!("{}MiB/s", random.u32(8..60));
    let options = [way, &["--limit-rate", &rate, "--silence", "2s"]].concat();
    let mut changed = false;
    for _ in 0..random.u32(1..4) {
        let mut push = world.command(&["tree"], "a,b,c", &options).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(random.u64(50..500)));
        let victim = RECEIVERS[random.usize(..3)];
        match random.u8(..6) {
            0 => push.kill().unwrap(),
            1 => signal(push.id(), "-INT"),
            2 => world.kill(victim),
            3 => {
                let id = world.receiver(victim).id();
                signal(id, "-STOP");
                std::thread::sleep(Duration::from_millis(random.u64(100..3000)));
                signal(id, "-CONT");
            }
            4 => {
                signal(world.receiver(victim).id(), "-INT");
                world.receiver(victim).wait().unwrap();
                world.receivers.retain(|(name, _)| name != victim);
            }
            // A file changes while it is read, or before, or after.
            _ => {
                changed = true;
                write(&world.from("tree/large0"), random.usize(1 << 20..9 << 20));
            }
        }
        push.wait().unwrap();
        for name in RECEIVERS {
            if !world.receivers.iter().any(|(known, _)| known == name) {
                world.serve(name, &[]);
            }
        }
    }
    if mounted.is_some() {
        assert!(Command::new("mount").args(["-o", "remount,size=200m"]).arg(&disk).status().unwrap().success());
    }
    let lacked = RECEIVERS.map(|name| missing(&world, name, changed));
    let output = world.push(&["tree"], "a,b,c", way);
    let report = report(&output);
    assert!(output.status.success() && report["complete"] == true, "seed {seed}: {report} {}", text(&output.stderr));
    for (name, lacked) in RECEIVERS.into_iter().zip(lacked) {
        assert_same(&world.from("tree"), &world.at(name, "tree"));
        let row = receiver(&report, name);
        assert!(number(row, "bytes_moved") <= lacked + AGAIN, "seed {seed}: {name} lacked {lacked}: {row}");
        let left = sizes(&world.at(name, ".squall-cp"));
        assert!(left.keys().all(|path| path.to_str().unwrap().contains("/unsynced.")), "seed {seed}: {left:?}");
    }
    if mounted.is_some() {
        world.kill("c");
    }
}

#[test]
fn a_push_that_is_interrupted_in_any_way_goes_on_with_what_is_missing() {
    (0..8).for_each(interrupt);
}

/// `cargo test -p squall-cli --test cli copy_interrupted -- --ignored`
#[test]
#[ignore = "takes a quarter of an hour"]
fn two_hundred_pushes_that_are_interrupted_go_on_with_what_is_missing() {
    (100..300).for_each(interrupt);
}
