//! The commands of strings as rows of bits. The first bit is the highest of the first byte.

use std::sync::Arc;

use foldhash::fast::RandomState;
use indexmap::IndexMap;

use super::{Group, Spec, counts, integer, is, read, write};
use crate::{
    Error, Reply, Text,
    keyspace::{Edited, KeyspaceMut, View},
    value::MAX_VALUE_BYTES,
};

pub(super) const COMMANDS: &[Spec] = &Group("bitmap").of([
    write("setbit", 4, setbit).doc("2.2.0", "Sets or clears a bit of the value of a key."),
    read("getbit", 3, getbit).doc("2.2.0", "Returns a bit of the value of a key.").fast(),
    read("bitcount", -2, bitcount).doc("2.6.0", "Counts the set bits of the value of a key."),
    read("bitpos", -3, bitpos).doc("2.8.7", "Finds the first bit that is set, or clear."),
    write("bitop", -4, bitop).doc("2.6.0", "Combines the values of keys bit by bit.").keys(2, -1, 1),
]);

/// The place of a bit: its byte, and its distance from the byte's lowest bit.
fn place(word: &[u8]) -> Result<(usize, u32), Error> {
    let offset = crate::number::integer(word).and_then(|offset| usize::try_from(offset).ok());
    offset
        .map(|offset| (offset / 8, 7 - (offset % 8) as u32))
        .filter(|(byte, _)| *byte < MAX_VALUE_BYTES)
        .ok_or(Error::fixed("ERR bit offset is not an integer or out of range"))
}

fn setbit(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let (byte, shift) = place(words[2])?;
    let bit = match words[3] {
        b"0" => 0,
        b"1" => 1,
        _ => return Err(Error::fixed("ERR bit is not an integer or out of range")),
    };
    keys.edit(words[1], |text: &mut Text| {
        let old = text.bytes().get(byte).map(|byte| byte >> shift & 1);
        if old != Some(bit) {
            let bytes = text.make_mut_of(byte + 1);
            bytes[byte] = bytes[byte] & !(1 << shift) | bit << shift;
        }
        Ok(Edited::when(old != Some(bit), Reply::whether(old == Some(1))))
    })
}

fn getbit(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let (byte, shift) = place(words[2])?;
    let Some(text) = keys.typed::<Text>(words[1])? else { return Ok(Reply::whether(false)) };
    Ok(Reply::whether(text.bytes().get(byte).is_some_and(|byte| byte >> shift & 1 == 1)))
}

fn bitcount(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    // Redis looks for the key before it looks at the range.
    let Some(text) = keys.typed::<Text>(words[1])? else { return Ok(Reply::count(0)) };
    let bytes = &*text.bytes();
    let (start, end, unit) = match words[2..] {
        [] => (0, -1, None),
        [start, end] => (integer(start)?, integer(end)?, None),
        [start, end, unit] => (integer(start)?, integer(end)?, Some(unit)),
        _ => return Err(Error::SYNTAX),
    };
    if start < 0 && end < 0 && start > end {
        return Ok(Reply::count(0));
    }
    let in_bits = unit.map_or(Ok(false), is_bit)?;
    let Some(range) = Range::new(start, end, in_bits, bytes.len()) else { return Ok(Reply::count(0)) };
    let whole = &bytes[range.first / 8..=range.last / 8];
    let (words, rest) = whole.as_chunks::<8>();
    let count = words.iter().map(|word| u64::from_ne_bytes(*word).count_ones() as usize).sum::<usize>()
        + rest.iter().map(|byte| byte.count_ones() as usize).sum::<usize>();
    let before = bytes[range.first / 8].unbounded_shr(8 - (range.first % 8) as u32).count_ones();
    let after = bytes[range.last / 8].unbounded_shl(1 + (range.last % 8) as u32).count_ones();
    Ok(Reply::count(count - (before + after) as usize))
}

