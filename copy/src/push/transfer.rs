//! One transfer at the source: the thread that talks to receivers and drives the fabric.

use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use squall_fabric::{Fabric, NodeId, Time, mixed::MixedFabric};
use squall_rdmc::{BlockSet, Buffer, Event, GroupId, Interrupted};

use super::{
    super::{
        control::{Address, Join, Offer, ToReceiver},
        feed::{Feed, Sources},
        layout::StreamLayout,
        manifest::Manifest,
        plan::TransferStage,
        pool::Pool,
        sink::SinkOptions,
    },
    PushError, PushOptions, PushProgress, ReceiverReport,
    peers::{PeerEvent, Peers},
    reader::{ReaderReport, ReaderTask, ReaderThread, SegmentRead},
};
use squall_rdmc::bulk::Bulk;

/// The number of segments that a source has in memory.
const BUFFERS: usize = 4;

/// The interval at which the caller is told the progress.
const WATCH: Duration = Duration::from_millis(100);

/// The number of groups in a row that may fail without a receiver being lost or anything achieved.
const STRIKES: u32 = 3;

/// The group that moves a stage.
struct SendingGroup {
    stage: TransferStage,
    join: Join,
    id: GroupId,
    /// Whether it was created here.
    created: bool,
    /// Whether it is over here.
    over: bool,
    /// The members for which it is not over.
    members: HashSet<usize>,
    /// The next segment to be read.
    next_read: u64,
    /// The next segment to be sent.
    next_send: u64,
    /// The segments that are being sent, in order.
    sending: VecDeque<Arc<Buffer>>,
    /// The reason of its failure, and the suspected node, if it failed.
    failure: Option<(Option<u32>, String)>,
    somebody_left: bool,
}

pub(super) struct Transfer<'o> {
    options: &'o PushOptions,
    bulk: Bulk<MixedFabric>,
    me: NodeId,
    peers: Peers<'o>,
    manifest: Arc<Manifest>,
    layout: StreamLayout,
    sources: Option<Sources>,
    reader: Option<ReaderThread>,
    pool: Pool,
    block_bytes: usize,
    current: Option<SendingGroup>,
    group: u32,
    instance: u64,
    strikes: u32,
    /// The most that was achieved since a receiver was lost.
    best: u64,
    multicasts: u64,
    finishing: bool,
}

