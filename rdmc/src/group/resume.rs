//! Completing an interrupted message: the members tell the root which blocks they hold, and the root tells all.
//!
//! Each member has a polled region with a row for each rank. The root also has a region for each member's row, exposed
//! to that member alone:
//!
//! ```text
//! byte 0   known    u64  1 once the rest of the row is there; in row 0 of a member's region, once all rows are
//!      8   held     one bit for each block, in words of 8 bytes
//! ```
//!
//! A member writes its row into its region at the root. Once the root has all rows, it writes them into every member's
//! region of all rows. So all compute the same plan, and nothing else has to be agreed upon.

use std::sync::Arc;

use squall_fabric::{
    EndpointId, Fabric, Op, PostError, Region, RegionKey, RegionKind, RegisterError, RemoteRegion, Slice, Source,
    Target, Token,
};

use super::Group;
use crate::{
    block_set::BlockSet,
    config::{CreateError, GroupConfig},
    control::Control,
    engine::Engine,
    events::Interrupted,
    plan::Plan,
    schedule::Rank,
    step_source::StepSource,
};

impl Group {
    /// Creates this node's part of a group that brings one interrupted message to all its members, and then is
    /// [destroyed](Group::destroy).
    ///
    /// `message` describes what is here. It needs memory, of the message's length at least. Where nothing came before
    /// the interruption, it also needs the number of blocks; all members must agree upon that number. Where blocks are
    /// missing, `message` has the only handle of its memory.
    ///
    /// Any member may lack or hold any blocks: they tell each other, and each missing block moves once. Then each
    /// member, the root too, gets [`Event::Received`](crate::Event::Received). The group fails if some blocks are held
    /// by no member.
    pub fn resume(
        fabric: &mut impl Fabric,
        config: GroupConfig,
        mut message: Interrupted,
    ) -> Result<Group, CreateError> {
        let me = config.check(fabric.node())?.rank();
        check_interrupted(&config, &mut message)?;
        // Any two members may have a block for each other.
        let others = (0..config.members.len() as u32).map(Rank).filter(|&rank| rank != me);
        let control = Control::register(fabric, config.members.len(), others)?;
        let exchange = Exchange::register(fabric, config.members.len(), me, message)?;
        Ok(Group::new(fabric, config, me, control, Some(exchange)))
    }

    /// Exchanges the holdings of all members, in a group that resumes, and then begins.
    pub(super) fn exchange(&mut self, fabric: &mut impl Fabric) -> bool {
        let Some(exchange) = &mut self.exchange else { return false };
        let complete = exchange.collect();
        let mut busy = false;
        if self.me != Rank::ROOT || complete {
            for line in self.lines.iter_mut().filter(|line| !line.told) {
                let Some(to) = line.remote.and_then(|remote| remote.holdings) else { continue };
                line.told = exchange.tell(fabric, line.endpoint, to).is_ok();
                busy |= line.told;
            }
        }
        if !complete || !self.lines.iter().all(|line| line.told) {
            return busy;
        }
        let plan = Plan::new(&exchange.holdings(), self.me);
        let Some(Exchange { what, .. }) = self.exchange.take_if(|_| complete) else { return busy };
        match plan {
            Ok(plan) => {
                let source = StepSource::Plan(plan);
                let links = self.connect_links(fabric, &source);
                self.engine = Some(Engine::completing(self.limits(), source, links, what));
            }
            // Every member finds the same; each is told that this one has.
            Err(lost) => {
                self.own.done = true;
                self.end_as_failed(None, lost.to_string(), Some(what));
            }
        }
        true
    }
}

/// Checks the description of a message that is to be completed.
fn check_interrupted(config: &GroupConfig, message: &mut Interrupted) -> Result<(), CreateError> {
    let (blocks, block_bytes) = (message.blocks, config.block_bytes);
    let impossible = |cause| Err(CreateError::Interrupted { blocks, block_bytes, cause });
    if blocks == 0 || message.held.blocks() != blocks {
        return impossible("it has at least one block, and what is held is a set of its blocks");
    }
    let holds_last = message.held.contains(blocks - 1);
    if message.len.map_or(holds_last, |len| config.blocks(len) != Some(blocks)) {
        return impossible("its length must be known where its last block is held, and be that of so many blocks");
    }
    let Some(buffer) = &mut message.buffer else { return impossible("give memory for it") };
    let before_last = (blocks as usize - 1).checked_mul(block_bytes);
    let least = message.len.or_else(|| before_last?.checked_add(usize::from(blocks > 1)));
    if least.is_none_or(|least| buffer.capacity() < least) {
        return impossible("its memory is too short");
    }
    // Blocks will land there, so nothing else may be reading it.
    if !message.held.is_full() && Arc::get_mut(buffer).is_none() {
        return impossible("blocks are missing, and its memory is in use: drop all other handles of the buffer");
    }
    Ok(())
}

