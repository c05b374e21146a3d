//! Logs, earlier states and snapshots of a group whose delivery thread is the test.

mod crashes;
mod keeper;
mod past;
mod reading;

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicU32, Ordering},
    },
};

use rkyv::{Archive, Archived, Serialize, util::AlignedVec};
use squall_fabric::{NodeId, Waker};
use squall_membership::{ClusterId, Epoch, Seq, ShardId};
use squall_ordered::{
    Message, Payload,
    log::{End, Hlc, Log, Options, Position, SimStorage, Skips, ViewRecord},
};

use super::{History, HistoryError, LogFollower, LogReader, Policy, past::Moment};
use crate::{
    capture::{
        exchange::{ReplicaStatus, StateExchange},
        state::{Captured, Frontier, LastView, Reached},
    },
    durable::{
        disk::Disk,
        log_writer::LogWriter,
        recovery::replay,
        snapshot_store::SnapshotStore,
        storage_thread::{StorageThread, WriterPark},
    },
    replica::{
        replicated::{Applied, Logged, Replicated, Stamp},
        service::Service,
        snapshot::Snapshot,
        view_change::ViewChange,
    },
};

const ME: NodeId = NodeId(1);

/// The size of a log's segment in these tests, in bytes.
const SEGMENT_BYTES: u64 = 8 << 10;

/// A service that remembers its commands, in order, as one number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tape {
    applied: u64,
    digest: u64,
    views: u64,
    /// The padding of its snapshot, in bytes.
    filling: usize,
}

#[derive(Archive, Serialize)]
struct Note(u64, String);

impl Tape {
    fn take_in(&mut self, number: u64) {
        self.digest = (self.digest ^ number).wrapping_mul(0x0100_0000_01b3).rotate_left(7);
    }
}

impl Replicated for Tape {
    type Command = Note;
    type Reply = ();

    fn apply(&mut self, note: &Archived<Note>, at: &Applied) {
        let (number, text) = (note.0, &note.1);
        self.applied += 1;
        let (version, time) = (at.version.expect("the group is durable"), at.time);
        assert_eq!(version, self.applied, "each once, and in order");
        [number.to_native(), text.len() as u64, version, time.0].into_iter().for_each(|number| self.take_in(number));
    }

    fn snapshot(&self) -> Snapshot {
        let words = [self.applied, self.digest, self.views, self.filling as u64];
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        bytes.resize(bytes.len() + self.filling, 7);
        Snapshot::of_bytes(bytes)
    }

    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)?;
        let mut words = bytes.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word));
        let mut next = || words.next().ok_or(io::ErrorKind::UnexpectedEof);
        *self = Tape { applied: next()?, digest: next()?, views: next()?, filling: next()? as usize };
        Ok(())
    }

    fn view_changed(&mut self, change: &ViewChange) {
        self.views += 1;
        self.take_in(change.epoch.0);
    }
}

/// A durable group at one node.
struct World {
    log_writer: Arc<LogWriter>,
    history: Arc<History>,
    live: Arc<Live>,
    /// The ends of the log and of the replica when it was opened.
    opened: End,
    _storage: StorageThread,
}

/// The state of the delivery thread.
struct Live {
    replica: Mutex<Tape>,
    exchange: Arc<StateExchange>,
    log_writer: Arc<LogWriter>,
    captured: AtomicU32,
}

impl Live {
    /// Returns the number of states that were captured.
    fn captured(&self) -> u32 {
        self.captured.load(Ordering::Relaxed)
    }

