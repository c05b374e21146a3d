//! The receivers, as the source knows them.

use std::{collections::HashSet, io, time::Instant};

use crossbeam::channel::{Receiver, unbounded};
use squall_fabric::{NodeId, Waker};
use squall_services::ControlStream;

use super::{
    super::{
        control::{
            ControlLink, FrameError, Heard, Holding, Layer, MAX_VERDICTS, Over, Report, ToReceiver, ToSource, dial,
            node_id,
        },
        feed::Verdicts,
        plan::{TransferStage, next_stage},
    },
    Finder, PushError, PushOptions, PushProgress, ReceiverProgress, ReceiverReport,
};

/// The state of a receiver.
#[derive(Debug)]
enum ReceiverState {
    /// The transfer was offered to it.
    Offered,
    /// The receiver takes part, and holds this.
    Ready(Holding),
    Done(Report),
    Gone(String),
}

#[derive(Debug)]
struct PushTarget {
    name: String,
    node: NodeId,
    rack: u32,
    link: Option<ControlLink>,
    state: ReceiverState,
    heard: Instant,
    /// The number of bytes of the stream that it held before.
    held: u64,
    written: u64,
}

/// An event that matters to a group.
#[derive(Debug)]
pub(super) enum PeerEvent {
    /// A member is gone.
    Lost(usize),
    /// A group is over for a member.
    Over(usize, Over),
}

impl Finder {
    /// Connects to a receiver.
    fn find(&self, cluster: &str, name: &str) -> Result<ControlStream, PushError> {
        match self {
            Finder::Names => Ok(ControlStream::local(node_id(cluster, name), dial(cluster, name)?)),
            Finder::Network(caller) => {
                caller.call(name).map_err(|cause| PushError::Call { address: name.to_owned(), cause })
            }
        }
    }
}

/// All receivers of a push.
#[derive(Debug)]
pub(super) struct Peers<'o> {
    options: &'o PushOptions,
    /// The number of bytes to write.
    bytes: u64,
    peers: Vec<PushTarget>,
    heard: Receiver<Heard<ToSource>>,
    /// The receivers given up since messages were last taken.
    lost: Vec<usize>,
}

