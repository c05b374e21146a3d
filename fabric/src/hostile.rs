//! A node that breaks the rules of the layers above the fabric, for tests of what the other nodes bear.
//!
//! It is a member with all that a member is given: its endpoints, its rows and rings at the others, and its part in
//! their transfers. A [`HostileFabric`] carries its layers' work, and does harm besides.

use std::time::Duration;

use fastrand::Rng;

use crate::{
    Completion, EndpointId, Fabric, GraphError, GroupTag, INLINE_BYTES, NodeId, Op, PostError, Region, RegionKey,
    RegionKind, RegisterError, RemoteRegion, Slice, Source, Target, Time, Token, Wait, Waker, WorkGraph,
};

/// The harm that a hostile node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hostility {
    /// It reaches for what it was not given: memory of others and places out of bounds, groups that there are not,
    /// receives that nobody posted. What it says as a member is true.
    Intrudes,
    /// It also lies where it may write: in its own rows and rings, in the control words of transfers, in messages.
    Lies,
    /// It closes a connection of this layer, again and again, and does nothing else.
    Closes(u32),
    /// It writes over the records of its own rings, and does nothing else.
    Garbles,
    /// It lets nothing that it says by a layer reach a member, or any, and does nothing else. What it was told before
    /// stands there.
    Withholds {
        /// The layer.
        layer: u32,
        /// The member; all if there is none.
        from: Option<NodeId>,
    },
}

/// The words that a lie is likely to be made of: bounds, and what is near them.
const WORDS: [u64; 9] = [0, 1, 2, 1 << 32, u64::MAX >> 1, 1 << 63, (1 << 48) - 1, u64::MAX - 1, u64::MAX];

/// The number of its own regions that a hostile node hands out in connections that nobody expects.
const REGIONS: usize = 3;

/// A connection of the node's layers.
struct PeerLink {
    endpoint: EndpointId,
    peer: NodeId,
    tag: GroupTag,
    /// The memory that the peer has given, once it is connected.
    remote: Vec<RemoteRegion>,
}

/// The means of a node that has turned hostile.
struct Malice {
    hostility: Hostility,
    rng: Rng,
    /// The time from which it does harm, and that of the last poll.
    from: Time,
    now: Time,
    /// The longest pause between two acts.
    pause: Duration,
    next: Time,
    regions: Vec<Region>,
    /// The endpoints of connections that the node's layers know nothing of.
    own: Vec<EndpointId>,
    /// A word of a ring that is to be written once its turn may have been announced.
    late: Option<LateWord>,
    /// The peer whose ring is changed after the fact. It is one alone: if all members were, no member would have what
    /// the group has delivered.
    victim: Option<EndpointId>,
}

/// A word that goes into a peer's copy of a ring.
#[derive(Clone, Copy)]
struct LateWord {
    on: EndpointId,
    target: Target,
    word: u64,
    /// The number of posts to the peer before it goes, the first of which may announce what it spoils.
    after: u8,
}

/// The fabric of a node that may [turn](HostileFabric::turn) hostile. Until then, it is the inner fabric.
pub struct HostileFabric<F> {
    inner: F,
    links: Vec<PeerLink>,
    malice: Option<Malice>,
}

impl<F: Fabric> HostileFabric<F> {
    /// The fabric of a node that keeps the rules.
    pub fn new(inner: F) -> HostileFabric<F> {
        HostileFabric { inner, links: Vec::new(), malice: None }
    }

    /// The fabric below.
    pub fn inner(&self) -> &F {
        &self.inner
    }

    /// The fabric below.
    pub fn inner_mut(&mut self) -> &mut F {
        &mut self.inner
    }

    /// Does harm from this time on, with pauses of at most `pause`.
    pub fn turn(&mut self, hostility: Hostility, from: Time, pause: Duration, seed: u64) {
        let kinds = [RegionKind::Polled, RegionKind::Bulk].into_iter().cycle().take(REGIONS);
        // It goes on with fewer where memory is short.
        let regions = kinds.filter_map(|kind| self.inner.register(kind, 4096).ok()).collect();
        let rng = Rng::with_seed(seed);
        self.malice = Some(Malice {
            hostility,
            rng,
            from,
            now: Time::ZERO,
            pause,
            next: from,
            regions,
            own: Vec::new(),
            late: None,
            victim: None,
        });
    }

