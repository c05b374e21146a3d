//! The completion queues of a fabric: as many as its endpoints need so that none ever overflows.

use std::{io, sync::Arc};

use super::{
    device::Context,
    queue::{Channel, Completed, Cq},
};

pub(super) struct Completions {
    pub(super) channel: Arc<Channel>,
    queues: Vec<Queue>,
    /// The number of entries that one queue has at most.
    most: usize,
    /// The number of completions that an endpoint may have outstanding. (A bell has fewer.)
    of_endpoint: usize,
}

struct Queue {
    cq: Arc<Cq>,
    entries: usize,
    /// The number of entries that the queue pairs on it may need.
    reserved: usize,
    /// The number of those that belong to queue pairs that are no more, whose completions may be there still.
    leaving: usize,
    /// Whether it takes no more queue pairs.
    is_retired: bool,
}

/// The number of endpoints for which the first queue is made; each further one is made for twice as many as the last.
const ENDPOINTS: usize = 16;

impl Completions {
    /// Makes a set without queues, of at most `most` entries each, for endpoints that need `of_endpoint`.
    pub(super) fn new(context: &Arc<Context>, most: usize, of_endpoint: usize) -> io::Result<Completions> {
        Ok(Completions { channel: Channel::new(context)?, queues: Vec::new(), most, of_endpoint })
    }

    /// Reserves room for a queue pair that may have `entries` completions outstanding. Returns its queue, and that
    /// queue's number.
    pub(super) fn reserve(&mut self, entries: usize) -> io::Result<(usize, Arc<Cq>)> {
        let fits = |queue: &Queue| !queue.is_retired && queue.reserved + entries <= queue.entries;
        let at = match self.queues.iter().position(fits) {
            Some(at) => at,
            None => {
                // So that few queues serve however many endpoints: each is looked at in every poll.
                let endpoints = ENDPOINTS << self.queues.len().min(16);
                let size = endpoints.saturating_mul(self.of_endpoint).min(self.most).max(entries);
                let cq = Cq::new(&self.channel, size)?;
                self.queues.push(Queue { cq, entries: size, reserved: 0, leaving: 0, is_retired: false });
                self.queues.len() - 1
            }
        };
        let queue = &mut self.queues[at];
        queue.reserved += entries;
        Ok((at, Arc::clone(&queue.cq)))
    }

    /// Gives back the entries of a queue pair that is no more.
    pub(super) fn release(&mut self, at: usize, entries: usize) {
        self.queues[at].leaving += entries;
    }

    /// Uses the queue at that address no more, since it has lost completions. Returns its number.
    pub(super) fn retire(&mut self, address: usize) -> Option<usize> {
        let at = self.queues.iter().position(|queue| queue.cq.address() == address)?;
        self.queues[at].is_retired = true;
        Some(at)
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.queues.len()
    }

    /// The address of a queue, as the device's reports name it.
    #[cfg(test)]
    pub(super) fn address(&self, at: usize) -> usize {
        self.queues[at].cq.address()
    }

    /// Takes in all completions that there are, at most as many as each queue holds. Returns whether that was all.
    #[inline]
    pub(super) fn take_all(&mut self, into: &mut Vec<Completed>) -> io::Result<bool> {
        let mut all = true;
        // One that has lost completions serves no endpoint any more, and may fail each time.
        for queue in self.queues.iter_mut().filter(|queue| !queue.is_retired) {
            let mut left = queue.entries;
            loop {
                let count = queue.cq.poll(into)?;
                left = left.saturating_sub(count);
                if count == 0 {
                    queue.reserved -= std::mem::take(&mut queue.leaving);
                    break;
                }
                if left == 0 {
                    all = false;
                    break;
                }
            }
        }
        Ok(all)
    }

    /// Has the next completion of each queue announced on the channel.
    pub(super) fn announce_next(&self) {
        self.queues.iter().filter(|queue| !queue.is_retired).for_each(|queue| queue.cq.announce_next());
    }
}
