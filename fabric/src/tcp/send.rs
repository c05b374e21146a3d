//! The outgoing stream: posted work, turned into one stream of bytes.
//!
//! Headers and short payloads are copied into one buffer when they are posted, and so leave together, whatever they
//! are. Long payloads stay where they are until the socket takes them: bulk memory is given to the system as it is,
//! polled memory is copied out by words, a piece at a time.

use std::collections::VecDeque;

use super::{
    frame::{HEADER_BYTES, Header},
    memory::RANGES,
};
use crate::{Region, RegionKind, Slice, Source};

/// The length up to which bulk payloads are copied behind their headers: an entry in the system's list costs as much.
const COPY_BULK_BYTES: usize = 4 << 10;

/// The length up to which polled payloads are copied behind their headers; longer ones are copied in pieces of it.
pub(super) const PIECE_BYTES: usize = 64 << 10;

/// The number of waiting bytes from which on payloads stay in their regions.
const COPIED_BYTES: usize = 256 << 10;

/// The size beyond which a buffer that has grown is given back when it is empty.
const KEPT_BYTES: usize = 1 << 20;

/// The stream to the peer, from the first byte on that the socket has not taken.
#[derive(Default)]
pub(super) struct SendQueue {
    parts: VecDeque<PendingStretch>,
    /// The bytes of all `Copied` parts, from `head` on.
    copied: Vec<u8>,
    head: usize,
    /// The bytes that were read of the first part, if it is `Words`, from `piece_head` on.
    piece: Vec<u8>,
    piece_head: usize,
    /// Positions in the stream: the end of posted work, of bytes that have left this queue, and of bytes that the
    /// socket took.
    queued: u64,
    taken: u64,
    sent: u64,
}

/// A stretch of the stream, which is never empty.
enum PendingStretch {
    Copied(usize),
    Bulk {
        region: Region,
        offset: usize,
        len: usize,
    },
    /// A stretch of polled memory; the bytes in `piece` come before.
    Words {
        region: Region,
        offset: usize,
        len: usize,
    },
}

impl SendQueue {
    /// Appends a frame. Inline bytes are captured now.
    #[inline]
    pub(super) fn push(&mut self, header: &Header, payload: Source<'_>) {
        self.copied.extend_from_slice(&header.encode());
        let mut copied = HEADER_BYTES;
        match payload {
            Source::Inline(bytes) => {
                self.copied.extend_from_slice(bytes);
                copied += bytes.len();
            }
            Source::Region(Slice { len: 0, .. }) => {}
            Source::Region(slice) if self.copies(&slice) => {
                let begin = self.copied.len();
                self.copied.resize(begin + slice.len, 0);
                slice.region.read(slice.offset, &mut self.copied[begin..]);
                copied += slice.len;
            }
            Source::Region(Slice { region, offset, len }) => {
                self.push_copied(copied);
                let region = region.clone();
                self.parts.push_back(match region.kind() {
                    RegionKind::Polled => PendingStretch::Words { region, offset, len },
                    _ => PendingStretch::Bulk { region, offset, len },
                });
                self.queued += len as u64;
                return;
            }
        }
        self.push_copied(copied);
    }

    fn push_copied(&mut self, bytes: usize) {
        self.queued += bytes as u64;
        match self.parts.back_mut() {
            Some(PendingStretch::Copied(len)) => *len += bytes,
            _ => self.parts.push_back(PendingStretch::Copied(bytes)),
        }
    }

    fn copies(&self, slice: &Slice<'_>) -> bool {
        let limit = if slice.region.kind() == RegionKind::Polled { PIECE_BYTES } else { COPY_BULK_BYTES };
        slice.len <= limit && self.copied.len() - self.head <= COPIED_BYTES
    }

