//! The check of a whole log: of each record by itself, and of all of them against the members' signatures.

use std::path::PathBuf;

use squall_fabric::NodeId;

use super::{
    ChainValue, Damage, End, Log, Missing, PublicKey, ReadError, Storage,
    block::VERSION,
    index::RecordStart,
    record,
    segment::RECORDS_AT,
    signatures::{self, NoSignatures, Signature, SignatureReader, SignatureSlot},
    walk::{Walk, WalkStep, open_segment},
};

/// The most damages, and the most flaws, that a check lists.
const MAX_LISTED: usize = 1000;

/// The key with which a member signs, as the caller of a check knows it from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberKey {
    /// The member.
    pub member: NodeId,
    /// Its key.
    pub key: PublicKey,
}

/// The findings of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The number of records that are good.
    pub records: u64,
    /// The number of bytes that were read.
    pub bytes: u64,
    /// The damages, in the order of the log: the first thousand.
    pub damage: Vec<Damage>,
    /// The records that were acknowledged, and are missing at the log's end.
    pub missing: Option<Missing>,
    /// The chain at the log's end. It began with the log where that is not signed. None if it was not asked for, or if
    /// damage leaves it unknown.
    pub chain: Option<ChainValue>,
    /// The members that signed, each with the end up to which it did: usually one member, the log's own.
    pub signed: Vec<Signed>,
    /// The flaws of signatures, and of records by their signatures, in the order of the log: the first thousand.
    pub flaws: Vec<Flaw>,
}

/// The part of a log that a member has signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The member that the signatures name.
    pub member: NodeId,
    /// The key of its signatures.
    pub key: PublicKey,
    /// Whether this key was given for this member. If not, the signatures do not prove that the member made them.
    pub is_known: bool,
    /// The first end that has a good signature.
    pub from: End,
    /// The last end that has a good signature: the holder of the key vouches for all records up to there, since the
    /// chain began.
    pub to: End,
    /// The number of good signatures.
    pub signatures: u64,
}

/// A contradiction between a log and its signatures.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// Records are not those that were signed: changed, exchanged, put in or taken out.
    #[error("the records behind version {after}, up to version {version}, are not those that node {} signed at {}, offset {offset}: \
             they were altered", member.0, path.display())]
    Altered {
        /// The file of signatures.
        path: PathBuf,
        /// The offset of the signature in the file, in bytes; 0 for the first block.
        offset: u64,
        /// The member that signed.
        member: NodeId,
        /// The last version up to which records and signatures agree.
        after: u64,
        /// The version of the signature.
        version: u64,
    },
    /// The records can't be checked, since some of them are damaged.
    #[error("the records behind version {after}, up to version {version}, can't be checked against the signature at {}, offset {offset}, \
             since there are damaged ones among them: replace those from another member's log", path.display())]
    Unchecked {
        /// The file of signatures.
        path: PathBuf,
        /// The offset of the next signature in the file, in bytes; 0 for the first block.
        offset: u64,
        /// The last version up to which records and signatures agree.
        after: u64,
        /// The version of the signature.
        version: u64,
    },
    /// The records of a signature are not there.
    #[error("node {} signed version {version} at {}, offset {offset}, and the log ends at version {end}: its last records were taken \
             away", member.0, path.display())]
    Beyond {
        /// The file of signatures.
        path: PathBuf,
        /// The offset of the signature in the file, in bytes; 0 for the first block.
        offset: u64,
        /// The member that signed.
        member: NodeId,
        /// The version of the signature.
        version: u64,
        /// The version at which the log ends.
        end: u64,
    },
    /// A signature is not one by the key that its file names.
    #[error("{}, offset {offset}: the signature of version {version} is not by the key that node {} uses there: it was altered",
            path.display(), member.0)]
    Forged {
        /// The file of signatures.
        path: PathBuf,
        /// The offset of the signature in the file, in bytes; 0 for the first block.
        offset: u64,
        /// The member that the file names.
        member: NodeId,
        /// The version of the signature.
        version: u64,
    },
    /// A signature's bytes are not those that were written.
    #[error("{}, offset {offset}: a signature is damaged", path.display())]
    Damaged {
        /// The file of signatures.
        path: PathBuf,
        /// The offset of the signature in the file, in bytes; 0 for the first block.
        offset: u64,
    },
    /// Keys were given, and the file's is not among them.
    #[error("{} has signatures for node {} by the key {key}, which is not one that was given for it", path.display(), member.0)]
    UnknownKey {
        /// The file of signatures.
        path: PathBuf,
        /// The member that the file names.
        member: NodeId,
        /// The file's key.
        key: PublicKey,
    },
    /// A segment has no signatures, though others have.
    #[error("{} is missing: its segment has no signatures, and others have", .0.display())]
    Missing(PathBuf),
    /// Signatures are not those of the segment.
    #[error("{} has signatures of another segment, or of another log", .0.display())]
    Foreign(PathBuf),
    /// A file is of another version.
    #[error("{} is of format {found}, and this version of squall is for format {VERSION}: use the one that wrote it", path.display())]
    Version {
        /// The file of signatures.
        path: PathBuf,
        /// The format that it names.
        found: u32,
    },
}

