//! Names on this host: Unix sockets in a directory that belongs to this user alone.
//!
//! The directory is `squall` in `$XDG_RUNTIME_DIR` or in `/run/user/UID`, else `/tmp/squall-UID`, with mode 0700. So no
//! other user can take a name, or stand in its way. A name belongs to one network namespace, as ports do.
//!
//! A socket's file outlives its process, so a name is held by a lock on a file beside the socket.

use std::{
    ffi::OsString,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{self, FileType, FlockOperation, Mode, OFlags},
    io::{Errno, retry_on_intr},
    net::{SocketAddrUnix, bind, connect, sockopt},
    process::geteuid,
};

use crate::Fingerprint;

/// The longest path of the directory, and the longest name that stands in a path as it is, in bytes. With both the path
/// of a socket is within the 107 that the system permits.
const DIRECTORY_BYTES: usize = 48;
const NAME_BYTES: usize = 32;

/// A reason for which a name can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocalNameError {
    /// A name that no process has.
    #[error("no process of this user has the name")]
    Absent,
    /// A name that another process has.
    #[error("another process has the name")]
    Taken,
    /// The directory of names can't be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The system refused.
    #[error(transparent)]
    System(#[from] Errno),
}

/// A directory that can't hold this user's names, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the directory {} can't hold this user's sockets: {fault}", path.display())]
pub struct DirectoryError {
    path: PathBuf,
    fault: DirectoryFault,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum DirectoryFault {
    #[error("it is a symbolic link: remove it")]
    Symlink,
    #[error("it is no directory: remove it")]
    NoDirectory,
    #[error(
        "it belongs to the user {owner}: have it removed, or set XDG_RUNTIME_DIR to a directory of this user with mode 0700"
    )]
    Owner { owner: u32 },
    #[error("its mode is {mode:04o}, so that other users can use it: look who did that, and `chmod 700` it")]
    Open { mode: u32 },
    #[error("{0}; set XDG_RUNTIME_DIR to a directory of this user with mode 0700")]
    System(Errno),
}

/// Checks a directory for the names of a user. Returns whether it exists.
fn check(path: &Path, user: u32) -> Result<bool, DirectoryError> {
    let fault = match fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(false),
        Err(cause) => DirectoryFault::System(cause),
        Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => DirectoryFault::Symlink,
            FileType::Directory if stat.st_uid != user => DirectoryFault::Owner { owner: stat.st_uid },
            FileType::Directory if stat.st_mode & 0o077 != 0 => DirectoryFault::Open { mode: stat.st_mode & 0o7777 },
            FileType::Directory => return Ok(true),
            _ => DirectoryFault::NoDirectory,
        },
    };
    Err(DirectoryError { path: path.to_owned(), fault })
}

/// Makes a directory for the names of a user, unless it exists, and checks it.
fn prepare(path: &Path, user: u32) -> Result<(), DirectoryError> {
    match fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => check(path, user).map(drop),
        Err(cause) => Err(DirectoryError { path: path.to_owned(), fault: DirectoryFault::System(cause) }),
    }
}

/// The directories in which a user's names may be. The first is that of this process's names: another process of the
/// user may have another environment, or may have begun before the user logged in.
fn directories(user: u32, runtime: Option<OsString>) -> Vec<PathBuf> {
    let is_private = |path: &PathBuf| {
        path.is_absolute()
            && path.as_os_str().len() <= DIRECTORY_BYTES - "/squall".len()
            && fs::stat(path).is_ok_and(|stat| stat.st_uid == user && stat.st_mode & 0o077 == 0)
    };
    let runtime = runtime.into_iter().map(PathBuf::from).chain([PathBuf::from(format!("/run/user/{user}"))]);
    let mut directories: Vec<_> = runtime.filter(is_private).map(|path| path.join("squall")).collect();
    directories.push(PathBuf::from(format!("/tmp/squall-{user}")));
    directories.dedup();
    directories
}