    fn replica(&self) -> MutexGuard<'_, Tape> {
        self.replica.lock().expect("no test panics holding it")
    }

    /// Gives the state to the requests that wait for it.
    fn serve(&self) {
        let replica = self.replica();
        for (_, reply) in self.exchange.take() {
            let logged = Some(self.log_writer.place());
            reply(Captured::new(
                Reached { frontier: Frontier::begin(Epoch(1), 1), time: Hlc(0) },
                Service::snapshot(&*replica),
                logged,
            ));
            self.captured.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn options() -> Options {
    Options { segment_bytes: SEGMENT_BYTES, batch_bytes: 4 << 10, ..Options::new(ClusterId(7), ShardId(0)) }
}

impl World {
    fn new(seed: u64, policy: Policy) -> (World, SimStorage) {
        let disk = SimStorage::new(seed);
        (World::open(Disk::Simulated(disk.clone()), policy), disk)
    }

    /// Opens the log on a disk, and brings a replica to its end; or begins a log.
    fn open(disk: Disk, policy: Policy) -> World {
        let mut log = Log::open(disk, options(), &mut fastrand::Rng::with_seed(1)).expect("the log is well").log;
        let store = SnapshotStore::of(&log);
        let (begin, end) = (log.begin(), log.persisted());
        store.remove_outside(begin.position, end.position).expect("the disk is well");
        let mut replica = Tape::default();
        let found = store.newest(begin.position, end.position).expect("the disk is well");
        let mut view: LastView = None;
        match found.snapshot {
            Some(mut snapshot) => {
                let (at, last) = (snapshot.at, snapshot.view.take());
                Service::restore(&mut replica, &mut snapshot).expect("the snapshot is well");
                let mut reader = log.read(at.position, Position::MAX).expect("the log has what follows a snapshot");
                let replayed = replay(&mut replica, &mut reader, at, last, &Skips::default()).expect("the log is well");
                assert_eq!((replayed.end, replayed.damage), (end, None));
                view = replayed.view;
            }
            None => {
                assert_eq!(end, End::START, "there is a snapshot whenever there is something else");
                store.write(end, None, Service::snapshot(&replica)).expect("the disk is well");
            }
        }
        // A node does the same at its start.
        log.prepare().expect("the disk is well");
        let park = WriterPark::default();
        let log_writer = Arc::new(LogWriter::new(&log, view, park.waker()));
        let storage = StorageThread::start(vec![(Arc::clone(&log_writer), log)], park, Waker::new(|| ()));
        let exchange = Arc::new(StateExchange::default());
        exchange.set_replica_status(ReplicaStatus::Complete);
        let live = Arc::new(Live {
            replica: Mutex::new(replica),
            exchange: Arc::clone(&exchange),
            log_writer: Arc::clone(&log_writer),
            captured: AtomicU32::new(0),
        });
        let history = History::new("tape", Some(policy));
        let of_waker: Weak<Live> = Arc::downgrade(&live);
        let waker = Waker::new(move || {
            if let Some(live) = of_waker.upgrade() {
                live.serve();
            }
        });
        history.start(Arc::clone(&log_writer), exchange, waker);
        World { log_writer, history, live, opened: end, _storage: storage.expect("a thread") }
    }

    /// Delivers a view.
    fn view(&self, epoch: u64) {
        let mut replica = self.live.replica();
        let record = ViewRecord { members: vec![ME], complete: vec![ME], senders: vec![ME], ..ViewRecord::default() };
        self.log_writer.append().view(Epoch(epoch), &record).expect("it comes next");
        Service::view_changed(&mut *replica, &ViewChange::of_record(Epoch(epoch), &record));
    }

    /// Delivers a command. Returns its version.
    fn deliver(&self, number: u64, bytes: usize) -> u64 {
        let note = rkyv::to_bytes::<rkyv::rancor::Error>(&Note(number, "x".repeat(bytes))).expect("it can be written");
        let mut replica = self.live.replica();
        loop {
            let mut appending = self.log_writer.append();
            if !appending.has_room() {
                assert_eq!(self.log_writer.failure(), None);
                drop(appending);
                std::thread::yield_now();
                continue;
            }
            let Position { epoch, seq } = appending.end().position;
            // Some positions are skipped, as nulls do.
            let seq = Seq(seq.0 + number % 2);
            let sent = Hlc(number * 10);
            let end = appending.message(Position::new(epoch, seq), sent, ME, Payload::kept(&note)).expect("it is next");
            drop(appending);
            let message = Message { epoch, seq, sender: ME, time: end.time, payload: Payload::kept(&note), ticket: 0 };
            let stamp = Stamp::logged(end);
            Service::take(&mut *replica, &message, stamp, &mut AlignedVec::new()).expect("it is a note");
            return end.version;
        }
    }

    /// Makes everything that was delivered globally persisted.
    fn settle(&self) -> u64 {
        // The job is queued behind everything that was appended.
        let end = self.log_writer.ask(|log| log.persisted()).recv().expect("the disk is well");
        self.log_writer.set_globally_persisted(end.version);
        end.version
    }

    /// Delivers commands with these numbers, and makes them globally persisted.
    fn fill(&self, numbers: std::ops::Range<u64>, bytes: usize) -> u64 {
        numbers.for_each(|number| _ = self.deliver(number, bytes));
        self.settle()
    }

    fn reader(&self, first: u64, last: u64) -> Result<LogReader, HistoryError> {
        LogReader::new("tape", &self.log_writer, Tape::command_of, first, last)
    }

    fn follower(&self, from: u64) -> LogFollower {
        LogFollower::new(self.reader(from, 0).expect("it is there"))
    }

    /// Returns the state at a moment.
    fn at(&self, moment: Moment) -> Result<(Tape, Logged), HistoryError> {
        super::past::look("tape", &self.history, moment, Tape::default(), |tape: &Tape, at| (tape.clone(), at)).wait()
    }

    fn now(&self) -> Tape {
        self.live.replica().clone()
    }

    /// Returns the versions of its snapshots, in order.
    fn snapshots(&self) -> Vec<u64> {
        let store = self.log_writer.ask(|log| SnapshotStore::of(log)).recv().expect("the disk is well");
        let positions = squall_ordered::log::snapshots(&store.disk).expect("the disk is well");
        positions.into_iter().map(|at| store.open(at).expect("it is well").at.version).collect()
    }
}

fn keep_all() -> Policy {
    Policy::default()
}

fn retain(bytes: u64) -> Policy {
    Policy { retain: Some(bytes), ..Policy::default() }
}
