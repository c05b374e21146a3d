//! The thread that writes a receiver's files. Disks are slow, and the thread that moves contents must not wait for
//! them.

use std::{sync::Arc, thread};

use crossbeam::channel::{Receiver, Sender, unbounded};
use squall_fabric::Waker;
use squall_rdmc::Buffer;

use super::super::{
    control::Offer,
    manifest::Manifest,
    root::Root,
    sink::{Outcome, Sink, SinkError, Verdict, Written},
};

/// An order for the thread. There are never more writes than buffers.
enum WriterTask {
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
    /// Nothing more can be written.
    Failed(SinkError),
    /// All is in place.
    Done(Outcome),
}

/// The handle of the thread. When it is dropped, the thread carries out all its orders, and ends.
#[derive(Debug)]
pub(super) struct WriterThread {
    orders: Option<Sender<WriterTask>>,
    pub(super) said: Receiver<WriterReport>,
    thread: Option<thread::JoinHandle<()>>,
}

impl WriterThread {
    pub(super) fn start(
        root: Arc<Root>,
        manifest: Arc<Manifest>,
        offer: &Offer,
        waker: Waker,
    ) -> std::io::Result<WriterThread> {
        let (orders, ordered) = unbounded();
        let (say, said) = unbounded();
        let (segment_bytes, options, resume) = (offer.segment_bytes as usize, offer.options, offer.resume);
        let body = move || {
            let tell = |what| {
                // A receiver that no longer listens has given the transfer up.
                let _ = say.send(what);
                waker.wake();
            };
            let wrote = Sink::open(root, manifest, segment_bytes, options, resume)
                .and_then(|sink| write(sink, &ordered, &tell));
            if let Err(error) = wrote {
                tell(WriterReport::Failed(error));
            }
        };
        let thread = thread::Builder::new().name("squall-cp-write".to_owned()).spawn(body)?;
        Ok(WriterThread { orders: Some(orders), said, thread: Some(thread) })
    }

    pub(super) fn write(&self, segment: u64, buffer: Arc<Buffer>, len: usize) {
        self.order(WriterTask::Write { segment, buffer, len });
    }

    pub(super) fn verdicts(&self, verdicts: Vec<(u32, Verdict)>) {
        self.order(WriterTask::Verdicts(verdicts));
    }

    pub(super) fn finish(&self) {
        self.order(WriterTask::Finish);
    }

    fn order(&self, order: WriterTask) {
        if let Some(orders) = &self.orders {
            // A thread that failed has reported it.
            let _ = orders.send(order);
        }
    }
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that writes files panicked");
        }
    }
}

fn write(mut sink: Sink, orders: &Receiver<WriterTask>, tell: &impl Fn(WriterReport)) -> Result<(), SinkError> {
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
