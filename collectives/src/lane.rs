//! One operation at a time: its schedule, carried out on the lane's channels.

use std::{ops::Range, sync::Arc};

use squall_fabric::{Fabric, Region};

use crate::{
    channel::Channel,
    element::Vector,
    layout::{Layout, Link},
    memory::{Memory, Temps},
    reduction::Operator,
    schedule::{Action, Cursor, Port, Schedule},
};

/// What an operation has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    UnderWay,
    Over,
    /// It ended because the communicator did.
    Ended,
}

/// The operations that share channels, one after the other.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Indexed by rank; that to this rank itself is not used.
    channels: Vec<Channel>,
    /// The number of the last operation.
    pub(crate) operation: Option<u64>,
    pub(crate) status: Status,
    schedule: Option<Arc<Schedule>>,
    cursor: Cursor,
    vector: Vector,
    operator: Option<Operator>,
    temps: Temps,
}

/// What all lanes of a communicator share.
pub(crate) struct Common<'a> {
    pub(crate) layout: &'a Layout,
    /// Indexed by rank; none while the rank can't be reached.
    pub(crate) links: &'a [Option<Link>],
    pub(crate) region: &'a Region,
    pub(crate) staging: &'a Region,
    /// A slot's bytes, aligned for all elements.
    pub(crate) chunk: &'a mut [u64],
}

impl Lane {
    pub(crate) fn new(channels: Vec<Channel>, chunk_bytes: usize) -> Lane {
        Lane {
            channels,
            operation: None,
            status: Status::Over,
            schedule: None,
            cursor: Cursor::default(),
            vector: Vector::U8(Vec::new()),
            operator: None,
            temps: Temps::new(chunk_bytes),
        }
    }

    /// Begins an operation; the previous one must not be under way.
    pub(crate) fn start(&mut self, number: u64, schedule: Arc<Schedule>, vector: Vector, operator: Option<Operator>) {
        assert!(self.status != Status::UnderWay, "a lane carries out one operation at a time");
        self.temps.reserve(schedule.temps);
        self.operation = Some(number);
        self.status = Status::UnderWay;
        self.schedule = Some(schedule);
        self.cursor = Cursor::default();
        self.vector = vector;
        self.operator = operator;
    }

    /// Carries out what can be done now.
    #[inline]
    pub(crate) fn step(&mut self, fabric: &mut impl Fabric, common: Common<'_>) {
        let Some(schedule) = &self.schedule else { return };
        let chunk_bytes = common.layout.slot_bytes;
        let memory = Memory { vector: &mut self.vector, temps: &mut self.temps, operator: self.operator.as_ref() };
        let mut port = LanePort { fabric, common, channels: &mut self.channels, memory };
        if self.cursor.run(schedule, chunk_bytes, &mut port) {
            self.status = Status::Over;
        }
    }

    /// Takes the vector of an operation that is over, and says which of its bytes are the result.
    pub(crate) fn take(&mut self) -> (Vector, Range<usize>) {
        let output = self.schedule.take().map_or(0..0, |schedule| schedule.output.clone());
        self.operation = None;
        (std::mem::replace(&mut self.vector, Vector::U8(Vec::new())), output)
    }
}

struct LanePort<'a, F> {
    fabric: &'a mut F,
    common: Common<'a>,
    channels: &'a mut [Channel],
    memory: Memory<'a>,
}

impl<F: Fabric> Port for LanePort<'_, F> {
    #[inline]
    fn attempt(&mut self, action: &Action, chunk: Range<usize>) -> bool {
        let Common { layout, region, staging, .. } = self.common;
        let of = |range: &Range<usize>| range.start + chunk.start..range.start + chunk.end;
        match action {
            Action::Signal { to } => {
                let Some(link) = &self.common.links[*to] else { return false };
                self.channels[*to].signal(self.fabric, layout, link)
            }
            Action::Await { from } => self.channels[*from].take_signal(layout, region),
            Action::Send { to, range } => {
                let Some(link) = &self.common.links[*to] else { return false };
                let bytes = &self.memory.vector.bytes()[of(range)];
                self.channels[*to].send(self.fabric, layout, link, (region, staging), bytes)
            }
            Action::Recv { from, range, into } => {
                let Some(slot) = self.arrived(*from) else { return false };
                region.read(slot, self.memory.place(*into, of(range)));
                self.take(*from)
            }
            Action::Combine { from, range, into, order } => {
                let Some(slot) = self.arrived(*from) else { return false };
                let received: &mut [u8] = &mut bytemuck::cast_slice_mut(self.common.chunk)[..chunk.len()];
                region.read(slot, received);
                self.memory.combine(*into, of(range), received, *order);
                self.take(*from)
            }
            Action::Merge { temp, range, into } => {
                self.memory.merge(*temp, *into, of(range));
                true
            }
            Action::Fold { into, with } => {
                self.memory.fold(of(into), of(with));
                true
            }
        }
    }
}

impl<F: Fabric> LanePort<'_, F> {
    fn arrived(&mut self, from: usize) -> Option<usize> {
        let arrived = self.channels[from].arrived(self.common.layout, self.common.region);
        if arrived.is_none() {
            // The peer may wait for one that could not be posted before.
            self.credit(from);
        }
        arrived
    }

    fn take(&mut self, from: usize) -> bool {
        self.channels[from].take();
        self.credit(from);
        true
    }

    fn credit(&mut self, from: usize) {
        if let Some(link) = &self.common.links[from] {
            self.channels[from].credit(self.fabric, self.common.layout, link);
        }
    }
}
