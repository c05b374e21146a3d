//! The records that a log should hold, and random ones.

use fastrand::Rng;
use ring::digest::{SHA256, digest};
use squall_fabric::NodeId;
use squall_membership::{ClusterId, Epoch, Seq, ShardId};
use squall_ordered::{
    Payload,
    log::{
        AppendError, Appender, Body, ChainValue, Damage, End, Hlc, Log, MemberKey, Opened, Options, Position,
        ReadError, Record, SigningKey, SimStorage, Storage, ViewRecord,
    },
};

/// A record as a test keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) position: Position,
    pub(crate) time: Hlc,
    pub(crate) version: u64,
    pub(crate) body: KeptBody,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeptBody {
    Message(NodeId, Vec<u8>),
    View(ViewRecord),
}

impl Kept {
    pub(crate) fn of(record: &Record<'_>) -> Kept {
        let body = match &record.body {
            Body::Message { sender, payload } => KeptBody::Message(*sender, payload.to_vec()),
            Body::View(view) => KeptBody::View(view.clone()),
        };
        Kept { position: record.position, time: record.time, version: record.version, body }
    }

    /// The log's end behind the record.
    pub(crate) fn reached(&self) -> End {
        End { position: self.end(), version: self.version, time: self.time }
    }

    pub(crate) fn end(&self) -> Position {
        match self.body {
            KeptBody::Message(..) => Position::new(self.position.epoch, Seq(self.position.seq.0 + 1)),
            KeptBody::View(_) => self.position,
        }
    }

    pub(crate) fn append_to(&self, appender: &mut Appender) -> Result<End, AppendError> {
        match &self.body {
            KeptBody::Message(sender, bytes) => {
                appender.append(self.position, self.time, *sender, Payload::kept(bytes))
            }
            KeptBody::View(view) => appender.append_view(self.position.epoch, self.time, view),
        }
    }
}

/// The member that signs.
pub(crate) const SIGNER: NodeId = NodeId(2);

pub(crate) fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

/// A member and its key, as the caller of a check knows them.
pub(crate) fn known(member: NodeId, seed: u8) -> MemberKey {
    MemberKey { member, key: key(seed).public_key() }
}

/// The chain behind all records of a log, computed as docs/src/internals/log-format.md says. It is `begin` before the
/// first record.
pub(crate) fn chain_of<S: Storage + Clone>(log: &Log<S>, begin: ChainValue) -> ChainValue {
    let records = log.export(log.begin().position, Position::MAX, usize::MAX).expect("it is well").bytes;
    let (mut chain, mut rest) = (begin, &records[..]);
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[..4].try_into().expect("4 bytes")) as usize;
        let bytes = [&chain.0, &rest[..48], &rest[64..64 + len]].concat();
        chain = ChainValue(digest(&SHA256, &bytes).as_ref().try_into().expect("32 bytes"));
        rest = &rest[(64 + len).next_multiple_of(16)..];
    }
    chain
}

/// The chain of a log that holds nothing yet.
pub(crate) fn chain_at_start() -> ChainValue {
    ChainValue::begin(ClusterId(7), ShardId(3), End::START)
}

/// A seed that is printed if the test fails.
pub(crate) struct Seed(pub(crate) u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("again: SQUALL_SEED={}", self.0);
        }
    }
}

pub(crate) fn position(epoch: u64, seq: u64) -> Position {
    Position::new(Epoch(epoch), Seq(seq))
}

pub(crate) fn options(segment_bytes: u64, batch_bytes: usize) -> Options {
    Options { segment_bytes, batch_bytes, ..Options::new(ClusterId(7), ShardId(3)) }
}

/// Random options, with which segments are passed often.
pub(crate) fn any_options(rng: &mut Rng) -> Options {
    options(4096 * rng.u64(2..9), rng.usize(1..12_000))
}

pub(crate) fn open(storage: &SimStorage, options: Options) -> Opened<SimStorage> {
    Log::open(storage.clone(), options, &mut Rng::with_seed(storage.changes())).expect("it opens")
}

/// A random record that may follow a log that ends at `end`. Its payload has no zero bytes, so that no damage looks
/// torn: see `Log::open`.
pub(crate) fn next_record(rng: &mut Rng, log: End) -> Kept {
    let End { position: end, version, time } = log;
    let time = Hlc(time.0 + rng.u64(1..1000));
    if end.epoch.0 == 0 || rng.u32(..20) == 0 {
        let members = (1..=rng.u32(..5)).map(NodeId).collect();
        let position = position(end.epoch.0 + rng.u64(1..3), 0);
        return Kept {
            position,
            time,
            version,
            body: KeptBody::View(ViewRecord { ended: end, members, ..ViewRecord::default() }),
        };
    }
    let len = match rng.u32(..100) {
        0 => rng.usize(..40_000),
        1..20 => rng.usize(..3000),
        _ => rng.usize(..200),
    };
    let bytes = (0..len).map(|_| rng.u8(1..)).collect();
    let position = Position::new(end.epoch, Seq(end.seq.0 + rng.u64(..3)));
    Kept { position, time, version: version + 1, body: KeptBody::Message(NodeId(rng.u32(..5)), bytes) }
}

/// Random records from the beginning of a log on, `count` of them.
pub(crate) fn records(rng: &mut Rng, count: usize) -> Vec<Kept> {
    let mut records: Vec<Kept> = Vec::new();
    for _ in 0..count {
        let end = records.last().map_or(End::START, Kept::reached);
        records.push(next_record(rng, end));
    }
    records
}

/// Writes records, in batches as full as they get, or of `most` records.
pub(crate) fn write<S: Storage>(log: &mut Log<S>, records: &[Kept], most: usize) {
    let mut appender = log.appender();
    let mut commit = |appender: &mut Appender| {
        if let Some(mut batch) = appender.take_batch() {
            let end = batch.end();
            assert_eq!(log.commit(&mut batch).expect("the disk is well"), end);
            log.prepare().expect("the disk is well");
            appender.give_back(batch);
        }
    };
    for (nth, record) in records.iter().enumerate() {
        if record.append_to(&mut appender).is_err() || nth % most == 0 {
            commit(&mut appender);
            if appender.end() != record.reached() {
                record.append_to(&mut appender).expect("it fits into an empty batch");
            }
        }
    }
    commit(&mut appender);
}

/// All records that a log shows, and the damages that it names.
pub(crate) fn read_all<S: Storage + Clone>(log: &Log<S>) -> (Vec<Kept>, Vec<Damage>) {
    let mut reader = log.read(log.begin().position, Position::MAX).expect("from its beginning");
    let (mut records, mut damage) = (Vec::new(), Vec::new());
    loop {
        match reader.next_record() {
            Ok(Some(record)) => records.push(Kept::of(&record)),
            Ok(None) => return (records, damage),
            Err(ReadError::Damaged(found)) => damage.push(*found),
            Err(error) => panic!("{error}"),
        }
    }
}
