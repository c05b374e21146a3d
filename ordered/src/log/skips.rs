//! The commands that no member applies: a list of them, beside the log, which an operator began.
//!
//! The records stay in the log as they are. The manifest names the file that has the list, so a list comes into force
//! together with the rest of the manifest. The commands that a cut takes away leave the list in the same moment.

use std::{io, sync::Arc};

use ring::digest::{Context, SHA256};
use squall_membership::{Epoch, Seq};

use super::{
    Body, Hlc, Log, Position, Record, Storage, WriteError,
    block::{self, BLOCK_BYTES, Block, Fields, u32_at, u64_at},
    manifest::Manifest,
    record::{RecordHeader, RecordKind},
};

const MAGIC: [u8; 8] = *b"squallSK";

/// The first bytes of the hash, so that a digest is not mistaken for another hash of the same bytes.
const BEGIN: &[u8; 16] = b"squall log skip1";

/// The most commands that a list has.
pub const MAX_SKIPS: usize = 256;

/// The longest reason, in bytes.
pub const MAX_REASON_BYTES: usize = 1000;

/// The length of an entry before its reason, in bytes.
const FIXED_BYTES: usize = 8 + 8 + 8 + 32 + 8 + 4;

/// The most bytes that a list takes.
const MAX_BYTES: usize = MAX_SKIPS * (FIXED_BYTES + MAX_REASON_BYTES);

/// A command that stays in the log and that no member applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    /// The command's place.
    pub position: Position,
    /// The command's version.
    pub version: u64,
    /// The time at which an operator had it skipped.
    pub time: Hlc,
    /// The operator's reason.
    pub reason: String,
    /// A digest of the part of its record that is alike in all members' logs. With it, the command can't be mistaken
    /// for another one that takes its version after a cut.
    digest: [u8; 32],
}

impl Skip {
    /// Makes the skip of a record. None if the record is no message.
    pub fn new(record: &Record<'_>, time: Hlc, reason: String) -> Option<Skip> {
        let digest = digest(record)?;
        Some(Skip { position: record.position, version: record.version, time, reason, digest })
    }

    /// Returns whether it is about this record.
    pub fn is_of(&self, record: &Record<'_>) -> bool {
        self.version == record.version && digest(record) == Some(self.digest)
    }

    /// Returns whether another skip is about the same record, of any time and reason.
    fn is_same(&self, other: &Skip) -> bool {
        (self.position, self.version, self.digest) == (other.position, other.version, other.digest)
    }
}

