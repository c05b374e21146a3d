//! The commands that are served: what `COMMAND` tells clients, and what arity is checked against.

use Keys::{Absent, All, First, Pairs};
use Kind::{Local, Read, Write};

/// A command, as `COMMAND INFO` describes it.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    /// How many arguments it takes, its name included; negative: at least so many.
    pub(crate) arity: i8,
    pub(crate) kind: Kind,
    pub(crate) keys: Keys,
    pub(crate) summary: &'static str,
}

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Changes the state: goes through the group, and is answered once this replica has applied it.
    Write,
    /// Looks at the state: linearizable, and takes no turn in the group's order.
    Read,
    /// Is answered by this replica alone, whether its group lives or not.
    Local,
}

/// Which arguments are keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    Absent,
    First,
    All,
    /// Every other argument.
    Pairs,
}

impl Spec {
    const fn new(name: &'static str, arity: i8, kind: Kind, keys: Keys, summary: &'static str) -> Spec {
        Spec { name, arity, kind, keys, summary }
    }

    /// Whether so many arguments, the name included, are right.
    pub(crate) fn takes(&self, arguments: usize) -> bool {
        let count = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { arguments >= count } else { arguments == count }
    }

    /// First key, last key (-1: the last argument) and step.
    pub(crate) fn key_range(&self) -> (i64, i64, i64) {
        match self.keys {
            Absent => (0, 0, 0),
            First => (1, 1, 1),
            All => (1, -1, 1),
            Pairs => (1, -1, 2),
        }
    }
}

/// Finds a command by its name, in upper or lower case.
pub(crate) fn find(name: &[u8]) -> Option<&'static Spec> {
    TABLE.iter().find(|spec| spec.name.as_bytes().eq_ignore_ascii_case(name))
}

/// All commands; the most frequent come first, since they are searched in this order.
pub(crate) const TABLE: &[Spec] = &[
    Spec::new("get", 2, Read, First, "Returns the value of a key."),
    Spec::new("set", -3, Write, First, "Sets the value of a key; takes NX, XX and GET."),
    Spec::new("incr", 2, Write, First, "Adds one to the number at a key."),
    Spec::new("mset", -3, Write, Pairs, "Sets several keys at once."),
    Spec::new("mget", -2, Read, All, "Returns the values of several keys at one moment."),
    Spec::new("del", -2, Write, All, "Deletes keys."),
    Spec::new("exists", -2, Read, All, "Counts which of the given keys exist."),
    Spec::new("ping", -1, Local, Absent, "Answers PONG, or its argument."),
    Spec::new("echo", 2, Local, Absent, "Answers its argument."),
    Spec::new("decr", 2, Write, First, "Takes one from the number at a key."),
    Spec::new("incrby", 3, Write, First, "Adds to the number at a key."),
    Spec::new("decrby", 3, Write, First, "Takes from the number at a key."),
    Spec::new("append", 3, Write, First, "Appends to the value of a key."),
    Spec::new("setnx", 3, Write, First, "Sets a key that does not exist."),
    Spec::new("getset", 3, Write, First, "Sets a key and returns its value before."),
    Spec::new("unlink", -2, Write, All, "Deletes keys."),
    Spec::new("strlen", 2, Read, First, "Returns the length of a value."),
    Spec::new("type", 2, Read, First, "Returns the type of a key: string or none."),
    Spec::new("keys", 2, Read, Absent, "Returns the keys that match a pattern."),
    Spec::new("dbsize", 1, Read, Absent, "Returns the number of keys."),
    Spec::new("flushall", -1, Write, Absent, "Deletes all keys."),
    Spec::new("flushdb", -1, Write, Absent, "Deletes all keys."),
    Spec::new("select", 2, Local, Absent, "Selects database 0, the only one."),
    Spec::new("hello", -1, Local, Absent, "Greets, and chooses RESP 2 or 3."),
    Spec::new("auth", -2, Local, Absent, "Refused: there are no passwords."),
    Spec::new("client", -2, Local, Absent, "Asks about and names this connection."),
    Spec::new("command", -1, Local, Absent, "Describes the commands."),
    Spec::new("config", -2, Local, Absent, "Reads this replica's settings."),
    Spec::new("info", -1, Local, Absent, "Describes this replica and its group."),
    Spec::new("time", 1, Local, Absent, "Returns this host's time."),
    Spec::new("reset", 1, Local, Absent, "Resets this connection."),
    Spec::new("quit", -1, Local, Absent, "Closes this connection."),
];
