//! The group that a receiver is in, and what has come of segments that are not whole.

use std::{collections::VecDeque, sync::Arc};

use squall_rdmc::{BlockSet, Buffer, CreateError, Event, GroupId, Interrupted};

use super::{
    super::super::{
        control::{Join, Over, ToSource},
        pool::Pool,
    },
    super::{abort::Abort, writer::WriterTask},
    Accepted, Transfer,
    root::Outgoing,
};

/// The number of segments that a receiver has in memory, besides the interrupted ones.
const BUFFERS: usize = 3;

/// Blocks of a segment that is not whole.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) held: BlockSet,
    pub(super) buffer: Arc<Buffer>,
}

/// The group that this receiver is in.
pub(super) struct JoinedGroup {
    pub(super) id: GroupId,
    pub(super) join: Join,
    /// The number of its messages for which memory was given.
    pub(super) given: u64,
    /// The number of buffers that are in the group, and have not come back as a whole message.
    pub(super) inside: usize,
    /// Messages that have begun to arrive, and wait for memory.
    pub(super) waiting: VecDeque<u64>,
    /// The segments that this receiver sends, if it does so in the source's place.
    pub(super) outgoing: Option<Outgoing>,
}

impl Transfer<'_> {
    fn join(&mut self, join: Join) -> Result<(), Abort> {
        let (id, me) = (join.id(), self.me);
        let Accepted { layout, received, segment_bytes, block_bytes, .. } = self.accepted();
        *received = layout.next_for(me, *received);
        let sends = join.members.first() == Some(&me);
        let is_next = if sends { !join.partial && join.end <= *received } else { join.first == *received };
        let fits = is_next && join.first < join.end && join.end <= layout.part_end(join.first);
        let (largest, before) = (*segment_bytes, *block_bytes as u64);
        let is_size = (1..=largest as u64).contains(&join.block_bytes) && [0, join.block_bytes].contains(&before);
        if !fits || (join.partial && join.end != join.first + 1) || !is_size {
            let Join { first, end, block_bytes, .. } = join;
            return Err(Abort::Breach(format!(
                "segments {first}..{end} in blocks of {block_bytes} bytes can't come next"
            )));
        }
        let Some(config) = join.config() else {
            return Err(Abort::Failed(format!("it knows no algorithm {:?}: update it", join.algorithm.name)));
        };
        let block_bytes = join.block_bytes as usize;
        let accepted = self.accepted();
        if before == 0 {
            accepted.block_bytes = block_bytes;
            accepted.pool = Pool::new(largest.next_multiple_of(block_bytes), BUFFERS);
        }
        let message = if join.partial { self.interrupted(&join)? } else { None };
        if join.partial && message.is_none() {
            // The writer will give a buffer back, and the others wait.
            self.next = Some(join);
            return Ok(());
        }
        tracing::debug!(?id, first = join.first, end = join.end, "joins a group");
        let given = u64::from(message.is_some());
        let outgoing = sends.then(|| Outgoing::new(join.first));
        let (inside, waiting) = (given as usize, VecDeque::new());
        self.current = Some(JoinedGroup { id, given, inside, waiting, outgoing, join });
        let created = match message {
            Some(message) => self.bulk.resume(config, message),
            None => self.bulk.create(config),
        };
        created.or_else(|error: CreateError| self.over(Some((None, error.to_string()))))
    }

    /// Returns the received part of an interrupted segment; None if there is no memory for it now.
    fn interrupted(&mut self, join: &Join) -> Result<Option<Interrupted>, Abort> {
        let accepted = self.accepted.as_mut().expect("a group belongs to a transfer");
        let len = accepted.layout.len(join.first);
        let blocks = len.div_ceil(accepted.block_bytes).max(1) as u32;
        let partial = match accepted.partials.remove(&join.first) {
            Some(partial) => Some(partial),
            None => {
                let taken = accepted.pool.take(self.bulk.fabric(), accepted.partials.len());
                let buffer = taken.map_err(|error| Abort::Failed(error.to_string()))?;
                buffer.map(|buffer| Partial { held: BlockSet::new(blocks), buffer: Arc::new(buffer) })
            }
        };
        Ok(partial.map(|Partial { held, buffer }| {
            let buffer = Some(buffer);
            Interrupted { message: join.first, blocks, len: Some(len), held, buffer }
        }))
    }

    pub(super) fn on_event(&mut self, id: GroupId, event: Event) -> Result<(), Abort> {
        let Some(current) = self.current.as_mut().filter(|current| current.id == id) else { return Ok(()) };
        let accepted = self.accepted.as_mut().expect("a group belongs to a transfer");
        match event {
            Event::Connected => Ok(()),
            Event::Incoming { message, .. } => {
                current.waiting.push_back(message);
                Ok(())
            }
            Event::Received { buffer, len, .. } => {
                let segment = accepted.received;
                if segment >= current.join.end {
                    return Err(Abort::Breach("it sent more than it had announced".to_owned()));
                }
                current.inside -= 1;
                accepted.received += 1;
                if let Some(Partial { buffer, .. }) = accepted.partials.remove(&segment) {
                    // The segment came again from the first block.
                    accepted.pool.give_shared(buffer);
                }
                accepted.writer.worker.order(WriterTask::Write { segment, buffer, len });
                Ok(())
            }
            Event::Released { .. } => {
                // Those of received segments come back through the writer.
                let sent = current.outgoing.as_mut().and_then(Outgoing::released);
                sent.into_iter().for_each(|buffer| accepted.pool.give_shared(buffer));
                Ok(())
            }
            Event::Failed(failure) => {
                let why = (failure.suspect.map(|node| node.0), failure.reason.clone());
                self.keep(failure.interrupted);
                self.over(Some(why))
            }
            Event::Destroyed => self.over(None),
        }
    }

    /// Keeps the blocks of messages that are not whole.
    pub(super) fn keep(&mut self, interrupted: Vec<Interrupted>) {
        let (Some(current), Some(accepted)) = (&mut self.current, &mut self.accepted) else { return };
        for Interrupted { message, held, buffer, .. } in interrupted {
            let segment = if current.join.partial { message } else { current.join.first + message };
            if let Some(buffer) = buffer.filter(|_| segment >= accepted.received && segment < current.join.end) {
                current.inside -= 1;
                if held.count() > 0 {
                    accepted.partials.insert(segment, Partial { held, buffer });
                } else {
                    accepted.pool.give_shared(buffer);
                }
            }
        }
    }

    /// Leaves a group, or does not join it, as the source asks.
    pub(super) fn end_group(&mut self, instance: u64) -> Result<(), Abort> {
        let failure = Some((None, "the source ended it".to_owned()));
        if let Some(current) = self.current.as_ref().filter(|current| current.id.instance == instance) {
            let interrupted = self.bulk.remove(current.id);
            self.keep(interrupted);
            return self.over(failure);
        }
        match self.next.take_if(|next| next.instance == instance) {
            Some(_) => self.say_over(instance, failure),
            None => Ok(()),
        }
    }

    /// Handles the end of the current group.
    pub(super) fn over(&mut self, failure: Option<(Option<u32>, String)>) -> Result<(), Abort> {
        let Some(current) = self.current.take() else { return Ok(()) };
        self.bulk.remove(current.id);
        let accepted = self.accepted();
        accepted.pool.lost(current.inside);
        let sending = current.outgoing.into_iter().flat_map(Outgoing::rest);
        sending.for_each(|buffer| accepted.pool.give_shared(buffer));
        if let Some((suspect, reason)) = &failure {
            tracing::info!(instance = current.id.instance, ?suspect, reason, "a group failed");
        }
        self.say_over(current.id.instance, failure)
    }

    fn say_over(&mut self, instance: u64, failure: Option<(Option<u32>, String)>) -> Result<(), Abort> {
        let holding = self.holding();
        let over = Over { instance, holding, failure };
        self.say(&ToSource::Over(over)).map_err(Abort::Gone)
    }

    /// Gives the group memory for the messages to come.
    pub(super) fn supply(&mut self) -> Result<(), Abort> {
        if self.current.is_none()
            && let Some(join) = self.next.take()
        {
            self.join(join)?;
        }
        if self.current.as_ref().is_some_and(|current| current.outgoing.is_some()) {
            return self.read_ahead();
        }
        let (Some(current), Some(accepted)) = (&mut self.current, &mut self.accepted) else { return Ok(()) };
        let messages = current.join.end - current.join.first;
        while current.given < messages {
            let taken = accepted.pool.take(self.bulk.fabric(), accepted.partials.len());
            let Some(buffer) = taken.map_err(|error| Abort::Failed(error.to_string()))? else { return Ok(()) };
            let Some(group) = self.bulk.group(current.id) else { return Ok(()) };
            match current.waiting.pop_front() {
                Some(message) => {
                    if let Err(error) = group.accept(message, buffer) {
                        // The group has failed, and will report that.
                        tracing::debug!(%error, "memory came too late");
                        accepted.pool.lost(1);
                        return Ok(());
                    }
                }
                None => group.provide(buffer),
            }
            current.given += 1;
            current.inside += 1;
        }
        Ok(())
    }
}