fn bitpos(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let bit = match integer(words[2])? {
        0 => 0,
        1 => 1,
        _ => return Err(Error::fixed("ERR The bit argument must be 1 or 0.")),
    };
    // An absent key is like endless zeros.
    let Some(text) = keys.typed::<Text>(words[1])? else { return Ok(Reply::Integer(if bit == 1 { -1 } else { 0 })) };
    let (start, in_bits, end) = match words[3..] {
        [] => (0, false, None),
        [start] => (integer(start)?, false, None),
        [start, end] => (integer(start)?, false, Some(integer(end)?)),
        [start, end, unit] => (integer(start)?, is_bit(unit)?, Some(integer(end)?)),
        _ => return Err(Error::SYNTAX),
    };
    let bytes = &*text.bytes();
    let Some(range) = Range::new(start, end.unwrap_or(-1), in_bits, bytes.len()) else {
        return Ok(Reply::Integer(-1));
    };
    // A sought bit is a set bit of the flipped byte.
    let flipped = |byte: u8| if bit == 1 { byte } else { !byte };
    let (first, last) = (range.first / 8, range.last / 8);
    let head = flipped(bytes[first]) & u8::MAX.unbounded_shr((range.first % 8) as u32);
    let found = if head != 0 {
        Some(8 * first + head.leading_zeros() as usize)
    } else {
        let rest = &bytes[first + 1..=last];
        // Most bytes of a long row are alike, so eight at a time are skipped.
        let (longs, _) = rest.as_chunks::<8>();
        let alike = if bit == 1 { [0; 8] } else { [u8::MAX; 8] };
        let skipped = 8 * longs.iter().take_while(|long| **long == alike).count();
        let at = rest[skipped..].iter().position(|&byte| flipped(byte) != 0);
        at.map(|at| first + 1 + skipped + at).map(|at| 8 * at + flipped(bytes[at]).leading_zeros() as usize)
    };
    let found = found.filter(|&found| found <= range.last);
    // Zeros follow the last byte, unless an end was named.
    let after = if bit == 0 && end.is_none() { 8 * bytes.len() as i64 } else { -1 };
    Ok(found.map_or(Reply::Integer(after), Reply::count))
}

fn bitop(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let (to, sources) = (words[2], &words[3..]);
    let combine: fn(u8, u8) -> u8 = match words[1] {
        name if is(name, "and") => |one, other| one & other,
        name if is(name, "or") => |one, other| one | other,
        name if is(name, "xor") => |one, other| one ^ other,
        name if is(name, "not") && sources.len() == 1 => |_, other| !other,
        name if is(name, "not") => return Err(Error::fixed("ERR BITOP NOT must be called with a single source key.")),
        _ => return Err(Error::SYNTAX),
    };
    // A key that is named many times is combined once: the work is bounded by the values' sizes.
    let mut named = IndexMap::<&[u8], usize, RandomState>::default();
    sources.iter().for_each(|key| *named.entry(key).or_default() += 1);
    let view = keys.view();
    let texts = named.keys().map(|key| view.typed::<Text>(key)).collect::<Result<Vec<_>, Error>>()?;
    let longest = texts.iter().flatten().map(|text| text.len()).max().unwrap_or(0);
    let mut result = vec![0; longest];
    let (is_xor, mut is_first) = (is(words[1], "xor"), !is(words[1], "not"));
    for (text, &times) in texts.iter().zip(named.values()) {
        // Of two that are alike, `XOR` leaves zeros.
        if is_xor && times % 2 == 0 {
            continue;
        }
        let bytes = text.map(Text::bytes).unwrap_or_default();
        let (head, tail) = result.split_at_mut(bytes.len());
        if std::mem::take(&mut is_first) {
            head.copy_from_slice(&bytes);
            continue;
        }
        head.iter_mut().zip(&*bytes).for_each(|(byte, &other)| *byte = combine(*byte, other));
        tail.iter_mut().for_each(|byte| *byte = combine(*byte, 0));
    }
    if result.is_empty() {
        keys.remove(to);
    } else {
        keys.put(to, Text::Growing(Arc::new(result)));
    }
    Ok(Reply::count(longest))
}

/// Whether a range is in bits; if not, it is in bytes.
fn is_bit(unit: &[u8]) -> Result<bool, Error> {
    if is(unit, "bit") {
        Ok(true)
    } else if is(unit, "byte") {
        Ok(false)
    } else {
        Err(Error::SYNTAX)
    }
}

/// The first and the last of some bits in a row.
struct Range {
    first: usize,
    last: usize,
}

impl Range {
    /// The range; `None` if there is no bit in it. A negative place counts from the end.
    fn new(start: i64, end: i64, in_bits: bool, bytes: usize) -> Option<Range> {
        let places = counts::places_of_string(start, end, if in_bits { 8 * bytes } else { bytes })?;
        let (first, last) = (places.start, places.end - 1);
        Some(if in_bits { Range { first, last } } else { Range { first: 8 * first, last: 8 * last + 7 } })
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Shell;

    #[test]
    fn a_bit_is_found_behind_many_that_are_alike() {
        let mut shell = Shell::new();
        shell.ask("setbit k 1000003 1");
        assert_eq!(shell.ask("bitpos k 1"), ":1000003");
        assert_eq!(shell.ask("bitcount k"), ":1");
        assert_eq!(shell.ask("bitpos k 0 125000"), ":1000000");
    }

    #[test]
    fn no_bit_is_set_beyond_the_longest_value() {
        let mut shell = Shell::new();
        for offset in ["4294967296", "9223372036854775807", "-1", "x"] {
            let refused = "-ERR bit offset is not an integer or out of range";
            assert_eq!(shell.ask(&format!("setbit k {offset} 1")), refused);
            assert_eq!(shell.ask(&format!("getbit k {offset}")), refused);
        }
    }
}
