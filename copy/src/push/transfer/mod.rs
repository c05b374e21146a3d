//! One transfer at the source: the thread that talks to receivers and drives the fabric.

mod group;

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam::channel::TryRecvError;
use squall_fabric::{NodeId, Time, mixed::MixedFabric};
use squall_rdmc::{BlockSet, Interrupted};

use self::group::SendingGroup;
use super::{
    super::{
        control::{Address, Offer, ToReceiver},
        feed::{Feed, Sources},
        layout::StreamLayout,
        manifest::Manifest,
        pace::Pace,
        pool::{Pool, SegmentRead},
        sink::SinkOptions,
    },
    PushError, PushOptions, PushProgress, ReceiverReport,
    peers::{PeerEvent, Peers},
    reader::{ReaderReport, ReaderTask, ReaderThread},
};
use squall_rdmc::bulk::Bulk;

/// The number of segments that a source has in memory.
const BUFFERS: usize = 4;

/// The interval at which the caller is told the progress.
const WATCH: Duration = Duration::from_millis(100);

/// The numbers of multicasts and groups of a push, and of the multicasts that receivers sent in the source's place.
pub(super) struct PushWork {
    pub(super) multicasts: u64,
    pub(super) relayed: u64,
    pub(super) groups: u64,
}

pub(super) struct Transfer<'o> {
    options: &'o PushOptions,
    sink: SinkOptions,
    bulk: Bulk<MixedFabric>,
    peers: Peers<'o>,
    manifest: Arc<Manifest>,
    layout: StreamLayout,
    reader: ReaderThread,
    /// The receivers that wait for the chunks of a file.
    cutting: HashMap<u32, Vec<usize>>,
    /// The files to cut, one after the other: what is read meanwhile must not wait for all.
    to_cut: VecDeque<u32>,
    cuts: bool,
    /// Whether receivers are ready that the plan knows nothing of.
    unplanned: bool,
    /// The number of plans so far.
    plans: u64,
    pool: Pool,
    pace: Pace,
    segment_bytes: usize,
    block_bytes: usize,
    current: Option<SendingGroup>,
    group: u32,
    instance: u64,
    strikes: u32,
    /// The most that was achieved since a receiver was lost.
    best: u64,
    multicasts: u64,
    /// The number of those that receivers sent in the source's place.
    relayed: u64,
    finishing: bool,
}

