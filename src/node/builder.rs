//! The declaration of a node with its groups, and its start.

#[cfg(feature = "sim")]
use std::time::Duration;
use std::{collections::BTreeMap, path::Path, sync::Arc, thread};

use crossbeam::channel::unbounded;
#[cfg(feature = "sim")]
use squall_fabric::{
    Time,
    hostile::{HostileFabric, Hostility},
};
use squall_fabric::{Wait, mixed::MixedFabric};
use squall_membership::{HeldCopy, Input, Member, ShardId};
use squall_ordered::{BulkPath, Mode};
use squall_runtime::{Backoff, BackoffProfile, CoreBudget};
use squall_services::{Caller, DialTarget, Server};
use squall_view_log::Directory;

use crate::{
    calls::{clock::Now, clock_bound::ClockBound},
    clients::{
        ask::{ServedGroup, ServedShards},
        asked_members::AskedMembers,
        query::QueryService,
        serve::{self, Clients, ServeOptions, Served, ServedEntry},
    },
    config::{Config, carrier::Carrier},
    durable::{
        log_writer::{DiskLog, LogWriter},
        recovery::{self, OpenedLog, RecoverError},
        storage_thread::{StorageThread, WriterPark},
    },
    fabric::{NodeFabric, port_identity},
    group::{
        control::{Controls, GroupControl, GroupSpec, new_group, new_group_with},
        handle::{Group, WeakGroup},
        sharded::Sharded,
    },
    node::{
        core::NodeCore,
        engine::{Engine, EngineRequest, NodeActivity},
        group_slot::GroupSlot,
        handlers,
        milestones::Milestones,
        onepipe::{OnePipeHandle, OnePipeSlot},
        operator::Operator,
        placements::{NodePolicy, Placements},
        plan::Plan,
        returning::Returning,
        room_thread::{RoomThread, SharedRoom},
        running::Node,
        scrub_thread::ScrubThread,
        start_error::StartError,
        starting::Starting,
        view_log,
        watch::NodeWatch,
    },
    replica::{replicated::Replicated, service::Service},
};

/// Declares a node's groups before it starts. All nodes of a cluster must declare the same groups.
#[derive(Debug)]
pub struct NodeBuilder {
    config: Config,
    groups: Vec<Box<dyn GroupSpec>>,
    /// The slots of the 1Pipe groups.
    pipe_slots: Vec<Arc<OnePipeSlot>>,
    /// The groups that serve clients.
    served: Vec<ServedEntry>,
    policy: NodePolicy,
}

impl Node {
    /// Begins the declaration of a node.
    pub fn builder(config: Config) -> NodeBuilder {
        NodeBuilder::new(config)
    }
}

impl NodeBuilder {
    pub(super) fn new(config: Config) -> NodeBuilder {
        let policy = NodePolicy::default();
        NodeBuilder { config, groups: Vec::new(), pipe_slots: Vec::new(), served: Vec::new(), policy }
    }

    /// Declares a group, with this node's replica of its service. Its options are those of `[groups.NAME]` in the
    /// configuration.
    ///
    /// The handle works once the node has started.
    pub fn group<R: Replicated>(&mut self, name: &str, service: R) -> Group<R> {
        self.group_of(name, service)
    }

