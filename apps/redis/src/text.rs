//! A string value, in the form that suits it.

use std::{borrow::Cow, sync::Arc};

use rkyv::{
    Place,
    rancor::Fallible,
    ser::{Allocator, Writer},
    vec::{ArchivedVec, VecResolver},
    with::{ArchiveWith, DeserializeWith, SerializeWith},
};

use crate::number;

/// A string value. Clones share the bytes, unless these are few.
#[derive(Clone, Debug, derive_more::From)]
pub enum Text {
    /// The decimal digits of a number.
    #[from]
    Integer(i64),
    /// A few bytes, stored inline.
    Short(Short),
    /// Bytes that do not change.
    Fixed(Arc<[u8]>),
    /// Bytes that were appended to, or changed, in place.
    Growing(Arc<Vec<u8>>),
}

/// A text of at most [`Short::MAX`] bytes.
#[derive(Clone, Copy, derive_more::Debug)]
#[debug("\"{}\"", self.bytes().escape_ascii())]
pub struct Short {
    len: u8,
    bytes: [u8; Short::MAX],
}

impl Short {
    /// The most bytes that take no more room than the other forms.
    pub const MAX: usize = 22;

    fn new(bytes: &[u8]) -> Option<Short> {
        let mut room = [0; Short::MAX];
        room.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Short { len: bytes.len() as u8, bytes: room })
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The form of a text in messages to front ends: its bytes, however it is held.
#[derive(Debug)]
pub(crate) struct AsBytes;

impl ArchiveWith<Text> for AsBytes {
    type Archived = ArchivedVec<u8>;
    type Resolver = VecResolver;

    fn resolve_with(text: &Text, resolver: VecResolver, out: Place<ArchivedVec<u8>>) {
        ArchivedVec::resolve_from_len(text.len(), resolver, out);
    }
}

impl<S: Fallible + Writer + Allocator + ?Sized> SerializeWith<Text, S> for AsBytes {
    fn serialize_with(text: &Text, serializer: &mut S) -> Result<VecResolver, S::Error> {
        ArchivedVec::serialize_from_slice(&text.bytes(), serializer)
    }
}

impl<D: Fallible + ?Sized> DeserializeWith<ArchivedVec<u8>, Text, D> for AsBytes {
    fn deserialize_with(bytes: &ArchivedVec<u8>, _: &mut D) -> Result<Text, D::Error> {
        Ok(Text::plain(bytes))
    }
}

impl Text {
    /// A text of these bytes as they are, even if they are a number's digits.
    pub fn plain(bytes: &[u8]) -> Text {
        Short::new(bytes).map_or_else(|| Text::Fixed(Arc::from(bytes)), Text::Short)
    }

    /// The bytes that are held, or else the number whose digits they are.
    fn held(&self) -> Result<&[u8], i64> {
        match self {
            Text::Integer(number) => Err(*number),
            Text::Short(short) => Ok(short.bytes()),
            Text::Fixed(bytes) => Ok(bytes),
            Text::Growing(bytes) => Ok(bytes),
        }
    }

    /// The bytes. Copied only if they are a number's digits.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        self.held().map_or_else(|number| Cow::Owned(number.to_string().into_bytes()), Cow::Borrowed)
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.held().map_or_else(number::digits, <[u8]>::len)
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number whose digits these are, as Redis reads it; `None` if they are no number's.
    pub fn integer(&self) -> Option<i64> {
        self.held().map_or_else(Some, number::integer)
    }

    /// The bytes, to change them. Copies them if another clone holds them too, or if they were of a fixed length.
    pub fn make_mut(&mut self) -> &mut Vec<u8> {
        if !matches!(self, Text::Growing(_)) {
            *self = Text::Growing(Arc::new(self.bytes().into_owned()));
        }
        match self {
            Text::Growing(bytes) => Arc::make_mut(bytes),
            Text::Integer(_) | Text::Short(_) | Text::Fixed(_) => unreachable!("it was just made to grow"),
        }
    }

    /// The bytes, to change them, as of [`make_mut`](Text::make_mut), and at least `len` of them: zeros follow the
    /// present ones.
    pub fn make_mut_of(&mut self, len: usize) -> &mut Vec<u8> {
        if len / 2 > self.len() {
            // For many bytes the system has zeros ready. Writing them would take long, and would use the memory at
            // once.
            let mut bytes = vec![0; len];
            bytes[..self.len()].copy_from_slice(&self.bytes());
            *self = Text::Growing(Arc::new(bytes));
        }
        let bytes = self.make_mut();
        bytes.resize(bytes.len().max(len), 0);
        bytes
    }

    /// Bytes of memory beyond the value itself.
    pub fn heap_bytes(&self) -> usize {
        /// The size of an `Arc`'s two counts.
        const COUNTS: usize = 2 * size_of::<usize>();
        match self {
            Text::Integer(_) | Text::Short(_) => 0,
            Text::Fixed(bytes) => COUNTS + bytes.len(),
            Text::Growing(bytes) => COUNTS + size_of::<Vec<u8>>() + bytes.capacity(),
        }
    }
}

/// A text of these bytes. The digits of a number, as Redis writes it, are kept as that number.
impl From<&[u8]> for Text {
    fn from(bytes: &[u8]) -> Text {
        number::integer(bytes).map_or_else(|| Text::plain(bytes), Text::Integer)
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        match (self, other) {
            (Text::Integer(left), Text::Integer(right)) => left == right,
            _ => self.len() == other.len() && self.bytes() == other.bytes(),
        }
    }
}

impl Eq for Text {}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn a_text_takes_three_words_in_every_form() {
        assert_eq!(size_of::<Text>(), 24);
        assert_eq!(size_of::<crate::value::Value>(), 24);
    }

    #[test]
    fn a_clone_does_not_see_what_is_appended() {
        let mut text = Text::from(&b"ab"[..]);
        text.make_mut().push(b'c');
        let clone = text.clone();
        text.make_mut().push(b'd');
        assert_eq!((&*clone.bytes(), &*text.bytes()), (&b"abc"[..], &b"abcd"[..]));
    }

    proptest! {
        #[test]
        fn every_form_holds_the_same_bytes(bytes in vec(any::<u8>(), 0..50)) {
            let text = Text::from(&bytes[..]);
            let mut growing = text.clone();
            prop_assert_eq!(growing.make_mut(), &bytes);
            prop_assert_eq!(&*text.bytes(), &bytes[..]);
            prop_assert_eq!(text.len(), bytes.len());
            prop_assert_eq!(text.integer(), number::integer(&bytes));
            prop_assert_eq!(text, growing);
        }

        #[test]
        fn zeros_follow_where_more_is_wanted(bytes in vec(any::<u8>(), 0..50), len in 0usize..200) {
            let mut longer = bytes.clone();
            longer.resize(bytes.len().max(len), 0);
            let mut text = Text::from(&bytes[..]);
            prop_assert_eq!(text.make_mut_of(len), &longer);
        }

        #[test]
        fn digits_are_a_number_and_the_number_those_digits(number in any::<i64>(), shift in 0u32..64) {
            let number = number >> shift;
            let digits = number.to_string();
            let text = Text::from(digits.as_bytes());
            prop_assert!(matches!(text, Text::Integer(found) if found == number));
            prop_assert_eq!(text, Text::plain(digits.as_bytes()));
        }
    }
}