impl<S: Storage> Log<S> {
    /// Checks every record by itself. `progress` is called now and then with the number of bytes that were read.
    pub fn verify(&self, progress: impl FnMut(u64)) -> Result<Verified, ReadError> {
        self.verify_with(None, progress)
    }

    /// Checks every record, chains them all, and checks the signatures that lie beside them with the given keys.
    /// Without keys, they are checked with the keys that the files name. That shows damage, but does not show that the
    /// named members signed.
    ///
    /// This proves that the holder of a key had these records in its log, unaltered, since the chain began. It does not
    /// prove that there were no later records of which nothing is here.
    pub fn verify_signed(&self, keys: &[MemberKey], progress: impl FnMut(u64)) -> Result<Verified, ReadError> {
        let failed = |source| ReadError::Io { path: self.storage.path(""), source };
        let names = self.storage.list().map_err(failed)?;
        let is_signed = names.iter().any(|name| signatures::index_of(name).is_some());
        // The first file of signatures holds the chain of the records that were trimmed.
        let begins = self.begin == End::START || !is_signed;
        let begin = ChainValue::begin(self.options.cluster, self.options.shard, self.begin);
        let check = Check {
            log: self,
            keys,
            is_signed,
            segment: self.manifest.first,
            file: None,
            next: None,
            end: self.begin,
            chain: begins.then_some(begin),
            agreed: self.begin,
            signed: Vec::new(),
            flaws: Vec::new(),
        };
        self.verify_with(Some(check), progress)
    }

    fn verify_with(
        &self,
        mut check: Option<Check<'_, S>>,
        mut progress: impl FnMut(u64),
    ) -> Result<Verified, ReadError> {
        let mut found = Verified::default();
        if let Some(extent) = self.extent() {
            let start = RecordStart { segment: self.manifest.first, offset: RECORDS_AT, end: self.begin, record: 0 };
            let mut walk = Walk::new(extent, start);
            let mut segment = start.segment;
            if let Some(check) = &mut check {
                check.enter()?;
            }
            while let Some(step) = walk.next(&self.storage)? {
                found.bytes = walk.passed();
                if walk.place().segment != segment {
                    segment = walk.place().segment;
                    progress(found.bytes);
                }
                if let Some(check) = &mut check {
                    check.pass_to(segment)?;
                    match &step {
                        WalkStep::Record { header, .. } => check.record(header, walk.payload())?,
                        WalkStep::Damage(_) => check.chain = None,
                    }
                }
                match step {
                    WalkStep::Record { .. } => found.records += 1,
                    WalkStep::Damage(damage) if found.damage.len() < MAX_LISTED => found.damage.push(damage),
                    WalkStep::Damage(_) => {}
                }
            }
            found.damage.extend(self.open_damage.clone());
            if let Some(check) = &mut check {
                check.pass_to(extent.last)?;
                check.leave()?;
            }
        }
        if let Some(check) = check {
            (found.chain, found.signed, found.flaws) = (check.chain, check.signed, check.flaws);
            found.flaws.truncate(MAX_LISTED);
        }
        found.missing = self.missing();
        progress(found.bytes);
        Ok(found)
    }
}

/// A check of a log's records against its signatures, as a walk passes them.
#[derive(Debug)]
struct Check<'a, S: Storage> {
    log: &'a Log<S>,
    keys: &'a [MemberKey],
    /// Whether there is any signature.
    is_signed: bool,
    /// The segment that is walked.
    segment: u64,
    /// The segment's signatures, and the next of them with its offset.
    file: Option<SignatureReader<S::File>>,
    next: Option<(u64, Signature)>,
    /// The log's end behind the records that were passed, and the chain there. The chain is None behind damage, until a
    /// signature gives it again.
    end: End,
    chain: Option<ChainValue>,
    /// The last end at which a signature was right.
    agreed: End,
    signed: Vec<Signed>,
    flaws: Vec<Flaw>,
}

