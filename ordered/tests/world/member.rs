//! One member, driven as a runtime would drive it.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    fmt, panic,
    rc::Rc,
    sync::Once,
    thread,
    time::Duration,
};

use fastrand::Rng;
use squall_fabric::{Fabric, NodeId, Time, sim::SimFabric};
use squall_membership::{Rank, Seq};
use squall_ordered::{Deliverer, Mode, Persisted, Shard, SubmitRefused, Submitter, Tag, Undelivered};

use super::{
    BulkPlan, Disk, Entry, Fault, Oracle, Plan, Wrong,
    app::{App, Read},
    reluctant::Reluctant,
    within,
};

thread_local! {
    /// Whether a panic of this thread says nothing.
    static IS_SILENT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `run`, whose panic says nothing. Those of other threads do.
fn caught(run: impl FnOnce()) -> thread::Result<()> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !IS_SILENT.get() {
                usual(panic);
            }
        }));
    });
    IS_SILENT.set(true);
    let result = panic::catch_unwind(panic::AssertUnwindSafe(run));
    IS_SILENT.set(false);
    result
}

/// The memory for which a message that found no room waits.
#[derive(Clone, Copy, Debug)]
enum Room {
    Small,
    Bulk,
}

/// The times at which each of a member's threads is due.
#[derive(Debug)]
struct Due {
    engine: Time,
    deliver: Time,
    submit: Time,
    ask: Time,
}

pub(crate) struct Member {
    me: usize,
    rank: Rank,
    fabric: Reluctant<SimFabric>,
    submitter: Submitter,
    shard: Shard,
    deliverer: Deliverer,
    persisted: Persisted,
    /// Durable mode: the version from which the member counts in this view.
    began: Option<u64>,
    tells_early: bool,
    pub(crate) app: App,
    pub(crate) accepted: u64,
    /// The number of times that a message found no room.
    pub(crate) full: usize,
    due: Due,
    waits_for: Option<Room>,
    to_send: usize,
    /// The messages that the view before did not deliver, which go first.
    resubmit: VecDeque<Undelivered>,
    to_ask: usize,
    crashed: bool,
    wedged: bool,
    mode: Mode,
    max_bytes: usize,
    bulk: Option<BulkPlan>,
    pace: Duration,
    delivery_delay: Duration,
    batch: usize,
    rng: Rng,
    oracle: Rc<RefCell<Oracle>>,
}

impl Member {
    pub(crate) fn new(
        me: usize,
        plan: &Plan,
        fabric: SimFabric,
        (submitter, shard, deliverer): (Submitter, Shard, Deliverer),
        oracle: Rc<RefCell<Oracle>>,
        mut rng: Rng,
    ) -> Member {
        let to_send = if plan.senders.contains(&me) { plan.messages[me] } else { 0 };
        let later = |rng: &mut Rng, any: bool| if any { Time::ZERO + within(rng, plan.pace) } else { Time::MAX };
        let due = Due {
            engine: Time::ZERO,
            deliver: Time::MAX,
            submit: later(&mut rng, to_send > 0),
            ask: later(&mut rng, plan.reads > 0),
        };
        let app = App::new(me, plan, Rc::clone(&oracle));
        Member {
            me,
            rank: Rank(me as u32),
            fabric: Reluctant::new(fabric, plan.refused, rng.fork()),
            submitter,
            shard,
            persisted: deliverer.persisted(),
            began: None,
            tells_early: plan.fault == Some(Fault::TellEarly),
            deliverer,
            app,
            accepted: 0,
            full: 0,
            due,
            waits_for: None,
            to_send,
            resubmit: VecDeque::new(),
            to_ask: plan.reads,
            crashed: false,
            wedged: false,
            mode: plan.mode,
            max_bytes: plan.max_bytes,
            bulk: plan.bulk,
            pace: plan.pace,
            delivery_delay: plan.delivery_delay,
            batch: plan.batch,
            rng,
            oracle,
        }
    }

    pub(crate) fn node(&self) -> NodeId {
        self.fabric.node()
    }

