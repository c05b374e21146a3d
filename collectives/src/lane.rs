//! One operation at a time: its schedule, carried out on the lane's channels.

use std::{ops::Range, sync::Arc};

use squall_fabric::{Fabric, Op, Region, Slice, Token};

use crate::{
    channel::{Channel, is_posted},
    element::Vector,
    layout::{MemoryLayout, PeerRegions},
    lending::Lending,
    memory::{Memory, Temps},
    reduction::Operator,
    schedule::{Action, Cursor, Port, Schedule},
};

/// The state of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneStatus {
    UnderWay,
    Over,
    /// The operation ended because the communicator did.
    Ended,
}

/// The operations that share channels, one after another.
#[derive(Debug)]
pub(crate) struct Lane {
    /// The channel to each rank; this rank's own is not used.
    channels: Vec<Channel>,
    /// The number of the last operation.
    pub(crate) operation: Option<u64>,
    pub(crate) status: LaneStatus,
    schedule: Option<Arc<Schedule>>,
    cursor: Cursor,
    vector: Vector,
    operator: Option<Operator>,
    temps: Temps,
    lending: Lending,
    fetch: Option<Fetch>,
    /// Whether a peer was not told yet which slots are free.
    pub(crate) owing: bool,
}

/// A message that is being fetched from a peer's memory. A lane has one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fetch {
    Posted,
    Done,
}

/// The data that all lanes of a communicator share.
pub(crate) struct Common<'a> {
    pub(crate) layout: &'a MemoryLayout,
    /// Indexed by rank; none while the rank can't be reached.
    pub(crate) links: &'a [Option<PeerRegions>],
    pub(crate) staging: &'a Region,
    /// The region into which lanes fetch.
    pub(crate) landing: &'a Region,
    /// A slot's bytes, aligned for all elements.
    pub(crate) chunk: &'a mut Vec<u64>,
}

impl Lane {
    pub(crate) fn new(channels: Vec<Channel>, lending: Lending, chunk_bytes: usize) -> Lane {
        Lane {
            channels,
            operation: None,
            status: LaneStatus::Over,
            schedule: None,
            cursor: Cursor::default(),
            vector: Vector::U8(Vec::new()),
            operator: None,
            temps: Temps::new(chunk_bytes),
            lending,
            fetch: None,
            owing: false,
        }
    }

    /// Begins an operation; the previous one must not be under way.
    pub(crate) fn start(&mut self, number: u64, schedule: Arc<Schedule>, vector: Vector, operator: Option<Operator>) {
        assert!(self.status != LaneStatus::UnderWay, "a lane carries out one operation at a time");
        self.temps.reserve(schedule.temps);
        self.lending.forget();
        self.operation = Some(number);
        self.status = LaneStatus::UnderWay;
        self.schedule = Some(schedule);
        self.cursor = Cursor::default();
        self.vector = vector;
        self.operator = operator;
    }

    /// Begins an operation that does not go through the channels: [`Lane::receive`] or [`Lane::over`] ends it.
    pub(crate) fn start_apart(&mut self, number: u64, vector: Vector) {
        assert!(self.status != LaneStatus::UnderWay, "a lane carries out one operation at a time");
        self.operation = Some(number);
        self.status = LaneStatus::UnderWay;
        self.schedule = None;
        self.vector = vector;
    }

    /// Ends an operation apart with the vector that came.
    pub(crate) fn receive(&mut self, vector: &[u8]) {
        let into = self.vector.bytes_mut();
        // The lengths differ where ranks have started different operations.
        let len = into.len().min(vector.len());
        into[..len].copy_from_slice(&vector[..len]);
        self.over();
    }

    /// Ends an operation apart.
    pub(crate) fn over(&mut self) {
        self.status = LaneStatus::Over;
    }

    /// Carries out the actions that can be done now. Returns whether there were any.
    #[inline]
    pub(crate) fn step(&mut self, fabric: &mut impl Fabric, number: usize, common: Common<'_>) -> bool {
        let Some(schedule) = &self.schedule else { return false };
        let before = self.cursor;
        let chunk_bytes = common.layout.slot_bytes;
        let memory = Memory { vector: &mut self.vector, temps: &mut self.temps, operator: self.operator.as_ref() };
        let mut port = LanePort {
            fabric,
            number,
            common,
            channels: &mut self.channels,
            memory,
            lending: &mut self.lending,
            fetch: &mut self.fetch,
            fetch_above: schedule.fetch_above,
            owing: &mut self.owing,
        };
        if self.cursor.run(schedule, chunk_bytes, &mut port) {
            self.status = LaneStatus::Over;
            return true;
        }
        self.cursor != before
    }

    /// Whether the lane waits for a completion, of which only the fabric knows.
    #[inline]
    pub(crate) fn is_fetching(&self) -> bool {
        self.fetch == Some(Fetch::Posted)
    }

    /// Takes note that the fetch is complete.
    pub(crate) fn fetched(&mut self) {
        if self.fetch.is_some() {
            self.fetch = Some(Fetch::Done);
        }
    }

    /// Tells the peers of the freed slots that they were not told of yet.
    #[cold]
    pub(crate) fn settle(&mut self, fabric: &mut impl Fabric, layout: &MemoryLayout, links: &[Option<PeerRegions>]) {
        let links = links.iter().zip(&mut self.channels);
        self.owing = links.fold(false, |owing, (link, channel)| {
            !channel.credit(fabric, layout, link.as_ref(), layout.slots) || owing
        });
    }

