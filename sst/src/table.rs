//! A member's copy of the table: its own row to write, the others' to read.

use std::sync::Arc;

use squall_fabric::{
    Fabric, INLINE_BYTES, Op, PostError, Region, RegionKey, RegionKind, RegisterError, RemoteRegion, Slice, Source,
    Target, Token,
};

use crate::{
    layout::{Bytes, ColumnSet, Counter, Flag, Layout},
    mesh::Mesh,
};

/// A member's copy of a table with one row for each member of its [`Mesh`].
///
/// Each row lies in a region of its own, so that a member can be given its row without the others'.
#[derive(Debug)]
pub struct Table {
    layout: Arc<Layout>,
    rows: Vec<Region>,
    me: usize,
    /// The counters and flags of all rows as of the last refresh, row by row. The own row is always up to date.
    seen: Vec<u64>,
    /// The changes in the own row that are owed to each peer.
    owed: Vec<Owed>,
    changed: ColumnSet,
}

/// The changes in the own row since it was last pushed to one peer.
#[derive(Clone, Debug, Default)]
struct Owed {
    bytes: Vec<Bytes>,
    counters: Words,
    flags: Words,
}

impl Owed {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.counters.len() == 0 && self.flags.len() == 0
    }
}

/// A range of words of a row, counted from its first counter.
#[derive(Clone, Copy, Debug, Default)]
struct Words {
    start: usize,
    end: usize,
}

impl Words {
    fn len(self) -> usize {
        self.end - self.start
    }

    fn include(&mut self, word: usize) {
        *self = match self.len() {
            0 => Words { start: word, end: word + 1 },
            _ => Words { start: self.start.min(word), end: self.end.max(word + 1) },
        };
    }
}

impl Table {
    /// Registers the memory of a table of `rows` rows, of which this member writes row `me`.
    ///
    /// # Panics
    ///
    /// If there is no row `me`.
    pub fn register(
        fabric: &mut impl Fabric,
        layout: Arc<Layout>,
        rows: usize,
        me: usize,
    ) -> Result<Table, RegisterError> {
        assert!(me < rows, "row {me} of {rows}");
        let (seen, owed) = (vec![0; layout.words() * rows], vec![Owed::default(); rows]);
        let rows: Result<_, _> = (0..rows).map(|_| fabric.register(RegionKind::Polled, layout.row_bytes())).collect();
        Ok(Table { layout, rows: rows?, me, seen, owed, changed: ColumnSet::EMPTY })
    }

    /// The number of rows: one for each member.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The own row's index.
    pub fn me(&self) -> usize {
        self.me
    }

    /// The table's layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The memory of a row, to be exposed to the member that writes it, and to no other.
    pub fn row(&self, member: usize) -> &Region {
        &self.rows[member]
    }

    /// Whether a peer's region can be its copy of this member's row.
    pub fn is_copy(&self, remote: &RemoteRegion) -> bool {
        remote.kind == RegionKind::Polled && remote.bytes == self.layout.row_bytes()
    }

    #[inline]
    fn seen(&self, row: usize, word: usize) -> u64 {
        debug_assert!(word < self.layout.words());
        self.seen[row * self.layout.words() + word]
    }

    /// A member's counter as of the last [`refresh`](Table::refresh); the own one is always up to date.
    #[inline]
    pub fn get(&self, row: usize, counter: Counter) -> u64 {
        self.seen(row, counter.0 as usize)
    }

    /// A member's flag as of the last [`refresh`](Table::refresh); the own one is always up to date.
    #[inline]
    pub fn is_set(&self, row: usize, flag: Flag) -> bool {
        self.seen(row, self.layout.counters() + flag.0 as usize) != 0
    }

    /// The smallest value of a counter over all rows.
    pub fn min(&self, counter: Counter) -> u64 {
        (0..self.rows()).map(|row| self.get(row, counter)).min().expect("a table has rows")
    }

    /// Copies a member's byte array out; meaningful once the counter or flag that announces it was seen.
    ///
    /// # Panics
    ///
    /// If `into` is not of the column's length.
    pub fn read_bytes(&self, row: usize, bytes: Bytes, into: &mut [u8]) {
        assert_eq!(into.len(), bytes.len as usize, "the column's length");
        self.rows[row].read(bytes.offset as usize, into);
    }

