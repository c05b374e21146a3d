//! The thread that looks at the room on a node's storage.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
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
/// asks it.
#[derive(Debug)]
pub(crate) struct RoomThread {
    stop: Arc<AtomicBool>,
    unparker: Unparker,
    thread: Option<JoinHandle<()>>,
}

impl RoomThread {
    /// Starts to look. `tell` is called whenever the storage becomes short of room, or is so no more.
    pub(crate) fn start(
        directory: PathBuf,
        room: SharedRoom,
        tell: impl Fn(bool) + Send + 'static,
    ) -> io::Result<RoomThread> {
        let parker = Parker::new();
        let unparker = parker.unparker().clone();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let body = move || {
            let mut watch = RoomWatch::new(directory.display().to_string(), RoomLimits::of_node());
            let mut is_short = false;
            while !stopped.load(Ordering::Acquire) {
                // A directory that can't be asked now says nothing of its room.
                if let Ok(figures) = figures(&directory) {
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
        let thread = thread::Builder::new().name("squall-room".to_owned()).spawn(body)?;
        Ok(RoomThread { stop, unparker, thread: Some(thread) })
    }
}

impl Drop for RoomThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.unparker.unpark();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that looked at the storage's room panicked");
        }
    }
}

fn figures(directory: &Path) -> io::Result<RoomFigures> {
    let found = rustix::fs::statvfs(directory)?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(RoomFigures { free_bytes: bytes(found.f_bavail), total_bytes: bytes(found.f_blocks) })
}

fn log(status: &RoomStatus) {
    match (status.level, status.warning()) {
        (RoomLevel::Short, Some(why)) => tracing::error!("{why}"),
        (_, Some(why)) => tracing::warn!("{why}"),
        (_, None) => tracing::info!(directory = status.directory, "there is enough room on the storage again"),
    }
}
