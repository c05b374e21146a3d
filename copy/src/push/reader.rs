//! The thread that reads the source's files ahead of what is sent.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crossbeam::channel::{Receiver, Sender, unbounded};
use squall_fabric::Waker;
use squall_rdmc::Buffer;

use super::super::feed::{Feed, Verdicts};

/// An order for the thread. There are never more reads than buffers.
enum ReaderTask {
    Read { segment: u64, len: usize, buffer: Buffer, attempt: u64 },
    Finish,
}

/// A report of the thread.
#[derive(Debug)]
pub(super) enum ReaderReport {
    /// A segment is in the buffer.
    Read { segment: u64, len: usize, buffer: Buffer, attempt: u64 },
    /// The verdicts on files.
    Verdicts(Verdicts),
    /// All files are hashed, and all verdicts given.
    Finished,
}

/// The handle of the thread. The thread ends soon after this is dropped.
#[derive(Debug)]
pub(super) struct ReaderThread {
    orders: Option<Sender<ReaderTask>>,
    pub(super) said: Receiver<ReaderReport>,
    thread: Option<thread::JoinHandle<()>>,
    given_up: Arc<AtomicBool>,
}

impl ReaderThread {
    pub(super) fn start(mut feed: Feed, waker: Waker) -> std::io::Result<ReaderThread> {
        let given_up = feed.given_up();
        let (orders, ordered) = unbounded();
        let (say, said) = unbounded();
        let body = move || {
            for order in ordered {
                let mut verdicts = Verdicts::new();
                let read = match order {
                    ReaderTask::Read { segment, len, mut buffer, attempt } => {
                        feed.read(segment, &mut buffer[..len], &mut verdicts);
                        ReaderReport::Read { segment, len, buffer, attempt }
                    }
                    ReaderTask::Finish => {
                        feed.finish(&mut verdicts);
                        ReaderReport::Finished
                    }
                };
                // A source that no longer listens has given up.
                let told = say.send(ReaderReport::Verdicts(verdicts)).and_then(|()| say.send(read));
                waker.wake();
                if told.is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("squall-cp-read".to_owned()).spawn(body)?;
        Ok(ReaderThread { orders: Some(orders), said, thread: Some(thread), given_up })
    }

    /// Reads a segment. `attempt` comes back with it.
    pub(super) fn read(&self, segment: u64, len: usize, buffer: Buffer, attempt: u64) {
        self.order(ReaderTask::Read { segment, len, buffer, attempt });
    }

    /// Hashes the rest.
    pub(super) fn finish(&self) {
        self.order(ReaderTask::Finish);
    }

    fn order(&self, order: ReaderTask) {
        if let Some(orders) = &self.orders {
            // The thread ends only when this is dropped.
            let _ = orders.send(order);
        }
    }
}

impl Drop for ReaderThread {
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
        self.orders = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that reads files panicked");
        }
    }
}
