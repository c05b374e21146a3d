//! The identity of a group's commands and state.

use std::fmt;

use rkyv::Archived;

use crate::replica::command::Command;

/// The identity of what a group's members send each other and keep: of the commands, and of the contents of snapshots.
///
/// All members of a group must have the same. Nodes compare it when they meet, and each compares it with its log when
/// it starts. A difference is refused, with both named.
///
/// The name and the version are the application's. `version` goes up with each change after which an older program
/// would read a command or a snapshot otherwise, or apply a command otherwise. Nothing is derived from names of Rust
/// types, since these are not the same with every compiler.
///
/// The framework adds the size and the alignment of the archived command, which rkyv lays out alike everywhere. So some
/// changes are noticed even where the application's version was forgotten.
///
/// ```
/// use squall::Schema;
///
/// const SCHEMA: Schema = Schema::new("bank", 3);
/// assert_eq!(SCHEMA.of_commands::<u64>().to_string(), "bank version 3, commands of 8 bytes aligned to 8");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schema {
    name: &'static str,
    version: u32,
    /// The size and the alignment of an archived command, in bytes; 0 where messages are bytes.
    layout: (usize, usize),
    /// The same of the service's commands, where they are parts of transactions.
    parts: Option<(usize, usize)>,
}

impl Schema {
    /// The schema of a group that declares none. Only the layout of its commands is compared.
    pub const UNDECLARED: Schema = Schema { name: "", version: 0, layout: (0, 0), parts: None };

    /// Makes a schema of a name, of 1 to 64 letters, digits, `.`, `_` and `-`, and a version.
    ///
    /// # Panics
    ///
    /// If it is no such name: of a constant, at compile time.
    pub const fn new(name: &'static str, version: u32) -> Schema {
        let bytes = name.as_bytes();
        assert!(!bytes.is_empty() && bytes.len() <= 64, "a schema's name has 1 to 64 bytes");
        let mut at = 0;
        while at < bytes.len() {
            let fits = bytes[at].is_ascii_alphanumeric() || matches!(bytes[at], b'.' | b'_' | b'-');
            assert!(fits, "a schema's name has letters, digits, `.`, `_` and `-` (ASCII)");
            at += 1;
        }
        Schema { name, version, ..Schema::UNDECLARED }
    }

    /// Returns the same schema, with the layout of these commands.
    pub const fn of_commands<C: Command>(self) -> Schema {
        Schema { layout: layout_of::<C>(), ..self }
    }

    /// Returns the schema of the same service in [transactions](crate::transactions), of which these commands are
    /// parts.
    pub(crate) const fn in_transactions_of<C: Command>(self) -> Schema {
        Schema { parts: Some(layout_of::<C>()), ..self }
    }

    /// Whether the application has declared it.
    pub const fn is_declared(&self) -> bool {
        !self.name.is_empty()
    }
}

const fn layout_of<C: Command>() -> (usize, usize) {
    (size_of::<Archived<C>>(), align_of::<Archived<C>>())
}

impl Default for Schema {
    fn default() -> Schema {
        Schema::UNDECLARED
    }
}

/// The text of a schema, which no other has.
impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_declared() {
            true => write!(f, "{} version {}", self.name, self.version)?,
            false => f.write_str(UNDECLARED)?,
        }
        if let Some((bytes, align)) = self.parts {
            write!(f, "{IN_TRANSACTIONS}{bytes} bytes aligned to {align}")?;
        }
        match self.layout {
            (_, 0) => Ok(()),
            (bytes, align) => write!(f, ", commands of {bytes} bytes aligned to {align}"),
        }
    }
}

/// The text of a schema that was not declared.
const UNDECLARED: &str = "undeclared";

/// The words before the layout of the parts of transactions. The number is that of the transactions' own format.
const IN_TRANSACTIONS: &str = " in transactions (format 1) of commands of ";

/// Whether data that was written under the schema with the text `written` may be read under the one with the text
/// `now`. The two are the same, or the application has declared one since, of commands that are laid out alike.
pub(crate) fn is_readable(written: &str, now: &str) -> bool {
    let parts = |text| str::split_once(text, ", ").unwrap_or((text, ""));
    let ((name, layout), (name_now, layout_now)) = (parts(written), parts(now));
    let service = |name| str::split_once(name, IN_TRANSACTIONS).unwrap_or((name, ""));
    let ((name, within), (_, within_now)) = (service(name), service(name_now));
    written.is_empty() || written == now || (name == UNDECLARED && (layout, within) == (layout_now, within_now))
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_declaration_may_come_later_and_nothing_else_may_change() {
        let [undeclared, declared, newer] = [Schema::UNDECLARED, Schema::new("a", 1), Schema::new("a", 2)]
            .map(|schema| schema.of_commands::<u64>().to_string());
        assert!(is_readable("", &declared) && is_readable(&undeclared, &declared) && is_readable(&declared, &declared));
        assert!(
            !is_readable(&declared, &newer) && !is_readable(&newer, &declared) && !is_readable(&declared, &undeclared)
        );
        assert!(!is_readable(&undeclared, &Schema::new("a", 1).of_commands::<u32>().to_string()));
        let within = |schema: Schema| schema.in_transactions_of::<u32>().of_commands::<u64>().to_string();
        let [parts, named] = [Schema::UNDECLARED, Schema::new("a", 1)].map(within);
        assert!(is_readable(&parts, &named) && !is_readable(&undeclared, &named) && !is_readable(&named, &declared));
    }

    #[test]
    fn each_schema_has_a_text_of_its_own() {
        let schemas = [
            Schema::UNDECLARED,
            Schema::UNDECLARED.of_commands::<u64>(),
            Schema::UNDECLARED.of_commands::<u32>(),
            Schema::new("a", 1).of_commands::<u64>(),
            Schema::new("a", 1).of_commands::<u32>(),
            Schema::new("a", 2).of_commands::<u64>(),
            Schema::new("b", 1).of_commands::<u64>(),
            Schema::new("b", 1).in_transactions_of::<u64>().of_commands::<u64>(),
            Schema::new("b", 1).in_transactions_of::<u32>().of_commands::<u64>(),
        ];
        let texts: std::collections::BTreeSet<String> = schemas.iter().map(Schema::to_string).collect();
        assert_eq!(texts.len(), schemas.len(), "{texts:?}");
    }
}
