//! The first block of every file: a sector of fields that is kept twice.

use std::io;

use squall_membership::{Epoch, Seq};

use super::{End, Hlc, Position, Storage, storage::SECTOR_BYTES};

/// The block's size in bytes. The rest of the file begins there.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// The offsets of the copies in the block, in bytes.
const COPIES: [usize; 2] = [0, 2048];

/// The version of the formats of all files.
pub(crate) const VERSION: u32 = 6;

const CHECKSUM_AT: usize = SECTOR_BYTES - 4;

/// Writes fields one after the other.
#[derive(Debug)]
pub(crate) struct Fields {
    bytes: [u8; SECTOR_BYTES],
    at: usize,
}

impl Fields {
    /// Begins with the magic, which names the kind of file, and the version.
    pub(crate) fn new(magic: [u8; 8]) -> Fields {
        let fields = Fields { bytes: [0; SECTOR_BYTES], at: 0 };
        fields.put(&magic).put(&VERSION.to_le_bytes()).put(&[0; 4])
    }

    pub(crate) fn put(mut self, bytes: &[u8]) -> Fields {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    pub(crate) fn word(self, value: u64) -> Fields {
        self.put(&value.to_le_bytes())
    }

    pub(crate) fn end(self, value: End) -> Fields {
        let End { position, version, time } = value;
        self.word(position.epoch.0).word(position.seq.0).word(version).word(time.0)
    }

    /// Returns the bytes of the block.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        let checksum = crc32c::crc32c(&self.bytes[..CHECKSUM_AT]);
        self.bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        let mut block = vec![0; BLOCK_BYTES as usize];
        for at in COPIES {
            block[at..at + SECTOR_BYTES].copy_from_slice(&self.bytes);
        }
        block
    }
}

/// The contents of a block, as they were read.
#[derive(Debug)]
pub(crate) enum Block {
    /// A place where nothing was ever written.
    Blank,
    /// A block of which neither copy is right.
    Damaged,
    /// A block of a version that this code does not know.
    Version(u32),
    /// Its fields, behind the magic and the version.
    Good { words: Words, copies: Copies },
}

/// The number of copies of a block's fields that are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    Both,
    /// One; the other was not written before a crash.
    One,
    /// One; the other is damaged.
    OneDamaged,
}

/// Reads fields one after the other.
#[derive(Debug)]
pub(crate) struct Words {
    bytes: Box<[u8]>,
    at: usize,
}

impl Words {
    pub(crate) fn word(&mut self) -> u64 {
        let word = u64_at(&self.bytes, self.at);
        self.at += 8;
        word
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let bytes = self.bytes[self.at..self.at + N].try_into().expect("as many bytes");
        self.at += N;
        bytes
    }

    pub(crate) fn end(&mut self) -> End {
        let position = Position { epoch: Epoch(self.word()), seq: Seq(self.word()) };
        End { position, version: self.word(), time: Hlc(self.word()) }
    }
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// Reads a file's block.
pub(crate) fn read<S: Storage>(storage: &S, file: &S::File, magic: [u8; 8]) -> io::Result<Block> {
    let mut block = vec![0; BLOCK_BYTES as usize];
    if storage.size(file)? < BLOCK_BYTES {
        return Ok(Block::Damaged);
    }
    storage.read_at(file, 0, &mut block)?;
    if block.iter().all(|&byte| byte == 0) {
        return Ok(Block::Blank);
    }
    // The magic, the version and the checksum stay at their places in all versions.
    let copies = COPIES.map(|at| &block[at..at + SECTOR_BYTES]);
    let good = |copy: &[u8]| copy[..8] == magic && crc32c::crc32c(&copy[..CHECKSUM_AT]) == u32_at(copy, CHECKSUM_AT);
    let Some(copy) = copies.into_iter().find(|copy| good(copy)) else { return Ok(Block::Damaged) };
    let version = u32_at(copy, 8);
    if version != VERSION {
        return Ok(Block::Version(version));
    }
    let found = match copies.into_iter().find(|copy| !good(copy)) {
        None => Copies::Both,
        Some(bad) if bad.iter().all(|&byte| byte == 0) => Copies::One,
        Some(_) => Copies::OneDamaged,
    };
    Ok(Block::Good { words: Words { bytes: copy.into(), at: 16 }, copies: found })
}
