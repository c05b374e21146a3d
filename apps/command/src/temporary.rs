//! Directories that last as long as a process, and that the next one removes if this one was killed.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::io::{FdFlags, fcntl_setfd};

/// The end of the name of a directory's lock file. The process that made the directory holds the lock as long as it
/// lives, and so do the processes that it [shares](TemporaryDirectory::share_with_children) it with. So no process uses
/// a directory whose lock is free.
const LOCK: &str = ".lock";

/// The number of attempts to make a directory while other processes remove theirs.
const ATTEMPTS: u32 = 100;

/// A new directory that this user alone can use. It is removed when this is dropped.
///
/// All are in one place, which is `squall-UID` in the system's directory of temporary files, or `.squall-tmp-UID` in a
/// directory that is given. A process that makes one there first removes those of processes of this host that were
/// killed.
#[derive(Debug)]
pub struct TemporaryDirectory {
    path: PathBuf,
    lock: PathBuf,
    /// Holds the lock.
    held: File,
}

impl TemporaryDirectory {
    /// Makes one in the system's directory of temporary files (`TMPDIR`). `purpose` is the beginning of its name.
    pub fn new(purpose: &str) -> io::Result<TemporaryDirectory> {
        TemporaryDirectory::in_place(&std::env::temp_dir().join(format!("squall-{}", user())), purpose)
    }

    /// Makes one on the disk of `parent`.
    pub fn new_in(parent: &Path, purpose: &str) -> io::Result<TemporaryDirectory> {
        TemporaryDirectory::in_place(&parent.join(format!(".squall-tmp-{}", user())), purpose)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets the processes that this one starts from now on hold the directory too. If this one is killed, the directory
    /// stays until they have ended.
    pub fn share_with_children(&self) -> io::Result<()> {
        // They inherit the open file, whose lock it is.
        Ok(fcntl_setfd(&self.held, FdFlags::empty())?)
    }

    fn in_place(place: &Path, purpose: &str) -> io::Result<TemporaryDirectory> {
        for _ in 0..ATTEMPTS {
            if make_place(place)? {
                remove_dead(place);
                if let Some(made) = TemporaryDirectory::try_make(place, purpose)? {
                    return Ok(made);
                }
            }
        }
        let why = "other processes remove what is made in it: end those that clean it while it is in use";
        Err(io::Error::other(format!("{}: {why}", place.display())))
    }

    /// Makes one. None if another process removed the place, or took the new lock for that of a dead process.
    fn try_make(place: &Path, purpose: &str) -> io::Result<Option<TemporaryDirectory>> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("{}{}.{number}.{purpose}", host(), process::id()));
        let lock = with_lock_name(&path);
        let held = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&lock) {
            Ok(file) => file,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        match held.try_lock() {
            Ok(()) if is_at(&held, &lock) => {}
            Ok(()) | Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => {
                let _ = fs::remove_file(lock);
                return Err(error);
            }
        }
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Some(TemporaryDirectory { path, lock, held }))
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        remove(&self.path, &self.lock);
        if let Some(place) = self.path.parent() {
            // Others may have theirs in it.
            let _ = fs::remove_dir(place);
        }
    }
}

/// Removes a directory and then its lock file, so that there is never a directory without.
fn remove(path: &Path, lock: &Path) {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {}
        _ => drop(fs::remove_file(lock)),
    }
}

/// The path of a directory's lock file.
fn with_lock_name(path: &Path) -> PathBuf {
    let mut lock = path.as_os_str().to_owned();
    lock.push(LOCK);
    lock.into()
}

/// Makes the place of all directories, or checks that no other user can change what is in it. False if another process
/// removed it meanwhile.
fn make_place(place: &Path) -> io::Result<bool> {
    match DirBuilder::new().mode(0o700).create(place) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made.map(|()| true),
    }
    let found = match fs::symlink_metadata(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found?,
    };
    let problem = match () {
        () if !found.is_dir() => "is no directory",
        () if found.uid() != user() => "belongs to another user",
        () if found.mode() & 0o022 != 0 => "can be changed by other users",
        () => return Ok(true),
    };
    let problem = format!("{} {problem}: remove it, or name another place", place.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The beginning of all names that processes of this host give. Other hosts may have the same disk.
fn host() -> String {
    format!("{}.", rustix::system::uname().nodename().to_string_lossy().replace(['/', '.'], "-"))
}

/// Removes the directories of this host's processes that have ended.
fn remove_dead(place: &Path) {
    let host = host();
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let (name, lock) = (entry.file_name(), entry.path());
        let name = name.to_str().filter(|name| name.starts_with(&host));
        let Some(path) = name.and_then(|name| name.strip_suffix(LOCK)).map(|name| place.join(name)) else { continue };
        // Some network file systems lock only what is open for writing.
        let Ok(file) = OpenOptions::new().write(true).open(&lock) else { continue };
        if file.try_lock().is_ok() && is_at(&file, &lock) {
            remove(&path, &lock);
        }
    }
}

