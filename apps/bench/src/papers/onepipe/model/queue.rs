//! Virtual time: the coming events, in order.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Events by their time in nanoseconds; those of one instant in the order in which they were scheduled.
#[derive(Debug)]
pub(super) struct EventQueue<E> {
    /// Each with its time and its number.
    heap: BinaryHeap<Reverse<(u64, u64, E)>>,
    scheduled: u64,
}

impl<E: Ord> EventQueue<E> {
    pub(super) fn new() -> EventQueue<E> {
        EventQueue { heap: BinaryHeap::new(), scheduled: 0 }
    }

    pub(super) fn at(&mut self, time: u64, event: E) {
        self.scheduled += 1;
        self.heap.push(Reverse((time, self.scheduled, event)));
    }

    /// The next event, if it comes before `end`.
    pub(super) fn pop_before(&mut self, end: u64) -> Option<(u64, E)> {
        if self.heap.peek()?.0.0 >= end {
            return None;
        }
        self.heap.pop().map(|Reverse((time, _, event))| (time, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_of_scheduling() {
        let mut queue = EventQueue::new();
        for (time, event) in [(5, 'c'), (3, 'a'), (5, 'd'), (4, 'b'), (9, 'e')] {
            queue.at(time, event);
        }
        let popped: String = std::iter::from_fn(|| queue.pop_before(9)).map(|(_, event)| event).collect();
        assert_eq!(popped, "abcd");
    }
}
