//! The thread that writes a receiver's files. Disks are slow, and the thread that moves contents must not wait for
//! them.

use std::{
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crossbeam::channel::Receiver;
use squall_fabric::Waker;
use squall_rdmc::{BlockSet, Buffer};

use super::{
    super::{
        chunks::Chunk,
        extent::PlanPart,
        manifest::Manifest,
        pace::Pace,
        pool::SegmentRead,
        root::Root,
        sink::{FileToCopy, Lacking, Outcome, Sink, SinkError, SinkOptions, Verdict},
        worker::Worker,
    },
    LOOK,
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
    /// Read a segment that is in place.
    Read(SegmentRead),
    Verdicts(Vec<(u32, Verdict)>),
    /// Copy open files of the source.
    Copy(Vec<FileToCopy>),
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
    /// A segment is in its buffer, or can't be read, for this reason.
    Read(SegmentRead, Result<(), String>),
    /// So many open files are copied, or can't be; and so many bytes, since the report before.
    Copied { files: u32, bytes: u64 },
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
        let (flag, limit_rate) = (Arc::clone(&given_up), options.limit_rate);
        let worker = Worker::start("squall-cp-write", waker, move |orders, tell| {
            let wrote = Sink::open(root, manifest, options, me, Arc::clone(&flag)).and_then(|(sink, lacking)| {
                tell(WriterReport::Opened(lacking));
                let mut copier =
                    Copier { pace: Pace::new(limit_rate), piece_bytes: piece_bytes(limit_rate), given_up: flag };
                write(sink, segment_bytes, &mut copier, &orders, tell)
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

/// The most bytes of a file that are copied at once. A thread that copies looks then whether it is to end.
const PIECE_BYTES: u64 = 16 << 20;

/// The least number of bytes that are copied at once if the rate is limited.
const LEAST_PIECE_BYTES: u64 = 64 << 10;

/// Returns the number of bytes that are copied at once: about those of a sixteenth of a second, if the rate is limited.
fn piece_bytes(limit_rate: Option<u64>) -> u64 {
    limit_rate.map_or(PIECE_BYTES, |rate| (rate / 16).clamp(LEAST_PIECE_BYTES, PIECE_BYTES))
}

/// The copying of the source's open files, at a rate.
struct Copier {
    pace: Pace,
    piece_bytes: u64,
    given_up: Arc<AtomicBool>,
}

impl Copier {
    fn copy(&mut self, sink: &mut Sink, files: Vec<FileToCopy>, tell: &dyn Fn(WriterReport)) -> Result<(), SinkError> {
        let Copier { pace, piece_bytes, given_up } = self;
        let (count, mut bytes) = (files.len() as u32, 0);
        let mut step = |len: u64| {
            pace.spend(len as usize);
            bytes += len;
            if bytes >= *piece_bytes {
                tell(WriterReport::Copied { files: 0, bytes: std::mem::take(&mut bytes) });
            }
            while !pace.wait().is_zero() && !given_up.load(Ordering::Relaxed) {
                thread::sleep(pace.wait().min(LOOK));
            }
        };
        for file in files {
            sink.copy(file, *piece_bytes, &mut step)?;
        }
        sink.commit_copied()?;
        tell(WriterReport::Copied { files: count, bytes });
        Ok(())
    }
}

fn write(
    mut sink: Sink,
    segment_bytes: usize,
    copier: &mut Copier,
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
            WriterTask::Read(mut read) => {
                let there = sink.read_back(read.segment, &mut read.buffer[..read.len]);
                tell(WriterReport::Read(read, there));
            }
            WriterTask::Verdicts(verdicts) => {
                for (entry, verdict) in verdicts {
                    sink.verdict(entry as usize, verdict)?;
                }
                sink.commit()?;
            }
            WriterTask::Copy(files) => copier.copy(&mut sink, files, tell)?,
            WriterTask::Finish => {
                tell(WriterReport::Done(sink.finish()?));
                return Ok(());
            }
        }
    }
    Ok(())
}
