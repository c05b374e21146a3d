//! Requests as types: a client's words are checked here once, with Redis' own texts for what is wrong.

use std::borrow::Cow;

use crate::{
    store::{Command, Only, Pair, Query, SetAnswer, integer},
    table::{self, Spec},
};

/// A well-formed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Write(Command),
    Read(Query),
    Local(Local),
}

/// What a replica answers by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    Ping(Option<Vec<u8>>),
    Echo(Vec<u8>),
    Select,
    Hello(Hello),
    Client(Client),
    Describe(Describe),
    /// The settings whose names match one of these patterns.
    ConfigGet(Vec<Vec<u8>>),
    /// These sections, in lower case; the usual ones if there are none.
    Info(Vec<String>),
    Time,
    Reset,
    Quit,
    /// A web browser was led here: it is cut off, since the lines that follow are not for us.
    CrossProtocol,
}

/// The options of `HELLO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) protocol: Option<Protocol>,
    pub(crate) name: Option<String>,
}

/// The version of the protocol in which a connection is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    #[default]
    Resp2,
    Resp3,
}

/// `CLIENT ...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    Id,
    GetName,
    SetName(String),
    Info,
    List,
    /// Noted by Redis, without a meaning here: `SETINFO`, `NO-EVICT`, `NO-TOUCH`.
    Ignored,
}

/// `COMMAND ...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Describe {
    All,
    Count,
    List,
    Info(Vec<Vec<u8>>),
    Docs(Vec<Vec<u8>>),
}

/// Why a request is refused. The texts are Redis' own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("ERR unknown command '{name}', with args beginning with: {arguments}")]
    Unknown { name: String, arguments: String },
    #[error("ERR unknown subcommand '{subcommand}'. Try {command} HELP.")]
    UnknownSubcommand { command: &'static str, subcommand: String },
    #[error("ERR wrong number of arguments for '{0}' command")]
    Arity(&'static str),
    #[error("ERR syntax error")]
    Syntax,
    #[error("ERR value is not an integer or out of range")]
    NotAnInteger,
    #[error("ERR decrement would overflow")]
    Decrement,
    #[error("ERR DB index is out of range")]
    Database,
    #[error("ERR Protocol version is not an integer or out of range")]
    ProtocolNumber,
    #[error("NOPROTO unsupported protocol version")]
    ProtocolVersion,
    #[error("ERR Syntax error in HELLO option '{0}'")]
    HelloOption(String),
    #[error("ERR Client names cannot contain spaces, newlines or special characters.")]
    ClientName,
    #[error(
        "ERR AUTH <password> called without any password configured for the default user. \
         Are you sure your configuration is correct?"
    )]
    NoPassword,
    #[error("ERR Unknown option or number of arguments for CONFIG SET - '{0}'")]
    ConfigSet(String),
    #[error("ERR the option {0} of SET is not supported yet: keys do not expire in this version")]
    Expiry(&'static str),
}

