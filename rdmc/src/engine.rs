//! The block engine: moves the blocks of a group's messages as its schedule says.
//!
//! It is asynchronous. A send waits for its own block, and for the target to have posted a receive for it
//! (`ready_for_block`). Where one peer is not ready, later sends to others overtake, up to a window. Between two
//! members the order of blocks is the schedule's, so each side knows which block is meant without being told.
//!
//! Receives are posted in the order of the schedule's steps, a window of them ahead. The earliest block that is missing
//! anywhere is therefore always one that its receiver waits for and that its sender has, so that no window is too
//! small.
//!
//! A block that comes before its step takes its receiver's bandwidth from the block whose step it is, and for which
//! other members wait. So there is a limit on how far a member's sends may be ahead of its receives, and of its earlier
//! sends.

use std::{collections::VecDeque, sync::Arc};

use squall_fabric::{Fabric, Op, PostError, RegionKey, Source, Token};

use crate::{
    buffer::Buffer,
    control::Control,
    events::{Event, Interrupted, Progress},
    link::{Awaited, BlockLink, link_to},
    message::{InFlight, Parked, is_block_len},
    step_source::StepSource,
};

/// The sends of one part of the schedule, in its order.
#[derive(Debug, Default)]
struct Lane {
    /// The message at which the search for sends goes on.
    message: u64,
    step: u64,
    /// Sends that were found and not posted, oldest first.
    pending: VecDeque<PendingSend>,
    in_flight: usize,
}

#[derive(Clone, Copy, Debug)]
struct PendingSend {
    message: u64,
    step: u64,
    link: usize,
    block: u32,
}

/// The receive that was posted for the next message's first block.
#[derive(Debug)]
struct First {
    holder: Arc<Buffer>,
    offset: usize,
    provided: bool,
}

/// The limits on the engine's blocks and windows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) block_bytes: usize,
    pub(crate) receives_ahead: usize,
    pub(crate) sends_in_flight: usize,
    pub(crate) steps_ahead: u64,
}

/// A peer sent what the schedule does not say.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Breach {
    #[error("it sent a block that this member did not ask for")]
    Unasked,
    #[error("it sent a block without saying how many the message has")]
    NoCount,
    #[error("it says that the message has {said} blocks, which has {known}")]
    Count { said: u32, known: u32 },
    #[error("it sent {len} bytes as block {block} of {blocks}")]
    Length { len: usize, block: u32, blocks: u32 },
}

/// The reason why memory was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcceptError {
    /// A message that does not wait for memory: it has some, or the group has failed meanwhile.
    #[error("message {0} does not wait for memory: it has some, or the group has failed")]
    NotWaiting(u64),
    /// The message can't fit.
    #[error("{capacity} bytes are too few for a message of {blocks} blocks of {block_bytes} bytes")]
    TooSmall {
        /// The size of the given memory, in bytes.
        capacity: usize,
        /// The message's number of blocks.
        blocks: u32,
        /// The group's block size.
        block_bytes: usize,
    },
}

/// A posted operation of any kind is known by its place in the endpoint's order, so tokens only need to be signaled.
const SIGNALED: Token = Token(0);

/// The number of steps that one search passes over in a schedule in which this member has little to do.
const SEARCH_STEPS: usize = 4096;

/// One member's transfers.
#[derive(Debug)]
pub(crate) struct Engine {
    limits: Limits,
    source: StepSource,
    links: Vec<BlockLink>,
    lanes: Vec<Lane>,
    /// The messages that this member knows of and is not done with; the number of the first is `base`.
    messages: VecDeque<InFlight>,
    base: u64,
    /// The next message to be reported as received, unless this member sends them all.
    reported: u64,
    reports: bool,
    /// The message and step at which the posting of receives goes on.
    receiving: (u64, u64),
    /// The number of receives that are posted.
    posted: usize,
    first: Option<First>,
    scratch: Option<Arc<Buffer>>,
    provided: VecDeque<Buffer>,
    searches: u64,
}

