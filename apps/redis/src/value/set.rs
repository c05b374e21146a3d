//! Sets: different strings.

use foldhash::fast::RandomState;
use indexmap::IndexSet;

use super::room;

/// Different strings, in an order that depends only on the operations on them.
///
/// They lie in one row. When a member is removed, the last takes its place.
#[derive(Clone, Debug, Default)]
pub struct Set {
    members: IndexSet<Box<[u8]>, RandomState>,
}

impl Set {
    /// The number of members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Whether this is a member.
    pub fn contains(&self, member: &[u8]) -> bool {
        self.members.contains(member)
    }

    /// The member at a place.
    pub fn at(&self, place: usize) -> Option<&[u8]> {
        self.members.get_index(place).map(|member| &**member)
    }

    /// All members.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.members.iter().map(|member| &**member)
    }

    /// Adds a member. Returns whether it is new.
    pub fn insert(&mut self, member: &[u8]) -> bool {
        !self.members.contains(member) && self.members.insert(member.into())
    }

    /// Removes a member. Returns whether it was there.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        let removed = self.members.swap_remove(member);
        self.shrink();
        removed
    }

    /// Removes the member at a place, and returns it.
    pub fn remove_at(&mut self, place: usize) -> Option<Box<[u8]>> {
        let member = self.members.swap_remove_index(place);
        self.shrink();
        member
    }

    /// The bytes of memory beyond the value itself; an estimate where there are many members.
    pub fn heap_bytes(&self) -> usize {
        let table = room::table_bytes(self.members.capacity(), size_of::<Box<[u8]>>());
        table + room::sum_bytes(self.members.len(), |place| self.members[place].len())
    }

    fn shrink(&mut self) {
        if let Some(room) = room::surplus(self.members.len(), self.members.capacity()) {
            self.members.shrink_to(room);
        }
    }
}

impl<'a> FromIterator<&'a [u8]> for Set {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(members: I) -> Set {
        Set { members: members.into_iter().map(Box::from).collect() }
    }
}