    /// Whether the socket has taken everything.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.queued
    }

    /// The end of the stream that was posted.
    #[inline]
    pub(super) fn queued(&self) -> u64 {
        self.queued
    }

    /// The position up to which it has left this queue.
    #[inline]
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// The position up to which the socket has taken it.
    #[inline]
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// The next bytes, in ranges. Returns their number, which is `limit` or a little more at most, and none if all were
    /// taken.
    pub(super) fn next<'a>(&'a mut self, limit: usize, ranges: &mut [Source<'a>; RANGES]) -> (usize, usize) {
        self.fetch();
        let this = &*self;
        let (mut count, mut bytes) = (0, 0);
        let mut add = |range: Source<'a>| {
            ranges[count] = range;
            count += 1;
            bytes += range.len();
            count < RANGES && bytes < limit
        };
        let mut at = this.head;
        for (index, part) in this.parts.iter().enumerate() {
            let more = match part {
                PendingStretch::Copied(len) => {
                    at += len;
                    add(Source::Inline(&this.copied[at - len..at]))
                }
                PendingStretch::Bulk { region, offset, len } => {
                    // The limit keeps one range from making a poll last long.
                    let now = (*len).min(limit);
                    add(Source::Region(Slice { region, offset: *offset, len: now })) && now == *len
                }
                // The rest of the part, or a later one, is fetched once this has left.
                PendingStretch::Words { len, .. } => {
                    index == 0 && add(Source::Inline(&this.piece[this.piece_head..])) && *len == 0
                }
            };
            if !more {
                break;
            }
        }
        (count, bytes)
    }

    /// Reads a piece of polled memory, if that comes next.
    fn fetch(&mut self) {
        if self.piece_head < self.piece.len() {
            return;
        }
        let Some(PendingStretch::Words { region, offset, len }) = self.parts.front_mut() else { return };
        let now = (*len).min(PIECE_BYTES);
        self.piece.resize(now, 0);
        self.piece_head = 0;
        region.read(*offset, &mut self.piece);
        *offset += now;
        *len -= now;
    }

    /// Takes note that `bytes` of the next ones have left.
    pub(super) fn take(&mut self, mut bytes: usize) {
        self.taken += bytes as u64;
        while bytes > 0 {
            let Some(part) = self.parts.front_mut() else { break };
            let (now, over) = match part {
                PendingStretch::Copied(len) => {
                    let now = bytes.min(*len);
                    self.head += now;
                    *len -= now;
                    (now, *len == 0)
                }
                PendingStretch::Bulk { offset, len, .. } => {
                    let now = bytes.min(*len);
                    *offset += now;
                    *len -= now;
                    (now, *len == 0)
                }
                PendingStretch::Words { len, .. } => {
                    let now = bytes.min(self.piece.len() - self.piece_head);
                    self.piece_head += now;
                    (now, self.piece_head == self.piece.len() && *len == 0)
                }
            };
            bytes -= now;
            if over {
                self.parts.pop_front();
            }
        }
        if self.head == self.copied.len() {
            self.copied.clear();
            self.head = 0;
            if self.copied.capacity() > KEPT_BYTES {
                self.copied = Vec::new();
            }
        } else if self.head >= COPIED_BYTES && self.head > self.copied.len() / 2 {
            self.copied.drain(..self.head);
            self.head = 0;
        }
    }

    /// Takes note that the socket has all bytes that have left.
    #[inline]
    pub(super) fn all_sent(&mut self) {
        self.sent = self.taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::{frame::Kind, memory::read_parts};
    use crate::{RegionKey, Target};

    /// Lets `most` bytes leave at a time, and returns them all.
    fn drain(send_queue: &mut SendQueue, most: usize) -> Vec<u8> {
        let mut stream = Vec::new();
        loop {
            let mut ranges = [Source::Inline(&[]); RANGES];
            let (count, bytes) = send_queue.next(most, &mut ranges);
            let mut joined = Vec::new();
            for range in &ranges[..count] {
                let _ = read_parts::<()>(*range, &mut [0; 1000], |part| {
                    joined.extend_from_slice(part);
                    Ok(())
                });
            }
            assert_eq!(joined.len(), bytes);
            if bytes == 0 {
                send_queue.all_sent();
                return stream;
            }
            let now = bytes.min(most);
            stream.extend_from_slice(&joined[..now]);
            send_queue.take(now);
        }
    }

    #[test]
    fn all_kinds_of_payloads_leave_in_the_order_of_posts() {
        for most in [1, 7, 4096, 1 << 20] {
            let mut send_queue = SendQueue::default();
            let mut expected = Vec::new();
            for (i, kind) in [RegionKind::Polled, RegionKind::Bulk, RegionKind::Polled].into_iter().enumerate() {
                for bytes in [8, 1000, COPY_BULK_BYTES + 8, PIECE_BYTES, 2 * PIECE_BYTES + 16] {
                    let region = Region::heap(kind, RegionKey(i as u64), bytes + 8);
                    let pattern: Vec<u8> = (0..bytes + 8).map(|at| (at * 7 + i) as u8).collect();
                    region.write(0, &pattern);
                    let target = Target { region: RegionKey(1), offset: 8 };
                    let header = Header { kind: Kind::Write(target), len: bytes };
                    send_queue.push(&header, Source::Region(Slice { region: &region, offset: 8, len: bytes }));
                    expected.extend_from_slice(&header.encode());
                    expected.extend_from_slice(&pattern[8..]);
                    let header = Header { kind: Kind::Send, len: 3 };
                    send_queue.push(&header, Source::Inline(&[1, 2, 3]));
                    expected.extend_from_slice(&header.encode());
                    expected.extend_from_slice(&[1, 2, 3]);
                }
            }
            assert_eq!(send_queue.queued(), expected.len() as u64);
            assert!(drain(&mut send_queue, most) == expected, "{most} bytes at a time");
            assert!(send_queue.is_empty() && send_queue.copied.is_empty() && send_queue.parts.is_empty());
        }
    }
}