impl Engine {
    /// An engine for messages from number 0 on. A receiver has `scratch`, of a block's size, or waits for memory that
    /// is provided.
    pub(crate) fn new(limits: Limits, source: StepSource, links: Vec<BlockLink>, scratch: Option<Buffer>) -> Engine {
        let lanes = (0..source.parts()).map(|_| Lane::default()).collect();
        let reports = source.receiving().is_some();
        Engine {
            limits,
            source,
            links,
            lanes,
            messages: VecDeque::new(),
            base: 0,
            reported: 0,
            reports,
            receiving: (0, 0),
            posted: 0,
            first: None,
            scratch: scratch.map(Arc::new),
            provided: VecDeque::new(),
            searches: 0,
        }
    }

    /// An engine that completes one message.
    pub(crate) fn completing(limits: Limits, source: StepSource, links: Vec<BlockLink>, what: Interrupted) -> Engine {
        let mut engine = Engine::new(limits, source, links, None);
        let message = InFlight { len: what.len, held: what.held, buffer: what.buffer, ..InFlight::new(what.blocks, 1) };
        (engine.base, engine.reported, engine.receiving) = (what.message, what.message, (what.message, 0));
        engine.lanes[0].message = what.message;
        engine.messages.push_back(message);
        engine
    }

    pub(crate) fn links(&self) -> &[BlockLink] {
        &self.links
    }

    /// Blocks can be sent to a peer.
    pub(crate) fn blocks_connected(&mut self, link: usize) {
        self.links[link].blocks_are_up = true;
    }

    /// A peer can be told of receives, in its control memory.
    pub(crate) fn ready_connected(&mut self, link: usize, control: RegionKey) {
        self.links[link].control = Some(control);
    }

    /// Whether the engine can have more messages than it was made with.
    pub(crate) fn takes_more(&self) -> bool {
        matches!(self.source, StepSource::Schedule(_))
    }

    /// The number of the next message that this member will know of.
    pub(crate) fn next(&self) -> u64 {
        self.base + self.messages.len() as u64
    }

