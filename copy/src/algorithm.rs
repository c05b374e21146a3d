//! The groups that move contents, as both sides make them from a [`Join`].

use squall_fabric::NodeId;
use squall_rdmc::{
    GroupConfig, GroupId,
    block::{Medium, Network},
    schedule::{Algorithm, Outer, Racks},
};

use super::control::{Join, Layer};

/// The rate of links of unknown rate, in bytes per second. Blocks have the size that the source gives.
const LINK_RATE: u64 = 1_250_000_000;

impl Join {
    pub(crate) fn id(&self) -> GroupId {
        GroupId { group: self.group, instance: self.instance }
    }

    /// Returns the group's configuration; None if this version does not know its algorithm.
    pub(crate) fn config(&self) -> Option<GroupConfig> {
        let config = GroupConfig::new(self.id(), self.members.iter().copied().map(NodeId).collect());
        let algorithm = self.algorithm.algorithm()?;
        let block_bytes = self.block_bytes as usize;
        let medium = match self.network {
            true => Medium::Network(Network::rdma(LINK_RATE)),
            false => Medium::SharedMemory,
        };
        let suited = config.suited_to(&medium, self.block_bytes);
        Some(GroupConfig { algorithm, block_bytes, ..suited })
    }
}

impl Layer {
    /// Names an algorithm; `racks` gives the rack of each rank, the sender's first, if there are any.
    pub(crate) fn of(algorithm: &Algorithm, racks: Option<Vec<u32>>) -> Layer {
        match racks {
            Some(racks) => Layer { name: "hybrid".to_owned(), racks },
            None => Layer { name: algorithm.name().to_owned(), racks: Vec::new() },
        }
    }

    /// Returns the algorithm, unless this version knows none of the name.
    pub(crate) fn algorithm(&self) -> Option<Algorithm> {
        if self.name == "hybrid" {
            return Racks::new(&self.racks, Outer::default()).ok().map(Algorithm::Hybrid);
        }
        flat(&self.name)
    }
}

/// Returns the algorithm of a name, as [`Algorithm::name`] gives it, among those that need no racks.
pub fn flat(name: &str) -> Option<Algorithm> {
    Algorithm::FLAT.into_iter().find(|algorithm| algorithm.name() == name)
}

/// Returns the names that [`flat`] knows.
pub fn flat_names() -> impl Iterator<Item = &'static str> {
    Algorithm::FLAT.iter().map(Algorithm::name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_its_algorithm() {
        for algorithm in Algorithm::FLAT {
            assert_eq!(Layer::of(&algorithm, None).algorithm(), Some(algorithm));
        }
        let hybrid = Layer::of(&Algorithm::Chain, Some(vec![0, 0, 1])).algorithm().unwrap();
        assert_eq!(hybrid.name(), "hybrid");
        assert_eq!(Layer { name: "pigeons".to_owned(), racks: vec![] }.algorithm(), None);
    }
}
