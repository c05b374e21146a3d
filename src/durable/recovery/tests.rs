//! A node's disk and replica, stepped by hand: the state after a crash at any change, after damage, and after another
//! member has given the missing part.

use std::{
    io::{self, Read},
    sync::{Arc, Mutex, Weak},
};

use rkyv::util::AlignedVec;
use squall_fabric::{NodeId, Waker};
use squall_membership::{self as membership, ClusterId, Epoch, HeldCopy, Seq, ShardId, Skipped, VoterId};
use squall_ordered::{
    Message, Payload,
    log::{ChainValue, Damage, End, Hlc, OpenError, Options, Position, SimStorage, ViewRecord},
};

use super::{RecoverError, Remembered, begin, held, open, rebuild::Rebuilt, repair};
use crate::{
    Invalid, Service, Snapshot, Stamp, ViewChange,
    capture::{
        exchange::{ReplicaStatus, StateExchange},
        state::{Captured, Frontier, Reached, RestoreError},
    },
    durable::{
        disk::Disk,
        log_writer::{DiskLog, LogWriter},
    },
    replica::replica_cell::ReplicaCell,
    state_transfer::{
        install::{Installer, Repair},
        offer,
        wire::{Divergence, LogEnd, OfferKind},
    },
};

const ME: NodeId = NodeId(1);
const STORE: VoterId = VoterId(0x0123_4567_89ab_cdef);

/// A service that remembers its messages: versions and payloads, and views, which have version 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Trail(pub(super) Vec<(u64, Vec<u8>)>);

impl Service for Trail {
    type Reply = ();

    fn take(&mut self, message: &Message<'_>, stamp: Stamp, _scratch: &mut AlignedVec) -> Result<Option<()>, Invalid> {
        let mut bytes = Vec::new();
        message.payload.copy_to(&mut bytes);
        self.0.push((stamp.version.expect("the group is durable"), bytes));
        Ok(None)
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of_bytes(postcard::to_allocvec(&self.0).expect("it has a form"))
    }

    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)?;
        self.0 = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
        Ok(())
    }

    fn view_changed(&mut self, change: &ViewChange) {
        self.0.push((0, change.epoch.0.to_le_bytes().to_vec()));
    }
}

/// The state of a node's process.
pub(super) struct Node {
    replica: ReplicaCell<Trail>,
    pub(super) exchange: StateExchange,
    pub(super) log_writer: Arc<LogWriter>,
    log: Arc<Mutex<DiskLog>>,
    rebuilt: Rebuilt,
    is_kept: bool,
}

fn options() -> Options {
    Options { segment_bytes: 8192, batch_bytes: 4096, ..Options::new(ClusterId(7), ShardId(0)) }
}

fn start_as(
    disk: &SimStorage,
    store: VoterId,
    remembered: Option<Remembered>,
) -> Result<(Node, Remembered), RecoverError> {
    let mut rng = fastrand::Rng::with_seed(1);
    let opened = open(Disk::Simulated(disk.clone()), options(), store, remembered, &mut rng)?;
    let mut trail = Trail::default();
    let rebuilt = begin(&mut trail, &opened.log)
        .map_err(|error| RecoverError::State { group: "trail".to_owned(), why: error.to_string() })?;
    let log_writer = Arc::new(LogWriter::new(&opened.log, rebuilt.view.clone(), Waker::new(|| ())));
    log_writer.set_stale(!rebuilt.is_whole());
    log_writer.set_anew(!opened.is_kept);
    let log = Arc::new(Mutex::new(opened.log));
    let (of, writes): (Weak<LogWriter>, _) = (Arc::downgrade(&log_writer), Arc::clone(&log));
    log_writer.pump(Box::new(move || {
        if let Some(log_writer) = of.upgrade() {
            while log_writer.is_due() && log_writer.write(&mut writes.lock().unwrap()) {}
        }
    }));
    let exchange = StateExchange::default();
    exchange.set_replica_status(ReplicaStatus::Incomplete { fetch: 1 });
    let node = Node { replica: ReplicaCell::new(trail), exchange, log_writer, log, rebuilt, is_kept: opened.is_kept };
    Ok((node, opened.remembered))
}

