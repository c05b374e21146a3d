//! A group: its connections, its failure, its end.

mod failure;
mod resume;

use std::sync::Arc;

use squall_fabric::{BreakReason, Completion, EndpointId, Fabric, GroupTag, NodeId, RegionKey, RemoteRegion};

use self::resume::Exchange;
use crate::{
    buffer::Buffer,
    config::{CreateError, GroupConfig, GroupId},
    control::{Control, Notice, Suspect, is_control, line_ranks},
    engine::{AcceptError, Engine, Limits},
    events::{Event, Interrupted, Progress},
    link::BlockLink,
    schedule::Rank,
    step_source::StepSource,
};

/// The layers' numbers in a [`GroupTag`]: of the endpoints that carry blocks, of those on which receivers announce that
/// they are ready, and of those that outlive both.
pub(crate) const BLOCKS: u32 = 3;
pub(crate) const READY: u32 = 4;
pub(crate) const CONTROL: u32 = 5;

/// The reason why a message was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// A send or an end by another member than the root.
    #[error("only the root of a group sends messages, and this is {0}: create a group of which this node is the first")]
    NotTheRoot(Rank),
    /// The buffer is shorter than the message.
    #[error("a message of {len} bytes does not lie in a buffer of {capacity}")]
    Buffer {
        /// The message's length, in bytes.
        len: usize,
        /// The buffer's size, in bytes.
        capacity: usize,
    },
    /// A message has less than 2³² blocks.
    #[error("a message of {len} bytes has too many blocks of {block_bytes} bytes: give larger blocks")]
    TooManyBlocks {
        /// The message's length, in bytes.
        len: usize,
        /// The group's block size, in bytes.
        block_bytes: usize,
    },
    /// The group is closed, has failed, or was made to complete one message.
    #[error("the group takes no more messages")]
    Closed,
}

#[derive(Debug, PartialEq, Eq)]
enum GroupPhase {
    Running,
    /// A receiver: a peer has closed an endpoint for blocks. This member tells the root, and closes its own once the
    /// root has answered. So the root hears it from here before any of those to which the closed endpoints tell it.
    Telling,
    /// A member failed; its name is still to come: from the root, or at the root from another member.
    Failing,
    /// The root: all members are done. They close their connections once they know.
    Closed,
    Failed,
    Destroyed,
}

/// The connection between a member and the root.
#[derive(Debug)]
struct Line {
    rank: Rank,
    endpoint: EndpointId,
    remote: Option<Remote>,
    /// The last notice that was sent.
    said: Notice,
    /// Whether the holdings were told, in a group that resumes.
    told: bool,
    gone: bool,
}

#[derive(Clone, Copy, Debug)]
struct Remote {
    control: RegionKey,
    holdings: Option<RegionKey>,
}

/// One member's part in a group. It is pure: it is [stepped](Group::step), and posts to the fabric.
#[derive(derive_more::Debug)]
#[debug("Group({:?}, {me}, {state:?})", config.id)]
pub struct Group {
    config: GroupConfig,
    me: Rank,
    hello: Vec<u8>,
    control: Control,
    lines: Vec<Line>,
    /// The engine; None until the sends and receives of this member are known.
    engine: Option<Engine>,
    /// The exchange of holdings, in a group that resumes, until it is complete.
    exchange: Option<Exchange>,
    /// The number of regions that members expose to the root, and the root to them.
    regions: usize,
    state: GroupPhase,
    /// The notice that this member sends.
    own: Notice,
    /// Whether the root will send no more messages; false elsewhere.
    closing: bool,
    /// Whether [`Event::Connected`] was given.
    connected: bool,
    events: Vec<Event>,
}

