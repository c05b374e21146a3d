//! Posting work: the checks, and the frames that work becomes.

use super::{
    endpoint::{Endpoint, Pending, Until, Up},
    frame::{Header, Kind},
    stats::TcpStats,
};
use crate::{
    BreakReason, Op, PostError, RegionKind, RemoteRegion, Source, Target, Token,
    check::{check_op, check_slice},
    region::PeerAccess,
};

impl Endpoint {
    /// Posts work: nothing is sent before the next poll.
    #[inline]
    pub(super) fn post(
        &mut self,
        depth: usize,
        stats: &mut TcpStats,
        op: Op<'_>,
        token: Token,
    ) -> Result<(), PostError> {
        if let Op::Recv { into } = op {
            return self.recvs.post(depth, into, token);
        }
        let up = self.up.as_mut().ok_or(PostError::NotConnected)?;
        check_op(op, check_slice, |key| up.remote(key).map(|region| region.kind))?;
        if up.pending.len() >= depth {
            up.was_full = true;
            return Err(PostError::Full);
        }
        let until = match up.can_reach(op) {
            // Work behind it is flushed with it.
            _ if up.breaking.is_some() => Until::Never,
            false => {
                up.breaking = Some(BreakReason::Access);
                Until::Never
            }
            true => up.queue(op, stats),
        };
        up.pending.push_back(Pending { token, until });
        Ok(())
    }
}

impl Up {
    /// Whether work keeps to the regions that the peer exposed. (The peer checks, too; but an error that is found here
    /// does no harm there.)
    #[inline]
    fn can_reach(&self, op: Op<'_>) -> bool {
        let admits = |access: PeerAccess, target: Target, len: usize| {
            len == 0 || self.remote(target.region).is_some_and(|region| region.admits(access, target.offset, len))
        };
        let takes = |target: Target, len: usize| admits(PeerAccess::Write, target, len);
        match op {
            Op::Write { source, target } | Op::WriteWithImm { source, target, .. } => takes(target, source.len()),
            Op::WriteThenWord { source, target, word_target, .. } => {
                let polled = |region: &RemoteRegion| region.kind == RegionKind::Polled;
                takes(target, source.len())
                    && takes(word_target, 8)
                    && self.remote(word_target.region).is_some_and(polled)
            }
            Op::Read { from, into } => admits(PeerAccess::Read, from, into.len),
            Op::Send { .. } | Op::Recv { .. } => true,
        }
    }

    /// Appends work to the stream.
    #[inline]
    fn queue(&mut self, op: Op<'_>, stats: &mut TcpStats) -> Until {
        stats.frames_sent += 1;
        let (kind, source) = match op {
            Op::Write { source, target } | Op::WriteThenWord { source, target, .. } => (Kind::Write(target), source),
            Op::WriteWithImm { source, target, imm } => (Kind::WriteWithImm(target, imm), source),
            Op::Send { source, imm } => (imm.map_or(Kind::Send, Kind::SendWithImm), source),
            Op::Read { from, into } => {
                self.send_queue.push(&Header { kind: Kind::Read(from), len: into.len }, Source::Inline(&[]));
                self.reads.push_back(into.into());
                return Until::Answered;
            }
            Op::Recv { .. } => unreachable!("a receive goes nowhere"),
        };
        self.send_queue.push(&Header { kind, len: source.len() }, source);
        if let Op::WriteThenWord { word, word_target, .. } = op {
            stats.frames_sent += 1;
            // A word has its poster's byte order, as all words of a region.
            let word = word.to_ne_bytes();
            self.send_queue.push(&Header { kind: Kind::Write(word_target), len: 8 }, Source::Inline(&word));
        }
        Until::Sent(self.send_queue.queued())
    }

    /// Queues the answers that the peer asked for.
    pub(super) fn answer(&mut self, stats: &mut TcpStats) {
        for from in self.asked.drain(..) {
            let source = from.as_ref().map_or(Source::Inline(&[]), |from| Source::Region(from.slice()));
            self.send_queue.push(&Header { kind: Kind::Answer, len: source.len() }, source);
            self.answers.push_back(self.send_queue.queued());
            stats.frames_sent += 1;
        }
    }
}
