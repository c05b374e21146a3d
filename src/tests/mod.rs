//! A group from its handle to its replica, on one node and stepped by hand.

mod allocation;
mod end;
mod read;
mod stress;
mod submit;

use std::{
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
use squall_membership::{EndReason, Epoch, Incarnation, Member, ShardId, ShardView, View};
use squall_ordered::{BulkPath, Shard, Undelivered};

use crate::{
    Applied, Config, Group, Replicated,
    clock::Now,
    config::GroupBuilder,
    delivery::Task,
    group::{GroupControl, GroupSpec, new_group},
    service::Service,
};

/// A fabric on which nobody else is ever met.
#[derive(Default)]
struct Alone {
    made: u64,
    regions: Vec<Region>,
}

impl Fabric for Alone {
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

/// Adds numbers up, and remembers what it was asked to remember.
#[derive(Debug, Default)]
struct Ledger {
    sum: u64,
    applied: usize,
    texts: Vec<String>,
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
        assert_eq!((at.epoch, at.sender), (Epoch::FIRST, NodeId(1)));
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
}

/// One node's part in a group.
struct Solo<S: Service> {
    clock: Arc<AtomicU64>,
    fabric: Alone,
    shard: Shard,
    task: Box<dyn Task>,
    control: Arc<dyn GroupControl>,
    group: Group<S>,
    now: Time,
    /// How often the engine was woken.
    woken: Arc<AtomicUsize>,
}

fn config(set: impl FnOnce(&mut GroupBuilder<'_>)) -> Config {
    // Without a lease every read takes the long way; some tests are about the short one.
    Config::builder("test", 1).members([1]).read_lease(Duration::ZERO).group("ledger", set).build().unwrap()
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
        let view = View {
            epoch: Epoch::FIRST,
            members: members.iter().map(|&node| Member { node, incarnation: Incarnation(1) }).collect(),
            shards: vec![ShardView { shard: ShardId(0), members: members.to_vec(), senders: senders.to_vec() }],
            joined: Vec::new(),
            left: Vec::new(),
        };
        let options = config.group(spec.name());
        let shard_config = crate::plan::shard_config(&options, BulkPath::Network, config.read_lease());
        let mut fabric = Alone::default();
        let (submitter, shard, deliverer) =
            squall_ordered::create(&mut fabric, &view, ShardId(0), &shard_config).unwrap();
        let woken = Arc::new(AtomicUsize::new(0));
        let waker = {
            let woken = Arc::clone(&woken);
            Waker::new(move || _ = woken.fetch_add(1, Ordering::SeqCst))
        };
        let clock = Arc::new(AtomicU64::new(0));
        let (task, control) = spec.attach(submitter, deliverer, waker, Now::Virtual(Arc::clone(&clock)));
        Solo { clock, fabric, shard, task, control, group, now: Time::ZERO, woken }
    }

    /// Steps the shard as the engine does, without delivering.
    fn step_shard(&mut self) {
        self.clock.store(self.now.as_nanos(), Ordering::Relaxed);
        let stepped = self.shard.step(&mut self.fabric, self.now);
        if stepped.freed {
            self.control.on_freed();
        }
        if stepped.freed_bulk {
            self.control.on_freed_bulk();
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

    /// Steps until nothing happens any more.
    fn settle(&mut self) {
        while self.step() {}
    }

    fn advance(&mut self, by: Duration) {
        self.now = self.now + by;
        self.settle();
    }

    /// Ends the group as the node's core does.
    fn end(&mut self, reason: &EndReason) {
        self.shard.wedge();
        self.shard.close();
        let undelivered: Vec<Undelivered> = self.shard.undelivered().unwrap();
        self.task.end(&undelivered, reason);
    }
}

/// A task that counts how often it is woken.
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

/// Polls once, for nobody.
fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(TaskWaker::noop()))
}
