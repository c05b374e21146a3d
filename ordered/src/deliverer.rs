//! The part of a shard that runs the application.

use std::sync::Arc;

use squall_fabric::{NodeId, Region};
use squall_membership::{Epoch, Seq, ShardView};
use squall_sst::ring::{self, Fault, Reader, Ring, Tag, Turn};

use crate::{
    Payload, Persisted,
    bulk::{Arrivals, Arrived},
    config::Mode,
    log::Hlc,
    order,
    progress::Progress,
};

/// A message that is to be delivered.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The view in which it was ordered.
    pub epoch: Epoch,
    /// Its place in that view's order. In unordered mode, the place that it would have.
    pub seq: Seq,
    /// The sender.
    pub sender: NodeId,
    /// The time at which its sender sent it, or that of a message ahead of it where that is later. A faulty sender may
    /// say anything.
    pub time: Hlc,
    /// Its bytes.
    pub payload: Payload<'a>,
    /// The ticket that the sender gave with it, if the sender is this node; else 0.
    pub ticket: u32,
}

/// The application, as a shard sees it.
pub trait Deliver {
    /// Applies a message. Its bytes are not used after this returns.
    fn deliver(&mut self, message: Message<'_>);

    /// Answers the oldest `count` reads that wait, from the state as it is now. In durable mode, an answer that was
    /// read at a version must not go out before that version [is globally persisted](Deliver::globally_persisted).
    fn answer(&mut self, count: u64);

    /// Durable mode, asked before each turn: returns whether the log's buffer has room for a message of any size. If
    /// not, nothing is delivered until more [is persisted](Persisted::set). So every message that was delivered and is
    /// not persisted counts against the room, whether it is being written or not.
    fn has_room(&mut self) -> bool {
        true
    }

    /// Durable mode: takes note that all members have the messages up to this version on disk, so their replies may go
    /// out. The version only grows.
    fn globally_persisted(&mut self, _version: u64) {}
}

/// The work that a [`Deliverer::run`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// The number of messages that were delivered. Nulls do not count.
    pub messages: usize,
    /// The number of reads that were answered.
    pub reads: u64,
    /// Whether there is more to do at once.
    pub more: bool,
}

/// An error that ends the delivery of a sender's messages: it has changed them after they were found to be good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{sender} sent what is no message: {cause}")]
pub struct DeliverError {
    /// The faulty sender.
    pub sender: NodeId,
    /// The sender's fault.
    pub cause: Fault,
}

/// The memory in which a deliverer finds the messages of all senders, by rank.
pub(crate) struct Inboxes<'a> {
    pub(crate) rings: &'a [Region],
    pub(crate) own: Option<Arc<Ring>>,
    pub(crate) bulk: Vec<Arc<Arrivals>>,
}

/// The part of a shard that walks the order as far as messages may be delivered.
#[derive(Debug)]
pub struct Deliverer {
    epoch: Epoch,
    mode: Mode,
    senders: Vec<Sender>,
    progress: Arc<Progress>,
    answered: u64,
    /// Ordered and durable: the next place in the order. `turn_of` is the rank of the sender whose turn it is.
    next: u64,
    turn_of: usize,
    /// Durable: the version of the message that was delivered last.
    version: Option<u64>,
    /// Durable: the version up to which the application was told that all is globally persisted.
    told: u64,
}

#[derive(Debug)]
struct Sender {
    node: NodeId,
    reader: Reader,
    /// The bulk messages that came, and that have or will have a turn.
    bulk: Arc<Arrivals>,
    /// The turns of a run of nulls that are still to come.
    nulls: u64,
    /// Unordered: the number of turns that were delivered or passed over.
    turns: u64,
}

impl Deliverer {
    pub(crate) fn new(
        epoch: Epoch,
        members: &ShardView,
        mode: Mode,
        inboxes: Inboxes<'_>,
        progress: Arc<Progress>,
    ) -> Deliverer {
        let Inboxes { rings, own, bulk } = inboxes;
        let reader = |region: &Region| match &own {
            Some(ring) if ring.memory().key() == region.key() => Reader::of_own(Arc::clone(ring)),
            _ => Reader::of_copy(region.clone()),
        };
        let senders = members
            .senders
            .iter()
            .zip(rings)
            .zip(bulk)
            .map(|((&node, ring), bulk)| Sender { node, reader: reader(ring), bulk, nulls: 0, turns: 0 })
            .collect();
        Deliverer { epoch, mode, senders, progress, answered: 0, next: 0, turn_of: 0, version: None, told: 0 }
    }

    /// Returns, by rank, the number of turns of each sender that were delivered or passed over as nulls.
    pub fn turns(&self) -> Vec<u64> {
        let senders = self.senders.len();
        match self.mode {
            Mode::Ordered | Mode::Durable => (0..senders).map(|s| order::turns_within(senders, s, self.next)).collect(),
            Mode::Unordered => self.senders.iter().map(|sender| sender.turns).collect(),
        }
    }

