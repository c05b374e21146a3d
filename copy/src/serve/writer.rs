//! The thread that writes a receiver's files. Disks are slow, and the thread that moves contents must not wait for
//! them.

use std::{
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crossbeam::channel::Receiver;
use squall_fabric::Waker;
use squall_rdmc::{BlockSet, Buffer};

use super::super::{
    chunks::Chunk,
    extent::PlanPart,
    manifest::Manifest,
    root::Root,
    sink::{Lacking, Outcome, Sink, SinkError, SinkOptions, Verdict},
    worker::Worker,
};

/// An order for the thread. There are never more writes than buffers.
pub(super) enum WriterTask {
    /// Compare a file with its chunks at the source.
    Compare {
        entry: u32,
        chunks: Vec<Chunk>,
    },
    /// Write by this plan from now on.
    Plan(Vec<PlanPart>),
    Write {
        segment: u64,
        buffer: Arc<Buffer>,
        len: usize,
    },
    /// Write the blocks of a segment that came before its transfer ended.
    Salvage {
        segment: u64,
        held: BlockSet,
        block_bytes: usize,
        buffer: Arc<Buffer>,
    },
    Verdicts(Vec<(u32, Verdict)>),
    Finish,
}

/// A report of the thread.
#[derive(Debug)]
pub(super) enum WriterReport {
    /// The thread has looked at what is here.
    Opened(Lacking),
    /// The ranges of a file that are missing.
    Compared { entry: u32, missing: Vec<Range<u64>> },
    /// A segment is written, and its buffer free.
    Wrote { buffer: Arc<Buffer>, written: u64 },
    /// A failure, after which nothing more can be written.
    Failed(SinkError),
    /// The end: all is in place.
    Done(Outcome),
}

/// The handle of the thread. When it is dropped, the thread writes what it was ordered to, and ends.
pub(super) struct WriterThread {
    pub(super) worker: Worker<WriterTask, WriterReport>,
    given_up: Arc<AtomicBool>,
}

impl WriterThread {
    pub(super) fn start(
        root: Arc<Root>,
        manifest: Arc<Manifest>,
        segment_bytes: usize,
        options: SinkOptions,
        me: u32,
        waker: Waker,
    ) -> io::Result<WriterThread> {
        let given_up = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&given_up);
        let worker = Worker::start("squall-cp-write", waker, move |orders, tell| {
            let wrote = Sink::open(root, manifest, options, me, flag).and_then(|(sink, lacking)| {
                tell(WriterReport::Opened(lacking));
                write(sink, segment_bytes, &orders, tell)
            });
            if let Err(error) = wrote {
                tell(WriterReport::Failed(error));
            }
        })?;
        Ok(WriterThread { worker, given_up })
    }
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
    }
}

fn write(
    mut sink: Sink,
    segment_bytes: usize,
    orders: &Receiver<WriterTask>,
    tell: &dyn Fn(WriterReport),
) -> Result<(), SinkError> {
    for order in orders {
        match order {
            WriterTask::Compare { entry, chunks } => {
                let missing = sink.compare(entry as usize, &chunks);
                tell(WriterReport::Compared { entry, missing });
            }
            WriterTask::Plan(plan) => sink.plan(&plan, segment_bytes)?,
            WriterTask::Write { segment, buffer, len } => {
                sink.write(segment, buffer.get(..len).unwrap_or_default())?;
                tell(WriterReport::Wrote { buffer, written: sink.written() });
            }
            WriterTask::Salvage { segment, held, block_bytes, buffer } => {
                sink.salvage(segment, &held, block_bytes, &buffer)?;
            }
            WriterTask::Verdicts(verdicts) => {
                for (entry, verdict) in verdicts {
                    sink.verdict(entry as usize, verdict)?;
                }
                sink.commit()?;
            }
            WriterTask::Finish => {
                tell(WriterReport::Done(sink.finish()?));
                return Ok(());
            }
        }
    }
    Ok(())
}