    /// Takes the vector of an operation that is over, and the range of its bytes that is the result.
    pub(crate) fn take(&mut self) -> (Vector, Range<usize>) {
        let output = match self.schedule.take() {
            Some(schedule) => schedule.output.clone(),
            None => 0..self.vector.bytes().len(),
        };
        self.operation = None;
        (std::mem::replace(&mut self.vector, Vector::U8(Vec::new())), output)
    }
}

struct LanePort<'a, F> {
    fabric: &'a mut F,
    /// The lane's number.
    number: usize,
    common: Common<'a>,
    channels: &'a mut [Channel],
    memory: Memory<'a>,
    lending: &'a mut Lending,
    fetch: &'a mut Option<Fetch>,
    fetch_above: usize,
    owing: &'a mut bool,
}

impl<F: Fabric> Port for LanePort<'_, F> {
    #[inline]
    fn attempt(&mut self, action: &Action, chunk: Range<usize>) -> bool {
        let layout = self.common.layout;
        let of = |range: &Range<usize>| range.start + chunk.start..range.start + chunk.end;
        match action {
            Action::Signal { to } => {
                let Some(link) = &self.common.links[*to] else { return false };
                self.channels[*to].signal(self.fabric, layout, link)
            }
            Action::Await { from } => self.channels[*from].take_signal(layout),
            Action::Send { to, range } => self.send(*to, of(range)),
            Action::Recv { from, range, into } => {
                let Some(at) = self.arrived(*from, chunk.len()) else { return false };
                let into = self.memory.place(*into, of(range));
                read(&self.common, &self.channels[*from], at, into);
                self.take(*from, at)
            }
            Action::Combine { from, range, into, order } => {
                let Some(at) = self.arrived(*from, chunk.len()) else { return false };
                let mut scratch = std::mem::take(self.common.chunk);
                let received: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut scratch)[..chunk.len()];
                read(&self.common, &self.channels[*from], at, received);
                self.memory.combine(*into, of(range), received, *order);
                *self.common.chunk = scratch;
                self.take(*from, at)
            }
            Action::Merge { temp, range, into, order } => {
                self.memory.merge(*temp, *into, of(range), *order);
                self.lending.forget();
                true
            }
            Action::Fold { into, with } => {
                self.memory.fold(of(into), of(with));
                self.lending.forget();
                true
            }
        }
    }
}

/// The place of a message's bytes.
#[derive(Clone, Copy)]
enum At {
    /// A slot of the channel.
    Slot(usize),
    /// A place in the landing region.
    Landed(usize),
}

#[inline]
fn read(common: &Common<'_>, channel: &Channel, at: At, into: &mut [u8]) {
    match at {
        At::Slot(offset) => channel.region().read(offset, into),
        At::Landed(offset) => common.landing.read(offset, into),
    }
}

impl<F: Fabric> LanePort<'_, F> {
    #[inline]
    fn send(&mut self, to: usize, part: Range<usize>) -> bool {
        let Common { layout, staging, .. } = self.common;
        let Some(link) = &self.common.links[to] else { return false };
        if part.len() <= self.fetch_above {
            let bytes = &self.memory.vector.bytes()[part];
            return self.channels[to].send(self.fabric, layout, link, staging, bytes);
        }
        let Some(block) = self.lending.copied(&part).or_else(|| self.copy(&part)) else { return false };
        let place = (block, self.lending.offset(block));
        let sent = self.channels[to].send_lent(self.fabric, layout, link, place);
        if sent {
            self.lending.lend(block);
        }
        sent
    }

    /// Copies a part of the vector, so that it can be lent.
    fn copy(&mut self, part: &Range<usize>) -> Option<usize> {
        let layout = self.common.layout;
        let bytes = &self.memory.vector.bytes()[part.clone()];
        self.lending.copy(part, bytes).or_else(|| {
            for channel in &mut *self.channels {
                while let Some(block) = channel.returned(layout) {
                    self.lending.give_back(block);
                }
            }
            self.lending.copy(part, bytes)
        })
    }

    /// The next message of a rank, once its bytes are here.
    #[inline]
    fn arrived(&mut self, from: usize, len: usize) -> Option<At> {
        let slot = self.channels[from].arrived(self.common.layout)?;
        if len <= self.fetch_above { Some(At::Slot(slot)) } else { self.fetch(from, slot, len) }
    }

    /// Fetches the bytes whose place the slot has.
    fn fetch(&mut self, from: usize, slot: usize, len: usize) -> Option<At> {
        let Common { layout, landing, .. } = self.common;
        let link = self.common.links[from].as_ref()?;
        let offset = layout.landing(self.number);
        match self.fetch {
            Some(Fetch::Posted) => None,
            Some(Fetch::Done) => Some(At::Landed(offset)),
            None => {
                let place = usize::try_from(self.channels[from].region().load(slot)).ok()?;
                let op = Op::Read { from: link.lent(place), into: Slice { region: landing, offset, len } };
                if is_posted(self.fabric.post(link.endpoint, op, Token(self.number as u64))) {
                    *self.fetch = Some(Fetch::Posted);
                }
                None
            }
        }
    }

    /// Gives up a message whose bytes were used.
    #[inline]
    fn take(&mut self, from: usize, at: At) -> bool {
        // The vector may have changed.
        self.lending.forget();
        self.channels[from].take();
        let least = match at {
            At::Slot(_) => self.common.layout.slots.div_ceil(2),
            At::Landed(_) => {
                *self.fetch = None;
                1
            }
        };
        self.credit(from, least);
        true
    }

    fn credit(&mut self, from: usize, least: usize) {
        let link = self.common.links[from].as_ref();
        if !self.channels[from].credit(self.fabric, self.common.layout, link, least) {
            *self.owing = true;
        }
    }
}
