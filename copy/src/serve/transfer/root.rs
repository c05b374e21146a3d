//! The sending of segments in the source's place, to receivers that came late.

use std::{collections::VecDeque, sync::Arc};

use squall_rdmc::Buffer;

use super::{
    super::super::pool::SegmentRead,
    super::{abort::Abort, writer::WriterTask},
    Transfer,
};

/// The segments of a group in which this receiver sends.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// The next segment to be read.
    next_read: u64,
    /// The segments that are being sent, in order.
    sending: VecDeque<Arc<Buffer>>,
}

impl Outgoing {
    pub(super) fn new(first: u64) -> Outgoing {
        Outgoing { next_read: first, sending: VecDeque::new() }
    }

    /// Returns the first segment that was being sent: it is sent.
    pub(super) fn released(&mut self) -> Option<Arc<Buffer>> {
        self.sending.pop_front()
    }

    /// Returns the segments that were being sent when the group ended.
    pub(super) fn rest(self) -> VecDeque<Arc<Buffer>> {
        self.sending
    }
}

impl Transfer<'_> {
    /// Reads the next segments, as far as there is memory and the rate permits.
    pub(super) fn read_ahead(&mut self) -> Result<(), Abort> {
        let (Some(current), Some(accepted)) = (&mut self.current, &mut self.accepted) else { return Ok(()) };
        let Some(outgoing) = &mut current.outgoing else { return Ok(()) };
        while outgoing.next_read < current.join.end && accepted.pace.wait().is_zero() {
            let taken = accepted.pool.take(self.bulk.fabric(), accepted.partials.len());
            let Some(buffer) = taken.map_err(|error| Abort::Failed(error.to_string()))? else { return Ok(()) };
            let segment = outgoing.next_read;
            let read = SegmentRead { segment, len: accepted.layout.len(segment), buffer, attempt: current.id.instance };
            accepted.pace.spend(read.len);
            accepted.writer.worker.order(WriterTask::Read(read));
            outgoing.next_read += 1;
        }
        Ok(())
    }

    /// Sends a segment, or ends the group if it could not be read.
    pub(super) fn send(&mut self, read: SegmentRead, there: Result<(), String>) -> Result<(), Abort> {
        let SegmentRead { segment, len, buffer, attempt } = read;
        let (current, me) = (self.current.as_mut().filter(|current| current.id.instance == attempt), self.me);
        let accepted = self.accepted.as_mut().expect("a segment belongs to a transfer");
        let Some((current, reason)) = current.map(|current| (current, there.err())) else {
            accepted.pool.give(buffer);
            return Ok(());
        };
        if let Some(reason) = reason {
            accepted.pool.give(buffer);
            return self.over(Some((Some(me), reason)));
        }
        let (Some(outgoing), Some(group)) = (&mut current.outgoing, self.bulk.group(current.id)) else {
            accepted.pool.give(buffer);
            return Ok(());
        };
        let buffer = Arc::new(buffer);
        outgoing.sending.push_back(Arc::clone(&buffer));
        let sent = group.send(buffer, len);
        let is_last = segment + 1 == current.join.end;
        if let Err(error) = sent.and_then(|_| if is_last { group.destroy() } else { Ok(()) }) {
            // The group has failed, and will report that.
            tracing::debug!(%error, "a segment came too late");
        }
        Ok(())
    }
}
