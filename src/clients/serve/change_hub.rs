//! The changes of a group's replica, and the clients of this node that watch them.
//!
//! The delivering thread only appends. One thread for all groups of a node goes through the watches, and queues what
//! their credit permits. A watch holds no changes of its own, since all read from the one history. But each is looked
//! at in each round, so a node has a [limit](super::watch_limit) of them.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use squall_fabric::sync::Lock;
use squall_ordered::log::Hlc;

use super::{
    history::ChangeHistory,
    outbox::{HeldAnswer, Outbox},
    watch_limit::WatchPermit,
    watch_signal::WatchSignal,
};
use crate::{
    clients::{
        changes::{ChangePlace, ReportedChange},
        wire::{ToClient, WatchEnd, WatchStart},
    },
    replica::replicated::Stamp,
};

/// The part of the kept changes that may pass without a word to a watch that none of them concerns: with the place up
/// to which the node has looked, such a watch is never too far behind.
const MARKS: usize = 4;

/// The name of a watch at this node.
pub(super) type WatchKey = u64;

/// The changes of a replica, and those who watch.
#[derive(Debug, Default)]
pub(super) struct ChangeHub {
    max_bytes: usize,
    /// Whether a change may be undone until its version is persisted.
    durable: bool,
    /// The time of the replica's last message.
    now: AtomicU64,
    /// The version that can't be undone any more.
    persisted: AtomicU64,
    /// The version of the last change.
    newest: AtomicU64,
    watchers: AtomicUsize,
    state: Lock<HubState>,
    signal: OnceLock<Arc<WatchSignal>>,
}

#[derive(Debug, Default)]
struct HubState {
    history: ChangeHistory,
    watchers: BTreeMap<WatchKey, Watcher>,
    next: WatchKey,
}

/// A client that watches.
#[derive(Debug)]
struct Watcher {
    outbox: Arc<Outbox>,
    /// The client's number of the watch.
    number: u64,
    prefix: Vec<u8>,
    /// The bytes that it may still be sent. A change may exceed them.
    credit: i64,
    stage: WatchStage,
    /// The bytes of changes that were looked at since it was last told a place.
    unmarked: usize,
    _permit: WatchPermit,
}

#[derive(Debug)]
enum WatchStage {
    /// Its query is not answered yet.
    Asked,
    /// It is to begin at the end of what may be told.
    Now,
    /// It is to begin behind a place, as soon as the replica has come so far.
    Behind(ChangePlace),
    /// It is to begin with an answer that shows the state at a place, as soon as that can't be undone and the client
    /// has room for it.
    Answered(ChangePlace, HeldAnswer),
    /// It was told all up to a place.
    Following(ChangePlace),
}

impl ChangeHub {
    pub(super) fn new(max_bytes: usize, durable: bool) -> ChangeHub {
        ChangeHub { max_bytes, durable, ..ChangeHub::default() }
    }

    /// Whether a change may be undone until its version is persisted.
    pub(super) fn is_durable(&self) -> bool {
        self.durable
    }

    /// Notes the time of a message that the replica takes.
    pub(super) fn pass(&self, time: Hlc) {
        self.now.store(time.0, Ordering::Relaxed);
    }

    pub(super) fn append(&self, changes: Vec<ReportedChange>, time: Hlc, version: u64) {
        self.newest.store(version, Ordering::Relaxed);
        self.state.lock().history.append(changes, time, version, self.max_bytes);
        if version <= self.persisted.load(Ordering::Relaxed) {
            self.ring();
        }
    }

    /// Notes that a version can't be undone any more.
    pub(super) fn persisted(&self, version: u64) {
        let before = self.persisted.fetch_max(version, Ordering::Relaxed);
        if self.newest.load(Ordering::Relaxed) > before {
            self.ring();
        }
    }

    /// The place of the last change.
    pub(super) fn place(&self) -> ChangePlace {
        self.state.lock().history.place()
    }

