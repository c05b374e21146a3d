//! A group from its handle to its replica, on one node and stepped by hand.

mod allocation;
mod disks;
mod durable;
mod end;
mod join;
mod program;
mod read;
mod stress;
mod submit;
mod timers;
mod views;

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker as TaskWaker},
    time::Duration,
};

use rkyv::{Archive, Archived, Serialize};
use squall_fabric::{
    Completion, EndpointId, Fabric, GroupTag, NodeId, Op, PostError, Region, RegionKey, RegionKind, RegisterError,
    Time, Token, Waker,
};
use squall_membership::{
    ClusterId, EndReason, Epoch, Holder, Incarnation, Member, OrderEnd, Seq, ShardId, ShardState, ShardView, View,
    VoterId,
};
use squall_ordered::{BulkPath, Mode, Shard, ShardConfig, Undelivered, log::SimStorage};

use crate::{
    Applied, Config, Group, Replicated, Snapshot, Unavailable, ViewChange,
    calls::clock::Now,
    config::GroupBuilder,
    delivery::{
        Task,
        shard_change::{Fate, Installed, ShardChange},
    },
    durable::log_writer::{DiskLog, LogWriter},
    group::control::{GroupControl, GroupSpec, new_group},
    replica::service::Service,
};

/// A fabric without any other node.
#[derive(Default)]
struct Alone {
    made: u64,
    regions: Vec<Region>,
}

// SAFETY: no work is ever posted, and each region is an allocation of its own.
unsafe impl Fabric for Alone {
    fn node(&self) -> NodeId {
        NodeId(1)
    }

    fn register(&mut self, kind: RegionKind, bytes: usize) -> Result<Region, RegisterError> {
        self.made += 1;
        let region = Region::heap(kind, RegionKey(self.made), bytes);
        self.regions.push(region.clone());
        Ok(region)
    }

    fn connect(&mut self, _peer: NodeId, _tag: GroupTag, _expose: &[Region], _hello: &[u8]) -> EndpointId {
        self.made += 1;
        EndpointId(self.made)
    }

    fn disconnect(&mut self, _on: EndpointId) {}

    fn post(&mut self, _on: EndpointId, _op: Op<'_>, _token: Token) -> Result<(), PostError> {
        Err(PostError::NotConnected)
    }

    fn poll(&mut self, _now: Time, _out: &mut Vec<Completion>) {}
}

/// A replica that adds numbers up, and remembers texts.
#[derive(Debug, Default)]
struct Ledger {
    sum: u64,
    applied: usize,
    texts: Vec<String>,
    /// The views that it was told of, each with the number of messages applied before.
    views: Vec<(Epoch, usize)>,
    /// Called in the middle of `apply`.
    inside: Option<fn(&Group<Ledger>)>,
    own: Arc<OnceLock<Group<Ledger>>>,
}

#[derive(Archive, Serialize)]
enum Entry {
    Add(u64),
    Text(String),
}

impl Replicated for Ledger {
    type Command = Entry;
    type Reply = u64;

    fn apply(&mut self, entry: &Archived<Entry>, at: &Applied) -> u64 {
        assert_eq!(Some(at.epoch), self.views.last().map(|(epoch, _)| *epoch), "a view is told before its messages");
        self.applied += 1;
        match entry {
            Archived::<Entry>::Add(number) => self.sum += number.to_native(),
            Archived::<Entry>::Text(text) => self.texts.push(text.as_str().to_owned()),
        }
        if let (Some(inside), Some(own)) = (self.inside.take(), self.own.get()) {
            inside(own);
        }
        self.sum
    }

    fn snapshot(&self) -> Snapshot {
        let (epochs, counts): (Vec<u64>, Vec<u64>) = self.views.iter().map(|&(e, n)| (e.0, n as u64)).unzip();
        let words = [self.sum, self.applied as u64]
            .into_iter()
            .chain(epochs.into_iter().zip(counts).flat_map(<[u64; 2]>::from));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        Snapshot::of_bytes(bytes)
    }

    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)?;
        let mut words = bytes.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word));
        let mut next = || words.next().ok_or(io::ErrorKind::UnexpectedEof);
        (self.sum, self.applied) = (next()?, next()? as usize);
        self.views.clear();
        while let Ok(epoch) = next() {
            self.views.push((Epoch(epoch), next()? as usize));
        }
        Ok(())
    }

    fn view_changed(&mut self, change: &ViewChange) {
        self.views.push((change.epoch, self.applied));
    }
}

