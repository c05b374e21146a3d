//! The application of messages to a replica, or to its backlog.

use squall_ordered::{Deliver, Message, Payload, log::Hlc};

use crate::{
    capture::state::Frontier,
    delivery::{apply_context::ApplyContext, backlog::Backlog},
    replica::{
        replicated::Stamp,
        service::{Service, settled},
    },
};

/// The latest time that a message may have, in the year 2262. A later time of a faulty sender's clock is cut to it,
/// since there must be room for the times of the messages behind.
const LATEST: Hlc = Hlc(u64::MAX / 2);

/// Applies messages to a complete replica.
pub(super) struct Apply<'a, S: Service> {
    pub(super) service: &'a mut S,
    pub(super) context: &'a mut ApplyContext<S>,
}

/// Applies messages that the replica does not include yet, as long as it is ahead of the deliverer.
pub(super) struct SkipApplied<'a, S: Service> {
    pub(super) ahead: &'a Frontier,
    pub(super) apply: Apply<'a, S>,
}

/// Puts messages into the backlog, as long as the replica lacks its state.
pub(super) struct FillBacklog<'a> {
    pub(super) backlog: &'a mut Backlog,
    pub(super) overflowed: bool,
}

impl<S: Service> Deliver for Apply<'_, S> {
    // Inlined into the deliverer's loop, which nearly all messages pass; `SkipApplied` is rare, and short-lived.
    #[inline(always)]
    fn deliver(&mut self, message: Message<'_>) {
        let Apply { service, context } = self;
        let sent = message.time.min(LATEST);
        if context.durable.is_some() {
            return self.deliver_logged(message, sent);
        }
        let time = context.time_of(sent);
        let result = context.apply(*service, &message, Stamp { time, version: None });
        if message.ticket != 0 {
            context.shared.complete(message.ticket, result, |waker| context.wakers.push(waker));
        }
    }

    fn answer(&mut self, count: u64) {
        let Apply { service, context } = self;
        context.reads.take(count, &mut context.jobs);
        context.answer_reads(service);
    }

    fn has_room(&mut self) -> bool {
        self.context.durable.as_ref().is_none_or(|durable| durable.log_writer.append().has_room())
    }

    fn globally_persisted(&mut self, version: u64) {
        self.context.release(version);
        self.service.globally_persisted(version);
    }
}

impl<S: Service> Apply<'_, S> {
    /// Appends a durable group's message to the log, applies it, and holds the reply.
    #[inline(never)]
    fn deliver_logged(&mut self, message: Message<'_>, sent: Hlc) {
        let Apply { service, context } = self;
        let mut incoming = std::mem::take(&mut context.incoming);
        // Read once, so that the log and the replica get the same bytes, whatever a faulty sender does meanwhile.
        let kept = settled(&message.payload, &mut incoming);
        let instead = service.logged_as(kept);
        if let Some(end) = context.append(&message, sent, instead.as_deref().unwrap_or(kept)) {
            context.time = end.time;
            let kept = Message { payload: Payload::settled(kept), ..message };
            let result = context.apply(*service, &kept, Stamp::logged(end));
            if let Some(durable) = context.durable.as_mut().filter(|_| message.ticket != 0) {
                durable.replies.push_back((end.version, message.ticket, result));
            }
        }
        context.incoming = incoming;
    }
}

impl<S: Service> Deliver for SkipApplied<'_, S> {
    fn deliver(&mut self, message: Message<'_>) {
        if !self.ahead.includes(message.epoch, message.seq) {
            self.apply.deliver(message);
        }
    }

    fn answer(&mut self, count: u64) {
        self.apply.answer(count);
    }

    fn has_room(&mut self) -> bool {
        self.apply.has_room()
    }

    fn globally_persisted(&mut self, version: u64) {
        self.apply.globally_persisted(version);
    }
}

impl Deliver for FillBacklog<'_> {
    fn deliver(&mut self, message: Message<'_>) {
        self.overflowed |= !self.backlog.push(&message);
    }

    fn answer(&mut self, _count: u64) {
        unreachable!("no reads are counted before the replica has its state");
    }
}
