//! The names of the groups of a communicator.
//!
//! A group's name follows from the communicator's tag and the root, so that ranks need not agree on it:
//!
//! ```text
//! group     u32   layer (8 bits)   group (24 bits)                          of the tag
//! instance  u64   1                root (15 bits)       epoch (48 bits)     of the tag
//! ```
//!
//! The first bit keeps the name apart from groups of the application, whose instances are epochs or count attempts. No
//! field is shortened, so two names differ if their tags or roots do: a tag that does not fit is refused with the
//! communicator.

use squall_fabric::GroupTag;
use squall_rdmc::GroupId;

const LAYER_BITS: u32 = 8;
const GROUP_BITS: u32 = 24;
const ROOT_BITS: u32 = 15;
const EPOCH_BITS: u32 = 48;
const _: () = assert!(LAYER_BITS + GROUP_BITS == u32::BITS && 1 + ROOT_BITS + EPOCH_BITS == u64::BITS);

/// Whether all groups of a communicator have names of their own.
pub(crate) fn are_named(tag: GroupTag, ranks: usize) -> bool {
    let GroupTag { layer, group, epoch } = tag;
    layer >> LAYER_BITS == 0 && group >> GROUP_BITS == 0 && epoch >> EPOCH_BITS == 0 && ranks <= 1 << ROOT_BITS
}

/// The name of a root's group.
pub(crate) fn group_id(tag: GroupTag, root: usize) -> GroupId {
    let group = tag.layer << GROUP_BITS | tag.group;
    let instance = 1 << (ROOT_BITS + EPOCH_BITS) | (root as u64) << EPOCH_BITS | tag.epoch;
    GroupId { group, instance }
}

/// The root whose group has this name.
pub(crate) fn root(id: GroupId) -> usize {
    (id.instance >> EPOCH_BITS) as usize & ((1 << ROOT_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tag_and_root_has_a_name_of_its_own() {
        let layers = [0, 1, 0xff];
        let groups = [0, 1, 0xff_ffff];
        let epochs = [0, 1, 0xffff_ffff_ffff];
        let roots = [0, 1, (1 << ROOT_BITS) - 1];
        let mut names = Vec::new();
        for (layer, group) in layers.into_iter().flat_map(|layer| groups.map(|group| (layer, group))) {
            for (epoch, at) in epochs.into_iter().flat_map(|epoch| roots.map(|root| (epoch, root))) {
                let tag = GroupTag { layer, group, epoch };
                assert!(are_named(tag, at + 1));
                let id = group_id(tag, at);
                assert_eq!(root(id), at);
                assert!(id.instance >> 63 == 1, "it could be an application's");
                names.push(id);
            }
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 81);
    }

    #[test]
    fn what_does_not_fit_has_no_name() {
        let tag = GroupTag { layer: 9, group: 0, epoch: 1 };
        assert!(are_named(tag, 1 << ROOT_BITS));
        assert!(!are_named(tag, (1 << ROOT_BITS) + 1));
        assert!(!are_named(GroupTag { layer: 256, ..tag }, 2));
        assert!(!are_named(GroupTag { group: 1 << 24, ..tag }, 2));
        assert!(!are_named(GroupTag { epoch: 1 << 48, ..tag }, 2));
    }
}
