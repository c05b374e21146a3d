//! The reading of configurations in TOML.

use std::{collections::BTreeMap, path::Path};

use toml::{
    Spanned,
    de::{DeString, DeTable, DeValue},
};

use super::{
    ConfigError, ValuePlace,
    draft::{Draft, GroupDraft},
    file_text::{File, line_of},
    notation::{self, Form, Written},
    settings::{GroupSettings, NodeSettings, Setting, ShardSettings},
};

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<Draft, ConfigError> {
    let place = |line| ValuePlace::File { path: path.to_owned(), line };
    let raw = std::fs::read(path).map_err(|cause| ConfigError::Read { path: path.to_owned(), cause })?;
    match std::str::from_utf8(&raw) {
        Ok(text) => parse(text, &place),
        Err(error) => {
            let line = line_of(&raw, error.valid_up_to());
            let problem = "is not UTF-8 text: the file may be damaged, or no configuration file".to_owned();
            Err(ConfigError::Text { place: place(Some(line)), problem })
        }
    }
}

/// Reads TOML; `place` makes a place of a line.
pub(super) fn parse(text: &str, place: &dyn Fn(Option<usize>) -> ValuePlace) -> Result<Draft, ConfigError> {
    if text.trim().is_empty() {
        let problem =
            "is empty: the file may not have been written yet; a configuration begins with `cluster = \"...\"`";
        return Err(ConfigError::Text { place: place(None), problem: problem.into() });
    }
    let file = File::new(text, place);
    let root = DeTable::parse(text).map_err(|error| file.error(error.message(), error.span()))?;
    let root = root.get_ref();
    let mut draft = Draft::new(&place(None));
    let keys = [NodeSettings::KEYS, &["addresses", "groups", "weights"]].concat();
    let table = FileTable::new(&file, root, &keys)?;
    draft.node.read(|key, _| table.get(key))?;
    if let Some(table) = root.get("addresses") {
        draft.addresses.place = file.at(table.span());
        let problem = "is of no node: the keys of `[addresses]` are ids, such as `1 = \"10.0.0.1:7700\"`";
        draft.addresses.value = Some(by_number(&file, table, "addresses", problem, notation::addresses)?);
    }
    if let Some(table) = root.get("weights") {
        let problem = "is of no node: the keys of `[weights]` are ids, such as `1 = 2`";
        draft.weights = by_number(&file, table, "weights", problem, notation::number)?;
    }
    if let Some(table) = root.get("groups") {
        for (name, value) in file.table(table)? {
            let mut group = GroupDraft::new(name.get_ref(), &file.at(value.span()));
            read_group(&file, &mut group, value)?;
            draft.groups.insert(name.get_ref().to_string(), group);
        }
    }
    Ok(draft)
}

/// Reads a table whose keys are the ids of nodes. `problem` is what is wrong with another key.
fn by_number<T>(
    file: &File,
    table: &Spanned<DeValue>,
    name: &str,
    problem: &str,
    notation: fn(&Written) -> Result<T, ConfigError>,
) -> Result<BTreeMap<u32, Setting<T>>, ConfigError> {
    let place = file.at(table.span());
    let read = |(id, value): (&Spanned<DeString>, &Spanned<DeValue>)| {
        let mut listed = Setting::new(format!("{name}.{}", id.get_ref()), &place);
        listed.read(file.at(value.span()), Form::Toml(file, value), notation)?;
        let id = id.get_ref().parse().map_err(|_| listed.error(problem))?;
        Ok((id, listed))
    };
    file.table(table)?.iter().map(read).collect()
}

/// Reads a group's table, with those of its shards.
fn read_group(file: &File, group: &mut GroupDraft, value: &Spanned<DeValue>) -> Result<(), ConfigError> {
    let entries = file.table(value)?;
    let keys = [GroupSettings::KEYS, &["shard"]].concat();
    let table = FileTable::new(file, entries, &keys)?;
    group.settings.read(|key, _| table.get(key))?;
    let Some(shards) = entries.get("shard") else { return Ok(()) };
    for (number, value) in file.table(shards)? {
        let place = file.at(value.span());
        let number = number.get_ref().parse().map_err(|_| {
            let problem = "is no shard: the keys of `shard` are numbers from 0, such as `[groups.NAME.shard.0]`";
            ConfigError::value(&place, &format!("{}.shard.{}", group.key(), number.get_ref()), problem)
        })?;
        let table = FileTable::new(file, file.table(value)?, ShardSettings::KEYS)?;
        group.shard(number, &place).read(|key, _| table.get(key))?;
    }
    Ok(())
}

/// A table of a file, and the keys that it may have, with those of its tables.
struct FileTable<'a> {
    file: &'a File<'a>,
    entries: &'a DeTable<'a>,
    keys: &'a [&'static str],
}

impl<'a> FileTable<'a> {
    /// Checks that the table has no other keys.
    fn new(file: &'a File, entries: &'a DeTable, keys: &'a [&'static str]) -> Result<FileTable<'a>, ConfigError> {
        let table = FileTable { file, entries, keys };
        table.check_keys(entries, "")?;
        Ok(table)
    }

    /// Checks the keys of a table of this table, which `prefix` names.
    fn check_keys(&self, entries: &DeTable, prefix: &str) -> Result<(), ConfigError> {
        for (name, value) in entries {
            let key = format!("{prefix}{}", name.get_ref());
            // A name in quotes may have dots, and is no path.
            let is_path = name.get_ref().contains('.');
            let (is_setting, is_table) = (!is_path && self.keys.contains(&&*key), !is_path && self.is_table(&key));
            if is_table && (value.get_ref().is_table() || !is_setting) {
                self.check_keys(self.file.table(value)?, &format!("{key}."))?;
            } else if !is_setting {
                let known = self.keys.iter().filter_map(|known| known.strip_prefix(prefix)?.split('.').next());
                let mut known: Vec<String> = known.map(|known| format!("`{known}`")).collect();
                known.dedup();
                let problem = format!("unknown field `{}`, expected one of {}", name.get_ref(), known.join(", "));
                return Err(self.file.error(&problem, Some(name.span())));
            }
        }
        Ok(())
    }

    /// Returns the value of a setting, and its place.
    fn get(&self, key: &str) -> Option<(ValuePlace, Form<'a>)> {
        // `security` is a setting, or a table of others.
        let value = find(self.entries, key).filter(|value| !(value.get_ref().is_table() && self.is_table(key)))?;
        Some((self.file.at(value.span()), Form::Toml(self.file, value)))
    }

    /// Tells whether this is the key of a table of settings.
    fn is_table(&self, key: &str) -> bool {
        self.keys.iter().any(|known| known.strip_prefix(key).is_some_and(|rest| rest.starts_with('.')))
    }
}

fn find<'a>(table: &'a DeTable<'a>, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
    match key.split_once('.') {
        Some((name, rest)) => find(table.get(name)?.get_ref().as_table()?, rest),
        None => table.get(key),
    }
}