fn digest(record: &Record<'_>) -> Option<[u8; 32]> {
    let Body::Message { sender, payload } = record.body else { return None };
    let &Record { position, time, version, .. } = record;
    let payload_bytes = payload.len() as u32;
    let (kind, batch, acknowledged, payload_checksum) = (RecordKind::Message, 0, 0, 0);
    let header =
        RecordHeader { kind, payload_bytes, position, time, version, sender, batch, acknowledged, payload_checksum };
    let mut context = Context::new(&SHA256);
    context.update(BEGIN);
    context.update(&header.shared());
    context.update(payload);
    Some(context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes"))
}

/// The commands of a log that no member applies, in their order. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skips(Arc<[Skip]>);

impl Skips {
    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns an iterator over all of them.
    pub fn iter(&self) -> impl Iterator<Item = &Skip> {
        self.0.iter()
    }

    /// Returns the skip of this version.
    pub fn get(&self, version: u64) -> Option<&Skip> {
        self.0.binary_search_by_key(&version, |skip| skip.version).ok().map(|at| &self.0[at])
    }

    /// Returns whether a record is one that no member applies.
    pub fn has(&self, record: &Record<'_>) -> bool {
        self.get(record.version).is_some_and(|skip| skip.is_of(record))
    }

    /// Returns the skips that lie before a position.
    pub fn before(&self, position: Position) -> Skips {
        self.only(|skip| skip.position < position)
    }

    /// Returns the skips for which `is_wanted` holds.
    pub fn only(&self, is_wanted: impl Fn(&Skip) -> bool) -> Skips {
        Skips(self.iter().filter(|skip| is_wanted(skip)).cloned().collect())
    }

    /// Returns whether both lists have the same commands, whatever the reasons.
    pub fn is_alike(&self, others: &Skips) -> bool {
        self.0.len() == others.0.len() && self.iter().zip(others.iter()).all(|(a, b)| a.is_same(b))
    }

    /// Returns a digest of them, the same where they [are alike](Skips::is_alike), and 0 where there are none.
    pub fn digest(&self) -> u64 {
        let mut context = Context::new(&SHA256);
        self.iter().for_each(|skip| context.update(&skip.digest));
        let digest = context.finish();
        if self.is_empty() { 0 } else { u64_at(digest.as_ref(), 0).max(1) }
    }

    /// Returns the list with one more. None if its version is there already, or there is no room.
    pub(crate) fn with(&self, skip: Skip) -> Option<Skips> {
        if self.get(skip.version).is_some() || self.0.len() >= MAX_SKIPS {
            return None;
        }
        let mut all: Vec<Skip> = self.iter().cloned().chain([skip]).collect();
        all.sort_unstable_by_key(|skip| skip.version);
        Some(Skips(all.into()))
    }

    /// Returns the bytes of the list, as a file has them and as they travel.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for Skip { position, version, time, reason, digest } in self.iter() {
            [position.epoch.0, position.seq.0, *version].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
            bytes.extend_from_slice(digest);
            bytes.extend(time.0.to_le_bytes());
            bytes.extend((reason.len() as u32).to_le_bytes());
            bytes.extend_from_slice(reason.as_bytes());
        }
        bytes
    }

    /// Reads a list. None if the bytes are no list.
    pub fn decode(mut bytes: &[u8]) -> Option<Skips> {
        let mut all: Vec<Skip> = Vec::new();
        while !bytes.is_empty() {
            let (fixed, rest) = bytes.split_at_checked(FIXED_BYTES)?;
            let (reason, rest) = rest.split_at_checked(u32_at(fixed, 64) as usize)?;
            let position = Position { epoch: Epoch(u64_at(fixed, 0)), seq: Seq(u64_at(fixed, 8)) };
            let skip = Skip {
                position,
                version: u64_at(fixed, 16),
                digest: fixed[24..56].try_into().ok()?,
                time: Hlc(u64_at(fixed, 56)),
                reason: String::from_utf8(reason.to_vec()).ok()?,
            };
            let follows = all.last().is_none_or(|last| last.version < skip.version && last.position < skip.position);
            if !follows || all.len() == MAX_SKIPS || reason.len() > MAX_REASON_BYTES {
                return None;
            }
            all.push(skip);
            bytes = rest;
        }
        Some(Skips(all.into()))
    }
}

/// Returns the name of the file with a number.
pub(crate) fn name(number: u64) -> String {
    format!("skips-{number}")
}

/// Returns the number of a file.
pub(crate) fn number_of(file: &str) -> Option<u64> {
    file.strip_prefix("skips-")?.parse().ok()
}