impl Group {
    /// Creates this node's part of a group, and starts to connect it to the other members. Fails if the configuration
    /// is not possible, or not for this node, or if the memory can't be registered.
    pub fn create(fabric: &mut impl Fabric, config: GroupConfig) -> Result<Group, CreateError> {
        let schedule = config.check(fabric.node())?;
        let me = schedule.rank();
        let lines = line_ranks(config.members.len(), me);
        let control = Control::register(fabric, config.members.len(), lines.chain(schedule.peers()))?;
        let register = if config.phantom { Buffer::phantom } else { Buffer::register };
        let scratch = schedule.receiving().filter(|_| config.first_block_memory);
        let scratch = scratch.map(|_| register(fabric, config.block_bytes)).transpose()?;
        let mut group = Group::new(fabric, config, me, control, None);
        let source = StepSource::Schedule(schedule);
        let links = group.connect_links(fabric, &source);
        group.engine = Some(Engine::new(group.limits(), source, links, scratch));
        Ok(group)
    }

    /// Connects the group to the members with which it talks. `exchange` is the start of a group that resumes.
    fn new(
        fabric: &mut impl Fabric,
        config: GroupConfig,
        me: Rank,
        control: Control,
        exchange: Option<Exchange>,
    ) -> Group {
        let purpose = exchange.as_ref().map_or(0, |at| (at.what.message << 32) + u64::from(at.what.blocks));
        let mut group = Group {
            hello: config.hello(purpose),
            config,
            me,
            control,
            lines: Vec::new(),
            engine: None,
            regions: 1 + usize::from(exchange.is_some()),
            exchange,
            state: GroupPhase::Running,
            own: Notice::default(),
            closing: false,
            connected: false,
            events: Vec::new(),
        };
        for rank in line_ranks(group.config.members.len(), me) {
            let holdings = group.exchange.as_ref().map(|exchange| exchange.region(rank));
            let expose: Vec<_> = [Some(group.control.region(rank)), holdings].into_iter().flatten().cloned().collect();
            let endpoint = fabric.connect(group.node(rank), group.tag(CONTROL), &expose, &group.hello);
            group.control.listen(fabric, endpoint, rank);
            group.lines.push(Line { rank, endpoint, remote: None, said: Notice::default(), told: false, gone: false });
        }
        group
    }

    fn connect_links(&self, fabric: &mut impl Fabric, source: &StepSource) -> Vec<BlockLink> {
        let connect = |rank| {
            let mut to = |layer, expose| fabric.connect(self.node(rank), self.tag(layer), expose, &self.hello);
            let blocks = to(BLOCKS, &[]);
            BlockLink::new(rank, blocks, to(READY, std::slice::from_ref(self.control.region(rank))))
        };
        source.peers().into_iter().map(connect).collect()
    }

    fn limits(&self) -> Limits {
        let GroupConfig { block_bytes, receives_ahead, sends_in_flight, steps_ahead, .. } = self.config;
        Limits { block_bytes, receives_ahead, sends_in_flight, steps_ahead }
    }

    pub(crate) fn tag(&self, layer: u32) -> GroupTag {
        GroupTag { layer, group: self.config.id.group, epoch: self.config.id.instance }
    }

    fn node(&self, rank: Rank) -> NodeId {
        self.config.members[rank.index()]
    }

    /// The group's name.
    pub fn id(&self) -> GroupId {
        self.config.id
    }

    /// The configuration of the group.
    pub fn config(&self) -> &GroupConfig {
        &self.config
    }

    /// Whether the targets of blocks are known. They are not at once in a group that resumes.
    pub(crate) fn has_links(&self) -> bool {
        self.engine.is_some()
    }

    /// This node's rank.
    pub fn rank(&self) -> Rank {
        self.me
    }

    /// The endpoints whose completions belong to this group. One that resumes gets more later: look after each step.
    pub fn endpoints(&self) -> impl Iterator<Item = EndpointId> {
        let links = self.engine.iter().flat_map(|engine| engine.links().iter().flat_map(BlockLink::endpoints));
        self.lines.iter().map(|line| line.endpoint).chain(links)
    }

    /// Whether an endpoint is one of those that a member closes as soon as it knows that the group fails. The others
    /// stay until all members know that the group has ended, or the member itself ends.
    pub fn ends_early(&self, endpoint: EndpointId) -> bool {
        self.lines.iter().all(|line| line.endpoint != endpoint)
    }

