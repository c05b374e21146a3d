//! The receivers of a push, as the source knows them.

mod handout;
mod report;
mod stage;

use std::{collections::HashSet, io, ops::Range, sync::Arc, time::Instant};

use crossbeam::channel::{Receiver, Sender, unbounded};
use squall_fabric::{NodeId, Waker};
use squall_services::ControlStream;

use self::handout::Handout;
use super::{
    super::{
        control::{Address, ControlLink, FrameError, Heard, Layer, MAX_VERDICTS, Over, Report, ToReceiver, ToSource},
        extent::{Extent, Lacks, PlanPart, lie_in},
        feed::Verdicts,
        layout::{Piece, StreamLayout},
        manifest::Manifest,
        plan::{Holding, parts},
        sink::{Lacking, Verdict},
    },
    PushError, PushOptions,
    dial::{Dialed, Dialer},
};

/// The state of a receiver.
#[derive(Debug)]
enum ReceiverState {
    /// It does not answer, for this reason.
    Absent(String),
    /// The transfer was offered to it.
    Offered,
    /// It compares files, of which these are left.
    Comparing(HashSet<u32>),
    /// It takes part, and holds this of the plan.
    Ready(Holding),
    /// It copies from the source's open files.
    Copying(Handout),
    Done(Report),
    Gone(String),
}

#[derive(Debug)]
struct PushTarget {
    name: String,
    node: NodeId,
    rack: u32,
    link: Option<ControlLink>,
    /// Whether it can copy from the source's open files.
    takes_files: bool,
    state: ReceiverState,
    heard: Instant,
    /// The extents that it lacked when the plan was made; before, those of which it has said so.
    lacks: Lacks,
    /// The files on which it needs verdicts, in order.
    wanted: Vec<u32>,
    /// Those of which it had all, when it had compared them.
    had: HashSet<u32>,
    /// The number of bytes that it had before.
    held: u64,
    written: u64,
    /// In a dry run, the number of names that it would remove, and what it could not replace.
    doomed: u64,
    failed: Vec<String>,
    failures: u64,
    /// Whether it was told that it has everything.
    told_finish: bool,
    /// Whether it may send in the source's place.
    may_send: bool,
}

impl PushTarget {
    fn new(name: &str, node: NodeId, rack: u32) -> PushTarget {
        PushTarget {
            name: name.to_owned(),
            node,
            rack,
            link: None,
            takes_files: false,
            state: ReceiverState::Absent("it was not called".to_owned()),
            heard: Instant::now(),
            lacks: Lacks::default(),
            wanted: Vec::new(),
            had: HashSet::new(),
            held: 0,
            written: 0,
            doomed: 0,
            failed: Vec::new(),
            failures: 0,
            told_finish: false,
            may_send: true,
        }
    }
}

/// An event that matters to a transfer.
#[derive(Debug)]
pub(super) enum PeerEvent {
    /// A receiver is there, to which nothing was offered yet.
    Came(usize),
    /// A receiver has other versions of these files.
    Compares(usize, Vec<u32>),
    /// A receiver has said what it lacks.
    Ready,
    /// A member is gone.
    Lost(usize),
    /// A group is over for a member.
    Over(usize, Over),
}

/// All receivers of a push.
#[derive(Debug)]
pub(super) struct Peers<'o> {
    options: &'o PushOptions,
    manifest: Arc<Manifest>,
    me: NodeId,
    peers: Vec<PushTarget>,
    hear: Sender<Heard<ToSource>>,
    heard: Receiver<Heard<ToSource>>,
    waker: Waker,
    dialer: Dialer,
    /// The receivers given up since messages were last taken.
    lost: Vec<usize>,
    /// Whether files are being opened for a receiver that copies them.
    opening: bool,
    /// The files of which those that are there were told what their contents must be.
    judged: HashSet<u32>,
    /// Whether only the source sends: it did not work without it.
    only_source: bool,
}