    /// Sets the application's say in where shards lie: a function of a view's members, in the order of their ranks. It
    /// names the nodes that hold a shard before others.
    ///
    /// ```
    /// # use squall::{Config, Node};
    /// # let config = Config::builder("zones", 1).members([1]).build().unwrap();
    /// let mut node = Node::builder(config);
    /// // Each zone has a shard of its own, at nodes of the zone first.
    /// node.layout_policy(|members, placements| {
    ///     for (shard, zone) in ["east", "west"].iter().enumerate() {
    ///         let near = members.iter().filter(|member| member.rack.starts_with(zone)).map(|member| member.node);
    ///         placements.prefer("orders", shard as u32, near);
    ///     }
    /// });
    /// ```
    ///
    /// It can't break the first rules of the [placement](squall_membership::Layout::assign): nodes that the
    /// configuration pins go first, reserved ones hold nothing, shards have as many replicas as they are to have, and
    /// move one at a time. It goes before the rules of racks and weights. It is called at the member that proposes a
    /// view with other members than the one before, on the engine's thread or the view log's, and must be quick and
    /// depend on nothing else than the members. The result is part of the view. Give all nodes the same function, since
    /// any may propose.
    ///
    /// The first view of a cluster heeds it unless a [witness](crate::Witness) writes that view.
    pub fn layout_policy(&mut self, policy: impl Fn(&[Member], &mut Placements<'_>) + Send + Sync + 'static) {
        self.policy = NodePolicy::new(policy);
    }

    /// Declares a group, as [`group`](NodeBuilder::group) does, whose service is made with a handle of the group: for a
    /// service that itself submits commands or reads.
    ///
    /// The handle works once the node has started. Inside `apply` nothing can be waited for, so a service there sends
    /// with [`try_send`](Group::try_send), and waits on a thread or task of its own. The replica of each member sends.
    /// Sending fails at times, such as at a member that joins, and must not change the state.
    pub fn group_with<R: Replicated>(&mut self, name: &str, service: impl FnOnce(WeakGroup<R>) -> R) -> Group<R> {
        let (group, spec) = new_group_with(name, &self.config, service);
        self.groups.push(spec);
        group
    }

    /// Declares a group, as [`group`](NodeBuilder::group) does, which also serves [clients](crate::client): programs
    /// that are no members of it. All members must declare it so, with the same options.
    pub fn serve<R: QueryService>(&mut self, name: &str, service: R, options: ServeOptions) -> ServedGroup<R> {
        self.serve_shard(name, (0, 1), service, options)
    }

    /// Declares a group of as many shards as `[groups.NAME] shards` says, as [`sharded`](NodeBuilder::sharded) does,
    /// which also serves clients. The handles are the ones that clients have: each call goes to a member of the shard,
    /// through this node where it is one.
    ///
    /// ```no_run
    /// # use rkyv::Archived;
    /// # use squall::{Applied, Config, Node, Partitioned, QueryService, Replicated, ServeOptions};
    /// # struct Counter(i64);
    /// # impl Replicated for Counter {
    /// #     type Command = i64;
    /// #     type Reply = i64;
    /// #     fn apply(&mut self, add: &Archived<i64>, _at: &Applied) -> i64 { self.0 += add.to_native(); self.0 }
    /// # }
    /// # impl QueryService for Counter {
    /// #     type Query = ();
    /// #     type Answer = i64;
    /// #     fn answer(&self, _query: &()) -> i64 { self.0 }
    /// # }
    /// impl Partitioned for Counter {
    ///     type Key = str;
    ///
    ///     fn shard_of(key: &str, shards: u32) -> u32 {
    ///         squall::shard_of_bytes(key.as_bytes(), shards)
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut node = Node::builder(Config::load("squall.toml")?);
    /// let counters = node.serve_sharded("counters", |_shard| Counter(0), ServeOptions::default());
    /// let node = node.start()?;
    /// let after = counters.of("visits").submit(&1).wait()?;
    /// # drop((node, after));
    /// # Ok(())
    /// # }
    /// ```
    pub fn serve_sharded<R: QueryService>(
        &mut self,
        name: &str,
        mut service: impl FnMut(u32) -> R,
        options: ServeOptions,
    ) -> ServedShards<R> {
        let shards = self.config.group(name).shards;
        let serve = |shard| self.serve_shard(name, (shard, shards), service(shard), options);
        ServedShards::new(name, (0..shards).map(serve).collect())
    }

    fn serve_shard<R: QueryService>(
        &mut self,
        name: &str,
        shard: (u32, u32),
        service: R,
        options: ServeOptions,
    ) -> ServedGroup<R> {
        let durable = self.config.group(name).mode == Mode::Durable;
        let clients = Arc::new(Clients::new(options.change_bytes, durable));
        let asks = Arc::new(AskedMembers::new(name, shard));
        let group = self.group_of(name, Served::new(service, Arc::clone(&clients)));
        let backend = Box::new(group.clone());
        self.served.push(ServedEntry::new(name.to_owned(), shard, backend, clients, options, Arc::clone(&asks)));
        ServedGroup::new(group, asks)
    }

    /// Declares a group of as many shards as `[groups.NAME] shards` says, each with this node's replica.
    ///
    /// `service` is called with each shard's number, from 0 on. This node uses the replicas of the shards of which it
    /// is a member, and these change with the view.
    pub fn sharded<R: Replicated>(&mut self, name: &str, service: impl FnMut(u32) -> R) -> Sharded<R> {
        let shards = self.config.group(name).shards;
        let replicas: Vec<R> = (0..shards).map(service).collect();
        Sharded::new(name, replicas.into_iter().map(|replica| self.group_of(name, replica)).collect())
    }

    /// Declares a 1Pipe group, whose failures this node's views settle. See [`onepipe`](crate::onepipe).
    pub fn onepipe(&mut self, name: &str) -> OnePipeHandle {
        let handle = OnePipeHandle::new(name);
        self.pipe_slots.push(handle.slot());
        handle
    }

    /// Declares a group as [`group`](NodeBuilder::group) does, of a service that takes bytes.
    #[doc(hidden)]
    pub fn group_of<S: Service>(&mut self, name: &str, service: S) -> Group<S> {
        let (group, spec) = new_group(name, service, &self.config);
        self.groups.push(spec);
        group
    }

    /// Starts the node, and waits until all members of the first view have appeared.
    ///
    /// Blocks the calling thread, at most for the configuration's `formation_timeout`. [`begin`](NodeBuilder::begin)
    /// starts a node without that.
    ///
    /// A node that comes back with its [storage](crate::ConfigBuilder::storage) first takes its durable groups'
    /// replicas through their logs, which may take long. Then it waits for its group for as long as it takes, since no
    /// node can go on without enough of the former members.
    ///
    /// Fails if the groups do not fit the configuration, if the fabric, the view log or a durable group can't be
    /// opened, or if a member of the first view has not appeared in time.
    pub fn start(self) -> Result<Node, StartError> {
        self.begin()?.wait()
    }

    /// Begins to start the node, as [`start`](NodeBuilder::start) does, without waiting for other nodes. The returned
    /// [`Starting`] is awaited, waited for or cancelled.
    ///
    /// A durable group's replica goes through its log on the calling thread, before this returns.
    pub fn begin(self) -> Result<Starting, StartError> {
        self.begin_over(|fabric| fabric)
    }

    /// Starts the node as [`start`](NodeBuilder::start) does. From `after` the start on it does harm, with pauses of at
    /// most `pause`.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn start_hostile(self, hostility: Hostility, after: Duration, pause: Duration) -> Result<Node, StartError> {
        let from = Time::boot_clock() + after;
        let starting = self.begin_over(|fabric| {
            let mut fabric = HostileFabric::new(fabric);
            fabric.turn(hostility, from, pause, fastrand::u64(..));
            fabric
        });
        starting?.wait()
    }

