//! What clients are told, in the version of the protocol that each chose.
//!
//! redis-protocol encodes the frames. An aggregate is its header and then its elements, one after the other, so no tree is
//! built and no value copied to encode it.

use std::{borrow::Cow, sync::Arc};

use redis_protocol::{resp2, resp3, types::CRLF};

use crate::{command::Protocol, store::Reply};

/// The most bytes of values in one array. A short request can name the same large value a thousand times.
const MAX_ARRAY_BYTES: usize = 64 << 20;

/// An answer to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A short text without line ends.
    Simple(&'static str),
    /// An error code, a space, and a text. Line ends in it become spaces.
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    /// A value that the store still holds.
    Shared(Arc<[u8]>),
    Null,
    /// A text for people.
    Verbatim(String),
    Array(Vec<Answer>),
    /// In RESP2, an array of keys and values in turn.
    Map(Vec<(Answer, Answer)>),
}

impl Answer {
    pub(crate) fn error(error: impl ToString) -> Answer {
        Answer::Error(error.to_string())
    }

    pub(crate) fn bulk(text: impl AsRef<[u8]>) -> Answer {
        Answer::Bulk(text.as_ref().to_vec())
    }

    pub(crate) fn bulks<T: AsRef<[u8]>>(texts: impl IntoIterator<Item = T>) -> Answer {
        Answer::Array(texts.into_iter().map(Answer::bulk).collect())
    }

    /// Appends the answer to what a connection is sent; an error in its place if it is too large.
    pub(crate) fn encode(&self, protocol: Protocol, out: &mut Vec<u8>) {
        if let Answer::Array(elements) = self {
            let bytes: usize = elements.iter().map(Answer::payload_bytes).sum();
            if bytes > MAX_ARRAY_BYTES {
                let text =
                    format!("ERR the values take {bytes} bytes, one reply at most {MAX_ARRAY_BYTES}: ask for fewer");
                return Answer::Error(text).encode_whole(protocol, out);
            }
        }
        self.encode_whole(protocol, out);
    }

    fn encode_whole(&self, protocol: Protocol, out: &mut Vec<u8>) {
        match (self, protocol) {
            (Answer::Array(elements), _) => {
                header(b'*', elements.len(), out);
                elements.iter().for_each(|element| element.encode_whole(protocol, out));
            }
            (Answer::Map(pairs), _) => {
                match protocol {
                    Protocol::Resp2 => header(b'*', 2 * pairs.len(), out),
                    Protocol::Resp3 => header(b'%', pairs.len(), out),
                }
                for (key, value) in pairs {
                    key.encode_whole(protocol, out);
                    value.encode_whole(protocol, out);
                }
            }
            (leaf, Protocol::Resp2) => leaf.encode_resp2(out),
            (leaf, Protocol::Resp3) => leaf.encode_resp3(out),
        }
    }

    fn encode_resp2(&self, out: &mut Vec<u8>) {
        use resp2::types::BorrowedFrame as Frame;
        let error;
        let frame = match self {
            Answer::Simple(text) => Frame::SimpleString(text.as_bytes()),
            Answer::Error(text) => {
                error = one_line(text);
                Frame::Error(&error)
            }
            Answer::Integer(number) => Frame::Integer(*number),
            Answer::Bulk(bytes) => Frame::BulkString(bytes),
            Answer::Shared(bytes) => Frame::BulkString(bytes),
            Answer::Verbatim(text) => Frame::BulkString(text.as_bytes()),
            Answer::Null => Frame::Null,
            Answer::Array(_) | Answer::Map(_) => unreachable!("an aggregate is no single frame"),
        };
        let at = out.len();
        out.resize(at + frame.encode_len(false), 0);
        resp2::encode::encode_borrowed(&mut out[at..], &frame, false).expect("there is room for exactly this frame");
    }

