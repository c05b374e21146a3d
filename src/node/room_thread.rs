//! The thread that looks at the room on a node's storage.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam::sync::{Parker, Unparker};
use squall_fabric::{Time, sync::Lock};

use crate::durable::room::{RoomFigures, RoomLevel, RoomLimits, RoomStatus, RoomWatch};

/// The interval of looks.
const LOOKS: Duration = Duration::from_secs(1);

/// The last status of the room, for any thread; None before the first look, and where nothing looks.
pub(crate) type SharedRoom = Arc<Lock<Option<RoomStatus>>>;

/// Looks at the room on a node's storage, until it is dropped. The file system may take its time, so no other thread
/// asks it, and none waits for this one.
#[derive(Debug)]
pub(crate) struct RoomThread {
    stop: Arc<AtomicBool>,
    unparker: Unparker,
}

impl RoomThread {
    /// Starts to look at the file system of a directory, below which these logs are. `tell` is called whenever the
    /// storage becomes short of room, or is so no more.
    pub(crate) fn start(
        directory: PathBuf,
        logs: Vec<PathBuf>,
        room: SharedRoom,
        tell: impl Fn(bool) + Send + 'static,
    ) -> io::Result<RoomThread> {
        let (name, of_logs) = (directory.display().to_string(), directory.clone());
        let limits = move || RoomLimits::of_node(logs_here(&of_logs, &logs));
        RoomThread::run(name, limits, move || figures(&directory), room, tell)
    }

    /// Starts to look with functions that ask the file system.
    fn run(
        directory: String,
        limits: impl FnOnce() -> RoomLimits + Send + 'static,
        figures: impl Fn() -> io::Result<RoomFigures> + Send + 'static,
        room: SharedRoom,
        tell: impl Fn(bool) + Send + 'static,
    ) -> io::Result<RoomThread> {
        let parker = Parker::new();
        let unparker = parker.unparker().clone();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let body = move || {
            let mut watch = RoomWatch::new(directory, limits());
            let mut is_short = false;
            loop {
                let figures = figures();
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                // A directory that can't be asked now says nothing of its room.
                if let Ok(figures) = figures {
                    let (status, is_news) = watch.look(Time::boot_clock(), figures);
                    if is_news {
                        log(&status);
                    }
                    let is_so = status.level == RoomLevel::Short;
                    if std::mem::replace(&mut is_short, is_so) != is_so {
                        tell(is_so);
                    }
                    *room.lock() = Some(status);
                }
                parker.park_timeout(LOOKS);
            }
        };
        thread::Builder::new().name("squall-room".to_owned()).spawn(body)?;
        Ok(RoomThread { stop, unparker })
    }
}

impl Drop for RoomThread {
    fn drop(&mut self) {
        // The thread ends once the file system has answered, for which a node that ends does not wait.
        self.stop.store(true, Ordering::Release);
        self.unparker.unpark();
    }
}

fn figures(directory: &Path) -> io::Result<RoomFigures> {
    let found = rustix::fs::statvfs(directory)?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    let free_inodes = (found.f_files > 0).then_some(found.f_favail);
    Ok(RoomFigures { free_bytes: bytes(found.f_bavail), total_bytes: bytes(found.f_blocks), free_inodes })
}

/// The number of logs on the file system of a directory. One that lies elsewhere, behind a link, takes no room here.
fn logs_here(directory: &Path, logs: &[PathBuf]) -> usize {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let here = device(directory);
    logs.iter().filter(|log| device(log) == here).count()
}

fn log(status: &RoomStatus) {
    match (status.level, status.warning()) {
        (RoomLevel::Short, Some(why)) => tracing::error!("{why}"),
        (_, Some(why)) => tracing::warn!("{why}"),
        (_, None) => tracing::info!(directory = status.directory, "there is enough room on the storage again"),
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use std::{sync::mpsc, time::Instant};

    use super::*;

    #[test]
    fn a_question_for_room_that_hangs_does_not_keep_a_node_from_its_end() {
        let (goes_on, hangs) = mpsc::channel::<()>();
        let (asked, is_asked) = mpsc::channel();
        let figures = move || {
            asked.send(()).expect("the test waits for it");
            // An error once the test has ended.
            let _ = hangs.recv();
            Err(io::ErrorKind::NotFound.into())
        };
        let tell = |_| panic!("nothing is known");
        let thread =
            RoomThread::run("state".to_owned(), || RoomLimits::of_node(1), figures, SharedRoom::default(), tell);
        let thread = thread.expect("there is a thread");
        is_asked.recv().expect("it looks");
        let (dropped, is_dropped) = mpsc::channel();
        thread::spawn(move || {
            drop(thread);
            dropped.send(()).expect("the test waits for it");
        });
        assert_eq!(is_dropped.recv_timeout(Duration::from_secs(20)), Ok(()), "the end waits for the disk");
        drop(goes_on);
        // The thread has ended when it has dropped what it asks with.
        let until = Instant::now() + Duration::from_secs(20);
        while is_asked.recv_timeout(Duration::from_secs(20)) != Err(mpsc::RecvTimeoutError::Disconnected) {
            assert!(Instant::now() < until, "it goes on to look");
        }
    }

    #[test]
    fn logs_on_the_file_system_of_the_storage_are_counted() {
        let base = tempfile::tempdir().expect("a directory can be made");
        let logs = ["one", "two"].map(|name| base.path().join(name));
        logs.iter().for_each(|log| fs::create_dir(log).expect("a directory can be made"));
        let others = [PathBuf::from("/proc"), base.path().join("nowhere")];
        assert_eq!(logs_here(base.path(), &[&logs[..], &others[..]].concat()), 2);
        assert!(figures(base.path()).is_ok());
    }
}
