//! Posting work: the checks, and the frames that work becomes.

use super::{
    endpoint::{Endpoint, Pending, ReadInto, Recv, Until, Up},
    frame::{Header, Kind},
    stats::TcpStats,
};
use crate::{
    BreakReason, Op, PostError, RegionKind, Slice, Source, Target, Token,
    check::{check_slice, check_source, check_words},
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
            return self.post_recv(depth, into, token);
        }
        let up = self.up.as_mut().ok_or(PostError::NotConnected)?;
        up.check(op)?;
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

    fn post_recv(&mut self, depth: usize, into: Slice<'_>, token: Token) -> Result<(), PostError> {
        check_slice(into)?;
        if self.recvs.len() >= depth {
            self.recv_was_full = true;
            return Err(PostError::Full);
        }
        self.recvs.push_back(Recv { region: into.region.clone(), offset: into.offset, len: into.len, token });
        Ok(())
    }
}

impl Up {
    #[inline]
    fn check(&self, op: Op<'_>) -> Result<(), PostError> {
        match op {
            Op::Write { source, target } | Op::WriteWithImm { source, target, .. } => {
                check_source(source)?;
                self.check_target(target, source.len())
            }
            Op::WriteThenWord { source, target, word_target, .. } => {
                check_words(true, word_target.offset, 8)?;
                check_source(source)?;
                self.check_target(target, source.len())
            }
            Op::Send { source, .. } => check_source(source),
            Op::Read { from, into } => {
                check_slice(into)?;
                self.check_target(from, into.len)
            }
            Op::Recv { .. } => Ok(()),
        }
    }

    /// Checks the alignment of a target. An unknown key passes: it breaks the endpoint instead.
    #[inline]
    fn check_target(&self, target: Target, len: usize) -> Result<(), PostError> {
        let polled = self.remote(target.region).is_some_and(|region| region.kind == RegionKind::Polled);
        check_words(polled, target.offset, len)
    }

    /// Whether work keeps to the regions that the peer exposed. (The peer checks, too; but an error that is found here
    /// does no harm there.)
    #[inline]
    fn can_reach(&self, op: Op<'_>) -> bool {
        let holds = |target: Target, len: usize| {
            len == 0
                || self
                    .remote(target.region)
                    .is_some_and(|region| target.offset <= region.bytes && len <= region.bytes - target.offset)
        };
        match op {
            Op::Write { source, target } | Op::WriteWithImm { source, target, .. } => holds(target, source.len()),
            Op::WriteThenWord { source, target, word_target, .. } => {
                let polled = |region: &crate::RemoteRegion| region.kind == RegionKind::Polled;
                holds(target, source.len())
                    && holds(word_target, 8)
                    && self.remote(word_target.region).is_some_and(polled)
            }
            Op::Read { from, into } => holds(from, into.len),
            Op::Send { .. } | Op::Recv { .. } => true,
        }
    }

    /// Appends work to the stream.
    #[inline]
    fn queue(&mut self, op: Op<'_>, stats: &mut TcpStats) -> Until {
        let outgoing = &mut self.outgoing;
        stats.frames_sent += 1;
        match op {
            Op::Write { source, target } => {
                outgoing.push(&Header { kind: Kind::Write(target), len: source.len() }, source);
            }
            Op::WriteWithImm { source, target, imm } => {
                outgoing.push(&Header { kind: Kind::WriteWithImm(target, imm), len: source.len() }, source);
            }
            Op::WriteThenWord { source, target, word, word_target } => {
                stats.frames_sent += 1;
                outgoing.push(&Header { kind: Kind::Write(target), len: source.len() }, source);
                // A word has its poster's byte order, as all words of a region.
                let word = word.to_ne_bytes();
                outgoing.push(&Header { kind: Kind::Write(word_target), len: 8 }, Source::Inline(&word));
            }
            Op::Send { source, imm } => {
                let kind = imm.map_or(Kind::Send, Kind::SendWithImm);
                outgoing.push(&Header { kind, len: source.len() }, source);
            }
            Op::Read { from, into: Slice { region, offset, len } } => {
                outgoing.push(&Header { kind: Kind::Read(from), len }, Source::Inline(&[]));
                self.reads.push_back(ReadInto { region: region.clone(), offset, len });
                return Until::Answered;
            }
            Op::Recv { .. } => unreachable!("a receive goes nowhere"),
        }
        Until::Sent(outgoing.queued())
    }

    /// Queues the answers that the peer asked for.
    pub(super) fn answer(&mut self, stats: &mut TcpStats) {
        for answer in self.asked.drain(..) {
            let header = Header { kind: Kind::Answer, len: answer.len };
            let source = match &answer.from {
                Some((region, offset)) => Source::Region(Slice { region, offset: *offset, len: answer.len }),
                None => Source::Inline(&[]),
            };
            self.outgoing.push(&header, source);
            self.answers.push_back(self.outgoing.queued());
            stats.frames_sent += 1;
        }
    }
}
