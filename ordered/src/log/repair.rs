//! Records from one member's log to another's: to replace what is damaged there, or to go on where it ends.

use super::{
    Damage, Log, Position, ReadError, Reader, Record, Storage, WriteError,
    record::{HEADER_BYTES, RecordHeader},
    scan::{ScanFinding, Scanner},
    segment::name,
    walk::open_segment,
};

/// Records as they travel from log to log: as in a segment that has the id 0, from offset 0 on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The records.
    pub bytes: Vec<u8>,
    /// The position at which to go on. None when all records that were asked for are here.
    pub rest: Option<Position>,
}

/// The error of bytes that are not an [`Export`]'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the records from another member's log are damaged, or of another version of squall, at byte {offset}: ask for them again"
)]
pub struct ImportError {
    /// The offset at which the first bad record begins, in bytes.
    pub offset: usize,
}

/// Returns the records of an [`Export`], each checked. Fails if one of them is damaged.
pub fn import(bytes: &[u8]) -> Result<Vec<Record<'_>>, ImportError> {
    Ok(headers(bytes)?.into_iter().map(|(at, header)| header.record(payload(bytes, at, &header))).collect())
}

pub(crate) fn payload<'a>(bytes: &'a [u8], at: usize, header: &RecordHeader) -> &'a [u8] {
    &bytes[at + HEADER_BYTES..at + HEADER_BYTES + header.payload_bytes as usize]
}

pub(crate) fn headers(bytes: &[u8]) -> Result<Vec<(usize, RecordHeader)>, ImportError> {
    let (mut found, mut offset) = (Vec::new(), 0);
    while offset < bytes.len() {
        let bad = ImportError { offset };
        let head = bytes.get(offset..offset + HEADER_BYTES).ok_or(bad)?;
        let header = RecordHeader::decode(head, 0, offset as u64).map_err(|_| bad)?;
        let end = offset + header.record_bytes();
        let payload = bytes.get(offset + HEADER_BYTES..end).ok_or(bad)?;
        if crc32c::crc32c(payload) != header.payload_checksum {
            return Err(bad);
        }
        found.push((offset, header));
        offset = end;
    }
    Ok(found)
}

impl<S: Storage> Reader<S> {
    /// Returns the next records, as an [`Export`] has them: about `max_bytes` of them, none at the end.
    pub fn export(&mut self, max_bytes: usize) -> Result<Vec<u8>, ReadError> {
        let mut bytes = Vec::new();
        while bytes.len() < max_bytes {
            let Some((header, payload)) = self.next_stored()? else { break };
            put(&mut bytes, header, payload);
        }
        Ok(bytes)
    }
}

/// Appends a record to the bytes of others.
pub(crate) fn put(bytes: &mut Vec<u8>, header: RecordHeader, payload: &[u8]) {
    let at = bytes.len();
    bytes.extend_from_slice(&RecordHeader { batch: 0, acknowledged: 0, ..header }.encode(0, at as u64));
    bytes.extend_from_slice(payload);
    bytes.resize(at + header.record_bytes(), 0);
}

impl<S: Storage + Clone> Log<S> {
    /// Returns the records that take a log from `from` to `to`, as [`read`](Log::read) has them, for another member:
    /// about `max_bytes` of them, one at least.
    ///
    /// Fails if the log begins behind `from`, or if records there are damaged.
    pub fn export(&self, from: Position, to: Position, max_bytes: usize) -> Result<Export, ReadError> {
        let mut reader = self.read(from, to)?;
        let (mut bytes, mut end) = (Vec::new(), from);
        while let Some((header, payload)) = reader.next_stored()? {
            let at = bytes.len();
            if at > 0 && at + header.record_bytes() > max_bytes {
                return Ok(Export { bytes, rest: Some(end) });
            }
            put(&mut bytes, header, payload);
            end = header.end();
        }
        Ok(Export { bytes, rest: None })
    }
}

impl<S: Storage> Log<S> {
    /// Writes the records that another member [exported](Log::export), from `damage.after` up to `damage.before`, over
    /// this log's damage, durably.
    ///
    /// Nothing is written unless the records are those that are missing: they begin and end there, and have the same
    /// size. After a crash the place is as it was, or whole, or still damaged. Damage without an end can't be replaced:
    /// the caller [cuts](Log::cut_to) it off, and appends the records that follow.
    pub fn replace_damaged(&mut self, damage: &Damage, exported: &[u8]) -> Result<(), WriteError> {
        self.check_health()?;
        let no = |why: String| WriteError::NoReplacement { damage: Box::new(damage.clone()), why };
        let Some((to, before)) = damage.to.zip(damage.before) else {
            return Err(no("there is no knowing where it ends".to_string()));
        };
        let records = headers(exported).map_err(|error| no(error.to_string()))?;
        let (file, segment) = open_segment(&self.storage, damage.segment)?;
        let outside = records.iter().find(|(_, header)| header.end() <= damage.after || header.end() > before);
        if let Some((_, header)) = outside {
            return Err(no(format!("a record at {} is not of it", header.position)));
        }
        let in_order = records.windows(2).all(|pair| pair[1].1.may_follow(pair[0].1.reached()));
        if !in_order {
            return Err(no("its records are not in order".to_string()));
        }
        if exported.len() as u64 != to - damage.from {
            return Err(no(format!("it has {} bytes, not {}", exported.len(), to - damage.from)));
        }
        let mut bytes = exported.to_vec();
        for (at, header) in &records {
            let offset = damage.from + *at as u64;
            // All bytes before it were synced long ago.
            let acknowledged = self.acknowledged.min(header.version);
            let header = RecordHeader { batch: offset, acknowledged, ..*header };
            bytes[*at..at + HEADER_BYTES].copy_from_slice(&header.encode(segment.id, offset));
        }
        let path = name(damage.segment);
        let failed = |source| ReadError::Io { path: self.storage.path(&path), source };
        let mut scanner = Scanner::new(file, segment.id, damage.from, to);
        if let ScanFinding::Record { header, .. } = scanner.next(&self.storage).map_err(failed)?
            && header.end() > damage.after
            && header.end() <= before
        {
            return Err(no("there are good records: look for damage again".to_string()));
        }
        let (file, _) = open_segment(&self.storage, damage.segment)?;
        let written = self.storage.write_at(&file, damage.from, &bytes).and_then(|()| self.storage.sync(&file));
        written.map_err(|source| self.poison("replacing damaged records", &path, source))
    }
}