fn own_directories() -> (u32, Vec<PathBuf>) {
    let user = geteuid().as_raw();
    (user, directories(user, std::env::var_os("XDG_RUNTIME_DIR")))
}

/// The file of a name in this network namespace, as `KIND.NAMESPACE.NAME`. A `/` of the name is a `:` there, and a name
/// that does not fit has its fingerprint in its place.
fn file_name(kind: &str, name: &str) -> String {
    let namespace = network_namespace();
    if name.len() <= NAME_BYTES && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte)) {
        return format!("{kind}.{namespace}.{}", name.replace('/', ":"));
    }
    format!("{kind}.{namespace}.{:016x}", Fingerprint::default().text(name).value())
}

/// The number of this process's network namespace; 0 if the system does not tell.
pub(crate) fn network_namespace() -> u64 {
    fs::stat("/proc/self/ns/net").map_or(0, |stat| stat.st_ino)
}

fn lock_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    path.into()
}

/// A name that this process has, until this is dropped. If the process is killed, its files stay, and another process
/// can take the name.
#[derive(Debug)]
pub struct HeldName {
    socket: PathBuf,
    lock: OwnedFd,
}

impl HeldName {
    fn take(socket: PathBuf) -> Result<HeldName, LocalNameError> {
        let path = lock_path(&socket);
        // The sticky bit keeps programs that clean up from the file (XDG Base Directory Specification).
        let mode = Mode::RUSR | Mode::WUSR | Mode::SVTX;
        loop {
            let lock = fs::open(&path, OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW, mode)?;
            match retry_on_intr(|| fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)) {
                Err(Errno::WOULDBLOCK) => return Err(LocalNameError::Taken),
                result => result?,
            }
            let held = HeldName { socket: socket.clone(), lock };
            // The process that had the name may have removed the file after it was opened here.
            if held.is_in_place() {
                return Ok(held);
            }
        }
    }

    /// Whether the lock is on the file that has the name now.
    fn is_in_place(&self) -> bool {
        let id = |stat: fs::Stat| (stat.st_dev, stat.st_ino);
        fs::fstat(&self.lock)
            .is_ok_and(|own| fs::lstat(lock_path(&self.socket)).is_ok_and(|there| id(own) == id(there)))
    }
}

impl Drop for HeldName {
    fn drop(&mut self) {
        // The files that another process has made since are its own.
        if self.is_in_place() {
            let _ = fs::unlink(&self.socket);
            let _ = fs::unlink(lock_path(&self.socket));
        }
    }
}

/// Whether a process has the name of a socket.
fn is_held(socket: &Path) -> bool {
    let lock = fs::open(lock_path(socket), OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty());
    lock.is_ok_and(|lock| fs::flock(&lock, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK))
}

/// Takes a name for a socket, which does not listen yet. `kind` is a word of the kind of socket, and `name` may be any
/// text.
///
/// Fails with [`LocalNameError::Taken`] if another process of this user has the name, and if the directory of names
/// can't be used.
pub fn bind_name(socket: impl AsFd, kind: &str, name: &str) -> Result<HeldName, LocalNameError> {
    let (user, directories) = own_directories();
    let file = file_name(kind, name);
    prepare(&directories[0], user)?;
    let held = HeldName::take(directories[0].join(&file))?;
    let mut others = directories[1..].iter().filter(|directory| check(directory, user) == Ok(true));
    if others.any(|directory| is_held(&directory.join(&file))) {
        return Err(LocalNameError::Taken);
    }
    // A process that was killed has left it.
    let _ = fs::unlink(&held.socket);
    bind(socket, &SocketAddrUnix::new(&held.socket)?)?;
    Ok(held)
}