    /// The time at which it next does something by itself.
    pub(crate) fn due(&self) -> Time {
        match self.crashed {
            true => Time::MAX,
            false => {
                let disk = self.app.disk.as_ref().map_or(Time::MAX, |disk| disk.due);
                self.due.engine.min(self.due.deliver).min(self.due.submit).min(self.due.ask).min(disk)
            }
        }
    }

    /// Runs the threads that are due.
    pub(crate) fn fire(&mut self, now: Time) -> Result<(), Wrong> {
        if self.crashed {
            return Ok(());
        }
        if self.due.submit <= now {
            self.submit(now);
        }
        if self.due.ask <= now {
            self.ask(now);
        }
        if self.due.deliver <= now {
            self.deliver(now)?;
        }
        if self.app.disk.as_ref().is_some_and(|disk| disk.due <= now) {
            self.written(now);
        }
        if self.due.engine <= now {
            self.step(now)?;
        }
        Ok(())
    }

    /// Runs the engine: it handles completions, and steps the shard.
    pub(crate) fn step(&mut self, now: Time) -> Result<(), Wrong> {
        self.due.engine = Time::MAX;
        let mut completions = Vec::new();
        self.fabric.poll(now, &mut completions);
        for completion in &completions {
            // A lost member concerns the layer above: here, the world's script.
            self.shard.on_completion(&mut self.fabric, completion);
        }
        let stepped = self.shard.step(&mut self.fabric, now);
        if stepped.busy || self.fabric.owes_room() {
            self.wake_engine(now);
        }
        if stepped.deliver {
            self.due.deliver = self.due.deliver.min(now + within(&mut self.rng, self.delivery_delay));
        }
        if let Some((node, why)) = self.shard.take_faulty().pop() {
            return Err(Wrong(format!("member {} blames {node}: {why}", self.me)));
        }
        if self.row().persisted > 0 && !self.is_complete() {
            return Err(Wrong(format!("{self:?} counts, though it lacks what was before")));
        }
        let freed = match self.waits_for {
            None => false,
            Some(Room::Bulk) => stepped.freed_bulk,
            Some(Room::Small) => stepped.freed || stepped.freed_bulk,
        };
        if freed && self.to_send + self.resubmit.len() > 0 {
            self.waits_for = None;
            self.due.submit = now + within(&mut self.rng, Duration::from_micros(2));
        }
        Ok(())
    }

    fn wake_engine(&mut self, now: Time) {
        let soon = now + within(&mut self.rng, Duration::from_nanos(500));
        self.due.engine = self.due.engine.min(soon);
    }

    fn submit(&mut self, now: Time) {
        self.due.submit = Time::MAX;
        while let Some(first) = self.resubmit.front() {
            match self.submitter.submit(&first.payload, first.tag) {
                Ok(()) => {
                    self.resubmit.pop_front();
                    self.wake_engine(now);
                }
                Err(SubmitRefused::Full) => {
                    let is_bulk = self.submitter.is_bulk(first.payload.len());
                    return self.waits_for = Some(if is_bulk { Room::Bulk } else { Room::Small });
                }
                Err(SubmitRefused::Closed) if self.wedged => return,
                Err(refused) => return self.oracle.borrow_mut().wrong(format!("member {}: {refused}", self.me)),
            }
        }
        if self.to_send == 0 {
            return;
        }
        let number = self.accepted + 1;
        let most = self.submitter.max_bytes();
        let len = match self.bulk {
            Some(bulk) if self.rng.u8(..) < bulk.share => bulk.length(most, &mut self.rng),
            _ if self.rng.u8(..8) == 0 => self.max_bytes.min(most),
            _ => self.rng.usize(..=self.max_bytes.min(most)),
        };
        match self.submitter.submit(&Entry::payload(self.me, number, len), Tag { ticket: number as u32, time: number })
        {
            Ok(()) => {
                self.accepted = number;
                self.to_send -= 1;
                if self.to_send > 0 {
                    self.due.submit = now + within(&mut self.rng, self.pace);
                }
                self.oracle.borrow_mut().accepted(self.me, len);
                self.wake_engine(now);
            }
            Err(SubmitRefused::Full) => {
                self.full += 1;
                self.waits_for = Some(if self.submitter.is_bulk(len) { Room::Bulk } else { Room::Small });
            }
            Err(SubmitRefused::Closed) if self.wedged => {}
            Err(refused) => self.oracle.borrow_mut().wrong(format!("member {}: {refused}", self.me)),
        }
    }

