//! Clients from outside in a simulated cluster: the real client's rules, and the members' side of its connection. Their
//! messages take their time, and are lost with the connection.

mod calls;

use std::{
    collections::{BTreeMap, VecDeque},
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use squall_fabric::{NodeId, Time, net::CallerAccess, share::Holder, sync::Lock};
use squall_ordered::Mode;
use squall_services::DialTarget;

use super::{
    cluster::{Cluster, NOBODY},
    node::{Act, RunState, SimNode},
};
use crate::{
    clients::{
        asked_members::AskedMembers,
        client::{CallId, ClientCore, ClientEffect, ClientError, MemberCall, Resolve, WatchFeed, WatchId},
        contacts::Contacts,
        query::QueryService,
        serve::{Clients, ConnectedClient, Outbox, Passing, ServeOptions, Served, ServedEntry, Server},
        wire::{ShardName, ToClient, ToNode},
    },
    group::{control::new_group, handle::Group},
};

/// The longest time that a message between a client and a node takes.
const DELAY: Duration = Duration::from_micros(200);

/// The time within which a client notices that its connection has broken, if it notices.
const NOTICED: Duration = Duration::from_millis(5);

/// A program that uses a simulated cluster's group and is no member of it. See [`Cluster::client`].
pub struct Client<R> {
    pub(super) number: u32,
    service: PhantomData<fn() -> R>,
}

/// The simulator's side of a client: its core, its calls and its connections.
pub(super) struct ClientNode {
    core: ClientCore,
    /// The name of the shard.
    name: String,
    calls: BTreeMap<CallId, Resolve>,
    pub(super) watches: BTreeMap<WatchId, WatchFeed>,
    made: u64,
    link: ClientLink,
    /// Connections that the client has let go. Their nodes still read what was sent on them.
    old: Vec<SimConnection>,
    /// The time at which its next turn is on the agenda, at the latest.
    due_at: Time,
    /// Its connections to one member alone, each of which is a client of its own here, by number.
    pinned: BTreeMap<NodeId, u32>,
    /// The results of calls to one member that it has not taken yet.
    told: Arc<Lock<Vec<ToldAt>>>,
    /// The client to which it belongs, if it is such a connection.
    of: Option<u32>,
}

type ToldAt = (NodeId, MemberCall, Result<Vec<u8>, ClientError>);

impl ClientNode {
    fn new(core: ClientCore, name: String, of: Option<u32>) -> ClientNode {
        ClientNode {
            core,
            name,
            calls: BTreeMap::new(),
            watches: BTreeMap::new(),
            made: 0,
            link: ClientLink::Down,
            old: Vec::new(),
            due_at: Time::MAX,
            pinned: BTreeMap::new(),
            told: Arc::default(),
            of,
        }
    }
}

enum ClientLink {
    Down,
    /// The connection comes about, or does not, at this time.
    Dialing(NodeId, Time),
    Up(Box<SimConnection>),
    /// The connection broke. The client notices at this time.
    Broken(Time),
}

/// A connection between a client and a node, in one life of the node.
struct SimConnection {
    node: NodeId,
    server: Arc<Server>,
    outbox: Arc<Outbox>,
    /// The client as the server has let it in; None before.
    connected: Option<ConnectedClient>,
    to_node: VecDeque<(Time, ToNode)>,
    to_client: VecDeque<(Time, ToClient)>,
    /// The message that the node's group is to take before anything else is read.
    passing: Option<Passing>,
    /// Whether the node reads nothing more.
    is_over: bool,
    /// Whether the node says nothing more either.
    is_closed: bool,
}

impl SimConnection {
    /// Does the node's side: reads what has arrived, and sends what there is to send.
    fn serve(&mut self, now: Time, delay: Duration) {
        while !self.is_over && (self.passing.is_some() || self.to_node.front().is_some_and(|(at, _)| *at <= now)) {
            if let Some(Passing { sending, kind, .. }) = &mut self.passing {
                let Poll::Ready(sent) = Pin::new(sending).poll(&mut Context::from_waker(Waker::noop())) else { break };
                let kind = *kind;
                self.passing = None;
                if !self.connected.as_ref().is_some_and(|connected| connected.was_sent(kind, sent)) {
                    self.stop();
                }
            } else if let Some((_, message)) = self.to_node.pop_front() {
                self.hear(message);
            }
        }
        self.server.pump();
        match self.outbox.take_now() {
            None => self.is_closed = true,
            Some(messages) => {
                let at = self.to_client.back().map_or(now, |(at, _)| *at).max(now + delay);
                self.to_client.extend(messages.into_iter().map(|message| (at, message)));
            }
        }
    }

    fn hear(&mut self, message: ToNode) {
        let heard = match &mut self.connected {
            None => ConnectedClient::enter(&self.server, CallerAccess::unchecked(), message, &self.outbox).map(
                |connected| {
                    self.connected = connected;
                    if self.connected.is_none() {
                        self.stop();
                    }
                },
            ),
            Some(connected) => {
                let Some(share) = self.server.reserve(0, &self.outbox) else { return };
                connected
                    .hear(message, share)
                    .map(|for_group| self.passing = for_group.map(|message| connected.send(message)))
            }
        };
        if heard.is_err() {
            self.stop();
        }
    }

    fn stop(&mut self) {
        self.is_over = true;
        self.outbox.close();
    }

    /// Whether the node has nothing more to read.
    fn is_read(&self) -> bool {
        self.is_over || self.passing.is_none() && self.to_node.is_empty()
    }
}

impl Cluster {
    /// Declares a group of one node that does not run, as [`declare`](Cluster::declare) does, which serves
    /// [clients](Cluster::client) besides.
    ///
    /// # Panics
    ///
    /// If the node runs.
    pub fn serve<R: QueryService>(
        &mut self,
        node: NodeId,
        name: &str,
        service: R,
        options: ServeOptions,
    ) -> Group<Served<R>> {
        self.serve_shard(node, name, (0, 1), service, options)
    }

    /// Declares a group of several shards, as many as the configuration says, of one node that does not run, as
    /// [`serve`](Cluster::serve) does. Returns the node's own handles.
    ///
    /// # Panics
    ///
    /// If the node runs.
    pub fn serve_sharded<R: QueryService>(
        &mut self,
        node: NodeId,
        name: &str,
        mut service: impl FnMut(u32) -> R,
        options: ServeOptions,
    ) -> Vec<Group<Served<R>>> {
        let shards = self.config.group(name).shards;
        (0..shards).map(|shard| self.serve_shard(node, name, (shard, shards), service(shard), options)).collect()
    }

    fn serve_shard<R: QueryService>(
        &mut self,
        node: NodeId,
        name: &str,
        shard: (u32, u32),
        service: R,
        options: ServeOptions,
    ) -> Group<Served<R>> {
        assert!(!self.is_up(node), "groups are declared before a node starts");
        let durable = self.config.group(name).mode == Mode::Durable;
        let clients = Arc::new(Clients::new(options.change_bytes, durable));
        let (group, spec) = new_group(name, Served::new(service, Arc::clone(&clients)), &self.config);
        let asks = Arc::new(AskedMembers::new(name, shard));
        let entry = ServedEntry::new(name.to_owned(), shard, Box::new(group.clone()), clients, options, asks);
        self.add_spec(node, spec);
        self.served.entry(node).or_default().push(entry);
        group
    }

    /// Creates a client of a group that nodes [serve](Cluster::serve). It knows the configuration's members.
    pub fn client<R: QueryService>(&mut self, group: &str) -> Client<R> {
        self.client_named(group.to_owned())
    }

    /// Creates a client of each shard of a group that nodes [serve](Cluster::serve_sharded), in the shards' order. They
    /// know the configuration's members, and which of them are a shard's only once one of them has told it.
    pub fn clients_of_shards<R: QueryService>(&mut self, group: &str) -> Vec<Client<R>> {
        (0..self.config.group(group).shards).map(|shard| self.client_named(ShardName::of(group, shard))).collect()
    }

    fn client_named<R: QueryService>(&mut self, name: String) -> Client<R> {
        let contacts = self.config.members().iter();
        let contacts = contacts.map(|&node| DialTarget::on_host(node)).collect();
        let seed = self.rng.u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let contacts = Contacts::new(contacts, random.usize(..1 << 16));
        self.clients.push(ClientNode::new(ClientCore::new(name.clone(), contacts, random), name, None));
        Client { number: self.clients.len() as u32 - 1, service: PhantomData }
    }

    /// Breaks a client's connection, if it has one: that of its commands, or at random one to a member alone. Some of
    /// what the client has sent still reaches the node; the answers to it are lost.
    pub fn break_connection<R>(&mut self, client: &Client<R>) {
        let pinned: Vec<u32> = self.clients[client.number as usize].pinned.values().copied().collect();
        let number = match pinned.len() {
            0 => client.number,
            others => pinned.get(self.rng.usize(0..=others)).copied().unwrap_or(client.number),
        } as usize;
        let at = self.net.now() + self.random(NOTICED);
        self.let_go(number);
        if let ClientLink::Broken(noticed) = &mut self.clients[number].link {
            *noticed = at.min(*noticed);
        }
        self.schedule_client(number);
    }

    fn break_link(&mut self, number: usize) {
        let at = self.net.now() + self.random(NOTICED);
        if let ClientLink::Up(_) = self.clients[number].link {
            self.clients[number].link = ClientLink::Broken(at);
            self.schedule_client(number);
        }
    }

    /// Lets a client's connection go. The node still reads as much of what was sent as arrives: a random part.
    fn let_go(&mut self, number: usize) {
        let ClientNode { link, old, .. } = &mut self.clients[number];
        let mut connection = match std::mem::replace(link, ClientLink::Broken(Time::MAX)) {
            ClientLink::Up(connection) => connection,
            other => return *link = other,
        };
        let arrives = self.rng.usize(0..=connection.to_node.len());
        connection.to_node.truncate(arrives);
        old.push(*connection);
    }

    /// Breaks the connections to a node that is gone. Some clients notice only by its silence.
    pub(super) fn break_connections_to(&mut self, node: NodeId) {
        for number in 0..self.clients.len() {
            self.clients[number].old.retain(|connection| connection.node != node);
            if matches!(&self.clients[number].link, ClientLink::Up(connection) if connection.node == node) {
                self.break_link(number);
                if self.rng.u8(0..4) == 0 {
                    self.clients[number].link = ClientLink::Broken(Time::MAX);
                }
            }
        }
    }

    /// Lets the connections of a node that has done something say what there is to say.
    pub(super) fn serve_connections_of(&mut self, node: NodeId) {
        for number in 0..self.clients.len() {
            let ClientNode { link, old, .. } = &self.clients[number];
            let is_up = matches!(link, ClientLink::Up(connection) if connection.node == node);
            if is_up || old.iter().any(|connection| connection.node == node) {
                self.serve_connection(number);
                self.schedule_client(number);
            }
        }
    }

    fn serve_connection(&mut self, number: usize) {
        let (now, delay) = (self.net.now(), self.random(DELAY));
        let ClientNode { link, old, .. } = &mut self.clients[number];
        let current = if let ClientLink::Up(connection) = link { Some(&mut **connection) } else { None };
        for connection in current.into_iter().chain(&mut *old) {
            // A node that stands still reads nothing.
            if self.nodes.get(&connection.node).is_some_and(|node| node.state == RunState::Running) {
                connection.serve(now, delay);
            }
        }
        old.retain(|connection| !connection.is_read());
    }

    fn schedule_client(&mut self, number: usize) {
        let now = self.net.now();
        let client = &mut self.clients[number];
        let arrives = |connection: &SimConnection| connection.to_node.front().map(|(at, _)| *at).filter(|at| *at > now);
        let old = client.old.iter().filter_map(arrives).min();
        let link = match &client.link {
            ClientLink::Down => None,
            ClientLink::Dialing(_, at) | ClientLink::Broken(at) => Some(*at),
            ClientLink::Up(connection) => {
                let first = |queue: Option<Time>| queue.unwrap_or(Time::MAX);
                let heard = connection.to_client.front().map(|(at, _)| *at);
                // A node that stands still reads what has arrived once it goes on.
                let told = arrives(connection);
                let closed = (connection.is_closed && heard.is_none()).then_some(now);
                Some(first(heard).min(first(told)).min(first(closed)))
            }
        };
        let at = client.core.deadline().into_iter().chain(link).chain(old).min().unwrap_or(Time::MAX).max(now);
        if at < client.due_at {
            client.due_at = at;
            self.put(at, NOBODY, Act::Client(number as u32));
        }
    }

    /// Does what is due for a client.
    pub(super) fn client_turn(&mut self, number: u32) {
        let (number, now) = (number as usize, self.net.now());
        if self.clients[number].due_at > now {
            return;
        }
        self.clients[number].due_at = Time::MAX;
        self.serve_connection(number);
        let mut effects = Vec::new();
        let reached = match &self.clients[number].link {
            ClientLink::Dialing(node, at) if *at <= now => Some(self.connect(*node)),
            _ => None,
        };
        let ClientNode { core, link, .. } = &mut self.clients[number];
        match reached {
            Some(Some(connection)) => {
                *link = ClientLink::Up(Box::new(connection));
                core.connected(now, &mut effects);
            }
            Some(None) => {
                *link = ClientLink::Down;
                core.broken(now, "no member answers".to_owned(), &mut effects);
            }
            None => {}
        }
        self.carry_out(number, effects);
        self.listen(number);
        let mut effects = Vec::new();
        let core = &mut self.clients[number].core;
        if core.deadline().is_some_and(|deadline| deadline <= now) {
            core.tick(now, &mut effects);
        }
        self.carry_out(number, effects);
        self.schedule_client(number);
    }

    /// Lets the client hear what has arrived, and that its connection has ended.
    fn listen(&mut self, number: usize) {
        let now = self.net.now();
        loop {
            let mut effects = Vec::new();
            let ClientNode { core, link, .. } = &mut self.clients[number];
            match link {
                ClientLink::Up(connection) if connection.to_client.front().is_some_and(|(at, _)| *at <= now) => {
                    let (_, message) = connection.to_client.pop_front().expect("it was just there");
                    core.heard(now, message, &mut effects);
                }
                ClientLink::Up(connection) if connection.is_closed && connection.to_client.is_empty() => {
                    *link = ClientLink::Down;
                    core.broken(now, "the member has hung up".to_owned(), &mut effects);
                }
                ClientLink::Broken(at) if *at <= now => {
                    *link = ClientLink::Down;
                    core.broken(now, "the connection broke".to_owned(), &mut effects);
                }
                _ => return,
            }
            self.carry_out(number, effects);
        }
    }

    /// Opens a connection to a node, if the node runs and serves clients.
    fn connect(&self, node: NodeId) -> Option<SimConnection> {
        let is_there = |node: &&SimNode| node.state == RunState::Running;
        let server = Arc::clone(self.nodes.get(&node).filter(is_there)?.server.as_ref()?);
        let outbox = server.outbox(self.net.now(), Holder::Trusted);
        Some(SimConnection {
            node,
            server,
            outbox,
            connected: None,
            to_node: VecDeque::new(),
            to_client: VecDeque::new(),
            passing: None,
            is_over: false,
            is_closed: false,
        })
    }

    fn carry_out(&mut self, number: usize, effects: Vec<ClientEffect>) {
        for effect in effects {
            let at = self.net.now() + Duration::from_nanos(1) + self.random(DELAY);
            let ClientNode { link, calls, .. } = &mut self.clients[number];
            match effect {
                ClientEffect::Dial(contact) => {
                    *link = contact.node.map_or(ClientLink::Broken(at), |node| ClientLink::Dialing(node, at));
                }
                ClientEffect::Send(message) => {
                    if let ClientLink::Up(connection) = link {
                        let at = connection.to_node.back().map_or(at, |(last, _)| at.max(*last));
                        connection.to_node.push_back((at, message));
                    }
                }
                ClientEffect::HangUp => {
                    self.let_go(number);
                    self.clients[number].link = ClientLink::Down;
                }
                ClientEffect::Resolve(id, result) => {
                    if let Some(resolve) = calls.remove(&id) {
                        resolve.resolve(result);
                    }
                }
                ClientEffect::Watch(id, event) => {
                    if let Some(feed) = self.clients[number].watches.get(&id) {
                        feed.feed(event);
                    }
                }
                ClientEffect::Sent(id, members) => {
                    if let Some(call) = calls.get(&id) {
                        call.sent(members);
                    }
                }
                ClientEffect::Reply(id, node, reply) => {
                    if let Some(call) = calls.get(&id) {
                        call.reply(node, reply);
                    }
                }
                ClientEffect::AskAt { call, member, ask, deadline } => {
                    self.ask_at(number, call, member, ask, deadline);
                }
                ClientEffect::Forget(node) => self.forget(number, node),
            }
        }
        if let Some(of) = self.clients[number].of {
            self.take_told(of as usize);
        }
    }
}
