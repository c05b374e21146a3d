//! A message's bytes, wherever they lie.

use squall_sst::ring;

/// A message's bytes, where they were received: read them, or copy them out, before the message counts as delivered.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a>(PayloadSource<'a>);

#[derive(Clone, Copy, Debug)]
enum PayloadSource<'a> {
    Ring(ring::Payload<'a>),
    Bulk(&'a [u8]),
    Kept(&'a [u8]),
}

impl<'a> Payload<'a> {
    #[inline]
    pub(crate) fn in_ring(payload: ring::Payload<'a>) -> Payload<'a> {
        Payload(PayloadSource::Ring(payload))
    }

    /// Makes a payload of bytes in memory that is aligned to 16, and that nothing changes while they are read.
    pub fn settled(bytes: &'a [u8]) -> Payload<'a> {
        Payload(PayloadSource::Bulk(bytes))
    }

    /// Makes a payload of bytes that were copied out when they were received, for a later delivery. They need not be
    /// aligned.
    pub fn kept(bytes: &'a [u8]) -> Payload<'a> {
        Payload(PayloadSource::Kept(bytes))
    }

    /// Returns the payload's length, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            PayloadSource::Ring(payload) => payload.len(),
            PayloadSource::Bulk(bytes) | PayloadSource::Kept(bytes) => bytes.len(),
        }
    }

    /// Returns whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes themselves, aligned to 16, if nothing can change them any more, as those of a bulk message.
    /// None for a small message: a faulty sender could still write its memory, so each byte can only be read once. None
    /// for a [kept](Payload::kept) payload, which is not aligned.
    #[inline]
    pub fn as_slice(&self) -> Option<&'a [u8]> {
        match self.0 {
            PayloadSource::Ring(_) | PayloadSource::Kept(_) => None,
            PayloadSource::Bulk(bytes) => Some(bytes),
        }
    }

    /// Returns the 8 bytes from `8 * index`, as a native-endian word. Bytes beyond the payload's end have no meaning.
    ///
    /// # Panics
    ///
    /// If the word begins beyond the payload's end.
    #[inline]
    pub fn word(&self, index: usize) -> u64 {
        match &self.0 {
            PayloadSource::Ring(payload) => payload.word(index),
            PayloadSource::Bulk(bytes) | PayloadSource::Kept(bytes) => {
                let rest = &bytes[index * 8..];
                assert!(!rest.is_empty(), "word {index} of a payload of {} bytes", bytes.len());
                let mut word = [0; 8];
                let len = rest.len().min(8);
                word[..len].copy_from_slice(&rest[..len]);
                u64::from_ne_bytes(word)
            }
        }
    }

    /// Copies the payload out.
    ///
    /// # Panics
    ///
    /// If `into` is not as long as the payload.
    #[inline]
    pub fn read(&self, into: &mut [u8]) {
        match &self.0 {
            PayloadSource::Ring(payload) => payload.read(into),
            PayloadSource::Bulk(bytes) | PayloadSource::Kept(bytes) => into.copy_from_slice(bytes),
        }
    }

    /// Replaces the contents of `into` by the payload.
    #[inline]
    pub fn copy_to(&self, into: &mut Vec<u8>) {
        match &self.0 {
            PayloadSource::Ring(payload) => payload.copy_to(into),
            PayloadSource::Bulk(bytes) | PayloadSource::Kept(bytes) => {
                into.clear();
                into.extend_from_slice(bytes);
            }
        }
    }
}
