//! A node: what an application starts, and what its groups live in.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use crossbeam::channel::{Sender, bounded, unbounded};
use squall_fabric::{Fabric, NodeId, Time, Wait, Waker};
use squall_membership::{EndReason, View};
use squall_ordered::BulkPath;

use crate::{
    clock::Now,
    config::Config,
    fabric::FabricError,
    group::{Group, GroupSpec, new_group},
    node_core::{CoreEffect, CoreError, NodeCore},
    plan::{Plan, PlanError},
    replicated::Replicated,
    room::Room,
    runtime::{Engine, GroupSlot, Idle, Request},
    service::Service,
    status::Status,
    transport::Carrier,
};

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The declared groups do not fit the configuration.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The fabric could not be opened.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The memory for tables and rings could not be had, or a size is impossible.
    #[error("the node's memory could not be set up: {0}")]
    Memory(String),
    /// The system gave no thread.
    #[error("the engine's thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
    /// The group ended before its first view was formed; mostly [`EndReason::NotFormed`], which names who is missing.
    #[error(transparent)]
    NotFormed(EndReason),
}

/// Declares a node's groups before it starts. All nodes of a cluster must declare the same groups.
#[derive(Debug)]
pub struct NodeBuilder {
    config: Config,
    groups: Vec<Box<dyn GroupSpec>>,
}

impl NodeBuilder {
    /// Declares a group, with this node's replica of its service. Its options are those of `[groups.NAME]` in the
    /// configuration.
    ///
    /// The handle works once the node has started.
    pub fn group<R: Replicated>(&mut self, name: &str, service: R) -> Group<R> {
        self.group_of(name, service)
    }

    /// As [`group`](NodeBuilder::group), of a service that takes bytes.
    #[doc(hidden)]
    pub fn group_of<S: Service>(&mut self, name: &str, service: S) -> Group<S> {
        let (group, spec) = new_group(name, service, &self.config);
        self.groups.push(spec);
        group
    }

    /// Starts the node, and waits until all members of the first view have appeared.
    ///
    /// Blocks the calling thread, at most for the configuration's `formation_timeout`.
    pub fn start(self) -> Result<Node, StartError> {
        match self.config.carrier() {
            Carrier::Shm => self.start_on(Config::open_shm, BulkPath::SharedMemory),
            Carrier::Tcp => self.start_on(Config::open_tcp, BulkPath::Network),
            Carrier::Mixed if cfg!(feature = "verbs") => self.start_on(Config::open_mixed, BulkPath::Rdma),
            Carrier::Mixed => self.start_on(Config::open_mixed, BulkPath::Network),
            #[cfg(feature = "verbs")]
            Carrier::Verbs => self.start_on(Config::open_verbs, BulkPath::Rdma),
            #[cfg(not(feature = "verbs"))]
            Carrier::Verbs => Err(FabricError::NoVerbs.into()),
        }
    }

    fn start_on<F: Fabric + Wait + Send + 'static>(
        self,
        open: impl FnOnce(&Config) -> Result<F, FabricError>,
        bulk_path: BulkPath,
    ) -> Result<Node, StartError> {
        let NodeBuilder { config, mut groups } = self;
        groups.sort_by(|a, b| a.name().cmp(b.name()));
        let plan = Plan::new(&config, bulk_path, groups.iter().map(|group| group.name()))?;
        let fabric = open(&config)?;
        let waker = fabric.waker();
        let mut effects = Vec::new();
        let now = Time::boot_clock();
        let core = NodeCore::start(fabric, now, plan.settings, &plan.shards, None, &mut effects)
            .map_err(|error: CoreError| StartError::Memory(error.to_string()))?;
        let (requests, to_engine) = unbounded();
        let outside = Arc::new(Outside::default());
        let mut engine = Engine {
            core,
            groups: BTreeMap::new(),
            requests: to_engine,
            to_self: requests.clone(),
            outside: Arc::clone(&outside),
            waker: waker.clone(),
            idle: Idle::new(config.spin(), Room::here(&config)),
            short_limit: config.short_limit(),
            effects: Vec::new(),
        };
        let mut specs = groups.into_iter();
        for effect in effects {
            match effect {
                // Shards are created in the order of their ids, which is that of the groups' names.
                CoreEffect::Created { shard, submitter, deliverer } => {
                    let spec = specs.next().expect("a shard for each group");
                    let (task, control) = spec.attach(submitter, deliverer, waker.clone(), Now::Boot);
                    engine.groups.insert(shard, GroupSlot::new(task, control));
                }
                other => engine.effects.push(other),
            }
        }
        let name = format!("squall-{}", config.id().0);
        let thread = thread::Builder::new().name(name).spawn(move || engine.run())?;
        let node = Node { id: config.id(), requests, waker, outside, engine: Some(thread) };
        match node.outside.wait_formed() {
            Ok(()) => Ok(node),
            Err(reason) => Err(StartError::NotFormed(reason)),
        }
    }
}

/// A running node. Dropping it shuts it down.
#[derive(Debug)]
pub struct Node {
    id: NodeId,
    requests: Sender<Request>,
    waker: Waker,
    outside: Arc<Outside>,
    engine: Option<JoinHandle<()>>,
}

impl Node {
    /// Begins to declare a node.
    pub fn builder(config: Config) -> NodeBuilder {
        NodeBuilder { config, groups: Vec::new() }
    }

    /// The node's id.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// The current view.
    pub fn view(&self) -> Arc<View> {
        let state = self.outside.lock();
        Arc::clone(state.view.as_ref().expect("a node that started has a view"))
    }

    /// Why the node's part in its groups is over, if it is.
    pub fn end_reason(&self) -> Option<EndReason> {
        self.outside.end_reason()
    }

    /// Waits until the node's part in its groups is over, and says why.
    pub fn wait_ended(&self) -> EndReason {
        self.outside.wait_ended()
    }

    /// How the node and its groups are now. None while the engine does not answer, because it has ended.
    pub fn status(&self) -> Option<Status> {
        let (reply, answer) = bounded(1);
        self.requests.send(Request::Status(reply)).ok()?;
        self.waker.wake();
        answer.recv().ok()
    }

    /// Ends the node's part in its groups: whatever waits gets an error, the other members see this one leave.
    ///
    /// Waits until the engine and all applications have returned.
    pub fn shutdown(self) {
        drop(self);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let Some(engine) = self.engine.take() else { return };
        // If the engine is gone already there is nothing to ask.
        let _ = self.requests.send(Request::Stop);
        self.waker.wake();
        if engine.join().is_err() {
            tracing::error!("the engine's thread panicked");
        }
    }
}

/// What a node's engine tells those outside.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    view: Option<Arc<View>>,
    ended: Option<EndReason>,
}

impl Outside {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while holding it; if it did, both fields would still be whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn formed(&self, view: Arc<View>) {
        self.lock().view = Some(view);
        self.changed.notify_all();
    }

    pub(crate) fn ended(&self, reason: EndReason) {
        self.lock().ended.get_or_insert(reason);
        self.changed.notify_all();
    }

    pub(crate) fn end_reason(&self) -> Option<EndReason> {
        self.lock().ended.clone()
    }

    fn wait_formed(&self) -> Result<(), EndReason> {
        let mut state = self.lock();
        loop {
            if let Some(reason) = &state.ended {
                return Err(reason.clone());
            }
            if state.view.is_some() {
                return Ok(());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn wait_ended(&self) -> EndReason {
        let mut state = self.lock();
        loop {
            if let Some(reason) = &state.ended {
                return reason.clone();
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
