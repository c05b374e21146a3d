//! `COMMAND`: the descriptions of the commands.

use crate::{
    Error, Reply,
    command::{self, CommandFn, Spec},
    pattern::matches,
};

/// Answers `COMMAND ...`.
pub(super) fn answer(words: &[&[u8]]) -> Result<Reply, Error> {
    let everything = || Reply::Array(command::all().map(entry).collect());
    let Some(name) = words.get(1) else { return Ok(everything()) };
    let find = |name: &&[u8]| command::find(name);
    match (&*name.to_ascii_lowercase(), &words[2..]) {
        (b"count", []) => Ok(Reply::count(command::all().count())),
        (b"list", []) => Ok(Reply::array_of_bytes(command::all().map(|spec| spec.name))),
        (b"list", [filter, by, pattern]) if filter.eq_ignore_ascii_case(b"filterby") => list(by, pattern),
        (b"list", _) => Err(Error::SYNTAX),
        (b"info", []) => Ok(everything()),
        (b"info", names) => {
            let entries = names.iter().map(|name| find(name).map_or(Reply::Null, entry));
            Ok(Reply::Array(entries.collect()))
        }
        (b"docs", []) => Ok(Reply::Map(command::all().map(docs).collect())),
        (b"docs", names) => Ok(Reply::Map(names.iter().filter_map(find).map(docs).collect())),
        (b"getkeys", request @ [_, ..]) => keys(request),
        (b"count", _) => Err(Error::arity("command|count")),
        (b"getkeys", []) => Err(Error::arity("command|getkeys")),
        _ => Err(Error::unknown_subcommand("COMMAND", name)),
    }
}

fn list(by: &[u8], pattern: &[u8]) -> Result<Reply, Error> {
    let chosen: Box<dyn Fn(&Spec) -> bool> = match &*by.to_ascii_lowercase() {
        b"pattern" => Box::new(|spec| matches(pattern, spec.name.as_bytes())),
        // There are no modules and no access categories.
        b"module" | b"aclcat" => Box::new(|_| false),
        _ => return Err(Error::SYNTAX),
    };
    Ok(Reply::array_of_bytes(command::all().filter(|spec| chosen(spec)).map(|spec| spec.name)))
}

fn keys(request: &[&[u8]]) -> Result<Reply, Error> {
    let spec = command::find(request[0]).ok_or(Error::fixed("ERR Invalid command specified"))?;
    if spec.keys.first == 0 {
        return Err(Error::fixed("ERR The command has no key arguments"));
    }
    if !spec.takes(request.len()) {
        return Err(Error::fixed("ERR Invalid number of arguments specified for command"));
    }
    let last = match usize::try_from(spec.keys.last) {
        Ok(last) => last,
        Err(_) => request.len().saturating_sub(spec.keys.last.unsigned_abs().into()),
    };
    let (first, step) = (spec.keys.first.unsigned_abs().into(), spec.keys.step.unsigned_abs().max(1).into());
    Ok(Reply::array_of_bytes(request.iter().take(last + 1).skip(first).step_by(step)))
}

fn entry(spec: &'static Spec) -> Reply {
    let mut flags = Vec::new();
    match spec.run {
        CommandFn::Write(_) | CommandFn::Block(_) => flags.push(Reply::status("write")),
        CommandFn::Read(_) => flags.push(Reply::status("readonly")),
        CommandFn::Local => {}
    }
    if spec.is_fast {
        flags.push(Reply::status("fast"));
    }
    flags.extend(spec.flags.names().map(Reply::status));
    let number = |number: i8| Reply::Integer(i64::from(number));
    Reply::Array(vec![
        Reply::bytes(spec.name),
        number(spec.arity),
        Reply::Set(flags),
        number(spec.keys.first),
        number(spec.keys.last),
        number(spec.keys.step),
        // Access categories, hints, key specifications and subcommands: no command here has any.
        Reply::Set(Vec::new()),
        Reply::Set(Vec::new()),
        Reply::Set(Vec::new()),
        Reply::Set(Vec::new()),
    ])
}

fn docs(spec: &'static Spec) -> (Reply, Reply) {
    let facts = [
        ("summary", Reply::bytes(spec.summary)),
        ("since", Reply::bytes(spec.since)),
        ("group", Reply::bytes(spec.group)),
        ("arity", Reply::Integer(i64::from(spec.arity))),
    ];
    (Reply::bytes(spec.name), Reply::Map(facts.map(|(name, value)| (Reply::bytes(name), value)).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(line: &str) -> Result<Reply, Error> {
        let words: Vec<_> = line.split(' ').map(str::as_bytes).collect();
        answer(&words)
    }

    #[test]
    fn keys_are_found_where_the_table_says() {
        assert_eq!(ask("command getkeys get a"), Ok(Reply::array_of_bytes(["a"])));
        assert_eq!(ask("command getkeys watch a b c"), Ok(Reply::array_of_bytes(["a", "b", "c"])));
        let error = |line| ask(line).expect_err("it has no keys").as_str().to_owned();
        assert_eq!(error("command getkeys ping"), "ERR The command has no key arguments");
        assert_eq!(error("command getkeys get"), "ERR Invalid number of arguments specified for command");
        assert_eq!(error("command getkeys what"), "ERR Invalid command specified");
    }

    #[test]
    fn no_two_commands_have_the_same_name() {
        let mut names: Vec<_> = command::all().map(|spec| spec.name).collect();
        names.sort_unstable();
        assert!(names.is_sorted_by(|one, other| one < other), "{names:?}");
    }

    #[test]
    fn every_command_can_be_described() {
        for spec in command::all() {
            assert!(!spec.summary.is_empty() && !spec.group.is_empty() && !spec.since.is_empty(), "{}", spec.name);
            assert_eq!(spec.name, spec.name.to_ascii_lowercase());
        }
    }
}
