//! Records: their fields, and their bytes.

use squall_fabric::NodeId;
use squall_membership::{ClusterId, Epoch, MAX_MEMBERS, Seq};

use super::{
    End, Hlc, Position,
    block::{u32_at, u64_at},
};

/// The longest payload, in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 30;

/// A record's header, in bytes.
pub(crate) const HEADER_BYTES: usize = 64;

/// The part of the header that is alike in all members' logs, in bytes.
pub(crate) const SHARED_BYTES: usize = 48;

/// Records begin at multiples of this, in bytes.
pub(crate) const ALIGN: usize = 16;

const MESSAGE: u8 = 1;
const VIEW: u8 = 2;

/// A record of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its place: a message's own, or the beginning of a view's epoch.
    pub position: Position,
    /// Its time.
    pub time: Hlc,
    /// A message's number in the log, from 1 on; a view has that of the message before.
    pub version: u64,
    /// Its contents.
    pub body: Body<'a>,
}

impl Record<'_> {
    /// Returns the end of a log whose last record it is.
    pub fn end(&self) -> Position {
        match self.body {
            Body::Message { .. } => self.position.next(),
            Body::View(_) => self.position,
        }
    }
}

/// The contents of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// A message that was delivered.
    Message {
        /// The sender.
        sender: NodeId,
        /// Its bytes.
        payload: &'a [u8],
    },
    /// A view, before the first message of its epoch.
    View(ViewRecord),
}

/// A log's record of a view: its beginning, and what replicas were told of it. All lists are by rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewRecord {
    /// The life of the group that the view is of.
    pub life: ClusterId,
    /// The end of the order before it: the trim of the epoch before, or the end that a restart agreed on.
    pub ended: Position,
    /// The shard's members whose logs count in its epoch.
    pub complete: Vec<NodeId>,
    /// All members of the shard.
    pub members: Vec<NodeId>,
    /// The members that may submit.
    pub senders: Vec<NodeId>,
    /// The members that were none in the view before, or were in an earlier life.
    pub joined: Vec<NodeId>,
    /// The nodes that were members in the view before, and are no more, or were in an earlier life.
    pub left: Vec<NodeId>,
}

/// The number of lists of nodes in a view's record.
const LISTS: usize = 5;

/// The size of the part before the nodes: a life, a position, and the number of nodes in each list.
const VIEW_FIXED_BYTES: usize = 24 + 2 * LISTS;

impl ViewRecord {
    fn lists(&self) -> [&Vec<NodeId>; LISTS] {
        [&self.complete, &self.members, &self.senders, &self.joined, &self.left]
    }

    /// Returns its bytes, as docs/src/internals/log-format.md draws them.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(VIEW_FIXED_BYTES + 4 * MAX_MEMBERS);
        bytes.extend_from_slice(&self.life.0.to_le_bytes());
        bytes.extend_from_slice(&self.ended.epoch.0.to_le_bytes());
        bytes.extend_from_slice(&self.ended.seq.0.to_le_bytes());
        self.lists().iter().for_each(|list| bytes.extend_from_slice(&(list.len() as u16).to_le_bytes()));
        self.lists().into_iter().flatten().for_each(|node| bytes.extend_from_slice(&node.0.to_le_bytes()));
        bytes
    }

    /// Returns the length of its longest list.
    pub(crate) fn longest_list(&self) -> usize {
        self.lists().into_iter().map(Vec::len).max().unwrap_or_default()
    }

    /// Returns whether a payload of so many bytes can be a view's record.
    fn fits(bytes: usize) -> bool {
        (VIEW_FIXED_BYTES..=VIEW_FIXED_BYTES + 4 * LISTS * MAX_MEMBERS).contains(&bytes)
    }

    /// Reads a view's record. A list for which the bytes are too short has the nodes that are there.
    pub fn decode(bytes: &[u8]) -> ViewRecord {
        let Some((fixed, nodes)) = bytes.split_at_checked(VIEW_FIXED_BYTES) else { return ViewRecord::default() };
        let mut nodes = nodes.chunks_exact(4).map(|node| NodeId(u32_at(node, 0)));
        let mut list = |index: usize| {
            let count = u16::from_le_bytes([fixed[24 + 2 * index], fixed[25 + 2 * index]]);
            nodes.by_ref().take(count.into()).collect()
        };
        ViewRecord {
            life: ClusterId(u64_at(fixed, 0)),
            ended: Position { epoch: Epoch(u64_at(fixed, 8)), seq: Seq(u64_at(fixed, 16)) },
            complete: list(0),
            members: list(1),
            senders: list(2),
            joined: list(3),
            left: list(4),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    Message,
    View,
}

/// The fields of a record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: RecordKind,
    pub(crate) payload_bytes: u32,
    pub(crate) position: Position,
    pub(crate) time: Hlc,
    pub(crate) version: u64,
    pub(crate) sender: NodeId,
    /// The offset in the segment at which the batch that it was written with begins: all bytes before that were synced
    /// earlier.
    pub(crate) batch: u64,
    /// The acknowledged mark that was known when it was written: this version at most, 0 if there was none.
    pub(crate) acknowledged: u64,
    pub(crate) payload_checksum: u32,
}