impl<S: Storage> Check<'_, S> {
    fn path(&self) -> PathBuf {
        self.log.storage.path(&signatures::name(self.segment))
    }

    /// Returns whether the segment is the log's last.
    fn is_last(&self) -> bool {
        self.log.last.as_ref().is_some_and(|last| last.header.index == self.segment)
    }

    /// Goes on with a later segment, or with the same.
    fn pass_to(&mut self, segment: u64) -> Result<(), ReadError> {
        while self.segment < segment {
            self.leave()?;
            self.segment += 1;
            self.enter()?;
        }
        Ok(())
    }

    /// Begins the segment.
    fn enter(&mut self) -> Result<(), ReadError> {
        let path = self.path();
        let (_, of) = open_segment(&self.log.storage, self.segment)?;
        if self.chain.is_none() {
            self.end = of.begin;
        }
        let is_last = self.is_last();
        let found = SignatureReader::open(&self.log.storage, self.segment);
        self.file = match found.map_err(|source| ReadError::Io { path: path.clone(), source })? {
            Ok(reader) if reader.header.is_of(&of) => Some(reader),
            Ok(_) => self.flawed(Flaw::Foreign(path)),
            Err(NoSignatures::Version(found)) => self.flawed(Flaw::Version { path, found }),
            // The file was to be synced with records that were lost.
            Err(NoSignatures::Absent | NoSignatures::Blank) if is_last => None,
            Err(NoSignatures::Absent) if !self.is_signed => None,
            Err(NoSignatures::Absent) => self.flawed(Flaw::Missing(path)),
            Err(NoSignatures::Blank | NoSignatures::Damaged) => self.flawed(Flaw::Damaged { path, offset: 0 }),
        };
        let Some(reader) = &self.file else { return Ok(()) };
        let (half_damaged, header) = (reader.half_damaged, reader.header);
        let path = self.path();
        if half_damaged {
            self.flaws.push(Flaw::Damaged { path: path.clone(), offset: 0 });
        }
        let (member, key) = (header.member, header.key);
        let is_new = !self.signed.iter().any(|signed| (signed.member, signed.key) == (member, key));
        if is_new {
            let is_known = self.keys.contains(&MemberKey { member, key });
            let (from, to) = (header.begin.end, header.begin.end);
            self.signed.push(Signed { member, key, is_known, from, to, signatures: 0 });
            if !is_known && !self.keys.is_empty() {
                self.flaws.push(Flaw::UnknownKey { path, member, key });
            }
        }
        self.next = Some((0, header.begin));
        self.meet()
    }

    fn flawed(&mut self, flaw: Flaw) -> Option<SignatureReader<S::File>> {
        self.flaws.push(flaw);
        None
    }

    /// Passes a record.
    fn record(&mut self, header: &record::RecordHeader, payload: &[u8]) -> Result<(), ReadError> {
        self.end = header.reached();
        self.chain = self.chain.map(|chain| chain.behind(header, payload));
        self.meet()
    }

    /// Checks the signatures of the records that were passed.
    fn meet(&mut self) -> Result<(), ReadError> {
        while let Some((offset, signature)) = self.next
            && signature.end.position <= self.end.position
        {
            self.judge(offset, &signature);
            self.advance()?;
        }
        Ok(())
    }

    fn advance(&mut self) -> Result<(), ReadError> {
        self.next = None;
        let path = self.path();
        let Some(reader) = &mut self.file else { return Ok(()) };
        loop {
            match reader.next(&self.log.storage) {
                Ok(Some(SignatureSlot::Signature { offset, signature })) => self.next = Some((offset, signature)),
                Ok(Some(SignatureSlot::Lost)) => continue,
                Ok(Some(SignatureSlot::Damaged { offset })) => {
                    self.flaws.push(Flaw::Damaged { path: path.clone(), offset });
                    continue;
                }
                Ok(None) => {}
                Err(source) => return Err(ReadError::Io { path, source }),
            }
            return Ok(());
        }
    }

    fn judge(&mut self, offset: u64, signature: &Signature) {
        let Some(header) = self.file.as_ref().map(|reader| reader.header) else { return };
        let (path, member, version) = (self.path(), header.member, signature.end.version);
        if !header.verifies(signature) {
            self.flaws.push(Flaw::Forged { path, offset, member, version });
            return;
        }
        let after = self.agreed.version;
        let altered = |path| Flaw::Altered { path, offset, member, after, version };
        if signature.end.position != self.end.position {
            // No record ends there; behind damage, one of the damaged ones may have.
            if self.chain.is_some() {
                self.flaws.push(altered(path));
            }
            return;
        }
        match self.chain {
            Some(chain) if (chain, self.end) != (signature.chain, signature.end) => self.flaws.push(altered(path)),
            None if version > after => self.flaws.push(Flaw::Unchecked { path, offset, after, version }),
            _ => {}
        }
        (self.chain, self.agreed) = (Some(signature.chain), signature.end);
        let of_key = |signed: &&mut Signed| (signed.member, signed.key) == (member, header.key);
        if let Some(signed) = self.signed.iter_mut().find(of_key) {
            signed.to = signature.end;
            signed.signatures += 1;
        }
    }

    /// Ends the segment.
    fn leave(&mut self) -> Result<(), ReadError> {
        // Its owner may have appended since; or the segment ends in damage without an end.
        let is_open = self.is_last() && (self.log.is_live() || self.log.open_damage.is_some());
        while let Some((offset, signature)) = self.next {
            let member = self.file.as_ref().map(|reader| reader.header.member);
            if let Some(member) = member.filter(|_| self.chain.is_some() && !is_open) {
                let (path, version, end) = (self.path(), signature.end.version, self.end.version);
                self.flaws.push(Flaw::Beyond { path, offset, member, version, end });
            }
            self.advance()?;
        }
        Ok(())
    }
}