fn start(disk: &SimStorage) -> Node {
    start_as(disk, STORE, None).expect("the disk is good").0
}

impl Node {
    pub(super) fn installer(&self) -> Installer<'_, Trail> {
        Installer { replica: &self.replica, exchange: &self.exchange, log_writer: &self.log_writer }
    }

    pub(super) fn trail(&self) -> Trail {
        self.replica.borrow().expect("no thread has it").clone()
    }

    fn held(&self) -> Option<HeldCopy> {
        held(&self.rebuilt, self.is_kept, &self.log.lock().unwrap())
    }

    /// Delivers a view that follows an order which ended at `ended`, of which this node is complete.
    fn view(&self, epoch: u64, ended: (u64, u64)) {
        self.view_of(self.log_writer.life(), epoch, ended);
    }

    /// Delivers such a view of a life of the group.
    fn view_of(&self, life: ClusterId, epoch: u64, ended: (u64, u64)) {
        let ended = Position::new(Epoch(ended.0), Seq(ended.1));
        let view = ViewRecord { life, ended, complete: vec![ME], ..ViewRecord::default() };
        self.log_writer.append().view(Epoch(epoch), &view).unwrap();
        self.replica.borrow().unwrap().view_changed(&ViewChange::of_record(Epoch(epoch), &view));
    }

    /// Delivers messages at these places of an epoch. They differ from life to life of the group, and their times do
    /// not.
    pub(super) fn messages(&self, epoch: u64, places: std::ops::Range<u64>) {
        let life = self.log_writer.life().0 as u8;
        for place in places {
            assert!(self.log_writer.wait_for_room());
            let (position, bytes) =
                (Position::new(Epoch(epoch), Seq(place)), [epoch as u8, place as u8 ^ life].repeat(40));
            let end = self
                .log_writer
                .append()
                .message(position, Hlc(1000 * epoch + place), ME, Payload::kept(&bytes))
                .unwrap();
            let message = Message {
                epoch: Epoch(epoch),
                seq: Seq(place),
                sender: ME,
                time: end.time,
                payload: Payload::kept(&bytes),
                ticket: 0,
            };
            let stamp = Stamp::logged(end);
            self.replica.borrow().unwrap().take(&message, stamp, &mut AlignedVec::new()).unwrap();
        }
        self.sync();
    }

    /// Waits until everything that was appended is on disk. Returns false if the log has failed.
    fn sync(&self) -> bool {
        self.log_writer.wait(&self.log_writer.ask(|_| ())).is_some()
    }

    fn snapshot(&self) {
        self.sync();
        let (store, state) =
            (crate::durable::snapshot_store::SnapshotStore::of(&self.log.lock().unwrap()), self.trail().snapshot());
        store.write(self.log_writer.end(), self.log_writer.view().as_ref(), state).unwrap();
    }

    fn captured(&self) -> Captured {
        let end = self.log_writer.end();
        let frontier = Frontier { epoch: end.position.epoch, turns: vec![end.position.seq.0] };
        Captured::new(Reached { frontier, time: end.time }, self.trail().snapshot(), Some(self.log_writer.place()))
            .unwrap()
    }

    /// Returns what this node gives to one whose log ends at `have`: a suffix, or a state.
    fn give(&self, have: Option<LogEnd>) -> Result<(OfferKind, Vec<u8>), String> {
        let given = offer::plan(Some(&self.log_writer), have, 0)?.give(self.captured())?;
        let mut bytes = Vec::new();
        (given.write)(&mut bytes).map_err(|error| error.to_string())?;
        Ok((given.offer, bytes))
    }

    fn take(&self, (offer, bytes): &(OfferKind, Vec<u8>)) -> Result<(), RestoreError> {
        match *offer {
            OfferKind::State { chain, .. } => self.installer().take_state(chain.map(ChainValue), &mut bytes.as_slice()),
            OfferKind::Suffix(divergence) => self.installer().take_suffix(divergence, &mut bytes.as_slice()),
            OfferKind::Records => unreachable!("no member asked for them"),
        }
    }

    /// Gets from another node what this one lacks, as a joiner does.
    pub(super) fn join(&self, source: &Node) -> Result<OfferKind, RestoreError> {
        let have = self.installer().prepare(&mut |damage| source.repairs(self, damage))?;
        let given = source.give(have).map_err(RestoreError::NotKept)?;
        self.take(&given).map(|()| given.0)
    }

    fn repairs(&self, other: &Node, damage: &Damage) -> Result<(), String> {
        repair(&other.log_writer, damage, |from, to| {
            let mut bytes = Vec::new();
            let records = offer::records(&self.log_writer, from, to)?;
            (records.write)(&mut bytes).map_err(|error| error.to_string())?;
            Ok(bytes)
        })
    }
}

