//! The decoder of requests, from a stream of bytes that is not trusted.
//!
//! A request is an array of bulk strings, or a line typed by hand (an *inline command*). [`RequestBuffer`] looks for
//! the first one's end with Redis' limits, and Redis' words for each breach. It does not trust an announced length:
//! memory grows with the bytes that have arrived, and a request that is too large to be replicated is dropped while it
//! arrives. Each word is copied to its place among the request's [`words`] as it arrives, so that only one copy of a
//! large word exists.
//!
//! The decoder is hand-written. A decoder of whole frames builds a tree for each request, begins anew with each piece
//! that arrives, and knows none of these limits.

use super::inline::split_line;
use crate::{number::integer, value::MAX_VALUE_BYTES, words};

/// The longest bulk string that may be announced, in bytes (Redis' `proto-max-bulk-len`).
pub(super) const MAX_BULK_BYTES: usize = MAX_VALUE_BYTES;

/// The most words of one request.
const MAX_WORDS: usize = 1 << 20;

/// The same limits for a client that has not given the password yet.
pub(super) const UNAUTHENTICATED_BULK_BYTES: usize = 16 << 10;
const UNAUTHENTICATED_WORDS: usize = 10;

/// The longest inline command, in bytes. The line of a length is far shorter.
const MAX_LINE_BYTES: usize = 64 << 10;

/// The length of the end of a line, or of a bulk string, in bytes.
const LINE_END: usize = 2;

/// The capacity of a buffer, in bytes, beyond which it is freed once it is empty.
const KEPT_BYTES: usize = 64 << 10;

/// The breaches of the protocol that end a connection. The texts are Redis' own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProtocolError {
    #[error("ERR Protocol error: too big inline request")]
    LongLine,
    #[error("ERR Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    #[error("ERR Protocol error: too big mbulk count string")]
    LongCount,
    #[error("ERR Protocol error: invalid multibulk length")]
    InvalidCount,
    #[error("ERR Protocol error: unauthenticated multibulk length")]
    UnauthenticatedCount,
    #[error("ERR Protocol error: too big bulk count string")]
    LongLength,
    #[error("ERR Protocol error: expected '$', got '{}'", .0.escape_ascii())]
    NoBulk(u8),
    #[error("ERR Protocol error: invalid bulk length")]
    InvalidLength,
    #[error("ERR Protocol error: unauthenticated bulk length")]
    UnauthenticatedLength,
}

/// A client's request, or a request that was dropped because of its size.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Incoming<'a> {
    /// The request's [`words`], of which there is at least one. They stay until the next request is asked for.
    Request(&'a mut Vec<u8>),
    TooLarge {
        /// The length as it was sent.
        bytes: usize,
    },
}

/// Bytes from a client that are not yet requests.
#[derive(Debug, Default)]
pub(super) struct RequestBuffer {
    bytes: Vec<u8>,
    /// The number of bytes that were used.
    start: usize,
    /// The number of bytes behind `start` that were searched in vain for the end of a line.
    scanned: usize,
    scan: Scan,
    /// The words of the first request, as far as they have arrived.
    request: Vec<u8>,
    max_request_bytes: usize,
    is_trusted: bool,
}

/// The state of the first request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Scan {
    /// Its first byte is missing, or its first line is not complete.
    #[default]
    Start,
    /// An array that lacks `missing` bulk strings.
    Array { missing: usize, size: Size },
    /// The current bulk string has `left` bytes to come, its line end included; then the array goes on.
    Bulk { left: usize, missing: usize, size: Size },
}

/// A request's announced length as it was sent, and whether it is too long, so that none of it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    bytes: usize,
    is_dropped: bool,
}

impl RequestBuffer {
    /// Requests longer than `max_request_bytes`, as sent, are dropped.
    pub(super) fn new(max_request_bytes: usize) -> RequestBuffer {
        RequestBuffer { max_request_bytes, is_trusted: true, ..RequestBuffer::default() }
    }

    /// Sets whether the client may send more than the smallest requests.
    pub(super) fn set_trusted(&mut self, is_trusted: bool) {
        self.is_trusted = is_trusted;
    }

    /// The buffer to which arriving bytes are appended, with room for `bytes` more.
    pub(super) fn space(&mut self, bytes: usize) -> &mut Vec<u8> {
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

    /// The bytes that were not looked at yet, or are a part of the first request.
    pub(super) fn unread(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// The bytes of memory that it takes.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity() + self.request.capacity()
    }

    /// The request that was found last.
    pub(super) fn last(&mut self) -> &mut Vec<u8> {
        &mut self.request
    }

    /// The next request, if it is complete. An error is final.
    pub(super) fn next(&mut self) -> Result<Option<Incoming<'_>>, ProtocolError> {
        loop {
            match self.scan {
                Scan::Start => match self.bytes.get(self.start) {
                    None => return Ok(None),
                    Some(b'*') => {
                        if !self.begin_array()? {
                            return Ok(None);
                        }
                    }
                    Some(_) => match self.take_line()? {
                        None => return Ok(None),
                        // An empty line asks nothing.
                        Some(0) => {}
                        Some(_) => return Ok(Some(Incoming::Request(&mut self.request))),
                    },
                },
                Scan::Array { missing: 0, size } => {
                    self.scan = Scan::Start;
                    return Ok(Some(match size.is_dropped {
                        true => Incoming::TooLarge { bytes: size.bytes },
                        false => Incoming::Request(&mut self.request),
                    }));
                }
                Scan::Array { missing, size } => {
                    if !self.begin_bulk(missing, size)? {
                        return Ok(None);
                    }
                }
                Scan::Bulk { left, missing, size } => {
                    let here = left.min(self.bytes.len() - self.start);
                    if !size.is_dropped {
                        let of_word = here.min(left.saturating_sub(LINE_END));
                        make_room(&mut self.request, of_word, left);
                        self.request.extend_from_slice(&self.bytes[self.start..self.start + of_word]);
                    }
                    self.start += here;
                    let left = left - here;
                    if left > 0 {
                        self.scan = Scan::Bulk { left, missing, size };
                        return Ok(None);
                    }
                    self.scan = Scan::Array { missing, size };
                }
            }
        }
    }