/// Connects a socket with the process of this user that has a name.
///
/// Fails with [`LocalNameError::Absent`] if there is none, and if the directory of names can't be used.
pub fn connect_name(socket: impl AsFd, kind: &str, name: &str) -> Result<(), LocalNameError> {
    let (user, directories) = own_directories();
    let file = file_name(kind, name);
    for (index, directory) in directories.iter().enumerate() {
        match check(directory, user) {
            Ok(true) => {}
            Err(error) if index == 0 => return Err(error.into()),
            _ => continue,
        }
        match connect(&socket, &SocketAddrUnix::new(directory.join(&file))?) {
            Err(Errno::NOENT | Errno::CONNREFUSED) => {}
            result => return Ok(result?),
        }
    }
    Err(LocalNameError::Absent)
}

/// Tells whether a process of another user has a name in its own directory, by the paths of all sockets of this network
/// namespace. It can't be called.
pub fn another_user_has(kind: &str, name: &str) -> bool {
    another_has(&file_name(kind, name), geteuid().as_raw())
}

/// Whether there is a socket with that file in the directory of another user than `user`.
fn another_has(file: &str, user: u32) -> bool {
    let sockets = std::fs::read("/proc/net/unix").unwrap_or_default();
    String::from_utf8_lossy(&sockets).lines().any(|line| {
        let path = line.find('/').map(|start| Path::new(&line[start..]));
        let path = path.filter(|path| path.file_name().is_some_and(|name| name == file));
        match path.and_then(Path::parent).map(fs::stat) {
            Some(Ok(directory)) => directory.st_uid != user,
            // One that this user may not enter.
            Some(Err(cause)) => cause == Errno::ACCESS,
            None => false,
        }
    })
}

