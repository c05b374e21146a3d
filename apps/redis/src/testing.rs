//! A store behind a prompt, for tests of commands.

use rkyv::rancor;
use squall::{Applied, Epoch, Hlc, NodeId, Replicated, Seq};

use crate::{
    Reply, Store,
    command::{self, CommandFn},
    message::{AnsweredBy, StoreCommand},
    words,
};

/// A store, and the time.
#[derive(Debug, Default)]
pub(crate) struct Shell {
    pub(crate) store: Store,
    pub(crate) now_ms: u64,
    pub(crate) applied: u64,
}

impl Shell {
    pub(crate) fn new() -> Shell {
        Shell { now_ms: 1_700_000_000_000, ..Shell::default() }
    }

    /// Carries out a line of words, and shows the answer: `OK`, `:1`, `"text"`, `nil`, `[..]`, `{key: value}`, `-ERR
    /// ..`.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        let words: Vec<_> = line.split(' ').collect();
        self.ask_words(&words)
    }

    /// Carries out a request as [`ask`](Shell::ask) does, from words that may hold any bytes.
    pub(crate) fn ask_words<W: AsRef<[u8]>>(&mut self, words: &[W]) -> String {
        let request = words::join(words);
        let run = {
            let split = words::split(&request).expect("it was just joined");
            command::check(&split).map(|spec| spec.run)
        };
        let reply = match run {
            Err(error) => Reply::Error(error),
            Ok(CommandFn::Read(_)) => self.store.look(&request, self.now_ms),
            Ok(CommandFn::Write(_) | CommandFn::Block(_)) => {
                self.apply(&StoreCommand::Run { at_ms: self.now_ms, request, answered_by: AnsweredBy::Sender })
            }
            Ok(CommandFn::Local) => panic!("the server answers this, not the store"),
        };
        show(&reply)
    }

    /// Lets a client of a node carry out a line of words that may wait.
    pub(crate) fn wait(&mut self, node: u32, ticket: u64, line: &str) -> String {
        let command = StoreCommand::Wait { at_ms: self.now_ms, ticket, request: words::join(line.split(' ')) };
        show(&self.apply_from(NodeId(node), &command))
    }

    /// Ends a wait of a node's client. Returns whether it had not ended.
    pub(crate) fn cancel(&mut self, node: u32, ticket: u64) -> bool {
        let command = StoreCommand::CancelWaits { at_ms: self.now_ms, tickets: vec![ticket] };
        self.apply_from(NodeId(node), &command) == Reply::Integer(1)
    }

    /// Applies a message, as a replica does.
    pub(crate) fn apply(&mut self, command: &StoreCommand) -> Reply {
        self.apply_from(NodeId(1), command)
    }

    /// Applies a message of a node.
    pub(crate) fn apply_from(&mut self, sender: NodeId, command: &StoreCommand) -> Reply {
        self.applied += 1;
        let at =
            Applied { epoch: Epoch(1), seq: Seq(self.applied), sender, time: Hlc(0), version: None, follow_up: None };
        let bytes = rkyv::to_bytes::<rancor::Error>(command).expect("it can be archived");
        let archived =
            rkyv::access::<rkyv::Archived<StoreCommand>, rancor::Error>(&bytes).expect("it was just archived");
        self.store.apply(archived, &at)
    }
}

pub(crate) fn show(reply: &Reply) -> String {
    let all = |replies: &[Reply]| replies.iter().map(show).collect::<Vec<_>>().join(", ");
    match reply {
        Reply::Status(text) => text.clone().into_owned(),
        Reply::Error(error) => format!("-{error}"),
        Reply::Integer(number) => format!(":{number}"),
        Reply::Double(number) => format!(",{number}"),
        Reply::Text(text) => format!("\"{}\"", text.bytes().escape_ascii()),
        Reply::Bytes(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Reply::Verbatim(text) => text.clone(),
        Reply::Null => "nil".to_owned(),
        Reply::NullArray => "nil[]".to_owned(),
        Reply::Waiting => "waiting".to_owned(),
        Reply::Array(replies) => format!("[{}]", all(replies)),
        Reply::Push(replies) => format!(">[{}]", all(replies)),
        Reply::Set(replies) => format!("~[{}]", all(replies)),
        Reply::Map(pairs) | Reply::Pairs(pairs) => {
            let pairs: Vec<_> = pairs.iter().map(|(key, value)| format!("{}: {}", show(key), show(value))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
    }
}
