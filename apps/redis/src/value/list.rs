//! Lists: strings in a row.

use std::{collections::VecDeque, ops::Range};

use super::room;
use crate::Text;

/// Strings in a row.
///
/// An element that is a number's digits is always held as the number, which makes elements quick to compare.
#[derive(Clone, Debug, Default)]
pub struct List {
    elements: VecDeque<Text>,
}

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListEnd {
    /// The first element's end.
    Left,
    /// The last element's end.
    Right,
}

impl List {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// The element at a place.
    pub fn get(&self, place: usize) -> Option<&Text> {
        self.elements.get(place)
    }

    /// All elements.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Text> + ExactSizeIterator {
        self.elements.iter()
    }

    /// The elements of a range of places.
    ///
    /// # Panics
    ///
    /// If the range exceeds the list.
    pub fn range(&self, places: Range<usize>) -> impl ExactSizeIterator<Item = &Text> {
        self.elements.range(places)
    }

    /// The places of the elements that equal one, in their order as seen from an end. Looks at no more than `most`
    /// elements.
    pub fn places_of(&self, element: &Text, from: ListEnd, most: usize) -> impl Iterator<Item = usize> {
        let last = self.elements.len().wrapping_sub(1);
        let place = move |nth| if from == ListEnd::Left { nth } else { last - nth };
        (0..most.min(self.elements.len())).map(place).filter(|&place| are_same(&self.elements[place], element))
    }

    /// Adds an element at an end.
    pub fn push(&mut self, end: ListEnd, element: Text) {
        let element = plain(element);
        match end {
            ListEnd::Left => self.elements.push_front(element),
            ListEnd::Right => self.elements.push_back(element),
        }
    }

    /// Removes the element at an end, and returns it.
    pub fn pop(&mut self, end: ListEnd) -> Option<Text> {
        let element = match end {
            ListEnd::Left => self.elements.pop_front(),
            ListEnd::Right => self.elements.pop_back(),
        };
        self.shrink();
        element
    }

    /// Replaces the element at a place. Returns whether there is one.
    pub fn set(&mut self, place: usize, element: Text) -> bool {
        let Some(old) = self.elements.get_mut(place) else { return false };
        *old = plain(element);
        true
    }

    /// Puts an element at a place, before the one there.
    ///
    /// # Panics
    ///
    /// If there are fewer elements than that.
    pub fn insert(&mut self, place: usize, element: Text) {
        self.elements.insert(place, plain(element));
    }

    /// Removes the elements that equal one, at most `most` of them, the closest to an end first. Returns the number
    /// removed.
    pub fn remove(&mut self, element: &Text, from: ListEnd, most: usize) -> usize {
        let mut places: Vec<_> = self.places_of(element, from, usize::MAX).take(most).collect();
        if let [place] = *places {
            self.elements.remove(place);
        } else if !places.is_empty() {
            if from == ListEnd::Right {
                places.reverse();
            }
            let (mut place, mut doomed) = (0, places.iter().copied().peekable());
            self.elements.retain(|_| {
                let keep = doomed.next_if_eq(&place).is_none();
                place += 1;
                keep
            });
        }
        self.shrink();
        places.len()
    }

    /// Removes all elements outside of a range of places.
    ///
    /// # Panics
    ///
    /// If the range begins beyond its own end, or beyond the end of the list.
    pub fn trim(&mut self, places: Range<usize>) {
        self.elements.truncate(places.end);
        self.elements.drain(..places.start);
        self.shrink();
    }

    /// The bytes of memory beyond the value itself; an estimate where there are many elements.
    pub fn heap_bytes(&self) -> usize {
        let row = self.elements.capacity() * size_of::<Text>();
        row + room::sum_bytes(self.elements.len(), |place| self.elements[place].heap_bytes())
    }

    fn shrink(&mut self) {
        if let Some(room) = room::surplus(self.elements.len(), self.elements.capacity()) {
            self.elements.shrink_to(room);
        }
    }
}

impl FromIterator<Text> for List {
    fn from_iter<I: IntoIterator<Item = Text>>(elements: I) -> List {
        List { elements: elements.into_iter().map(plain).collect() }
    }
}

/// A text in the form that lists hold: bytes that grew may be a number's digits.
fn plain(text: Text) -> Text {
    if let Text::Growing(bytes) = &text { Text::from(&bytes[..]) } else { text }
}

/// Whether two plain texts are equal.
fn are_same(left: &Text, right: &Text) -> bool {
    match (left, right) {
        (Text::Integer(left), Text::Integer(right)) => left == right,
        (Text::Integer(_), _) | (_, Text::Integer(_)) => false,
        _ => left.bytes() == right.bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(elements: &[&str]) -> List {
        elements.iter().map(|element| Text::from(element.as_bytes())).collect()
    }

    #[test]
    fn elements_are_removed_from_the_end_that_was_named() {
        for (from, most, removed, left) in [
            (ListEnd::Left, 2, 2, ["b", "c", "a"]),
            (ListEnd::Right, 2, 2, ["a", "b", "c"]),
            (ListEnd::Left, 9, 3, ["b", "c", ""]),
            (ListEnd::Right, 1, 1, ["a", "b", "a"]),
        ] {
            let mut letters = list(&["a", "b", "a", "c", "a"]);
            assert_eq!(letters.remove(&Text::from(&b"a"[..]), from, most), removed);
            assert!(
                letters.iter().zip(left).all(|(element, left)| *element.bytes() == *left.as_bytes()),
                "{letters:?}"
            );
        }
    }

    #[test]
    fn digits_equal_their_number_however_they_came() {
        let mut numbers = list(&["7"]);
        let mut grown = Text::from(&b""[..]);
        grown.make_mut().extend_from_slice(b"7");
        numbers.push(ListEnd::Right, grown);
        assert_eq!(numbers.places_of(&Text::from(7), ListEnd::Right, 9).collect::<Vec<_>>(), [1, 0]);
    }

    #[test]
    fn an_emptied_list_gives_its_memory_back() {
        let mut long: List = (0..10_000).map(Text::from).collect();
        long.trim(10..20);
        assert!(long.heap_bytes() < 1_000, "{}", long.heap_bytes());
    }
}
