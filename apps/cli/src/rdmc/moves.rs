//! All nodes' parts of a schedule, put together.

use squall_rdmc::schedule::{Algorithm, Rank, Schedule, ScheduleError};

/// One block on its way from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Move {
    pub(super) step: usize,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) block: u32,
}

/// A whole schedule.
#[derive(Debug)]
pub(super) struct Moves {
    pub(super) nodes: usize,
    pub(super) steps: usize,
    /// The moves, in order of steps, then of senders.
    pub(super) list: Vec<Move>,
}

impl Moves {
    /// The number of steps of the schedule, at less cost than listing them.
    pub(super) fn steps(algorithm: &Algorithm, nodes: usize, blocks: u32) -> Result<u64, ScheduleError> {
        let ranks = (0..nodes as u32).map(Rank);
        ranks
            .map(|rank| Ok(Schedule::new(algorithm, nodes, rank)?.steps(blocks)))
            .try_fold(0, |most, steps| Ok(most.max(steps?)))
    }

    /// The sends of all nodes.
    pub(super) fn of(algorithm: &Algorithm, nodes: usize, blocks: u32) -> Result<Moves, ScheduleError> {
        let mut list = Vec::new();
        for rank in (0..nodes as u32).map(Rank) {
            for part in Schedule::new(algorithm, nodes, rank)?.parts() {
                let sends = (0..part.steps(blocks)).map(|step| (step, part.at(blocks, step).send));
                list.extend(sends.filter_map(|(step, send)| {
                    let send = send?;
                    Some(Move { step: step as usize, from: rank.index(), to: send.peer.index(), block: send.block })
                }));
            }
        }
        list.sort_unstable();
        let steps = list.last().map_or(0, |last| last.step + 1);
        Ok(Moves { nodes, steps, list })
    }

    /// The number of blocks that each node sends, and the number that it receives.
    pub(super) fn traffic(&self) -> Vec<(usize, usize)> {
        let mut traffic = vec![(0, 0); self.nodes];
        for one in &self.list {
            traffic[one.from].0 += 1;
            traffic[one.to].1 += 1;
        }
        traffic
    }
}
