//! The file of a segment's signatures of its records, in order.

use std::io;

use squall_fabric::NodeId;
use squall_membership::{ClusterId, Epoch, Seq, ShardId};

use super::{
    ChainValue, End, Hlc, Position, PublicKey, SigningKey, Storage,
    block::{self, BLOCK_BYTES, Block, Fields, u32_at, u64_at},
    chain::end_bytes,
    segment,
    sign::{SIGNATURE_BYTES, Statement},
    storage::SECTOR_BYTES,
};

const MAGIC: [u8; 8] = *b"squallSI";

/// The size of a signature's slot in a file, in bytes: the signature, the chain, the end, four zeros, the checksum.
pub(crate) const SLOT_BYTES: u64 = 136;

const CHECKSUM_AT: usize = SLOT_BYTES as usize - 4;

/// The number of slots that are read at once.
const SLOTS_AT_ONCE: u64 = 480;

/// The name of a file while it is written, before it takes its place.
const NEW: &str = "signatures.new";

/// Returns the name of the file for a segment.
pub(crate) fn name(segment: u64) -> String {
    format!("signatures-{segment:010}")
}

/// Returns the number of the segment whose signatures' file has this name.
pub(crate) fn index_of(file: &str) -> Option<u64> {
    let index = file.strip_prefix("signatures-")?.parse().ok()?;
    (name(index) == file).then_some(index)
}

/// A signature of the statement that a log's records up to an end have this chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    pub(crate) bytes: [u8; SIGNATURE_BYTES],
    pub(crate) chain: ChainValue,
    pub(crate) end: End,
}

impl Signature {
    fn encode(&self, segment_id: u64, offset: u64) -> [u8; SLOT_BYTES as usize] {
        let mut bytes = [0; SLOT_BYTES as usize];
        // A disk that writes one of its two sectors leaves the other part all zeros. Neither part is all zeros by
        // itself: one begins with bytes of the signature, and the other ends with the checksum.
        bytes[..64].copy_from_slice(&self.bytes);
        bytes[64..96].copy_from_slice(&self.chain.0);
        bytes[96..128].copy_from_slice(&end_bytes(self.end));
        let checksum = checksum(&bytes, segment_id, offset);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8], segment_id: u64, offset: u64) -> Option<Signature> {
        (u32_at(bytes, CHECKSUM_AT) == checksum(bytes, segment_id, offset)).then(|| Signature {
            bytes: bytes[..64].try_into().expect("64 bytes"),
            chain: ChainValue(bytes[64..96].try_into().expect("32 bytes")),
            end: End {
                position: Position { epoch: Epoch(u64_at(bytes, 96)), seq: Seq(u64_at(bytes, 104)) },
                version: u64_at(bytes, 112),
                time: Hlc(u64_at(bytes, 120)),
            },
        })
    }
}

/// Returns a slot's checksum, which covers the slot's place, too.
fn checksum(slot: &[u8], segment_id: u64, offset: u64) -> u32 {
    let mut checksum = crc32c::crc32c(&segment_id.to_le_bytes());
    checksum = crc32c::crc32c_append(checksum, &offset.to_le_bytes());
    crc32c::crc32c_append(checksum, &slot[..CHECKSUM_AT])
}

/// The fields of a file's first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SignatureFileHeader {
    pub(crate) cluster: ClusterId,
    pub(crate) shard: ShardId,
    /// The segment's number and id.
    pub(crate) segment: u64,
    pub(crate) segment_id: u64,
    /// The member that signed, and the key with which its signatures are checked.
    pub(crate) member: NodeId,
    pub(crate) key: PublicKey,
    /// The chain at the segment's beginning.
    pub(crate) begin: Signature,
}

impl SignatureFileHeader {
    /// Signs the beginning of a segment.
    pub(crate) fn sign(
        segment: &segment::SegmentHeader,
        chain: ChainValue,
        member: NodeId,
        key: &SigningKey,
    ) -> SignatureFileHeader {
        let begin = Signature { bytes: [0; SIGNATURE_BYTES], chain, end: segment.begin };
        let mut header = SignatureFileHeader {
            cluster: segment.cluster,
            shard: segment.shard,
            segment: segment.index,
            segment_id: segment.id,
            member,
            key: key.public_key(),
            begin,
        };
        header.begin.bytes = key.sign(&header.statement(&begin));
        header
    }

