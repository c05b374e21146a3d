//! The thread that reads the source's files ahead of what is sent.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use squall_fabric::Waker;

use super::super::{
    chunks::Chunk,
    feed::{Feed, OpenedFile, Verdicts},
    layout::StreamLayout,
    pool::SegmentRead,
    worker::Worker,
};

/// An order for the thread.
pub(super) enum ReaderTask {
    /// Cut a file.
    Cut(u32),
    /// Read by this plan from now on, and hash these files.
    Plan(StreamLayout, Vec<u32>),
    Read(SegmentRead),
    /// Open files for a receiver that copies them.
    Open {
        peer: usize,
        entries: Vec<u32>,
    },
    /// Hash the rest. It belongs to the plan of this number.
    Finish(u64),
}

/// A report of the thread.
#[derive(Debug)]
pub(super) enum ReaderReport {
    /// The chunks of a file.
    Cut { entry: u32, chunks: Vec<Chunk> },
    /// A segment is in the buffer.
    Read(SegmentRead),
    /// The files for a receiver that copies them.
    Opened { peer: usize, files: Vec<OpenedFile> },
    /// The verdicts on files.
    Verdicts(Verdicts),
    /// The end of a plan: all files are hashed, and all verdicts given.
    Finished(u64),
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
                let report = match order {
                    ReaderTask::Cut(entry) => Some(ReaderReport::Cut { entry, chunks: feed.cut(entry as usize) }),
                    ReaderTask::Plan(layout, wanted) => {
                        feed.plan(layout, &wanted, &mut verdicts);
                        None
                    }
                    ReaderTask::Read(mut read) => {
                        feed.read(read.segment, &mut read.buffer[..read.len], &mut verdicts);
                        Some(ReaderReport::Read(read))
                    }
                    ReaderTask::Open { peer, entries } => {
                        let files = entries.into_iter().map(|entry| feed.open_to_copy(entry)).collect();
                        Some(ReaderReport::Opened { peer, files })
                    }
                    ReaderTask::Finish(plan) => {
                        feed.finish(&mut verdicts);
                        Some(ReaderReport::Finished(plan))
                    }
                };
                if !verdicts.is_empty() {
                    tell(ReaderReport::Verdicts(verdicts));
                }
                report.into_iter().for_each(tell);
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
