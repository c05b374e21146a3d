//! The choice of the next stage, and of the node that sends it: the source, or a receiver that has put the files of it
//! in place, if those that lack it came late.

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
        let runs = self.done(layout).map(|peer| (self.placed_before(peer, &stage, layout), peer));
        let Some((end, peer)) = runs.max_by_key(|(end, _)| *end) else { return Some((stage, None)) };
        if end >= enough {
            stage.end = end;
            return Some((stage, Some(peer)));
        }
        // A receiver may have what follows.
        stage.end = enough;
        Some((stage, None))
    }

    /// Makes the source send all from now on.
    pub(in super::super) fn send_from_source_only(&mut self) {
        self.only_source = true;
    }

    /// Returns the receivers that have everything, and did not have all of it before.
    fn done(&self, layout: &StreamLayout) -> impl Iterator<Item = usize> {
        self.ready()
            .filter(|(peer, node, holding)| {
                let lacks_nothing = layout.next_for(*node, holding.segments) == layout.segments();
                lacks_nothing && !self.peers[*peer].wanted.is_empty()
            })
            .map(|(peer, ..)| peer)
    }

    /// Returns the first segment of a stage of which a receiver that lacks nothing has not put all files in place in
    /// this push. What it had before may not be what the source has.
    fn placed_before(&self, peer: usize, stage: &TransferStage, layout: &StreamLayout) -> u64 {
        let has = |entry: u32| self.judged.contains(&entry) && self.peers[peer].wanted.binary_search(&entry).is_ok();
        let is_there = |segment: &u64| layout.pieces(*segment).all(|piece| has(piece.entry as u32));
        (stage.first..stage.end).find(|segment| !is_there(segment)).unwrap_or(stage.end)
    }
}