    fn note(&mut self, completion: &Completion) {
        match completion {
            Completion::Connected { endpoint, remote, .. } => {
                if let Some(link) = self.links.iter_mut().find(|link| link.endpoint == *endpoint) {
                    link.remote.clone_from(remote);
                }
            }
            Completion::Broken { endpoint, .. } => self.links.retain(|link| link.endpoint != *endpoint),
            _ => {}
        }
    }

    /// Whether an operation on an endpoint is kept from its peer.
    fn is_withheld(&self, on: EndpointId, token: Token) -> bool {
        let Some(Malice { hostility: Hostility::Withholds { layer, from }, .. }) = self.malice else { return false };
        let is_kept = |link: &PeerLink| link.tag.layer == layer && from.is_none_or(|from| from == link.peer);
        token == Token::UNSIGNALED && self.links.iter().any(|link| link.endpoint == on && is_kept(link))
    }

    fn act(&mut self, now: Time) {
        let Some(malice) = &mut self.malice else { return };
        malice.now = now;
        if now < malice.next {
            return;
        }
        malice.next = now + Duration::from_nanos(malice.rng.u64(..=malice.pause.as_nanos() as u64));
        match malice.hostility {
            Hostility::Closes(layer) => {
                let of_layer: Vec<_> = self.links.iter().filter(|link| link.tag.layer == layer).collect();
                let closes = malice.pick(&of_layer).map(|link| link.endpoint);
                return closes.into_iter().for_each(|endpoint| self.inner.disconnect(endpoint));
            }
            Hostility::Garbles | Hostility::Withholds { .. } => return,
            Hostility::Intrudes | Hostility::Lies => {}
        }
        let Some(link) = malice.pick(&self.links) else { return };
        let lies = malice.hostility == Hostility::Lies && malice.rng.u8(..8) > 0;
        if lies { malice.lie(&mut self.inner, link) } else { malice.intrude(&mut self.inner, link, &self.links) }
    }
}

impl LateWord {
    fn write(self, fabric: &mut impl Fabric) {
        let (bytes, target) = (self.word.to_ne_bytes(), self.target);
        let _ = fabric.post(self.on, Op::Write { source: Source::Inline(&bytes), target }, Token::UNSIGNALED);
    }
}

