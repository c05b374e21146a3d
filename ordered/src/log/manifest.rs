//! The file that names the log's owner and lists its segments. Replaced as a whole.

use std::io;

use squall_membership::{ClusterId, ShardId};

use super::{
    End, SchemaText, Storage,
    block::{self, Block, Fields},
};

const MAGIC: [u8; 8] = *b"squallLG";

/// The file's name.
pub(crate) const NAME: &str = "log";

/// The file's name while it is written.
const NEW: &str = "log.new";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) cluster: ClusterId,
    pub(crate) shard: ShardId,
    pub(crate) generation: u64,
    /// The segments with the numbers from `first` to before `next` exist; other files of segments are leftovers.
    pub(crate) first: u64,
    pub(crate) next: u64,
    /// A segment that was cut, and its end. It counts until the next segment's first block says the same.
    pub(crate) cut: Option<SegmentCut>,
    /// The acknowledged mark when the manifest was written.
    pub(crate) acknowledged: u64,
    /// The highest number that an aside ever had.
    pub(crate) asides: u64,
    /// An operator's word about the log's end, until something is appended.
    pub(crate) word: Option<OperatorVerdict>,
    /// The schema of the log's payloads.
    pub(crate) schema: SchemaText,
    /// The number of the file that lists commands that no member applies. 0: there are none.
    pub(crate) skips: u64,
}

/// An operator's word about a log's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperatorVerdict {
    /// The log had more records, which another member may have.
    Doubtful,
    /// The log had more records, whose loss is accepted, if it ends here.
    Trusted(End),
}

/// The end of a segment that was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentCut {
    pub(crate) index: u64,
    /// Its length from then on, in bytes.
    pub(crate) end: u64,
    /// The log's end there.
    pub(crate) at: End,
}

/// The reason for which no manifest was read.
#[derive(Debug)]
pub(crate) enum NoManifest {
    Absent,
    Damaged,
    Version(u32),
}

impl Manifest {
    /// Reads the manifest.
    pub(crate) fn read<S: Storage>(storage: &S) -> io::Result<Result<Manifest, NoManifest>> {
        let file = match storage.open(NAME) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Err(NoManifest::Absent)),
            file => file?,
        };
        Ok(match block::read(storage, &file, MAGIC)? {
            Block::Blank | Block::Damaged => Err(NoManifest::Damaged),
            Block::Version(version) => Err(NoManifest::Version(version)),
            Block::Good { mut words, .. } => {
                let mut word = || words.word();
                let (cluster, shard) = (ClusterId(word()), ShardId(word() as u32));
                let (generation, first, next) = (word(), word(), word());
                let cut = SegmentCut { index: word(), end: word(), at: words.end() };
                let cut = (cut.end > 0).then_some(cut);
                let schema = SchemaText::from_bytes(words.word(), &words.bytes());
                let (acknowledged, asides) = (words.word(), words.word());
                let word = match (words.word(), words.end()) {
                    (1, at) => Some(OperatorVerdict::Trusted(at)),
                    (2, _) => Some(OperatorVerdict::Doubtful),
                    _ => None,
                };
                let skips = words.word();
                let Some(schema) = schema else { return Ok(Err(NoManifest::Damaged)) };
                Ok(Manifest { cluster, shard, generation, first, next, cut, acknowledged, asides, word, schema, skips })
            }
        })
    }

    /// Puts the manifest into force, durably.
    pub(crate) fn write<S: Storage>(&self, storage: &S) -> io::Result<()> {
        let none = SegmentCut { index: 0, end: 0, at: End::START };
        let cut = self.cut.unwrap_or(none);
        let (schema_bytes, schema) = self.schema.to_bytes();
        let (word, at) = match self.word {
            None => (0, End::START),
            Some(OperatorVerdict::Trusted(at)) => (1, at),
            Some(OperatorVerdict::Doubtful) => (2, End::START),
        };
        let block = Fields::new(MAGIC)
            .word(self.cluster.0)
            .word(u64::from(self.shard.0))
            .word(self.generation)
            .word(self.first)
            .word(self.next)
            .word(cut.index)
            .word(cut.end)
            .end(cut.at)
            .put(&schema_bytes)
            .put(&schema)
            .word(self.acknowledged)
            .word(self.asides)
            .word(word)
            .end(at)
            .word(self.skips)
            .finish();
        let file = storage.create(NEW, block.len() as u64)?;
        storage.write_at(&file, 0, &block)?;
        storage.sync(&file)?;
        storage.rename(NEW, NAME)?;
        storage.sync_directory()
    }
}
