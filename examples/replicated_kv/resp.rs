//! What clients send: requests out of a stream of bytes that a stranger chose.
//!
//! A request is an array of bulk strings, or a line typed by hand (an *inline command*). [`RequestBuffer`] looks for the end
//! of the first one with Redis' limits and Redis' words for each breach, without trusting an announced length: memory
//! grows with what has arrived, and a request that is too large to be replicated is dropped while it arrives. Where a
//! request is complete, redis-protocol decodes it.

use std::borrow::Cow;

use redis_protocol::resp2::{decode::decode_range, types::RangeFrame};

use crate::store::{MAX_VALUE_BYTES, integer};

/// The longest bulk string that may be announced, in bytes (Redis' `proto-max-bulk-len`).
pub(crate) const MAX_BULK_BYTES: usize = MAX_VALUE_BYTES;

/// The most arguments of one request.
const MAX_ARGUMENTS: usize = 1 << 20;

/// The longest inline command, and far more than a length takes, in bytes.
const MAX_LINE_BYTES: usize = 64 << 10;

/// A buffer that grew beyond this is given back once it is empty, in bytes.
const KEPT_BYTES: usize = 256 << 10;

/// Why a stream is not worth reading on. The texts are Redis' own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtocolError {
    #[error("ERR Protocol error: too big inline request")]
    LongLine,
    #[error("ERR Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    #[error("ERR Protocol error: too big mbulk count string")]
    LongCount,
    #[error("ERR Protocol error: invalid multibulk length")]
    InvalidCount,
    #[error("ERR Protocol error: too big bulk count string")]
    LongLength,
    #[error("ERR Protocol error: expected '$', got '{}'", .0.escape_ascii())]
    NoBulk(u8),
    #[error("ERR Protocol error: invalid bulk length")]
    InvalidLength,
    /// The frame was found, and yet could not be decoded.
    #[error("ERR Protocol error: {0}")]
    Undecodable(String),
}

/// What a client asked, as `parse` made it of the arguments, or a request that was dropped because of its size.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Incoming<T> {
    Request(T),
    TooLarge { bytes: usize },
}

/// Bytes from a client that are not yet requests.
#[derive(Debug)]
pub(crate) struct RequestBuffer {
    bytes: Vec<u8>,
    /// Where the first request that was not taken yet begins.
    start: usize,
    /// How far that request was looked at, from its start.
    scanned: usize,
    scan: Scan,
    max_request_bytes: usize,
}

/// What is known of the first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scan {
    /// Its first byte is not there, or its first line is not complete.
    Start,
    /// An array that lacks `missing` bulk strings. `bytes` is its length, as far as announced. Of one that is dropped,
    /// nothing is kept.
    Array { missing: usize, bytes: usize, dropped: bool },
    /// The bulk string at `scanned` has this many bytes, its line end included; then the array goes on.
    Bulk { left: usize, missing: usize, bytes: usize, dropped: bool },
}

/// Where the first request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Array { len: usize },
    Line { len: usize },
    Dropped { bytes: usize },
}

impl RequestBuffer {
    /// Requests longer than `max_request_bytes`, as sent, are dropped.
    pub(crate) fn new(max_request_bytes: usize) -> RequestBuffer {
        RequestBuffer { bytes: Vec::new(), start: 0, scanned: 0, scan: Scan::Start, max_request_bytes }
    }

    /// Where to append what arrives, with room for `bytes` more.
    pub(crate) fn space(&mut self, bytes: usize) -> &mut Vec<u8> {
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
            if self.bytes.capacity() > KEPT_BYTES.max(bytes) {
                self.bytes = Vec::new();
            }
        } else if self.start >= self.bytes.len() - self.start {
            // At least as much is dropped as is moved, so that moving stays cheap however the bytes come in.
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.reserve(bytes);
        &mut self.bytes
    }