/// Whether the open file is the one at this path.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(found)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    (open.dev(), open.ino()) == (found.dev(), found.ino())
}

#[cfg(test)]
mod tests {
    use std::{env, process::Command};

    use super::*;

    /// A place for the tests' own directories.
    fn parent(name: &str) -> PathBuf {
        let parent = env::temp_dir().join(format!("squall-command-test-{}-{name}", process::id()));
        let _ = fs::remove_dir_all(&parent);
        fs::create_dir(&parent).unwrap();
        parent
    }

    #[test]
    fn a_directory_is_there_as_long_as_it_is_held() {
        let parent = parent("held");
        let first = TemporaryDirectory::new_in(&parent, "keys").unwrap();
        let second = TemporaryDirectory::new_in(&parent, "keys").unwrap();
        fs::write(first.path().join("file"), "contents").unwrap();
        assert_ne!(first.path(), second.path());
        assert_eq!(fs::metadata(first.path()).unwrap().mode() & 0o777, 0o700);
        drop(second);
        assert!(first.path().join("file").is_file());
        drop(first);
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 0, "nothing is left, not even the place");
        fs::remove_dir(parent).unwrap();
    }

    /// A process that is killed, also when the test fails.
    struct Killed(process::Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Not a test of its own: the process that the next ones kill.
    #[test]
    fn process_that_holds_one() {
        let Ok(parent) = env::var("SQUALL_TEST_TEMPORARY") else { return };
        let held = TemporaryDirectory::new_in(Path::new(&parent), "killed").unwrap();
        fs::write(held.path().join("file"), "contents").unwrap();
        if env::var("SQUALL_TEST_SHARES").is_ok() {
            held.share_with_children().unwrap();
            // It ends with its input, which is the test's.
            let mut child = Command::new("cat").stdout(process::Stdio::null()).spawn().unwrap();
            crate::say("holds it");
            child.wait().unwrap();
            return;
        }
        crate::say("holds it");
        loop {
            std::thread::park();
        }
    }

    /// Starts a process that makes a directory there, and waits until it has.
    fn spawn_holder(parent: &Path, envs: &[(&str, &str)]) -> Killed {
        let child = Command::new(env::current_exe().unwrap())
            .args(["process_that_holds_one", "--nocapture"])
            .env("SQUALL_TEST_TEMPORARY", parent)
            .envs(envs.iter().copied())
            .stdin(process::Stdio::piped())
            .stdout(process::Stdio::piped())
            .spawn();
        let mut child = Killed(child.unwrap());
        let lines = io::BufRead::lines(io::BufReader::new(child.0.stdout.take().unwrap()));
        lines.map_while(Result::ok).find(|line| line.contains("holds it")).expect("it makes one");
        child
    }

    /// The number of entries that such processes have left: a directory and its lock for each.
    fn killed(parent: &Path) -> usize {
        let entries = fs::read_dir(parent.join(format!(".squall-tmp-{}", user()))).unwrap().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().contains("killed")).count()
    }

    #[test]
    fn a_directory_stays_until_the_children_of_a_process_that_was_killed_have_ended() {
        let parent = parent("shared");
        let mut holder = spawn_holder(&parent, &[("SQUALL_TEST_SHARES", "1")]);
        let input = holder.0.stdin.take();
        drop(holder);
        let first = TemporaryDirectory::new_in(&parent, "first").unwrap();
        assert_eq!(killed(&parent), 2, "a child of the process lives");
        drop(input);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while killed(&parent) > 0 {
            assert!(std::time::Instant::now() < deadline, "the child has ended, and the directory stays");
            drop(TemporaryDirectory::new_in(&parent, "next").unwrap());
        }
        drop(first);
        fs::remove_dir(parent).unwrap();
    }

    #[test]
    fn the_next_process_removes_the_directory_of_one_that_was_killed() {
        let parent = parent("killed");
        let child = spawn_holder(&parent, &[]);
        let other = TemporaryDirectory::new_in(&parent, "other").unwrap();
        assert_eq!(killed(&parent), 2, "a directory and its lock, of a process that lives");
        drop(child);
        let next = TemporaryDirectory::new_in(&parent, "next").unwrap();
        assert_eq!(killed(&parent), 0);
        drop((other, next));
        fs::remove_dir(parent).unwrap();
    }

    #[test]
    fn a_place_that_others_can_change_is_refused() {
        let parent = parent("open");
        let place = parent.join(format!(".squall-tmp-{}", user()));
        fs::create_dir(&place).unwrap();
        fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let error = TemporaryDirectory::new_in(&parent, "keys").unwrap_err();
        assert!(error.to_string().contains("can be changed by other users"), "{error}");
        fs::remove_dir_all(&place).unwrap();
        std::os::unix::fs::symlink("/", &place).unwrap();
        assert!(TemporaryDirectory::new_in(&parent, "keys").is_err(), "a link may lead anywhere");
        fs::remove_dir_all(parent).unwrap();
    }
}
