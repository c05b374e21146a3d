//! Whether a node can keep its storage where its configuration says.

use std::{
    fs::{self, File, TryLockError},
    io::{self, ErrorKind, Write},
    os::{linux::fs::MetadataExt, unix::fs::FileExt},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bytesize::ByteSize;
use rustix::fs::{NFS_SUPER_MAGIC, StatVfsMountFlags, statfs, statvfs};
use squall::{
    Carrier, Config, Mode, NodeId, RoomFigures, RoomLevel, RoomLimits, StorageError, StoreSummary, config::GroupConfig,
};

use super::{
    finding::{Area, Level},
    members::MemberWord,
};

/// The file of the view log, whose lock a node holds.
const STORE: &str = "view-log.redb";

/// The number of syncs that are timed, and the median above which they count as slow.
const SYNCS: usize = 9;
const SLOW_SYNC: Duration = Duration::from_millis(20);

/// File systems that don't outlive the machine's memory, or a container (`statfs(2)`).
const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;
const OVERLAY: u64 = 0x794c_7630;

/// A time of day that is certainly past, in seconds since 1970: a clock before it was not set.
const PAST: u64 = 1_700_000_000;

/// Looks at a node's storage, if it has any. `others` are the other nodes of the configuration with their storage;
/// `heard` is the word of members that run.
pub(super) fn look(config: &Config, others: &[(NodeId, PathBuf)], heard: &[MemberWord]) -> Option<Area> {
    let directory = config.storage()?;
    let mut area = Area::new("storage", "logs and the view log");
    look_at_clock(&mut area);
    let Some(base) = look_at_directory(&mut area, directory) else { return Some(area) };
    if look_at_writing(&mut area, &base) {
        look_at_file_system(&mut area, &base);
        look_at_room(&mut area, config, directory, &base);
    }
    look_at_sharing(&mut area, config, directory, others);
    let is_in_use = look_at_use(&mut area, directory);
    look_at_store(&mut area, config, directory, heard, is_in_use);
    Some(area)
}

fn look_at_clock(area: &mut Area) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    if now < PAST {
        area.warn(
            format!("the clock says {now} s since 1970, which is long past: what is logged gets the time of the message before"),
            "set it (with chrony: `chronyc makestep`)",
        );
    }
}

