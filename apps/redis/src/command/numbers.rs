//! The commands of strings that are numbers.

use super::{CommandFn, Spec, integer};
use crate::{
    Error, Reply, Text,
    extended::Extended,
    keyspace::{Edited, KeyspaceMut},
};

pub(super) const COMMANDS: &[Spec] = &[
    spec("incr", 2, CommandFn::Write(incr), "1.0.0", "Adds one to the number at a key.").fast(),
    spec("decr", 2, CommandFn::Write(decr), "1.0.0", "Takes one from the number at a key.").fast(),
    spec("incrby", 3, CommandFn::Write(incrby), "1.0.0", "Adds to the number at a key.").fast(),
    spec("decrby", 3, CommandFn::Write(decrby), "1.0.0", "Takes from the number at a key.").fast(),
    spec("incrbyfloat", 3, CommandFn::Write(incrbyfloat), "2.6.0", "Adds a fraction to the number at a key.").fast(),
];

const fn spec(name: &'static str, arity: i8, run: CommandFn, since: &'static str, summary: &'static str) -> Spec {
    Spec::new(name, arity, run, "string", since, summary)
}

fn incr(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    add(keys, words[1], 1)
}

fn decr(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    add(keys, words[1], -1)
}

fn incrby(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    add(keys, words[1], integer(words[2])?)
}

fn decrby(keys: &mut KeyspaceMut<'_>, words: &[&[u8]]) -> Result<Reply, Error> {
    let by = integer(words[2])?.checked_neg().ok_or(Error::fixed("ERR decrement would overflow"))?;
    add(keys, words[1], by)
}

fn add(keys: &mut KeyspaceMut<'_>, key: &[u8], by: i64) -> Result<Reply, Error> {
    let absent = || Text::Integer(0);
    keys.edit_or(key, absent, |text| {
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