/// Reads the list that a manifest names. None if it is not there, or damaged.
pub(crate) fn read<S: Storage>(storage: &S, manifest: &Manifest) -> io::Result<Option<Skips>> {
    if manifest.skips == 0 {
        return Ok(Some(Skips::default()));
    }
    let file = match storage.open(&name(manifest.skips)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let Block::Good { mut words, .. } = block::read(storage, &file, MAGIC)? else { return Ok(None) };
    let is_own = words.word() == manifest.cluster.0 && words.word() == u64::from(manifest.shard.0);
    let (bytes, checksum) = (words.word(), words.word());
    if !is_own || bytes > MAX_BYTES as u64 || storage.size(&file)? < BLOCK_BYTES + bytes {
        return Ok(None);
    }
    let mut contents = vec![0; bytes as usize];
    storage.read_at(&file, BLOCK_BYTES, &mut contents)?;
    let is_right = u64::from(crc32c::crc32c(&contents)) == checksum;
    Ok(Skips::decode(&contents).filter(|_| is_right))
}

impl<S: Storage> Log<S> {
    /// Returns the commands that no member applies.
    pub fn skips(&self) -> &Skips {
        &self.skips
    }

    /// Replaces the list of commands that no member applies, durably. It may have commands behind the log's end, which
    /// are still to come.
    ///
    /// Fails if the log may not be changed any more, or if the file system fails.
    pub fn set_skips(&mut self, skips: Skips) -> Result<(), WriteError> {
        self.check_health()?;
        if skips == self.skips {
            return Ok(());
        }
        self.stage_skips(skips)?;
        self.put(self.manifest)?;
        self.remove_old_skips();
        Ok(())
    }

    /// Prepares a list, which comes into force with the next manifest.
    pub(crate) fn stage_skips(&mut self, skips: Skips) -> Result<(), WriteError> {
        if skips == self.skips {
            return Ok(());
        }
        if skips.is_empty() {
            (self.skips, self.manifest.skips) = (skips, 0);
            return Ok(());
        }
        let names = self.storage.list().map_err(|source| self.poison("listing its files", "", source))?;
        let number = names.iter().filter_map(|name| number_of(name)).max().unwrap_or(0).max(self.manifest.skips) + 1;
        let written = self.write_skips(number, &skips);
        written.map_err(|source| self.poison("listing commands that are not applied", &name(number), source))?;
        (self.skips, self.manifest.skips) = (skips, number);
        Ok(())
    }

    fn write_skips(&self, number: u64, skips: &Skips) -> io::Result<()> {
        let contents = skips.encode();
        let mut bytes = Fields::new(MAGIC)
            .word(self.options.cluster.0)
            .word(u64::from(self.options.shard.0))
            .word(contents.len() as u64)
            .word(u64::from(crc32c::crc32c(&contents)))
            .finish();
        bytes.extend_from_slice(&contents);
        let new = format!("{}.new", name(number));
        let file = self.storage.create(&new, bytes.len() as u64)?;
        self.storage.write_at(&file, 0, &bytes)?;
        self.storage.sync(&file)?;
        self.storage.rename(&new, &name(number))?;
        self.storage.sync_directory()
    }

    /// Removes lists that are no more in force. Those that stay are removed when the log is opened.
    pub(crate) fn remove_old_skips(&self) {
        let names = self.storage.list().unwrap_or_default();
        let old = names.iter().filter(|name| number_of(name).is_some_and(|number| number != self.manifest.skips));
        old.for_each(|name| _ = self.storage.remove(name));
    }

    /// Removes the commands that the log does not have from the list, when the log is opened. Not if the log lacks
    /// records that it had, since those may come back.
    pub(crate) fn prune_skips(&mut self) -> Result<(), WriteError> {
        let is_whole = self.open_damage.is_none() && self.missing().is_none() && !self.is_doubtful();
        if self.look.is_some() || !is_whole {
            return Ok(());
        }
        self.set_skips(self.skips.before(self.end.position))
    }
}

#[cfg(test)]
mod tests {
    use squall_fabric::NodeId;

    use super::*;

    fn record(version: u64, payload: &[u8]) -> Record<'_> {
        let body = Body::Message { sender: NodeId(2), payload };
        Record { position: Position::new(Epoch(1), Seq(version)), time: Hlc(100 + version), version, body }
    }

    fn skip(version: u64) -> Skip {
        Skip::new(&record(version, b"abc"), Hlc(7), format!("reason {version}")).expect("it is a message")
    }

    #[test]
    fn a_list_travels_as_it_is() {
        let list = [5, 3, 9].into_iter().fold(Skips::default(), |list, version| list.with(skip(version)).unwrap());
        assert_eq!(Skips::decode(&list.encode()), Some(list.clone()));
        assert_eq!(list.iter().map(|skip| skip.version).collect::<Vec<_>>(), [3, 5, 9]);
        assert!(list.with(skip(5)).is_none(), "it is there");
        for cut in 1..list.encode().len() {
            let decoded = Skips::decode(&list.encode()[..cut]);
            assert!(decoded.is_none_or(|part| part.0.len() < 3), "{cut}");
        }
    }

    #[test]
    fn an_entry_is_about_one_record_and_no_other_of_its_number() {
        let list = Skips::default().with(skip(3)).unwrap();
        assert!(list.has(&record(3, b"abc")));
        assert!(!list.has(&record(3, b"abd")) && !list.has(&record(4, b"abc")));
        let later = Record { time: Hlc(5000), ..record(3, b"abc") };
        assert!(!list.has(&later), "submitted again");
    }

    #[test]
    fn lists_are_alike_whose_commands_are() {
        let (one, other) = (skip(3), Skip { reason: "another".to_owned(), time: Hlc(9), ..skip(3) });
        let [one, other] = [one, other].map(|skip| Skips::default().with(skip).unwrap());
        assert!(one.is_alike(&other) && one.digest() == other.digest() && one != other);
        assert!(!one.is_alike(&Skips::default()));
        assert_eq!(Skips::default().digest(), 0);
        assert_ne!(one.digest(), Skips::default().with(skip(4)).unwrap().digest());
        assert!(one.before(Position::new(Epoch(1), Seq(3))).is_empty());
        assert_eq!(one.before(Position::new(Epoch(1), Seq(4))), one);
    }
}
