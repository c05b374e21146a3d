//! One member, driven as a runtime would.

use std::{cell::RefCell, collections::VecDeque, fmt, panic, rc::Rc, time::Duration};

use fastrand::Rng;
use squall_fabric::{Fabric, NodeId, Time, sim::SimFabric};
use squall_membership::{Epoch, Rank, Seq};
use squall_ordered::{Deliver, Deliverer, Message, Mode, Shard, SubmitRefused, Submitter, Undelivered};

use super::{BulkPlan, Entry, Oracle, Plan, Wrong, reluctant::Reluctant, within};

/// A read that waits.
struct Read {
    /// How many messages had been delivered, by whoever delivered most, when it was asked.
    at_least: u64,
    /// Whether another member was lost or wedged by then: such a read is never answered.
    hopeless: bool,
}

/// The application of one member.
pub(crate) struct App {
    me: usize,
    oracle: Rc<RefCell<Oracle>>,
    pub(crate) log: Vec<Entry>,
    /// What was delivered to a member that does not have the state, which is a log.
    backlog: Option<Vec<Kept>>,
    /// The end of the log that it got from another.
    restored: Option<(Epoch, Seq)>,
    reads: VecDeque<Read>,
    answered: usize,
}

/// A message that waits for the state.
struct Kept {
    epoch: Epoch,
    seq: Seq,
    sender: NodeId,
    bytes: Vec<u8>,
}

impl App {
    pub(crate) fn is_complete(&self) -> bool {
        self.backlog.is_none()
    }

    /// Takes another member's log, and what was kept behind it.
    fn restore(&mut self, log: &[Entry]) {
        let Some(backlog) = self.backlog.take() else { return };
        self.log = log.to_vec();
        self.restored = log.last().map(|last| (last.epoch, Seq(last.seq)));
        for Kept { epoch, seq, sender, bytes } in backlog {
            self.apply((epoch, seq, sender, 0), &bytes);
        }
    }

    fn apply(&mut self, message: (Epoch, Seq, NodeId, u32), bytes: &[u8]) {
        if self.restored.is_some_and(|end| (message.0, message.1) <= end) {
            return;
        }
        let entry = self.oracle.borrow_mut().delivered(self.me, &self.log, message, bytes);
        self.log.push(entry);
    }

    pub(crate) fn delivered(&self) -> u64 {
        self.log.len() as u64
    }
}

impl Deliver for App {
    fn deliver(&mut self, message: Message<'_>) {
        let mut bytes = Vec::new();
        message.payload.copy_to(&mut bytes);
        let Message { epoch, seq, sender, ticket, .. } = message;
        if let Some(backlog) = &mut self.backlog {
            return backlog.push(Kept { epoch, seq, sender, bytes });
        }
        self.apply((epoch, seq, sender, ticket), &bytes);
    }

    fn answer(&mut self, count: u64) {
        for _ in 0..count {
            let delivered = self.delivered();
            let mut oracle = self.oracle.borrow_mut();
            match self.reads.pop_front() {
                None => oracle.wrong(format!("member {} was told to answer a read that nobody asked", self.me)),
                Some(read) if read.hopeless => {
                    oracle.wrong(format!("member {} answered a read when another had wedged or was lost", self.me));
                }
                Some(read) if read.at_least > delivered => oracle.wrong(format!(
                    "member {} answered a read from {delivered} messages, when {} had been delivered before it",
                    self.me, read.at_least
                )),
                Some(_) => self.answered += 1,
            }
        }
    }
}

/// What a message that found no room waits for.
#[derive(Clone, Copy, Debug)]
enum Room {
    Small,
    Bulk,
}