/// The exchange of holdings at one member.
#[derive(Debug)]
pub(super) struct Exchange {
    /// The rows of all ranks.
    rows: Region,
    /// At the root, the row of each other member as that member writes it; elsewhere empty.
    told: Vec<Region>,
    members: usize,
    me: Rank,
    pub(super) what: Interrupted,
}

impl Exchange {
    pub(super) fn register(
        fabric: &mut impl Fabric,
        members: usize,
        me: Rank,
        what: Interrupted,
    ) -> Result<Exchange, RegisterError> {
        let row = row_bytes(what.blocks);
        let rows = fabric.register(RegionKind::Polled, row * members)?;
        let others = if me == Rank::ROOT { members - 1 } else { 0 };
        let told = (0..others).map(|_| fabric.register(RegionKind::Polled, row)).collect::<Result<_, _>>()?;
        for (at, word) in what.held.words().iter().enumerate() {
            rows.store(row * me.index() + 8 * (1 + at), *word);
        }
        rows.store(row * me.index(), u64::from(me == Rank::ROOT));
        Ok(Exchange { rows, told, members, me, what })
    }

    /// The memory that a peer writes into, to be exposed to it alone.
    pub(super) fn region(&self, peer: Rank) -> &Region {
        if self.me == Rank::ROOT { &self.told[peer.index() - 1] } else { &self.rows }
    }

    /// Whether a peer's region can be the memory that this member writes into.
    pub(super) fn fits(&self, remote: &RemoteRegion) -> bool {
        let bytes = if self.me == Rank::ROOT { self.rows.len() } else { row_bytes(self.what.blocks) };
        remote.kind == RegionKind::Polled && remote.bytes == bytes
    }

    /// Takes in the rows that have come. Returns whether every member's is here.
    pub(super) fn collect(&mut self) -> bool {
        let row = row_bytes(self.what.blocks);
        for (told, at) in self.told.iter().zip((row..).step_by(row)) {
            if self.rows.load(at) == 0 && told.load(0) == 1 {
                told.copy_words(8, &self.rows, at + 8, row - 8);
                self.rows.store(at, 1);
            }
        }
        let known = |rank: usize| self.rows.load(row * rank) == 1;
        if self.me == Rank::ROOT { (0..self.members).all(known) } else { known(0) }
    }

    /// Writes this member's row to the root; or, at the root, all rows to a member.
    pub(super) fn tell(&self, fabric: &mut impl Fabric, on: EndpointId, to: RegionKey) -> Result<(), PostError> {
        let row = row_bytes(self.what.blocks);
        let (start, len) = if self.me == Rank::ROOT { (0, self.rows.len()) } else { (row * self.me.index(), row) };
        let source = Source::Region(Slice { region: &self.rows, offset: start + 8, len: len - 8 });
        let (target, word_target) = (Target { region: to, offset: 8 }, Target { region: to, offset: 0 });
        fabric.post(on, Op::WriteThenWord { source, target, word: 1, word_target }, Token::UNSIGNALED)
    }

    /// The blocks that each member holds, by rank.
    pub(super) fn holdings(&self) -> Vec<BlockSet> {
        let blocks = self.what.blocks;
        let (row, words) = (row_bytes(blocks), BlockSet::words_for(blocks));
        let word = |rank: usize, at: usize| self.rows.load(row * rank + 8 * (1 + at));
        let of = |rank| BlockSet::from_words((0..words).map(|at| word(rank, at)).collect(), blocks);
        let mut holdings: Vec<_> = (0..self.members).map(of).collect();
        // The root may write this member's row, too.
        holdings[self.me.index()].clone_from(&self.what.held);
        holdings
    }
}

fn row_bytes(blocks: u32) -> usize {
    8 * (1 + BlockSet::words_for(blocks))
}

#[cfg(test)]
mod tests {
    use squall_fabric::{
        NodeId,
        sim::{SimConfig, SimNet},
    };

    use super::*;

    #[test]
    fn a_member_knows_better_than_the_root_what_it_holds_itself() {
        let mut fabric = SimNet::new(SimConfig::fast(), 1).fabric(NodeId(1));
        let mut held = BlockSet::new(70);
        held.insert(3);
        let what = Interrupted { message: 0, blocks: 70, len: None, held: held.clone(), buffer: None };
        let mut exchange = Exchange::register(&mut fabric, 3, Rank(1), what).expect("memory");
        assert!(!exchange.collect(), "the root has not written");
        for word in 0..exchange.rows.len() / 8 {
            exchange.rows.store(8 * word, u64::MAX);
        }
        exchange.rows.store(0, 1);
        assert!(exchange.collect(), "the root has written");
        assert_eq!(exchange.holdings(), [BlockSet::full(70), held, BlockSet::full(70)]);
    }
}
