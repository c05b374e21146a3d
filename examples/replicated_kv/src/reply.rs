//! What a request is answered, before it is encoded for a client's version of the protocol.

use crate::{Error, Text};

/// An answer. Where RESP2 lacks a form, it becomes what Redis makes of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A short status without line ends.
    Status(&'static str),
    /// A refusal.
    Error(Error),
    /// A whole number.
    Integer(i64),
    /// A number; in RESP2 a string.
    Double(f64),
    /// A value that the store still holds.
    Text(Text),
    /// Other bytes.
    Bytes(Box<[u8]>),
    /// A text for people.
    Verbatim(String),
    /// Nothing; in RESP2 a bulk string of no length.
    Null,
    /// Nothing; in RESP2 an array of no length.
    NullArray,
    /// Answers in a row.
    Array(Vec<Reply>),
    /// Keys and values; in RESP2 an array of both in turn.
    Map(Vec<(Reply, Reply)>),
    /// Answers that belong together two by two; in RESP2 an array of all.
    Pairs(Vec<(Reply, Reply)>),
    /// Answers without an order; in RESP2 an array.
    Set(Vec<Reply>),
    /// What was not asked for; in RESP2 an array.
    Push(Vec<Reply>),
}

impl Reply {
    /// What most changes are answered.
    pub const OK: Reply = Reply::Status("OK");

    /// Bytes that are copied.
    pub fn bytes(bytes: impl AsRef<[u8]>) -> Reply {
        Reply::Bytes(bytes.as_ref().into())
    }

    /// A number of things.
    pub fn count(things: usize) -> Reply {
        Reply::Integer(things as i64)
    }

    /// 1 or 0.
    pub fn whether(holds: bool) -> Reply {
        Reply::Integer(i64::from(holds))
    }

    /// Bytes in a row, copied.
    pub fn array_of_bytes<B: AsRef<[u8]>>(all: impl IntoIterator<Item = B>) -> Reply {
        Reply::Array(all.into_iter().map(Reply::bytes).collect())
    }

    /// About how many bytes of memory it takes, with those of values that the store still holds.
    pub fn memory_bytes(&self) -> usize {
        let inner = match self {
            Reply::Array(all) | Reply::Set(all) | Reply::Push(all) => all.iter().map(Reply::memory_bytes).sum(),
            Reply::Map(pairs) | Reply::Pairs(pairs) => {
                pairs.iter().map(|(key, value)| key.memory_bytes() + value.memory_bytes()).sum()
            }
            _ => self.payload_bytes(),
        };
        size_of::<Reply>() + inner
    }

    /// The bytes of all values in it, without their frames.
    pub fn payload_bytes(&self) -> usize {
        match self {
            Reply::Text(text) => text.len(),
            Reply::Bytes(bytes) => bytes.len(),
            Reply::Verbatim(text) => text.len(),
            Reply::Error(error) => error.as_str().len(),
            Reply::Array(all) | Reply::Set(all) | Reply::Push(all) => all.iter().map(Reply::payload_bytes).sum(),
            Reply::Map(pairs) | Reply::Pairs(pairs) => {
                pairs.iter().map(|(key, value)| key.payload_bytes() + value.payload_bytes()).sum()
            }
            Reply::Status(_) | Reply::Integer(_) | Reply::Double(_) | Reply::Null | Reply::NullArray => 0,
        }
    }
}

impl From<Text> for Reply {
    fn from(text: Text) -> Reply {
        Reply::Text(text)
    }
}

/// A value, or nothing.
impl<T: Into<Reply>> From<Option<T>> for Reply {
    fn from(value: Option<T>) -> Reply {
        value.map_or(Reply::Null, T::into)
    }
}

impl From<Error> for Reply {
    fn from(error: Error) -> Reply {
        Reply::Error(error)
    }
}

impl From<Result<Reply, Error>> for Reply {
    fn from(result: Result<Reply, Error>) -> Reply {
        result.unwrap_or_else(Reply::Error)
    }
}