/// When each of a member's threads is due.
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
    pub(crate) app: App,
    pub(crate) accepted: u64,
    /// How often a message found no room.
    pub(crate) full: usize,
    due: Due,
    waits_for: Option<Room>,
    to_send: usize,
    /// What the view before did not deliver, which goes first.
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
        let (log, reads) = (Vec::new(), VecDeque::new());
        let app = App { me, oracle: Rc::clone(&oracle), log, backlog: None, restored: None, reads, answered: 0 };
        Member {
            me,
            rank: Rank(me as u32),
            fabric: Reluctant::new(fabric, plan.refused, rng.fork()),
            submitter,
            shard,
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

    /// When it next does something by itself.
    pub(crate) fn due(&self) -> Time {
        match self.crashed {
            true => Time::MAX,
            false => self.due.engine.min(self.due.deliver).min(self.due.submit).min(self.due.ask),
        }
    }

    /// Does what is due.
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
        if self.due.engine <= now {
            self.step(now)?;
        }
        Ok(())
    }

    /// The engine: looks at what came, and steps the shard.
    pub(crate) fn step(&mut self, now: Time) -> Result<(), Wrong> {
        self.due.engine = Time::MAX;
        let mut completions = Vec::new();
        self.fabric.poll(now, &mut completions);
        for completion in &completions {
            // A member that is lost is the business of the layer above: here, of the world's script.
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
            match self.submitter.submit(&first.payload, first.ticket) {
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
        match self.submitter.submit(&Entry::payload(self.me, number, len), number as u32) {
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
        Ok(())
    }

    /// Sends more messages, from now on.
    pub(crate) fn send_more(&mut self, messages: usize) {
        self.to_send += messages;
        self.due.submit = Time::ZERO;
    }

    /// Lets its shard accept nothing more.
    pub(crate) fn close(&mut self) {
        self.submitter.close();
        self.to_send = 0;
        self.due.submit = Time::MAX;
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        self.to_send == 0 && self.resubmit.is_empty() && self.to_ask == 0 && self.app.reads.is_empty()
    }

    pub(crate) fn crash(&mut self) {
        self.crashed = true;
        self.oracle.borrow_mut().left(self.me);
    }

    /// What its row says, as of now.
    pub(crate) fn row(&self) -> squall_ordered::Row {
        self.shard.row(self.rank)
    }

    pub(crate) fn received(&self) -> Seq {
        Seq(self.row().received)
    }

    pub(crate) fn wedge(&mut self) -> Seq {
        self.wedged = true;
        self.oracle.borrow_mut().left(self.me);
        let last = self.shard.wedge();
        if self.mode == Mode::Ordered {
            assert_eq!(last, self.received());
        }
        last
    }

    /// What the shard refuses with a panic counts as wrong too.
    pub(crate) fn clean_up(&mut self, trim: Seq, counted: bool) -> Result<(), Wrong> {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(|_| {}));
        let result = panic::catch_unwind(panic::AssertUnwindSafe(|| self.shard.clean_up(trim, counted)));
        panic::set_hook(hook);
        self.due.engine = Time::ZERO;
        result.map_err(|_| Wrong(format!("member {} refused the trim {trim}", self.me)))
    }

    /// It learns that it was dropped.
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

    /// The next view: what the one before did not deliver goes first, and reads that wait are asked again.
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
        (self.rank, self.wedged, self.waits_for) = (rank, false, None);
        (self.resubmit, self.to_send) = (resubmit.into(), to_send);
        for read in &mut self.app.reads {
            read.hopeless = false;
            self.submitter.ask_read();
        }
        self.due = Due { engine: now, deliver: Time::MAX, submit: now, ask: self.due.ask };
    }

    /// It does not have the state, and begins to keep what is delivered from here on.
    pub(crate) fn begin_backlog(&mut self) {
        self.app.backlog = Some(Vec::new());
        self.to_ask = 0;
        self.due.ask = Time::MAX;
    }

    pub(crate) fn restore(&mut self, log: &[Entry]) {
        self.app.restore(log);
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Member { me, accepted, full, to_send, to_ask, due, .. } = self;
        write!(
            f,
            "member {me}: accepted {accepted} (full {full} times, {to_send} to come), delivered {}, reads {} waiting and \
             {to_ask} to come, {:?}, {due:?}",
            self.app.delivered(),
            self.app.reads.len(),
            self.row(),
        )
    }
}
