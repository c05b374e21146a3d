//! The contents of a message, by which its receivers can tell it from any other.

/// The stride of the written words. A word in every page is enough to tell messages apart, and touches few cache lines.
pub(super) const PAGE: usize = 4096;

/// The bytes at the beginning of each page that are written and compared.
pub(super) const COMPARED: usize = 8;

/// One group's message of one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageContents {
    seed: u64,
    every: usize,
}

impl MessageContents {
    /// The contents of a group's message. In round 0 every byte is written and compared, later a word of each page.
    pub(super) fn of(group: u32, round: u32) -> MessageContents {
        let every = if round == 0 { COMPARED } else { PAGE };
        MessageContents { seed: u64::from(group) << 32 | u64::from(round), every }
    }

    fn word(self, offset: usize) -> [u8; COMPARED] {
        // SplitMix64's mixing: neighbours have nothing in common.
        let mut word = (self.seed << 8).wrapping_add(offset as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (word ^ word >> 27).to_le_bytes()
    }

    pub(super) fn write(self, bytes: &mut [u8]) {
        self.each_word(bytes.len(), |at, word| bytes[at..][..word.len()].copy_from_slice(word));
    }

    /// Calls `write` with the offset and the bytes of each word of a message of `len` bytes.
    pub(super) fn each_word(self, len: usize, mut write: impl FnMut(usize, &[u8])) {
        for at in (0..len).step_by(self.every) {
            write(at, &self.word(at)[..COMPARED.min(len - at)]);
        }
    }

    /// The offset of the first word that differs from these contents, if any does.
    pub(super) fn first_difference(self, bytes: &[u8]) -> Option<usize> {
        let differs = |(at, chunk): (usize, &[u8])| {
            let len = chunk.len().min(COMPARED);
            (chunk[..len] != self.word(at * self.every)[..len]).then_some(at * self.every)
        };
        bytes.chunks(self.every).enumerate().find_map(differs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_wrong_is_found_in_the_first_round_and_a_page_that_is_wrong_in_any() {
        let mut message = vec![0; 3 * PAGE + 5];
        MessageContents::of(0, 0).write(&mut message);
        assert_eq!(MessageContents::of(0, 0).first_difference(&message), None);
        message[PAGE + 17] ^= 1;
        assert_eq!(MessageContents::of(0, 0).first_difference(&message), Some(PAGE + 16));

        MessageContents::of(0, 1).write(&mut message);
        assert_eq!(MessageContents::of(0, 1).first_difference(&message), None);
        let last = message.len() - 5;
        message[last] ^= 1;
        assert_eq!(MessageContents::of(0, 1).first_difference(&message), Some(3 * PAGE));
    }

    #[test]
    fn messages_of_other_rounds_and_groups_differ() {
        let mut message = vec![0; 2 * PAGE];
        MessageContents::of(1, 7).write(&mut message);
        for other in [MessageContents::of(1, 8), MessageContents::of(2, 7)] {
            assert_eq!(other.first_difference(&message), Some(0));
        }
    }
}
