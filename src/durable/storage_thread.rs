//! The thread that writes a node's logs.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam::sync::{Parker, Unparker};
use squall_fabric::Waker;

use crate::durable::log_writer::{DiskLog, LogWriter};

/// The time for which a log rests before it notes by itself how far it was acknowledged.
const QUIET: Duration = Duration::from_secs(1);

/// The interval at which a log whose disk has no room looks for room.
const FULL: Duration = Duration::from_millis(200);

/// Writes what is appended to all durable groups' logs, until it is dropped. A drop first waits until all that was
/// appended is written.
#[derive(Debug)]
pub(crate) struct StorageThread {
    stop: Arc<AtomicBool>,
    unparker: Unparker,
    thread: Option<JoinHandle<()>>,
}

/// The parker in which a [`StorageThread`] will wait for work.
#[derive(Debug, Default)]
pub(crate) struct WriterPark(Parker);

impl WriterPark {
    /// Returns a waker of the thread, for [`LogWriter::new`].
    pub(crate) fn waker(&self) -> Waker {
        let unparker = self.0.unparker().clone();
        Waker::new(move || unparker.unpark())
    }
}

/// The logs, with a guard for a panic of the thread: it marks them as failed, since nothing is written any more.
struct Guard(Vec<(Arc<LogWriter>, DiskLog)>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.iter().for_each(|(log_writer, _)| log_writer.fail("the thread that wrote the log has ended".to_owned()));
    }
}

impl StorageThread {
    /// Starts to write, and to wake the node's `engine` when something was written, or can't be.
    pub(crate) fn start(
        logs: Vec<(Arc<LogWriter>, DiskLog)>,
        WriterPark(parker): WriterPark,
        engine: Waker,
    ) -> io::Result<StorageThread> {
        let stop = Arc::new(AtomicBool::new(false));
        let unparker = parker.unparker().clone();
        let stopped = Arc::clone(&stop);
        let body = move || {
            let mut logs = Guard(logs);
            // By log, the time since when it has rested with more to note than it says.
            let mut rests = vec![Some(Instant::now()); logs.0.len()];
            let mut looked = Instant::now();
            loop {
                // Read first, so that records that were appended before are written.
                let stops = stopped.load(Ordering::Acquire);
                let looks = looked.elapsed() >= FULL;
                let (mut any, mut is_full) = (false, false);
                for ((log_writer, log), rests) in logs.0.iter_mut().zip(&mut rests) {
                    let before = log.persisted();
                    let waits = || log_writer.no_room().is_some();
                    if (log_writer.is_due() || looks && waits()) && log_writer.write(log) {
                        any = true;
                        engine.wake();
                    }
                    is_full |= waits();
                    if log.persisted() != before {
                        *rests = Some(Instant::now());
                    }
                }
                let is_last = stops && !any;
                for ((log_writer, log), rests) in logs.0.iter_mut().zip(&mut rests) {
                    if is_last || rests.is_some_and(|since| since.elapsed() >= QUIET) {
                        *rests = log_writer.save_acknowledged(log).then(Instant::now);
                        if log_writer.failure().is_some() {
                            engine.wake();
                        }
                    }
                }
                if is_last {
                    return;
                }
                if looks {
                    looked = Instant::now();
                }
                let quiet = rests.iter().flatten().min().map(|&first| first + QUIET);
                match quiet.into_iter().chain(is_full.then(|| looked + FULL)).min() {
                    _ if any => {}
                    Some(until) => parker.park_timeout(until.saturating_duration_since(Instant::now())),
                    None => parker.park(),
                }
            }
        };
        let thread = thread::Builder::new().name("squall-storage".to_owned()).spawn(body)?;
        Ok(StorageThread { stop, unparker, thread: Some(thread) })
    }
}

impl Drop for StorageThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.unparker.unpark();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that wrote the logs panicked");
        }
    }
}