/// Makes a node that went through two views, with a snapshot in the first.
pub(super) fn history(disk: &SimStorage) -> Node {
    let node = start(disk);
    node.view(1, (0, 0));
    node.messages(1, 0..30);
    node.snapshot();
    node.messages(1, 30..60);
    node.view(2, (1, 60));
    node.messages(2, 0..40);
    node
}

fn no_repair() -> impl FnMut(&Damage) -> Result<(), String> {
    |_| Err("no member is there".to_owned())
}

#[test]
fn a_replica_is_rebuilt_from_the_newest_snapshot_and_the_log_behind_it() {
    let disk = SimStorage::new(1);
    let before = history(&disk);
    let back = start(&disk);
    assert_eq!(back.trail(), before.trail());
    assert_eq!(back.rebuilt.end, Some(before.log_writer.end()));
    assert_eq!(back.log_writer.view(), before.log_writer.view());
    let end = membership::OrderEnd { epoch: Epoch(2), seq: Seq(40) };
    assert_eq!(
        back.held(),
        Some(HeldCopy {
            end,
            complete: true,
            version: Some(back.log_writer.end().version),
            acknowledged: 0,
            trusted: false,
            skipped: Skipped::default()
        })
    );
}

#[test]
fn a_log_is_reported_as_far_as_it_goes_whoever_was_complete() {
    let disk = SimStorage::new(1);
    let node = start(&disk);
    assert_eq!(
        node.held(),
        Some(HeldCopy {
            end: membership::OrderEnd::START,
            complete: true,
            version: Some(0),
            acknowledged: 0,
            trusted: false,
            skipped: Skipped::default()
        })
    );
    node.log_writer
        .append()
        .view(Epoch(1), &ViewRecord { complete: vec![NodeId(2)], ..ViewRecord::default() })
        .unwrap();
    node.messages(1, 0..3);
    let end = membership::OrderEnd { epoch: Epoch(1), seq: Seq(3) };
    assert_eq!(
        start(&disk).held(),
        Some(HeldCopy {
            end,
            complete: true,
            version: Some(3),
            acknowledged: 0,
            trusted: false,
            skipped: Skipped::default()
        })
    );
}

#[test]
fn a_snapshot_that_is_damaged_is_passed_over() {
    let disk = SimStorage::new(1);
    let before = history(&disk);
    disk.flip("snapshot-1-30", 4096 + 50, 3);
    let back = start(&disk);
    assert_eq!(back.trail(), before.trail());
    assert!(back.rebuilt.is_whole());
}

#[test]
fn a_snapshot_of_another_history_is_passed_over() {
    let disk = SimStorage::new(1);
    let before = history(&disk);
    let store = crate::durable::snapshot_store::SnapshotStore::of(&before.log.lock().unwrap());
    let other = End { position: Position::new(Epoch(2), Seq(10)), version: 7, time: Hlc(1) };
    store.write(other, None, Trail(vec![(9, b"another".to_vec())]).snapshot()).unwrap();
    assert_eq!(start(&disk).trail(), before.trail());
}

#[test]
fn a_service_that_can_t_write_its_state_is_refused() {
    struct Mute;
    impl Service for Mute {
        type Reply = ();
        fn take(&mut self, _: &Message<'_>, _: Stamp, _: &mut AlignedVec) -> Result<Option<()>, Invalid> {
            Ok(None)
        }
    }
    let mut rng = fastrand::Rng::with_seed(1);
    let opened = open(Disk::Simulated(SimStorage::new(1)), options(), STORE, None, &mut rng).unwrap();
    let refused = begin(&mut Mute, &opened.log).unwrap_err().to_string();
    assert!(refused.contains("implement `Replicated::snapshot`"), "{refused}");
}