    /// Reads an array's first line. False if it is not complete.
    fn begin_array(&mut self) -> Result<bool, ProtocolError> {
        let Some((count, bytes)) = self.number_line(ProtocolError::LongCount)? else { return Ok(false) };
        let count = count.filter(|&count| count <= MAX_WORDS as i64).ok_or(ProtocolError::InvalidCount)?;
        if count > UNAUTHENTICATED_WORDS as i64 && !self.is_trusted {
            return Err(ProtocolError::UnauthenticatedCount);
        }
        self.begin_request();
        // As in Redis, an array of negative length counts as empty, and asks nothing.
        if let Ok(missing @ 1..) = usize::try_from(count) {
            self.scan = Scan::Array { missing, size: Size { bytes, is_dropped: false } };
        }
        Ok(true)
    }

    /// Reads a bulk string's first line. False if it is not complete.
    fn begin_bulk(&mut self, missing: usize, size: Size) -> Result<bool, ProtocolError> {
        match self.bytes.get(self.start) {
            None => return Ok(false),
            Some(b'$') => {}
            Some(&other) => return Err(ProtocolError::NoBulk(other)),
        }
        let Some((length, bytes)) = self.number_line(ProtocolError::LongLength)? else { return Ok(false) };
        let length = length
            .and_then(|length| usize::try_from(length).ok())
            .filter(|&length| length <= MAX_BULK_BYTES)
            .ok_or(ProtocolError::InvalidLength)?;
        if length > UNAUTHENTICATED_BULK_BYTES && !self.is_trusted {
            return Err(ProtocolError::UnauthenticatedLength);
        }
        let left = length + LINE_END;
        let bytes = size.bytes + bytes + left;
        let is_dropped = size.is_dropped || bytes > self.max_request_bytes;
        if is_dropped {
            self.request = Vec::new();
        } else {
            words::begin(&mut self.request, length);
        }
        self.scan = Scan::Bulk { left, missing: missing - 1, size: Size { bytes, is_dropped } };
        Ok(true)
    }

    /// Reads a line of one type byte and a number. Returns the number, if it is one, and the line's length with its
    /// end. `None` if the line is not complete.
    fn number_line(&mut self, too_long: ProtocolError) -> Result<Option<(Option<i64>, usize)>, ProtocolError> {
        let ahead = &self.bytes[self.start..];
        if let Some((number, bytes)) = short_number_line(ahead) {
            self.scanned = 0;
            self.start += bytes;
            return Ok(Some((Some(number), bytes)));
        }
        let Some(end) = self.find(b'\r').map_err(|Long| too_long)? else { return Ok(None) };
        let ahead = &self.bytes[self.start..];
        let number = match ahead.get(end + 1) {
            None => return Ok(None),
            Some(b'\n') => integer(&ahead[1..end]),
            Some(_) => None,
        };
        self.scanned = 0;
        self.start += end + 2;
        Ok(Some((number, end + 2)))
    }

    /// Reads an inline command, and returns the number of its words. `None` if it is not complete.
    fn take_line(&mut self) -> Result<Option<usize>, ProtocolError> {
        let Some(end) = self.find(b'\n').map_err(|Long| ProtocolError::LongLine)? else { return Ok(None) };
        self.begin_request();
        let line = &self.bytes[self.start..self.start + end];
        let words = split_line(line, &mut self.request).ok_or(ProtocolError::UnbalancedQuotes)?;
        self.scanned = 0;
        self.start += end + 1;
        Ok(Some(words))
    }

    fn begin_request(&mut self) {
        self.request.clear();
        if self.request.capacity() > KEPT_BYTES {
            self.request = Vec::new();
        }
    }

    /// Looks for a byte within the longest length of a line.
    fn find(&mut self, byte: u8) -> Result<Option<usize>, Long> {
        let ahead = &self.bytes[self.start..];
        let line = &ahead[..ahead.len().min(MAX_LINE_BYTES)];
        match line[self.scanned..].iter().position(|&other| other == byte) {
            Some(at) => Ok(Some(self.scanned + at)),
            None if line.len() == MAX_LINE_BYTES => Err(Long),
            None => {
                self.scanned = line.len();
                Ok(None)
            }
        }
    }
}

/// Makes room for `bytes` of the `left` that a word still has. The room grows with the bytes that have arrived, up to
/// the announced length.
fn make_room(request: &mut Vec<u8>, bytes: usize, left: usize) {
    if request.capacity() - request.len() < bytes {
        request.reserve_exact(bytes.max(left.min(request.len())));
    }
}

/// The error of a line that is longer than the limit.
struct Long;

/// Reads what [`RequestBuffer::number_line`] reads, for the common case: a number of few digits, on a complete line.
fn short_number_line(ahead: &[u8]) -> Option<(i64, usize)> {
    let mut number = 0;
    for (place, &byte) in ahead.iter().enumerate().take(10).skip(1) {
        match byte {
            b'0' if place == 1 => return None,
            b'0'..=b'9' => number = 10 * number + i64::from(byte - b'0'),
            b'\r' if place > 1 && ahead.get(place + 1) == Some(&b'\n') => return Some((number, place + 2)),
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests;