    /// Begins to start the node over what `wrap` makes of its fabric.
    fn begin_over<F>(self, wrap: impl FnOnce(MixedFabric) -> F) -> Result<Starting, StartError>
    where
        F: NodeFabric + Wait + Send + 'static,
    {
        if self.config.is_witness() {
            return Err(StartError::IsWitness(self.config.id()));
        }
        let NodeBuilder { config, mut groups, mut pipe_slots, served, policy } = self;
        groups.sort_by(|a, b| a.name().cmp(b.name()));
        pipe_slots.sort_by(|a, b| a.name().cmp(b.name()));
        let names: Vec<String> = groups.iter().map(|group| group.name().to_owned()).collect();
        let group_names = groups.iter().map(|group| (group.name(), group.schema()));
        let pipe_names = pipe_slots.iter().map(|slot| slot.name());
        let mut plan = Plan::new(&config, bulk_path(config.carrier()), group_names, pipe_names)?.heeding(&policy);
        if let Some(why) = config.confirms_reads() {
            tracing::info!("{why}");
            plan.shards.values_mut().for_each(|shard| shard.reads_alone = false);
        }
        let caller = config.caller()?;
        let fabric = config.open_fabric()?;
        let waker = fabric.waker();
        let mut slots = BTreeMap::new();
        let shards: Vec<ShardId> = plan.shards.keys().copied().collect();
        let mut directory = view_log::directory(&config).map_err(squall_view_log::StartError::from)?;
        let logs = open_logs(&config, &plan, directory.as_mut(), &names)?;
        let park = WriterPark::default();
        let (mut held, mut written) = (BTreeMap::new(), Vec::new());
        let bound = Arc::new(ClockBound::new(config.clock_limit()));
        for ((&shard, spec), opened) in shards.iter().zip(groups).zip(logs) {
            let mut log_writer = None;
            if let Some(opened) = opened {
                let (writer, log, own) = recover(&*spec, opened, &park)?;
                held.extend(own.map(|own| (shard, own)));
                log_writer = Some(Arc::clone(&writer));
                written.push((writer, log));
            }
            let (task, control) = spec.attach(config.id(), waker.clone(), Now::Boot, Arc::clone(&bound), log_writer);
            slots.insert(shard, GroupSlot::new(task, control));
        }
        let log_writers = written.iter().map(|(log_writer, _)| Arc::clone(log_writer)).collect();
        let is_durable = !written.is_empty();
        let storage = is_durable.then(|| StorageThread::start(written, park, waker.clone())).transpose()?;
        let (has_disk, was_member) = (directory.is_some(), directory.as_ref().is_some_and(Directory::has_log));
        let controls = slots.iter().map(|(&shard, slot)| (shard, Arc::clone(&slot.control))).collect();
        let controls: Arc<Controls> = Arc::new(controls);
        let agreed = (plan.settings.layout.clone(), plan.settings.policy.clone(), plan.parameters);
        let (log, messenger) = view_log::start(&config, directory, agreed, caller.clone(), waker.clone())?;
        let clients = serve_clients(&config, names.iter().zip(&shards), served, &caller)?;
        let monitor = log.monitor();
        let watch = Arc::new(NodeWatch::new(clients.clone()));
        let (requests, to_engine) = unbounded();
        let operator = Arc::new(Operator {
            id: config.id(),
            cluster: config.cluster().to_owned(),
            storage: view_log::storage(&config),
            room: SharedRoom::default(),
            requests: requests.clone(),
            waker: waker.clone(),
            watch: Arc::clone(&watch),
            monitor: monitor.clone(),
            farewells: Arc::default(),
            keys: port_identity(&config)?,
            port: fabric.port(),
        });
        let mut handlers = handlers::of_node(&messenger, &controls, &operator);
        handlers.extend(clients.as_ref().map(handlers::clients));
        let server = match config.carrier() {
            Carrier::Shm => Server::on_host(config.cluster(), config.id(), handlers)?,
            _ => {
                Server::at_port(config.id(), |service| fabric.take_service(service).expect("it has a port"), handlers)?
            }
        };
        let me = monitor.me();
        pipe_slots.iter().for_each(|slot| slot.attach(waker.clone()));
        let pipe_slots = plan.pipes.into_iter().zip(pipe_slots).collect();
        let mut core = NodeCore::new(wrap(fabric), me, plan.settings, plan.shards, pipe_slots, Box::new(log), bound);
        let mut effects = Vec::new();
        if was_member {
            core.input(Input::Held(held), &mut effects);
        }
        let durable = slots.iter().map(|(&shard, slot)| (shard, Arc::clone(&slot.control)));
        let watched = |storage| watch_storage(storage, &config, &caller, durable, &operator);
        let (scrub, room) = config.storage().filter(|_| is_durable).map(watched).transpose()?.unzip();
        let budget = CoreBudget::of_this_host(config.members_here());
        let engine = Engine {
            core,
            groups: slots,
            log_writers,
            returning: Returning::new(has_disk, waker.clone()),
            monitor,
            caller,
            requests: to_engine,
            to_self: requests,
            watch,
            configured: config.members().to_vec(),
            // Two failure timeouts, after which a member that never beats is given up.
            milestones: Milestones::new(config.failure_timeout() * 2),
            activity: NodeActivity::default(),
            stalled: None,
            waker,
            backoff: Backoff::new(BackoffProfile::engine(config.spin(), budget)),
            short_limit: config.short_limit(),
            effects,
        };
        let name = format!("squall-{}", config.id().0);
        let thread = thread::Builder::new().name(name).spawn(move || engine.run())?;
        let server = Some(server);
        Ok(Starting::new(Node { operator, engine: Some(thread), room, scrub, storage, clients, server }))
    }
}

