//! A rank's place in the hierarchy, which follows from the ranks that are left.

use crate::Topology;

/// The ranks to which a rank tells its barrier, and those that tell it theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BarrierPlace {
    /// A flat topology, in which both are all other ranks.
    Flat,
    Tree {
        /// The parent; None for the root.
        parent: Option<usize>,
        children: Vec<usize>,
    },
}

impl BarrierPlace {
    /// The place of a rank in a group of which `ranks` are left.
    pub(crate) fn of(me: usize, topology: &Topology, ranks: &[bool]) -> BarrierPlace {
        let Topology::Hierarchy { racks, degree } = topology else { return BarrierPlace::Flat };
        let left = |rack: &Vec<usize>| {
            let mut rack: Vec<usize> = rack.iter().copied().filter(|&rank| ranks[rank]).collect();
            rack.sort_unstable();
            rack
        };
        // A rack's first member represents it; racks without members have no place.
        let racks: Vec<Vec<usize>> = racks.iter().map(left).filter(|rack| !rack.is_empty()).collect();
        // A degree beyond the number of racks makes no difference.
        let degree = (*degree).min(racks.len());
        let Some(rack) = racks.iter().position(|rack| rack.contains(&me)) else {
            return BarrierPlace::Tree { parent: None, children: Vec::new() };
        };
        let representative = |rack: usize| racks[rack][0];
        if me != representative(rack) {
            return BarrierPlace::Tree { parent: Some(representative(rack)), children: Vec::new() };
        }
        // Representatives are numbered level by level from the root.
        let parent = rack.checked_sub(1).map(|before| representative(before / degree));
        let below = (rack * degree + 1..=(rack + 1) * degree).take_while(|&below| below < racks.len());
        let children = racks[rack][1..].iter().copied().chain(below.map(representative)).collect();
        BarrierPlace::Tree { parent, children }
    }

    /// Whether a rank tells its barrier to this one.
    pub(crate) fn hears(&self, rank: usize) -> bool {
        match self {
            BarrierPlace::Flat => true,
            BarrierPlace::Tree { children, .. } => children.contains(&rank),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(parent: Option<usize>, children: &[usize]) -> BarrierPlace {
        BarrierPlace::Tree { parent, children: children.to_vec() }
    }

    #[test]
    fn representatives_are_the_lowest_that_are_left() {
        let topology = Topology::Hierarchy { racks: vec![vec![3, 0], vec![1, 4], vec![2, 5]], degree: 1 };
        let place = |me, left: [u8; 6]| BarrierPlace::of(me, &topology, &left.map(|left| left == 1));
        let all = [1; 6];
        assert_eq!(place(0, all), tree(None, &[3, 1]));
        assert_eq!(place(3, all), tree(Some(0), &[]));
        assert_eq!(place(1, all), tree(Some(0), &[4, 2]));
        assert_eq!(place(2, all), tree(Some(1), &[5]));
        let some = [0, 0, 1, 1, 0, 1];
        assert_eq!(place(3, some), tree(None, &[2]), "a rack without members has no place");
        assert_eq!(place(2, some), tree(Some(3), &[5]));
    }

    #[test]
    fn every_rank_but_the_root_is_the_child_of_its_parent() {
        for (racks, degree) in [(1, 1), (4, 1), (7, 2), (9, 3), (10, 20), (2, usize::MAX)] {
            let ranks = 2 * racks;
            let topology =
                Topology::Hierarchy { racks: (0..racks).map(|rack| vec![rack, racks + rack]).collect(), degree };
            let left = vec![true; ranks];
            let mut roots = 0;
            for rank in 0..ranks {
                let BarrierPlace::Tree { parent, children } = BarrierPlace::of(rank, &topology, &left) else {
                    panic!("a tree")
                };
                roots += usize::from(parent.is_none());
                assert!(children.len() <= degree.saturating_add(1));
                if let Some(parent) = parent {
                    assert!(BarrierPlace::of(parent, &topology, &left).hears(rank), "{rank} below {parent}");
                }
            }
            assert_eq!(roots, 1);
        }
    }
}
