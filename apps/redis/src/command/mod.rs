//! The commands that are served, with their names, arguments and effects. One module has the commands of one type of
//! values.

mod bit_fields;
mod bits;
mod blocking;
mod counts;
mod expiry;
mod flags;
mod hashes;
mod introspection;
mod keys;
mod lcs;
mod lists;
mod local;
mod numbers;
mod scan;
mod sets;
mod sort;
mod sorted_algebra;
mod sorted_ranges;
mod sorted_sets;
mod strings;

use std::{collections::HashMap, sync::LazyLock};

use foldhash::fast::FixedState;

pub(crate) use self::blocking::serve_ready;
pub use self::blocking::{BlockFn, Blocking};
pub use self::flags::Flags;
use crate::{
    Error, Reply,
    error::{EXCERPT_BYTES, excerpt},
    keyspace::{KeyspaceMut, View},
    value::Typed,
};

/// A function that changes the keys, as the words of a request say.
pub type WriteFn = fn(&mut KeyspaceMut<'_>, &[&[u8]]) -> Result<Reply, Error>;

/// A function that looks at the keys.
pub type ReadFn = fn(&View<'_>, &[&[u8]]) -> Result<Reply, Error>;

/// The function that carries a command out.
#[derive(Clone, Copy, Debug)]
pub enum CommandFn {
    /// Changes the state. The command travels through the group, and is answered once this replica has applied it.
    ///
    /// A command that fails must have changed nothing.
    Write(WriteFn),
    /// Looks at the state. It is linearizable, and takes no turn in the group's order.
    Read(ReadFn),
    /// Takes elements as a write does, or waits if there are none. The function reads the words. In a transaction it
    /// does not wait.
    Block(BlockFn),
    /// A command that is answered by the server that was asked, whether or not its group lives.
    Local,
}

/// The words that are keys: the first's place, the last's (negative: from the end), and the distance between two. All
/// are 0 if no word is a key, or if only the command itself can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPositions {
    /// The place of the first key; the command's name has 0.
    pub first: i8,
    /// The place of the last one; -1 is the last word.
    pub last: i8,
    /// The distance from one key to the next.
    pub step: i8,
}

/// A command, as `COMMAND` describes it.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// The name, in small letters.
    pub name: &'static str,
    /// The number of words that it takes, its name included. A negative number stands for at least as many.
    pub arity: i8,
    /// The function that carries it out.
    pub run: CommandFn,
    /// The words that are keys.
    pub keys: KeyPositions,
    /// Whether it always takes a short time, whatever the values hold.
    pub is_fast: bool,
    /// The group in which Redis lists it: "string", "hash", "generic", ..
    pub group: &'static str,
    /// The first version of Redis that had it.
    pub since: &'static str,
    /// A sentence on its effect.
    pub summary: &'static str,
    /// Its place among [`all`] commands.
    pub place: usize,
    /// Its other properties.
    pub flags: Flags,
}

impl Spec {
    /// A command that has one key, its first argument, and may take long. Its other facts are still to be given.
    const fn new(name: &'static str, arity: i8, run: CommandFn) -> Spec {
        let keys = KeyPositions { first: 1, last: 1, step: 1 };
        let flags = Flags::NONE;
        Spec { name, arity, run, keys, is_fast: false, group: "", since: "", summary: "", place: 0, flags }
    }

    /// The same command, with the first version of Redis that had it, and a sentence on its effect.
    const fn doc(self, since: &'static str, summary: &'static str) -> Spec {
        Spec { since, summary, ..self }
    }

    /// The same command, in another group than the rest of its table.
    const fn in_group(self, group: &'static str) -> Spec {
        Spec { group, ..self }
    }

    /// The same command, with these keys.
    const fn keys(self, first: i8, last: i8, step: i8) -> Spec {
        Spec { keys: KeyPositions { first, last, step }, ..self }
    }

    /// The same command, without keys.
    const fn no_keys(self) -> Spec {
        self.keys(0, 0, 0)
    }

    /// The same command, as one that always takes a short time.
    const fn fast(self) -> Spec {
        Spec { is_fast: true, ..self }
    }

    /// Whether this number of words, the name included, is right.
    pub fn takes(&self, words: usize) -> bool {
        let count = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { words >= count } else { words == count }
    }
}

/// A command that looks at the state.
const fn read(name: &'static str, arity: i8, run: ReadFn) -> Spec {
    Spec::new(name, arity, CommandFn::Read(run))
}

/// A command that changes the state.
const fn write(name: &'static str, arity: i8, run: WriteFn) -> Spec {
    Spec::new(name, arity, CommandFn::Write(run))
}

/// A command that takes elements, and waits if there are none.
const fn block(name: &'static str, arity: i8, read: BlockFn) -> Spec {
    Spec::new(name, arity, CommandFn::Block(read))
}