    /// Whether this member has done all that it has to for the messages that it knows of.
    pub(crate) fn is_done(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether the engine waits for nothing but a completion or a message.
    pub(crate) fn is_idle(&self) -> bool {
        let cannot = self.source.first_block().is_none() || self.scratch.is_none() && self.provided.is_empty();
        let waits = self.first.is_some() || cannot;
        let told = |link: &BlockLink| link.published == link.posted || link.control.is_none();
        self.messages.is_empty() && waits && self.links.iter().all(told)
    }

    fn message(&mut self, number: u64) -> Option<&mut InFlight> {
        self.messages.get_mut(usize::try_from(number.checked_sub(self.base)?).ok()?)
    }

    /// Starts the root's next message. Returns its number.
    pub(crate) fn send(&mut self, buffer: Arc<Buffer>, len: usize, blocks: u32) -> u64 {
        let (number, held) = (self.next(), crate::BlockSet::full(blocks));
        let (len, buffer) = (Some(len), Some(buffer));
        let message = InFlight { len, held, buffer, ..InFlight::new(blocks, self.lanes.len()) };
        self.messages.push_back(message);
        number
    }

    /// Adds memory for a message that will come.
    pub(crate) fn provide(&mut self, buffer: Buffer) {
        self.provided.push_back(buffer);
    }

    /// Gives memory to a message that has begun to come.
    pub(crate) fn accept(&mut self, number: u64, buffer: Buffer) -> Result<(), AcceptError> {
        let block_bytes = self.limits.block_bytes;
        let message = self.message(number).filter(|message| message.buffer.is_none());
        let message = message.ok_or(AcceptError::NotWaiting(number))?;
        let parked = message.parked.take().ok_or(AcceptError::NotWaiting(number))?;
        let needed = (message.blocks as usize - 1) * block_bytes
            + if parked.block + 1 == message.blocks { parked.len } else { usize::from(message.blocks > 1) };
        if buffer.capacity() < needed {
            let blocks = message.blocks;
            message.parked = Some(parked);
            return Err(AcceptError::TooSmall { capacity: buffer.capacity(), blocks, block_bytes });
        }
        let holder = place(message, Arc::new(buffer), parked, block_bytes);
        // Provided memory that is too small for this message is kept for another.
        self.provided.extend(Arc::try_unwrap(holder));
        Ok(())
    }

    /// Posts what can be posted, and reports the messages that are whole or done with. Returns whether anything
    /// changed.
    pub(crate) fn step(
        &mut self,
        fabric: &mut impl Fabric,
        control: &Control,
        out: &mut Vec<Event>,
    ) -> Result<bool, PostError> {
        let mut busy = self.post_receives(fabric)?;
        busy |= self.publish(fabric)?;
        busy |= self.post_sends(fabric, control)?;
        busy |= self.report(out);
        Ok(busy)
    }

    /// Posts receives in the order of steps.
    fn post_receives(&mut self, fabric: &mut impl Fabric) -> Result<bool, PostError> {
        let Some(part) = self.source.receiving() else { return Ok(false) };
        let block_bytes = self.limits.block_bytes;
        let mut busy = false;
        for _ in 0..SEARCH_STEPS {
            if self.posted >= self.limits.receives_ahead {
                return Ok(busy);
            }
            let (number, step) = self.receiving;
            let Some(message) = number.checked_sub(self.base).and_then(|at| self.messages.get(at as usize)) else {
                return Ok(busy | self.post_first(fabric)?);
            };
            let Some(buffer) = &message.buffer else { return Ok(busy) };
            if step >= self.source.steps(part, message.blocks) {
                self.receiving = (number + 1, 0);
                continue;
            }
            let receive = self.source.at(part, message.blocks, step).receive;
            // The first block came before its message was known.
            if let Some(receive) = receive.filter(|receive| !message.held.contains(receive.block)) {
                let len = message.room_for(receive.block, block_bytes, buffer.capacity());
                let into = buffer.slice(receive.block as usize * block_bytes, len);
                let link = link_to(&self.links, receive.peer);
                let link = &mut self.links[link];
                if !is_taken(fabric.post(link.blocks, Op::Recv { into }, SIGNALED))? {
                    return Ok(busy);
                }
                link.awaiting.push_back(Awaited::Block { message: number, block: receive.block });
                link.posted += 1;
                self.posted += 1;
                busy = true;
            }
            self.receiving.1 += 1;
        }
        // The rest is left to the next step.
        Ok(true)
    }

    /// Posts the receive for the next message's first block.
    fn post_first(&mut self, fabric: &mut impl Fabric) -> Result<bool, PostError> {
        let (Some(from), None) = (self.source.first_block(), &self.first) else { return Ok(false) };
        let block_bytes = self.limits.block_bytes;
        let blocks = |buffer: &Buffer| u32::try_from(buffer.capacity() / block_bytes).unwrap_or(u32::MAX);
        // The block's final place, if the message has that many blocks.
        let fits = |buffer: &mut Buffer| match &self.scratch {
            Some(_) => blocks(buffer) > from.block,
            None => blocks(buffer) > 0,
        };
        let first = match (self.provided.pop_front_if(fits), &self.scratch) {
            (Some(buffer), _) => {
                let offset = from.of(blocks(&buffer)) as usize * block_bytes;
                First { holder: Arc::new(buffer), offset, provided: true }
            }
            // The scratch is free: the receives of all messages before are posted, so these have memory of their own.
            (None, Some(scratch)) => First { holder: Arc::clone(scratch), offset: 0, provided: false },
            (None, None) => return Ok(false),
        };
        let link = link_to(&self.links, from.from);
        let link = &mut self.links[link];
        let into = first.holder.slice(first.offset, block_bytes);
        let taken = is_taken(fabric.post(link.blocks, Op::Recv { into }, SIGNALED))?;
        if taken {
            link.awaiting.push_back(Awaited::First);
            link.posted += 1;
            self.posted += 1;
            self.first = Some(first);
        } else if first.provided
            && let Ok(buffer) = Arc::try_unwrap(first.holder)
        {
            self.provided.push_front(buffer);
        }
        Ok(taken)
    }

    /// Tells peers the number of receives that are posted for them.
    fn publish(&mut self, fabric: &mut impl Fabric) -> Result<bool, PostError> {
        let mut busy = false;
        for link in &mut self.links {
            if let Some(to) = link.control.filter(|_| link.published < link.posted)
                && is_taken(Control::say_ready(fabric, link.ready, to, link.posted))?
            {
                link.published = link.posted;
                busy = true;
            }
        }
        Ok(busy)
    }

    /// Finds the next sends of a lane. Returns whether it stopped before it found enough, so as not to take too long.
    fn search(&mut self, lane: usize) -> bool {
        let window = self.limits.sends_in_flight.max(2 * self.links.len());
        let at = &mut self.lanes[lane];
        for _ in 0..SEARCH_STEPS {
            let message = at.message.checked_sub(self.base).and_then(|i| self.messages.get_mut(i as usize));
            // Until there is memory for a message, its number of blocks is only a peer's claim.
            let Some(message) = message.filter(|message| message.buffer.is_some() && at.pending.len() < window) else {
                return false;
            };
            if at.step >= self.source.steps(lane, message.blocks) {
                message.lanes -= 1;
                (at.message, at.step) = (at.message + 1, 0);
                continue;
            }
            if let Some(send) = self.source.at(lane, message.blocks, at.step).send {
                let link = link_to(&self.links, send.peer);
                at.pending.push_back(PendingSend { message: at.message, step: at.step, link, block: send.block });
                message.queued += 1;
            }
            at.step += 1;
        }
        true
    }

    /// Posts the sends whose block is here and whose target is ready.
    fn post_sends(&mut self, fabric: &mut impl Fabric, control: &Control) -> Result<bool, PostError> {
        let block_bytes = self.limits.block_bytes;
        let paced = self.source.receiving().filter(|_| self.limits.steps_ahead < u64::MAX);
        let mut busy = false;
        for lane in 0..self.lanes.len() {
            busy |= self.search(lane);
            self.searches += 1;
            let mut next = 0;
            while self.lanes[lane].in_flight < self.limits.sends_in_flight {
                let Some(&pending) = self.lanes[lane].pending.get(next) else { break };
                let oldest = self.lanes[lane].pending[0];
                next += 1;
                let too_early = pending.message == oldest.message
                    && pending.step >= oldest.step.saturating_add(self.limits.steps_ahead);
                if too_early || Some(lane) == paced && !self.may_send(lane, pending) {
                    break;
                }
                let link = &mut self.links[pending.link];
                if link.passed == self.searches {
                    continue;
                }
                // A later send to the same peer must not overtake this one.
                link.passed = self.searches;
                let message = &mut self.messages[(pending.message - self.base) as usize];
                let (Some(buffer), true) = (&message.buffer, message.held.contains(pending.block)) else { continue };
                if !link.blocks_are_up || control.ready(link.rank) <= link.sent {
                    continue;
                }
                let len = message.len_of(pending.block, block_bytes);
                let source = Source::Region(buffer.slice(pending.block as usize * block_bytes, len));
                let send = Op::Send { source, imm: Some(message.blocks) };
                if !is_taken(fabric.post(link.blocks, send, SIGNALED))? {
                    continue;
                }
                link.passed = 0;
                link.sent += 1;
                link.sending.push_back((pending.message, lane));
                message.queued -= 1;
                message.in_flight += 1;
                self.lanes[lane].in_flight += 1;
                next -= 1;
                self.lanes[lane].pending.remove(next);
                self.search(lane);
                busy = true;
            }
        }
        Ok(busy)
    }

    /// Whether a send is no further ahead of this member's receives than it may be.
    fn may_send(&mut self, part: usize, send: PendingSend) -> bool {
        let message = &mut self.messages[(send.message - self.base) as usize];
        while message.arrived < send.step {
            let receive = self.source.at(part, message.blocks, message.arrived).receive;
            if receive.is_some_and(|receive| !message.held.contains(receive.block)) {
                break;
            }
            message.arrived += 1;
        }
        send.step < message.arrived.saturating_add(self.limits.steps_ahead)
    }

    /// Reports messages that are whole, and forgets those that this member is done with.
    fn report(&mut self, out: &mut Vec<Event>) -> bool {
        let before = out.len();
        if self.reports {
            while let Some(message) = self.messages.get((self.reported - self.base) as usize)
                && let (true, Some(len), Some(buffer)) = (message.held.is_full(), message.len, &message.buffer)
            {
                out.push(Event::Received { message: self.reported, buffer: Arc::clone(buffer), len });
                self.reported += 1;
            }
        }
        while self.messages.front().is_some_and(InFlight::is_done) {
            self.messages.pop_front();
            out.push(Event::Released { message: self.base });
            self.base += 1;
        }
        self.reported = self.reported.max(self.base);
        out.len() > before
    }

    /// Takes note of a block that came.
    pub(crate) fn on_received(
        &mut self,
        link: usize,
        len: usize,
        imm: Option<u32>,
        out: &mut Vec<Event>,
    ) -> Result<(), Breach> {
        let awaited = self.links[link].awaiting.pop_front().ok_or(Breach::Unasked)?;
        let said = imm.filter(|&blocks| blocks > 0).ok_or(Breach::NoCount)?;
        self.posted -= 1;
        let block_bytes = self.limits.block_bytes;
        match awaited {
            Awaited::First => {
                let first = self.source.first_block().expect("a receive was posted for it");
                let block = first.of(said);
                let First { holder, offset, provided } = self.first.take().expect("its memory");
                if !is_block_len(block, said, len, block_bytes) {
                    return Err(Breach::Length { len, block, blocks: said });
                }
                let parked = Parked { holder, offset, block, len };
                self.begin(said, parked, provided, out);
            }
            Awaited::Block { message, block } => {
                let message = self.message(message).expect("a message with receives posted is not done");
                if said != message.blocks {
                    return Err(Breach::Count { said, known: message.blocks });
                }
                if !is_block_len(block, said, len, block_bytes) {
                    return Err(Breach::Length { len, block, blocks: said });
                }
                message.hold(block, len, block_bytes);
            }
        }
        Ok(())
    }

    /// Begins a new message, whose first block lies in `parked`.
    fn begin(&mut self, blocks: u32, parked: Parked, provided: bool, out: &mut Vec<Event>) {
        let block_bytes = self.limits.block_bytes;
        let number = self.next();
        let mut message = InFlight::new(blocks, self.lanes.len());
        let known = (parked.block + 1 == blocks).then(|| parked.block as usize * block_bytes + parked.len);
        let max_bytes = known.unwrap_or(blocks as usize * block_bytes);
        let holder = Some(Arc::clone(&parked.holder)).filter(|buffer| provided && buffer.capacity() >= max_bytes);
        let fits = |buffer: &mut Buffer| buffer.capacity() >= max_bytes;
        match holder.or_else(|| self.provided.pop_front_if(fits).map(Arc::new)) {
            Some(buffer) => {
                let holder = place(&mut message, buffer, parked, block_bytes);
                self.provided.extend(Arc::try_unwrap(holder));
            }
            None => {
                message.parked = Some(parked);
                out.push(Event::Incoming { message: number, blocks, max_bytes });
            }
        }
        self.messages.push_back(message);
    }

    /// Takes note that the oldest send on a link is complete.
    pub(crate) fn on_sent(&mut self, link: usize) {
        if let Some((message, lane)) = self.links[link].sending.pop_front() {
            self.lanes[lane].in_flight -= 1;
            self.message(message).expect("a message with sends outstanding is not done").in_flight -= 1;
        }
    }

    /// Takes the messages that this member is not done with.
    pub(crate) fn interrupted(&mut self) -> Vec<Interrupted> {
        let base = self.base;
        let messages = std::mem::take(&mut self.messages);
        (base..).zip(messages).map(|(number, mut message)| message.interrupted(number)).collect()
    }

    pub(crate) fn progress(&self) -> Progress {
        let oldest = (self.base..).zip(&self.messages).find(|(_, message)| !message.held.is_full());
        match oldest {
            Some((message, at)) => Progress { message, held: at.held.count(), blocks: at.blocks },
            None => Progress { message: self.next(), ..Progress::default() },
        }
    }
}

/// Whether a post was taken; a full queue takes it later. A broken endpoint reports itself.
fn is_taken(posted: Result<(), PostError>) -> Result<bool, PostError> {
    match posted {
        Ok(()) => Ok(true),
        Err(PostError::Full | PostError::Broken | PostError::NotConnected) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Moves the first block to its place in the message's memory. Returns the memory where it lay.
fn place(message: &mut InFlight, buffer: Arc<Buffer>, parked: Parked, block_bytes: usize) -> Arc<Buffer> {
    let offset = parked.block as usize * block_bytes;
    if !Arc::ptr_eq(&buffer, &parked.holder) || offset != parked.offset {
        buffer.copy_from(&parked.holder, parked.offset, offset, parked.len);
    }
    message.buffer = Some(buffer);
    message.hold(parked.block, parked.len, block_bytes);
    parked.holder
}
