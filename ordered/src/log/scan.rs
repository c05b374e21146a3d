//! A walk over the records of a segment, from place to place in its file.

use std::io;

use super::{
    Storage,
    record::{ALIGN, HEADER_BYTES, NoHeader, RecordHeader},
    storage::SECTOR_BYTES,
};

/// The bytes that are read at first, since some callers want a few records only; later, twice as many each time.
const LEAST_BYTES: usize = 64 << 10;
const MOST_BYTES: usize = 1 << 20;

/// The contents of a part of a file that was never written.
const ZEROS: [u8; 4096] = [0; 4096];

/// A part of a file, in memory.
#[derive(Debug)]
struct Window {
    bytes: Vec<u8>,
    /// Its offset in the file, and the number of bytes that are filled.
    at: u64,
    len: usize,
    /// The number of bytes to read next.
    chunk: usize,
}

impl Window {
    /// Returns the bytes from `from` to `from + len`, none of which may lie at or beyond `end`.
    fn get<S: Storage>(&mut self, storage: &S, file: &S::File, from: u64, len: usize, end: u64) -> io::Result<&[u8]> {
        let filled = self.at + self.len as u64;
        if from < self.at || from + len as u64 > filled {
            let kept = if from >= self.at && from < filled { (filled - from) as usize } else { 0 };
            let begin = self.len - kept;
            self.bytes.copy_within(begin..begin + kept, 0);
            let want = len.max(self.chunk).min((end - from) as usize);
            self.chunk = (2 * self.chunk).min(MOST_BYTES);
            if self.bytes.len() < want {
                self.bytes.resize(want, 0);
            }
            // The window is empty until the read has succeeded.
            (self.at, self.len) = (from, 0);
            storage.read_at(file, from + kept as u64, &mut self.bytes[kept..want])?;
            self.len = want;
        }
        let begin = (from - self.at) as usize;
        Ok(&self.bytes[begin..begin + len])
    }
}

/// The finding at a place in a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ScanFinding {
    /// A record, and its offset. Its [payload](Scanner::payload) is at hand.
    Record { offset: u64, header: RecordHeader },
    /// No record, since the segment's records end here.
    End,
    /// No record, though there should be one.
    Bad { offset: u64, why: Bad },
}

/// The fault of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    /// Its header is wrong.
    Header,
    /// A record that is whole, but of a kind or with flags that this version does not know.
    Unknown { kind: u8, flags: u8 },
    /// Its header is right, and the bytes behind it are wrong.
    Payload(RecordHeader),
    /// A record that is whole, and can't follow what is before it.
    Order(RecordHeader),
}

/// A walk over the records of a segment.
#[derive(Debug)]
pub(crate) struct Scanner<F> {
    file: F,
    segment: u64,
    at: u64,
    end: u64,
    window: Window,
    /// The offset of the last record's payload in the file, and its length.
    payload: (u64, usize),
}

impl<F> Scanner<F> {
    /// Begins at the record at `at`. `end` is the end of the segment's records, or the latest that it can be.
    pub(crate) fn new(file: F, segment: u64, at: u64, end: u64) -> Scanner<F> {
        let window = Window { bytes: Vec::new(), at: 0, len: 0, chunk: LEAST_BYTES };
        Scanner { file, segment, at, end, window, payload: (0, 0) }
    }

    /// Goes on with another segment.
    pub(crate) fn restart(&mut self, file: F, segment: u64, at: u64, end: u64) {
        (self.file, self.segment, self.at, self.end) = (file, segment, at, end);
        (self.window.at, self.window.len) = (0, 0);
    }

    /// Returns the offset of the next record.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Sets the end of the segment's records, or the latest that it can be.
    pub(crate) fn end_at(&mut self, end: u64) {
        self.end = end;
    }

    /// Returns the segment's id.
    pub(crate) fn segment(&self) -> u64 {
        self.segment
    }

    /// Goes on at another place.
    pub(crate) fn jump(&mut self, to: u64) {
        self.at = to;
    }

    /// Forgets the bytes that were read, so that they are read anew.
    pub(crate) fn forget(&mut self) {
        self.window.len = 0;
    }