    pub(super) fn history(&self) -> ChangeHistory {
        self.state.lock().history.clone()
    }

    /// Reads a history, behind the stamp of the message that was last when it was written.
    pub(super) fn read(&self, from: &mut dyn Read) -> io::Result<(Stamp, ChangeHistory)> {
        ChangeHistory::read(from, self.max_bytes)
    }

    /// Replaces the history by that of another copy of the state.
    pub(super) fn restore(&self, history: ChangeHistory, time: Hlc) {
        self.persisted.store(0, Ordering::Relaxed);
        self.newest.store(history.last_version(), Ordering::Relaxed);
        self.state.lock().history = history;
        // Only now: a place before this time is one that the history has.
        self.pass(time);
        // Watches may wait for what the other copy did not have.
        self.ring();
    }

    /// Tells whether the last change can be undone. If it is one of a view, it can be until a message follows.
    pub(super) fn can_be_undone(&self) -> bool {
        self.newest.load(Ordering::Relaxed) > self.persisted.load(Ordering::Relaxed)
    }

    /// Sets the signal of the thread that goes through the watches.
    pub(super) fn set_signal(&self, signal: &Arc<WatchSignal>) {
        // A hub gets one signal, so this succeeds.
        let _ = self.signal.set(Arc::clone(signal));
    }

    fn ring(&self) {
        if self.watchers.load(Ordering::Relaxed) > 0 {
            self.signal.get().into_iter().for_each(|signal| signal.ring());
        }
    }

    /// Adds a watch. The answer to its query comes with [`answered`](ChangeHub::answered).
    pub(super) fn watch(
        &self,
        outbox: &Arc<Outbox>,
        number: u64,
        prefix: Vec<u8>,
        start: &WatchStart,
        credit: i64,
        permit: WatchPermit,
    ) -> WatchKey {
        let stage = match start {
            WatchStart::Now => WatchStage::Now,
            WatchStart::Behind(place) => WatchStage::Behind(*place),
            WatchStart::Query(_) => WatchStage::Asked,
        };
        let outbox = Arc::clone(outbox);
        let mut state = self.state.lock();
        state.next += 1;
        let key = state.next;
        state.watchers.insert(key, Watcher { outbox, number, prefix, credit, stage, unmarked: 0, _permit: permit });
        self.watchers.store(state.watchers.len(), Ordering::Relaxed);
        drop(state);
        self.ring();
        key
    }

    /// Lets a watch begin with the answer to its query, which shows the state at this place.
    pub(super) fn answered(&self, key: WatchKey, place: ChangePlace, answer: HeldAnswer) {
        if let Some(watcher) = self.state.lock().watchers.get_mut(&key) {
            watcher.stage = WatchStage::Answered(place, answer);
        }
        self.ring();
    }

    /// Gives a watch more credit.
    pub(super) fn more(&self, key: WatchKey, credit: u64) {
        if let Some(watcher) = self.state.lock().watchers.get_mut(&key) {
            watcher.credit = watcher.credit.saturating_add_unsigned(credit);
        }
        self.ring();
    }

    pub(super) fn unwatch(&self, key: WatchKey) {
        let mut state = self.state.lock();
        state.watchers.remove(&key);
        self.watchers.store(state.watchers.len(), Ordering::Relaxed);
    }

    /// Removes the keys of watches that have ended.
    pub(super) fn forget_ended(&self, keys: &mut BTreeMap<u64, WatchKey>) {
        let state = self.state.lock();
        keys.retain(|_, key| state.watchers.contains_key(key));
    }

    /// Goes through all watches once. Tells whether there is more to tell at once.
    pub(super) fn pump(&self) -> bool {
        let keys: Vec<WatchKey> = self.state.lock().watchers.keys().copied().collect();
        // Each has its turn, also behind one that has more to tell.
        keys.into_iter().filter(|key| self.pump_one(*key)).count() > 0
    }