/// Tells whether the process at the other end of a Unix socket belongs to this process's user.
pub fn is_same_user(socket: impl AsFd) -> bool {
    sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == geteuid())
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::{fs::PermissionsExt, net::UnixListener},
        sync::atomic::{AtomicUsize, Ordering},
        thread,
    };

    use rustix::net::{AddressFamily, SocketType, listen, socket};

    use super::*;

    fn new_socket() -> OwnedFd {
        socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket")
    }

    /// A socket that listens at a name.
    fn listener(name: &str) -> Result<(OwnedFd, HeldName), LocalNameError> {
        let socket = new_socket();
        let held = bind_name(&socket, "squall-test", name)?;
        listen(&socket, 1).expect("a socket that listens");
        Ok((socket, held))
    }

    fn dial(name: &str) -> Result<(), LocalNameError> {
        connect_name(new_socket(), "squall-test", name)
    }

    fn unique(name: &str) -> String {
        format!("{name}-{}/1", std::process::id())
    }

    /// This user, a directory that is its own alone, and that directory's path.
    fn private() -> (u32, tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().to_owned();
        set_mode(&path, 0o700);
        (geteuid().as_raw(), directory, path)
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("it is this user's");
    }

    #[test]
    fn a_name_is_taken_once_and_vanishes_with_its_holder() {
        let name = unique("once");
        assert_eq!(dial(&name), Err(LocalNameError::Absent));
        let (_socket, held) = listener(&name).expect("a free name");
        assert_eq!(listener(&name).map(drop), Err(LocalNameError::Taken));
        assert_eq!(dial(&name), Ok(()));
        let (socket, lock) = (held.socket.clone(), lock_path(&held.socket));
        drop(held);
        assert!(!socket.exists() && !lock.exists());
        assert_eq!(dial(&name), Err(LocalNameError::Absent));
    }

    #[test]
    fn what_a_killed_process_left_is_replaced() {
        let name = unique("killed");
        let (socket, held) = listener(&name).expect("a free name");
        drop(socket);
        // The lock ends with the process, and the files stay.
        let path = held.socket.clone();
        std::fs::remove_file(lock_path(&path)).expect("it is there");
        drop(held);
        std::fs::write(lock_path(&path), "").expect("it can be made");
        assert!(path.exists());
        assert_eq!(dial(&name), Err(LocalNameError::Absent));
        let _listener = listener(&name).expect("a name that no process has");
        assert_eq!(dial(&name), Ok(()));
    }

    #[test]
    fn of_many_that_take_a_name_at_once_one_has_it() {
        let (name, holders, times) = (unique("race"), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let Ok(held) = listener(&name) else { continue };
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two have the name");
                        assert_eq!(dial(&name), Ok(()), "another removed the socket");
                        times.fetch_add(1, Ordering::SeqCst);
                        holders.fetch_sub(1, Ordering::SeqCst);
                        drop(held);
                    }
                });
            }
        });
        assert!(times.into_inner() > 0);
    }

    #[test]
    fn a_name_that_another_user_has_is_told_from_one_that_nobody_has() {
        let (user, _directory, path) = private();
        let file = file_name("squall-test", &unique("other"));
        assert!(!another_has(&file, user + 1));
        let _listener = UnixListener::bind(path.join(&file)).expect("a socket");
        assert!(another_has(&file, user + 1));
        assert!(!another_has(&file, user), "it is this user's");
        assert!(!another_has(&file[1..], user + 1));
    }

    #[test]
    fn names_that_differ_have_files_that_differ() {
        let long = "x".repeat(64);
        let names = ["a/1", "a/11", "a:1", "cp/a/1", &format!("{long}/1"), &format!("{long}/2"), "a b/1"];
        let mut files = names.map(|name| file_name("squall-node", name));
        assert_eq!(files[0], format!("squall-node.{}.a:1", network_namespace()));
        let most = Path::new(&"x".repeat(DIRECTORY_BYTES)).join(files.iter().max_by_key(|file| file.len()).unwrap());
        assert!(SocketAddrUnix::new(most).is_ok());
        files.sort();
        assert!(files.windows(2).all(|pair| pair[0] != pair[1]), "{files:?}");
    }

    #[test]
    fn a_directory_that_others_could_use_is_refused_with_what_to_do() {
        let (user, _directory, path) = private();
        let why = |path: &Path, user| check(path, user).expect_err("a directory of no use").to_string();
        assert_eq!(check(&path, user), Ok(true));
        assert_eq!(check(&path.join("absent"), user), Ok(false));
        assert_eq!(prepare(&path.join("new"), user), Ok(()));
        let other = why(&path, user + 1);
        assert!(other.contains(&format!("it belongs to the user {user}: have it removed")), "{other}");
        std::os::unix::fs::symlink(&path, path.join("link")).expect("a link");
        assert!(why(&path.join("link"), user).ends_with("it is a symbolic link: remove it"));
        std::fs::write(path.join("file"), "").expect("a file");
        assert!(why(&path.join("file"), user).ends_with("it is no directory: remove it"));
        set_mode(&path, 0o750);
        let open = why(&path, user);
        assert!(open.contains("its mode is 0750") && open.contains("chmod 700"), "{open}");
        assert!(
            prepare(&path.join("no/parent"), user).is_err_and(|error| error.to_string().contains("XDG_RUNTIME_DIR"))
        );
    }

    #[test]
    fn the_directory_is_the_session_s_if_that_is_the_user_s_alone() {
        let (user, _directory, path) = private();
        let first = |user, path: &Path| directories(user, Some(path.into())).remove(0);
        assert_eq!(first(user, &path), path.join("squall"));
        for unfit in [Path::new("relative"), &path.join("absent"), &path.join("x".repeat(64))] {
            assert!(!first(user, unfit).starts_with(unfit), "{unfit:?}");
        }
        assert!(!first(user + 1, &path).starts_with(&path), "it is another user's");
        set_mode(&path, 0o711);
        assert!(!first(user, &path).starts_with(&path), "others may enter it");
        let last = directories(user, None).pop().expect("there is always one");
        assert_eq!(last, PathBuf::from(format!("/tmp/squall-{user}")));
    }
}