    /// Raises a counter of the own row. A value that is not higher changes nothing.
    ///
    /// # Panics
    ///
    /// If the value is lower than before: columns are monotonic.
    #[inline]
    pub fn set(&mut self, counter: Counter, value: u64) {
        let word = counter.0 as usize;
        if self.set_word(word, value) {
            for owed in &mut self.owed {
                owed.counters.include(word);
            }
        }
    }

    /// Raises a flag of the own row.
    pub fn raise(&mut self, flag: Flag) {
        let word = self.layout.counters() + flag.0 as usize;
        if self.set_word(word, 1) {
            for owed in &mut self.owed {
                owed.flags.include(word);
            }
        }
    }

    fn set_word(&mut self, word: usize, value: u64) -> bool {
        let me = self.me;
        let slot = &mut self.seen[me * self.layout.words() + word];
        assert!(value >= *slot, "word {word} of row {me} would fall from {slot} to {value}");
        if value == *slot {
            return false;
        }
        *slot = value;
        self.rows[me].store(self.layout.word_at(word), value);
        self.changed = self.changed.union(ColumnSet::of_word(word));
        true
    }

    /// Writes a byte array of the own row; once, before the counter or flag that announces it is raised.
    ///
    /// # Panics
    ///
    /// If `from` is not of the column's length.
    pub fn write_bytes(&mut self, bytes: Bytes, from: &[u8]) {
        assert_eq!(from.len(), bytes.len as usize, "the column's length");
        self.rows[self.me].write(bytes.offset as usize, from);
        for owed in &mut self.owed {
            owed.bytes.push(bytes);
        }
    }

    /// Reads the other members' rows.
    pub fn refresh(&mut self) {
        let (words, counters) = (self.layout.words(), self.layout.counters());
        for (row, memory) in self.rows.iter().enumerate().filter(|&(row, _)| row != self.me) {
            // Flags before counters: a reader that sees a flag must see the counters that were pushed before it.
            for word in (counters..words).chain(0..counters) {
                let value = memory.load(self.layout.word_at(word));
                let seen = &mut self.seen[row * words + word];
                // Columns only grow; a value that falls is a peer's fault, and is ignored.
                if value > *seen {
                    *seen = value;
                    self.changed = self.changed.union(ColumnSet::of_word(word));
                }
            }
        }
    }

    /// The columns that changed in any row since the last call.
    pub fn take_changes(&mut self) -> ColumnSet {
        std::mem::take(&mut self.changed)
    }

    /// Whether the own row has changes that `peer` was not sent yet.
    pub fn owes(&self, peer: usize) -> bool {
        !self.owed[peer].is_empty()
    }

    /// Pushes the changes in the own row to one peer: bytes, then one write of counters, then flags.
    ///
    /// `remote` is the peer's copy of the row. Returns whether the peer has been sent everything. If its queue is
    /// full the rest stays owed, and goes out with the changes until the next call.
    pub fn push(&mut self, fabric: &mut impl Fabric, mesh: &Mesh, peer: usize, remote: RegionKey) -> bool {
        let Some((endpoint, _)) = mesh.link(peer) else { return false };
        let mut owed = std::mem::take(&mut self.owed[peer]);
        let mut post = |source: Source<'_>, offset: usize| {
            let target = Target { region: remote, offset };
            match fabric.post(endpoint, Op::Write { source, target }, Token::UNSIGNALED) {
                Ok(()) => true,
                Err(PostError::Full | PostError::Broken) => false,
                Err(other) => unreachable!("a push is well-formed: {other}"),
            }
        };
        let mut sent = true;
        while let (true, Some(bytes)) = (sent, owed.bytes.first()) {
            let (offset, len) = (bytes.offset as usize, (bytes.len as usize).next_multiple_of(8));
            // The array does not change any more, so the region may be the source, whenever the bytes are fetched.
            sent = post(Source::Region(Slice { region: &self.rows[self.me], offset, len }), offset);
            if sent {
                owed.bytes.remove(0);
            }
        }
        let mut inline = [0; INLINE_BYTES];
        for range in [&mut owed.counters, &mut owed.flags] {
            while sent && range.len() > 0 {
                let words = range.len().min(INLINE_BYTES / 8);
                for (bytes, word) in inline.chunks_exact_mut(8).zip(range.start..range.start + words) {
                    bytes.copy_from_slice(&self.seen[self.me * self.layout.words() + word].to_ne_bytes());
                }
                sent = post(Source::Inline(&inline[..words * 8]), self.layout.word_at(range.start));
                if sent {
                    range.start += words;
                }
            }
        }
        let done = owed.is_empty();
        self.owed[peer] = owed;
        done
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{layout::Counters, testing::HandFabric};

