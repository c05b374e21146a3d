//! Signing: records that are committed are chained and signed, and records that a crash left unsigned are signed when
//! the log is opened again.

use squall_fabric::NodeId;

use super::{
    ChainValue, End, Log, Options, Position, ReadError, SigningKey, Storage, WriteError, segment,
    sign::Statement,
    signatures::{self, Signature, SignatureFileHeader, SignatureReader, SignatureWriter},
    walk::{Walk, WalkStep, open_segment},
};

/// The records that were signed afterwards, since they had no signature by this member's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedAnew {
    /// The last end of the log that had a signature. The log's beginning, if there was none.
    pub from: End,
    /// The number of records behind that end.
    pub records: u64,
}

/// A member's key and state for signing its log.
#[derive(Debug)]
pub(crate) struct Signing<F> {
    member: NodeId,
    key: SigningKey,
    /// The chain at the log's end. None while it is not known.
    chain: Option<ChainValue>,
    /// The file of the last segment that has begun. None while there is none, or the chain is not known.
    file: Option<SignatureWriter<F>>,
}

impl<F> Signing<F> {
    /// Returns the chain at the log's end, if it is known.
    pub(crate) fn chain(&self) -> Option<ChainValue> {
        self.chain
    }

    fn is_of(&self, header: &SignatureFileHeader) -> bool {
        (header.member, header.key) == (self.member, self.key.public_key())
    }
}

/// An end at which the chain is known.
#[derive(Debug)]
struct Known<F> {
    segment: u64,
    end: End,
    chain: ChainValue,
    /// The file that holds it; None where the chain begins with the log.
    file: Option<SignatureReader<F>>,
}

/// A walk that follows records, and chains them.
#[derive(Debug)]
struct Follower<S: Storage> {
    walk: Option<Walk<S>>,
    end: End,
    chain: ChainValue,
    to: Position,
}

impl<S: Storage> Follower<S> {
    /// Takes in the next record. Returns the number of its segment.
    fn next(&mut self, storage: &S) -> Result<Option<u64>, ReadError> {
        let Some(walk) = &mut self.walk else { return Ok(None) };
        loop {
            match walk.next(storage)? {
                Some(WalkStep::Record { header, .. }) if header.end() <= self.end.position => {}
                Some(WalkStep::Record { header, place }) if header.end() <= self.to => {
                    if !header.may_follow(self.end) {
                        return Err(not_signed(storage, place.segment, self.end));
                    }
                    (self.end, self.chain) = (header.reached(), self.chain.behind(&header, walk.payload()));
                    return Ok(Some(place.segment));
                }
                Some(WalkStep::Damage(damage)) if damage.before.is_some_and(|before| before <= self.end.position) => {}
                Some(WalkStep::Damage(damage)) if damage.after < self.to => {
                    return Err(ReadError::Damaged(Box::new(damage)));
                }
                _ => return Ok(None),
            }
        }
    }
}

fn not_signed<S: Storage>(storage: &S, segment: u64, end: End) -> ReadError {
    ReadError::NotSigned { path: storage.path(&segment::name(segment)), version: end.version }
}

impl<S: Storage> Log<S> {
    /// Signs the records that the log holds, and from here on all that are committed, as this member, with this key. To
    /// be called once, when the log was opened.
    ///
    /// Each batch gets a signature of the [chain](ChainValue) up to its end, once it is durable. A crash may undo
    /// signatures of the last segment. Records without a signature are read and signed now; where the log was not
    /// signed before, those are all.
    ///
    /// After an error about damaged records the next commit tries again.
    pub fn sign_with(&mut self, member: NodeId, key: SigningKey) -> Result<SignedAnew, WriteError> {
        self.check_health()?;
        self.signing = Some(Signing { member, key, chain: None, file: None });
        self.catch_up()
    }

    /// Returns the chain at the log's end, or at the last end before `at`; None where the log is not signed.
    ///
    /// Reads up to a mebibyte of records.
    pub fn chain_at(&self, at: Position) -> Result<Option<ChainValue>, ReadError> {
        if at >= self.end.position
            && let Some(signing) = &self.signing
            && signing.chain.is_some()
        {
            return Ok(signing.chain);
        }
        let segment = self.index.at_position(at).map_or(self.manifest.first, |place| place.segment);
        let known = self.known_chain(segment, at, None)?;
        if known.file.is_none() {
            return Ok(None);
        }
        let mut follower = self.follow(&known, at);
        while follower.next(&self.storage)?.is_some() {}
        Ok(Some(follower.chain))
    }