#[test]
fn a_panic_while_the_log_is_applied_is_an_error() {
    struct Faints;
    impl Service for Faints {
        type Reply = ();
        fn take(&mut self, _: &Message<'_>, _: Stamp, _: &mut AlignedVec) -> Result<Option<()>, Invalid> {
            panic!("at the sight of its past")
        }
        fn restore(&mut self, _: &mut dyn Read) -> io::Result<()> {
            Ok(())
        }
    }
    let disk = SimStorage::new(1);
    history(&disk);
    let mut rng = fastrand::Rng::with_seed(1);
    let opened = open(Disk::Simulated(disk), options(), STORE, None, &mut rng).unwrap();
    let error = begin(&mut Faints, &opened.log).unwrap_err();
    assert!(error.is_panic(), "{error}");
}

#[test]
fn damage_ends_what_counts_until_another_member_repairs_it() {
    let (disk, other) = (SimStorage::new(1), SimStorage::new(2));
    let (whole, peer) = (history(&disk).trail(), history(&other));
    disk.flip("segment-0000000001", 4096 + 144 * 10 + 70, 5);
    let node = start(&disk);
    assert!(!node.rebuilt.is_whole() && node.log_writer.is_stale());
    let held = node.held().expect("it has what is before");
    assert!(!held.complete && held.end < membership::OrderEnd { epoch: Epoch(1), seq: Seq(60) }, "{held:?}");
    let have = node.installer().prepare(&mut |damage| peer.repairs(&node, damage)).unwrap();
    assert_eq!((have, node.trail()), (Some(LogEnd::new(ClusterId::default(), peer.log_writer.end())), whole.clone()));
    assert!(!node.log_writer.is_stale());
    assert_eq!(start(&disk).trail(), whole, "for good");
}

#[test]
fn damage_that_nobody_repairs_is_replaced_by_a_suffix() {
    let (disk, other) = (SimStorage::new(1), SimStorage::new(2));
    history(&disk);
    let peer = history(&other);
    disk.flip("segment-0000000001", 4096 + 144 * 10 + 70, 5);
    let node = start(&disk);
    let have = node.installer().prepare(&mut no_repair()).unwrap();
    let given = peer.give(have).unwrap();
    assert!(matches!(given.0, OfferKind::Suffix(_)));
    node.take(&given).unwrap();
    assert_eq!((node.trail(), node.log_writer.end()), (peer.trail(), peer.log_writer.end()));
    node.sync();
    assert_eq!(start(&disk).trail(), peer.trail());
}

#[test]
fn a_joiner_gets_what_is_behind_its_log() {
    let (disk, other) = (SimStorage::new(1), SimStorage::new(2));
    history(&disk);
    let peer = history(&other);
    peer.messages(2, 40..70);
    peer.view(3, (2, 70));
    let node = start(&disk);
    let OfferKind::Suffix(Divergence { at, .. }) = node.join(&peer).unwrap() else { panic!("it has all but the end") };
    assert_eq!(at, membership::OrderEnd { epoch: Epoch(2), seq: Seq(40) });
    assert_eq!((node.trail(), node.log_writer.end()), (peer.trail(), peer.log_writer.end()));
    assert_eq!(node.log_writer.view(), peer.log_writer.view());
    assert_eq!(node.exchange.take_restored(1).expect("it was restored").frontier.epoch, Epoch(3));
}

#[test]
fn what_a_joiner_has_behind_where_the_others_went_on_is_void() {
    for (ended, cut) in [((2, 25), (2, 25)), ((1, 50), (1, 50))] {
        let (disk, other) = (SimStorage::new(1), SimStorage::new(2));
        history(&disk).snapshot();
        let peer = start(&other);
        peer.view(1, (0, 0));
        peer.messages(1, 0..if cut.0 == 1 { cut.1 } else { 60 });
        if cut.0 == 2 {
            peer.view(2, (1, 60));
            peer.messages(2, 0..cut.1);
        }
        peer.view(4, ended);
        peer.messages(4, 0..20);
        let node = start(&disk);
        let OfferKind::Suffix(Divergence { at, .. }) = node.join(&peer).unwrap() else {
            panic!("they have much in common")
        };
        assert_eq!(at, membership::OrderEnd { epoch: Epoch(cut.0), seq: Seq(cut.1) });
        assert_eq!((node.trail(), node.log_writer.end()), (peer.trail(), peer.log_writer.end()));
        node.sync();
        let back = start(&disk);
        assert_eq!((back.trail(), back.rebuilt.is_whole()), (peer.trail(), true), "also on disk");
    }
}