    /// Returns the epoch of the view in whose order it delivers.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Durable mode: counts versions from here on. The messages delivered so far, in this view and all before it, go up
    /// to `version`; the log is given all of them, and all that follow.
    ///
    /// Called once in each view. A member that is complete calls it before anything is delivered; another member, when
    /// its state has come as far as its deliverer. From then on, and once `version` [is persisted](Persisted::set), the
    /// member counts: nothing more becomes [globally persisted](Deliver::globally_persisted) that is not on its disk.
    ///
    /// # Panics
    ///
    /// If it has begun.
    pub fn begin(&mut self, version: u64) {
        assert_eq!(self.version, None, "versions are counted from one place in a view");
        self.version = Some(version);
        self.progress.versions.begin(version);
    }

    /// Durable mode: returns the version of the message that was delivered last, once it [has begun](Deliverer::begin).
    /// After a [run](Deliverer::run), all reads that it answered saw the state of this version.
    pub fn version(&self) -> Option<u64> {
        self.version
    }

    /// Durable mode: returns the handle through which the thread that writes the log publishes the persisted version.
    pub fn persisted(&self) -> Persisted {
        Persisted::new(self.epoch, Arc::clone(&self.progress))
    }

    /// Returns whether a run would do anything.
    pub fn is_due(&self) -> bool {
        let due = match self.mode {
            Mode::Ordered => self.next < self.progress.limit(0),
            Mode::Durable => {
                let versions = &self.progress.versions;
                (self.next < self.progress.limit(0) && !versions.is_full()) || self.told < versions.globally_persisted()
            }
            Mode::Unordered => self.senders.iter().enumerate().any(|(s, sender)| sender.turns < self.progress.limit(s)),
        };
        due || self.answered < self.progress.answerable()
    }

    /// Delivers what may be delivered, about `max` turns at most, answers the reads that may be answered, and publishes
    /// its place in the order.
    ///
    /// After an error the deliverer must not be run again.
    pub fn run<D: Deliver>(&mut self, max: usize, application: &mut D) -> Result<Ran, DeliverError> {
        let mut ran = match self.mode {
            Mode::Ordered => self.run_ordered(max, application)?,
            Mode::Durable => self.run_durable(max, application)?,
            Mode::Unordered => self.run_unordered(max, application)?,
        };
        // A read is answerable for a state that this one includes.
        let answerable = self.progress.answerable();
        if answerable > self.answered {
            ran.reads = answerable - self.answered;
            application.answer(ran.reads);
            self.answered = answerable;
        }
        if self.mode == Mode::Durable {
            let globally_persisted = self.progress.versions.globally_persisted();
            if globally_persisted > self.told {
                self.told = globally_persisted;
                application.globally_persisted(globally_persisted);
            }
        }
        Ok(ran)
    }

    /// Ordered mode: delivers up to a place in the order, though it may not be stable, and publishes nothing of it.
    ///
    /// For a member that was dropped, once it is decided that the shard goes on with the messages that this member has
    /// received. They must reach this place.
    ///
    /// After an error the deliverer must not be run again.
    pub fn run_to<D: Deliver>(&mut self, end: Seq, application: &mut D) -> Result<(), DeliverError> {
        let mut messages = 0;
        while self.mode == Mode::Ordered && self.next < end.0 {
            self.take(application, &mut messages)?;
        }
        Ok(())
    }

    fn run_ordered<D: Deliver>(&mut self, max: usize, application: &mut D) -> Result<Ran, DeliverError> {
        let mut ran = Ran::default();
        let limit = self.progress.limit(0);
        let end = limit.min(self.next.saturating_add(max as u64));
        let mut result = Ok(());
        while self.next < end {
            result = self.take(application, &mut ran.messages);
            if result.is_err() {
                break;
            }
        }
        self.publish();
        ran.more = self.next < limit;
        result.map(|()| ran)
    }

    fn run_durable<D: Deliver>(&mut self, max: usize, application: &mut D) -> Result<Ran, DeliverError> {
        let mut ran = Ran::default();
        let limit = self.progress.limit(0);
        let end = limit.min(self.next.saturating_add(max as u64));
        let (mut result, mut full_at) = (Ok(()), None);
        while self.next < end && result.is_ok() {
            // Loaded before the application is asked: the application may not have seen the room that comes with a
            // later version.
            let persisted = self.progress.versions.persisted();
            if !application.has_room() {
                full_at = Some(persisted);
                break;
            }
            result = self.take(application, &mut ran.messages);
        }
        self.progress.versions.set_full(full_at);
        if let Some(version) = &mut self.version {
            *version += ran.messages as u64;
            self.progress.versions.set_applied(*version);
        }
        self.publish();
        ran.more = self.next < limit && !self.progress.versions.is_full();
        result.map(|()| ran)
    }

    /// Publishes how far it has come in the order, and in each ring.
    fn publish(&self) {
        for (s, sender) in self.senders.iter().enumerate() {
            self.progress.set_read(s, sender.reader.position());
        }
        self.progress.set_delivered(0, self.next);
    }

