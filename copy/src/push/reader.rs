//! The thread that reads the source's files ahead of what is sent.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use squall_fabric::Waker;
use squall_rdmc::Buffer;

use super::super::{
    feed::{Feed, Verdicts},
    worker::Worker,
};

/// A segment and the buffer for it. There are never more than buffers.
#[derive(Debug)]
pub(super) struct SegmentRead {
    pub(super) segment: u64,
    pub(super) len: usize,
    pub(super) buffer: Buffer,
    /// The attempt for which it is read.
    pub(super) attempt: u64,
}

/// An order for the thread.
pub(super) enum ReaderTask {
    Read(SegmentRead),
    /// Hash the rest.
    Finish,
}

/// A report of the thread.
#[derive(Debug)]
pub(super) enum ReaderReport {
    /// A segment is in the buffer.
    Read(SegmentRead),
    /// The verdicts on files.
    Verdicts(Verdicts),
    /// The end: all files are hashed, and all verdicts given.
    Finished,
}

/// The handle of the thread. The thread ends soon after this is dropped.
pub(super) struct ReaderThread {
    pub(super) worker: Worker<ReaderTask, ReaderReport>,
    given_up: Arc<AtomicBool>,
}

impl ReaderThread {
    pub(super) fn start(mut feed: Feed, waker: Waker) -> io::Result<ReaderThread> {
        let given_up = feed.given_up();
        let worker = Worker::start("squall-cp-read", waker, move |orders, tell| {
            for order in orders {
                let mut verdicts = Verdicts::new();
                let read = match order {
                    ReaderTask::Read(mut read) => {
                        feed.read(read.segment, &mut read.buffer[..read.len], &mut verdicts);
                        ReaderReport::Read(read)
                    }
                    ReaderTask::Finish => {
                        feed.finish(&mut verdicts);
                        ReaderReport::Finished
                    }
                };
                tell(ReaderReport::Verdicts(verdicts));
                tell(read);
            }
        })?;
        Ok(ReaderThread { worker, given_up })
    }
}

impl Drop for ReaderThread {
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
    }
}