impl<'o> Transfer<'o> {
    pub(super) fn new(
        options: &'o PushOptions,
        mut bulk: Bulk<MixedFabric>,
        peers: Peers<'o>,
        manifest: Arc<Manifest>,
        sources: Sources,
    ) -> Transfer<'o> {
        let layout = StreamLayout::new(&manifest, options.segment_bytes);
        let block_bytes = options.block_bytes.min(layout.largest().max(1));
        let pool = Pool::new(layout.largest().max(1), BUFFERS);
        Transfer {
            options,
            me: bulk.fabric().node(),
            bulk,
            peers,
            manifest,
            layout,
            sources: Some(sources),
            reader: None,
            pool,
            block_bytes,
            current: None,
            // The number is random: receivers outlive sources, which must not be mistaken for each other.
            group: fastrand::u32(..),
            instance: 0,
            strikes: 0,
            best: 0,
            multicasts: 0,
            finishing: false,
        }
    }

    /// Runs until all receivers are done or given up. Returns whether it was stopped before.
    pub(super) fn run(&mut self, stop: &AtomicBool, watch: &mut dyn FnMut(&PushProgress)) -> Result<bool, PushError> {
        self.offer();
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
            busy |= self.peers.hear(|segment| self.layout.begin(segment), &mut words);
            words.drain(..).for_each(|word| self.on_word(word));
            busy |= self.on_read()?;
            self.advance()?;
            if watched.elapsed() >= WATCH {
                watched = Instant::now();
                watch(&self.peers.progress());
            }
            if !busy {
                self.bulk.rest(Time::boot_clock() + WATCH);
            }
        }
        watch(&self.peers.progress());
        Ok(false)
    }

    /// Returns the outcome at each receiver, and the numbers of multicasts and groups that it took.
    pub(super) fn end(mut self) -> (Vec<ReceiverReport>, u64, u64) {
        // A receiver that is still in a group must be told that it is over, not find out by itself.
        let until = Instant::now() + Duration::from_secs(1);
        while !self.bulk.is_quiet() && Instant::now() < until {
            if !self.bulk.turn(&mut Vec::new()) {
                self.bulk.rest(Time::boot_clock() + Duration::from_millis(10));
            }
        }
        (self.peers.reports(), self.multicasts, self.instance)
    }

    fn offer(&mut self) {
        let PushOptions { clobber, sync, resume, segment_bytes, .. } = *self.options;
        let options = SinkOptions { sync, clobber };
        let entries = self.manifest.to_raw();
        let receivers = self.peers.addresses().map(|(node, at)| Address { node: node.0, at: at.to_owned() }).collect();
        let offer = Offer { entries, segment_bytes: segment_bytes as u64, options, receivers, resume };
        self.peers.tell(&ToReceiver::Offer(offer));
    }

    /// Starts everything that can start.
    fn advance(&mut self) -> Result<(), PushError> {
        if self.peers.await_answers() {
            return Ok(());
        }
        if self.reader.is_none() && self.peers.any_at_work() {
            let sources = self.sources.take().unwrap_or_default();
            let (manifest, first) = (Arc::clone(&self.manifest), self.peers.first_open());
            let feed = Feed::new(sources, manifest, self.options.segment_bytes, first);
            self.reader = Some(ReaderThread::start(feed, self.bulk.waker())?);
        }
        if self.current.as_ref().is_some_and(|current| current.over && current.members.is_empty()) {
            self.conclude();
        }
        if self.current.is_none() && !self.finishing {
            match self.peers.next_stage(self.layout.segments()) {
                Some(stage) => self.begin(stage)?,
                None => {
                    self.finishing = true;
                    self.reader.iter().for_each(|reader| reader.worker.order(ReaderTask::Finish));
                }
            }
        }
        self.read_ahead()
    }

    fn begin(&mut self, stage: TransferStage) -> Result<(), PushError> {
        self.instance += 1;
        self.best = self.best.max(self.peers.achieved());
        let (members, algorithm) = self.peers.group(self.me, &stage.receivers);
        let partial = stage.partial;
        let join = Join {
            group: self.group,
            instance: self.instance,
            members,
            algorithm,
            network: self.options.network.is_some(),
            block_bytes: self.block_bytes as u64,
            first: stage.first,
            end: stage.end,
            partial: stage.partial,
        };
        let id = join.id();
        tracing::debug!(?stage, ?id, "a group begins");
        self.current = Some(SendingGroup {
            join,
            id,
            created: false,
            over: false,
            members: stage.receivers.iter().copied().collect(),
            next_read: stage.first,
            next_send: stage.first,
            sending: VecDeque::new(),
            failure: None,
            somebody_left: false,
            stage,
        });
        // To resume, the segment must be here first.
        if partial { Ok(()) } else { self.create(None) }
    }

    /// Creates the current group, and asks its members to join.
    fn create(&mut self, message: Option<Interrupted>) -> Result<(), PushError> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let config = current
            .join
            .config()
            .ok_or_else(|| PushError::Group(format!("there is no algorithm {:?}", current.join.algorithm.name)))?;
        let created = match message {
            Some(message) => self.bulk.resume(config, message),
            None => self.bulk.create(config),
        };
        created.map_err(|error| PushError::Group(error.to_string()))?;
        current.created = true;
        let message = ToReceiver::Join(current.join.clone());
        for &peer in &current.stage.receivers {
            self.peers.tell_one(peer, &message);
        }
        Ok(())
    }

    /// Handles the end of the current group for all its members.
    fn conclude(&mut self) {
        let Some(current) = self.current.take() else { return };
        let Some((suspect, reason)) = current.failure else {
            self.strikes = 0;
            return;
        };
        if current.somebody_left || self.peers.achieved() > self.best {
            self.strikes = 0;
            return;
        }
        self.strikes += 1;
        if self.strikes >= STRIKES {
            self.strikes = 0;
            let suspect = suspect.and_then(|node| self.peers.by_node(node));
            let lost: Vec<usize> = suspect.map_or(current.stage.receivers, |peer| vec![peer]);
            for peer in lost {
                self.peers.lose(peer, format!("nothing reaches it: {reason}"));
            }
        }
    }

    fn read_ahead(&mut self) -> Result<(), PushError> {
        let (Some(current), Some(reader)) = (&mut self.current, &self.reader) else { return Ok(()) };
        while !current.over && current.next_read < current.stage.end {
            let Some(buffer) = self.pool.take(self.bulk.fabric(), 0)? else { return Ok(()) };
            let segment = current.next_read;
            let read = SegmentRead { segment, len: self.layout.len(segment), buffer, attempt: current.id.instance };
            reader.worker.order(ReaderTask::Read(read));
            current.next_read += 1;
        }
        Ok(())
    }

    fn on_read(&mut self) -> Result<bool, PushError> {
        let mut busy = false;
        while let Some(said) = self.reader.as_ref().and_then(|reader| reader.worker.said.try_recv().ok()) {
            busy = true;
            match said {
                ReaderReport::Verdicts(verdicts) => self.peers.tell_verdicts(verdicts),
                ReaderReport::Finished => self.peers.tell(&ToReceiver::Finish),
                ReaderReport::Read(read) => self.send(read)?,
            }
        }
        Ok(busy)
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

    fn on_event(&mut self, id: GroupId, event: Event) -> Result<(), PushError> {
        let Some(current) = self.current.as_mut().filter(|current| current.id == id) else { return Ok(()) };
        match event {
            Event::Released { .. } => {
                if let Some(buffer) = current.sending.pop_front() {
                    self.pool.give_shared(buffer);
                }
            }
            Event::Failed(failure) => {
                current.failure = Some((failure.suspect.map(|node| node.0), failure.reason.clone()));
                drop(failure);
                self.leave();
            }
            Event::Destroyed => self.leave(),
            Event::Connected | Event::Incoming { .. } | Event::Received { .. } => {}
        }
        Ok(())
    }

    fn on_word(&mut self, word: PeerEvent) {
        if let PeerEvent::Lost(_) = word {
            self.best = 0;
        }
        let Some(current) = &mut self.current else { return };
        match word {
            // A lost member counts even if the group is over for it, as long as it is not over here: others may wait
            // for it.
            PeerEvent::Lost(peer)
                if current.members.remove(&peer) || !current.over && current.stage.receivers.contains(&peer) =>
            {
                current.somebody_left = true;
                current.failure.get_or_insert((None, "a receiver is gone".to_owned()));
                self.leave();
            }
            PeerEvent::Over(peer, over) if over.instance == current.id.instance => {
                current.members.remove(&peer);
                if over.failure.is_none() && over.holding.segments != current.stage.end {
                    // The receiver would be sent the same again, for ever.
                    current.somebody_left = true;
                    current.failure.get_or_insert((None, "a receiver left too early".to_owned()));
                    self.peers.lose_breaker(peer);
                    self.leave();
                } else if let Some((suspect, reason)) = over.failure {
                    // A receiver that names no suspect could not take part itself.
                    let suspect = suspect.unwrap_or(self.peers.node(peer));
                    current.failure.get_or_insert((Some(suspect), reason));
                    self.leave();
                }
            }
            PeerEvent::Lost(_) | PeerEvent::Over(..) => {}
        }
    }

    /// Leaves the current group. It fails for the members that are still in it.
    fn leave(&mut self) {
        let Some(current) = self.current.as_mut().filter(|current| !current.over) else { return };
        current.over = true;
        if current.created {
            self.bulk.remove(current.id);
        } else {
            // No receiver was asked to join.
            current.members.clear();
        }
        for buffer in current.sending.drain(..) {
            self.pool.give_shared(buffer);
        }
    }
}
