//! Hashes: strings under names.

use foldhash::fast::RandomState;
use indexmap::IndexMap;

use super::room;
use crate::Text;

/// Fields and their values, in an order that depends only on the operations on them.
///
/// They lie in one row. When a field is removed, the last takes its place.
#[derive(Clone, Debug, Default)]
pub struct Hash {
    fields: IndexMap<Box<[u8]>, Text, RandomState>,
}

impl Hash {
    /// The number of fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// A field's value.
    pub fn get(&self, field: &[u8]) -> Option<&Text> {
        self.fields.get(field)
    }

    /// The field at a place, and its value.
    pub fn at(&self, place: usize) -> Option<(&[u8], &Text)> {
        self.fields.get_index(place).map(|(field, value)| (&**field, value))
    }

    /// All fields and their values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &Text)> {
        self.fields.iter().map(|(field, value)| (&**field, value))
    }

    /// Sets a field. Returns whether it is new.
    pub fn set(&mut self, field: &[u8], value: Text) -> bool {
        if let Some(old) = self.fields.get_mut(field) {
            *old = value;
            return false;
        }
        self.fields.insert(field.into(), value);
        true
    }

    /// Removes a field. Returns whether it was there.
    pub fn remove(&mut self, field: &[u8]) -> bool {
        let removed = self.fields.swap_remove(field).is_some();
        if let Some(room) = room::surplus(self.fields.len(), self.fields.capacity()) {
            self.fields.shrink_to(room);
        }
        removed
    }

    /// The bytes of memory beyond the value itself; an estimate where there are many fields.
    pub fn heap_bytes(&self) -> usize {
        let table = room::table_bytes(self.fields.capacity(), size_of::<(Box<[u8]>, Text)>());
        let entry = |place| {
            let (field, value) = self.fields.get_index(place).expect("only places in use are measured");
            field.len() + value.heap_bytes()
        };
        table + room::sum_bytes(self.fields.len(), entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_fields_take_little_memory_and_removed_ones_give_theirs_back() {
        let mut hash = Hash::default();
        let field = |number: i64| format!("field{number}").into_bytes();
        (0..5).for_each(|number| assert!(hash.set(&field(number), Text::from(number))));
        assert!(hash.heap_bytes() < 600, "{}", hash.heap_bytes());
        (5..10_000).for_each(|number| assert!(hash.set(&field(number), Text::from(number))));
        assert!(hash.heap_bytes() > 10_000 * 50);
        (5..10_000).for_each(|number| assert!(hash.remove(&field(number))));
        assert!(hash.heap_bytes() < 4_000, "{}", hash.heap_bytes());
        assert_eq!(hash.get(b"field3"), Some(&Text::from(3)));
    }
}
