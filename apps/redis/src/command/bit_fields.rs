//! The commands of strings as rows of numbers of any number of bits.

use super::{Group, Spec, integer, is, read, write};
use crate::{
    Error, Reply, Text,
    keyspace::{Edited, KeyspaceMut, View},
    number,
    value::MAX_VALUE_BYTES,
};

pub(super) const COMMANDS: &[Spec] = &Group("bitmap").of([
    write("bitfield", -2, bitfield).doc("3.2.0", "Reads, sets and adds to numbers of some bits in the value of a key."),
    read("bitfield_ro", -2, bitfield_ro).doc("6.0.0", "Reads numbers of some bits in the value of a key.").fast(),
]);

/// The place of a number, and its type.
#[derive(Clone, Copy, Debug)]
struct Field {
    /// The place of its first bit.
    offset: usize,
    bits: u32,
    is_signed: bool,
}

impl Field {
    fn parse(kind: &[u8], offset: &[u8]) -> Result<Field, Error> {
        let invalid = Error::fixed(
            "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
        );
        let (is_signed, most) = match kind.first() {
            Some(b'i') => (true, 64),
            Some(b'u') => (false, 63),
            _ => return Err(invalid),
        };
        let bits = number::integer(&kind[1..]).and_then(|bits| u32::try_from(bits).ok());
        let bits = bits.filter(|bits| (1..=most).contains(bits)).ok_or(invalid)?;
        let offset = match offset.strip_prefix(b"#") {
            Some(nth) => number::integer(nth).and_then(|nth| nth.checked_mul(i64::from(bits))),
            None => number::integer(offset),
        };
        let field = offset
            .and_then(|offset| usize::try_from(offset).ok())
            .filter(|&offset| offset / 8 < MAX_VALUE_BYTES)
            .map(|offset| Field { offset, bits, is_signed })
            .filter(|field| field.end_byte() <= MAX_VALUE_BYTES);
        field.ok_or(Error::fixed("ERR bit offset is not an integer or out of range"))
    }

    /// The place behind its last byte.
    fn end_byte(self) -> usize {
        (self.offset + self.bits as usize).div_ceil(8)
    }