impl Malice {
    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        (!from.is_empty()).then(|| &from[self.rng.usize(..from.len())])
    }

    fn word(&mut self) -> u64 {
        match self.rng.u8(..4) {
            0 => self.rng.u64(..),
            1 => self.rng.u64(..1000),
            _ => WORDS[self.rng.usize(..WORDS.len())],
        }
    }

    /// Words that are written in one piece; a place for them in a region is a multiple of 8 bytes.
    fn words(&mut self) -> Vec<u8> {
        let words = if self.rng.bool() { 1 } else { self.rng.usize(1..=INLINE_BYTES / 8) };
        (0..words).flat_map(|_| self.word().to_ne_bytes()).collect()
    }

    /// The word that goes out behind the next post to a peer.
    fn late_word(&mut self, on: EndpointId) -> Option<LateWord> {
        let late = self.late.as_mut().filter(|late| late.on == on)?;
        late.after -= 1;
        self.late.take_if(|late| late.after == 0)
    }

    /// Whether it distorts a layer's work.
    fn distorts(&mut self, op: &Op<'_>) -> bool {
        match self.hostility {
            Hostility::Intrudes | Hostility::Closes(_) | Hostility::Withholds { .. } => false,
            Hostility::Lies => self.rng.u8(..) == 0,
            Hostility::Garbles => matches!(op, Op::Write { source: Source::Region(_), .. }) && self.rng.u8(..16) == 0,
        }
    }

    /// Writes something into memory that the peer has given this node.
    fn lie(&mut self, fabric: &mut impl Fabric, link: &PeerLink) {
        let may_lie = |remote: &&RemoteRegion| remote.bytes >= 8 && remote.kind != RegionKind::Lent;
        let Some(remote) = self.pick(&link.remote).filter(may_lie) else { return };
        let mut bytes = self.words();
        bytes.truncate(remote.bytes & !7);
        let places = (remote.bytes - bytes.len()) / 8;
        // What layers announce stands at the beginning of most regions.
        let place = if self.rng.bool() { places.min(16) } else { places };
        let target = Target { region: remote.key, offset: 8 * self.rng.usize(..=place) };
        let source = Source::Inline(&bytes);
        let word_target = target;
        let op = match self.rng.u8(..8) {
            0 => Op::WriteWithImm { source, target, imm: self.rng.u32(..) },
            1 => Op::WriteThenWord { source, target, word: self.word(), word_target },
            _ => Op::Write { source, target },
        };
        let _ = fabric.post(link.endpoint, op, Token::UNSIGNALED);
    }

    /// Reaches for what was not given.
    fn intrude(&mut self, fabric: &mut impl Fabric, link: &PeerLink, links: &[PeerLink]) {
        let bytes = self.words();
        let source = Source::Inline(&bytes);
        let imm = self.rng.bool().then(|| self.rng.u32(..));
        let op = match self.rng.u8(..8) {
            0 | 1 => Op::Write { source, target: self.foreign(link, links) },
            2 => Op::WriteThenWord {
                source,
                target: self.foreign(link, links),
                word: self.word(),
                word_target: self.foreign(link, links),
            },
            3 => {
                let Some(into) = self.pick(&self.regions.clone()).cloned() else { return };
                let len = 8 * self.rng.usize(1..=512);
                let from = self.foreign(link, links);
                let into = Slice { region: &into, offset: 0, len };
                let _ = fabric.post(link.endpoint, Op::Read { from, into }, Token::UNSIGNALED);
                return;
            }
            4 => Op::Send { source, imm },
            5 => return fabric.disconnect(link.endpoint),
            _ => return self.connect(fabric, link),
        };
        let _ = fabric.post(link.endpoint, op, Token::UNSIGNALED);
    }

    /// A place that this node was not given on an endpoint.
    fn foreign(&mut self, link: &PeerLink, links: &[PeerLink]) -> Target {
        let given = self.pick(&link.remote).copied();
        let other = self.pick(links).and_then(|other| self.pick(&other.remote)).copied();
        let offset = 8 * self.rng.usize(..64);
        match (self.rng.u8(..6), given, other) {
            (0, Some(given), _) => Target { region: given.key, offset: given.bytes },
            (1, Some(given), _) => Target { region: given.key, offset: given.bytes.saturating_add(offset) },
            (2, Some(given), _) => Target { region: given.key, offset: usize::MAX - 7 - offset },
            (3, _, Some(other)) if link.remote.iter().all(|given| given.key != other.key) => {
                Target { region: other.key, offset }
            }
            (4, ..) if !self.regions.is_empty() => Target { region: self.regions[0].key(), offset },
            _ => Target { region: RegionKey(self.rng.u64(..)), offset },
        }
    }

    /// Asks for a connection that the peer does not expect, or expects to be another.
    fn connect(&mut self, fabric: &mut impl Fabric, link: &PeerLink) {
        let mut tag = link.tag;
        match self.rng.u8(..4) {
            0 => tag.epoch = tag.epoch.wrapping_add(1),
            1 => tag.epoch = self.word(),
            2 => tag.group = self.rng.u32(..),
            _ => tag.layer = self.rng.u32(..16),
        }
        let expose: Vec<Region> = self.regions[..self.rng.usize(..=self.regions.len())].to_vec();
        let hello: Vec<u8> = (0..self.rng.usize(..=48)).map(|_| self.rng.u8(..)).collect();
        if let Some(oldest) = (self.own.len() >= 64).then(|| self.own.remove(0)) {
            fabric.disconnect(oldest);
        }
        self.own.push(fabric.connect(link.peer, tag, &expose, &hello));
    }

    /// Makes nonsense of the first of the records that a peer was just sent, before their turns are announced to it, or
    /// a while after. (A record that makes sense, and is another than the other members have, is noticed by none.)
    fn distort_ring(&mut self, fabric: &mut impl Fabric, on: EndpointId, records: Slice<'_>, target: Target) {
        if records.region.kind() != RegionKind::Polled || records.len < 8 {
            return;
        }
        let header = records.region.load(records.offset);
        let word = match self.rng.u8(..3) {
            0 => 0,
            // Of another position, and of no kind.
            1 => header ^ 1 << self.rng.u8(40..64),
            _ => header ^ 0x80 << 32,
        };
        let late = LateWord { on, target, word, after: self.rng.u8(1..=3) };
        if self.rng.u8(..4) == 0 && *self.victim.get_or_insert(on) == on {
            self.late = Some(late);
        } else {
            late.write(fabric);
        }
    }

    /// Posts a layer's work in another form.
    fn distort(&mut self, fabric: &mut impl Fabric, on: EndpointId, op: Op<'_>, token: Token) -> Result<(), PostError> {
        if let Op::Write { source: Source::Region(records), target } = op {
            fabric.post(on, op, token)?;
            self.distort_ring(fabric, on, records, target);
            return Ok(());
        }
        let (Op::Write { source: Source::Inline(bytes), target }
        | Op::WriteWithImm { source: Source::Inline(bytes), target, .. }
        | Op::WriteThenWord { source: Source::Inline(bytes), target, .. }) = op
        else {
            return fabric.post(on, op, token);
        };
        let mut bytes = bytes.to_vec();
        match self.rng.u8(..3) {
            // The peer never hears of it.
            0 if token == Token::UNSIGNALED => return Ok(()),
            1 if bytes.len() >= 8 => {
                let at = 8 * self.rng.usize(..bytes.len() / 8);
                bytes[at..at + 8].copy_from_slice(&self.word().to_ne_bytes());
            }
            _ => {
                if let Some(byte) = self.pick(&(0..bytes.len()).collect::<Vec<_>>()).copied() {
                    bytes[byte] ^= 1 << self.rng.u8(..8);
                }
            }
        }
        let source = Source::Inline(&bytes);
        let op = match op {
            Op::WriteThenWord { word, word_target, .. } => Op::WriteThenWord { source, target, word, word_target },
            Op::WriteWithImm { imm, .. } => Op::WriteWithImm { source, target, imm },
            _ => Op::Write { source, target },
        };
        fabric.post(on, op, token)
    }
}