    /// Node 0's table, and node 1's, which node 0 pushes to.
    struct Pair {
        fabric: HandFabric,
        mesh: Mesh,
        mine: Table,
        theirs: Table,
        bytes: Bytes,
        counters: Counters,
        flags: [Flag; 2],
    }

    /// A number of counters that does not fit into one inline write.
    const COUNTERS: usize = INLINE_BYTES / 8 + 8;

    impl Pair {
        fn new() -> Pair {
            let mut layout = Layout::builder();
            let flags = [layout.flag("f0"), layout.flag("f1")];
            let (bytes, counters) = (layout.bytes("bytes", 300), layout.counters("counters", COUNTERS));
            let layout = layout.build();
            let mut fabric = HandFabric::default();
            let [mine, theirs] =
                [0, 1].map(|me| Table::register(&mut fabric, Arc::clone(&layout), 2, me).expect("memory"));
            let mesh = fabric.mesh(1);
            Pair { fabric, mesh, mine, theirs, bytes, counters, flags }
        }

        /// Pushes at most `room` posts. Returns whether all is sent.
        fn push(&mut self, room: usize) -> bool {
            self.fabric.room = room;
            let sent = self.mine.push(&mut self.fabric, &self.mesh, 1, self.theirs.row(0).key());
            assert_eq!(sent, !self.mine.owes(1));
            sent
        }

        fn land(&mut self, count: usize) -> usize {
            let landed = self.fabric.land(count).len();
            self.theirs.refresh();
            landed
        }
    }

    const PATTERN: [u8; 300] = [0xa5; 300];

    #[test]
    fn bytes_go_before_counters_and_counters_before_flags() {
        let mut pair = Pair::new();
        pair.mine.raise(pair.flags[1]);
        pair.mine.set(pair.counters.nth(3), 7);
        pair.mine.write_bytes(pair.bytes, &PATTERN);
        assert!(pair.push(9));
        assert_eq!(pair.land(1), 1);
        let (counter, flag) = (pair.counters.nth(3), pair.flags[1]);
        let mut copy = [0; PATTERN.len()];
        pair.theirs.read_bytes(0, pair.bytes, &mut copy);
        assert_eq!((copy, pair.theirs.get(0, counter), pair.theirs.is_set(0, flag)), (PATTERN, 0, false));
        assert_eq!(pair.land(1), 1);
        assert_eq!((pair.theirs.get(0, counter), pair.theirs.is_set(0, flag)), (7, false));
        assert_eq!(pair.land(9), 1);
        assert_eq!((pair.theirs.get(0, counter), pair.theirs.is_set(0, flag)), (7, true));
        assert!(pair.push(0), "nothing is owed any more");
    }

    #[test]
    fn a_push_carries_the_values_of_its_time() {
        let mut pair = Pair::new();
        let counter = pair.counters.nth(0);
        pair.mine.set(counter, 1);
        pair.push(1);
        pair.mine.set(counter, 2);
        assert_eq!(pair.mine.get(0, counter), 2);
        pair.land(1);
        assert_eq!(pair.theirs.get(0, counter), 1);
    }

    #[test]
    fn a_value_that_falls_is_ignored() {
        let mut pair = Pair::new();
        let (counter, flag) = (pair.counters.nth(5), pair.flags[0]);
        pair.mine.set(counter, 7);
        pair.mine.raise(flag);
        pair.push(2);
        pair.land(2);
        let layout = Arc::clone(&pair.theirs.layout);
        assert_eq!(pair.theirs.take_changes(), layout.counter_set(counter).union(layout.flag_set(flag)));
        for word in [counter.0 as usize, layout.counters()] {
            pair.theirs.row(0).store(layout.word_at(word), 0);
        }
        pair.theirs.refresh();
        assert_eq!((pair.theirs.get(0, counter), pair.theirs.is_set(0, flag)), (7, true));
        assert!(pair.theirs.take_changes().is_empty());
    }

    #[test]
    fn the_smallest_value_counts_the_own_row() {
        let mut pair = Pair::new();
        let counter = pair.counters.nth(0);
        pair.mine.set(counter, 4);
        pair.push(1);
        pair.land(1);
        assert_eq!((pair.theirs.min(counter), pair.theirs.min(pair.counters.nth(1))), (0, 0));
        pair.theirs.set(counter, 3);
        assert_eq!(pair.theirs.min(counter), 3);
    }