impl<'o> Peers<'o> {
    /// Checks the receivers' names, and calls all. Fails before anything is done if none is there, or if one is not and
    /// all are required.
    pub(super) fn dial(
        options: &'o PushOptions,
        manifest: Arc<Manifest>,
        mut dialer: Dialer,
        me: NodeId,
        waker: Waker,
    ) -> Result<Peers<'o>, PushError> {
        let usage = |text: String| Err(PushError::Usage(text));
        if options.to.is_empty() {
            return usage("there is no receiver to copy to: name at least one".to_owned());
        }
        for racked in options.racks.iter().flatten().flatten() {
            if !options.to.contains(racked) {
                return usage(format!("{racked:?} stands in a rack, but is no receiver: name it in both"));
            }
        }
        let mut names = HashSet::new();
        if let Some(twice) = options.to.iter().find(|name| !names.insert(*name)) {
            return usage(format!("the receiver {twice:?} is named twice"));
        }
        let (hear, heard) = unbounded();
        let rack =
            |name: &String| options.racks.iter().flatten().position(|rack| rack.contains(name)).unwrap_or(0) as u32;
        let targets = options.to.iter().map(|name| PushTarget::new(name, me, rack(name))).collect();
        let mut absent = None;
        let called = dialer.call_all();
        let mut peers = Peers {
            options,
            manifest,
            me,
            peers: targets,
            hear,
            heard,
            waker,
            dialer,
            lost: Vec::new(),
            opening: false,
            judged: HashSet::new(),
            only_source: false,
        };
        for (peer, called) in called.into_iter().enumerate() {
            match called {
                Ok(stream) => peers.welcome(peer, stream)?,
                Err(error) => {
                    if options.require_all || error.is_usage() {
                        return Err(error);
                    }
                    peers.peers[peer].state = ReceiverState::Absent(error.to_string());
                    peers.dialer.call_again(peer, &peers.waker)?;
                    absent.get_or_insert(error);
                }
            }
        }
        match absent {
            Some(error) if !peers.any_at_work() => Err(error),
            _ => Ok(peers),
        }
    }

    /// Begins a conversation with a receiver that was called.
    fn welcome(&mut self, peer: usize, stream: ControlStream) -> Result<(), PushError> {
        let node = stream.peer;
        let here = |at: &PushTarget| !matches!(at.state, ReceiverState::Absent(_));
        if node == self.me || self.peers.iter().any(|at| at.node == node && here(at)) {
            return Err(PushError::Usage(format!(
                "{:?} has the id of another receiver or of the source, {}: give it another name, or a certificate of its own",
                self.peers[peer].name, node.0
            )));
        }
        // With an open file, a process can open it again for writing, which a container may be there to prevent.
        let takes_files = self.options.hands_files_out() && stream.shares_mounts();
        let link = ControlLink::start(stream, peer, self.hear.clone(), self.waker.clone());
        let at = &mut self.peers[peer];
        (at.node, at.takes_files, at.heard) = (node, takes_files, Instant::now());
        match link {
            Ok(link) => (at.link, at.state) = (Some(link), ReceiverState::Offered),
            Err(error) => at.state = ReceiverState::Gone(error.to_string()),
        }
        Ok(())
    }

    /// Returns the addresses of the receivers that are there, if over a network.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let here = |peer: &&PushTarget| self.options.network.is_some() && peer.node != self.me;
        self.peers.iter().filter(here).map(|peer| Address { node: peer.node.0, at: peer.name.clone() }).collect()
    }

    /// Sends a message to all that have a connection. A receiver that can't be reached is given up.
    pub(super) fn tell(&mut self, message: &ToReceiver) {
        (0..self.peers.len()).for_each(|peer| self.tell_one(peer, message));
    }

    /// Sends a message to all that have said what they lack.
    pub(super) fn tell_ready(&mut self, message: &ToReceiver) {
        let ready: Vec<usize> = self.ready().map(|(peer, ..)| peer).collect();
        ready.into_iter().for_each(|peer| self.tell_one(peer, message));
    }

    /// Tells all that have said what they lack that they have it.
    pub(super) fn tell_finish(&mut self) {
        for at in &mut self.peers {
            at.told_finish |= matches!(at.state, ReceiverState::Ready(_));
        }
        self.tell_ready(&ToReceiver::Finish);
    }

    pub(super) fn tell_one(&mut self, peer: usize, message: &ToReceiver) {
        if let Some(link) = &mut self.peers[peer].link {
            let sent = link.send(message);
            self.if_sent(peer, sent);
        }
    }

    /// Gives a receiver up if a message could not be sent to it.
    fn if_sent(&mut self, peer: usize, sent: Result<(), FrameError>) {
        match sent {
            Ok(()) => {}
            // The reason for which it hung up may be on its way here, and comes before the end.
            Err(FrameError::System(cause))
                if matches!(cause.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {}
            Err(error) => self.lose(peer, format!("it does not listen: {error}")),
        }
    }

    /// Sends the verdicts on files.
    pub(super) fn tell_verdicts(&mut self, verdicts: Verdicts) {
        let intact = verdicts.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Intact(_)));
        self.judged.extend(intact.map(|(entry, _)| entry));
        for chunk in verdicts.chunks(MAX_VERDICTS) {
            self.tell(&ToReceiver::Verdicts(chunk.to_vec()));
        }
    }

    /// Gives a receiver up. Only the first reason counts.
    pub(super) fn lose(&mut self, peer: usize, reason: String) {
        let at = &mut self.peers[peer];
        at.link = None;
        if !matches!(at.state, ReceiverState::Gone(_) | ReceiverState::Done(_)) {
            tracing::info!(receiver = at.name, reason, "a receiver is given up");
            at.state = ReceiverState::Gone(reason);
            self.lost.push(peer);
        }
    }

    /// Gives up a receiver that breaks the protocol.
    pub(super) fn lose_breaker(&mut self, peer: usize) {
        self.lose(peer, "it broke the protocol: update it".to_owned());
    }

    /// Handles the received messages, and adds what matters to the transfer to `words`. `segments` is the number of the
    /// plan's. Returns whether anything happened.
    pub(super) fn hear(&mut self, segments: u64, words: &mut Vec<PeerEvent>) -> bool {
        let mut busy = false;
        while let Some(Dialed { peer, stream }) = self.dialer.dialed() {
            busy = true;
            match self.welcome(peer, stream) {
                Ok(()) => words.push(PeerEvent::Came(peer)),
                Err(error) => self.lose(peer, error.to_string()),
            }
        }
        while let Ok(Heard { peer, message, .. }) = self.heard.try_recv() {
            busy = true;
            if !matches!(self.peers[peer].state, ReceiverState::Gone(_) | ReceiverState::Done(_)) {
                self.peers[peer].heard = Instant::now();
                self.on_message(peer, message, segments, words);
            }
        }
        for peer in 0..self.peers.len() {
            if self.peers[peer].link.is_some() && self.peers[peer].heard.elapsed() > self.options.silence {
                let seconds = self.options.silence.as_secs();
                self.lose(peer, format!("nothing was heard of it for {seconds} s: look whether it runs"));
            }
        }
        busy |= !self.lost.is_empty();
        words.extend(self.lost.drain(..).map(PeerEvent::Lost));
        busy
    }

    fn on_message(
        &mut self,
        peer: usize,
        message: Result<ToSource, FrameError>,
        segments: u64,
        words: &mut Vec<PeerEvent>,
    ) {
        let fits = |held: &Holding, before: &Holding| {
            let is_partial = |at: &u64| (held.segments..segments).contains(at);
            (before.segments..=segments).contains(&held.segments) && held.partial.iter().all(is_partial)
        };
        let at = &mut self.peers[peer];
        match message {
            Ok(ToSource::Ready(lacking)) if matches!(at.state, ReceiverState::Offered) => {
                self.on_lacking(peer, lacking, words);
            }
            Ok(ToSource::Missing { entry, ranges }) => self.on_missing(peer, entry, &ranges, words),
            Ok(ToSource::Progress { written }) => {
                at.written = at.held.saturating_add(written).min(self.manifest.bytes());
            }
            Ok(ToSource::Copied { files }) => self.on_copied(peer, files),
            Ok(ToSource::Over(over)) => match &mut at.state {
                ReceiverState::Ready(holding) if fits(&over.holding, holding) => {
                    *holding = over.holding.clone();
                    words.push(PeerEvent::Over(peer, over));
                }
                _ => self.lose_breaker(peer),
            },
            Ok(ToSource::Done(report)) if at.told_finish => {
                at.written = self.manifest.bytes();
                at.link = None;
                at.state = ReceiverState::Done(report);
            }
            Ok(ToSource::Refused(reason)) => self.lose(peer, format!("it refused: {reason}")),
            Ok(ToSource::Failed(reason)) => self.lose(peer, reason),
            Ok(ToSource::Ready(_) | ToSource::Done(_)) => self.lose_breaker(peer),
            Err(error) => {
                self.lose(peer, format!("its process is gone ({error}): start it again, and push again"));
            }
        }
    }

    fn on_lacking(&mut self, peer: usize, lacking: Lacking, words: &mut Vec<PeerEvent>) {
        let Lacking { whole, other, doomed, failed, failures } = lacking;
        let is_file = |entry: &&u32| self.manifest.entries().get(**entry as usize).is_some_and(|entry| entry.is_file());
        let mut wanted: Vec<u32> = whole.iter().chain(&other).filter(is_file).copied().collect();
        let all: HashSet<u32> = wanted.iter().copied().collect();
        if all.len() < whole.len() + other.len() {
            return self.lose_breaker(peer);
        }
        let at = &mut self.peers[peer];
        for entry in whole {
            at.lacks.add(entry, self.manifest.entries()[entry as usize].contents());
        }
        wanted.sort_unstable();
        (at.wanted, at.doomed, at.failed, at.failures) = (wanted, doomed, failed, failures);
        at.state = ReceiverState::Comparing(other.iter().copied().collect());
        if !other.is_empty() {
            words.push(PeerEvent::Compares(peer, other));
        }
        self.if_compared(peer, words);
    }

    fn on_missing(&mut self, peer: usize, entry: u32, ranges: &[(u64, u64)], words: &mut Vec<PeerEvent>) {
        let at = &mut self.peers[peer];
        let ReceiverState::Comparing(left) = &mut at.state else { return self.lose_breaker(peer) };
        let contents = self.manifest.entries().get(entry as usize).into_iter().flat_map(|entry| entry.contents());
        let fits = lie_in(ranges, contents);
        if !left.remove(&entry) || !fits {
            return self.lose_breaker(peer);
        }
        if ranges.is_empty() {
            at.had.insert(entry);
        }
        at.lacks.add(entry, ranges.iter().map(|&(at, len)| Range { start: at, end: at + len }));
        self.if_compared(peer, words);
    }

    fn if_compared(&mut self, peer: usize, words: &mut Vec<PeerEvent>) {
        let at = &mut self.peers[peer];
        if matches!(&at.state, ReceiverState::Comparing(left) if left.is_empty()) {
            at.held = self.manifest.bytes().saturating_sub(at.lacks.bytes());
            at.written = at.held;
            if at.takes_files {
                at.state = ReceiverState::Copying(Handout::new(at.wanted.clone()));
                return self.finish_if_copied(peer);
            }
            at.state = ReceiverState::Ready(Holding::default());
            words.push(PeerEvent::Ready);
        }
    }

    /// Tells whether a receiver that is there has not said what it lacks.
    pub(super) fn await_answers(&self) -> bool {
        self.peers.iter().any(|peer| matches!(peer.state, ReceiverState::Offered | ReceiverState::Comparing(_)))
    }

    /// Tells whether a receiver may still join the others.
    pub(super) fn await_late(&self) -> bool {
        self.await_answers() || self.peers.iter().any(|peer| matches!(peer.state, ReceiverState::Absent(_)))
    }

    /// Tells whether a receiver takes part and is not done.
    pub(super) fn any_at_work(&self) -> bool {
        let copies = |peer: &PushTarget| matches!(peer.state, ReceiverState::Copying(_));
        self.await_answers() || self.ready().next().is_some() || self.peers.iter().any(copies)
    }

    fn ready(&self) -> impl Iterator<Item = (usize, u32, &Holding)> {
        self.peers.iter().enumerate().filter_map(|(index, peer)| match &peer.state {
            ReceiverState::Ready(holding) => Some((index, peer.node.0, holding)),
            _ => None,
        })
    }

    /// Tells whether a receiver still waits for a file's chunks.
    pub(super) fn compares(&self, peer: usize, entry: u32) -> bool {
        matches!(&self.peers[peer].state, ReceiverState::Comparing(left) if left.contains(&entry))
    }

    /// Tells whether a receiver has blocks of a segment that is not whole.
    pub(super) fn any_partial(&self) -> bool {
        self.ready().any(|(.., holding)| !holding.partial.is_empty())
    }

    /// Makes a plan of what all lack that are ready, given the layout of the plan before. Returns it with the files on
    /// which they need verdicts.
    pub(super) fn plan(&mut self, before: &StreamLayout) -> (Vec<PlanPart>, Vec<u32>) {
        let mut lacking = Vec::new();
        let mut wanted = Vec::new();
        for PushTarget { node, state, lacks, wanted: wants, .. } in &mut self.peers {
            let ReceiverState::Ready(holding) = state else { continue };
            let (mut came, mut segment) = (Vec::new(), before.next_for(node.0, 0));
            while segment < holding.segments.min(before.segments()) {
                let extent = |piece: Piece| Extent { entry: piece.entry as u32, at: piece.at, len: piece.len as u64 };
                came.extend(before.pieces(segment).map(extent));
                segment = before.next_for(node.0, segment + 1);
            }
            lacks.take(came);
            *holding = Holding::default();
            lacking.push((node.0, lacks.extents()));
            wanted.extend_from_slice(wants);
        }
        wanted.sort_unstable();
        wanted.dedup();
        (parts(&lacking), wanted)
    }

    /// Returns the sum of what all that take part hold, which grows unless a group achieved nothing.
    pub(super) fn achieved(&self) -> u64 {
        self.ready()
            .map(|(.., holding)| {
                holding.segments.saturating_mul(1000).saturating_add(holding.partial.len().min(999) as u64)
            })
            .fold(0, u64::saturating_add)
    }

    /// Returns a receiver's node id.
    pub(super) fn node(&self, peer: usize) -> u32 {
        self.peers[peer].node.0
    }

    /// Returns the receiver with a node id.
    pub(super) fn by_node(&self, node: u32) -> Option<usize> {
        self.peers.iter().position(|peer| peer.node.0 == node)
    }

    /// Returns the number of bytes that receivers have written, or held before, in total.
    pub(super) fn written(&self, receivers: &[usize]) -> u64 {
        receivers.iter().map(|&peer| self.peers[peer].written).fold(0, u64::saturating_add)
    }

    /// Returns the nodes of a group, the one that sends first, and the algorithm by which contents travel among them.
    pub(super) fn group(&self, root: Option<usize>, members: &[usize]) -> (Vec<u32>, Layer) {
        let sender = root.map_or((self.me.0, 0), |peer| (self.peers[peer].node.0, self.peers[peer].rack));
        let members = members.iter().map(|&peer| (self.peers[peer].node.0, self.peers[peer].rack));
        let (nodes, racks): (Vec<u32>, Vec<u32>) = [sender].into_iter().chain(members).unzip();
        (nodes, Layer::of(&self.options.algorithm(), self.options.racks.as_ref().map(|_| racks)))
    }
}
