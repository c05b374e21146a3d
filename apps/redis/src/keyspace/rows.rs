//! The storage of the keys: rows, each a table that grows by itself.
//!
//! A table that grows moves all that it holds at once. With tens of millions of keys in one table, a replica would
//! stand still for seconds, and the others would go on without it. With many rows, the pause is short.
//!
//! The same holds for the state that is written out for a joining replica. A copy of all rows is a reference to each,
//! and the first change of a row that is still to be written copies that row.

use std::{hash::BuildHasher, sync::Arc};

use foldhash::fast::{FixedState, RandomState};
use indexmap::IndexMap;

use super::KeyEntry;

/// The number of rows.
const ROWS: usize = 64;

/// A row with less than this share of its places in use is made smaller.
const SPARSE: usize = 8;

/// Below this number of places a row stays as it is.
const SMALL: usize = 32;

/// A number that depends on the key alone: all replicas must compute the same.
pub(super) fn fixed_hash(key: &[u8]) -> u64 {
    FixedState::with_seed(0).hash_one(key)
}

/// Keys and their entries. When a key is removed, the last of its row takes its place.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    rows: Box<[Arc<Row>]>,
    len: usize,
}

pub(super) type Row = IndexMap<Box<[u8]>, KeyEntry, RandomState>;

impl Default for Rows {
    fn default() -> Rows {
        let hasher = RandomState::default();
        Rows { rows: (0..ROWS).map(|_| Arc::new(Row::with_hasher(hasher.clone()))).collect(), len: 0 }
    }
}

impl Rows {
    /// The number of keys.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn row_of(key: &[u8]) -> usize {
        // The low bits determine the classes of births.
        (fixed_hash(key) >> 32) as usize % ROWS
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&KeyEntry> {
        self.rows[Rows::row_of(key)].get(key)
    }

    /// The row in which a key lies, to change it.
    fn row_mut(&mut self, key: &[u8]) -> &mut Row {
        Arc::make_mut(&mut self.rows[Rows::row_of(key)])
    }

    pub(super) fn get_mut(&mut self, key: &[u8]) -> Option<&mut KeyEntry> {
        self.row_mut(key).get_mut(key)
    }

    /// Adds a key, which must not be there.
    pub(super) fn insert(&mut self, key: &[u8], entry: KeyEntry) {
        let before = self.row_mut(key).insert(key.into(), entry);
        debug_assert!(before.is_none(), "the key is there");
        self.len += 1;
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> Option<KeyEntry> {
        let row = self.row_mut(key);
        let entry = row.swap_remove(key)?;
        let places = row.capacity();
        if places > SMALL && row.len() < places / SPARSE {
            row.shrink_to(2 * row.len());
        }
        self.len -= 1;
        Some(entry)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &KeyEntry)> {
        self.rows.iter().flat_map(|row| row.iter()).map(|(key, entry)| (&**key, entry))
    }

    /// The rows, one after the other. A row that was passed can be changed without a copy.
    pub(super) fn into_rows(self) -> impl Iterator<Item = Arc<Row>> {
        self.rows.into_iter()
    }

    /// The number of places. Some are empty, since rows differ in length.
    pub(super) fn places(&self) -> usize {
        self.rows.iter().map(|row| row.len()).max().unwrap_or(0) * ROWS
    }

    /// The key and entry at a place. The places of a row are in its order. So a walk from the last place to the first
    /// meets all keys that stay.
    pub(super) fn at(&self, place: usize) -> Option<(&[u8], &KeyEntry)> {
        let (key, entry) = self.rows[place % ROWS].get_index(place / ROWS)?;
        Some((key, entry))
    }

    /// The number of keys for which there is memory.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.rows.iter().map(|row| row.capacity()).sum()
    }
}
