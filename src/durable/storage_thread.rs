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

use crate::durable::log_writer::{DiskLog, Journal};

/// The time for which a log rests before it notes by itself how far it was acknowledged.
const QUIET: Duration = Duration::from_secs(1);

/// Writes what is appended to all durable groups' logs, until it is dropped. A drop first waits until all that was
/// appended is written.
#[derive(Debug)]
pub(crate) struct StorageThread {
    stop: Arc<AtomicBool>,
    unparker: Unparker,
    thread: Option<JoinHandle<()>>,
}

/// The parker with which a [`StorageThread`] will wait.
#[derive(Debug, Default)]
pub(crate) struct Bed(Parker);

impl Bed {
    /// Returns a waker of the thread, for [`Journal::new`].
    pub(crate) fn waker(&self) -> Waker {
        let unparker = self.0.unparker().clone();
        Waker::new(move || unparker.unpark())
    }
}

/// The logs, with a guard for a panic of the thread: it marks them as failed, since nothing is written any more.
struct Guard(Vec<(Arc<Journal>, DiskLog)>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.iter().for_each(|(journal, _)| journal.fail("the thread that wrote the log has ended".to_owned()));
    }
}

impl StorageThread {
    /// Starts to write, and to wake the node's `engine` when something was written, or can't be.
    pub(crate) fn start(
        logs: Vec<(Arc<Journal>, DiskLog)>,
        Bed(parker): Bed,
        engine: Waker,
    ) -> io::Result<StorageThread> {
        let stop = Arc::new(AtomicBool::new(false));
        let unparker = parker.unparker().clone();
        let stopped = Arc::clone(&stop);
        let body = move || {
            let mut logs = Guard(logs);
            // By log, the time since when it has rested with more to note than it says.
            let mut rests = vec![Some(Instant::now()); logs.0.len()];
            loop {
                // Read first, so that records that were appended before are written.
                let stops = stopped.load(Ordering::Acquire);
                let mut any = false;
                for ((journal, log), rests) in logs.0.iter_mut().zip(&mut rests) {
                    let before = log.persisted();
                    if journal.is_due() && journal.write(log) {
                        any = true;
                        engine.wake();
                    }
                    if log.persisted() != before {
                        *rests = Some(Instant::now());
                    }
                }
                let is_last = stops && !any;
                for ((journal, log), rests) in logs.0.iter_mut().zip(&mut rests) {
                    if is_last || rests.is_some_and(|since| since.elapsed() >= QUIET) {
                        *rests = journal.note_safe(log).then(Instant::now);
                        if journal.failure().is_some() {
                            engine.wake();
                        }
                    }
                }
                if is_last {
                    return;
                }
                match rests.iter().flatten().min() {
                    _ if any => {}
                    Some(&first) => parker.park_timeout((first + QUIET).saturating_duration_since(Instant::now())),
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