    /// Takes the order's next turn.
    #[inline(always)]
    fn take<D: Deliver>(&mut self, application: &mut D, messages: &mut usize) -> Result<(), DeliverError> {
        self.senders[self.turn_of].take(self.epoch, Seq(self.next), application, messages)?;
        self.next += 1;
        self.turn_of += 1;
        if self.turn_of == self.senders.len() {
            self.turn_of = 0;
        }
        Ok(())
    }

    fn run_unordered<D: Deliver>(&mut self, max: usize, application: &mut D) -> Result<Ran, DeliverError> {
        let mut ran = Ran::default();
        let senders = self.senders.len();
        for (s, sender) in self.senders.iter_mut().enumerate() {
            let limit = self.progress.limit(s);
            let end = limit.min(sender.turns.saturating_add(max.div_ceil(senders) as u64));
            let mut result = Ok(());
            while sender.turns < end && result.is_ok() {
                let seq = Seq(sender.turns.saturating_mul(senders as u64).saturating_add(s as u64));
                result = sender.take(self.epoch, seq, application, &mut ran.messages);
                sender.turns += u64::from(result.is_ok());
            }
            self.progress.set_read(s, sender.reader.position());
            self.progress.set_delivered(s, sender.turns);
            ran.more |= sender.turns < limit;
            result?;
        }
        Ok(ran)
    }
}

impl Sender {
    /// Takes the sender's next turn.
    #[inline]
    fn take<D: Deliver>(
        &mut self,
        epoch: Epoch,
        seq: Seq,
        application: &mut D,
        messages: &mut usize,
    ) -> Result<(), DeliverError> {
        if self.nulls > 0 {
            self.nulls -= 1;
            return Ok(());
        }
        // Declared here, so that a bulk message's memory goes back when this function returns, before the message
        // counts as delivered.
        let arrived;
        let (payload, tag) = match self.reader.next_turn() {
            Ok(Turn::Message(payload, tag)) => (Payload::in_ring(payload), tag),
            Ok(Turn::Nulls(more)) => {
                self.nulls = more;
                return Ok(());
            }
            Ok(Turn::Bulk(bulk, tag)) => {
                arrived = take_bulk(&self.bulk, bulk).map_err(|cause| DeliverError { sender: self.node, cause })?;
                (Payload::settled(arrived.bytes()), tag)
            }
            Err(cause) => return Err(DeliverError { sender: self.node, cause: cause.into() }),
        };
        // Called in one place, so that it is compiled into this function.
        let Tag { ticket, time } = tag;
        application.deliver(Message { epoch, seq, sender: self.node, time: Hlc(time), payload, ticket });
        *messages += 1;
        Ok(())
    }
}

/// Returns the bulk message that came next, if it is the one that has the turn.
#[cold]
fn take_bulk(arrivals: &Arrivals, bulk: ring::Bulk) -> Result<Arrived, Fault> {
    let fits = |arrived: &Arrived| arrived.number == bulk.number && arrived.len as u64 == bulk.len;
    arrivals.pop().filter(fits).ok_or(Fault::Bulk { number: bulk.number, bytes: bulk.len })
}

#[cfg(test)]
mod tests {
    use squall_fabric::{RegionKey, RegionKind};
    use squall_membership::ShardId;

    use super::*;

    struct Nobody;

    impl Deliver for Nobody {
        fn deliver(&mut self, _message: Message<'_>) {}

        fn answer(&mut self, _count: u64) {}
    }

    fn arrived(number: u64, len: usize) -> Arrived {
        let region = Region::heap(RegionKind::Bulk, RegionKey(2), 64);
        // SAFETY: nothing else knows the region.
        let message = Arc::new(unsafe { squall_rdmc::Buffer::part(region, 0, 64) });
        Arrived { number, message, len }
    }

    #[test]
    fn a_bulk_message_must_be_the_next_that_came() {
        let announced = ring::Bulk { number: 3, len: 10 };
        for (came, fits) in [(None, false), (Some((3, 10)), true), (Some((2, 10)), false), (Some((3, 11)), false)] {
            let region = Region::heap(RegionKind::Polled, RegionKey(1), 1024);
            let ring = Arc::new(Ring::new(region.clone(), 1024));
            ring.push_bulk(announced, Tag::default()).expect("it is empty");
            let (node, arrivals, progress) = (NodeId(1), Arc::new(Arrivals::new()), Arc::new(Progress::new(1)));
            let members = ShardView::whole(ShardId(0), vec![node], vec![node]);
            let inboxes = Inboxes { rings: &[region], own: Some(ring), bulk: vec![Arc::clone(&arrivals)] };
            let mut deliverer = Deliverer::new(Epoch::FIRST, &members, Mode::Ordered, inboxes, Arc::clone(&progress));
            came.into_iter().for_each(|(number, len)| arrivals.push(arrived(number, len)));
            progress.set_limit(0, 1);
            let fault = Fault::Bulk { number: 3, bytes: 10 };
            let expected = if fits { Ok(1) } else { Err(DeliverError { sender: node, cause: fault }) };
            assert_eq!(deliverer.run(9, &mut Nobody).map(|ran| ran.messages), expected, "{came:?}");
        }
    }
}
