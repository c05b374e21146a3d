//! The choice of the next stage, and of the node that sends it: the source, or a receiver that has put the files of it
//! in place, if those that lack it came late or fell behind.

use super::{
    super::super::{
        layout::StreamLayout,
        plan::{TransferStage, next_stage},
    },
    Peers,
};

/// The most segments of a group while a receiver may still join: it is taken in when the group is over. Also the least
/// that a receiver sends in the source's place, unless the stage has fewer.
const LATE_SEGMENTS: u64 = 16;

impl Peers<'_> {
    /// Returns the next stage to move, and the receiver that sends it in the source's place, if one can.
    pub(in super::super) fn next_stage(&self, layout: &StreamLayout) -> Option<(TransferStage, Option<usize>)> {
        let mut stage = next_stage(self.ready(), layout)?;
        if self.await_late() {
            stage.end = stage.end.min(stage.first + LATE_SEGMENTS);
        }
        if self.only_source || stage.partial {
            return Some((stage, None));
        }
        let enough = stage.end.min(stage.first + LATE_SEGMENTS);
        let done: Vec<usize> = self.done(layout).collect();
        for &peer in &done {
            let end = (stage.first..stage.end).find(|&segment| !self.has_brought(peer, segment, layout));
            let end = end.unwrap_or(stage.end);
            if end >= enough {
                stage.end = end;
                return Some((stage, Some(peer)));
            }
        }
        // From there on, a receiver may send.
        let any_has = |segment: &u64| done.iter().any(|&peer| self.has_brought(peer, *segment, layout));
        stage.end = (enough..stage.end).find(any_has).unwrap_or(stage.end);
        Some((stage, None))
    }

    /// Lets a receiver send no more in the source's place; or none, if it is not known which one failed.
    pub(in super::super) fn exclude_root(&mut self, peer: Option<usize>) {
        match peer {
            Some(peer) => self.peers[peer].may_send = false,
            None => self.only_source = true,
        }
    }

    /// Returns the receivers that have everything, and have not been told so: then they would leave.
    fn done(&self, layout: &StreamLayout) -> impl Iterator<Item = usize> {
        self.ready()
            .filter(|(peer, node, holding)| {
                let lacks_nothing = layout.next_for(*node, holding.segments) == layout.segments();
                let at = &self.peers[*peer];
                lacks_nothing && at.may_send && !at.told_finish && at.wanted.len() > at.had.len()
            })
            .map(|(peer, ..)| peer)
    }

    /// Tells whether a receiver that has everything has put all files of a segment in place in this push. What it had
    /// before may not be what the source has.
    fn has_brought(&self, peer: usize, segment: u64, layout: &StreamLayout) -> bool {
        let at = &self.peers[peer];
        layout.pieces(segment).map(|piece| piece.entry as u32).all(|entry| {
            self.judged.contains(&entry) && at.wanted.binary_search(&entry).is_ok() && !at.had.contains(&entry)
        })
    }
}