    /// Takes the first request out, if it is complete. An error is final.
    pub(crate) fn next<T>(
        &mut self,
        parse: impl FnOnce(&[Cow<'_, [u8]>]) -> T,
    ) -> Result<Option<Incoming<T>>, ProtocolError> {
        loop {
            let Some(found) = self.find()? else { return Ok(None) };
            let from = self.start;
            let arguments = match found {
                Found::Dropped { bytes } => return Ok(Some(Incoming::TooLarge { bytes })),
                Found::Array { len } => {
                    self.start += len;
                    decode_array(&self.bytes[from..from + len])?
                }
                Found::Line { len } => {
                    self.start += len;
                    let words = split_words(&self.bytes[from..from + len]).ok_or(ProtocolError::UnbalancedQuotes)?;
                    words.into_iter().map(Cow::Owned).collect()
                }
            };
            // An empty line, or an array of nothing, asks nothing.
            if !arguments.is_empty() {
                return Ok(Some(Incoming::Request(parse(&arguments))));
            }
        }
    }

    /// Looks for the first request's end, from where the last look ended.
    fn find(&mut self) -> Result<Option<Found>, ProtocolError> {
        loop {
            let ahead = &self.bytes[self.start + self.scanned..];
            match self.scan {
                Scan::Start => match ahead.first() {
                    None => return Ok(None),
                    Some(b'*') => {
                        let Some((count, len)) = number_line(ahead, ProtocolError::LongCount)? else {
                            return Ok(None);
                        };
                        let count = count.ok_or(ProtocolError::InvalidCount)?;
                        if count > MAX_ARGUMENTS as i64 {
                            return Err(ProtocolError::InvalidCount);
                        }
                        self.scanned = len;
                        // As in Redis, an array of less than nothing is one of nothing.
                        let Ok(missing @ 1..) = usize::try_from(count) else {
                            self.start += len;
                            self.scanned = 0;
                            continue;
                        };
                        self.scan = Scan::Array { missing, bytes: len, dropped: false };
                    }
                    Some(_) => return find_line(ahead).map(|len| len.map(|len| Found::Line { len })),
                },
                Scan::Array { missing: 0, bytes, dropped } => {
                    let len = self.scanned;
                    self.scanned = 0;
                    self.scan = Scan::Start;
                    return Ok(Some(if dropped { Found::Dropped { bytes } } else { Found::Array { len } }));
                }
                Scan::Array { missing, bytes, dropped } => {
                    match ahead.first() {
                        None => return Ok(None),
                        Some(b'$') => {}
                        Some(&other) => return Err(ProtocolError::NoBulk(other)),
                    }
                    let Some((length, len)) = number_line(ahead, ProtocolError::LongLength)? else {
                        return Ok(None);
                    };
                    let length = length
                        .and_then(|length| usize::try_from(length).ok())
                        .filter(|&length| length <= MAX_BULK_BYTES)
                        .ok_or(ProtocolError::InvalidLength)?;
                    let left = length + 2;
                    let bytes = bytes + len + left;
                    let dropped = dropped || bytes > self.max_request_bytes;
                    self.pass(len, dropped);
                    self.scan = Scan::Bulk { left, missing: missing - 1, bytes, dropped };
                }
                Scan::Bulk { left, missing, bytes, dropped: true } => {
                    let here = left.min(ahead.len());
                    self.pass(here, true);
                    let left = left - here;
                    if left > 0 {
                        self.scan = Scan::Bulk { left, missing, bytes, dropped: true };
                        return Ok(None);
                    }
                    self.scan = Scan::Array { missing, bytes, dropped: true };
                }
                Scan::Bulk { left, missing, bytes, dropped: false } => {
                    if ahead.len() < left {
                        return Ok(None);
                    }
                    self.scanned += left;
                    self.scan = Scan::Array { missing, bytes, dropped: false };
                }
            }
        }
    }

    /// Goes on by so many bytes; what belongs to a dropped request goes at once.
    fn pass(&mut self, bytes: usize, dropped: bool) {
        self.scanned += bytes;
        if dropped {
            self.start += std::mem::take(&mut self.scanned);
        }
    }
}

/// The end of the line that text begins with, behind its line feed.
fn find_line(text: &[u8]) -> Result<Option<usize>, ProtocolError> {
    let end = text.iter().take(MAX_LINE_BYTES).position(|&byte| byte == b'\n');
    match end {
        Some(end) => Ok(Some(end + 1)),
        None if text.len() >= MAX_LINE_BYTES => Err(ProtocolError::LongLine),
        None => Ok(None),
    }
}

/// Reads a line of one type byte and a number: the number, if it is one, and the line's length with its end.
fn number_line(text: &[u8], too_long: ProtocolError) -> Result<Option<(Option<i64>, usize)>, ProtocolError> {
    let Some(end) = text.iter().take(MAX_LINE_BYTES).position(|&byte| byte == b'\r') else {
        return if text.len() >= MAX_LINE_BYTES { Err(too_long) } else { Ok(None) };
    };
    match text.get(end + 1) {
        None => Ok(None),
        Some(b'\n') => Ok(Some((integer(&text[1..end]), end + 2))),
        Some(_) => Ok(Some((None, end + 2))),
    }
}

/// The arguments in a complete array of bulk strings.
fn decode_array(frame: &[u8]) -> Result<Vec<Cow<'_, [u8]>>, ProtocolError> {
    let undecodable = |what: &str| ProtocolError::Undecodable(what.to_owned());
    let decoded = decode_range(frame).map_err(|error| undecodable(error.details()))?;
    let Some((RangeFrame::Array(elements), _)) = decoded else {
        return Err(undecodable("expected an array"));
    };
    let argument = |element| match element {
        RangeFrame::BulkString((from, to)) => Ok(Cow::Borrowed(&frame[from..to])),
        _ => Err(undecodable("expected a bulk string")),
    };
    elements.into_iter().map(argument).collect()
}

/// Splits a line as a shell would: words between spaces, "..." with escapes, '...' without. None if a quote stays open or
/// is closed in the middle of a word.
fn split_words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let is_space = |byte: u8| byte.is_ascii_whitespace() || byte == 0x0b || byte == 0;
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        let begin = rest.iter().position(|&byte| !is_space(byte));
        let Some(begin) = begin else { return Some(words) };
        rest = &rest[begin..];
        let mut word = Vec::new();
        loop {
            match *rest {
                [b'"', ref quoted @ ..] => {
                    rest = double_quoted(quoted, &mut word)?;
                    break;
                }
                [b'\'', ref quoted @ ..] => {
                    rest = single_quoted(quoted, &mut word)?;
                    break;
                }
                [byte, ref more @ ..] if !is_space(byte) => {
                    word.push(byte);
                    rest = more;
                }
                _ => break,
            }
        }
        if rest.first().is_some_and(|&byte| !is_space(byte)) {
            return None;
        }
        words.push(word);
    }
}