/// Reads a request out of a client's words, of which there is at least one.
pub(crate) fn parse(words: &[Cow<'_, [u8]>]) -> Result<Request, CommandError> {
    let spec = match table::find(&words[0]) {
        Some(spec) => spec,
        None if is(&words[0], "post") || is(&words[0], "host:") => return Ok(Request::Local(Local::CrossProtocol)),
        None => return Err(unknown(words)),
    };
    if !spec.takes(words.len()) {
        return Err(CommandError::Arity(spec.name));
    }
    build(spec, words)
}

fn build(spec: &'static Spec, words: &[Cow<'_, [u8]>]) -> Result<Request, CommandError> {
    let owned = |at: usize| words[at].clone().into_owned();
    let owned_from = |at: usize| words[at..].iter().map(|word| word.clone().into_owned()).collect::<Vec<_>>();
    let number = |at: usize| integer(&words[at]).ok_or(CommandError::NotAnInteger);
    let write = |command| Ok(Request::Write(command));
    let read = |query| Ok(Request::Read(query));
    let local = |local| Ok(Request::Local(local));
    let set = |only, answer| Command::Set { key: owned(1), value: owned(2), only, answer };
    match spec.name {
        "get" => read(Query::Get { key: owned(1) }),
        "mget" => read(Query::GetMany { keys: owned_from(1) }),
        "exists" => read(Query::Exists { keys: owned_from(1) }),
        "strlen" => read(Query::Length { key: owned(1) }),
        "type" => read(Query::Type { key: owned(1) }),
        "keys" => read(Query::Keys { pattern: owned(1) }),
        "dbsize" => read(Query::Count),
        "set" => {
            let (only, answer) = set_options(&words[3..])?;
            write(set(only, answer))
        }
        "setnx" => write(set(Only::IfAbsent, SetAnswer::Whether)),
        "getset" => write(set(Only::Always, SetAnswer::Old)),
        "mset" => {
            let (pairs, []) = words[1..].as_chunks::<2>() else { return Err(CommandError::Arity("mset")) };
            let pair = |[key, value]: &[Cow<'_, [u8]>; 2]| Pair { key: key.to_vec(), value: value.to_vec() };
            write(Command::SetMany { pairs: pairs.iter().map(pair).collect() })
        }
        "append" => write(Command::Append { key: owned(1), suffix: owned(2) }),
        "incr" => write(Command::Add { key: owned(1), by: 1 }),
        "decr" => write(Command::Add { key: owned(1), by: -1 }),
        "incrby" => write(Command::Add { key: owned(1), by: number(2)? }),
        "decrby" => {
            let by = number(2)?.checked_neg().ok_or(CommandError::Decrement)?;
            write(Command::Add { key: owned(1), by })
        }
        "del" | "unlink" => write(Command::Delete { keys: owned_from(1) }),
        "flushall" | "flushdb" => match &words[1..] {
            [] => write(Command::Clear),
            [mode] if is(mode, "sync") || is(mode, "async") => write(Command::Clear),
            _ => Err(CommandError::Syntax),
        },
        "ping" => match &words[1..] {
            [] => local(Local::Ping(None)),
            [text] => local(Local::Ping(Some(text.to_vec()))),
            _ => Err(CommandError::Arity("ping")),
        },
        "echo" => local(Local::Echo(owned(1))),
        "select" => match number(1)? {
            0 => local(Local::Select),
            _ => Err(CommandError::Database),
        },
        "hello" => hello(&words[1..]).map(|hello| Request::Local(Local::Hello(hello))),
        "auth" => Err(CommandError::NoPassword),
        "client" => client(&words[1..]).map(|client| Request::Local(Local::Client(client))),
        "command" => describe(&words[1..]).map(|describe| Request::Local(Local::Describe(describe))),
        "config" => config(&words[1..]).map(Request::Local),
        "info" => local(Local::Info(words[1..].iter().map(|word| text(word).to_ascii_lowercase()).collect())),
        "time" => local(Local::Time),
        "reset" => local(Local::Reset),
        "quit" => local(Local::Quit),
        name => unreachable!("{name} is in the table"),
    }
}

fn set_options(options: &[Cow<'_, [u8]>]) -> Result<(Only, SetAnswer), CommandError> {
    let (mut only, mut answer) = (Only::Always, SetAnswer::Done);
    for option in options {
        if let Some(expiry) = ["EX", "PX", "EXAT", "PXAT", "KEEPTTL"].into_iter().find(|name| is(option, name)) {
            return Err(CommandError::Expiry(expiry));
        }
        let condition = match option {
            option if is(option, "nx") => Only::IfAbsent,
            option if is(option, "xx") => Only::IfPresent,
            option if is(option, "get") => {
                answer = SetAnswer::Old;
                continue;
            }
            _ => return Err(CommandError::Syntax),
        };
        if only != Only::Always && only != condition {
            return Err(CommandError::Syntax);
        }
        only = condition;
    }
    Ok((only, answer))
}

fn hello(words: &[Cow<'_, [u8]>]) -> Result<Hello, CommandError> {
    let mut hello = Hello::default();
    let Some((version, options)) = words.split_first() else { return Ok(hello) };
    hello.protocol = Some(match integer(version).ok_or(CommandError::ProtocolNumber)? {
        2 => Protocol::Resp2,
        3 => Protocol::Resp3,
        _ => return Err(CommandError::ProtocolVersion),
    });
    match options {
        [] => {}
        [option, _, _, ..] if is(option, "auth") => return Err(CommandError::NoPassword),
        [option, name] if is(option, "setname") => hello.name = Some(client_name(name)?),
        [option, ..] => return Err(CommandError::HelloOption(excerpt(option))),
    }
    Ok(hello)
}

fn client(words: &[Cow<'_, [u8]>]) -> Result<Client, CommandError> {
    let (name, arguments) = words.split_first().expect("the arity was checked");
    let forms: [(&'static str, Option<usize>); 8] = [
        ("client|id", Some(0)),
        ("client|getname", Some(0)),
        ("client|info", Some(0)),
        ("client|setname", Some(1)),
        ("client|setinfo", Some(2)),
        ("client|no-evict", Some(1)),
        ("client|no-touch", Some(1)),
        ("client|list", None),
    ];
    let form = subcommand("CLIENT", name, arguments.len(), &forms)?;
    Ok(match form {
        "client|id" => Client::Id,
        "client|getname" => Client::GetName,
        "client|info" => Client::Info,
        "client|setname" => Client::SetName(client_name(&arguments[0])?),
        "client|list" => match arguments {
            [] => Client::List,
            [by, kind] if is(by, "type") && is(kind, "normal") => Client::List,
            _ => return Err(CommandError::Syntax),
        },
        "client|no-evict" | "client|no-touch" if !is(&arguments[0], "on") && !is(&arguments[0], "off") => {
            return Err(CommandError::Syntax);
        }
        _ => Client::Ignored,
    })
}

fn describe(words: &[Cow<'_, [u8]>]) -> Result<Describe, CommandError> {
    let Some((name, arguments)) = words.split_first() else { return Ok(Describe::All) };
    let forms: [(&'static str, Option<usize>); 4] =
        [("command|count", Some(0)), ("command|list", Some(0)), ("command|info", None), ("command|docs", None)];
    let names = || arguments.iter().map(|word| word.to_vec()).collect::<Vec<_>>();
    Ok(match subcommand("COMMAND", name, arguments.len(), &forms)? {
        "command|count" => Describe::Count,
        "command|list" => Describe::List,
        "command|info" if arguments.is_empty() => Describe::All,
        "command|info" => Describe::Info(names()),
        _ => Describe::Docs(names()),
    })
}

fn config(words: &[Cow<'_, [u8]>]) -> Result<Local, CommandError> {
    let (name, arguments) = words.split_first().expect("the arity was checked");
    let forms: [(&'static str, Option<usize>); 2] = [("config|get", None), ("config|set", None)];
    match subcommand("CONFIG", name, arguments.len(), &forms)? {
        "config|get" if arguments.is_empty() => Err(CommandError::Arity("config|get")),
        "config|get" => Ok(Local::ConfigGet(arguments.iter().map(|word| word.to_vec()).collect())),
        _ => match arguments {
            [option, _, ..] => Err(CommandError::ConfigSet(excerpt(option))),
            _ => Err(CommandError::Arity("config|set")),
        },
    }
}

/// Finds "command|subcommand" by the subcommand's name, and checks its number of arguments where that is fixed.
fn subcommand(
    command: &'static str,
    name: &[u8],
    arguments: usize,
    forms: &[(&'static str, Option<usize>)],
) -> Result<&'static str, CommandError> {
    let form = forms.iter().find(|(form, _)| is(name, &form[command.len() + 1..]));
    match form {
        None => Err(CommandError::UnknownSubcommand { command, subcommand: excerpt(name) }),
        Some((form, Some(count))) if *count != arguments => Err(CommandError::Arity(form)),
        Some((form, _)) => Ok(form),
    }
}

fn client_name(name: &[u8]) -> Result<String, CommandError> {
    if name.iter().all(|byte| byte.is_ascii_graphic()) { Ok(text(name)) } else { Err(CommandError::ClientName) }
}

fn unknown(words: &[Cow<'_, [u8]>]) -> CommandError {
    let mut arguments = String::new();
    for word in &words[1..] {
        if arguments.len() >= EXCERPT_BYTES {
            break;
        }
        let room = EXCERPT_BYTES - arguments.len();
        arguments.push_str(&format!("'{}' ", text(&word[..word.len().min(room)])));
    }
    CommandError::Unknown { name: excerpt(&words[0]), arguments }
}

/// How much of a client's own words an error repeats, in bytes.
const EXCERPT_BYTES: usize = 128;

fn excerpt(word: &[u8]) -> String {
    text(&word[..word.len().min(EXCERPT_BYTES)])
}

fn text(word: &[u8]) -> String {
    String::from_utf8_lossy(word).into_owned()
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn words(line: &str) -> Vec<Cow<'_, [u8]>> {
        line.split(' ').map(|word| Cow::Borrowed(word.as_bytes())).collect()
    }

    fn error(line: &str) -> String {
        parse(&words(line)).expect_err(line).to_string()
    }

    fn write(line: &str) -> Command {
        match parse(&words(line)) {
            Ok(Request::Write(command)) => command,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn errors_are_those_of_redis() {
        for (line, text) in [
            ("foo a b", "ERR unknown command 'foo', with args beginning with: 'a' 'b' "),
            ("foo", "ERR unknown command 'foo', with args beginning with: "),
            ("GET", "ERR wrong number of arguments for 'get' command"),
            ("get a b", "ERR wrong number of arguments for 'get' command"),
            ("ping a b", "ERR wrong number of arguments for 'ping' command"),
            ("mset a 1 b", "ERR wrong number of arguments for 'mset' command"),
            ("set a 1 nx xx", "ERR syntax error"),
            ("set a 1 what", "ERR syntax error"),
            ("flushall now", "ERR syntax error"),
            ("incrby a x", "ERR value is not an integer or out of range"),
            ("decrby a -9223372036854775808", "ERR decrement would overflow"),
            ("select 1", "ERR DB index is out of range"),
            ("select x", "ERR value is not an integer or out of range"),
            ("hello 4", "NOPROTO unsupported protocol version"),
            ("hello x", "ERR Protocol version is not an integer or out of range"),
            ("hello 3 what", "ERR Syntax error in HELLO option 'what'"),
            ("config what", "ERR unknown subcommand 'what'. Try CONFIG HELP."),
            ("config get", "ERR wrong number of arguments for 'config|get' command"),
            ("config set save 1", "ERR Unknown option or number of arguments for CONFIG SET - 'save'"),
            ("client setname", "ERR wrong number of arguments for 'client|setname' command"),
            ("client setname a\nb", "ERR Client names cannot contain spaces, newlines or special characters."),
            ("set a 1 EX 10", "ERR the option EX of SET is not supported yet: keys do not expire in this version"),
            (
                "set a 1 nx keepttl",
                "ERR the option KEEPTTL of SET is not supported yet: keys do not expire in this version",
            ),
        ] {
            assert_eq!(error(line), text, "{line:?}");
        }
    }

    #[test]
    fn an_unknown_command_is_repeated_in_part_only() {
        let long = "x".repeat(1000);
        let text = error(&format!("{long} {long} {long}"));
        assert_eq!(text.matches('x').count(), 2 * EXCERPT_BYTES);
    }

    #[test]
    fn sets_carry_their_options() {
        let set = |only, answer| Command::Set { key: b"k".into(), value: b"v".into(), only, answer };
        assert_eq!(write("set k v"), set(Only::Always, SetAnswer::Done));
        assert_eq!(write("SET k v NX GET"), set(Only::IfAbsent, SetAnswer::Old));
        assert_eq!(write("set k v xx"), set(Only::IfPresent, SetAnswer::Done));
        assert_eq!(write("setnx k v"), set(Only::IfAbsent, SetAnswer::Whether));
        assert_eq!(write("getset k v"), set(Only::Always, SetAnswer::Old));
    }

    #[test]
    fn every_command_of_the_table_is_understood() {
        for spec in table::TABLE {
            let count = usize::from(spec.arity.unsigned_abs());
            let line = [spec.name].into_iter().chain(std::iter::repeat_n("0", count - 1)).collect::<Vec<_>>().join(" ");
            match (spec.kind, parse(&words(&line))) {
                (table::Kind::Write, Ok(Request::Write(_)))
                | (table::Kind::Read, Ok(Request::Read(_)))
                | (table::Kind::Local, Ok(Request::Local(_)) | Err(_)) => {}
                (kind, other) => panic!("{line} ({kind:?}): {other:?}"),
            }
        }
    }

    proptest! {
        #[test]
        fn no_words_panic(name in 0..table::TABLE.len(), rest in vec(vec(any::<u8>(), 0..8), 0..5)) {
            let mut words = vec![Cow::Borrowed(table::TABLE[name].name.as_bytes())];
            words.extend(rest.into_iter().map(Cow::Owned));
            let _ = parse(&words);
        }
    }
}