    /// Sends the first `len` bytes of a buffer to all members. Returns the message's number, from 0.
    ///
    /// Any number of messages may be sent at once; they go in order, one behind the other. [`Event::Released`] says
    /// when the buffer may be changed again. Fails if this node is not the root, if the message is longer than the
    /// buffer or has too many blocks, or if the group takes no more messages.
    pub fn send(&mut self, message: Arc<Buffer>, len: usize) -> Result<u64, SendError> {
        if self.me != Rank::ROOT {
            return Err(SendError::NotTheRoot(self.me));
        }
        let capacity = message.capacity();
        if len > capacity {
            return Err(SendError::Buffer { len, capacity });
        }
        let block_bytes = self.config.block_bytes;
        let blocks = self.config.blocks(len).ok_or(SendError::TooManyBlocks { len, block_bytes })?;
        match &mut self.engine {
            Some(engine) if self.state == GroupPhase::Running && !self.closing && engine.takes_more() => {
                Ok(engine.send(message, len, blocks))
            }
            _ => Err(SendError::Closed),
        }
    }

    /// Gives memory for a message that will come, ahead of time.
    ///
    /// Buffers are used in the order in which they are given. A message that fits into the first of them (by its
    /// [`max_bytes`](Event::Incoming)) goes there without an [`Event::Incoming`]. Where the buffer holds whole blocks,
    /// the first block comes in place too. A message that does not fit is asked for, and the buffer kept for another.
    ///
    /// Without [first-block memory](GroupConfig::first_block_memory), nothing comes before a buffer of a block or more.
    pub fn provide(&mut self, buffer: Buffer) {
        if let Some(engine) = &mut self.engine {
            engine.provide(buffer);
        }
    }

    /// Gives memory for a message that has begun to come.
    ///
    /// Its capacity must be the message's [`max_bytes`](Event::Incoming), or its length where the application knows it:
    /// a longer message would break the group. Fails if no such message waits for memory, or if the buffer is short.
    pub fn accept(&mut self, message: u64, buffer: Buffer) -> Result<(), AcceptError> {
        let engine = self.engine.as_mut().filter(|_| self.state == GroupPhase::Running);
        engine.ok_or(AcceptError::NotWaiting(message))?.accept(message, buffer)
    }

    /// Ends the group, by the root, once every message has reached every member. At each member, [`Event::Destroyed`]
    /// says that this is so; [`Event::Failed`] instead of it says nothing about other members. Fails if this node is
    /// not the root.
    pub fn destroy(&mut self) -> Result<(), SendError> {
        if self.me != Rank::ROOT {
            return Err(SendError::NotTheRoot(self.me));
        }
        self.closing = true;
        Ok(())
    }

    /// This member's progress.
    pub fn progress(&self) -> Progress {
        self.engine.as_ref().map(Engine::progress).unwrap_or_default()
    }

    /// Whether the group has failed or is destroyed.
    pub fn is_ended(&self) -> bool {
        matches!(self.state, GroupPhase::Failed | GroupPhase::Destroyed)
    }

    /// Whether no member has to hear of this one any more, so that it may be dropped without making others guess.
    ///
    /// A member that stands still, or never came, would have to hear for ever: a caller that wants to end gives up at
    /// some time.
    pub fn is_quiet(&self) -> bool {
        let named = |rank| self.control.failed(rank).is_some_and(|suspect| suspect != Suspect::Unknown);
        // Where the message is lost, no member failed, and all find that by themselves.
        let finds = |rank| self.own.failed.is_none() && self.control.is_done(rank);
        let knows = |line: &Line| line.gone || named(line.rank) || finds(line.rank) || self.control.is_closed();
        self.state == GroupPhase::Destroyed || self.state == GroupPhase::Failed && self.lines.iter().all(knows)
    }