/// One node's part in a group.
struct Solo<S: Service> {
    clock: Arc<AtomicU64>,
    fabric: Alone,
    shard_config: ShardConfig,
    view: View,
    shard: Shard,
    task: Box<dyn Task>,
    control: Arc<dyn GroupControl>,
    group: Group<S>,
    now: Time,
    /// The number of times that the engine was woken.
    woken: Arc<AtomicUsize>,
    /// A durable group's log, and its disk.
    log: Option<(Arc<LogWriter>, DiskLog, SimStorage)>,
}

const SHARD: ShardId = ShardId(0);

fn config(set: impl FnOnce(&mut GroupBuilder<'_>)) -> Config {
    // Without a lease every read asks the other members. Some tests are about reads under a lease.
    let built = Config::builder("test", 1).members([1]).read_lease(Duration::ZERO).group("ledger", set);
    built.storage("nowhere").build().unwrap()
}

/// The first view of `members`, all of which hold the state.
fn first_view(members: &[NodeId], senders: &[NodeId]) -> View {
    View {
        life: ClusterId(1),
        epoch: Epoch::FIRST,
        members: members.iter().map(|&node| Member::new(node, Incarnation(1))).collect(),
        shards: vec![ShardView::whole(SHARD, members.to_vec(), senders.to_vec())],
        joined: members.to_vec(),
        left: Vec::new(),
        preferred: Default::default(),
    }
}

impl Solo<Ledger> {
    fn new(set: impl FnOnce(&mut GroupBuilder<'_>)) -> Solo<Ledger> {
        Solo::with(Ledger::default(), set)
    }
}

impl<S: Service> Solo<S> {
    fn with(service: S, set: impl FnOnce(&mut GroupBuilder<'_>)) -> Solo<S> {
        let config = config(set);
        let (group, spec) = new_group("ledger", service, &config);
        Solo::start(group, spec, &config, &[NodeId(1)], &[NodeId(1)])
    }

    fn start(
        group: Group<S>,
        spec: Box<dyn GroupSpec>,
        config: &Config,
        members: &[NodeId],
        senders: &[NodeId],
    ) -> Self {
        let view = first_view(members, senders);
        let options = config.group(spec.name());
        let shard_config = options.shard_config(BulkPath::Network, config.read_lease(), config.failure_timeout());
        let woken = Arc::new(AtomicUsize::new(0));
        let waker = {
            let woken = Arc::clone(&woken);
            Waker::new(move || _ = woken.fetch_add(1, Ordering::SeqCst))
        };
        let clock = Arc::new(AtomicU64::new(0));
        let log = (options.mode == Mode::Durable).then(durable::log);
        let log_writer = log.as_ref().map(|(log_writer, ..)| Arc::clone(log_writer));
        let (mut task, control) = spec.attach(
            NodeId(1),
            waker,
            Now::Virtual { boot: Arc::clone(&clock), wall: Arc::clone(&clock) },
            Arc::default(),
            log_writer,
        );
        let mut fabric = Alone::default();
        let shard = install(&mut fabric, &view, &shard_config, &mut *task, Vec::new());
        woken.store(0, Ordering::SeqCst);
        Solo { clock, fabric, shard_config, view, shard, task, control, group, now: Time::ZERO, woken, log }
    }

    /// Steps the shard as the engine does, without delivering.
    fn step_shard(&mut self) {
        self.clock.store(self.now.as_nanos(), Ordering::Relaxed);
        let stepped = self.shard.step(&mut self.fabric, self.now);
        if stepped.freed {
            self.control.admission().on_freed();
        }
        if stepped.freed_bulk {
            self.control.admission().on_freed_bulk();
        }
    }

    /// Steps everything once. Returns whether anything was delivered or answered.
    fn step(&mut self) -> bool {
        self.step_shard();
        let late = self.task.deadline().is_some_and(|deadline| deadline <= self.now);
        if !self.task.is_due() && !late {
            return false;
        }
        let ran = self.task.step(self.now, 512).unwrap();
        self.step_shard();
        ran.messages > 0 || ran.reads > 0
    }

    /// Writes what was appended to a durable group's log, once. Returns whether there was anything.
    fn write(&mut self) -> bool {
        self.log.as_mut().is_some_and(|(log_writer, log, _)| log_writer.is_due() && log_writer.write(log))
    }

    /// Steps until nothing happens any more.
    fn settle(&mut self) {
        while self.step() {}
    }

    fn advance(&mut self, by: Duration) {
        self.now = self.now + by;
        self.settle();
    }

    /// Ends the view as the node's core does: delivers all messages that this node has received, and returns the
    /// others.
    fn end_view(&mut self) -> Vec<Undelivered> {
        let trim = self.shard.wedge();
        self.shard.clean_up(trim, true);
        while !self.shard.is_ended() {
            self.step();
            self.write();
        }
        loop {
            match self.shard.undelivered() {
                Some(undelivered) => return undelivered,
                None => std::thread::yield_now(),
            }
        }
    }

    /// Installs the view after the current one, once `change` has changed it.
    fn install_next(&mut self, undelivered: Vec<Undelivered>, change: impl FnOnce(&mut View)) {
        self.view.epoch = Epoch(self.view.epoch.0 + 1);
        self.view.joined.clear();
        change(&mut self.view);
        self.shard = install(&mut self.fabric, &self.view, &self.shard_config, &mut *self.task, undelivered);
    }

    /// Ends the view, and installs one alike.
    fn next_view(&mut self) {
        let undelivered = self.end_view();
        self.install_next(undelivered, |_| ());
    }

    /// Ends the group as the node's core does.
    fn end(&mut self, reason: &EndReason, fate: Fate) {
        self.shard.wedge();
        self.shard.close();
        let undelivered = self.shard.undelivered().unwrap();
        self.task.change(ShardChange::End { undelivered: with_fate(undelivered, fate), reason: reason.clone() });
    }
}

/// The event that the node is no member of the shard.
fn outside(undelivered: Vec<(Undelivered, Fate)>, why: Unavailable) -> ShardChange {
    ShardChange::Outside { undelivered, why }
}

/// Creates a node's part of a view's shard, and hands it to the task.
fn install<F: Fabric>(
    fabric: &mut F,
    view: &View,
    config: &ShardConfig,
    task: &mut dyn Task,
    resubmit: Vec<Undelivered>,
) -> Shard {
    let (submitter, shard, deliverer) = squall_ordered::create(fabric, view, SHARD, config).unwrap();
    let view = Arc::new(view.clone());
    task.change(ShardChange::Install(Box::new(Installed {
        view,
        shard: SHARD,
        submitter,
        deliverer,
        resubmit,
        fell_short: false,
    })));
    shard
}

fn with_fate(messages: Vec<Undelivered>, fate: Fate) -> Vec<(Undelivered, Fate)> {
    messages.into_iter().map(|message| (message, fate)).collect()
}

/// A task that counts its wake-ups.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Counting {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Polls once, for a task that counts.
fn poll_for<F: Future + Unpin>(future: &mut F, task: &Arc<Counting>) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(&TaskWaker::from(Arc::clone(task))))
}

/// Node 1 with a peer, node 2, the memory of the peer's row in the shard's table, and the configuration.
fn with_a_peer() -> (Solo<Ledger>, Region, Config) {
    let config = Config::builder("test", 1).members([1]).build().unwrap();
    let (group, spec) = new_group("ledger", Ledger::default(), &config);
    let nodes = [NodeId(1), NodeId(2)];
    let solo = Solo::start(group, spec, &config, &nodes, &nodes);
    let mut rows = solo.fabric.regions.iter().filter(|region| region.len() < 4096);
    let row = rows.nth(1).expect("the shard's table has two rows").clone();
    (solo, row, config)
}

/// Polls once, without a task.
fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(TaskWaker::noop()))
}
