//! The words of a request, in one buffer. Each is a length (4 bytes, little-endian) and that many bytes.

use smallvec::SmallVec;

/// The words of a request, split. Most requests have few.
pub type Split<'a> = SmallVec<[&'a [u8]; 8]>;

/// Appends a word to a request.
///
/// # Panics
///
/// If the word has 4 GiB or more; no request is as long.
pub fn push(request: &mut Vec<u8>, word: &[u8]) {
    begin(request, word.len());
    request.extend_from_slice(word);
}

/// Begins a word, of which `bytes` bytes are to be appended.
///
/// # Panics
///
/// If the word has 4 GiB or more.
pub fn begin(request: &mut Vec<u8>, bytes: usize) {
    let bytes = u32::try_from(bytes).expect("a word is shorter than 4 GiB");
    request.extend_from_slice(&bytes.to_le_bytes());
}

/// Joins words into a request.
pub fn join<W: AsRef<[u8]>>(words: impl IntoIterator<Item = W>) -> Vec<u8> {
    let mut request = Vec::new();
    words.into_iter().for_each(|word| push(&mut request, word.as_ref()));
    request
}

/// Splits a request into its words. `None` if it was not made by [`push`].
pub fn split(mut request: &[u8]) -> Option<Split<'_>> {
    let mut words = Split::new();
    while !request.is_empty() {
        let (bytes, rest) = request.split_first_chunk()?;
        let (word, rest) = rest.split_at_checked(u32::from_le_bytes(*bytes) as usize)?;
        words.push(word);
        request = rest;
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn what_was_joined_is_split_again(words in vec(vec(any::<u8>(), 0..20), 0..20)) {
            let request = join(&words);
            prop_assert_eq!(split(&request).expect("it was joined").into_vec(), words);
        }

        #[test]
        fn a_request_that_was_cut_is_refused_or_shorter(words in vec(vec(any::<u8>(), 0..20), 1..20), cut in 1usize..24) {
            let request = join(&words);
            let left = request.len().saturating_sub(cut);
            prop_assert!(split(&request[..left]).is_none_or(|split| split.len() < words.len()));
        }
    }
}