    fn encode_resp3(&self, out: &mut Vec<u8>) {
        use resp3::types::{BorrowedFrame as Frame, VerbatimStringFormat::Text};
        let attributes = None;
        let error;
        let frame = match self {
            Answer::Simple(text) => Frame::SimpleString { data: text.as_bytes(), attributes },
            Answer::Error(text) => {
                error = one_line(text);
                Frame::SimpleError { data: &error, attributes }
            }
            Answer::Integer(number) => Frame::Number { data: *number, attributes },
            Answer::Bulk(data) => Frame::BlobString { data, attributes },
            Answer::Shared(data) => Frame::BlobString { data, attributes },
            Answer::Verbatim(text) => Frame::VerbatimString { data: text.as_bytes(), format: Text, attributes },
            Answer::Null => Frame::Null,
            Answer::Array(_) | Answer::Map(_) => unreachable!("an aggregate is no single frame"),
        };
        let at = out.len();
        out.resize(at + frame.encode_len(false), 0);
        resp3::encode::complete::encode_borrowed(&mut out[at..], &frame, false)
            .expect("there is room for exactly this frame");
    }

    /// The bytes of a value, without its frame.
    pub(crate) fn payload_bytes(&self) -> usize {
        match self {
            Answer::Bulk(bytes) => bytes.len(),
            Answer::Shared(bytes) => bytes.len(),
            _ => 0,
        }
    }
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Answer {
        let value = |value: Option<Arc<[u8]>>| value.map_or(Answer::Null, Answer::Shared);
        match reply {
            Reply::Done => Answer::Simple("OK"),
            Reply::Integer(number) => Answer::Integer(number),
            Reply::Value(held) => value(held),
            Reply::Values(held) => Answer::Array(held.into_iter().map(value).collect()),
            Reply::Type(name) => Answer::Simple(name),
            Reply::Refused(refusal) => Answer::error(refusal),
        }
    }
}

fn header(kind: u8, len: usize, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(len.to_string().as_bytes());
    out.extend_from_slice(CRLF.as_bytes());
}

/// An error is one line. It may repeat a client's words, which may hold anything.
fn one_line(text: &str) -> Cow<'_, str> {
    if text.contains(['\r', '\n']) { Cow::Owned(text.replace(['\r', '\n'], " ")) } else { Cow::Borrowed(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(answer: &Answer, protocol: Protocol) -> String {
        let mut out = b"before".to_vec();
        answer.encode(protocol, &mut out);
        String::from_utf8(out).expect("the answers here are text")["before".len()..].to_owned()
    }

    #[test]
    fn answers_have_their_forms_in_both_protocols() {
        let map = Answer::Map(vec![(Answer::bulk("k"), Answer::Array(vec![Answer::Null, Answer::Integer(-1)]))]);
        for (answer, resp2, resp3) in [
            (Answer::Simple("OK"), "+OK\r\n", "+OK\r\n"),
            (Answer::error("ERR a\r\nb"), "-ERR a  b\r\n", "-ERR a  b\r\n"),
            (Answer::Integer(i64::MIN), ":-9223372036854775808\r\n", ":-9223372036854775808\r\n"),
            (Answer::bulk(""), "$0\r\n\r\n", "$0\r\n\r\n"),
            (Answer::Shared(b"ab"[..].into()), "$2\r\nab\r\n", "$2\r\nab\r\n"),
            (Answer::Null, "$-1\r\n", "_\r\n"),
            (Answer::Verbatim("a".into()), "$1\r\na\r\n", "=5\r\ntxt:a\r\n"),
            (map, "*2\r\n$1\r\nk\r\n*2\r\n$-1\r\n:-1\r\n", "%1\r\n$1\r\nk\r\n*2\r\n_\r\n:-1\r\n"),
        ] {
            assert_eq!(encoded(&answer, Protocol::Resp2), resp2);
            assert_eq!(encoded(&answer, Protocol::Resp3), resp3);
        }
    }

    #[test]
    fn an_array_beyond_the_limit_becomes_an_error() {
        let value: Arc<[u8]> = vec![0; 1 << 20].into();
        let answer = Answer::Array(vec![Answer::Shared(value); 65]);
        assert!(encoded(&answer, Protocol::Resp2).starts_with("-ERR the values take 68157440 bytes"));
    }
}
