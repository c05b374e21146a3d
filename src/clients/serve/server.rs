//! The clients of a node, and the messages to them about the group.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use squall_fabric::{NodeId, Time, share::Holder, sync::Lock};
use squall_membership::{ShardId, View};
use squall_services::ControlStream;

use super::{
    backend::Backend,
    budget::{Budget, Permit},
    clients::Clients,
    connection,
    options::ServeOptions,
    outbox::Outbox,
    watch_signal::WatchSignal,
};
use crate::{
    calls::{
        read::Read,
        session::{Idle, SessionId, Trailer},
    },
    clients::{
        asked_members::AskedMembers,
        query::JsonForm,
        wire::{Members, NODE_SILENCE, ShardName, ToClient},
    },
};

/// The interval at which a node looks for clients and sessions that have gone.
const ROUND: Duration = Duration::from_secs(1);

/// A group that this node serves to clients.
#[derive(derive_more::Debug)]
#[debug("ServedEntry {{ name: {name:?}, serving: {serving:?} }}")]
pub(crate) struct ServedEntry {
    pub(crate) name: String,
    /// The shard, of as many as the group has.
    pub(crate) shard: u32,
    shards: u32,
    pub(super) backend: Box<dyn Backend>,
    pub(super) clients: Arc<Clients>,
    pub(super) options: ServeOptions,
    pub(crate) asks: Arc<AskedMembers>,
    serving: Lock<ServingState>,
    /// The requests and queries of clients that have come since the node's start.
    calls: AtomicU64,
}

/// The state of a node that ends idle sessions of a group.
#[derive(Debug, Default)]
pub(super) struct SessionWatch {
    idle: Idle,
    /// The pending request to the replica: a replica may hang.
    asked: Option<Read<Vec<(SessionId, u64)>>>,
}

/// The ability of a node to serve a group's clients.
#[derive(Debug)]
struct ServingState {
    /// The members that may send commands.
    members: Members,
    /// The members that have the whole state.
    holders: Members,
    /// The reason for which the node can do nothing, if it can't.
    away: Option<String>,
    /// Whether this node ends idle sessions.
    watches: bool,
}

impl ServedEntry {
    pub(crate) fn new(
        name: String,
        (shard, shards): (u32, u32),
        backend: Box<dyn Backend>,
        clients: Arc<Clients>,
        options: ServeOptions,
        asks: Arc<AskedMembers>,
    ) -> ServedEntry {
        let away = Some("the node has not started".to_owned());
        let serving =
            Lock::new(ServingState { members: Members::default(), holders: Members::default(), away, watches: false });
        ServedEntry { name, shard, shards, backend, clients, options, asks, serving, calls: AtomicU64::new(0) }
    }

    /// Counts a request or a query of a client.
    pub(super) fn count_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn members(&self) -> Members {
        self.serving.lock().members.clone()
    }

    /// Returns the form of the application's bytes that a codec stands for, if it is not rkyv's. Fails with the reason
    /// for which clients can't have it.
    fn form(&self, codec: Option<&str>) -> Result<Option<JsonForm>, String> {
        match codec {
            None | Some("rkyv") => Ok(None),
            Some("json") => self.backend.json().map(Some).ok_or_else(|| {
                let group = &self.name;
                format!("the group {group:?} has no form in JSON: write `#[squall::service(json)]` before its service")
            }),
            Some(other) => Err(format!("there is no codec {other:?}: name \"rkyv\" or \"json\"")),
        }
    }

    /// Admits a client that speaks this codec, or sends it to another member.
    pub(super) fn welcome(&self, codec: Option<&str>, outbox: &Arc<Outbox>) -> bool {
        let serving = self.serving.lock();
        let members = serving.members.clone();
        // A node that does not serve the shard need not have the codec that its members have.
        if serving.away.is_none() {
            match self.form(codec) {
                Ok(form) => form.into_iter().for_each(|form| outbox.set_form(form)),
                Err(why) => {
                    outbox.push(ToClient::Denied { only_commands: false, why });
                    return false;
                }
            }
        }
        if self.shards != 1 {
            outbox.push(ToClient::Shards(self.shards));
        }
        if let Some(why) = serving.away.clone() {
            outbox.push(ToClient::Away { why, members });
            return false;
        }
        outbox.push(ToClient::Holders(serving.holders.clone()));
        let session_timeout_ms = u64::try_from(self.options.session_timeout.as_millis()).unwrap_or(u64::MAX);
        let request_bytes = self.options.request_bytes as u64;
        outbox.push(ToClient::Welcome { members, session_timeout_ms, request_bytes });
        // Connected under the lock, so that it misses no later view.
        self.clients.connect(outbox);
        true
    }

