//! A controller that is as inconvenient as its contract permits.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use squall_fabric::Time;
use squall_onepipe::{Controller, Directive, Gate, Settlement};

/// The decisions of the controller, and those that each rank was told.
#[derive(Debug)]
pub(crate) struct Court {
    random: fastrand::Rng,
    ranks: usize,
    epoch: u64,
    /// Ranks without a process, which are blamed where there is a choice.
    pub(crate) crashed: BTreeSet<usize>,
    pub(crate) removed: BTreeSet<usize>,
    /// The ranks that will be named as failed.
    accused: BTreeSet<usize>,
    is_wedging: bool,
    reports: BTreeMap<usize, u64>,
    settlements: Vec<Settlement>,
    /// By rank: the number of settlements that it was told, and whether it was told to wedge, or its gate was closed.
    told: Vec<(usize, bool)>,
    /// By rank.
    pub(crate) gates: Vec<Arc<Gate>>,
    /// Whether the court closes gates, and tells no rank to wedge.
    closes: bool,
    /// By rank: a barrier that it has reported, or that its gate has returned, with the epoch. It never accepts more in
    /// that epoch.
    pub(crate) reported: Vec<Option<(u64, u64)>>,
}

/// A rank's side of the court.
pub(crate) struct CourtSide<'a> {
    court: &'a mut Court,
    rank: usize,
    is_prompt: bool,
}

impl Court {
    pub(crate) fn new(ranks: usize, epoch: u64, seed: u64) -> Court {
        let mut random = fastrand::Rng::with_seed(seed ^ 0xc0);
        Court {
            closes: random.bool(),
            gates: (0..ranks).map(|_| Arc::default()).collect(),
            random,
            ranks,
            epoch,
            crashed: BTreeSet::new(),
            removed: BTreeSet::new(),
            accused: BTreeSet::new(),
            is_wedging: false,
            reports: BTreeMap::new(),
            settlements: Vec::new(),
            told: vec![(0, false); ranks],
            reported: vec![None; ranks],
        }
    }

    pub(crate) fn side(&mut self, rank: usize, is_prompt: bool) -> CourtSide<'_> {
        CourtSide { court: self, rank, is_prompt }
    }

    /// Whether a rank is to be told something.
    pub(crate) fn has_news_for(&self, rank: usize) -> bool {
        let (settlements, wedged) = self.told[rank];
        let wedge = self.is_wedging && !wedged && !self.removed.contains(&rank);
        let settlement = settlements < self.settlements.len() && !self.knows_that_it_is_out(rank);
        settlement || wedge || self.all_reports().is_some()
    }

    fn knows_that_it_is_out(&self, rank: usize) -> bool {
        self.settlements[..self.told[rank].0].iter().any(|settlement| settlement.failed.contains(&rank))
    }

    /// Begins to settle, even if no rank has failed.
    pub(crate) fn wedge(&mut self) {
        self.is_wedging = true;
    }

    /// Names a rank as failed, whether it has or not.
    pub(crate) fn accuse(&mut self, rank: usize) {
        self.accused.insert(rank);
        self.is_wedging = true;
    }

    fn suspect(&mut self, from: usize, epoch: u64, rank: usize) {
        if epoch != self.epoch || self.removed.contains(&from) {
            return;
        }
        self.is_wedging = true;
        if !self.accused.contains(&from) && !self.accused.contains(&rank) {
            let blamed = if self.crashed.contains(&rank) || self.random.bool() { rank } else { from };
            self.accused.insert(blamed);
        }
    }

    /// Whether a rank is not named as failed so far.
    pub(crate) fn stays(&self, rank: usize) -> bool {
        !self.removed.contains(&rank) && !self.accused.contains(&rank)
    }

    /// The reports of all ranks that stay, once they are there.
    fn all_reports(&self) -> Option<Vec<u64>> {
        let mut staying = (0..self.ranks).filter(|&rank| self.is_wedging && self.stays(rank)).peekable();
        staying.peek()?;
        staying.map(|rank| self.reports.get(&rank).copied()).collect()
    }

    /// Closes the gates of some ranks, or of `all`, whatever they are doing.
    pub(crate) fn close_gates(&mut self, all: bool) {
        if !self.closes || !self.is_wedging {
            return;
        }
        for rank in (0..self.ranks).filter(|rank| !self.removed.contains(rank) && !self.crashed.contains(rank)) {
            if all || self.random.u8(..8) == 0 {
                let barrier = self.gates[rank].close(self.epoch);
                let before = self.reports.insert(rank, barrier).unwrap_or(barrier);
                assert_eq!(barrier, before, "rank {rank} has passed a closed gate");
                self.reported[rank] = Some((self.epoch, barrier));
                self.told[rank].1 = true;
            }
        }
    }

    /// Decides once all ranks that stay have reported.
    fn decide(&mut self) {
        let Some(reports) = self.all_reports() else { return };
        let failed: Vec<usize> = std::mem::take(&mut self.accused).into_iter().collect();
        self.removed.extend(&failed);
        self.epoch += 1;
        let failure_timestamp = reports.into_iter().max().unwrap_or(0);
        self.settlements.push(Settlement { epoch: self.epoch, failed, failure_timestamp });
        self.is_wedging = false;
        self.reports.clear();
        self.told.iter_mut().for_each(|told| told.1 = false);
    }
}

impl Controller for CourtSide<'_> {
    fn suspect(&mut self, epoch: u64, rank: usize) {
        self.court.suspect(self.rank, epoch, rank);
    }

    fn report(&mut self, epoch: u64, barrier: u64) {
        self.court.reported[self.rank] = Some((epoch, barrier));
        if epoch == self.court.epoch && !self.court.removed.contains(&self.rank) {
            self.court.reports.insert(self.rank, barrier);
        }
    }

    fn gate(&self) -> Option<&Arc<Gate>> {
        self.court.closes.then(|| &self.court.gates[self.rank])
    }

    fn poll(&mut self, _: Time) -> Option<Directive> {
        let (court, rank) = (&mut *self.court, self.rank);
        if !self.is_prompt && court.random.u8(..4) > 0 {
            return None;
        }
        court.decide();
        let is_out = court.knows_that_it_is_out(rank);
        let (settlements, wedged) = &mut court.told[rank];
        if let (false, Some(settlement)) = (is_out, court.settlements.get(*settlements)) {
            *settlements += 1;
            return Some(Directive::Settle(settlement.clone()));
        }
        // Directives of other epochs, and earlier ones, may come again.
        let current = court.epoch - (court.settlements.len() - *settlements) as u64;
        let others = [0, current.wrapping_sub(1), current + 1].into_iter().filter(|&epoch| epoch != current);
        let stale: Vec<u64> = others.chain(wedged.then_some(court.epoch)).collect();
        if court.random.u8(..4) == 0 {
            return court.random.choice(stale).map(|epoch| Directive::Wedge { epoch });
        }
        if court.is_wedging && !court.closes && !*wedged && !court.removed.contains(&rank) {
            *wedged = true;
            return Some(Directive::Wedge { epoch: court.epoch });
        }
        None
    }
}
