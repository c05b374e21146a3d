//! The formation of communicators: from a list of ranks, or from some of another's.

use std::time::Duration;

use squall_fabric::{Fabric, Fingerprint, GroupTag, NodeId, NodeList, Time, Wait};

use super::{Collectives, CommunicatorId, DrivenCommunicator};
use crate::{CollectiveError, Communicator, CommunicatorConfig, CreateCommunicatorError};

/// The reason why a communicator was not formed. Nothing of it is left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormError {
    /// The communicator could not be made.
    #[error(transparent)]
    Create(#[from] CreateCommunicatorError),
    /// Some ranks did not appear.
    #[error(
        "{} did not appear within {limit:?}: look whether they run, and form a communicator of the same nodes in the same \
         order, under the same tag",
        NodeList(missing)
    )]
    Missing {
        /// The nodes that were not reached.
        missing: Vec<NodeId>,
        /// The time for which they were awaited.
        limit: Duration,
    },
    /// The ranks met, and then one failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

impl<F: Fabric + Wait> Collectives<F> {
    /// Makes a communicator. All its ranks call this; it returns once all are there, for `limit` at most, and the
    /// [parameters](crate::Parameters) of their messages are measured.
    ///
    /// Fails if the communicator [can't be created](Communicator::create), if a rank does not appear within `limit`, or
    /// if one fails.
    pub fn form(&mut self, config: CommunicatorConfig, limit: Duration) -> Result<CommunicatorId, FormError> {
        let tag = config.tag;
        let communicator = Communicator::create(&mut self.fabric, config)?;
        self.first_rank.get_or_insert(communicator.rank());
        self.communicators.push(Some(DrivenCommunicator { communicator, tag, splits: 0 }));
        let on = CommunicatorId(self.communicators.len() - 1);
        let formed = self.meet(on, limit).and_then(|()| Ok(self.measure(on)?));
        if formed.is_err() {
            self.abandon(on);
        }
        formed.map(|()| on)
    }

    /// Waits until all ranks were reached.
    fn meet(&mut self, on: CommunicatorId, limit: Duration) -> Result<(), FormError> {
        let until = Time::boot_clock() + limit;
        loop {
            let communicator = self.communicator(on)?;
            if let Some(rank) = communicator.failed() {
                return Err(CollectiveError::Failed { rank }.into());
            }
            if communicator.is_connected() {
                return Ok(());
            }
            if Time::boot_clock() >= until {
                let nodes = &communicator.config().ranks;
                let missing = (0..nodes.len()).filter(|&rank| !communicator.is_reached(rank));
                return Err(FormError::Missing { missing: missing.map(|rank| nodes[rank]).collect(), limit });
            }
            if !self.turn() {
                self.rest(until);
            }
        }
    }

    /// Makes communicators of the ranks that give the same color; a rank without one gets none. All ranks of `of` call
    /// it. It waits for the ranks of the same color, for `limit` at most.
    ///
    /// Ranks follow from `key`, and among equals from the ranks in `of`. Everything else is as in `of`.
    ///
    /// Fails if a rank of `of` fails, or as [`form`](Collectives::form) does.
    pub fn split(
        &mut self,
        of: CommunicatorId,
        color: Option<u32>,
        key: i32,
        limit: Duration,
    ) -> Result<Option<CommunicatorId>, FormError> {
        let mine = [color.map_or(-1, i64::from), i64::from(key)];
        let all = self.allgather(of, mine.to_vec())?;
        let CommunicatorId(index) = of;
        let member = self.communicators[index].as_mut().expect("it has gathered");
        member.splits += 1;
        let Some(color) = color else { return Ok(None) };
        let config = child(member.communicator.config(), member.tag, member.splits, color, &all);
        Ok(Some(self.form(config, limit)?))
    }
}

/// The communicator of a color; `all` has a color and a key for each rank.
fn child(of: &CommunicatorConfig, tag: GroupTag, split: u64, color: u32, all: &[i64]) -> CommunicatorConfig {
    let mut ranks: Vec<(i64, usize)> = all
        .chunks_exact(2)
        .enumerate()
        .filter_map(|(rank, given)| (given[0] == i64::from(color)).then_some((given[1], rank)))
        .collect();
    ranks.sort_unstable();
    let ranks = ranks.into_iter().map(|(_, rank)| of.ranks[rank]).collect();
    // 48 bits, as many as an instance may have: two communicators of a node practically never get the same.
    let mut name = Fingerprint::default();
    for number in [u64::from(tag.group), tag.epoch, split, u64::from(color)] {
        name.number(number);
    }
    CommunicatorConfig { ranks, tag: GroupTag { epoch: name.value() >> 16, ..tag }, ..of.clone() }
}

#[cfg(test)]
mod tests {
    use squall_fabric::NodeId;

    use super::*;

    #[test]
    fn keys_order_the_ranks_of_a_color_and_names_differ() {
        let tag = Collectives::tag(7, 1);
        let of = CommunicatorConfig::new([10, 11, 12, 13, 14].map(NodeId).to_vec(), tag);
        let all = [0, 5, 1, 0, 0, -5, -1, 0, 0, 5];
        let even = child(&of, tag, 1, 0, &all);
        assert_eq!(even.ranks, [12, 10, 14].map(NodeId));
        assert_eq!(child(&of, tag, 1, 1, &all).ranks, [NodeId(11)]);
        let names = [(1, 0), (1, 1), (2, 0), (2, 1)].map(|(split, color)| child(&of, tag, split, color, &all).tag);
        assert!(names.iter().enumerate().all(|(at, name)| !names[..at].contains(name) && *name != tag));
    }
}