impl<'o> Peers<'o> {
    /// Connects to all receivers. It fails if one is not there, before anything is done.
    pub(super) fn dial(
        options: &'o PushOptions,
        bytes: u64,
        finder: &Finder,
        me: NodeId,
        waker: Waker,
    ) -> Result<Peers<'o>, PushError> {
        let usage = |text: String| Err(PushError::Usage(text));
        if options.to.is_empty() {
            return usage("there is no receiver to copy to: name at least one".to_owned());
        }
        let mut names = HashSet::new();
        let mut nodes = HashSet::from([me]);
        let (hear, heard) = unbounded();
        let mut peers = Vec::new();
        for racked in options.racks.iter().flatten().flatten() {
            if !options.to.contains(racked) {
                return usage(format!("{racked:?} stands in a rack, but is no receiver: name it in both"));
            }
        }
        for (index, name) in options.to.iter().enumerate() {
            if !names.insert(name) {
                return usage(format!("the receiver {name:?} is named twice"));
            }
            let stream = finder.find(&options.cluster, name)?;
            let node = stream.peer;
            if !nodes.insert(node) {
                return usage(format!(
                    "{name:?} has the id of another receiver or of the source, {}: give it another name, or a certificate of \
                     its own",
                    node.0
                ));
            }
            let rack = options.racks.iter().flatten().position(|rack| rack.contains(name)).unwrap_or(0) as u32;
            let mut peer = PushTarget {
                name: name.clone(),
                node,
                rack,
                link: None,
                state: ReceiverState::Offered,
                heard: Instant::now(),
                held: 0,
                written: 0,
            };
            match ControlLink::start(stream, index, hear.clone(), waker.clone()) {
                Ok(link) => peer.link = Some(link),
                Err(error) => peer.state = ReceiverState::Gone(error.to_string()),
            }
            peers.push(peer);
        }
        Ok(Peers { options, bytes, peers, heard, lost: Vec::new() })
    }

    /// Returns the addresses of the receivers, if over a network.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (NodeId, &str)> {
        self.peers.iter().filter(|_| self.options.network.is_some()).map(|peer| (peer.node, peer.name.as_str()))
    }

    /// Sends a message to all that take part. A receiver that can't be reached is given up.
    pub(super) fn tell(&mut self, message: &ToReceiver) {
        (0..self.peers.len()).for_each(|peer| self.tell_one(peer, message));
    }

    pub(super) fn tell_one(&mut self, peer: usize, message: &ToReceiver) {
        let at = &mut self.peers[peer];
        if let Some(link) = &mut at.link
            && let Err(error) = link.send(message)
        {
            match error {
                // The reason for which it hung up may be on its way here, and comes before the end.
                FrameError::System(cause)
                    if matches!(cause.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {}
                error => self.lose(peer, format!("it does not listen: {error}")),
            }
        }
    }

    /// Sends the verdicts on files.
    pub(super) fn tell_verdicts(&mut self, verdicts: Verdicts) {
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

    /// Handles the received messages, and adds the events of the current group to `words`. Returns whether anything
    /// happened.
    pub(super) fn hear(&mut self, stream_begin: impl Fn(u64) -> u64, words: &mut Vec<PeerEvent>) -> bool {
        let mut busy = false;
        while let Ok(Heard { peer, message }) = self.heard.try_recv() {
            busy = true;
            if matches!(self.peers[peer].state, ReceiverState::Gone(_) | ReceiverState::Done(_)) {
                continue;
            }
            self.peers[peer].heard = Instant::now();
            let at = &mut self.peers[peer];
            match message {
                Ok(ToSource::Ready(holding)) if matches!(at.state, ReceiverState::Offered) => {
                    (at.held, at.written) = (stream_begin(holding.segments), stream_begin(holding.segments));
                    at.state = ReceiverState::Ready(holding);
                }
                Ok(ToSource::Progress { written }) => at.written = written.min(self.bytes),
                Ok(ToSource::Over(over)) => {
                    if let ReceiverState::Ready(holding) = &mut at.state
                        && over.holding.segments >= holding.segments
                    {
                        let first_open = holding.first_open;
                        *holding = Holding { first_open, ..over.holding.clone() };
                        words.push(PeerEvent::Over(peer, over));
                    } else {
                        self.lose_breaker(peer);
                    }
                }
                Ok(ToSource::Done(report)) => {
                    at.written = self.bytes;
                    at.link = None;
                    at.state = ReceiverState::Done(report);
                }
                Ok(ToSource::Refused(reason)) => self.lose(peer, format!("it refused: {reason}")),
                Ok(ToSource::Failed(reason)) => self.lose(peer, reason),
                Ok(ToSource::Ready(_)) => self.lose_breaker(peer),
                Err(error) => {
                    self.lose(peer, format!("its process is gone ({error}): start it again, and push with --resume"));
                }
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

    /// Tells whether a receiver has not answered the offer.
    pub(super) fn await_answers(&self) -> bool {
        self.peers.iter().any(|peer| matches!(peer.state, ReceiverState::Offered))
    }

    /// Tells whether a receiver takes part and is not done.
    pub(super) fn any_at_work(&self) -> bool {
        self.peers.iter().any(|peer| matches!(peer.state, ReceiverState::Offered | ReceiverState::Ready(_)))
    }

    fn ready(&self) -> impl Iterator<Item = (usize, &Holding)> {
        self.peers.iter().enumerate().filter_map(|(index, peer)| match &peer.state {
            ReceiverState::Ready(holding) => Some((index, holding)),
            _ => None,
        })
    }

    /// Returns the first entry whose verdict a receiver needs.
    pub(super) fn first_open(&self) -> usize {
        self.ready().map(|(_, holding)| holding.first_open as usize).min().unwrap_or(usize::MAX)
    }

    /// Returns the next stage to move.
    pub(super) fn next_stage(&self, segments: u64) -> Option<TransferStage> {
        next_stage(self.ready(), segments)
    }

    /// Returns the sum of what all that take part hold, which grows unless a group achieved nothing.
    pub(super) fn achieved(&self) -> u64 {
        self.ready()
            .map(|(_, holding)| {
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

    /// Returns the nodes of a group, the source first, and the algorithm by which contents travel among them.
    pub(super) fn group(&self, me: NodeId, members: &[usize]) -> (Vec<u32>, Layer) {
        let nodes = [me.0].into_iter().chain(members.iter().map(|&peer| self.peers[peer].node.0)).collect();
        let racks = [0].into_iter().chain(members.iter().map(|&peer| self.peers[peer].rack));
        (nodes, Layer::of(&self.options.algorithm, self.options.racks.as_ref().map(|_| racks.collect())))
    }

    pub(super) fn progress(&self) -> PushProgress {
        let progress = |peer: &PushTarget| ReceiverProgress {
            name: peer.name.clone(),
            held: peer.held,
            written: peer.written,
            over: match &peer.state {
                ReceiverState::Offered | ReceiverState::Ready(_) => None,
                ReceiverState::Done(_) => Some("done".to_owned()),
                ReceiverState::Gone(reason) => Some(reason.clone()),
            },
        };
        PushProgress { bytes: self.bytes, receivers: self.peers.iter().map(progress).collect() }
    }

    pub(super) fn reports(self) -> Vec<ReceiverReport> {
        let report = |peer: PushTarget| {
            let report = ReceiverReport { name: peer.name, held: peer.held, ..ReceiverReport::default() };
            match peer.state {
                ReceiverState::Done(Report { outcome, moved }) => ReceiverReport {
                    placed: outcome.placed,
                    kept: outcome.kept,
                    moved,
                    failures: outcome.failures,
                    failed: outcome.failed,
                    ..report
                },
                ReceiverState::Gone(reason) => ReceiverReport { error: Some(reason), ..report },
                ReceiverState::Offered | ReceiverState::Ready(_) => {
                    let error = "the push was stopped before it had everything: push again with --resume".to_owned();
                    ReceiverReport { error: Some(error), ..report }
                }
            }
        };
        self.peers.into_iter().map(report).collect()
    }
}