/// The group of a table's commands, unless they name another.
struct Group(&'static str);

impl Group {
    const fn of<const N: usize>(self, mut specs: [Spec; N]) -> [Spec; N] {
        let mut place = 0;
        while place < N {
            if specs[place].group.is_empty() {
                specs[place].group = self.0;
            }
            place += 1;
        }
        specs
    }
}

/// Finds a command by its name, in upper or lower case.
pub fn find(name: &[u8]) -> Option<&'static Spec> {
    static BY_NAME: LazyLock<HashMap<&'static [u8], &'static Spec, FixedState>> =
        LazyLock::new(|| all().map(|spec| (spec.name.as_bytes(), spec)).collect());
    let mut small = [0; 32];
    let small = small.get_mut(..name.len())?;
    small.copy_from_slice(name);
    small.make_ascii_lowercase();
    BY_NAME.get(&*small).copied()
}

/// All commands.
pub fn all() -> impl Iterator<Item = &'static Spec> {
    static TABLE: LazyLock<Vec<Spec>> = LazyLock::new(|| {
        let placed = |(place, spec): (usize, &Spec)| Spec { place, flags: Flags::of(spec.name, spec.run), ..*spec };
        listed().enumerate().map(placed).collect()
    });
    TABLE.iter()
}

/// All commands, as the modules list them.
fn listed() -> impl Iterator<Item = &'static Spec> {
    [
        strings::COMMANDS,
        numbers::COMMANDS,
        lcs::COMMANDS,
        bits::COMMANDS,
        bit_fields::COMMANDS,
        keys::COMMANDS,
        expiry::COMMANDS,
        introspection::COMMANDS,
        hashes::COMMANDS,
        lists::COMMANDS,
        sets::COMMANDS,
        sorted_sets::COMMANDS,
        sorted_ranges::COMMANDS,
        sorted_algebra::COMMANDS,
        blocking::COMMANDS,
        sort::COMMANDS,
        local::COMMANDS,
    ]
    .into_iter()
    .flatten()
}

/// The command that a server carries out for a request: it answers the parts of `MEMORY` that concern itself.
pub fn at_server(spec: &'static Spec, words: &[&[u8]]) -> &'static Spec {
    static OF_SERVER: LazyLock<Option<Spec>> = LazyLock::new(|| {
        let spec = find(b"memory")?;
        let flags = Flags { is_no_multi: true, ..Flags::of(spec.name, CommandFn::Local) };
        Some(Spec { run: CommandFn::Local, flags, ..*spec })
    });
    let concerns_server = spec.name == "memory"
        && words
            .get(1)
            .is_some_and(|word| ["doctor", "malloc-stats", "purge", "stats"].iter().any(|name| is(word, name)));
    OF_SERVER.as_ref().filter(|_| concerns_server).unwrap_or(spec)
}

/// Finds the command of a request, and checks its number of words. The errors are Redis'.
pub fn check(words: &[&[u8]]) -> Result<&'static Spec, Error> {
    let name = words.first().copied().unwrap_or_default();
    let spec = find(name).ok_or_else(|| unknown(words))?;
    if spec.takes(words.len()) { Ok(spec) } else { Err(Error::arity(spec.name)) }
}

fn unknown(words: &[&[u8]]) -> Error {
    let mut arguments = String::new();
    for word in words.iter().skip(1) {
        if arguments.len() >= EXCERPT_BYTES {
            break;
        }
        arguments.push_str(&format!("'{}' ", excerpt(&word[..word.len().min(EXCERPT_BYTES - arguments.len())])));
    }
    let name = excerpt(words.first().copied().unwrap_or_default());
    Error::new(format!("ERR unknown command '{name}', with args beginning with: {arguments}"))
}

/// The error of a request that has too few words, or too many.
fn arity(words: &[&[u8]]) -> Error {
    Error::arity(&name(words))
}

/// The name of a request's command, in small letters.
fn name(words: &[&[u8]]) -> String {
    String::from_utf8_lossy(words[0]).to_ascii_lowercase()
}

/// Answers the length of a key's value, as `len` measures it; 0 if the key is absent.
fn len<T: Typed>(keys: &View<'_>, words: &[&[u8]], len: impl Fn(&T) -> usize) -> Result<Reply, Error> {
    Ok(Reply::count(keys.typed::<T>(words[1])?.map_or(0, len)))
}

/// Whether a word is this option, in upper or lower case.
fn is(word: &[u8], option: &str) -> bool {
    word.eq_ignore_ascii_case(option.as_bytes())
}

/// Reads a word that must be a whole number.
fn integer(word: &[u8]) -> Result<i64, Error> {
    crate::number::integer(word).ok_or(Error::NOT_AN_INTEGER)
}

#[cfg(test)]
mod tests;