/// The reasons for which bytes are no record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHeader {
    Checksum,
    /// The header is whole, but has a kind, or flags, that this version does not know.
    Unknown {
        kind: u8,
        flags: u8,
    },
    /// The header is whole, but its fields contradict each other.
    Senseless,
}

impl RecordHeader {
    /// Returns the record's size, with its payload and the fill up to a multiple of [`ALIGN`], in bytes.
    pub(crate) fn record_bytes(&self) -> usize {
        record_bytes(self.payload_bytes as usize)
    }

    /// Returns the position of the log's end behind it.
    pub(crate) fn end(&self) -> Position {
        match self.kind {
            RecordKind::Message => self.position.next(),
            RecordKind::View => self.position,
        }
    }

    /// Returns the log's end behind it.
    pub(crate) fn reached(&self) -> End {
        End { position: self.end(), version: self.version, time: self.time }
    }

    /// Returns the latest position that the log's end before it may have.
    pub(crate) fn latest_before(&self) -> Position {
        match self.kind {
            RecordKind::Message => self.position,
            RecordKind::View => Position { epoch: Epoch(self.position.epoch.0.saturating_sub(1)), seq: Seq(u64::MAX) },
        }
    }

    /// Returns the header's first bytes, which are alike in all members' logs.
    pub(crate) fn shared(&self) -> [u8; SHARED_BYTES] {
        let mut bytes = [0; SHARED_BYTES];
        bytes[0..4].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[4] = match self.kind {
            RecordKind::Message => MESSAGE,
            RecordKind::View => VIEW,
        };
        bytes[8..16].copy_from_slice(&self.position.epoch.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.position.seq.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.time.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.version.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.sender.0.to_le_bytes());
        bytes
    }

    pub(crate) fn encode(&self, segment: u64, offset: u64) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..SHARED_BYTES].copy_from_slice(&self.shared());
        bytes[48..52].copy_from_slice(&((self.batch / ALIGN as u64) as u32).to_le_bytes());
        bytes[52..56].copy_from_slice(&self.behind_mark().to_le_bytes());
        bytes[56..60].copy_from_slice(&self.payload_checksum.to_le_bytes());
        RecordHeader::set_checksum(&mut bytes, segment, offset);
        bytes
    }

    /// Returns the acknowledged mark as four bytes hold it: one more than the number of versions by which it lies
    /// behind this record's. 0 for no mark, or for one that lies too far behind.
    fn behind_mark(&self) -> u32 {
        match self.acknowledged {
            0 => 0,
            mark => u32::try_from(self.version.saturating_sub(mark).saturating_add(1)).unwrap_or(0),
        }
    }

    /// Sets the checksum of a header's bytes right.
    pub(crate) fn set_checksum(header: &mut [u8], segment: u64, offset: u64) {
        let checksum = checksum(header, segment, offset);
        header[60..64].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Reads a header that lies at `offset` of a segment.
    pub(crate) fn decode(bytes: &[u8], segment: u64, offset: u64) -> Result<RecordHeader, NoHeader> {
        // Most bytes that are no header are recognised without the checksum.
        if bytes[4] == 0 || bytes[6..8] != [0; 2] || u32_at(bytes, 60) != checksum(bytes, segment, offset) {
            return Err(NoHeader::Checksum);
        }
        let kind = match (bytes[4], bytes[5]) {
            (MESSAGE, 0) => RecordKind::Message,
            (VIEW, 0) => RecordKind::View,
            (kind, flags) => return Err(NoHeader::Unknown { kind, flags }),
        };
        let (version, behind) = (u64_at(bytes, 32), u64::from(u32_at(bytes, 52)));
        let header = RecordHeader {
            kind,
            payload_bytes: u32_at(bytes, 0),
            position: Position { epoch: Epoch(u64_at(bytes, 8)), seq: Seq(u64_at(bytes, 16)) },
            time: Hlc(u64_at(bytes, 24)),
            version,
            sender: NodeId(u32_at(bytes, 40)),
            batch: u64::from(u32_at(bytes, 48)) * ALIGN as u64,
            acknowledged: if behind == 0 { 0 } else { version.saturating_sub(behind - 1) },
            payload_checksum: u32_at(bytes, 56),
        };
        let fits = match header.kind {
            // Behind the last number of all there is no end.
            RecordKind::Message => {
                let has_end = header.position.seq < Seq(u64::MAX);
                header.payload_bytes as usize <= MAX_PAYLOAD_BYTES && header.version > 0 && has_end
            }
            RecordKind::View => ViewRecord::fits(header.payload_bytes as usize) && header.position.seq == Seq(0),
        };
        if fits && header.batch <= offset { Ok(header) } else { Err(NoHeader::Senseless) }
    }

    /// Returns whether the record is of a log that once ended there, behind records that are lost.
    pub(crate) fn is_behind(&self, log: End) -> bool {
        self.end() > log.position && self.version >= log.version && self.time >= log.time
    }

    /// Returns the record that has this header, and `payload` behind it.
    pub(crate) fn record<'a>(&self, payload: &'a [u8]) -> Record<'a> {
        let body = match self.kind {
            RecordKind::Message => Body::Message { sender: self.sender, payload },
            RecordKind::View => Body::View(ViewRecord::decode(payload)),
        };
        Record { position: self.position, time: self.time, version: self.version, body }
    }

    /// Returns whether the record may follow a log that ends there.
    pub(crate) fn may_follow(&self, log: End) -> bool {
        let End { position: Position { epoch, seq }, version, time } = log;
        match self.kind {
            RecordKind::Message => {
                let next = self.position.epoch == epoch && self.position.seq >= seq;
                next && version.checked_add(1) == Some(self.version) && self.time > time
            }
            RecordKind::View => {
                let next = self.position.epoch > epoch && self.position.seq == Seq(0);
                next && self.version == version && self.time >= time
            }
        }
    }
}