    /// Whether another step would do nothing until a completion is reported, or something is asked of the group.
    pub(crate) fn is_idle(&self) -> bool {
        let said = |line: &Line| line.gone || line.remote.is_none() || line.said == self.own;
        let at_rest = self.is_ended() || self.engine.as_ref().is_some_and(Engine::is_idle);
        self.events.is_empty() && at_rest && self.lines.iter().all(said)
    }

    /// Leaves the group, which fails for the others unless it has ended.
    ///
    /// Returns the messages that this member has not released, as [`Event::Failed`] would. Step the group until it [is
    /// quiet](Group::is_quiet), so that the others hear of it. This is for a caller that finds by other means that a
    /// member stands still.
    pub fn leave(&mut self, fabric: &mut impl Fabric) -> Vec<Interrupted> {
        self.fail(fabric, Suspect::Rank(self.me), None, "it left the group".into());
        let failed = self.events.drain(..).find_map(|event| match event {
            Event::Failed(failure) => Some(failure.interrupted),
            _ => None,
        });
        failed.unwrap_or_default()
    }

    /// Closes all endpoints at once.
    pub fn disconnect(&mut self, fabric: &mut impl Fabric) {
        for endpoint in self.endpoints().collect::<Vec<_>>() {
            fabric.disconnect(endpoint);
        }
    }

    /// Reads what came, posts what can be posted, and appends the events. Returns whether anything changed.
    pub fn step(&mut self, fabric: &mut impl Fabric, out: &mut Vec<Event>) -> bool {
        let mut busy = self.hear(fabric);
        self.note_connected();
        if self.state == GroupPhase::Running {
            if self.exchange.is_some() {
                busy |= self.exchange(fabric);
            }
            if let Some(engine) = &mut self.engine {
                match engine.step(fabric, &self.control, &mut self.events) {
                    Ok(changed) => busy |= changed,
                    Err(error) => {
                        self.fail(fabric, Suspect::Rank(self.me), None, format!("it could not post: {error}"));
                    }
                }
            }
            busy |= self.close();
        }
        busy |= self.say(fabric);
        busy |= !self.events.is_empty();
        out.append(&mut self.events);
        busy
    }

    /// Runs the closing handshake. Returns whether anything changed.
    fn close(&mut self) -> bool {
        let Some(engine) = self.engine.as_ref().filter(|_| self.state == GroupPhase::Running) else { return false };
        let before = (self.own, self.closing);
        if self.me == Rank::ROOT {
            if self.closing {
                self.own.total = Some(engine.next());
                if engine.is_done() && self.lines.iter().all(|line| self.control.is_done(line.rank)) {
                    self.own.closed = true;
                    self.state = GroupPhase::Closed;
                    self.end_if_alone();
                }
            }
        } else if let Some(total) = self.control.total() {
            self.own.done = engine.is_done() && engine.next() >= total;
        }
        (self.own, self.closing) != before
    }

    /// Ends the group at the root once all members have closed their connections: they know then.
    fn end_if_alone(&mut self) {
        if self.state == GroupPhase::Closed && self.lines.iter().all(|line| line.gone) {
            self.state = GroupPhase::Destroyed;
            self.events.push(Event::Destroyed);
        }
    }

    /// Sends this member's notice to each peer that has not had it.
    fn say(&mut self, fabric: &mut impl Fabric) -> bool {
        let mut busy = false;
        for line in self.lines.iter_mut().filter(|line| line.said != self.own && !line.gone) {
            if let Some(remote) = line.remote
                && self.control.say(fabric, line.endpoint, remote.control, self.own).is_ok()
            {
                line.said = self.own;
                busy = true;
            }
        }
        busy
    }

    fn note_connected(&mut self) {
        if self.connected || self.state != GroupPhase::Running {
            return;
        }
        let up = |engine: &Engine| engine.links().iter().all(BlockLink::is_up);
        if self.engine.as_ref().is_some_and(up) && self.lines.iter().all(|line| line.remote.is_some()) {
            self.connected = true;
            self.events.push(Event::Connected);
        }
    }