    fn encode(&self) -> Vec<u8> {
        Fields::new(MAGIC)
            .word(self.cluster.0)
            .word(u64::from(self.shard.0))
            .word(self.segment)
            .word(self.segment_id)
            .word(u64::from(self.member.0))
            .put(&self.key.0)
            .put(&self.begin.bytes)
            .put(&self.begin.chain.0)
            .end(self.begin.end)
            .finish()
    }

    /// Returns the statement of a signature of the file.
    pub(crate) fn statement(&self, signature: &Signature) -> Statement {
        let Signature { end, chain, .. } = *signature;
        Statement { cluster: self.cluster, shard: self.shard, member: self.member, end, chain }
    }

    /// Returns whether a signature is by the file's key.
    pub(crate) fn verifies(&self, signature: &Signature) -> bool {
        self.key.verifies(&self.statement(signature), &signature.bytes)
    }

    /// Returns whether the file belongs to that segment.
    pub(crate) fn is_of(&self, segment: &segment::SegmentHeader) -> bool {
        let mine = (self.cluster, self.shard, self.segment, self.segment_id, self.begin.end);
        mine == (segment.cluster, segment.shard, segment.index, segment.id, segment.begin)
    }
}

/// A file of signatures that is being written.
#[derive(Debug)]
pub(crate) struct SignatureWriter<F> {
    file: F,
    segment: u64,
    segment_id: u64,
    at: u64,
}

impl<F> SignatureWriter<F> {
    /// Begins a file under its own name. It is durable once it and the directory are synced.
    pub(crate) fn begin<S: Storage<File = F>>(
        storage: &S,
        header: &SignatureFileHeader,
    ) -> io::Result<SignatureWriter<F>> {
        SignatureWriter::create(storage, &name(header.segment), header)
    }

    fn create<S: Storage<File = F>>(
        storage: &S,
        name: &str,
        header: &SignatureFileHeader,
    ) -> io::Result<SignatureWriter<F>> {
        let file = storage.create(name, BLOCK_BYTES)?;
        storage.write_at(&file, 0, &header.encode())?;
        Ok(SignatureWriter { file, segment: header.segment, segment_id: header.segment_id, at: BLOCK_BYTES })
    }

    /// Goes on behind all bytes that were ever written to a file.
    pub(crate) fn go_on(reader: SignatureReader<F>) -> SignatureWriter<F> {
        let slots = (reader.size - BLOCK_BYTES).div_ceil(SLOT_BYTES);
        let SignatureFileHeader { segment, segment_id, .. } = reader.header;
        SignatureWriter { file: reader.file, segment, segment_id, at: BLOCK_BYTES + slots * SLOT_BYTES }
    }

    pub(crate) fn file(&self) -> &F {
        &self.file
    }

    /// Returns the number of the segment.
    pub(crate) fn segment(&self) -> u64 {
        self.segment
    }

    /// Appends a signature. It is not durable yet.
    pub(crate) fn append<S: Storage<File = F>>(&mut self, storage: &S, signature: &Signature) -> io::Result<()> {
        storage.write_at(&self.file, self.at, &signature.encode(self.segment_id, self.at))?;
        self.at += SLOT_BYTES;
        Ok(())
    }
}

/// The reason for which a file of signatures can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSignatures {
    /// The lack of a file.
    Absent,
    /// A crash has left the file without its first block.
    Blank,
    /// A file whose first block is damaged in both copies.
    Damaged,
    /// The file is of another version.
    Version(u32),
}

/// A reader of a file's signatures, one after the other.
#[derive(Debug)]
pub(crate) struct SignatureReader<F> {
    pub(crate) header: SignatureFileHeader,
    /// Whether a copy of the first block is damaged.
    pub(crate) half_damaged: bool,
    file: F,
    size: u64,
    at: u64,
    window: Vec<u8>,
    window_at: u64,
}

/// The contents of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignatureSlot {
    Signature {
        offset: u64,
        signature: Signature,
    },
    /// A signature of which there is nothing, or a part: it was not synced before a crash.
    Lost,
    Damaged {
        offset: u64,
    },
}