    #[test]
    #[should_panic(expected = "would fall from 4 to 3")]
    fn the_own_counter_must_not_fall() {
        let mut pair = Pair::new();
        pair.mine.set(pair.counters.nth(0), 4);
        pair.mine.set(pair.counters.nth(0), 3);
    }

    /// A refresh reads flags before the counters that were pushed before them, since both change while it reads.
    #[test]
    fn a_flag_shows_the_counters_before_it_while_they_are_written() {
        const COLUMNS: usize = 4000;
        let mut layout = Layout::builder();
        let counters = layout.counters("counters", COLUMNS);
        let flags: Vec<Flag> = (0..COLUMNS).map(|i| layout.flag(&i.to_string())).collect();
        let layout = layout.build();
        let mut table = Table::register(&mut HandFabric::default(), Arc::clone(&layout), 2, 1).expect("memory");
        let row = table.row(0).clone();
        let start = Arc::new(std::sync::Barrier::new(2));
        let started = Arc::clone(&start);
        let writer = std::thread::spawn(move || {
            started.wait();
            for i in 0..COLUMNS {
                for word in [i, COLUMNS + i] {
                    row.store(layout.word_at(word), 1);
                }
                // A pause, so that many refreshes fall into the writes.
                (0..50).for_each(|_| std::hint::spin_loop());
            }
        });
        start.wait();
        while !table.is_set(0, flags[COLUMNS - 1]) {
            table.refresh();
            for (i, &flag) in flags.iter().enumerate() {
                assert!(!table.is_set(0, flag) || table.get(0, counters.nth(i)) == 1, "flag {i} without its counter");
            }
        }
        writer.join().expect("no panic");
    }

    #[derive(Clone, Debug)]
    enum Do {
        Raise(usize),
        Add(usize, u64),
        Push(usize),
        Land(usize),
    }

    fn doing() -> impl Strategy<Value = Do> {
        prop_oneof![
            1 => (0..2usize).prop_map(Do::Raise),
            8 => (0..COUNTERS, 0..5u64).prop_map(|(i, by)| Do::Add(i, by)),
            4 => (0..4usize).prop_map(Do::Push),
            4 => (1..4usize).prop_map(Do::Land),
        ]
    }

    proptest! {
        /// The queue takes any part of the owed changes at a time.
        #[test]
        fn what_is_seen_together_was_set_together(what in prop::collection::vec(doing(), 1..120), bytes_at in 0..100usize) {
            let mut pair = Pair::new();
            // The counters' values when each flag was raised.
            let mut raised: [Option<Vec<u64>>; 2] = [None, None];
            let mut written = false;
            for (i, what) in what.iter().enumerate() {
                if i == bytes_at {
                    pair.mine.write_bytes(pair.bytes, &PATTERN);
                    written = true;
                }
                match *what {
                    Do::Raise(f) => {
                        pair.mine.raise(pair.flags[f]);
                        let values = (0..COUNTERS).map(|c| pair.mine.get(0, pair.counters.nth(c))).collect();
                        raised[f].get_or_insert(values);
                    }
                    // Counter 0 announces the bytes.
                    Do::Add(0, _) if !written => {}
                    Do::Add(c, by) => {
                        let value = pair.mine.get(0, pair.counters.nth(c)) + by;
                        pair.mine.set(pair.counters.nth(c), value);
                    }
                    Do::Push(room) => _ = pair.push(room),
                    Do::Land(count) => _ = pair.land(count),
                }
                let seen: Vec<u64> = (0..COUNTERS).map(|c| pair.theirs.get(0, pair.counters.nth(c))).collect();
                for (flag, raised) in pair.flags.into_iter().zip(&raised) {
                    if pair.theirs.is_set(0, flag) {
                        let raised = raised.as_ref().expect("a flag that is seen was raised");
                        prop_assert!(seen.iter().zip(raised).all(|(seen, raised)| seen >= raised));
                    }
                }
                if seen[0] > 0 {
                    let mut copy = [0; PATTERN.len()];
                    pair.theirs.read_bytes(0, pair.bytes, &mut copy);
                    prop_assert_eq!(copy, PATTERN);
                }
            }
            prop_assert!(pair.push(9));
            pair.land(usize::MAX);
            for c in 0..COUNTERS {
                prop_assert_eq!(pair.theirs.get(0, pair.counters.nth(c)), pair.mine.get(0, pair.counters.nth(c)));
            }
            for flag in pair.flags {
                prop_assert_eq!(pair.theirs.is_set(0, flag), pair.mine.is_set(0, flag));
            }
        }
    }
}
