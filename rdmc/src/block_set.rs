//! The set of a message's blocks that a member holds.

/// A set of the blocks `0..len` of a message.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("BlockSet({count} of {len})")]
pub struct BlockSet {
    /// Empty while the set is: the number of blocks may be anything that a peer claims.
    words: Vec<u64>,
    len: u32,
    count: u32,
}

impl BlockSet {
    /// Makes a set with none of `len` blocks.
    pub fn new(len: u32) -> BlockSet {
        BlockSet { words: Vec::new(), len, count: 0 }
    }

    /// All of `len` blocks.
    pub fn full(len: u32) -> BlockSet {
        let mut set = BlockSet { words: vec![u64::MAX; Self::words_for(len)], len, count: len };
        set.clear_beyond();
        set
    }

    /// The number of words for `len` blocks, a bit each.
    pub(crate) fn words_for(len: u32) -> usize {
        len.div_ceil(64) as usize
    }

    /// A set by its words: block b is bit b mod 64 of word b / 64. Bits beyond `len` are ignored.
    pub fn from_words(words: Vec<u64>, len: u32) -> BlockSet {
        let mut set = BlockSet { words, len, count: 0 };
        set.words.resize(Self::words_for(len), 0);
        set.clear_beyond();
        set.count = set.words.iter().map(|word| word.count_ones()).sum();
        if set.is_empty() { BlockSet::new(len) } else { set }
    }

    fn clear_beyond(&mut self) {
        if let (Some(last), rest @ 1..) = (self.words.last_mut(), self.len % 64) {
            *last &= (1 << rest) - 1;
        }
    }

    /// The set's words, as [`from_words`](BlockSet::from_words) takes them; none if it is empty.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Adds a block. Returns whether it is new.
    ///
    /// # Panics
    ///
    /// If the message has no such block.
    pub fn insert(&mut self, block: u32) -> bool {
        assert!(block < self.len, "block {block} of {}", self.len);
        self.words.resize(Self::words_for(self.len), 0);
        let (word, bit) = (&mut self.words[block as usize / 64], 1 << (block % 64));
        let new = *word & bit == 0;
        *word |= bit;
        self.count += u32::from(new);
        new
    }

    /// Whether the set has the block.
    pub fn contains(&self, block: u32) -> bool {
        self.words.get(block as usize / 64).is_some_and(|word| word & (1 << (block % 64)) != 0)
    }

    /// The number of blocks of the message.
    pub fn blocks(&self) -> u32 {
        self.len
    }

    /// The number of blocks in the set.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether the set has no block.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether the set has all blocks.
    pub fn is_full(&self) -> bool {
        self.count == self.len
    }

    /// The blocks that the set lacks, in order.
    pub fn missing(&self) -> impl Iterator<Item = u32> {
        let len = self.len;
        (0..Self::words_for(len)).flat_map(move |at| {
            let word = self.words.get(at).copied().unwrap_or(0);
            let first = at as u32 * 64;
            let beyond = len - first;
            let mut lacking = if beyond < 64 { !word & ((1 << beyond) - 1) } else { !word };
            std::iter::from_fn(move || {
                let bit = (lacking != 0).then(|| lacking.trailing_zeros())?;
                lacking &= lacking - 1;
                Some(first + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_count_and_list_what_they_lack() {
        for len in [0, 1, 63, 64, 65, 130] {
            let mut set = BlockSet::new(len);
            assert!(set.missing().eq(0..len), "{len}");
            for block in (0..len).step_by(3) {
                assert!(set.insert(block) && !set.insert(block) && set.contains(block));
            }
            assert_eq!(set.count(), len.div_ceil(3));
            assert!(set.missing().eq((0..len).filter(|block| block % 3 > 0)));
            assert_eq!(BlockSet::from_words(set.words().to_vec(), len), set);
            let full = BlockSet::full(len);
            assert!(full.is_full() && full.missing().next().is_none() && !full.contains(len));
            assert_eq!(BlockSet::from_words(vec![u64::MAX; 5], len), full, "what lies beyond is ignored");
        }
    }
}