impl<'o> Transfer<'o> {
    pub(super) fn new(
        options: &'o PushOptions,
        sink: SinkOptions,
        bulk: Bulk<MixedFabric>,
        peers: Peers<'o>,
        manifest: Arc<Manifest>,
        sources: Sources,
    ) -> Result<Transfer<'o>, PushError> {
        let segment_bytes = (options.segment_bytes as u64).min(manifest.bytes()).max(1) as usize;
        let reader = ReaderThread::start(Feed::new(sources, Arc::clone(&manifest)), bulk.waker())?;
        Ok(Transfer {
            options,
            bulk,
            peers,
            manifest,
            layout: StreamLayout::new(&[], segment_bytes),
            reader,
            cutting: HashMap::new(),
            to_cut: VecDeque::new(),
            cuts: false,
            unplanned: false,
            plans: 0,
            sink,
            pool: Pool::new(segment_bytes, BUFFERS),
            pace: Pace::new(options.limit_rate),
            segment_bytes,
            block_bytes: options.block_bytes.min(segment_bytes),
            current: None,
            // The number is random: receivers outlive sources, which must not be mistaken for each other.
            group: fastrand::u32(..),
            instance: 0,
            strikes: 0,
            best: 0,
            multicasts: 0,
            relayed: 0,
            finishing: false,
        })
    }

    /// Runs until all receivers are done or given up. Returns whether it was stopped before.
    pub(super) fn run(&mut self, stop: &AtomicBool, watch: &mut dyn FnMut(&PushProgress)) -> Result<bool, PushError> {
        let offer = self.offer();
        self.peers.tell(&offer);
        let (mut events, mut words) = (Vec::new(), Vec::new());
        let mut watched = Instant::now();
        while self.peers.any_at_work() {
            if stop.load(Ordering::Relaxed) {
                self.peers.tell(&ToReceiver::Abort("it was interrupted".to_owned()));
                self.leave();
                return Ok(true);
            }
            let mut busy = self.bulk.turn(&mut events);
            for (id, event) in events.drain(..) {
                self.on_event(id, event)?;
            }
            busy |= self.peers.hear(self.layout.segments(), &mut words);
            words.drain(..).for_each(|word| self.on_word(word));
            busy |= self.on_read()?;
            if self.options.dry_run && !self.peers.await_answers() {
                self.peers.tell(&ToReceiver::Leave);
                return Ok(false);
            }
            self.advance()?;
            if watched.elapsed() >= WATCH {
                watched = Instant::now();
                watch(&self.peers.progress());
            }
            if !busy {
                let wait = Some(self.pace.wait()).filter(|wait| !wait.is_zero());
                self.bulk.rest(Time::boot_clock() + wait.map_or(WATCH, |wait| wait.min(WATCH)));
            }
        }
        watch(&self.peers.progress());
        Ok(false)
    }

    /// Returns the outcome at each receiver, and the work that it took.
    pub(super) fn end(mut self) -> (Vec<ReceiverReport>, PushWork) {
        // A receiver that is still in a group must be told that it is over, not find out by itself.
        let until = Instant::now() + Duration::from_secs(1);
        while !self.bulk.is_quiet() && Instant::now() < until {
            if !self.bulk.turn(&mut Vec::new()) {
                self.bulk.rest(Time::boot_clock() + Duration::from_millis(10));
            }
        }
        let work = PushWork { multicasts: self.multicasts, relayed: self.relayed, groups: self.instance };
        (self.peers.reports(), work)
    }

    fn offer(&self) -> ToReceiver {
        let (entries, options) = (self.manifest.to_raw(), self.sink.clone());
        ToReceiver::Offer(Offer { entries, segment_bytes: self.segment_bytes as u64, options })
    }

    /// Starts everything that can start.
    fn advance(&mut self) -> Result<(), PushError> {
        self.end_if_stalled();
        if self.current.as_ref().is_some_and(SendingGroup::has_ended) {
            self.conclude();
        }
        self.cut_next();
        if let Some((peer, entries)) = self.peers.next_to_open() {
            self.reader.worker.order(ReaderTask::Open { peer, entries });
        }
        // The first plan is for all that are there; one that comes late does not hold up the others.
        if self.plans == 0 && self.peers.await_answers() {
            return Ok(());
        }
        if self.unplanned && self.current.is_none() && !self.peers.any_partial() {
            self.plan();
        }
        if self.current.is_none() && !self.finishing {
            match self.peers.next_stage(&self.layout) {
                Some((stage, root)) => self.begin(stage, root)?,
                // What a receiver says that it has of segments that are not for it must not hold up the others.
                None if self.unplanned => self.plan(),
                None => {
                    self.finishing = true;
                    self.reader.worker.order(ReaderTask::Finish(self.plans));
                }
            }
        }
        self.read_ahead()
    }

    /// Lets the reader cut the next file that a receiver waits for.
    fn cut_next(&mut self) {
        while !self.cuts
            && let Some(entry) = self.to_cut.pop_front()
        {
            let waiting = self.cutting.get(&entry).into_iter().flatten();
            if waiting.copied().any(|peer| self.peers.compares(peer, entry)) {
                self.cuts = true;
                self.reader.worker.order(ReaderTask::Cut(entry));
            } else {
                self.cutting.remove(&entry);
            }
        }
    }

    /// Plans anew what is to be sent, and to whom.
    fn plan(&mut self) {
        self.plans += 1;
        let (parts, wanted) = self.peers.plan(&self.layout);
        self.layout = StreamLayout::new(&parts, self.segment_bytes);
        (self.unplanned, self.finishing, self.best) = (false, false, 0);
        tracing::debug!(parts = parts.len(), segments = self.layout.segments(), "a plan");
        let receivers = self.peers.addresses();
        for Address { node, at } in &receivers {
            self.bulk.fabric().learn(NodeId(*node), std::slice::from_ref(at));
        }
        self.peers.tell_ready(&ToReceiver::Plan { receivers, parts });
        self.reader.worker.order(ReaderTask::Plan(self.layout.clone(), wanted));
    }

    fn read_ahead(&mut self) -> Result<(), PushError> {
        let Some(current) = &mut self.current else { return Ok(()) };
        while current.root.is_none()
            && !current.over
            && current.next_read < current.stage.end
            && self.pace.wait().is_zero()
        {
            let Some(buffer) = self.pool.take(self.bulk.fabric(), 0)? else { return Ok(()) };
            let segment = current.next_read;
            let read = SegmentRead { segment, len: self.layout.len(segment), buffer, attempt: current.id.instance };
            self.pace.spend(read.len);
            self.reader.worker.order(ReaderTask::Read(read));
            current.next_read += 1;
        }
        Ok(())
    }

    fn on_read(&mut self) -> Result<bool, PushError> {
        let mut busy = false;
        loop {
            let said = match self.reader.worker.said.try_recv() {
                Ok(said) => said,
                Err(TryRecvError::Empty) => return Ok(busy),
                Err(TryRecvError::Disconnected) => {
                    return Err(PushError::Thread(io::Error::other("the thread that reads files has ended")));
                }
            };
            busy = true;
            match said {
                ReaderReport::Cut { entry, chunks } => {
                    self.cuts = false;
                    let message = ToReceiver::Chunks { entry, chunks };
                    for peer in self.cutting.remove(&entry).unwrap_or_default() {
                        self.peers.tell_one(peer, &message);
                    }
                }
                ReaderReport::Verdicts(verdicts) => self.peers.tell_verdicts(verdicts),
                // A receiver that came meanwhile is taken in first.
                ReaderReport::Finished(plan) if self.unplanned || plan != self.plans => {}
                ReaderReport::Finished(_) => self.peers.tell_finish(),
                ReaderReport::Read(read) => self.send(read)?,
                ReaderReport::Opened { peer, files } => self.peers.hand(peer, files),
            }
        }
    }

    fn send(&mut self, SegmentRead { segment, len, buffer, attempt }: SegmentRead) -> Result<(), PushError> {
        let Some(current) = self.current.as_mut().filter(|current| current.id.instance == attempt && !current.over)
        else {
            self.pool.give(buffer);
            return Ok(());
        };
        let id = current.id;
        let buffer = Arc::new(buffer);
        current.next_send = segment + 1;
        self.multicasts += 1;
        if current.stage.partial {
            let blocks = len.div_ceil(self.block_bytes).max(1) as u32;
            let held = BlockSet::full(blocks);
            current.sending.push_back(Arc::clone(&buffer));
            let message = Interrupted { message: segment, blocks, len: Some(len), held, buffer: Some(buffer) };
            self.create(Some(message))?;
        } else if let Some(group) = self.bulk.group(current.id) {
            current.sending.push_back(Arc::clone(&buffer));
            if let Err(error) = group.send(buffer, len) {
                // The group has failed, and will report that.
                tracing::debug!(%error, "a segment came too late");
            }
        }
        if self.current.as_ref().is_some_and(|current| current.next_send == current.stage.end)
            && let Some(group) = self.bulk.group(id)
        {
            // A group that has failed reports that.
            let _ = group.destroy();
        }
        Ok(())
    }

    fn on_word(&mut self, word: PeerEvent) {
        match &word {
            PeerEvent::Came(peer) => {
                let offer = self.offer();
                self.peers.tell_one(*peer, &offer);
            }
            PeerEvent::Compares(peer, entries) => {
                for &entry in entries {
                    let waiting = self.cutting.entry(entry).or_default();
                    if waiting.is_empty() {
                        self.to_cut.push_back(entry);
                    }
                    waiting.push(*peer);
                }
            }
            PeerEvent::Ready => self.unplanned = true,
            PeerEvent::Lost(_) => self.best = 0,
            PeerEvent::Over(..) => {}
        }
        self.on_group_word(word);
    }
}