    /// Returns a chain of the records from `from` up to `to` alone, which begins with it. Two logs that have the same
    /// chain between these two positions hold the same records there. It does not matter where the logs begin, and
    /// whether they are signed.
    pub fn digest(&self, from: Position, to: Position) -> Result<ChainValue, ReadError> {
        if from < self.begin.position {
            return Err(ReadError::Trimmed { asked: from, begin: self.begin.position });
        }
        let Options { cluster, shard, .. } = self.options;
        let end = self.last_end(self.index.at_position(from), |end| end.position <= from)?;
        let chain = ChainValue::begin(cluster, shard, end);
        let mut follower = self.follow(&Known::<S::File> { segment: 0, end, chain, file: None }, to);
        while follower.next(&self.storage)?.is_some() {}
        Ok(follower.chain)
    }

    fn follow(&self, known: &Known<S::File>, to: Position) -> Follower<S> {
        let start = self.index.at_position(known.end.position);
        let walk = self.extent().zip(start).map(|(extent, start)| Walk::new(extent, start));
        Follower { walk, end: known.end, chain: known.chain, to }
    }

    /// Signs the records that have no signature, and finds out the chain at the log's end.
    pub(crate) fn catch_up(&mut self) -> Result<SignedAnew, WriteError> {
        let Some(mut signing) = self.signing.take() else { return Ok(SignedAnew { from: self.end, records: 0 }) };
        (signing.chain, signing.file) = (None, None);
        let result = self.sign_rest(&mut signing);
        self.signing = Some(signing);
        result
    }

    fn sign_rest(&mut self, signing: &mut Signing<S::File>) -> Result<SignedAnew, WriteError> {
        let Some(last) = self.last.as_ref().map(|last| last.header.index) else {
            signing.chain = Some(ChainValue::begin(self.options.cluster, self.options.shard, self.end));
            return Ok(SignedAnew { from: self.end, records: 0 });
        };
        if let Some(damage) = &self.open_damage {
            return Err(ReadError::Damaged(Box::new(damage.clone())).into());
        }
        let known = self.known_chain(last, self.end.position, Some(signing))?;
        let mut follower = self.follow(&known, Position::MAX);
        let (mut segment, from, mut records) = (known.segment, known.end, 0);
        let mut writer = match known.file {
            Some(reader) if signing.is_of(&reader.header) => SignatureWriter::go_on(reader),
            // Another key's signatures of the segment are replaced: each file has one key.
            _ => self.replace_signatures(signing, segment, known.chain)?,
        };
        let mut signed = from;
        loop {
            let (end, chain) = (follower.end, follower.chain);
            let next = follower.next(&self.storage)?;
            while segment < next.unwrap_or(last) {
                self.sign_segment(signing, &mut writer, (signed, end), chain)?;
                segment += 1;
                writer = self.replace_signatures(signing, segment, chain)?;
                signed = end;
            }
            if next.is_none() {
                break;
            }
            records += 1;
        }
        if follower.end != self.end {
            return Err(not_signed(&self.storage, segment, from).into());
        }
        self.sign_segment(signing, &mut writer, (signed, follower.end), follower.chain)?;
        (signing.chain, signing.file) = (Some(follower.chain), Some(writer));
        Ok(SignedAnew { from, records })
    }

    /// Returns the last end at or before `at`, in `segment` or before, at which a file of signatures holds the chain. A
    /// log that is to go on signing takes another key's word only for a segment's beginning.
    fn known_chain(
        &self,
        segment: u64,
        at: Position,
        signing: Option<&Signing<S::File>>,
    ) -> Result<Known<S::File>, ReadError> {
        for segment in (self.manifest.first..=segment).rev() {
            let failed = |source| ReadError::Io { path: self.storage.path(&signatures::name(segment)), source };
            let Ok(mut reader) = SignatureReader::open(&self.storage, segment).map_err(failed)? else { continue };
            if signing.is_some() {
                reader = match reader.reload(&self.storage).map_err(failed)? {
                    Ok(reader) => reader,
                    Err(_) => continue,
                };
            }
            let (_, of) = open_segment(&self.storage, segment)?;
            let header = reader.header;
            if !header.is_of(&of) || header.begin.end.position > at || !header.verifies(&header.begin) {
                continue;
            }
            let last = match signing {
                None => reader.last(&self.storage, at),
                // The log held all records that this key signed, so all its signatures count.
                Some(signing) if signing.is_of(&header) => reader.last(&self.storage, Position::MAX),
                Some(_) => Ok(header.begin),
            };
            let last = last.map_err(failed)?;
            return Ok(Known { segment, end: last.end, chain: last.chain, file: Some(reader) });
        }
        let Options { cluster, shard, .. } = self.options;
        let chain = ChainValue::begin(cluster, shard, self.begin);
        Ok(Known { segment: self.manifest.first, end: self.begin, chain, file: None })
    }

