//! The commands of strings that are numbers.

use super::{Group, Spec, integer, write};
use crate::{
    Error, Reply, Text,
    extended::Extended,
    keyspace::{Edited, KeyspaceMut},
};

pub(super) const COMMANDS: &[Spec] = &Group("string").of([
    write("incr", 2, |keys, words| add(keys, words, 1)).doc("1.0.0", "Adds one to the number at a key.").fast(),
    write("decr", 2, |keys, words| add(keys, words, -1)).doc("1.0.0", "Takes one from the number at a key.").fast(),
    write("incrby", 3, |keys, words| add(keys, words, integer(words[2])?))
        .doc("1.0.0", "Adds to the number at a key.")
        .fast(),
    write("decrby", 3, decrby).doc("1.0.0", "Takes from the number at a key.").fast(),
    write("incrbyfloat", 3, incrbyfloat).doc("2.6.0", "Adds a fraction to the number at a key.").fast(),
]);

fn decrby(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let by = integer(words[2])?.checked_neg().ok_or(Error::fixed("ERR decrement would overflow"))?;
    add(keys, words, by)
}

fn add(keys: &mut KeyspaceMut<'_>, words: &[&[u8]], by: i64) -> Result<Reply, Error> {
    let absent = || Text::Integer(0);
    keys.edit_or(words[1], absent, |text| {
        let sum = text.integer().ok_or(Error::NOT_AN_INTEGER)?.checked_add(by).ok_or(Error::OVERFLOW)?;
        *text = Text::Integer(sum);
        Ok(Edited::Changed(Reply::Integer(sum)))
    })
}

fn incrbyfloat(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let absent = || Text::Integer(0);
    keys.edit_or(words[1], absent, |text| {
        let old = Extended::parse(&text.bytes()).ok_or(Error::NOT_A_FLOAT)?;
        let by = Extended::parse(words[2]).ok_or(Error::NOT_A_FLOAT)?;
        let sum = old.checked_add(by).ok_or(Error::fixed("ERR increment would produce NaN or Infinity"))?;
        *text = Text::plain(sum.to_string().as_bytes());
        Ok(Edited::Changed(text.clone().into()))
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::Shell;

    #[test]
    fn numbers_are_added_to_and_anything_else_is_refused() {
        let mut shell = Shell::new();
        assert_eq!(shell.ask("incr n"), ":1");
        assert_eq!(shell.ask("decrby n 3"), ":-2");
        shell.ask("set n x");
        assert_eq!(shell.ask("incr n"), "-ERR value is not an integer or out of range");
        assert_eq!(shell.ask("decrby n -9223372036854775808"), "-ERR decrement would overflow");
        assert_eq!(shell.ask("get n"), "\"x\"");
    }

    #[test]
    fn an_empty_string_is_no_number() {
        let mut shell = Shell::new();
        shell.ask_words(&["set", "n", ""]);
        assert_eq!(shell.ask("incr n"), "-ERR value is not an integer or out of range");
        assert_eq!(shell.ask("incrbyfloat n 1"), "-ERR value is not a valid float");
    }

    #[test]
    fn fractions_add_up_as_in_redis() {
        let mut shell = Shell::new();
        shell.ask("set n 0.1");
        assert_eq!(shell.ask("incrbyfloat n 0.2"), "\"0.3\"");
        assert_eq!(shell.ask("incrbyfloat n 5.0e3"), "\"5000.29999999999999982\"");
        assert_eq!(shell.ask("incrbyfloat n inf"), "-ERR increment would produce NaN or Infinity");
    }
}