    /// Takes note of a completion of one of this group's [endpoints](Group::endpoints).
    pub fn on_completion(&mut self, fabric: &mut impl Fabric, completion: &Completion) {
        let Some(endpoint) = completion.endpoint() else { return };
        if let Some(at) = self.lines.iter().position(|line| line.endpoint == endpoint) {
            return self.on_line(fabric, at, completion);
        }
        // A completion that was reported together with the end of the group comes after it.
        let Some(engine) = self.engine.as_mut().filter(|_| self.state == GroupPhase::Running) else { return };
        let Some(at) = engine.links().iter().position(|link| link.endpoints().contains(&endpoint)) else { return };
        let BlockLink { rank, blocks, .. } = engine.links()[at];
        let carries_blocks = endpoint == blocks;
        match completion {
            Completion::Connected { hello, .. } if carries_blocks && *hello == self.hello => {
                engine.blocks_connected(at);
            }
            Completion::Connected { remote, hello, .. } => match self.check(remote, hello, 1) {
                Ok(remote) => self.engine.iter_mut().for_each(|engine| engine.ready_connected(at, remote.control)),
                Err(reason) => self.fail(fabric, Suspect::Rank(rank), None, reason),
            },
            Completion::Done { result: Ok(()), .. } => engine.on_sent(at),
            Completion::Received { bytes, imm, .. } => {
                if let Err(breach) = engine.on_received(at, *bytes, *imm, &mut self.events) {
                    self.fail(fabric, Suspect::Rank(rank), None, breach.to_string());
                }
            }
            // The break that follows reports the outstanding operations; room is found by trying again.
            Completion::Done { result: Err(_), .. } | Completion::Room { .. } | Completion::GraphDone { .. } => {}
            // A member that is done may close first: the root knows whether all are.
            Completion::Broken { .. } if self.own.done => {}
            Completion::Broken { reason: BreakReason::PeerClosed, .. } => {
                self.fail(fabric, Suspect::Unknown, Some(rank), format!("{} closed its connection", self.node(rank)));
            }
            Completion::Broken { reason, .. } => self.fail(fabric, Suspect::Rank(rank), None, reason.to_string()),
        }
    }

    fn on_line(&mut self, fabric: &mut impl Fabric, at: usize, completion: &Completion) {
        let rank = self.lines[at].rank;
        match completion {
            Completion::Connected { remote, hello, .. } => match self.check(remote, hello, self.regions) {
                Ok(remote) => self.lines[at].remote = Some(remote),
                Err(reason) => {
                    // The peer finds the same, and nothing can be said to it.
                    self.lines[at].gone = true;
                    self.fail(fabric, Suspect::Rank(rank), None, reason);
                }
            },
            Completion::Broken { reason, .. } => {
                self.lines[at].gone = true;
                self.end_if_alone();
                if self.state != GroupPhase::Closed && !self.is_ended() {
                    self.fail(fabric, Suspect::Rank(rank), None, reason.to_string());
                }
            }
            Completion::Done { .. }
            | Completion::Received { .. }
            | Completion::Room { .. }
            | Completion::GraphDone { .. } => {}
        }
    }

    /// The regions that a peer exposed, if they are those of a member of this group.
    fn check(&self, remote: &[RemoteRegion], hello: &[u8], regions: usize) -> Result<Remote, String> {
        if hello != self.hello {
            return Err("its configuration of the group differs (members, algorithm, block size, or version)".into());
        }
        let control = remote.first().filter(|region| remote.len() == regions && is_control(region));
        let holdings = remote.get(1);
        // A member that has failed meanwhile has no holdings to compare, and still announces its failure.
        let fits = holdings.is_none_or(|region| self.exchange.as_ref().is_none_or(|exchange| exchange.fits(region)));
        match control {
            Some(control) if fits => Ok(Remote { control: control.key, holdings: holdings.map(|region| region.key) }),
            _ => Err("the memory that it exposed is not that of this group".into()),
        }
    }
}