    /// Tells one watch what is next. The lock is given back between two.
    fn pump_one(&self, key: WatchKey) -> bool {
        let mut state = self.state.lock();
        let HubState { history, watchers, .. } = &mut *state;
        let (now, persisted) = (Hlc(self.now.load(Ordering::Relaxed)), self.persisted.load(Ordering::Relaxed));
        let Some(watcher) = watchers.get_mut(&key) else { return false };
        let marks = self.max_bytes / MARKS;
        let outbox = Arc::clone(&watcher.outbox);
        let (step, more) = watcher.step(history, now, persisted, marks);
        if let Some(ToClient::WatchEnded { .. }) = step {
            watchers.remove(&key);
            self.watchers.store(watchers.len(), Ordering::Relaxed);
        }
        drop(state);
        step.into_iter().for_each(|message| outbox.push(message));
        more
    }
}

impl Watcher {
    /// Takes the next step of the watch. Tells whether the step after it can follow at once.
    fn step(&mut self, history: &ChangeHistory, now: Hlc, persisted: u64, marks: usize) -> (Option<ToClient>, bool) {
        if let WatchStage::Following(place) = self.stage {
            return self.follow(place, history, persisted, marks).unwrap_or_default();
        }
        let message = match self.begin(history, now, persisted) {
            None => None,
            Some(Ok((at, answer))) => {
                self.stage = WatchStage::Following(at);
                Some(ToClient::Watching { number: self.number, at, answer })
            }
            Some(Err(why)) => Some(ToClient::WatchEnded { number: self.number, why }),
        };
        let more = message.is_some();
        (message, more)
    }

    /// Returns the place at which the watch begins, and the answer to its query. None if that is not known yet.
    fn begin(&mut self, history: &ChangeHistory, now: Hlc, persisted: u64) -> Option<Result<WatchBegin, WatchEnd>> {
        match &mut self.stage {
            WatchStage::Asked => None,
            WatchStage::Now => history.tellable(persisted).map(|at| Ok((at, None))),
            WatchStage::Behind(place) => history.check(*place, now).map(|checked| checked.map(|()| (*place, None))),
            WatchStage::Answered(place, answer) => {
                let tellable = history.tellable(persisted)?;
                let may_begin = tellable.number >= place.number && self.outbox.has_room(answer.len());
                may_begin.then(|| Ok((*place, Some(answer.take()))))
            }
            WatchStage::Following(place) => Some(Ok((*place, None))),
        }
    }

    /// Tells what has changed behind a place. None if that is nothing, or if there is no room.
    fn follow(
        &mut self,
        place: ChangePlace,
        history: &ChangeHistory,
        persisted: u64,
        marks: usize,
    ) -> Option<(Option<ToClient>, bool)> {
        let number = self.number;
        let until = history.tellable(persisted).filter(|until| until.number > place.number)?;
        if !self.outbox.has_room(0) {
            return None;
        }
        let told = match history.tell(place, until.number, &self.prefix, self.credit) {
            Err(why) => return Some((Some(ToClient::WatchEnded { number, why }), false)),
            Ok(told) => told,
        };
        if !self.outbox.has_room(told.cost as usize) {
            return None;
        }
        self.stage = WatchStage::Following(told.upto);
        self.credit = self.credit.saturating_sub_unsigned(told.cost);
        self.unmarked += told.looked;
        let more = told.upto != place && told.upto != until;
        if told.changes.is_empty() && self.unmarked <= marks {
            return Some((None, more));
        }
        self.unmarked = 0;
        Some((Some(ToClient::Changes { number, upto: told.upto, changes: told.changes }), more))
    }
}

