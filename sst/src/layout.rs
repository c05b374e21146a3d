//! The columns of a table, and their places in a row.
//!
//! A row, in bytes; every part is a multiple of 8, the row a multiple of 64 (a cache line):
//!
//! ```text
//! 0               bytes columns, each padded to 8
//! counters_at     counters, 8 each, in the order of their declaration
//! flags_at        flags, 8 each (0 or 1)
//! row_bytes       the next row
//! ```

use std::sync::Arc;

use squall_fabric::Fingerprint;

/// A `u64` that only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter(pub(crate) u32);

/// Several counters that belong together, such as one for each member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    first: u32,
    len: u32,
}

impl Counters {
    /// The counter with this index.
    ///
    /// # Panics
    ///
    /// If there are too few.
    pub fn nth(self, index: usize) -> Counter {
        assert!(index < self.len as usize, "counter {index} of {}", self.len);
        Counter(self.first + index as u32)
    }

    /// The number of counters.
    pub fn len(self) -> usize {
        self.len as usize
    }

    /// Whether there are no counters.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// A fact that is false until it is raised, and then stays true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag(pub(crate) u32);

/// A byte array of fixed length that is written once, before the counter or flag that announces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

/// A set of columns, for change detection. It is exact for the first 63 counters and flags of a layout; all others
/// share the last place, so that a change of one of them counts as a change of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColumnSet(u64);

impl ColumnSet {
    /// No column.
    pub const EMPTY: ColumnSet = ColumnSet(0);

    pub(crate) fn of_word(word: usize) -> ColumnSet {
        ColumnSet(1 << word.min(63))
    }

    /// The columns of both sets.
    pub fn union(self, other: ColumnSet) -> ColumnSet {
        ColumnSet(self.0 | other.0)
    }

    /// Whether the two have a column in common.
    pub fn intersects(self, other: ColumnSet) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether the set has no column.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The columns of a table.
#[derive(Debug)]
pub struct Layout {
    counters_at: usize,
    counters: usize,
    flags: usize,
    row_bytes: usize,
    fingerprint: u64,
}

impl Layout {
    /// A layout without columns yet.
    pub fn builder() -> LayoutBuilder {
        LayoutBuilder::default()
    }

    /// The size of a row, in bytes.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// A number that two layouts share only if they have the same columns, by name, kind and order. It is meant for the
    /// hello of a connection, so that members with different layouts refuse each other instead of misreading.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The set of one counter's column.
    pub fn counter_set(&self, counter: Counter) -> ColumnSet {
        ColumnSet::of_word(counter.0 as usize)
    }

    /// The set of one flag's column.
    pub fn flag_set(&self, flag: Flag) -> ColumnSet {
        ColumnSet::of_word(self.counters + flag.0 as usize)
    }

    pub(crate) fn counters(&self) -> usize {
        self.counters
    }

    /// The number of words: counters and flags.
    pub(crate) fn words(&self) -> usize {
        self.counters + self.flags
    }

    /// The word's offset in its row, in bytes.
    pub(crate) fn word_at(&self, word: usize) -> usize {
        self.counters_at + word * 8
    }
}

/// A builder of layouts. Every member of a table must declare the same columns in the same order.
#[derive(Debug, Default)]
pub struct LayoutBuilder {
    bytes: u32,
    counters: u32,
    flags: u32,
    fingerprint: Fingerprint,
}

impl LayoutBuilder {
    /// Adds a counter. Declare counters that change together one after another: a push covers the range between them.
    pub fn counter(&mut self, name: &str) -> Counter {
        self.counters(name, 1).nth(0)
    }

    /// Adds `len` counters.
    ///
    /// # Panics
    ///
    /// If the layout has 2^32 counters then, or more.
    pub fn counters(&mut self, name: &str, len: usize) -> Counters {
        let len = u32::try_from(len).expect("fewer than 2^32 counters");
        let first = self.counters;
        self.counters = first.checked_add(len).expect("fewer than 2^32 counters");
        self.fingerprint.text("counters").text(name).number(u64::from(len));
        Counters { first, len }
    }

    /// Adds a flag.
    pub fn flag(&mut self, name: &str) -> Flag {
        self.flags += 1;
        self.fingerprint.text("flag").text(name);
        Flag(self.flags - 1)
    }

    /// Adds a byte array of `len` bytes.
    ///
    /// # Panics
    ///
    /// If the layout has 4 GiB of such arrays then, or more.
    pub fn bytes(&mut self, name: &str, len: usize) -> Bytes {
        let len = u32::try_from(len).expect("less than 4 GiB");
        let offset = self.bytes;
        self.bytes = len.checked_next_multiple_of(8).and_then(|len| offset.checked_add(len)).expect("less than 4 GiB");
        self.fingerprint.text("bytes").text(name).number(u64::from(len));
        Bytes { offset, len }
    }

    /// Builds the layout of the declared columns.
    pub fn build(self) -> Arc<Layout> {
        let counters_at = self.bytes as usize;
        let (counters, flags) = (self.counters as usize, self.flags as usize);
        let row_bytes = (counters_at + (counters + flags) * 8).max(1).next_multiple_of(64);
        Arc::new(Layout { counters_at, counters, flags, row_bytes, fingerprint: self.fingerprint.value() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_whole_cache_lines_and_columns_do_not_overlap() {
        let mut builder = Layout::builder();
        let bytes = builder.bytes("b", 13);
        let a = builder.counter("a");
        let flag = builder.flag("f");
        let many = builder.counters("many", 9);
        let layout = builder.build();
        assert_eq!(layout.row_bytes() % 64, 0);
        assert!(layout.word_at(a.0 as usize) >= (bytes.offset + bytes.len) as usize);
        let last_counter = layout.word_at(many.nth(8).0 as usize);
        assert_eq!(layout.word_at(layout.counters() + flag.0 as usize), last_counter + 8);
        assert!(last_counter + 16 <= layout.row_bytes());
    }

    #[test]
    fn fingerprints_tell_names_kinds_and_order_apart() {
        let build = |columns: &[(char, &str)]| {
            let mut builder = Layout::builder();
            for &(kind, name) in columns {
                match kind {
                    'c' => _ = builder.counter(name),
                    'C' => _ = builder.counters(name, 2),
                    'f' => _ = builder.flag(name),
                    _ => _ = builder.bytes(name, 8),
                }
            }
            builder.build().fingerprint()
        };
        let all = [
            build(&[('c', "a"), ('c', "b")]),
            build(&[('c', "b"), ('c', "a")]),
            build(&[('c', "a"), ('f', "b")]),
            build(&[('c', "a"), ('b', "b")]),
            build(&[('C', "a")]),
            build(&[('c', "ab")]),
            build(&[]),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b), "layout {i} looks like an earlier one");
        }
    }

    #[test]
    fn columns_beyond_the_exact_ones_share_a_place() {
        let mut builder = Layout::builder();
        let many = builder.counters("many", 100);
        let layout = builder.build();
        let set = |i| layout.counter_set(many.nth(i));
        assert!(!set(0).intersects(set(1)));
        assert!(set(70).intersects(set(99)));
        assert!(!set(62).intersects(set(63)));
    }
}
