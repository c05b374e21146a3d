//! The installation of what another member gives: its state in place of this node's log, or the records behind this
//! log's end.

use std::{
    io::{self, ErrorKind, Read},
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::Arc,
    thread,
};

use rkyv::util::AlignedVec;
use squall_membership::{self as membership, ClusterId, EndReason};
use squall_ordered::{
    Message, Payload,
    log::{Body, ChainValue, Damage, End, Hlc, Position, Record, Skip, Skips, Storage, WriteError, import},
};

use crate::{
    capture::{
        exchange::{ReplicaStatus, StateExchange},
        state::{Head, LastView, LogPlace, RestoreError, read_head},
    },
    durable::{
        batches::read_batch,
        log_writer::{DiskLog, LogWriter, life_of},
        recovery::{
            self, position,
            rebuild::{RebuildError, Rebuilt, Source, go_on, rebuild},
            replay::{ReplayError, give},
        },
        snapshot_store::{SnapshotContents, SnapshotStore, SnapshotStoreError},
    },
    replica::{
        poison::Given,
        replica_cell::{ReplicaCell, ReplicaGuard},
        replicated::Stamp,
        service::Service,
        view_change::ViewChange,
    },
    state_transfer::{
        remote_log::{RemoteLog, ask},
        wire::{Divergence, LogEnd},
    },
};

/// The installer of states and records: a durable group's replica, and its log, which another thread writes.
pub(crate) struct Installer<'a, S: Service> {
    pub(crate) replica: &'a ReplicaCell<S>,
    pub(crate) exchange: &'a StateExchange,
    pub(crate) log_writer: &'a Arc<LogWriter>,
}

/// A function that asks another member for the records in place of damaged ones, and writes them there.
pub(crate) type Repair<'a> = &'a mut dyn FnMut(&Damage) -> Result<(), String>;

impl From<RebuildError> for RestoreError {
    fn from(error: RebuildError) -> RestoreError {
        match error {
            error if error.is_panic() => RestoreError::Panicked,
            RebuildError::Restore(error) => RestoreError::Failed(error),
            error => RestoreError::NotKept(error.to_string()),
        }
    }
}

impl From<SnapshotStoreError> for RestoreError {
    fn from(error: SnapshotStoreError) -> RestoreError {
        RebuildError::from(error).into()
    }
}

/// The repair of a node in no view.
fn no_repair(_: &Damage) -> Result<(), String> {
    Err("no member can be asked for its records yet".to_owned())
}

/// Waits until no other thread holds a replica, and takes it.
pub(crate) fn borrow<S>(replica: &ReplicaCell<S>) -> Result<ReplicaGuard<'_, S>, RestoreError> {
    loop {
        if replica.is_broken() {
            return Err(RestoreError::Panicked);
        }
        match replica.borrow() {
            Some(guard) => return Ok(guard),
            // Others hold it for short looks only.
            None => thread::yield_now(),
        }
    }
}