impl<F> SignatureReader<F> {
    /// Opens a segment's file.
    pub(crate) fn open<S: Storage<File = F>>(
        storage: &S,
        segment: u64,
    ) -> io::Result<Result<SignatureReader<F>, NoSignatures>> {
        match storage.open(&name(segment)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Err(NoSignatures::Absent)),
            file => SignatureReader::read(storage, file?),
        }
    }

    fn read<S: Storage<File = F>>(storage: &S, file: F) -> io::Result<Result<SignatureReader<F>, NoSignatures>> {
        let size = storage.size(&file)?;
        if size < BLOCK_BYTES {
            return Ok(Err(NoSignatures::Blank));
        }
        let (mut words, copies) = match block::read(storage, &file, MAGIC)? {
            Block::Good { words, copies } => (words, copies),
            Block::Version(version) => return Ok(Err(NoSignatures::Version(version))),
            Block::Blank => return Ok(Err(NoSignatures::Blank)),
            Block::Damaged => return Ok(Err(NoSignatures::Damaged)),
        };
        let header = SignatureFileHeader {
            cluster: ClusterId(words.word()),
            shard: ShardId(words.word() as u32),
            segment: words.word(),
            segment_id: words.word(),
            member: NodeId(words.word() as u32),
            key: PublicKey(words.bytes()),
            begin: Signature { bytes: words.bytes(), chain: ChainValue(words.bytes()), end: words.end() },
        };
        let half_damaged = copies == block::Copies::OneDamaged;
        Ok(Ok(SignatureReader {
            header,
            half_damaged,
            file,
            size,
            at: BLOCK_BYTES,
            window: Vec::new(),
            window_at: BLOCK_BYTES,
        }))
    }

    /// Reads anew the bytes that a crash would leave of the file.
    pub(crate) fn reload<S: Storage<File = F>>(
        self,
        storage: &S,
    ) -> io::Result<Result<SignatureReader<F>, NoSignatures>> {
        storage.reload(&self.file)?;
        SignatureReader::read(storage, self.file)
    }

    /// Returns the contents of the next slot.
    pub(crate) fn next<S: Storage<File = F>>(&mut self, storage: &S) -> io::Result<Option<SignatureSlot>> {
        if self.at >= self.size {
            return Ok(None);
        }
        let window_end = self.window_at + self.window.len() as u64;
        if self.at + SLOT_BYTES > window_end {
            // A file that ends within a slot has lost the rest of it.
            let bytes = (SLOTS_AT_ONCE * SLOT_BYTES).min(self.size - self.at) as usize;
            self.window.resize(bytes, 0);
            storage.read_at(&self.file, self.at, &mut self.window)?;
            self.window.resize(bytes.next_multiple_of(SLOT_BYTES as usize), 0);
            self.window_at = self.at;
        }
        let offset = self.at;
        let begin = (offset - self.window_at) as usize;
        let bytes = &self.window[begin..begin + SLOT_BYTES as usize];
        self.at += SLOT_BYTES;
        Ok(Some(match Signature::decode(bytes, self.header.segment_id, offset) {
            Some(signature) => SignatureSlot::Signature { offset, signature },
            None if self.at > self.size || lacks_a_sector(bytes, offset) => SignatureSlot::Lost,
            None => SignatureSlot::Damaged { offset },
        }))
    }

    /// Returns the last signature about an end at or before `position`. If that is not by the file's key, returns the
    /// one of the segment's beginning.
    pub(crate) fn last<S: Storage<File = F>>(&mut self, storage: &S, position: Position) -> io::Result<Signature> {
        let mut last = self.header.begin;
        while let Some(slot) = self.next(storage)? {
            match slot {
                SignatureSlot::Signature { signature, .. } if signature.end.position <= position => last = signature,
                _ => {}
            }
        }
        Ok(if self.header.verifies(&last) { last } else { self.header.begin })
    }
}

/// Returns whether the part of a slot that lies in one sector is all zeros.
fn lacks_a_sector(slot: &[u8], offset: u64) -> bool {
    let sector = SECTOR_BYTES as u64;
    let first = ((offset / sector + 1) * sector - offset).min(slot.len() as u64) as usize;
    let (before, behind) = slot.split_at(first);
    let zero = |part: &[u8]| part.iter().all(|&byte| byte == 0);
    zero(before) || !behind.is_empty() && zero(behind)
}

/// Puts a file in place that has the given signatures and no others, durably.
pub(crate) fn replace<S: Storage>(
    storage: &S,
    header: &SignatureFileHeader,
    signatures: impl IntoIterator<Item = io::Result<Signature>>,
) -> io::Result<SignatureWriter<S::File>> {
    let mut writer = SignatureWriter::create(storage, NEW, header)?;
    for signature in signatures {
        writer.append(storage, &signature?)?;
    }
    storage.sync(&writer.file)?;
    storage.rename(NEW, &name(header.segment))?;
    storage.sync_directory()?;
    Ok(writer)
}