// SAFETY: the memory that it registers is the inner fabric's.
unsafe impl<F: Fabric> Fabric for HostileFabric<F> {
    fn node(&self) -> NodeId {
        self.inner.node()
    }

    fn register(&mut self, kind: RegionKind, bytes: usize) -> Result<Region, RegisterError> {
        self.inner.register(kind, bytes)
    }

    fn connect(&mut self, peer: NodeId, tag: GroupTag, expose: &[Region], hello: &[u8]) -> EndpointId {
        let endpoint = self.inner.connect(peer, tag, expose, hello);
        self.links.push(PeerLink { endpoint, peer, tag, remote: Vec::new() });
        endpoint
    }

    fn disconnect(&mut self, on: EndpointId) {
        self.links.retain(|link| link.endpoint != on);
        self.inner.disconnect(on);
    }

    fn post(&mut self, on: EndpointId, op: Op<'_>, token: Token) -> Result<(), PostError> {
        if self.is_withheld(on, token) {
            return Ok(());
        }
        let Some(malice) = self.malice.as_mut().filter(|malice| malice.now >= malice.from) else {
            return self.inner.post(on, op, token);
        };
        let late = malice.late_word(on);
        let posted = if malice.distorts(&op) {
            malice.distort(&mut self.inner, on, op, token)
        } else {
            self.inner.post(on, op, token)
        };
        if let Some(late) = late {
            late.write(&mut self.inner);
        }
        posted
    }

    fn post_graph(&mut self, graph: WorkGraph, token: Token) -> Result<(), GraphError> {
        self.inner.post_graph(graph, token)
    }

    fn poll(&mut self, now: Time, out: &mut Vec<Completion>) {
        let first = out.len();
        self.inner.poll(now, out);
        for completion in &out[first..] {
            self.note(completion);
        }
        if let Some(malice) = &mut self.malice {
            let own = &mut malice.own;
            let mut index = 0;
            out.retain(|completion| {
                index += 1;
                index <= first || completion.endpoint().is_none_or(|endpoint| !own.contains(&endpoint))
            });
        }
        self.act(now);
    }
}

impl<F: Wait> Wait for HostileFabric<F> {
    fn arm(&mut self) {
        self.inner.arm();
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn wait(&mut self, until: Time) {
        self.inner.wait(self.malice.as_ref().map_or(until, |malice| until.min(malice.next)));
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }
}