/// Begins to scrub the logs of these groups, and to look at the room on the node's storage.
fn watch_storage(
    storage: &Path,
    config: &Config,
    caller: &Caller,
    durable: impl Iterator<Item = (ShardId, Arc<dyn GroupControl>)> + Clone,
    operator: &Arc<Operator>,
) -> std::io::Result<(ScrubThread, RoomThread)> {
    let rate = config.scrub_bytes_per_second();
    let log = |(_, control): (ShardId, Arc<dyn GroupControl>)| Some(control.log_writer()?.directory.clone());
    let logs = durable.clone().filter_map(log).collect();
    let scrub = ScrubThread::start(caller.clone(), Arc::clone(&operator.watch), durable, rate)?;
    let teller = Arc::clone(operator);
    let tell = move |is_short| teller.tell(EngineRequest::Input(Input::ShortOfRoom(is_short)));
    let room = RoomThread::start(storage.to_owned(), logs, Arc::clone(&operator.room), tell)?;
    Ok((scrub, room))
}

/// The way that large messages take.
fn bulk_path(carrier: Carrier) -> BulkPath {
    match carrier {
        Carrier::Shm => BulkPath::SharedMemory,
        Carrier::Mixed | Carrier::Verbs if cfg!(feature = "verbs") => BulkPath::Rdma,
        Carrier::Tcp | Carrier::Mixed | Carrier::Verbs => BulkPath::Network,
    }
}