    /// Replaces a segment's file of signatures, durably, by one that has only the beginning's.
    fn replace_signatures(
        &mut self,
        signing: &Signing<S::File>,
        segment: u64,
        chain: ChainValue,
    ) -> Result<SignatureWriter<S::File>, WriteError> {
        let (_, of) = open_segment(&self.storage, segment)?;
        let header = SignatureFileHeader::sign(&of, chain, signing.member, &signing.key);
        let made = signatures::replace(&self.storage, &header, []);
        made.map_err(|source| self.poison("making it", &signatures::name(segment), source))
    }

    /// Signs a segment up to the end where it is chained now, durably.
    fn sign_segment(
        &mut self,
        signing: &Signing<S::File>,
        writer: &mut SignatureWriter<S::File>,
        (signed, end): (End, End),
        chain: ChainValue,
    ) -> Result<(), WriteError> {
        let signature = self.signature(signing, end, chain);
        let written = if signed == end { Ok(()) } else { writer.append(&self.storage, &signature) };
        let written = written.and_then(|()| self.storage.sync(writer.file()));
        written.map_err(|source| self.poison("writing a signature", &signatures::name(writer.segment()), source))
    }

    fn signature(&self, signing: &Signing<S::File>, end: End, chain: ChainValue) -> Signature {
        let Options { cluster, shard, .. } = self.options;
        let statement = Statement { cluster, shard, member: signing.member, end, chain };
        Signature { bytes: signing.key.sign(&statement), chain, end }
    }

    /// Signs the records that were just written and synced. The signature need not be durable yet: the records give the
    /// chain, too.
    pub(crate) fn sign_run(&mut self, chain: ChainValue) -> Result<(), WriteError> {
        let Some(mut signing) = self.signing.take() else { return Ok(()) };
        let signature = self.signature(&signing, self.end, chain);
        signing.chain = Some(chain);
        let writer = signing.file.as_mut().expect("a segment was begun");
        let written = writer.append(&self.storage, &signature);
        let written =
            written.map_err(|source| self.poison("writing a signature", &signatures::name(writer.segment()), source));
        self.signing = Some(signing);
        written
    }

    /// Makes the signatures so far durable, with the names of their files.
    pub(crate) fn sync_signatures(&mut self) -> Result<(), WriteError> {
        let Some(writer) = self.signing.as_ref().and_then(|signing| signing.file.as_ref()) else { return Ok(()) };
        let synced = self.storage.sync(writer.file()).and_then(|()| self.storage.sync_directory());
        let name = signatures::name(writer.segment());
        synced.map_err(|source| self.poison("syncing signatures", &name, source))
    }

    /// Begins the file of a segment that begins. The files before must be durable.
    pub(crate) fn begin_signatures(&mut self, of: &segment::SegmentHeader) -> Result<(), WriteError> {
        let Some(signing) = &mut self.signing else { return Ok(()) };
        let Some(chain) = signing.chain else { return Ok(()) };
        let header = SignatureFileHeader::sign(of, chain, signing.member, &signing.key);
        match SignatureWriter::begin(&self.storage, &header) {
            Ok(writer) => signing.file = Some(writer),
            Err(source) => return Err(self.poison("making it", &signatures::name(of.index), source)),
        }
        Ok(())
    }

    /// Makes, durably, the file of a segment with which the log is to begin anew, with `chain` as its beginning.
    pub(crate) fn sign_beginning(
        &mut self,
        of: &segment::SegmentHeader,
        chain: Option<ChainValue>,
    ) -> Result<(), WriteError> {
        let Some(mut signing) = self.signing.take() else { return Ok(()) };
        let chain = chain.unwrap_or_else(|| ChainValue::begin(of.cluster, of.shard, of.begin));
        let header = SignatureFileHeader::sign(of, chain, signing.member, &signing.key);
        let made = signatures::replace(&self.storage, &header, []);
        let made = made.map(|writer| (signing.chain, signing.file) = (Some(chain), Some(writer)));
        self.signing = Some(signing);
        made.map_err(|source| self.poison("making it", &signatures::name(of.index), source))
    }
}
