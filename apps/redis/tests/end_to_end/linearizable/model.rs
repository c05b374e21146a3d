//! The model of one key, and the check whether it explains a history.

use std::{fmt, time::Duration};

use porcupine_rs::{CheckResult, Model, Operation, check_operations_timeout};
use redis_protocol::resp2::types::OwnedFrame;

use crate::wire::show;

/// More time than any history here needs, even on a busy machine.
const CHECK_LIMIT: Duration = Duration::from_secs(20);

/// A command on a key.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    Get,
    Set(String),
    GetSet(String),
    Append(String),
    Incr,
    Del,
}

impl Command {
    pub(crate) fn words<'a>(&'a self, key: &'a str) -> Vec<&'a str> {
        match self {
            Command::Get => vec!["GET", key],
            Command::Set(value) => vec!["SET", key, value],
            Command::GetSet(value) => vec!["GETSET", key, value],
            Command::Append(value) => vec!["APPEND", key, value],
            Command::Incr => vec!["INCR", key],
            Command::Del => vec!["DEL", key],
        }
    }

    /// The answer in this state, and the state after it.
    pub(crate) fn apply(&self, state: &Option<String>) -> (OwnedFrame, Option<String>) {
        let bulk = |value: &Option<String>| {
            value.clone().map_or(OwnedFrame::Null, |value| OwnedFrame::BulkString(value.into()))
        };
        match self {
            Command::Get => (bulk(state), state.clone()),
            Command::Set(value) => (OwnedFrame::SimpleString("OK".into()), Some(value.clone())),
            Command::GetSet(value) => (bulk(state), Some(value.clone())),
            Command::Append(value) => {
                let after = state.clone().unwrap_or_default() + value;
                (OwnedFrame::Integer(after.len() as i64), Some(after))
            }
            Command::Incr => match integer(state.as_deref().unwrap_or("0")).and_then(|number| number.checked_add(1)) {
                Some(after) => (OwnedFrame::Integer(after), Some(after.to_string())),
                None => (OwnedFrame::Error("ERR value is not an integer or out of range".into()), state.clone()),
            },
            Command::Del => (OwnedFrame::Integer(state.is_some().into()), None),
        }
    }
}

/// The number that a text is, if it has the one form that counts.
fn integer(text: &str) -> Option<i64> {
    text.parse::<i64>().ok().filter(|number| number.to_string() == text)
}

/// A command, and its answer as far as its client knows.
#[derive(Clone)]
pub(crate) struct Tried {
    pub(crate) command: Command,
    /// `None` if no answer came, or one that leaves the outcome open.
    pub(crate) answer: Option<OwnedFrame>,
}

impl fmt::Debug for Tried {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:?} -> {}", self.command, self.answer.as_ref().map_or_else(|| "no answer".into(), show))
    }
}

/// One key, which has no value at first.
#[derive(Clone, Debug)]
pub(crate) struct Key;

impl Model for Key {
    type State = Option<String>;
    type Op = Tried;
    type Metadata = ();

    fn init() -> Option<String> {
        None
    }

    fn step(state: &Option<String>, tried: &Tried) -> (bool, Option<String>) {
        let (expected, after) = tried.command.apply(state);
        (tried.answer.as_ref().is_none_or(|answer| *answer == expected), after)
    }
}

/// All operations of clients on one key.
pub(crate) type History = Vec<Operation<Key>>;

/// An operation. One without an answer may take effect at any time after its call, or never.
pub(crate) fn operation(client: usize, call_time: i64, return_time: i64, tried: Tried) -> Operation<Key> {
    let return_time = if tried.answer.is_some() { return_time } else { i64::MAX };
    Operation { client_id: Some(client as u32), call_time, return_time, op: tried, metadata: None }
}

/// Whether some order of these operations, each between its call and its return, gives all their answers.
pub(crate) fn is_linearizable(history: &History) -> bool {
    match check_operations_timeout(history, CHECK_LIMIT) {
        CheckResult::Ok => true,
        CheckResult::Illegal => false,
        CheckResult::Unknown => panic!("not decided within {CHECK_LIMIT:?}: {history:#?}"),
    }
}