/// Returns the directory, or the nearest one above that exists and in which the node would make it. None if that is not
/// possible.
fn look_at_directory(area: &mut Area, directory: &Path) -> Option<PathBuf> {
    let shown = directory.display();
    match fs::metadata(directory) {
        Ok(found) if found.is_dir() => {
            area.good(format!("{shown} is there"));
            return Some(directory.to_owned());
        }
        Ok(_) => {
            area.bad(format!("{shown} is no directory"), "give `storage` a directory of the node's own");
            return None;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => {
            area.bad(format!("{shown} can't be looked at: {error}"), "let this user search the directories above");
            return None;
        }
    }
    // A relative path begins where the program runs.
    let above =
        directory.ancestors().skip(1).map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    match above.into_iter().find(|path| path.exists()) {
        Some(base) if base.is_dir() => {
            area.good(format!("{shown} is not there, and the node makes it in {}", base.display()));
            Some(base.to_owned())
        }
        base => {
            let base = base.unwrap_or(Path::new("/")).display();
            area.bad(format!("{shown} can't be made, since {base} is no directory"), "correct `storage`");
            None
        }
    }
}

/// Writes a file, syncs it a few times, and removes it. Returns whether that is possible.
fn look_at_writing(area: &mut Area, base: &Path) -> bool {
    let shown = base.display();
    match time_syncs(base) {
        Ok(median) if median > SLOW_SYNC => {
            area.warn(
                format!("a sync in {shown} takes {median:.1?} (the median of {SYNCS}), and each acknowledgement waits for one"),
                "use a faster disk, or one whose cache keeps its contents without power",
            );
            true
        }
        Ok(median) => {
            area.good(format!("this user can write in {shown}, and a sync takes {median:.1?} (the median of {SYNCS})"));
            true
        }
        Err(error) => {
            let remedy = match error.kind() {
                ErrorKind::PermissionDenied => {
                    "let this user write there (`chown`, `chmod`), or run the node as its owner"
                }
                ErrorKind::ReadOnlyFilesystem => {
                    "mount it for writing; `dmesg` says whether an error made it read-only"
                }
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room there",
                _ => "see to the disk; `dmesg` may say more",
            };
            area.bad(format!("no file can be written in {shown}: {error}"), remedy);
            false
        }
    }
}

/// Returns the median of the times that syncs take. The file is gone when this returns.
fn time_syncs(base: &Path) -> io::Result<Duration> {
    let mut made = tempfile::Builder::new();
    let mut file = made.prefix(".squall-doctor-").tempfile_in(base)?;
    file.write_all(&[0; 4096])?;
    file.as_file().sync_all()?;
    let mut times = Vec::new();
    for number in 0..SYNCS {
        file.as_file().write_all_at(&[number as u8; 512], 0)?;
        let began = Instant::now();
        file.as_file().sync_data()?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    file.close()?;
    Ok(times[SYNCS / 2])
}

fn look_at_file_system(area: &mut Area, base: &Path) {
    let shown = base.display();
    let Ok(found) = statfs(base) else { return };
    match found.f_type.cast_unsigned() {
        TMPFS | RAMFS => area.warn(
            format!("{shown} is in memory (tmpfs): nothing of it outlives a loss of power, whatever is acknowledged"),
            "put `storage` on a disk",
        ),
        OVERLAY => area.warn(
            format!("{shown} is a container's own layer (overlay): it goes with the container"),
            "put `storage` on a volume",
        ),
        kind if kind == NFS_SUPER_MAGIC.cast_unsigned() => area.warn(
            format!("{shown} is on another host (NFS): the node ends or stands still when that does"),
            "put `storage` on a disk of this machine, and never two nodes' on one server",
        ),
        _ => {}
    }
}

fn look_at_room(area: &mut Area, config: &Config, directory: &Path, base: &Path) {
    let found = match statvfs(base) {
        Ok(found) => found,
        Err(error) => {
            return area.warn(format!("the room in {} is not known: {error}", base.display()), "see to the disk");
        }
    };
    if found.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return area.bad(format!("{} is mounted read-only", base.display()), "mount it for writing");
    }
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    let free_inodes = (found.f_files > 0).then_some(found.f_favail);
    let figures = RoomFigures { free_bytes: bytes(found.f_bavail), total_bytes: bytes(found.f_blocks), free_inodes };
    judge_room(area, figures, expected(config), used(directory));
    judge_room_level(area, &base.display().to_string(), figures, logs(config));
}

/// The durable groups of a configuration.
fn durable(config: &Config) -> impl Iterator<Item = GroupConfig> {
    config.group_names().map(|name| config.group(name)).filter(|group| group.mode == Mode::Durable)
}

/// The number of logs that the node has.
fn logs(config: &Config) -> usize {
    durable(config).map(|group| group.shards as usize).sum()
}

fn judge_room_level(area: &mut Area, base: &str, figures: RoomFigures, logs: usize) {
    let status = RoomLimits::of_node(logs).judge(base, figures);
    let text = format!("{} of {} are free", ByteSize(figures.free_bytes), ByteSize(figures.total_bytes));
    match (status.level, status.warning()) {
        (RoomLevel::Short, Some(why)) => area.push(Level::Bad, why, None),
        (_, Some(why)) => area.push(Level::Warning, why, None),
        (_, None) => area.good(text),
    }
}

/// Compares the room with what the configuration lets the logs grow to.
fn judge_room(area: &mut Area, figures: RoomFigures, expected: Option<u64>, used: u64) {
    let Some(expected) = expected.filter(|&expected| expected > figures.free_bytes.saturating_add(used)) else {
        return;
    };
    area.warn(
        format!(
            "the logs may grow to {} as the groups are configured (`retain`, `snapshot_bytes`); they have {}, and {} are free",
            ByteSize(expected),
            ByteSize(used),
            ByteSize(figures.free_bytes)
        ),
        "take a larger disk, or a smaller `retain`",
    );
}

/// The bytes to which the configured groups' logs grow; None if one of them keeps everything.
fn expected(config: &Config) -> Option<u64> {
    durable(config)
        .map(|group| Some((group.retain? + 2 * group.snapshot_bytes).saturating_mul(u64::from(group.shards))))
        .sum()
}

/// The bytes that files below a directory take.
fn used(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => used(&entry.path()),
        Ok(found) => found.st_blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(bytes).sum()
}

/// Names other nodes of the configuration whose storage is the same directory, on the same host.
fn look_at_sharing(area: &mut Area, config: &Config, directory: &Path, others: &[(NodeId, PathBuf)]) {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let hosts = |node| config.addresses(node).iter().map(|address| address.host()).collect::<Vec<_>>();
    let own = hosts(config.id());
    let is_here = |node: NodeId| config.carrier() == Carrier::Shm || hosts(node).iter().any(|host| own.contains(host));
    for (node, other) in others {
        if is_here(*node) && real(other) == real(directory) {
            area.bad(
                format!("{} is also the storage of {node}, on this host", directory.display()),
                "give each node a directory of its own: `storage = \"state/{id}\"` serves all of them",
            );
        }
    }
}

/// Says whether a process uses the directory now.
fn look_at_use(area: &mut Area, directory: &Path) -> bool {
    let path = directory.join(STORE);
    // The lock is held for a moment only; a node that starts just then would have to start again.
    let is_in_use =
        File::open(&path).is_ok_and(|store| matches!(store.try_lock_shared(), Err(TryLockError::WouldBlock)));
    if is_in_use {
        let by = holder(&path).map_or_else(String::new, |pid| format!(" by process {pid}"));
        area.warn(
            format!("{} is in use{by}", directory.display()),
            "perhaps the node runs already; no second one can run on it",
        );
    }
    is_in_use
}

/// The process that holds the lock of a file, if the kernel shows it.
fn holder(path: &Path) -> Option<u32> {
    holder_in(&fs::read_to_string("/proc/locks").ok()?, fs::metadata(path).ok()?.st_ino())
}

fn holder_in(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // 1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF
        let (pid, file) = (words.get(4)?, words.get(5)?);
        let is_it = file.rsplit(':').next()?.parse() == Ok(inode);
        pid.parse().ok().filter(|pid| is_it && *pid > 0)
    })
}

