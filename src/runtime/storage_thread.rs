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

use crate::journal::{DiskLog, Journal};

/// The time for which a log rests before it notes by itself how far it was acknowledged.
const QUIET: Duration = Duration::from_secs(1);

/// Writes what is appended to all durable groups' logs, until it is dropped: then all that was appended is written first.
#[derive(Debug)]
pub(crate) struct StorageThread {
    stop: Arc<AtomicBool>,
    unparker: Unparker,
    thread: Option<JoinHandle<()>>,
}

/// What a [`StorageThread`] will wait with.
#[derive(Debug, Default)]
pub(crate) struct Bed(Parker);

impl Bed {
    /// Wakes the thread: for [`Journal::new`].
    pub(crate) fn waker(&self) -> Waker {
        let unparker = self.0.unparker().clone();
        Waker::new(move || unparker.unpark())
    }
}

/// If the thread panics, nothing is written any more.
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
            let note = |logs: &mut Guard| {
                let mut is_behind = false;
                for (journal, log) in &mut logs.0 {
                    is_behind |= journal.note_safe(log);
                    if journal.failure().is_some() {
                        engine.wake();
                    }
                }
                is_behind
            };
            let mut is_behind = true;
            loop {
                // Looked at first, so that what was appended before is written.
                let stops = stopped.load(Ordering::Acquire);
                let mut any = false;
                for (journal, log) in &mut logs.0 {
                    if journal.is_due() && journal.write(log) {
                        any = true;
                        engine.wake();
                    }
                }
                let since = Instant::now();
                match any {
                    true => is_behind = true,
                    false if stops => {
                        note(&mut logs);
                        return;
                    }
                    false if is_behind => parker.park_timeout(QUIET),
                    false => parker.park(),
                }
                if !any && is_behind && since.elapsed() >= QUIET {
                    is_behind = note(&mut logs);
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