#[test]
fn logs_that_differ_before_they_part_have_nothing_in_common() {
    let (disk, other) = (SimStorage::new(1), SimStorage::new(2));
    let node = history(&disk);
    let before = node.trail();
    let peer = start(&other);
    peer.view(1, (0, 0));
    peer.messages(1, 1..60);
    peer.view(2, (1, 60));
    peer.messages(2, 0..50);
    let refused = node.join(&peer).unwrap_err();
    assert!(matches!(refused, RestoreError::Differs(_)), "{refused}");
    assert_eq!(node.trail(), before);
    node.take(&peer.give(None).unwrap()).unwrap();
    assert_eq!((node.trail(), node.log_writer.end()), (peer.trail(), peer.log_writer.end()));
}

/// Makes a log of two epochs, of which the second is of this life, with these numbers of messages.
fn second_life(disk: &SimStorage, life: u64, places: [u64; 2]) -> Node {
    let node = start(disk);
    node.view(1, (0, 0));
    node.messages(1, 0..places[0]);
    node.view_of(ClusterId(life), 2, (1, places[0]));
    node.messages(2, 0..places[1]);
    node
}

#[test]
fn a_log_of_a_life_that_was_ended_gets_a_state_though_it_seems_to_be_a_part_of_the_source_s() {
    // The last one has more messages than the source in an epoch that both have.
    for places in [[60, 0], [60, 40], [60, 50], [60, 70]] {
        let (disk, other) = (SimStorage::new(1), SimStorage::new(2));
        let (node, peer) = (second_life(&disk, 1, places), second_life(&other, 2, [60, 50]));
        peer.view(3, (2, 50));
        assert!(matches!(node.join(&peer).unwrap(), OfferKind::State { .. }), "{places:?}");
        assert_eq!((node.trail(), node.log_writer.end()), (peer.trail(), peer.log_writer.end()));
        assert_eq!(node.log_writer.life(), ClusterId(2));
    }
}

#[test]
fn a_log_that_ends_in_later_epochs_than_the_source_s_is_of_a_life_that_was_ended() {
    let (disk, other) = (SimStorage::new(1), SimStorage::new(2));
    let (node, peer) = (second_life(&disk, 1, [60, 50]), second_life(&other, 2, [60, 50]));
    node.view(9, (2, 50));
    node.messages(9, 0..10);
    assert!(matches!(node.join(&peer).unwrap(), OfferKind::State { .. }));
    assert_eq!((node.trail(), node.log_writer.end()), (peer.trail(), peer.log_writer.end()));
}

#[test]
fn a_log_that_ends_before_a_life_was_forced_goes_on_with_that_life() {
    // The first one has more messages than the node had that was forced.
    for more in [70, 60, 40] {
        let (disk, other) = (SimStorage::new(1), SimStorage::new(2));
        let node = start(&disk);
        node.view(1, (0, 0));
        node.messages(1, 0..more);
        let peer = second_life(&other, 2, [60, 50]);
        let OfferKind::Suffix(Divergence { at, .. }) = node.join(&peer).unwrap() else {
            panic!("they have much in common")
        };
        assert_eq!(at, membership::OrderEnd { epoch: Epoch(1), seq: Seq(more.min(60)) });
        assert_eq!((node.trail(), node.log_writer.end()), (peer.trail(), peer.log_writer.end()));
    }
}

