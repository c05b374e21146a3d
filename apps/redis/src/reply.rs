//! A request's answer, before it is encoded for a client's version of the protocol.

// The types that rkyv derives have no documentation.
#![allow(missing_docs)]

use std::borrow::Cow;

use rkyv::{
    Archive, Deserialize, Serialize,
    bytecheck::rancor::Source,
    ser::{Allocator, Writer},
    validation::ArchiveContext,
    with::AsOwned,
};

use crate::{Error, Text, text::AsBytes};

/// An answer. A form that RESP2 lacks is encoded there as Redis does it.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, derive_more::From)]
#[rkyv(
    serialize_bounds(__S: Writer + Allocator, __S::Error: Source),
    deserialize_bounds(__D::Error: Source),
    bytecheck(bounds(__C: ArchiveContext, __C::Error: Source)),
)]
pub enum Reply {
    /// A short status without line ends.
    Status(#[rkyv(with = AsOwned)] Cow<'static, str>),
    /// A refusal.
    #[from]
    Error(Error),
    /// A whole number.
    Integer(i64),
    /// A number; in RESP2 a string.
    Double(f64),
    /// A value that the store still holds.
    #[from]
    Text(#[rkyv(with = AsBytes)] Text),
    /// Other bytes.
    Bytes(Box<[u8]>),
    /// A text for people.
    Verbatim(String),
    /// No value; in RESP2 a bulk string of length -1.
    Null,
    /// No value; in RESP2 an array of length -1.
    NullArray,
    /// Answers in a row.
    Array(#[rkyv(omit_bounds)] Vec<Reply>),
    /// Keys and values; in RESP2 an array of both in turn.
    Map(#[rkyv(omit_bounds)] Vec<(Reply, Reply)>),
    /// Answers in pairs; in RESP2 an array of all.
    Pairs(#[rkyv(omit_bounds)] Vec<(Reply, Reply)>),
    /// Answers without an order; in RESP2 an array.
    Set(#[rkyv(omit_bounds)] Vec<Reply>),
    /// A push, which the client did not ask for; in RESP2 an array.
    Push(#[rkyv(omit_bounds)] Vec<Reply>),
    /// No answer yet, since the request waits for an element. No client is sent this.
    Waiting,
}

impl Reply {
    /// The answer to most changes.
    pub const OK: Reply = Reply::Status(Cow::Borrowed("OK"));

    /// A fixed status.
    pub const fn status(text: &'static str) -> Reply {
        Reply::Status(Cow::Borrowed(text))
    }

    /// Bytes that are copied.
    pub fn bytes(bytes: impl AsRef<[u8]>) -> Reply {
        Reply::Bytes(bytes.as_ref().into())
    }

    /// The answer to a count.
    pub fn count(things: usize) -> Reply {
        Reply::Integer(things as i64)
    }

    /// The answer to a yes-or-no question: 1 or 0.
    pub fn whether(holds: bool) -> Reply {
        Reply::Integer(i64::from(holds))
    }

    /// An array of bytes, copied.
    pub fn array_of_bytes<B: AsRef<[u8]>>(all: impl IntoIterator<Item = B>) -> Reply {
        Reply::Array(all.into_iter().map(Reply::bytes).collect())
    }

    /// The bytes of memory that it takes, with those of values that the store still holds; an estimate.
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
            Reply::Status(_)
            | Reply::Integer(_)
            | Reply::Double(_)
            | Reply::Null
            | Reply::NullArray
            | Reply::Waiting => 0,
        }
    }
}

/// A value, or null.
impl<T: Into<Reply>> From<Option<T>> for Reply {
    fn from(value: Option<T>) -> Reply {
        value.map_or(Reply::Null, T::into)
    }
}

impl From<Result<Reply, Error>> for Reply {
    fn from(result: Result<Reply, Error>) -> Reply {
        result.unwrap_or_else(Reply::Error)
    }
}

#[cfg(test)]
mod tests {
    use rkyv::rancor;

    use super::*;

    #[test]
    fn an_answer_travels_to_a_front_end_as_it_is() {
        let all = vec![
            Reply::OK,
            Reply::Error(Error::new("ERR no".to_owned())),
            Reply::Integer(-1),
            Reply::Double(f64::INFINITY),
            Reply::Text(Text::plain(&[7; 100])),
            Reply::bytes(""),
            Reply::Verbatim("text".to_owned()),
            Reply::Null,
            Reply::NullArray,
            Reply::Array(vec![Reply::Array(Vec::new()), Reply::Null]),
            Reply::Map(vec![(Reply::bytes("key"), Reply::Pairs(vec![(Reply::Integer(1), Reply::Integer(2))]))]),
            Reply::Set(vec![Reply::bytes("member")]),
            Reply::Push(vec![Reply::status("message")]),
            Reply::Waiting,
        ];
        let reply = Reply::Array(all);
        let bytes = rkyv::to_bytes::<rancor::Error>(&reply).expect("it can be archived");
        let came = rkyv::from_bytes::<Reply, rancor::Error>(&bytes).expect("it was just archived");
        assert_eq!(came, reply);
        assert!(rkyv::from_bytes::<Reply, rancor::Error>(&bytes[..bytes.len() / 2]).is_err());
    }
}
