//! A segment's file: its name, and its first block.

use std::io;

use squall_membership::{ClusterId, ShardId};

use super::{
    End, Storage,
    block::{self, Block, Copies, Fields},
};

const MAGIC: [u8; 8] = *b"squallSG";

/// The offset at which records begin in a segment.
pub(crate) const RECORDS_AT: u64 = block::BLOCK_BYTES;

/// The fields of a segment's first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) cluster: ClusterId,
    pub(crate) shard: ShardId,
    /// Its number: one more than that of the segment before.
    pub(crate) index: u64,
    /// A random id. A record whose checksum was not made with it was not written to this segment.
    pub(crate) id: u64,
    /// The log's end before it.
    pub(crate) begin: End,
    /// The id of the segment before, and the end of its records in its file. 0 for the first of a log.
    pub(crate) previous_id: u64,
    pub(crate) previous_end: u64,
    /// The acknowledged mark when it began.
    pub(crate) acknowledged: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        Fields::new(MAGIC)
            .word(self.cluster.0)
            .word(u64::from(self.shard.0))
            .word(self.index)
            .word(self.id)
            .end(self.begin)
            .word(self.previous_id)
            .word(self.previous_end)
            .word(self.acknowledged)
            .finish()
    }
}

/// The contents of a segment's first block, as they were read.
#[derive(Debug)]
pub(crate) enum Begun {
    /// A segment in which nothing was written yet.
    No,
    Damaged,
    Version(u32),
    Yes(SegmentHeader, Copies),
}

pub(crate) fn read_header<S: Storage>(storage: &S, file: &S::File) -> io::Result<Begun> {
    Ok(match block::read(storage, file, MAGIC)? {
        Block::Blank => Begun::No,
        Block::Damaged => Begun::Damaged,
        Block::Version(version) => Begun::Version(version),
        Block::Good { mut words, copies } => {
            let header = SegmentHeader {
                cluster: ClusterId(words.word()),
                shard: ShardId(words.word() as u32),
                index: words.word(),
                id: words.word(),
                begin: words.end(),
                previous_id: words.word(),
                previous_end: words.word(),
                acknowledged: words.word(),
            };
            Begun::Yes(header, copies)
        }
    })
}

/// Returns the name of the file of the segment with a number.
pub(crate) fn name(index: u64) -> String {
    format!("segment-{index:010}")
}

/// Returns the number of the segment whose file has this name.
pub(crate) fn index_of(file: &str) -> Option<u64> {
    let index = file.strip_prefix("segment-")?.parse().ok()?;
    (name(index) == file).then_some(index)
}
