//! The rack-aware hybrid: one schedule among the racks' leaders, a binomial pipeline in each rack.

use std::sync::Arc;

use super::{Members, Rank, SubSchedule, part::Flat};

/// The schedule by which the racks' leaders get the message from the root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outer {
    /// A binomial pipeline.
    #[default]
    BinomialPipeline,
    /// A chain: each block crosses each rack's uplink once in each direction.
    Chain,
}

/// The racks of a group's members. A rack's leader is its lowest rank; the root leads its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Racks {
    /// The index of each rank's rack in `racks`.
    of: Vec<u32>,
    /// Each rack's members, in order of ranks. Racks are in the order of their leaders.
    racks: Vec<Arc<[Rank]>>,
    leaders: Arc<[Rank]>,
    outer: Outer,
}

/// The reason why the racks make no sense: they are given for no member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("racks are given for no member: name the rack of each, the root's first")]
pub struct RacksError;

impl Racks {
    /// Racks by any names: `rack_of` has each rank's, the root's first. Fails if there are no ranks.
    pub fn new<T: PartialEq>(rack_of: &[T], outer: Outer) -> Result<Racks, RacksError> {
        let mut names: Vec<&T> = Vec::new();
        let mut racks: Vec<Vec<Rank>> = Vec::new();
        let mut of = Vec::with_capacity(rack_of.len());
        for (rank, name) in (0..).map(Rank).zip(rack_of) {
            let rack = names.iter().position(|known| *known == name).unwrap_or_else(|| {
                names.push(name);
                racks.push(Vec::new());
                names.len() - 1
            });
            racks[rack].push(rank);
            of.push(rack as u32);
        }
        if racks.is_empty() {
            return Err(RacksError);
        }
        let leaders = racks.iter().map(|rack| rack[0]).collect();
        Ok(Racks { of, racks: racks.into_iter().map(Arc::from).collect(), leaders, outer })
    }

    /// The number of members that the racks are given for.
    pub fn members(&self) -> usize {
        self.of.len()
    }

    /// The schedule by which the leaders get the message.
    pub fn outer(&self) -> Outer {
        self.outer
    }

    /// The rack of a rank: racks are counted from 0, the root's, in the order of their leaders' ranks.
    pub fn rack_of(&self, rank: Rank) -> usize {
        self.of[rank.index()] as usize
    }

    pub(super) fn parts(&self, rank: Rank) -> Vec<SubSchedule> {
        let rack = self.of[rank.index()];
        let members = &self.racks[rack as usize];
        let local = members.binary_search(&rank).expect("a rank stands in its rack") as u32;
        let outer = match self.outer {
            Outer::BinomialPipeline => Flat::BinomialPipeline,
            Outer::Chain => Flat::Chain,
        };
        // In step `begins + b` of the whole, the leader sends block b to its rack: it must have the block by then.
        let begins = outer.lag(self.leaders.len() as u32, rack);
        let inner = SubSchedule::among(Flat::BinomialPipeline, Members::Some(Arc::clone(members)), local, begins);
        if local == 0 {
            vec![SubSchedule::among(outer, Members::Some(Arc::clone(&self.leaders)), rack, 0), inner]
        } else {
            vec![inner]
        }
    }
}