    fn ask(&mut self, now: Time) {
        self.to_ask -= 1;
        self.due.ask = if self.to_ask > 0 { now + within(&mut self.rng, self.pace) } else { Time::MAX };
        let (at_least, hopeless) = self.oracle.borrow().read_asked(self.me);
        self.app.reads.push_back(Read { at_least, hopeless });
        self.submitter.ask_read();
        self.wake_engine(now);
    }

    fn deliver(&mut self, now: Time) -> Result<(), Wrong> {
        self.due.deliver = Time::MAX;
        let ran = self.deliverer.run(self.batch, &mut self.app).map_err(|error| Wrong(error.to_string()))?;
        self.wake_engine(now);
        if ran.more != self.deliverer.is_due() {
            return Err(Wrong(format!("member {}: {ran:?}, but is_due is {}", self.me, !ran.more)));
        }
        if ran.more {
            self.due.deliver = now + within(&mut self.rng, self.delivery_delay);
        }
        if self.deliverer.version().is_some_and(|version| version != self.app.delivered()) {
            return Err(Wrong(format!("{self:?} is told that this is version {:?}", self.deliverer.version())));
        }
        self.begin();
        self.write(now);
        Ok(())
    }

    /// Durable mode: counts versions, once its log goes as far as its deliverer.
    pub(crate) fn begin(&mut self) {
        let Some(disk) = self.app.disk.as_ref().filter(|_| self.began.is_none() && self.app.is_complete()) else {
            return;
        };
        let turns: u64 = self.deliverer.turns().iter().sum();
        if self.app.restored.is_some_and(|(epoch, seq)| epoch == self.deliverer.epoch() && seq.0 >= turns) {
            return;
        }
        let version = self.app.delivered();
        self.began = Some(version);
        self.deliverer.begin(version);
        self.persisted.set(disk.persisted());
        self.due.engine = Time::ZERO;
    }

    /// Lets the storage thread begin a batch.
    fn write(&mut self, now: Time) {
        let Some(disk) = &mut self.app.disk else { return };
        if disk.write(now, &mut self.rng) && self.tells_early {
            self.persisted.set(disk.writing());
            self.wake_engine(now);
        }
    }

    /// Lets the storage thread complete a batch.
    fn written(&mut self, now: Time) {
        let Some(disk) = &mut self.app.disk else { return };
        disk.complete();
        self.oracle.borrow_mut().persisted(self.me, disk.persisted());
        self.persisted.set(disk.persisted());
        self.wake_engine(now);
        self.write(now);
    }

    /// Stops its disk.
    pub(crate) fn stop_disk(&mut self) {
        self.app.disk.as_mut().expect("a durable shard").stop();
    }

    pub(crate) fn start_disk(&mut self, now: Time) {
        self.app.disk.as_mut().expect("a durable shard").go_on();
        self.write(now);
    }

    /// Whether it holds the state and all messages that followed, on disk in a durable shard.
    pub(crate) fn is_complete(&self) -> bool {
        let on_disk = |disk: &Disk| self.began.is_some_and(|version| disk.persisted() >= version);
        self.app.is_complete() && self.app.disk.as_ref().is_none_or(on_disk)
    }

    /// Whether all versions that it told or could tell its callers are on all disks.
    fn is_safe(&self) -> bool {
        self.app.held.is_empty() && (self.app.disk.is_none() || self.app.globally_persisted >= self.app.delivered())
    }

    /// Sends more messages, from now on.
    pub(crate) fn send_more(&mut self, messages: usize) {
        self.to_send += messages;
        self.due.submit = Time::ZERO;
    }

    /// Asks for more reads, from now on.
    pub(crate) fn read_more(&mut self, reads: usize) {
        self.to_ask += reads;
        self.due.ask = Time::ZERO;
    }

