//! One transfer at a receiver: the thread that talks to the source and drives the fabric.

mod group;
mod root;

use std::{
    collections::BTreeMap,
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam::channel::{RecvTimeoutError, TryRecvError, unbounded};
use squall_fabric::{Fabric, NodeId, Time, mixed::MixedFabric};

use self::group::{JoinedGroup, Partial};
use super::{
    super::{
        control::{
            Address, ControlLink, FrameError, HandedFile, Heard, Join, MAX_HANDED, Offer, Report, ToReceiver, ToSource,
        },
        extent::PlanPart,
        layout::StreamLayout,
        manifest::Manifest,
        pace::Pace,
        plan::{self, Holding},
        pool::Pool,
        root::Root,
        sink::{FileToCopy, Lacking, Outcome, Verdict},
    },
    LOOK, ServeEvent,
    abort::Abort,
    turn::TransferLock,
    writer::{WriterReport, WriterTask, WriterThread},
};
use squall_rdmc::bulk::Bulk;
use squall_services::ControlStream;

/// The largest segment that a receiver takes, in bytes: with the number of those in memory, it bounds its memory.
const MAX_SEGMENT_BYTES: u64 = 32 << 20;

/// The interval of a receiver's signs of life.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// The shortest interval of a receiver's progress reports.
const PROGRESS: Duration = Duration::from_millis(100);

/// The time that a source has to make its offer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The state of a transfer once it was offered.
struct Accepted {
    manifest: Arc<Manifest>,
    segment_bytes: usize,
    layout: StreamLayout,
    writer: WriterThread,
    pool: Pool,
    /// The rate of what this receiver sends in the source's place.
    pace: Pace,
    /// The number of bytes that are lacking.
    lacks: u64,
    /// Whether contents have begun to come.
    planned: bool,
    /// The segment before which all that are for this receiver have come.
    received: u64,
    /// The number of bytes that are written, of those that were lacking.
    written: u64,
    /// The number of those that were copied from the source's open files.
    copied: u64,
    /// The number of open files that are being copied.
    handed: usize,
    partials: BTreeMap<u64, Partial>,
    /// The block size of the partials.
    block_bytes: usize,
    outcome: Option<Outcome>,
}

pub(super) struct Transfer<'r> {
    bulk: &'r mut Bulk<MixedFabric>,
    turn: &'r TransferLock,
    root: Arc<Root>,
    /// This receiver's node id.
    me: u32,
    accepted: Option<Accepted>,
    current: Option<JoinedGroup>,
    /// The next group, which begins when the current one is over and there is memory for it.
    next: Option<Join>,
    received_before: u64,
    link: Option<ControlLink>,
    said_last: Instant,
    told: u64,
}