    fn install(&self, me: NodeId, shard: ShardId, view: &View) {
        let part = view.shard(shard);
        let senders: &[NodeId] = part.map_or(&[], |part| &part.senders);
        let these = |nodes: &[NodeId]| {
            let members = view.members.iter().filter(|member| nodes.contains(&member.node));
            let members = members.map(|member| (member.node.0, member.addresses.clone())).collect();
            Members { epoch: view.epoch.0, members }
        };
        let (members, holders) = (these(senders), these(part.map_or(&[], |part| &part.complete)));
        let all: &[NodeId] = part.map_or(&[], |part| &part.members);
        let peers = view.members.iter().filter(|member| all.contains(&member.node));
        let peers = peers.map(|member| (member.node, member.addresses.clone())).collect();
        // A member without the whole state would show a state that never was.
        let is_here = part.is_some_and(|part| part.is_complete(me));
        self.asks.learn(peers, members.clone(), is_here);
        let mut serving = self.serving.lock();
        (serving.members, serving.holders) = (members.clone(), holders.clone());
        serving.watches = senders.first() == Some(&me);
        serving.away = (!is_here).then(|| match all.contains(&me) {
            true => format!("{me} does not have the state of {} yet", self.described()),
            false => format!("{me} is no member of {}", self.described()),
        });
        match serving.away.clone() {
            None => {
                self.clients.tell_all(&ToClient::Holders(holders));
                self.clients.tell_all(&ToClient::Members(members));
            }
            Some(why) => self.clients.send_away(&ToClient::Away { why, members }),
        }
    }

    /// Names the group, and the shard if there are several.
    fn described(&self) -> String {
        match self.shards {
            1 => format!("group {:?}", self.name),
            _ => format!("shard {} of group {:?}", self.shard, self.name),
        }
    }

    fn send_away(&self, why: &str) {
        self.asks.interrupted();
        let mut serving = self.serving.lock();
        serving.away = Some(why.to_owned());
        serving.watches = false;
        self.clients.send_away(&ToClient::Away { why: why.to_owned(), members: serving.members.clone() });
    }

    /// Ends idle sessions, and lets changes of views be told, if this node is the one that does so. It never waits,
    /// since other groups have clients, too.
    pub(super) fn expire(&self, watch: &mut SessionWatch, now: Time) {
        if !self.serving.lock().watches {
            *watch = SessionWatch::default();
            return;
        }
        // Any message tells that a view before it can't be undone, and a tick changes nothing.
        if self.clients.changes.can_be_undone()
            && let Err(error) = self.backend.try_send(Trailer::Tick)
        {
            tracing::debug!(group = %self.name, %error, "a change of a view is not told yet");
        }
        let asked = watch.asked.get_or_insert_with(|| self.backend.acts());
        let Poll::Ready(acts) = Pin::new(asked).poll(&mut Context::from_waker(Waker::noop())) else { return };
        watch.asked = None;
        let Ok(acts) = acts else { return };
        for (session, acts) in watch.idle.look(now, self.options.session_timeout, acts) {
            // A session that is not ended now is looked at again.
            if let Err(error) = self.backend.try_send(Trailer::Expire { session, acts }) {
                tracing::debug!(group = %self.name, %error, "an idle session was not ended");
            }
        }
    }
}

/// All groups of a node that serve clients.
#[derive(derive_more::Debug)]
#[debug("Server {{ groups: {:?} }}", served.keys())]
pub(crate) struct Server {
    me: NodeId,
    /// The shards by their groups' names and their numbers.
    served: BTreeMap<(String, u32), (ShardId, Arc<ServedEntry>)>,
    pub(super) budget: Arc<Budget>,
    /// Wakes the thread that goes through the watches.
    signal: Arc<WatchSignal>,
    /// Ends the thread that looks for clients that have gone, with a message or when it is dropped.
    stop: Sender<()>,
    stopped: Receiver<()>,
}

impl Server {
    /// Makes the server of a node, which holds at most this many bytes for clients.
    pub(crate) fn new(
        me: NodeId,
        served: impl IntoIterator<Item = (ShardId, ServedEntry)>,
        client_bytes: usize,
    ) -> Server {
        let entry =
            |(shard, entry): (ShardId, ServedEntry)| ((entry.name.clone(), entry.shard), (shard, Arc::new(entry)));
        let served: BTreeMap<_, _> = served.into_iter().map(entry).collect();
        let signal = Arc::default();
        served.values().for_each(|(_, entry)| entry.clients.changes.set_signal(&signal));
        let (stop, stopped) = bounded(1);
        Server { me, served, budget: Budget::new(client_bytes), signal, stop, stopped }
    }