#[test]
fn a_source_whose_log_was_trimmed_gives_its_state() {
    let (disk, other) = (SimStorage::new(1), SimStorage::new(2));
    let (node, peer) = (start(&disk), history(&other));
    peer.snapshot();
    peer.log.lock().unwrap().trim_before(peer.log_writer.end().position).unwrap();
    assert!(matches!(node.join(&peer).unwrap(), OfferKind::State { .. }));
    assert_eq!((node.trail(), node.log_writer.end()), (peer.trail(), peer.log_writer.end()));
    node.messages(2, 40..45);
    let back = start(&disk);
    assert_eq!(back.trail(), node.trail());
    assert_eq!(back.rebuilt.end.map(|end| end.version), Some(105));
}

#[test]
fn a_source_that_is_behind_says_so() {
    let (disk, other) = (SimStorage::new(1), SimStorage::new(2));
    let (node, peer) = (history(&disk), history(&other));
    node.messages(2, 40..50);
    let refused = node.join(&peer).unwrap_err().to_string();
    assert!(refused.contains("the node that asks has more"), "{refused}");
}

/// Checks the contents of a disk after a crash at each change that `act` makes, until `act` makes no more.
fn at_each_crash(before: impl Fn(&SimStorage) -> Node, act: impl Fn(&Node), check: impl Fn(u64, Trail)) {
    for change in 0.. {
        let disk = SimStorage::new(change);
        let node = before(&disk);
        disk.crash_at(disk.changes() + change);
        act(&node);
        node.sync();
        let over = !disk.has_crashed();
        drop(node);
        disk.restart();
        let back = start(&disk);
        assert!(back.rebuilt.is_whole(), "change {change}");
        check(change, back.trail());
        // The node can go on.
        let epoch = back.log_writer.end().position.epoch.0 + 1;
        back.view(epoch, (epoch - 1, 0));
        back.messages(epoch, 0..2);
        assert_eq!(start(&disk).trail(), back.trail(), "change {change}");
        if over {
            return assert!(change > 2, "it did something");
        }
    }
}

#[test]
fn a_crash_in_the_first_start_leaves_nothing_or_an_empty_log() {
    for change in 0..40 {
        let disk = SimStorage::new(change);
        disk.crash_at(change);
        let _ = start_as(&disk, STORE, None);
        disk.restart();
        assert_eq!(start(&disk).trail(), Trail::default(), "change {change}");
    }
}

#[test]
fn a_crash_while_a_state_is_taken_leaves_the_old_one_or_the_new_one() {
    let peer = history(&SimStorage::new(1000));
    peer.view(5, (2, 40));
    let (old, new) = (history(&SimStorage::new(1001)).trail(), peer.trail());
    let state = peer.give(None).unwrap();
    // `act` returns an error where the disk has failed.
    at_each_crash(
        history,
        |node| _ = node.take(&state),
        |change, trail| {
            assert!(trail == old || trail == new, "change {change}");
        },
    );
}

#[test]
fn a_state_for_which_the_disk_has_no_room_fails_the_log_and_a_state_that_breaks_off_does_not() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::ConnectionReset.into())
        }
    }
    let state = history(&SimStorage::new(1000)).give(None).unwrap();
    let half = &state.1[..state.1.len() / 2];
    for room in [0, 100, state.1.len() as u64 - 1] {
        let disk = SimStorage::new(room);
        let node = start(&disk);
        let cut = node.installer().take_state(None, &mut half.chain(Broken));
        assert!(matches!(cut, Err(RestoreError::Failed(_))), "{cut:?}");
        assert_eq!(node.log_writer.failure(), None, "another member may have it");
        disk.limit(disk.used() + room);
        assert!(matches!(node.take(&state), Err(RestoreError::NotKept(_))));
        let failure = node.log_writer.failure().expect("the node ends");
        assert!(failure.contains("the simulated disk is full"), "{failure}");
        drop(node);
        disk.limit(u64::MAX / 2);
        let back = start(&disk);
        assert_eq!(back.trail(), Trail::default());
        back.take(&state).expect("there is room again");
    }
}

#[test]
fn a_crash_while_a_suffix_is_taken_leaves_a_beginning_of_the_source_s_log() {
    let peer = start(&SimStorage::new(1000));
    peer.view(1, (0, 0));
    peer.messages(1, 0..50);
    peer.view(4, (1, 50));
    peer.messages(4, 0..100);
    let (old, new) = (history(&SimStorage::new(1001)).trail(), peer.trail());
    at_each_crash(
        history,
        |node| _ = node.join(&peer),
        |change, trail| {
            assert!(trail == old || new.0.starts_with(&trail.0) && trail.0.len() >= 51, "change {change}");
        },
    );
}