    /// The least number, and the greatest.
    fn range(self) -> (i128, i128) {
        if self.is_signed { (-(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1) } else { (0, (1 << self.bits) - 1) }
    }

    /// The number of the lowest bits of another.
    fn wrap(self, number: i128) -> i128 {
        let low = number & ((1 << self.bits) - 1);
        if low > self.range().1 { low - (1 << self.bits) } else { low }
    }

    /// Reads it. Zeros follow the last byte.
    fn get(self, bytes: &[u8]) -> i128 {
        let byte = |place: usize| u128::from(bytes.get(place).copied().unwrap_or(0));
        let row = (self.offset / 8..self.end_byte()).fold(0, |row, place| row << 8 | byte(place));
        let row = row >> (8 * self.end_byte() - self.offset - self.bits as usize);
        self.wrap(row.cast_signed())
    }

    /// Writes it. There must be as many bytes.
    fn set(self, bytes: &mut [u8], number: i128) {
        let shift = 8 * self.end_byte() - self.offset - self.bits as usize;
        let mask = ((1u128 << self.bits) - 1) << shift;
        let row = number.cast_unsigned() << shift & mask;
        for (nth, byte) in bytes[self.offset / 8..self.end_byte()].iter_mut().rev().enumerate() {
            let part = |row: u128| (row >> (8 * nth)) as u8;
            *byte = *byte & !part(mask) | part(row);
        }
    }
}

/// The treatment of a number that does not fit into its field.
#[derive(Clone, Copy, Debug)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

impl Overflow {
    /// The number that a field gets instead of one. `None` if it stays as it is.
    fn fit(self, number: i128, field: Field) -> Option<i128> {
        let (least, most) = field.range();
        if (least..=most).contains(&number) {
            return Some(number);
        }
        match self {
            Overflow::Wrap => Some(field.wrap(number)),
            Overflow::Saturate => Some(number.clamp(least, most)),
            Overflow::Fail => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum FieldChange {
    Set(i64),
    Add(i64),
}

/// One operation of a request.
#[derive(Clone, Copy, Debug)]
struct FieldOperation {
    field: Field,
    /// `None` for a read.
    change: Option<(FieldChange, Overflow)>,
}

impl FieldOperation {
    /// Reads the words behind the key.
    fn parse_all(mut words: &[&[u8]]) -> Result<Vec<FieldOperation>, Error> {
        let (mut operations, mut overflow) = (Vec::new(), Overflow::Wrap);
        loop {
            let (field, change);
            (field, change, words) = match words {
                [] => return Ok(operations),
                [name, kind, offset, rest @ ..] if is(name, "get") => (Field::parse(kind, offset)?, None, rest),
                [name, kind, offset, by, rest @ ..] if is(name, "set") => {
                    (Field::parse(kind, offset)?, Some(FieldChange::Set(integer(by)?)), rest)
                }
                [name, kind, offset, by, rest @ ..] if is(name, "incrby") => {
                    (Field::parse(kind, offset)?, Some(FieldChange::Add(integer(by)?)), rest)
                }
                [name, how, rest @ ..] if is(name, "overflow") => {
                    overflow = match how {
                        _ if is(how, "wrap") => Overflow::Wrap,
                        _ if is(how, "sat") => Overflow::Saturate,
                        _ if is(how, "fail") => Overflow::Fail,
                        _ => return Err(Error::fixed("ERR Invalid OVERFLOW type specified")),
                    };
                    words = rest;
                    continue;
                }
                _ => return Err(Error::SYNTAX),
            };
            operations.push(FieldOperation { field, change: change.map(|change| (change, overflow)) });
        }
    }

    /// Carries it out. Returns the answer, and whether it has changed something.
    fn apply(self, bytes: &mut [u8]) -> (Reply, bool) {
        let FieldOperation { field, change } = self;
        let old = field.get(bytes);
        let Some((change, overflow)) = change else { return (reply(old), false) };
        let wanted = match change {
            FieldChange::Add(by) => old + i128::from(by),
            FieldChange::Set(number) if field.is_signed => i128::from(number),
            // As in Redis, a negative number is a large one here.
            FieldChange::Set(number) => i128::from(number.cast_unsigned()),
        };
        let Some(new) = overflow.fit(wanted, field) else { return (Reply::Null, false) };
        field.set(bytes, new);
        (reply(if matches!(change, FieldChange::Set(_)) { old } else { new }), new != old)
    }
}

/// A number of a field, all of which fit.
fn reply(number: i128) -> Reply {
    Reply::Integer(number as i64)
}

fn bitfield(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let operations = FieldOperation::parse_all(&words[2..])?;
    let writes = operations.iter().filter(|operation| operation.change.is_some());
    let Some(end) = writes.map(|operation| operation.field.end_byte()).max() else {
        return look(&keys.view(), words[1], &operations);
    };
    keys.edit(words[1], |text: &mut Text| {
        let mut changes = text.len() < end;
        let bytes = text.make_mut_of(end);
        let answer = |operation: &FieldOperation| {
            let (reply, has_changed) = operation.apply(bytes);
            changes |= has_changed;
            reply
        };
        let replies = Reply::Array(operations.iter().map(answer).collect());
        Ok(Edited::when(changes, replies))
    })
}

fn bitfield_ro(keys: &View<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let operations = FieldOperation::parse_all(&words[2..])?;
    if operations.iter().any(|operation| operation.change.is_some()) {
        return Err(Error::fixed("ERR BITFIELD_RO only supports the GET subcommand"));
    }
    look(keys, words[1], &operations)
}

/// Answers operations that only read.
fn look(keys: &View<'_>, key: &[u8], operations: &[FieldOperation]) -> Result<Reply, Error> {
    let text = keys.typed::<Text>(key)?;
    let bytes = text.map(Text::bytes).unwrap_or_default();
    Ok(Reply::Array(operations.iter().map(|operation| reply(operation.field.get(&bytes))).collect()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::Shell;

    proptest! {
        #[test]
        fn a_number_is_read_back_and_its_neighbours_stay(
            is_signed in any::<bool>(),
            bits in 1u32..=63,
            offset in 0usize..40,
            number in any::<i64>(),
            filling in any::<u8>(),
        ) {
            let field = Field { offset, bits, is_signed };
            let mut bytes = vec![filling; 16];
            let number = field.wrap(number.into());
            field.set(&mut bytes, number);
            prop_assert_eq!(field.get(&bytes), number);
            let bit = |bytes: &[u8], place: usize| bytes[place / 8] >> (7 - place % 8) & 1;
            for place in (0..offset).chain(offset + bits as usize..128) {
                prop_assert_eq!(bit(&bytes, place), bit(&[filling; 16], place));
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_treated_as_the_request_says() {
        let mut shell = Shell::new();
        assert_eq!(shell.ask("bitfield k set u8 #0 255 get i8 0 incrby u8 0 1"), "[:0, :-1, :0]");
        assert_eq!(shell.ask("bitfield k overflow sat incrby i4 0 100 overflow fail incrby i4 0 1"), "[:7, nil]");
        assert_eq!(
            shell.ask("bitfield k set i64 0 -9223372036854775808 get i64 0"),
            "[:8070450532247928832, :-9223372036854775808]"
        );
        assert_eq!(shell.ask("strlen k"), ":8");
    }

    #[test]
    fn no_field_exceeds_the_longest_value() {
        let mut shell = Shell::new();
        let refused = "-ERR bit offset is not an integer or out of range";
        for offset in ["4294967296", "4294967295", "#9223372036854775807", "#-1", "-1", "#", "x"] {
            assert_eq!(shell.ask(&format!("bitfield k set u8 {offset} 1")), refused, "{offset}");
        }
        assert_eq!(shell.ask("exists k"), ":0");
    }
}