impl<S: Service> Installer<'_, S> {
    /// Returns the end of this node's log, as far as its replica can be brought, and brings it there. Returns None if
    /// nothing of the log can be used. Fails while a further segment of the log has no room, since what another member
    /// gives would have none.
    pub(crate) fn prepare(&self, repair: Repair<'_>) -> Result<Option<LogEnd>, RestoreError> {
        let has_room = self.log_writer.run_at_once(|log| log.find_room()).ok_or(RebuildError::LogEnded)?;
        if let Err(error @ WriteError::NoRoom { .. }) = has_room {
            return Err(RestoreError::Failed(io::Error::new(ErrorKind::StorageFull, error.to_string())));
        }
        let whole = || LogEnd::new(self.log_writer.life(), self.log_writer.end());
        if !self.log_writer.is_stale() {
            return Ok(Some(whole()));
        }
        let guard = borrow(self.replica)?;
        // The thread that held the replica meanwhile may have taken a state.
        if !self.log_writer.is_stale() {
            return Ok(Some(whole()));
        }
        let Rebuilt { end, view, .. } = self.rebuild_borrowed(guard, repair)?;
        Ok(end.map(|end| LogEnd::new(life_of(&view), end)))
    }

    /// Rebuilds a replica, and marks it as unusable if its application panics.
    fn rebuild_borrowed(&self, mut guard: ReplicaGuard<'_, S>, repair: Repair<'_>) -> Result<Rebuilt, RestoreError> {
        let rebuilt = self.rebuild(&mut guard, repair);
        if let Err(RestoreError::Panicked) = rebuilt {
            guard.spoil();
        }
        rebuilt
    }

    fn rebuild(&self, service: &mut S, repair: Repair<'_>) -> Result<Rebuilt, RestoreError> {
        let remote = RemoteLog::of(self.log_writer)?;
        let mut rebuilt = rebuild(service, &remote)?;
        while let (Some(end), Some(damage)) = (rebuilt.end, &rebuilt.damage) {
            if let Err(why) = repair(damage) {
                tracing::warn!(%damage, why, "damaged records are not repaired: the log counts up to there");
                return Ok(rebuilt);
            }
            rebuilt = go_on(service, &remote, end, rebuilt.view.take())?;
        }
        if rebuilt.is_whole() {
            self.log_writer.set_view(rebuilt.view.clone());
            self.log_writer.set_stale(false);
        }
        Ok(rebuilt)
    }

    /// Returns this node's report of its copy, once everything that was appended is on disk. A node that is not
    /// complete gives up what has no room there.
    pub(crate) fn held(&self) -> Option<membership::HeldCopy> {
        // By then what was appended is on disk, or is known to wait.
        self.log_writer.run_at_once(|_| ())?;
        if self.log_writer.no_room().is_some()
            && let Err(error) = self.give_up_waiting()
        {
            tracing::warn!(%error, "the replica could not be taken back to what is on disk");
        }
        let told = ask(self.log_writer, |log| {
            let end = log.persisted();
            let skipped = recovery::skipped(log.skips(), end.position);
            (end, log.acknowledged(), log.is_trusted(), log.is_doubtful(), skipped)
        });
        let (end, acknowledged, trusted, doubtful, skipped) = told.ok()?;
        let complete = (trusted || !self.log_writer.is_anew()) && !doubtful && !self.log_writer.is_stale();
        let (end, version) = (recovery::place(end.position), Some(end.version));
        Some(membership::HeldCopy { end, complete, version, acknowledged, trusted, skipped })
    }

    /// Gives up what was appended and waits for room, and takes the replica back to the log's end on disk. No member
    /// counts on it, and the group may go on only once this node has reported what it has.
    fn give_up_waiting(&self) -> Result<(), RestoreError> {
        let guard = borrow(self.replica)?;
        if self.exchange.replica_status() != ReplicaStatus::Outside && self.exchange.begin_restoring().is_none() {
            // The delivering thread goes on behind it.
            return Ok(());
        }
        self.log_writer.set_stale(true);
        let end = RemoteLog::of(self.log_writer)?.give_up_waiting()?;
        tracing::warn!(%end, "the disk has no room for what this node had delivered last, which it gives up");
        self.rebuild_borrowed(guard, &mut no_repair).map(drop)
    }

    /// Cuts the log, and takes the replica back to its end if `rebuilds`; else the replica is stale if it went further.
    /// The replica is borrowed meanwhile. A fetch that is under way comes before or after, and the state that it gave
    /// before is void.
    pub(crate) fn cut(&self, to: membership::OrderEnd, rebuilds: bool) -> Result<(), RestoreError> {
        let guard = borrow(self.replica)?;
        self.exchange.forget();
        self.cut_log(to)?;
        if rebuilds && self.log_writer.is_stale() {
            self.rebuild_borrowed(guard, &mut no_repair)?;
            if self.log_writer.is_stale() {
                let why = "the replica could not be taken back to where the log ends";
                return Err(RestoreError::NotKept(why.to_owned()));
            }
        }
        Ok(())
    }

    /// Cuts the log, and marks the replica as stale if it went further. The caller holds the replica.
    fn cut_log(&self, to: membership::OrderEnd) -> Result<(), RestoreError> {
        let (was, to) = (self.log_writer.end(), position(to));
        if was.position > to {
            self.log_writer.set_stale(true);
        }
        let (remote, log_writer) = (RemoteLog::of(self.log_writer)?, Arc::clone(self.log_writer));
        // The rebuilding of the replica finds the last view.
        let view = self.log_writer.view().filter(|(epoch, _)| *epoch <= to.epoch);
        let end = remote.change_end(move |log| {
            if to < log.begin().position {
                // The log began with a state that is void, so nothing in it counts.
                log_writer.begin_anew(log)?;
                let aside = log.begin_anew(End::START)?;
                say_set_aside(log, aside);
                return Ok(None);
            }
            let cut = log.cut_to(to)?;
            say_set_aside(log, cut.aside);
            Ok(view)
        })?;
        if end != was {
            tracing::warn!(%was, %end, "the log is cut: the group goes on from an earlier place");
        }
        Ok(())
    }

    /// Replaces the log and the replica by the state that another member's replica wrote.
    ///
    /// The snapshot is written first, then the log is begun behind it: so a crash leaves the one or the other.
    pub(crate) fn take_state(&self, chain: Option<ChainValue>, from: &mut dyn Read) -> Result<(), RestoreError> {
        let Head { reached, logged } = read_head(from)?;
        let LogPlace { end: at, view, skips } = logged.ok_or(RestoreError::Foreign("it is of no durable group"))?;
        self.refuse_loss(at)?;
        // It must come before there is a snapshot: next to an own log that goes as far, the snapshot would be taken for
        // that log's.
        if self.is_of_life(life_of(&view)) {
            let (own, end) = (self.log_writer.skips(), self.log_writer.end().position);
            // The group need not have what was never acknowledged: its own log may lack the record.
            let (acknowledged, _) = self.acknowledged()?;
            let counts = |skip: &Skip| skip.version <= acknowledged || skips.get(skip.version).is_some();
            self.compare_skips(&own.before(end).only(counts), &skips.before(end))?;
        }
        let remote = RemoteLog::of(self.log_writer)?;
        self.write_snapshot(&remote.store, at, &view, from)?;
        let mut guard = borrow(self.replica)?;
        let Some(fetch) = self.exchange.begin_restoring() else {
            let (begin, end) = remote.extent()?;
            remote.store.remove_outside(begin.position, end.position)?;
            return Err(RestoreError::NotNeeded);
        };
        self.log_writer.set_stale(true);
        remote.change_end(move |log| {
            let aside = log.begin_anew_skipping(at, chain, skips)?;
            say_set_aside(log, aside);
            Ok(view)
        })?;
        let mut snapshot = remote.store.open(at.position)?;
        match catch_unwind(AssertUnwindSafe(|| guard.restore(&mut snapshot))) {
            Ok(restored) => restored?,
            Err(_) => {
                guard.spoil();
                return Err(RestoreError::Panicked);
            }
        }
        self.log_writer.set_stale(false);
        self.exchange.restored(fetch, reached);
        Ok(())
    }

    /// Writes the incoming state as a snapshot. A disk that refuses it has no room for the log either, so the log
    /// fails: asking for the state again would not help.
    fn write_snapshot(
        &self,
        store: &SnapshotStore,
        at: End,
        view: &LastView,
        from: &mut dyn Read,
    ) -> Result<(), RestoreError> {
        let mut from = Incoming { from, failed: false };
        let written = store.begin(at, view.as_ref()).and_then(|mut snapshot| {
            io::copy(&mut from, &mut snapshot).map_err(SnapshotStoreError::Write)?;
            SnapshotContents::finish(snapshot)
        });
        written.map_err(|error| match error {
            SnapshotStoreError::Write(error) if from.failed => RestoreError::Failed(error),
            error => {
                let why = format!("the group's state, which this node gets from another, can't be kept: {error}");
                self.log_writer.fail(why.clone());
                RestoreError::NotKept(why)
            }
        })
    }

    /// Tells whether this node's log, which a state is to replace, is of the same life of the group as the state.
    /// Otherwise its versions may name other commands than those of that life.
    fn is_of_life(&self, life: ClusterId) -> bool {
        let (own, end) = (self.log_writer.life(), self.log_writer.end());
        if end != End::START && own != life {
            tracing::warn!(%end, ?own, ?life, "this node's log is of a life of the group that an operator ended: a state takes its place");
        }
        own == life
    }

    /// Appends the records that another member's log has behind a place of this one, and applies them. Records of this
    /// log behind that place are void.
    pub(crate) fn take_suffix(&self, divergence: Divergence, from: &mut dyn Read) -> Result<(), RestoreError> {
        let Head { reached, logged } = read_head(from)?;
        let LogPlace { end: to, skips, .. } = logged.ok_or(RestoreError::Foreign("it is of no durable group"))?;
        let at = position(divergence.at);
        let cut = End { position: at, version: divergence.version, time: Hlc(divergence.time) };
        // Another fetch may change the log until the replica is borrowed.
        let mut guard = borrow(self.replica)?;
        let fetch = self.exchange.begin_restoring().ok_or(RestoreError::NotNeeded)?;
        match ask(self.log_writer, move |log| log.at_position(at))? {
            Ok(own) if own == cut => {}
            Ok(own) => return Err(RestoreError::Differs(own)),
            Err(error) => return Err(RebuildError::from(ReplayError::from(error)).into()),
        }
        self.refuse_loss(cut)?;
        self.compare_skips(&self.log_writer.skips().before(at), &skips.before(at))?;
        let mut noted = None;
        let taken = catch_unwind(AssertUnwindSafe(|| self.append_suffix(&mut guard, cut, skips, from, &mut noted)));
        match taken.unwrap_or(Err(RestoreError::Panicked)) {
            Err(RestoreError::Panicked) => {
                guard.spoil();
                if let Some(given) = noted {
                    self.log_writer.end_node(EndReason::Poison(given.help(&self.log_writer.directory)));
                }
                return Err(RestoreError::Panicked);
            }
            taken => taken?,
        }
        if self.log_writer.end() != to {
            return Err(RestoreError::Differs(self.log_writer.end()));
        }
        self.exchange.restored(fetch, reached);
        Ok(())
    }

    /// Refuses to give up what was acknowledged, unless an operator has accepted that. What was acknowledged counts
    /// only as far as the log is sound: damaged records are to be replaced.
    fn refuse_loss(&self, to: End) -> Result<(), RestoreError> {
        if self.log_writer.is_forced() {
            return Ok(());
        }
        let (has, directory) = self.acknowledged()?;
        if has <= to.version {
            return Ok(());
        }
        let why = format!(
            "the group has gone back: it goes on behind version {}, and this node's log has versions up to {has} that were acknowledged. \
             They stay in {}, and `squall log read` shows them. To go on without them, move this node's directory away, and start it \
             with an empty one, to join",
            to.version,
            directory.display()
        );
        self.log_writer.set_went_back(why.clone());
        Err(RestoreError::WentBack(why))
    }

    /// Returns the version up to which this node's log was acknowledged, as far as it is sound, and its directory.
    fn acknowledged(&self) -> Result<(u64, PathBuf), RestoreError> {
        let is_stale = self.log_writer.is_stale();
        Ok(ask(self.log_writer, move |log| {
            let counts = !is_stale && !log.is_trusted();
            let has = if counts { log.acknowledged().min(log.persisted().version) } else { 0 };
            (has, log.storage().path(""))
        })?)
    }

    /// Compares the commands that a source has skipped with those that this node has skipped, as far as its log is of
    /// use. If they differ, the replicas differ as well, and this node ends.
    fn compare_skips(&self, own: &Skips, theirs: &Skips) -> Result<(), RestoreError> {
        if own.is_alike(theirs) {
            return Ok(());
        }
        let directory = self.log_writer.directory.display();
        let why = format!(
            "the log in {directory} skips {}, and the group's members skip {}, of what that log has: end the node, and say the same of it \
             with `squall log skip`; or remove the log, and the node gets the group's",
            named(own),
            named(theirs)
        );
        self.log_writer.end_node(EndReason::Skips(why.clone()));
        Err(RestoreError::NotKept(why))
    }

    /// Marks a log that is damaged, and so may have had more than it has now, before it continues with another member's
    /// records.
    fn mark_damaged(&self) -> Result<(), RestoreError> {
        let (log_writer, is_stale) = (Arc::clone(self.log_writer), self.log_writer.is_stale());
        let marked = ask(self.log_writer, move |log| {
            if is_stale || log.end_damage().is_some() || log.missing().is_some() || log.is_doubtful() {
                log_writer.begin_anew(log)
            } else {
                Ok(())
            }
        })?;
        marked.map_err(|error| RestoreError::NotKept(error.to_string()))
    }

    fn append_suffix(
        &self,
        service: &mut S,
        cut: End,
        skips: Skips,
        from: &mut dyn Read,
        noted: &mut Option<Given>,
    ) -> Result<(), RestoreError> {
        self.mark_damaged()?;
        if self.log_writer.is_stale() || self.log_writer.end() != cut {
            self.cut_log(recovery::place(cut.position))?;
            self.log_writer.set_stale(true);
            let rebuilt = self.rebuild(service, &mut |_| Err("it is to be replaced".to_owned()))?;
            if rebuilt.end != Some(cut) || !rebuilt.is_whole() {
                return Err(RestoreError::NotKept(format!("the replica could not be taken back to {cut}")));
            }
        }
        // The skips must be set before the first record comes that is one of them.
        let failed = || RestoreError::NotKept("the log can't be written any more".to_owned());
        self.log_writer.set_skips(skips.clone()).ok_or_else(failed)?;
        let mut scratch = AlignedVec::new();
        while let Some(batch) = read_batch(from)? {
            let records = import(&batch).map_err(io::Error::other)?;
            records.iter().try_for_each(|record| self.append(service, record, &skips, &mut scratch, noted))?;
        }
        Ok(())
    }

    fn append(
        &self,
        service: &mut S,
        record: &Record<'_>,
        skips: &Skips,
        scratch: &mut AlignedVec,
        noted: &mut Option<Given>,
    ) -> Result<(), RestoreError> {
        if !self.log_writer.wait_for_room() {
            return Err(match (self.log_writer.failure(), self.log_writer.no_room()) {
                (None, Some(why)) => RestoreError::Failed(io::Error::new(ErrorKind::StorageFull, why)),
                (failure, _) => RestoreError::NotKept(failure.unwrap_or("the log has ended").to_owned()),
            });
        }
        let mut guard = self.log_writer.append();
        let appended = match &record.body {
            Body::Message { sender, payload } => {
                guard.message(record.position, record.time, *sender, Payload::kept(payload))
            }
            Body::View(view) => guard.view(record.position.epoch, view),
        };
        let end = appended.map_err(|error| RestoreError::NotKept(error.to_string()))?;
        drop(guard);
        match &record.body {
            Body::Message { sender, payload } => {
                let Position { epoch, seq } = record.position;
                let message =
                    Message { epoch, seq, sender: *sender, time: end.time, payload: Payload::kept(payload), ticket: 0 };
                let stamp = Stamp::logged(end);
                give(service, &message, stamp, skips.has(record), scratch, noted);
            }
            Body::View(view) => service.view_changed(&ViewChange::of_record(record.position.epoch, view)),
        }
        if (end.version, end.time) != (record.version, record.time) {
            return Err(RestoreError::Differs(end));
        }
        Ok(())
    }
}

/// A stream from another member. It notes its own errors, to tell them from those of the writer to which it is copied.
struct Incoming<'a> {
    from: &'a mut dyn Read,
    failed: bool,
}

impl Read for Incoming<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into);
        self.failed |= read.as_ref().is_err_and(|error| error.kind() != ErrorKind::Interrupted);
        read
    }
}

/// Returns skipped commands in words.
fn named(skips: &Skips) -> String {
    if skips.is_empty() {
        return "no command".to_owned();
    }
    let versions: Vec<String> = skips.iter().map(|skip| skip.version.to_string()).collect();
    format!("version {}", versions.join(", "))
}

/// Tells operators where the records are that the log no longer has.
fn say_set_aside(log: &DiskLog, aside: Option<String>) {
    if let Some(name) = aside {
        let directory = log.storage().path("");
        tracing::warn!(name, directory = %directory.display(), "the records that the log had there are set aside");
    }
}