/// Removes, durably, the signatures about ends behind `to` in a segment.
pub(crate) fn cut<S: Storage>(storage: &S, segment: u64, to: Position) -> io::Result<()> {
    let mut reader = match SignatureReader::open(storage, segment)? {
        Err(NoSignatures::Absent) => return Ok(()),
        Ok(reader) if reader.header.begin.end.position <= to => reader,
        _ => {
            remove(storage, segment)?;
            return storage.sync_directory();
        }
    };
    let header = reader.header;
    let kept = std::iter::from_fn(|| {
        loop {
            match reader.next(storage) {
                Ok(Some(SignatureSlot::Signature { signature, .. })) if signature.end.position <= to => {
                    return Some(Ok(signature));
                }
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    });
    replace(storage, &header, kept).map(drop)
}

/// Removes a segment's file, if there is one.
pub(crate) fn remove<S: Storage>(storage: &S, segment: u64) -> io::Result<()> {
    match storage.remove(&name(segment)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::SimStorage, *};

    fn segment() -> segment::SegmentHeader {
        segment::SegmentHeader {
            cluster: ClusterId(7),
            shard: ShardId(3),
            index: 2,
            id: 0x1234,
            begin: End { position: Position::new(Epoch(1), Seq(4)), version: 3, time: Hlc(1000) },
            previous_id: 1,
            previous_end: 8192,
            acknowledged: 0,
        }
    }

    fn signature(version: u64) -> Signature {
        let end = End { version, ..segment().begin };
        Signature { bytes: [0xaa; 64], chain: ChainValue([0xbb; 32]), end }
    }

    /// The bytes that docs/src/internals/log-format.md draws.
    #[test]
    fn the_format_is_what_it_was() {
        let key = SigningKey::from_seed(&[1; 32]);
        let header = SignatureFileHeader::sign(&segment(), ChainValue([0xcc; 32]), NodeId(5), &key);
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let end = words(&[1, 4, 3, 1000]);
        let block = header.encode();
        assert_eq!(block[..12], *b"squallSI\x06\0\0\0");
        assert_eq!(block[16..56], words(&[7, 3, 2, 0x1234, 5]));
        assert_eq!(block[56..88], key.public_key().0);
        assert_eq!(
            (&block[88..152], &block[152..184], &block[184..216]),
            (&header.begin.bytes[..], &[0xcc; 32][..], &end[..])
        );

        let slot = signature(3).encode(0x1234, 4096);
        assert_eq!(slot[..132], [&[0xaa; 64][..], &[0xbb; 32], &end, &[0; 4]].concat());
        let checked = [&words(&[0x1234, 4096]), &slot[..132]].concat();
        assert_eq!(u32_at(&slot, 132), crc32c::crc32c(&checked));
    }

    #[test]
    fn what_a_crash_left_out_is_told_from_damage() {
        let key = SigningKey::from_seed(&[1; 32]);
        let storage = SimStorage::new(1);
        let header = SignatureFileHeader::sign(&segment(), ChainValue([0xcc; 32]), NodeId(5), &key);
        let mut writer = SignatureWriter::begin(&storage, &header).expect("the disk is well");
        (4..9).for_each(|version| writer.append(&storage, &signature(version)).expect("the disk is well"));
        let file = storage.open(&name(2)).expect("it is there");
        let size = storage.size(&file).expect("it is there");
        // The second slot is gone; so are the part of the fourth in the second of its two sectors, and the end of the
        // last, with the file's.
        let slot = |nth: u64| 4096 + nth * SLOT_BYTES;
        storage.write_at(&file, slot(1), &[0; SLOT_BYTES as usize]).expect("the disk is well");
        storage.write_at(&file, 4096 + 512, &[0; (4 * 136 - 512) as usize]).expect("the disk is well");
        storage.flip(&name(2), slot(2) + 100, 3);
        let mut image = storage.image();
        image.get_mut(&name(2)).expect("it is there").truncate(size as usize - 20);
        let storage = SimStorage::from_image(1, &image);

        let mut reader = SignatureReader::open(&storage, 2).expect("it can be read").expect("it is well");
        let mut slots = Vec::new();
        while let Some(slot) = reader.next(&storage).expect("it can be read") {
            slots.push(slot);
        }
        let first = SignatureSlot::Signature { offset: slot(0), signature: signature(4) };
        assert_eq!(
            slots,
            [
                first,
                SignatureSlot::Lost,
                SignatureSlot::Damaged { offset: slot(2) },
                SignatureSlot::Lost,
                SignatureSlot::Lost
            ]
        );
        // The next write lies behind all of them.
        assert_eq!(SignatureWriter::go_on(reader).at, slot(5));
    }
}