    /// Starts the threads that look for clients and sessions that have gone, and that go through the watches. They end
    /// with [`stop`](Server::stop), or when the last handle to the server is dropped.
    pub(crate) fn start(self: &Arc<Server>) -> std::io::Result<()> {
        let (server, signal) = (Arc::downgrade(self), Arc::clone(&self.signal));
        let pump = move || {
            while signal.wait()
                && let Some(server) = server.upgrade()
            {
                server.pump();
            }
        };
        thread::Builder::new().name("squall-watches".to_owned()).spawn(pump)?;
        let (server, stopped) = (Arc::downgrade(self), self.stopped.clone());
        let watch = move || {
            let mut watches = BTreeMap::new();
            while stopped.recv_timeout(ROUND) == Err(RecvTimeoutError::Timeout)
                && let Some(server) = server.upgrade()
            {
                server.look_for_gone(&mut watches, Time::boot_clock());
            }
        };
        thread::Builder::new().name("squall-sessions".to_owned()).spawn(watch).map(drop)
    }

    pub(super) fn look_for_gone(&self, watches: &mut BTreeMap<(String, u32), SessionWatch>, now: Time) {
        for outbox in self.budget.connected() {
            if outbox.is_silent(now, NODE_SILENCE) {
                outbox.close();
            }
        }
        for (name, (_, entry)) in &self.served {
            entry.expire(watches.entry(name.clone()).or_default(), now);
        }
    }

    /// Tells those who watch what has changed.
    pub(crate) fn pump(&self) {
        let hubs = || self.served.values().map(|(_, entry)| &entry.clients.changes);
        while hubs().filter(|hub| hub.pump()).count() > 0 {}
    }

    /// Returns the shard of this [name](ShardName), or the reason for which there is none.
    pub(super) fn entry(&self, name: &str) -> Result<Arc<ServedEntry>, String> {
        let unknown = || format!("this node serves no group {name:?}: declare it with `NodeBuilder::serve`");
        let (group, named) = ShardName::parse(name).ok_or_else(unknown)?;
        let entry = |shard| self.served.get(&(group.to_owned(), shard)).map(|(_, entry)| entry);
        let first = entry(0).ok_or_else(unknown)?;
        let shards = first.shards;
        match named {
            None if shards > 1 => {
                Err(format!("the group {group:?} has {shards} shards: call them by `squall::client::Shards`"))
            }
            None => Ok(Arc::clone(first)),
            Some(shard) => entry(shard).map(Arc::clone).ok_or_else(|| {
                format!("the group {group:?} has shards 0 to {} here, and no shard {shard}", shards - 1)
            }),
        }
    }

    /// Serves a client, on the thread of its stream, until that ends.
    pub(crate) fn serve(&self, stream: ControlStream) {
        let outbox = self.outbox(Time::boot_clock(), stream.access.holder().clone());
        if let Err(error) = connection::converse(self, stream, &outbox) {
            tracing::warn!(%error, "a client can't be served");
        }
    }

    /// Makes the outbox of a client that comes now. Its bytes count for `holder`.
    pub(crate) fn outbox(&self, now: Time, holder: Holder) -> Arc<Outbox> {
        let unread = self.served.values().map(|(_, entry)| entry.options.unread_bytes).max().unwrap_or(0);
        let outbox = Arc::new(Outbox::new(unread, now, holder, Arc::clone(&self.budget)));
        outbox.signal_room(&self.signal);
        self.budget.enter(&outbox);
        outbox
    }

    /// Returns the number of clients that are connected.
    pub(crate) fn connected(&self) -> usize {
        self.budget.connected().iter().filter(|outbox| !outbox.is_closed()).count()
    }

    /// Returns the number of requests and queries of clients that have come since the node's start.
    pub(crate) fn calls(&self) -> u64 {
        self.served.values().map(|(_, entry)| entry.calls.load(Ordering::Relaxed)).sum()
    }

    /// Waits until there is room for a client's message. Returns None once its connection is closed.
    pub(crate) fn reserve(&self, bytes: usize, of: &Outbox) -> Option<Permit> {
        self.budget.reserve(bytes, of)
    }

    /// Reports that a view is in force here.
    pub(crate) fn install(&self, view: &View) {
        self.served.values().for_each(|(shard, entry)| entry.install(self.me, *shard, view));
    }

    /// Reports that this node can do nothing for clients until the next [`install`](Server::install), for this reason.
    pub(crate) fn send_away(&self, why: &str) {
        self.served.values().for_each(|(_, entry)| entry.send_away(why));
    }

    /// Hangs up on all clients.
    pub(crate) fn stop(&self) {
        self.send_away("the node stops");
        // A second message has no room, and is not needed.
        let _ = self.stop.try_send(());
        self.signal.stop();
        self.budget.connected().iter().for_each(|outbox| outbox.close());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal.stop();
    }
}
