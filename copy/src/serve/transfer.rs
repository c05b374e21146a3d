//! One transfer at a receiver: the thread that talks to the source and drives the fabric.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam::channel::{RecvTimeoutError, TryRecvError, unbounded};
use squall_fabric::{Fabric, NodeId, Time, mixed::MixedFabric};
use squall_rdmc::{BlockSet, CreateError, Event, GroupId, Interrupted};

use super::{
    super::{
        control::{Address, ControlLink, FrameError, Heard, Join, Offer, Over, Report, ToReceiver, ToSource},
        extent::PlanPart,
        layout::StreamLayout,
        manifest::Manifest,
        plan::{self, Holding},
        pool::Pool,
        root::Root,
        sink::{Lacking, Outcome},
    },
    LOOK, ServeEvent,
    abort::Abort,
    group::{Partial, ReceivingGroup},
    turn::TransferLock,
    writer::{WriterReport, WriterTask, WriterThread},
};
use squall_rdmc::bulk::Bulk;
use squall_services::ControlStream;

/// The number of segments that a receiver has in memory, besides the interrupted ones.
const BUFFERS: usize = 3;

/// The largest segment that a receiver takes, in bytes: with [`BUFFERS`], it bounds its memory.
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
    /// The number of bytes that are lacking.
    lacks: u64,
    /// Whether there has been a plan.
    planned: bool,
    /// The segment before which all that are for this receiver have come.
    received: u64,
    /// The number of bytes that are written, of those that were lacking.
    written: u64,
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
    current: Option<ReceivingGroup>,
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
            while let Ok(Heard { message, .. }) = heard.try_recv() {
                busy = true;
                self.on_message(message.map_err(Abort::Gone)?, tell)?;
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
                let moved = self.bulk.fabric().bytes_received() - self.received_before;
                // All files are in place, whether or not the source is there to hear it.
                let _ = self.say(&ToSource::Done(Report { outcome: outcome.clone(), moved }));
                return Ok(outcome);
            }
            if !busy {
                self.bulk.rest(Time::boot_clock() + PROGRESS);
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
        let waker = self.bulk.waker();
        let writer = WriterThread::start(root, Arc::clone(&manifest), segment_bytes, offer.options, self.me, waker);
        let writer = writer.map_err(|error| Abort::Refused(format!("the system gives no thread: {error}")))?;
        self.accepted = Some(Accepted {
            manifest,
            segment_bytes,
            layout: StreamLayout::new(&[], segment_bytes),
            writer,
            pool: Pool::new(0, 0),
            lacks: 0,
            planned: false,
            received: 0,
            written: 0,
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

    fn on_message(&mut self, message: ToReceiver, tell: &mut dyn FnMut(ServeEvent)) -> Result<(), Abort> {
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
            ToReceiver::Verdicts(verdicts) => self.accepted().writer.worker.order(WriterTask::Verdicts(verdicts)),
            ToReceiver::Finish => self.accepted().writer.worker.order(WriterTask::Finish),
            ToReceiver::Abort(reason) => return Err(Abort::Aborted(reason)),
            ToReceiver::Leave => return Err(Abort::Left),
        }
        Ok(())
    }

    /// Takes a plan: segments are counted from its beginning.
    fn plan(&mut self, parts: Vec<PlanPart>, tell: &mut dyn FnMut(ServeEvent)) -> Result<(), Abort> {
        let in_group = self.current.is_some() || self.next.is_some();
        let Accepted { manifest, segment_bytes, layout, writer, lacks, planned, received, partials, .. } =
            self.accepted();
        if in_group || !partials.is_empty() || !plan::check(&parts, manifest) {
            return Err(Abort::Breach("its plan can't be one".to_owned()));
        }
        *layout = StreamLayout::new(&parts, *segment_bytes);
        *received = 0;
        let (files, bytes, held) = (manifest.files(), manifest.bytes(), manifest.bytes().saturating_sub(*lacks));
        let is_first = !std::mem::replace(planned, true);
        writer.worker.order(WriterTask::Plan(parts));
        if is_first {
            let transfer = manifest.id().to_string();
            tell(ServeEvent::Began { transfer, files, bytes, held });
        }
        Ok(())
    }

    fn join(&mut self, join: Join) -> Result<(), Abort> {
        let (id, me) = (join.id(), self.me);
        let Accepted { layout, received, segment_bytes, .. } = self.accepted();
        *received = layout.next_for(me, *received);
        let fits = join.first == *received && join.first < join.end && join.end <= layout.part_end(join.first);
        let largest = *segment_bytes;
        if !fits || (join.partial && join.end != join.first + 1) || !(1..=largest as u64).contains(&join.block_bytes) {
            let Join { first, end, block_bytes, .. } = join;
            return Err(Abort::Breach(format!(
                "segments {first}..{end} in blocks of {block_bytes} bytes can't come next"
            )));
        }
        let Some(config) = join.config() else {
            return Err(Abort::Failed(format!("it knows no algorithm {:?}: update it", join.algorithm.name)));
        };
        let block_bytes = join.block_bytes as usize;
        let accepted = self.accepted();
        if accepted.block_bytes != block_bytes {
            accepted.block_bytes = block_bytes;
            accepted.partials.clear();
            accepted.pool = Pool::new(0, 0);
        }
        if accepted.pool.limit() == 0 {
            accepted.pool = Pool::new(largest.next_multiple_of(block_bytes), BUFFERS);
            accepted.partials.iter().for_each(|_| accepted.pool.adopt());
        }
        let message = if join.partial { self.interrupted(&join)? } else { None };
        if join.partial && message.is_none() {
            // The writer will give a buffer back, and the others wait.
            self.next = Some(join);
            return Ok(());
        }
        tracing::debug!(?id, first = join.first, end = join.end, "joins a group");
        let given = u64::from(message.is_some());
        self.current = Some(ReceivingGroup { id, given, inside: given as usize, waiting: VecDeque::new(), join });
        let created = match message {
            Some(message) => self.bulk.resume(config, message),
            None => self.bulk.create(config),
        };
        created.or_else(|error: CreateError| self.over(Some((None, error.to_string()))))
    }

    /// Returns the received part of an interrupted segment; None if there is no memory for it now.
    fn interrupted(&mut self, join: &Join) -> Result<Option<Interrupted>, Abort> {
        let accepted = self.accepted.as_mut().expect("a group belongs to a transfer");
        let len = accepted.layout.len(join.first);
        let blocks = len.div_ceil(accepted.block_bytes).max(1) as u32;
        let partial = match accepted.partials.remove(&join.first) {
            Some(partial) => Some(partial),
            None => {
                let taken = accepted.pool.take(self.bulk.fabric(), accepted.partials.len());
                let buffer = taken.map_err(|error| Abort::Failed(error.to_string()))?;
                buffer.map(|buffer| Partial { held: BlockSet::new(blocks), buffer: Arc::new(buffer) })
            }
        };
        Ok(partial.map(|Partial { held, buffer }| {
            let buffer = Some(buffer);
            Interrupted { message: join.first, blocks, len: Some(len), held, buffer }
        }))
    }

    fn on_event(&mut self, id: GroupId, event: Event) -> Result<(), Abort> {
        let Some(current) = self.current.as_mut().filter(|current| current.id == id) else { return Ok(()) };
        let accepted = self.accepted.as_mut().expect("a group belongs to a transfer");
        match event {
            Event::Connected => Ok(()),
            Event::Incoming { message, .. } => {
                current.waiting.push_back(message);
                Ok(())
            }
            Event::Received { buffer, len, .. } => {
                let segment = accepted.received;
                if segment >= current.join.end {
                    return Err(Abort::Breach("it sent more than it had announced".to_owned()));
                }
                current.inside -= 1;
                accepted.received += 1;
                if let Some(Partial { buffer, .. }) = accepted.partials.remove(&segment) {
                    // The segment came again from the first block.
                    accepted.pool.give_shared(buffer);
                }
                accepted.writer.worker.order(WriterTask::Write { segment, buffer, len });
                Ok(())
            }
            // Buffers come back through the writer.
            Event::Released { .. } => Ok(()),
            Event::Failed(failure) => {
                let why = (failure.suspect.map(|node| node.0), failure.reason.clone());
                self.keep(failure.interrupted);
                self.over(Some(why))
            }
            Event::Destroyed => self.over(None),
        }
    }

    /// Keeps the blocks of messages that are not whole.
    fn keep(&mut self, interrupted: Vec<Interrupted>) {
        let (Some(current), Some(accepted)) = (&mut self.current, &mut self.accepted) else { return };
        for Interrupted { message, held, buffer, .. } in interrupted {
            let segment = if current.join.partial { message } else { current.join.first + message };
            if let Some(buffer) = buffer.filter(|_| segment >= accepted.received && segment < current.join.end) {
                current.inside -= 1;
                if held.count() > 0 {
                    accepted.partials.insert(segment, Partial { held, buffer });
                } else {
                    accepted.pool.give_shared(buffer);
                }
            }
        }
    }

    /// Handles the end of the current group.
    fn over(&mut self, failure: Option<(Option<u32>, String)>) -> Result<(), Abort> {
        let Some(current) = self.current.take() else { return Ok(()) };
        self.bulk.remove(current.id);
        let accepted = self.accepted();
        accepted.pool.lost(current.inside);
        if let Some((suspect, reason)) = &failure {
            tracing::info!(instance = current.id.instance, ?suspect, reason, "a group failed");
        }
        let holding = self.holding();
        let over = Over { instance: current.id.instance, holding, failure };
        self.say(&ToSource::Over(over)).map_err(Abort::Gone)
    }

    /// Gives the group memory for the messages to come.
    fn supply(&mut self) -> Result<(), Abort> {
        if self.current.is_none()
            && let Some(join) = self.next.take()
        {
            self.join(join)?;
        }
        let (Some(current), Some(accepted)) = (&mut self.current, &mut self.accepted) else { return Ok(()) };
        let messages = current.join.end - current.join.first;
        while current.given < messages {
            let taken = accepted.pool.take(self.bulk.fabric(), accepted.partials.len());
            let Some(buffer) = taken.map_err(|error| Abort::Failed(error.to_string()))? else { return Ok(()) };
            let Some(group) = self.bulk.group(current.id) else { return Ok(()) };
            match current.waiting.pop_front() {
                Some(message) => {
                    if let Err(error) = group.accept(message, buffer) {
                        // The group has failed, and will report that.
                        tracing::debug!(%error, "memory came too late");
                        accepted.pool.lost(1);
                        return Ok(());
                    }
                }
                None => group.provide(buffer),
            }
            current.given += 1;
            current.inside += 1;
        }
        Ok(())
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