fn double_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    let hex = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    loop {
        match *rest {
            [] => return None,
            [b'"', ref more @ ..] => return Some(more),
            [b'\\', b'x', high, low, ref more @ ..] if hex(high).is_some() && hex(low).is_some() => {
                word.push(hex(high)? << 4 | hex(low)?);
                rest = more;
            }
            [b'\\', escaped, ref more @ ..] => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => other,
                });
                rest = more;
            }
            [byte, ref more @ ..] => {
                word.push(byte);
                rest = more;
            }
        }
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match *rest {
            [] => return None,
            [b'\'', ref more @ ..] => return Some(more),
            [b'\\', b'\'', ref more @ ..] => {
                word.push(b'\'');
                rest = more;
            }
            [byte, ref more @ ..] => {
                word.push(byte);
                rest = more;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const LIMIT: usize = 1000;

    type Answer = Result<Incoming<Vec<Vec<u8>>>, ProtocolError>;

    /// Feeds a stream in pieces and returns all that came out, an error last.
    fn feed<'a>(limit: usize, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Answer> {
        let mut buffer = RequestBuffer::new(limit);
        let mut out = Vec::new();
        for piece in pieces {
            buffer.space(piece.len()).extend_from_slice(piece);
            loop {
                match buffer.next(|arguments| arguments.iter().map(|argument| argument.to_vec()).collect()) {
                    Ok(Some(incoming)) => out.push(Ok(incoming)),
                    Ok(None) => break,
                    Err(error) => {
                        out.push(Err(error));
                        return out;
                    }
                }
            }
        }
        out
    }

    fn request(words: &[&str]) -> Answer {
        Ok(Incoming::Request(words.iter().map(|word| word.as_bytes().to_vec()).collect()))
    }

    fn encode(words: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).into_bytes());
            bytes.extend(word);
            bytes.extend(b"\r\n");
        }
        bytes
    }

    #[test]
    fn arrays_and_lines_are_requests() {
        let stream =
            b"*2\r\n$3\r\nGET\r\n$1\r\na\r\nPING\r\n\r\n*0\r\n*-1\r\nset a  \"b \\x41\\n\" 'c\\'d'\n*1\r\n$0\r\n\r\n";
        let expected =
            [request(&["GET", "a"]), request(&["PING"]), request(&["set", "a", "b A\n", "c'd"]), request(&[""])];
        assert_eq!(feed(LIMIT, [&stream[..]]), expected);
    }

    #[test]
    fn a_breach_is_told_in_redis_words_after_what_came_before() {
        let long = |first: &str| first.repeat(MAX_LINE_BYTES);
        for (stream, text) in [
            (long("x"), "too big inline request"),
            ("get \"a\r\n".into(), "unbalanced quotes in request"),
            ("get \"a\"b\r\n".into(), "unbalanced quotes in request"),
            (long("*"), "too big mbulk count string"),
            ("*x\r\n".into(), "invalid multibulk length"),
            ("*+1\r\n".into(), "invalid multibulk length"),
            ("*1\rx".into(), "invalid multibulk length"),
            ("*1048577\r\n".into(), "invalid multibulk length"),
            ("*99999999999999999999\r\n".into(), "invalid multibulk length"),
            ("*1\r\n".to_owned() + &long("$"), "too big bulk count string"),
            ("*1\r\n:1\r\n".into(), "expected '$', got ':'"),
            ("*1\r\n$-1\r\n".into(), "invalid bulk length"),
            ("*1\r\n$x\r\n".into(), "invalid bulk length"),
            ("*1\r\n$1073741824\r\n".into(), "invalid bulk length"),
        ] {
            let stream = format!("PING\r\n{stream}");
            let answers = feed(LIMIT, [stream.as_bytes()]);
            assert_eq!(answers.len(), 2, "{stream:.40}");
            assert_eq!(answers[0], request(&["PING"]));
            let error = answers[1].as_ref().expect_err("it is a breach");
            assert_eq!(error.to_string(), format!("ERR Protocol error: {text}"), "{stream:.40}");
        }
    }

    #[test]
    fn an_announced_length_allocates_nothing() {
        let mut buffer = RequestBuffer::new(usize::MAX);
        let stream = format!("*1048576\r\n${MAX_BULK_BYTES}\r\nabc");
        buffer.space(stream.len()).extend_from_slice(stream.as_bytes());
        assert_eq!(buffer.next(|_| ()), Ok(None));
        assert!(buffer.space(16).capacity() < 200);
    }

    #[test]
    fn a_request_beyond_the_limit_is_dropped_as_it_arrives_and_the_next_one_counts() {
        let large = encode(&[b"SET".to_vec(), b"key".to_vec(), vec![b'v'; 100_000], b"NX".to_vec()]);
        let mut stream = large.clone();
        stream.extend(encode(&[b"PING".to_vec()]));
        let mut buffer = RequestBuffer::new(LIMIT);
        let mut out = Vec::new();
        for piece in stream.chunks(100) {
            buffer.space(piece.len()).extend_from_slice(piece);
            while let Some(incoming) = buffer.next(|arguments| arguments.len()).expect("the stream is well formed") {
                out.push(incoming);
            }
            assert!(buffer.bytes.capacity() < 3 * LIMIT);
        }
        assert_eq!(out, [Incoming::TooLarge { bytes: large.len() }, Incoming::Request(1)]);
    }

    #[test]
    fn a_request_at_the_limit_is_taken() {
        let exact = encode(&[vec![b'x'; 500]]);
        assert_eq!(feed(exact.len(), [&exact[..]]), [Ok(Incoming::Request(vec![vec![b'x'; 500]]))]);
        assert_eq!(feed(exact.len() - 1, [&exact[..]]), [Ok(Incoming::TooLarge { bytes: exact.len() })]);
    }

    fn word() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![4 => vec(any::<u8>(), 0..12), 1 => vec(any::<u8>(), 300..700)]
    }

    /// Pieces of valid and invalid requests, so that random streams get far into the scanner.
    fn fragment() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            3 => vec(word(), 0..4).prop_map(|words| encode(&words)),
            1 => "[a-z \"'\\\\]{0,20}(\r)?\n".prop_map(String::into_bytes),
            1 => "[*$+:_%-]?-?[0-9]{0,4}\r\n".prop_map(String::into_bytes),
            1 => vec(any::<u8>(), 0..40),
        ]
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..400)) {
            feed(LIMIT, [&bytes[..]]);
        }

        #[test]
        fn requests_do_not_depend_on_how_the_stream_was_cut(fragments in vec(fragment(), 0..6), cuts in vec(any::<u16>(), 0..4)) {
            let stream = fragments.concat();
            let whole = feed(LIMIT, [&stream[..]]);
            prop_assert_eq!(&feed(LIMIT, stream.chunks(1)), &whole);
            for at in 0..stream.len().min(300) {
                let (left, right) = stream.split_at(at);
                prop_assert_eq!(&feed(LIMIT, [left, right]), &whole);
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|&cut| usize::from(cut) % (stream.len() + 1)).collect();
            cuts.sort_unstable();
            cuts.insert(0, 0);
            cuts.push(stream.len());
            let pieces = cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]);
            prop_assert_eq!(&feed(LIMIT, pieces), &whole);
        }

        #[test]
        fn what_was_encoded_comes_out(requests in vec(vec(word(), 1..5), 0..5)) {
            let stream = requests.iter().flat_map(|words| encode(words)).collect::<Vec<u8>>();
            let out = feed(usize::MAX, stream.chunks(7));
            let expected: Vec<Answer> = requests.into_iter().map(|words| Ok(Incoming::Request(words))).collect();
            prop_assert_eq!(out, expected);
        }
    }
}