/// The place at which a watch begins, and the answer to its query.
type WatchBegin = (ChangePlace, Option<Vec<u8>>);

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use squall_fabric::{Time, share::Holder};

    use super::{super::budget::Budget, *};
    use crate::clients::changes::Changes;

    /// The size of the boxes of these tests.
    const BOX_BYTES: usize = 1000;

    fn outbox() -> Arc<Outbox> {
        Arc::new(Outbox::new(BOX_BYTES, Time::ZERO, Holder::Trusted, Budget::new(1 << 20)))
    }

    fn told(bytes: usize) -> ToClient {
        ToClient::Told { number: 0, answer: Ok(vec![0; bytes]) }
    }

    fn watch(hub: &ChangeHub, outbox: &Arc<Outbox>, start: &WatchStart) -> WatchKey {
        let permit = outbox.admit_watch().expect("there are few");
        hub.watch(outbox, 7, Vec::new(), start, 1 << 20, permit)
    }

    fn pump(hub: &ChangeHub) {
        while hub.pump() {}
    }

    /// Returns the kinds of the messages that wait.
    fn take(outbox: &Outbox) -> Vec<&'static str> {
        let kind = |message: ToClient| match message {
            ToClient::Told { .. } => "told",
            ToClient::Watching { .. } => "watching",
            ToClient::Changes { .. } => "changes",
            _ => "other",
        };
        outbox.take().into_iter().flatten().map(kind).collect()
    }

    #[test]
    fn changes_that_do_not_fit_wait_for_room_and_one_that_never_does_for_an_empty_box() {
        let (hub, outbox) = (ChangeHub::new(1 << 20, false), outbox());
        watch(&hub, &outbox, &WatchStart::Now);
        pump(&hub);
        assert_eq!(take(&outbox), ["watching"]);
        let append = |bytes| {
            let mut changes = Changes::default();
            changes.push(vec![0; bytes], &0_u64);
            hub.append(changes.take(), Hlc(1), 0);
            pump(&hub);
        };
        outbox.push(told(300));
        append(800);
        assert_eq!(take(&outbox), ["told"], "both do not fit");
        let signal = Arc::default();
        outbox.signal_room(&signal);
        append(2 * BOX_BYTES);
        let (tell, heard) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                while signal.wait() {
                    pump(&hub);
                }
            });
            let outbox = &outbox;
            scope.spawn(move || {
                outbox.push(ToClient::Pong);
                while !outbox.is_closed() {
                    take(outbox).into_iter().for_each(|kind| tell.send(kind).unwrap());
                }
            });
            let came = [(); 2].map(|()| heard.recv_timeout(Duration::from_secs(60)));
            let is_closed = outbox.is_closed();
            outbox.close();
            signal.stop();
            assert_eq!((came, is_closed), (["other", "changes"].map(Ok), false));
        });
    }

    #[test]
    fn the_answer_of_a_watch_waits_for_room_and_counts_until_then() {
        let (hub, outbox) = (ChangeHub::new(1 << 20, false), outbox());
        let key = watch(&hub, &outbox, &WatchStart::Query(Vec::new()));
        assert!(outbox.ask(1));
        outbox.push(told(300));
        let before = outbox.unread();
        hub.answered(key, ChangePlace::default(), HeldAnswer::new(&outbox, vec![0; 800]));
        pump(&hub);
        assert_eq!(outbox.unread(), before + 800);
        assert!(!outbox.ask(1), "it waits");
        assert_eq!(take(&outbox), ["told"]);
        outbox.push(ToClient::Pong);
        assert_eq!(take(&outbox), ["other"]);
        pump(&hub);
        assert_eq!(take(&outbox), ["watching"]);
        assert!(outbox.ask(1));
        // One that is not wanted any more is held no longer.
        let key = watch(&hub, &outbox, &WatchStart::Query(Vec::new()));
        let before = outbox.unread();
        hub.answered(key, ChangePlace::default(), HeldAnswer::new(&outbox, vec![0; 800]));
        hub.unwatch(key);
        assert_eq!(outbox.unread(), before);
        assert!(outbox.ask(1));
    }
}