    /// Closes its shard for further messages.
    pub(crate) fn close(&mut self) {
        self.submitter.close();
        self.to_send = 0;
        self.due.submit = Time::MAX;
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        self.to_send == 0 && self.resubmit.is_empty() && self.to_ask == 0 && self.app.reads.is_empty() && self.is_safe()
    }

    pub(crate) fn crash(&mut self) {
        self.crashed = true;
        self.oracle.borrow_mut().left(self.me);
    }

    /// Its own row, as of now.
    pub(crate) fn row(&self) -> squall_ordered::Row {
        self.row_of(self.rank)
    }

    /// Another member's row, as it sees it.
    pub(crate) fn row_of(&self, rank: Rank) -> squall_ordered::Row {
        self.shard.row(rank)
    }

    pub(crate) fn received(&self) -> Seq {
        Seq(self.row().received)
    }

    pub(crate) fn wedge(&mut self) -> Seq {
        self.wedged = true;
        self.oracle.borrow_mut().left(self.me);
        let last = self.shard.wedge();
        if self.mode.is_ordered() {
            assert_eq!(last, self.received());
        }
        last
    }

    /// A refusal of the shard by a panic counts as wrong, too.
    pub(crate) fn clean_up(&mut self, trim: Seq, counted: bool) -> Result<(), Wrong> {
        let result = caught(|| self.shard.clean_up(trim, counted));
        self.due.engine = Time::ZERO;
        result.map_err(|_| Wrong(format!("member {} refused the trim {trim}", self.me)))
    }

    /// Tells it that it was dropped.
    pub(crate) fn abandon(&mut self) {
        self.wedge();
        self.shard.abandon();
    }

    pub(crate) fn is_short(&self) -> bool {
        self.shard.is_short()
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.shard.is_ended()
    }

    pub(crate) fn undelivered(&mut self) -> Vec<Undelivered> {
        let mut undelivered = self.shard.undelivered().expect("no thread is completing a message");
        // None of these was accepted in this view.
        undelivered.extend(self.resubmit.drain(..).map(|message| Undelivered { place: None, ..message }));
        undelivered
    }

    pub(crate) fn set_rank(&mut self, rank: Rank) {
        self.rank = rank;
    }

    pub(crate) fn fabric(&mut self) -> &mut impl Fabric {
        &mut self.fabric
    }

    /// Installs the next view: messages that the one before did not deliver go first, and reads that wait are asked
    /// again.
    pub(crate) fn install(
        &mut self,
        now: Time,
        rank: Rank,
        (submitter, shard, deliverer): (Submitter, Shard, Deliverer),
        resubmit: Vec<Undelivered>,
        to_send: usize,
    ) {
        self.shard.disconnect(&mut self.fabric);
        (self.submitter, self.shard, self.deliverer) = (submitter, shard, deliverer);
        (self.persisted, self.began) = (self.deliverer.persisted(), None);
        (self.rank, self.waits_for) = (rank, None);
        self.wedged = false;
        (self.resubmit, self.to_send) = (resubmit.into(), to_send);
        for read in &mut self.app.reads {
            read.hopeless = false;
            self.submitter.ask_read();
        }
        self.due = Due { engine: now, deliver: Time::MAX, submit: now, ask: self.due.ask };
        self.begin();
    }

    /// Sets the members that were complete when the view began.
    pub(crate) fn set_counts(&mut self, complete: &[usize]) {
        self.app.counts = complete.to_vec();
    }

    /// Begins to keep the messages that are delivered from here on, since the member does not have the state.
    pub(crate) fn begin_backlog(&mut self) {
        self.app.backlog = Some(Vec::new());
        self.to_ask = 0;
        self.due.ask = Time::MAX;
    }

    pub(crate) fn restore(&mut self, now: Time, log: &[Entry]) {
        self.app.restore(log);
        self.begin();
        self.write(now);
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Member { me, accepted, full, to_send, to_ask, due, .. } = self;
        write!(
            f,
            "member {me}: accepted {accepted} (full {full} times, {to_send} to come), delivered {}, reads {} waiting and \
             {to_ask} to come, {:?}, {:?}, safe {}, {due:?}",
            self.app.delivered(),
            self.app.reads.len(),
            self.row(),
            self.app.disk,
            self.app.globally_persisted,
        )
    }
}