impl<'r> Transfer<'r> {
    pub(super) fn new(bulk: &'r mut Bulk<MixedFabric>, turn: &'r TransferLock, root: Arc<Root>) -> Transfer<'r> {
        let received_before = bulk.fabric().bytes_received();
        Transfer {
            me: bulk.fabric().node().0,
            bulk,
            turn,
            root,
            accepted: None,
            current: None,
            next: None,
            received_before,
            link: None,
            said_last: Instant::now(),
            told: 0,
        }
    }

    /// Takes part until the transfer is over. Returns false if a caller made no offer.
    pub(super) fn run(&mut self, call: ControlStream, stop: &AtomicBool, tell: &mut dyn FnMut(ServeEvent)) -> bool {
        let ended = self.serve(call, stop, tell);
        self.turn.end_soon();
        let offered = self.accepted.is_some();
        match ended {
            Ok(Outcome { placed, unchanged, kept, deleted, losses, failed, failures }) => {
                let losses = losses.into();
                tell(ServeEvent::Finished { placed, unchanged, kept, deleted, losses, failed, failures });
            }
            Err(Abort::Gone(error)) if !offered => tracing::debug!(%error, "a caller made no offer"),
            // That is no transfer.
            Err(Abort::Left) => return false,
            Err(end) => {
                let reason = end.to_string();
                let word = end.word();
                if let Some(word) = word {
                    // A source that has gone can't be told.
                    let _ = self.say(&word);
                }
                self.collect();
                tell(ServeEvent::Interrupted { reason });
                return true;
            }
        }
        offered
    }

    fn serve(
        &mut self,
        call: ControlStream,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(ServeEvent),
    ) -> Result<Outcome, Abort> {
        let (hear, heard) = unbounded();
        self.link = Some(ControlLink::start(call, 0, hear, self.bulk.waker()).map_err(Abort::Gone)?);
        let until = Instant::now() + PATIENCE;
        let offer = loop {
            match heard.recv_timeout(LOOK) {
                Ok(offer) => break offer,
                Err(RecvTimeoutError::Timeout) if Instant::now() < until && !stop.load(Ordering::Relaxed) => {}
                Err(_) => return Err(Abort::Gone(FrameError::Closed)),
            }
        };
        match offer.message.map_err(Abort::Gone)? {
            ToReceiver::Offer(offer) => self.accept(offer)?,
            _ => return Err(Abort::Breach("it did not begin with an offer".to_owned())),
        }
        let mut events = Vec::new();
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(Abort::Stopped);
            }
            let mut busy = self.bulk.turn(&mut events);
            for (id, event) in events.drain(..) {
                self.on_event(id, event)?;
            }
            while let Ok(Heard { message, files, .. }) = heard.try_recv() {
                busy = true;
                self.on_message(message.map_err(Abort::Gone)?, files, tell)?;
            }
            match self.accepted.as_ref().map(|accepted| accepted.writer.worker.said.try_recv()) {
                Some(Ok(said)) => {
                    busy = true;
                    self.on_said(said)?;
                }
                Some(Err(TryRecvError::Disconnected)) => {
                    return Err(Abort::Failed("the thread that writes files has ended".to_owned()));
                }
                Some(Err(TryRecvError::Empty)) | None => {}
            }
            self.supply()?;
            self.report(tell)?;
            if let Some(outcome) = self.accepted.as_ref().and_then(|accepted| accepted.outcome.clone()) {
                let copied = self.accepted().copied;
                let moved = self.bulk.fabric().bytes_received() - self.received_before + copied;
                // All files are in place, whether or not the source is there to hear it.
                let _ = self.say(&ToSource::Done(Report { outcome: outcome.clone(), moved }));
                return Ok(outcome);
            }
            if !busy {
                let wait = self.accepted.as_ref().map(|accepted| accepted.pace.wait());
                let wait = wait.filter(|wait| !wait.is_zero()).unwrap_or(PROGRESS);
                self.bulk.rest(Time::boot_clock() + wait.min(PROGRESS));
            }
        }
    }

    fn accept(&mut self, mut offer: Offer) -> Result<(), Abort> {
        if !(1..=MAX_SEGMENT_BYTES).contains(&offer.segment_bytes) {
            return Err(Abort::Refused(format!("segments of {} bytes are not possible", offer.segment_bytes)));
        }
        let manifest = Manifest::new(std::mem::take(&mut offer.entries));
        let manifest = Arc::new(manifest.map_err(|error| Abort::Refused(error.to_string()))?);
        let (segment_bytes, root) = (offer.segment_bytes as usize, Arc::clone(&self.root));
        let pace = Pace::new(offer.options.limit_rate);
        let waker = self.bulk.waker();
        let writer = WriterThread::start(root, Arc::clone(&manifest), segment_bytes, offer.options, self.me, waker);
        let writer = writer.map_err(|error| Abort::Refused(format!("the system gives no thread: {error}")))?;
        self.accepted = Some(Accepted {
            manifest,
            segment_bytes,
            layout: StreamLayout::new(&[], segment_bytes),
            writer,
            pool: Pool::new(0, 0),
            pace,
            lacks: 0,
            planned: false,
            received: 0,
            written: 0,
            copied: 0,
            handed: 0,
            partials: BTreeMap::new(),
            block_bytes: 0,
            outcome: None,
        });
        Ok(())
    }

    fn say(&mut self, message: &ToSource) -> Result<(), FrameError> {
        self.said_last = Instant::now();
        self.link.as_mut().map_or(Err(FrameError::Closed), |link| link.send(message))
    }

    fn accepted(&mut self) -> &mut Accepted {
        self.accepted.as_mut().expect("nothing else happens before an offer was accepted")
    }

    fn on_said(&mut self, said: WriterReport) -> Result<(), Abort> {
        match said {
            WriterReport::Opened(lacking) => self.on_opened(lacking)?,
            WriterReport::Compared { entry, missing } => {
                self.accepted().lacks += missing.iter().map(|range| range.end - range.start).sum::<u64>();
                let ranges = missing.into_iter().map(|range| (range.start, range.end - range.start)).collect();
                self.say(&ToSource::Missing { entry, ranges }).map_err(Abort::Gone)?;
            }
            WriterReport::Wrote { buffer, written } => {
                let accepted = self.accepted();
                accepted.written = written;
                accepted.pool.give_shared(buffer);
            }
            WriterReport::Read(read, there) => self.send(read, there)?,
            WriterReport::Copied { files, bytes } => {
                let accepted = self.accepted();
                accepted.handed = accepted.handed.saturating_sub(files as usize);
                (accepted.written, accepted.copied) = (accepted.written + bytes, accepted.copied + bytes);
                if files > 0 {
                    self.say(&ToSource::Copied { files }).map_err(Abort::Gone)?;
                }
            }
            WriterReport::Failed(error) => return Err(Abort::Failed(error.to_string())),
            WriterReport::Done(outcome) => self.accepted().outcome = Some(outcome),
        }
        Ok(())
    }

    fn on_opened(&mut self, lacking: Lacking) -> Result<(), Abort> {
        let accepted = self.accepted();
        let entries = accepted.manifest.entries();
        accepted.lacks = lacking.whole.iter().map(|&entry| entries[entry as usize].contents_before(u64::MAX)).sum();
        self.say(&ToSource::Ready(lacking)).map_err(Abort::Gone)
    }

    fn holding(&mut self) -> Holding {
        let accepted = self.accepted();
        Holding { segments: accepted.received, partial: accepted.partials.keys().copied().collect() }
    }

    fn on_message(
        &mut self,
        message: ToReceiver,
        files: Vec<File>,
        tell: &mut dyn FnMut(ServeEvent),
    ) -> Result<(), Abort> {
        match message {
            ToReceiver::Offer(_) => return Err(Abort::Breach("it made a second offer".to_owned())),
            ToReceiver::Chunks { entry, chunks } => {
                self.accepted().writer.worker.order(WriterTask::Compare { entry, chunks });
            }
            ToReceiver::Plan { receivers, parts } => {
                for Address { node, at } in receivers {
                    self.bulk.fabric().learn(NodeId(node), &[at]);
                }
                self.plan(parts, tell)?;
            }
            ToReceiver::Join(join) => self.next = Some(join),
            ToReceiver::EndGroup { instance } => self.end_group(instance)?,
            ToReceiver::Verdicts(verdicts) => self.accepted().writer.worker.order(WriterTask::Verdicts(verdicts)),
            ToReceiver::Files(handed) => {
                self.begin(tell);
                self.copy(handed, files)?;
            }
            ToReceiver::Finish => {
                self.begin(tell);
                self.accepted().writer.worker.order(WriterTask::Finish);
            }
            ToReceiver::Abort(reason) => return Err(Abort::Aborted(reason)),
            ToReceiver::Leave => return Err(Abort::Left),
        }
        Ok(())
    }

    /// Takes a plan: segments are counted from its beginning.
    fn plan(&mut self, parts: Vec<PlanPart>, tell: &mut dyn FnMut(ServeEvent)) -> Result<(), Abort> {
        let in_group = self.current.is_some() || self.next.is_some();
        let Accepted { manifest, segment_bytes, layout, writer, received, partials, .. } = self.accepted();
        if in_group || !partials.is_empty() || !plan::check(&parts, manifest) {
            return Err(Abort::Breach("its plan can't be one".to_owned()));
        }
        *layout = StreamLayout::new(&parts, *segment_bytes);
        *received = 0;
        writer.worker.order(WriterTask::Plan(parts));
        self.begin(tell);
        Ok(())
    }

    /// Takes open files, to copy them.
    fn copy(&mut self, handed: Vec<HandedFile>, open: Vec<File>) -> Result<(), Abort> {
        let accepted = self.accepted();
        accepted.handed += handed.len();
        if accepted.handed > MAX_HANDED {
            return Err(Abort::Breach(format!("it handed out more than {MAX_HANDED} open files at once")));
        }
        let mut open = open.into_iter();
        let with_file = |HandedFile { entry, verdict }| match verdict {
            Some(Verdict::Damaged(_)) => FileToCopy { entry, file: None, verdict },
            _ => FileToCopy { entry, file: open.next(), verdict },
        };
        accepted.writer.worker.order(WriterTask::Copy(handed.into_iter().map(with_file).collect()));
        Ok(())
    }

    /// Tells, once, that contents come from now on.
    fn begin(&mut self, tell: &mut dyn FnMut(ServeEvent)) {
        let Accepted { manifest, lacks, planned, .. } = self.accepted();
        if std::mem::replace(planned, true) {
            return;
        }
        let (files, bytes, held) = (manifest.files(), manifest.bytes(), manifest.bytes().saturating_sub(*lacks));
        tell(ServeEvent::Began { transfer: manifest.id().to_string(), files, bytes, held });
    }

    /// Reports the files' progress to both sides, at most once an interval.
    fn report(&mut self, tell: &mut dyn FnMut(ServeEvent)) -> Result<(), Abort> {
        let Some(accepted) = &self.accepted else { return Ok(()) };
        let written = accepted.written;
        let due = if written > self.told { PROGRESS } else { SIGN_OF_LIFE };
        if self.said_last.elapsed() < due {
            return Ok(());
        }
        self.told = written;
        let held = accepted.manifest.bytes().saturating_sub(accepted.lacks);
        if accepted.planned {
            tell(ServeEvent::Progress { written: held + written });
        }
        self.say(&ToSource::Progress { written }).map_err(Abort::Gone)
    }

    /// Writes what the group has received, after an early end: whole segments, and blocks of others.
    fn collect(&mut self) {
        self.link = None;
        let mut events = Vec::new();
        self.bulk.turn(&mut events);
        for (id, event) in events {
            // The source is not there to be told of a group's end.
            let _ = self.on_event(id, event);
        }
        if let Some(id) = self.current.as_ref().map(|current| current.id) {
            let interrupted = self.bulk.remove(id);
            self.keep(interrupted);
            self.current = None;
        }
        let Some(accepted) = &mut self.accepted else { return };
        let block_bytes = accepted.block_bytes;
        for (segment, Partial { held, buffer }) in std::mem::take(&mut accepted.partials) {
            accepted.writer.worker.order(WriterTask::Salvage { segment, held, block_bytes, buffer });
        }
    }
}