/// Returns a record's size for a payload's, in bytes.
pub(crate) fn record_bytes(payload_bytes: usize) -> usize {
    (HEADER_BYTES + payload_bytes).next_multiple_of(ALIGN)
}

/// Returns a header's checksum, which covers the header's place, too.
fn checksum(header: &[u8], segment: u64, offset: u64) -> u32 {
    let mut bytes = [0; 16 + HEADER_BYTES - 4];
    bytes[..8].copy_from_slice(&segment.to_le_bytes());
    bytes[8..16].copy_from_slice(&offset.to_le_bytes());
    bytes[16..].copy_from_slice(&header[..HEADER_BYTES - 4]);
    crc32c::crc32c(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> RecordHeader {
        RecordHeader {
            kind: RecordKind::Message,
            payload_bytes: 100,
            position: Position::new(Epoch(3), Seq(17)),
            time: Hlc(1_700_000_000_000_000_005),
            version: 11,
            sender: NodeId(2),
            batch: 4096,
            acknowledged: 9,
            payload_checksum: 0x0102_0304,
        }
    }

    #[test]
    fn a_header_counts_only_where_it_was_written() {
        let bytes = header().encode(7, 8192);
        assert_eq!(RecordHeader::decode(&bytes, 7, 8192), Ok(header()));
        assert_eq!(RecordHeader::decode(&bytes, 7, 8208), Err(NoHeader::Checksum), "at another offset");
        assert_eq!(RecordHeader::decode(&bytes, 8, 8192), Err(NoHeader::Checksum), "in another segment");
    }

    #[test]
    fn a_changed_bit_is_seen() {
        let bytes = header().encode(7, 8192);
        for bit in 0..8 * HEADER_BYTES {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::decode(&changed, 7, 8192), Err(NoHeader::Checksum), "bit {bit}");
        }
    }

    /// The bytes that docs/src/internals/log-format.md draws.
    #[test]
    fn the_format_is_what_it_was() {
        let bytes = header().encode(7, 8192);
        let mut drawn = Vec::new();
        drawn.extend_from_slice(&[100, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        drawn.extend_from_slice(&[17, 0, 0, 0, 0, 0, 0, 0, 5, 0, 42, 54, 254, 156, 151, 23]);
        drawn.extend_from_slice(&[11, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        drawn.extend_from_slice(&[0, 1, 0, 0, 3, 0, 0, 0, 4, 3, 2, 1]);
        assert_eq!(bytes[..60], drawn);
        let (one, four) = (NodeId(1), NodeId(4));
        let view = ViewRecord {
            life: ClusterId(0x0807_0605_0403_0201),
            ended: Position::new(Epoch(2), Seq(9)),
            complete: vec![one],
            members: vec![one, four],
            senders: vec![four],
            joined: vec![four],
            left: vec![],
        };
        let mut bytes = vec![1, 2, 3, 4, 5, 6, 7, 8, 2, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend_from_slice(&[1, 0, 2, 0, 1, 0, 1, 0, 0, 0]);
        bytes.extend_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(view.encode(), bytes);
        assert_eq!(ViewRecord::decode(&bytes), view);
    }

    #[test]
    fn a_header_has_the_mark_unless_it_lies_too_far_behind() {
        let far = u64::from(u32::MAX);
        let marks =
            [(11, 0, 0), (11, 11, 11), (11, 1, 1), (far + 9, 10, 10), (far + 9, 9, 0), (u64::MAX, u64::MAX, u64::MAX)];
        for (version, acknowledged, read) in marks {
            let bytes = RecordHeader { version, acknowledged, ..header() }.encode(7, 8192);
            let found = RecordHeader::decode(&bytes, 7, 8192).map(|header| header.acknowledged);
            assert_eq!(found, Ok(read), "{acknowledged} at version {version}");
        }
    }

    #[test]
    fn what_a_later_version_may_write_is_refused_as_such() {
        let mut bytes = header().encode(7, 8192);
        bytes[5] = 4;
        RecordHeader::set_checksum(&mut bytes, 7, 8192);
        assert_eq!(RecordHeader::decode(&bytes, 7, 8192), Err(NoHeader::Unknown { kind: MESSAGE, flags: 4 }));
    }
}