#[test]
fn a_crash_while_a_log_is_cut_leaves_all_of_it_or_what_is_before() {
    let old = history(&SimStorage::new(1001)).trail();
    let to = membership::OrderEnd { epoch: Epoch(1), seq: Seq(20) };
    at_each_crash(
        history,
        |node| _ = node.installer().cut(to, false),
        |change, trail| {
            assert!(trail == old || trail.0 == old.0[..21], "change {change}");
        },
    );
}

#[test]
fn a_state_that_came_before_a_cut_is_void() {
    let (disk, other) = (SimStorage::new(1), SimStorage::new(2));
    let peer = history(&other);
    peer.messages(2, 40..70);
    let node = history(&disk);
    node.join(&peer).unwrap();
    node.installer().cut(membership::OrderEnd { epoch: Epoch(2), seq: Seq(10) }, true).unwrap();
    assert_eq!(node.exchange.take_restored(1), None, "the replica has not got that state any more");
    assert_eq!(node.trail().0, peer.trail().0[..72]);
    assert!(!node.log_writer.is_stale());
}

#[test]
fn a_replica_beyond_a_cut_is_taken_back() {
    let disk = SimStorage::new(1);
    let node = history(&disk);
    let all = node.trail();
    node.installer().cut(membership::OrderEnd { epoch: Epoch(2), seq: Seq(10) }, false).unwrap();
    assert!(node.log_writer.is_stale(), "until it is rebuilt");
    let held = node.installer().held().expect("the log is good");
    assert!(!held.complete);
    let mut repair = no_repair();
    let repair: Repair<'_> = &mut repair;
    assert_eq!(
        node.installer().prepare(repair).unwrap(),
        Some(LogEnd::new(ClusterId::default(), node.log_writer.end()))
    );
    assert_eq!(node.trail().0, all.0[..72]);
    assert_eq!(node.log_writer.view().map(|(epoch, _)| epoch), Some(Epoch(2)));
}

#[test]
fn an_old_copy_of_a_log_is_refused() {
    let disk = SimStorage::new(1);
    let (node, first) = start_as(&disk, STORE, None).unwrap();
    node.view(1, (0, 0));
    node.sync();
    let copy = SimStorage::from_image(2, &disk.image());
    let (_, second) = start_as(&disk, STORE, Some(first)).unwrap();
    let refused = start_as(&copy, STORE, Some(second)).map(|_| ()).unwrap_err();
    assert!(matches!(refused, RecoverError::Open(OpenError::Older { .. })), "{refused}");
    assert!(start_as(&disk, STORE, Some(second)).is_ok());
}

#[test]
fn a_log_without_the_view_log_that_it_belongs_to_is_refused() {
    let disk = SimStorage::new(1);
    start(&disk);
    let refused = start_as(&disk, VoterId(99), None).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("belongs to another node's directory"), "{refused}");
}

#[test]
fn a_log_that_is_lost_is_begun_empty_and_does_not_count() {
    let (disk, empty) = (SimStorage::new(1), SimStorage::new(2));
    let (_, remembered) = start_as(&disk, STORE, None).unwrap();
    let (node, remembered) = start_as(&empty, STORE, Some(remembered)).unwrap();
    assert!(!node.held().expect("it is empty").complete);
    let (again, remembered) = start_as(&empty, STORE, Some(remembered)).unwrap();
    assert!(!again.held().expect("it is empty").complete, "nor after another start");
    let peer = history(&SimStorage::new(3));
    again.join(&peer).unwrap();
    again.sync();
    let (full, remembered) = start_as(&empty, STORE, Some(remembered)).unwrap();
    let held = full.held().unwrap();
    assert!(held.end > membership::OrderEnd::START && !held.complete, "it may have got less than it had: {held:?}");
    full.log_writer.end_anew(&full.log.lock().unwrap()).unwrap();
    let (whole, _) = start_as(&empty, STORE, Some(remembered)).unwrap();
    assert!(whole.held().unwrap().complete);
}