    /// Returns the next record. A bad one is returned again until the caller [jumps](Scanner::jump).
    pub(crate) fn next<S: Storage<File = F>>(&mut self, storage: &S) -> io::Result<ScanFinding> {
        let offset = self.at;
        if offset >= self.end {
            return Ok(ScanFinding::End);
        }
        let left = self.end - offset;
        if left < HEADER_BYTES as u64 {
            return Ok(ScanFinding::Bad { offset, why: Bad::Header });
        }
        let bytes = self.window.get(storage, &self.file, offset, HEADER_BYTES, self.end)?;
        let header = match RecordHeader::decode(bytes, self.segment, offset) {
            Ok(header) if header.record_bytes() as u64 <= left => header,
            Ok(_) | Err(NoHeader::Checksum | NoHeader::Senseless) => {
                return Ok(ScanFinding::Bad { offset, why: Bad::Header });
            }
            Err(NoHeader::Unknown { kind, flags }) => {
                return Ok(ScanFinding::Bad { offset, why: Bad::Unknown { kind, flags } });
            }
        };
        let record = self.window.get(storage, &self.file, offset, header.record_bytes(), self.end)?;
        // The checksum covers the fill behind the payload, too.
        let payload = &record[HEADER_BYTES..];
        if crc32c::crc32c(payload) != header.payload_checksum {
            return Ok(ScanFinding::Bad { offset, why: Bad::Payload(header) });
        }
        self.at += header.record_bytes() as u64;
        self.payload = (offset + HEADER_BYTES as u64, header.payload_bytes as usize);
        Ok(ScanFinding::Record { offset, header })
    }

    /// Returns the payload of the record that was found last, unless the scanner was used for something else since.
    pub(crate) fn payload(&self) -> &[u8] {
        let (at, len) = self.payload;
        let begin = (at - self.window.at) as usize;
        &self.window.bytes[begin..begin + len]
    }

    /// Returns the first header at or behind `from` for which `fits` holds. Its record may be damaged.
    pub(crate) fn find<S: Storage<File = F>>(
        &mut self,
        storage: &S,
        from: u64,
        fits: impl Fn(&RecordHeader) -> bool,
    ) -> io::Result<Option<(u64, RecordHeader)>> {
        let mut at = from.next_multiple_of(ALIGN as u64);
        while at + HEADER_BYTES as u64 <= self.end {
            let len = MOST_BYTES.min((self.end - at) as usize);
            let (file, segment) = (&self.file, self.segment);
            let bytes = self.window.get(storage, file, at, len, self.end)?;
            let mut place = 0;
            while place + HEADER_BYTES <= len {
                let offset = at + place as u64;
                if let Ok(header) = RecordHeader::decode(&bytes[place..place + HEADER_BYTES], segment, offset)
                    && fits(&header)
                {
                    return Ok(Some((offset, header)));
                }
                place += ALIGN;
            }
            at += place as u64;
        }
        Ok(None)
    }

    /// Returns whether the file holds nothing but zeros from `from` on, up to `end`.
    pub(crate) fn is_blank<S: Storage<File = F>>(&mut self, storage: &S, from: u64) -> io::Result<bool> {
        let mut at = from;
        while at < self.end {
            let len = ZEROS.len().min((self.end - at) as usize);
            if self.window.get(storage, &self.file, at, len, self.end)? != &ZEROS[..len] {
                return Ok(false);
            }
            at += len as u64;
        }
        Ok(true)
    }

    /// Returns whether, of the `len` bytes at `from`, the part that lies in one sector is all zero. A torn write leaves
    /// such a part, since nothing was there before.
    pub(crate) fn lacks_a_sector<S: Storage<File = F>>(
        &mut self,
        storage: &S,
        from: u64,
        len: u64,
    ) -> io::Result<bool> {
        let end = (from + len).min(self.end);
        let mut at = from;
        while at < end {
            let next = (at / SECTOR_BYTES as u64 + 1) * SECTOR_BYTES as u64;
            let part = (next.min(end) - at) as usize;
            if self.window.get(storage, &self.file, at, part, self.end)?.iter().all(|&byte| byte == 0) {
                return Ok(true);
            }
            at = next;
        }
        Ok(false)
    }
}
