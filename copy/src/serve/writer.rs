//! The thread that writes a receiver's files. Disks are slow, and the thread that moves contents must not wait for
//! them.

use std::{io, sync::Arc};

use crossbeam::channel::Receiver;
use squall_fabric::Waker;
use squall_rdmc::Buffer;

use super::super::{
    control::Offer,
    manifest::Manifest,
    root::Root,
    sink::{Outcome, Sink, SinkError, Verdict, Written},
    worker::Worker,
};

/// An order for the thread. There are never more writes than buffers.
pub(super) enum WriterTask {
    Write { segment: u64, buffer: Arc<Buffer>, len: usize },
    Verdicts(Vec<(u32, Verdict)>),
    Finish,
}

/// A report of the thread.
#[derive(Debug)]
pub(super) enum WriterReport {
    /// The thread has read the state of an earlier attempt.
    Opened(Written),
    /// A segment is written, and its buffer free. `segments` is the new count of written segments.
    Wrote { buffer: Arc<Buffer>, segments: u64 },
    /// A failure, after which nothing more can be written.
    Failed(SinkError),
    /// The end: all is in place.
    Done(Outcome),
}

/// The handle of the thread.
pub(super) type WriterThread = Worker<WriterTask, WriterReport>;

pub(super) fn start(root: Arc<Root>, manifest: Arc<Manifest>, offer: &Offer, waker: Waker) -> io::Result<WriterThread> {
    let (segment_bytes, options, resume) = (offer.segment_bytes as usize, offer.options, offer.resume);
    Worker::start("squall-cp-write", waker, move |orders, tell| {
        let wrote =
            Sink::open(root, manifest, segment_bytes, options, resume).and_then(|sink| write(sink, &orders, tell));
        if let Err(error) = wrote {
            tell(WriterReport::Failed(error));
        }
    })
}

fn write(mut sink: Sink, orders: &Receiver<WriterTask>, tell: &dyn Fn(WriterReport)) -> Result<(), SinkError> {
    tell(WriterReport::Opened(sink.written()));
    for order in orders {
        match order {
            WriterTask::Write { segment, buffer, len } => {
                sink.write(segment, buffer.get(..len).unwrap_or_default())?;
                tell(WriterReport::Wrote { buffer, segments: sink.segments() });
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
