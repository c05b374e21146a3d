//! The receiver's side of bulk messages: their memory, and the messages that have come.

use std::{collections::VecDeque, sync::Arc};

use squall_rdmc::{Buffer, Group};
use squall_sst::ring;

use super::{Arrivals, Arrived, reserve::Reserve};

/// The bulk messages that come from one sender.
#[derive(Debug)]
pub(super) struct Incoming {
    reserve: Reserve,
    arrivals: Arc<Arrivals>,
    /// Messages whose memory is in use, oldest first; the first has the number `first`.
    live: VecDeque<Live>,
    first: u64,
    /// The number of messages that were handed to the deliverer, the oldest first.
    held: u64,
    /// The number of messages whose turns were taken.
    with_turn: u64,
    /// Messages that are about to come and have no memory yet.
    asking: VecDeque<Asking>,
}

#[derive(Debug)]
enum Live {
    /// The group has its memory.
    Coming,
    Here {
        message: Arc<Buffer>,
        len: usize,
    },
}

#[derive(Clone, Copy, Debug)]
struct Asking {
    number: u64,
    max_bytes: usize,
}

/// A breach of the protocol by a sender, with the message that broke it.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum Breach {
    #[error(
        "its bulk message {number} takes up to {bytes} bytes, and {max} are reserved for it: its configuration differs"
    )]
    TooLarge { number: u64, bytes: usize, max: usize },
    #[error("its bulk message {0} is empty, and what is empty goes through the ring")]
    Empty(u64),
    #[error("its bulk message {number} came where {expected} was due")]
    OutOfOrder { number: u64, expected: u64 },
    #[error("it ended the transfer of its bulk messages within the view")]
    Ended,
}

impl Incoming {
    pub(super) fn new(reserve: Reserve, arrivals: Arc<Arrivals>) -> Incoming {
        let (live, asking) = (VecDeque::new(), VecDeque::new());
        Incoming { reserve, arrivals, live, first: 0, held: 0, with_turn: 0, asking }
    }

    /// Returns the number of messages that this member holds.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Returns whether a message that has a turn is the next one, and is here. If so, the one behind it is the next
    /// from then on.
    pub(super) fn is_next(&mut self, message: ring::Bulk) -> bool {
        let index = self.with_turn.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        // It stays here until it was delivered, which is after its turn was taken.
        let is_here = match index.and_then(|index| self.live.get(index)) {
            Some(Live::Here { len, .. }) => self.with_turn < self.held && *len as u64 == message.len,
            _ => false,
        };
        let is_next = is_here && message.number == self.with_turn;
        self.with_turn += u64::from(is_next);
        is_next
    }

    /// Returns whether a message waits for memory.
    pub(super) fn is_asking(&self) -> bool {
        !self.asking.is_empty()
    }

    /// Notes that a message is about to come.
    pub(super) fn ask(&mut self, number: u64, max_bytes: usize) -> Result<(), Breach> {
        let expected = self.first + (self.live.len() + self.asking.len()) as u64;
        if number != expected {
            return Err(Breach::OutOfOrder { number, expected });
        }
        // No range of the reserve is empty: it would be waited for without end.
        if max_bytes == 0 {
            return Err(Breach::Empty(number));
        }
        let max = self.reserve.capacity();
        if max_bytes > max {
            return Err(Breach::TooLarge { number, bytes: max_bytes, max });
        }
        self.asking.push_back(Asking { number, max_bytes });
        Ok(())
    }

    /// Gives memory to the messages that are about to come, and returns their number.
    ///
    /// A sender keeps the messages that some member has not delivered within the reserve, so mostly there is room at
    /// once. A message waits only where older ones are still relayed, or lie so that it finds no gap.
    pub(super) fn accept(&mut self, group: &mut Group) -> u64 {
        let mut accepted = 0;
        self.reclaim();
        while let Some(&Asking { number, max_bytes }) = self.asking.front() {
            let Some(buffer) = self.reserve.take(max_bytes) else { break };
            self.asking.pop_front();
            self.live.push_back(Live::Coming);
            if let Err(error) = group.accept(number, buffer) {
                // The group has failed, and with it this view.
                tracing::debug!(%error, number, "a bulk message is not received");
            }
            accepted += 1;
        }
        accepted
    }

    /// Reclaims memory, and lets `renew` replace the reserve's region.
    pub(super) fn tidy(&mut self, mut renew: impl FnMut(&mut Reserve)) {
        self.reclaim();
        renew(&mut self.reserve);
    }

    /// Takes back the memory of messages that were delivered and relayed.
    fn reclaim(&mut self) {
        while let Some(live) = self.live.pop_front() {
            let kept = match live {
                Live::Coming => Live::Coming,
                Live::Here { message, len } => match self.reserve.reclaim(message) {
                    Ok(()) => {
                        self.first += 1;
                        continue;
                    }
                    Err(message) => Live::Here { message, len },
                },
            };
            self.live.push_front(kept);
            break;
        }
    }

    /// Notes that a message has come, and hands the deliverer all that are next in order.
    pub(super) fn received(&mut self, number: u64, message: Arc<Buffer>, len: usize) -> Result<(), Breach> {
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        match index.and_then(|index| self.live.get_mut(index)) {
            Some(live @ Live::Coming) => *live = Live::Here { message, len },
            _ => return Err(Breach::OutOfOrder { number, expected: self.held }),
        }
        while let Some(Live::Here { message, len }) = self.live.get((self.held - self.first) as usize) {
            self.arrivals.push(Arrived { number: self.held, message: Arc::clone(message), len: *len });
            self.held += 1;
        }
        Ok(())
    }
}
