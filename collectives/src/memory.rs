//! The memory of a lane's actions: its vector, and chunk-sized temporaries.

use std::ops::Range;

use crate::{combine::OperandOrder, element::Vector, reduction::Operator, schedule::ChunkTarget};

/// The chunks that a lane has besides its vector, as words, so that all elements are aligned in them.
#[derive(Debug)]
pub(crate) struct Temps {
    words: Vec<u64>,
    chunk_bytes: usize,
}

impl Temps {
    pub(crate) fn new(chunk_bytes: usize) -> Temps {
        Temps { words: Vec::new(), chunk_bytes }
    }

    /// Makes room for `count` temporaries.
    pub(crate) fn reserve(&mut self, count: usize) {
        let words = count * self.chunk_bytes / 8;
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
    }

    fn get(&mut self, temp: usize, bytes: usize) -> &mut [u8] {
        let start = temp * self.chunk_bytes;
        &mut bytemuck::cast_slice_mut(&mut self.words)[start..start + bytes]
    }
}

/// The vector and the temporaries of one operation.
#[derive(Debug)]
pub(crate) struct Memory<'a> {
    pub(crate) vector: &'a mut Vector,
    pub(crate) temps: &'a mut Temps,
    pub(crate) operator: Option<&'a Operator>,
}

impl Memory<'_> {
    /// A chunk in its place; `range` is its place in the vector.
    pub(crate) fn place(&mut self, place: ChunkTarget, range: Range<usize>) -> &mut [u8] {
        match place {
            ChunkTarget::Vector => &mut self.vector.bytes_mut()[range],
            ChunkTarget::Temp(temp) => self.temps.get(temp, range.len()),
        }
    }

    /// Combines a received chunk into its place.
    pub(crate) fn combine(&mut self, place: ChunkTarget, range: Range<usize>, with: &[u8], order: OperandOrder) {
        let operator = self.operator;
        let into = self.place(place, range);
        combine(operator, into, with, order);
    }

    /// Combines a temporary into a place that is the vector or a lower temporary.
    pub(crate) fn merge(&mut self, temp: usize, into: ChunkTarget, range: Range<usize>, order: OperandOrder) {
        let chunk_bytes = self.temps.chunk_bytes;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.temps.words);
        let (lower, from) = bytes.split_at_mut(temp * chunk_bytes);
        let from = &from[..range.len()];
        let into = match into {
            ChunkTarget::Vector => &mut self.vector.bytes_mut()[range],
            ChunkTarget::Temp(into) => &mut lower[into * chunk_bytes..into * chunk_bytes + from.len()],
        };
        combine(self.operator, into, from, order);
    }

    /// Combines a later range of the vector into an earlier one.
    pub(crate) fn fold(&mut self, into: Range<usize>, with: Range<usize>) {
        let (lower, from) = self.vector.bytes_mut().split_at_mut(with.start);
        combine(self.operator, &mut lower[into], &from[..with.len()], OperandOrder::MineFirst);
    }
}

fn combine(operator: Option<&Operator>, into: &mut [u8], with: &[u8], order: OperandOrder) {
    operator.expect("schedules combine in reductions only").combine(into, with, order);
}