/// Takes a durable group's replica through its log. Returns the log with its writer, and the copy of the group that it
/// holds.
fn recover(
    spec: &dyn GroupSpec,
    OpenedLog { mut log, is_kept, .. }: OpenedLog,
    park: &WriterPark,
) -> Result<(Arc<LogWriter>, DiskLog, Option<HeldCopy>), RecoverError> {
    let rebuilt = spec.recover(&mut log)?;
    let held = recovery::held(&rebuilt, is_kept, &log);
    let log_writer = Arc::new(LogWriter::new(&log, rebuilt.view.clone(), park.waker()));
    log_writer.set_stale(!rebuilt.is_whole());
    log_writer.set_anew(!is_kept);
    Ok((log_writer, log, held))
}

/// Opens the logs of durable groups; `names` are the groups of all shards, in their order.
fn open_logs(
    config: &Config,
    plan: &Plan,
    directory: Option<&mut Directory>,
    names: &[String],
) -> Result<Vec<Option<OpenedLog>>, StartError> {
    let shards = plan.shards.iter().zip(names).enumerate().map(|(index, ((&shard, options), name))| {
        let first = names.iter().position(|other| other == name).unwrap_or(index);
        (options.mode, shard, (name.clone(), (index - first) as u32, config.group(name).shards))
    });
    let durable = shards.filter(|(mode, ..)| *mode == Mode::Durable).map(|(_, shard, place)| (shard, place));
    let durable: BTreeMap<_, _> = durable.collect();
    let mut logs = match directory.zip(config.storage()) {
        Some((directory, storage)) => recovery::open_all(config, directory, storage, &durable)?,
        // The configuration was checked: there is no durable group.
        None => BTreeMap::new(),
    };
    Ok(plan.shards.keys().map(|shard| logs.remove(shard)).collect())
}

/// Begins to serve clients, if one of the groups does. `shards` are the shards of all groups, each with its group's
/// name.
fn serve_clients<'a>(
    config: &Config,
    shards: impl Iterator<Item = (&'a String, &'a ShardId)> + Clone,
    served: Vec<ServedEntry>,
    caller: &Caller,
) -> Result<Option<Arc<serve::Server>>, StartError> {
    if served.is_empty() {
        return Ok(None);
    }
    if let Some(entry) = served.iter().find(|entry| config.group(&entry.name).mode == Mode::Unordered) {
        return Err(StartError::ServesUnordered(entry.name.clone()));
    }
    let id_of = |entry: &ServedEntry| {
        let mut of_group = shards.clone().filter(|(group, _)| **group == entry.name);
        *of_group.nth(entry.shard as usize).expect("it is declared").1
    };
    let known = config.members().iter().filter(|&&member| member != config.id());
    let known: Vec<DialTarget> = known.map(|&member| config.contact(member)).chain(config.join_contacts()).collect();
    for entry in &served {
        entry.asks.start(caller.clone(), known.clone(), config.group(&entry.name).max_waiting);
    }
    let served = served.into_iter().map(|entry| (id_of(&entry), entry));
    let clients = Arc::new(serve::Server::new(config.id(), served, config.client_bytes()));
    clients.start()?;
    Ok(Some(clients))
}
