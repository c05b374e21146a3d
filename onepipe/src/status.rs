//! The reports of a rank to another besides messages: a few words that change often, written together.

use squall_fabric::{Fabric, Op, Region, Source, Target};

use crate::{Mode, layout::STATUS, peer_link::PeerLink, timestamp::Timestamp};

/// A word of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusWord {
    /// The writer's barrier; in a hierarchy, that of all ranks that tell theirs through it.
    Barrier(Mode),
    /// The barrier of all ranks, on its way down the hierarchy.
    Down(Mode),
    /// The greatest timestamp of the mode that a rank waits for barriers to pass.
    Want(Mode),
    /// The number of the last batch of recalls that was carried out.
    Recalled,
    /// The position up to which the reader's ring has arrived.
    Arrived(Mode),
    /// The position up to which the writer has taken out records from the reader's ring.
    Freed(Mode),
}

impl StatusWord {
    /// The word's index: barriers first, beside the tails, acknowledgements in the next cache line.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        match self {
            StatusWord::Barrier(mode) => mode as usize,
            StatusWord::Down(mode) => 2 + mode as usize,
            StatusWord::Want(mode) => 4 + mode as usize,
            StatusWord::Recalled => 6,
            StatusWord::Arrived(mode) => 7 + mode as usize,
            StatusWord::Freed(mode) => 9 + mode as usize,
        }
    }
}

/// The words as they are read.
pub(crate) type Words = [u64; Status::WORDS];

/// The words that a rank reports to another, and those that it has posted.
#[derive(Debug, Default)]
pub(crate) struct Status {
    words: Words,
    posted: Words,
}

impl Status {
    /// The number of words.
    pub(crate) const WORDS: usize = 11;

    #[inline]
    pub(crate) fn set(&mut self, word: StatusWord, value: u64) {
        self.words[word.index()] = value;
    }

    /// Whether a word is to be posted.
    #[inline]
    pub(crate) fn is_changed(&self) -> bool {
        self.words != self.posted
    }

    /// Posts the words from the first to the last that has changed. If that can't be done now, they go with the next
    /// post.
    #[inline]
    pub(crate) fn post(&mut self, fabric: &mut impl Fabric, link: &PeerLink) {
        let differs = |&at: &usize| self.words[at] != self.posted[at];
        let Some(first) = (0..Status::WORDS).find(differs) else { return };
        let last = (first..Status::WORDS).rfind(differs).unwrap_or(first);
        let mut bytes = [0; 8 * Status::WORDS];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(&self.words[first..=last]) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        let source = Source::Inline(&bytes[..8 * (last - first + 1)]);
        let target = Target { region: link.region, offset: STATUS + 8 * first };
        if link.post(fabric, Op::Write { source, target }) {
            self.posted = self.words;
        }
    }

    /// The words that a peer has reported.
    #[inline]
    pub(crate) fn load(region: &Region) -> Words {
        std::array::from_fn(|at| region.load(STATUS + 8 * at))
    }
}

/// A word for a wide timestamp, as of an epoch. It is never 0, which stands for nothing.
#[inline]
pub(crate) fn encode(epoch: u64, stamp: u64) -> u64 {
    (epoch % EPOCHS + 1) << Timestamp::BITS | Timestamp::from_nanos(stamp).as_nanos()
}

/// The wide timestamp of a word, if it has one as of this epoch.
#[inline]
pub(crate) fn decode(epoch: u64, word: u64, near: u64) -> Option<u64> {
    (word >> Timestamp::BITS == epoch % EPOCHS + 1).then(|| Timestamp::from_nanos(word).widen(near))
}

/// The number of epochs that a word tells apart. A word would count again if it was left in place for as many epochs,
/// by a rank that told its barrier another way ever since. Barriers of the same hierarchy come back in it only after as
/// many failures or joins.
const EPOCHS: u64 = 0xffff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_has_a_place_of_its_own() {
        let mut words = vec![StatusWord::Recalled];
        for mode in Mode::ALL {
            words.extend(
                [StatusWord::Barrier, StatusWord::Down, StatusWord::Want, StatusWord::Arrived, StatusWord::Freed]
                    .map(|word| word(mode)),
            );
        }
        let mut places: Vec<usize> = words.into_iter().map(StatusWord::index).collect();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..Status::WORDS));
        assert_eq!((STATUS + 8 * StatusWord::Recalled.index()) % 64, 0, "acknowledgements begin a cache line");
    }

    #[test]
    fn barriers_are_read_in_their_epoch_only() {
        for epoch in [0, 1, 0xfffd, 0xfffe, 0xffff, 1 << 40] {
            for stamp in [0, 5, (1 << 48) - 1, 1 << 48, (3 << 48) + 77] {
                let word = encode(epoch, stamp);
                assert_ne!(word, 0);
                assert_eq!(decode(epoch, word, stamp + 1000), Some(stamp));
                assert_eq!(decode(epoch + 1, word, stamp), None);
                assert_eq!(epoch.checked_sub(1).and_then(|before| decode(before, word, stamp)), None);
                assert_eq!(decode(epoch, 0, stamp), None);
            }
        }
    }
}