/// Says whose the directory is, and whether it is the newest that its node had.
fn look_at_store(area: &mut Area, config: &Config, directory: &Path, heard: &[MemberWord], is_in_use: bool) {
    let (shown, me) = (directory.display(), config.id());
    let store = match StoreSummary::of(directory) {
        Ok(store) => store,
        // What is being changed may look damaged.
        Err(_) if is_in_use => return,
        Err(error @ StorageError::Io { .. }) => {
            return area.bad(error.to_string(), "let this user read and write it, or run the node as its owner");
        }
        Err(error) => return area.push(Level::Bad, error.to_string(), None),
    };
    let lives: Vec<_> = heard.iter().filter_map(|word| Some((word.member, word.life?))).collect();
    let Some(store) = store else {
        return match lives.first() {
            None => area.good(format!("{shown} holds nothing of a node yet")),
            Some((member, _)) => area.warn(
                format!("{shown} holds nothing, and {member} knows {me}: it joins anew, and gets all from the others"),
                "if it was not meant to lose its disk, put its directory back, or correct `storage`",
            ),
        };
    };
    if store.cluster != config.cluster() {
        return area.bad(
            format!("{shown} is of cluster {:?}, not of {:?}", store.cluster, config.cluster()),
            "give each cluster a directory of its own",
        );
    }
    if let Some(node) = store.node.filter(|node| *node != me) {
        return area.bad(
            format!("{shown} is the directory of {node}, and this is {me}"),
            format!("start {node} with it, and give {me} its own (were two exchanged?), or an empty one"),
        );
    }
    match lives.iter().find(|(_, life)| store.lacks(*life)) {
        Some((member, life)) => area.bad(
            format!("{shown} is an old copy: {member} knows a later life of {me} ({}) than any in it", life.0),
            "put back the newest directory of the node; if that is lost, move this one away, and the node joins with an empty one",
        ),
        None if lives.is_empty() => area.warn(
            format!("{shown} is this node's; no member that runs was heard that knows it, so an old copy would not be noticed"),
            "look again once other members run",
        ),
        None => area.good(format!("{shown} is this node's, and no member that was heard knows of a newer one")),
    }
    for word in heard.iter().filter(|word| !word.went_back.is_empty()) {
        area.warn(
            format!("{} says that the group has gone back: {}", word.member, word.went_back.join("; ")),
            "see `squall status` there before the node is started",
        );
    }
}

#[cfg(test)]
#[path = "storage_tests.rs"]
mod tests;
