//! The services of a node: a thread that waits for calls, and one for each stream.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam::channel::{Receiver, Select, Sender, bounded};
use squall_fabric::{
    NodeId,
    net::{ServiceId, ServiceStream},
    sync::{Condition, Lock},
};

use super::{
    ControlError, ControlStream, HangUp, Service, caller,
    hello::{self, Verdict},
    local::{LocalError, LocalListener},
};

/// A function that serves a stream, on a thread of its own. The stream is closed when the server ends.
pub type Handler = Arc<dyn Fn(ControlStream) + Send + Sync>;

/// The time that a caller has to name its service.
const PATIENCE: Duration = Duration::from_secs(2);

/// The most callers of this host that have not named a service yet; a further one is disconnected. Those that come by
/// the port have named it there.
const MAX_UNNAMED: usize = 64;

/// The services that a node offers, until this is dropped: then all streams end, and their handlers have returned.
pub struct Server {
    shared: Arc<Shared>,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

enum Stop {
    Local(Arc<LocalListener>),
    /// Dropping the sender makes the thread end.
    Port(Option<Sender<()>>),
}

struct Shared {
    node: NodeId,
    handlers: BTreeMap<Service, Handler>,
    live: Lock<Live>,
    changed: Condition,
}

#[derive(Default)]
struct Live {
    ended: bool,
    next: u64,
    streams: HashMap<u64, (Option<Service>, HangUp)>,
}

impl Server {
    /// Accepts calls from processes of this host, under the node's name. Fails if another process is this node, or if
    /// the system gives no socket or thread.
    pub fn on_host(
        cluster: &str,
        node: NodeId,
        handlers: impl IntoIterator<Item = (Service, Handler)>,
    ) -> Result<Server, ControlError> {
        let listener = LocalListener::bind(caller::KIND, &caller::name(cluster, node));
        let listener = Arc::new(listener.map_err(|error| match error {
            LocalError::System(cause) => ControlError::System { attempt: "listen for other processes", cause },
            _ => ControlError::Taken { node, cluster: cluster.to_owned() },
        })?);
        let shared = Shared::new(node, handlers);
        let (calls, acceptor) = (Arc::clone(&listener), Arc::clone(&shared));
        let accept = move || {
            while let Some(socket) = calls.accept() {
                acceptor.take(ControlStream::local(node, socket), None);
            }
        };
        Server::start(shared, Stop::Local(listener), accept)
    }

    /// Accepts calls at the node's port: `take` is the fabric's `take_service`. Fails if the system gives no thread.
    pub fn at_port(
        node: NodeId,
        mut take: impl FnMut(ServiceId) -> Receiver<ServiceStream>,
        handlers: impl IntoIterator<Item = (Service, Handler)>,
    ) -> Result<Server, ControlError> {
        let shared = Shared::new(node, handlers);
        let services: Vec<Service> = shared.handlers.keys().copied().collect();
        let calls: Vec<_> = services.iter().map(|&service| take(service.id())).collect();
        let (stop, stopped) = bounded(0);
        let acceptor = Arc::clone(&shared);
        let accept = move || {
            let mut select = Select::new();
            for calls in &calls {
                select.recv(calls);
            }
            let end = select.recv(&stopped);
            loop {
                let ready = select.select();
                let index = ready.index();
                if index == end {
                    // A selected operation must be completed.
                    let _ = ready.recv(&stopped);
                    return;
                }
                match ready.recv(&calls[index]) {
                    Ok(stream) => acceptor.take(ControlStream::port(stream), Some(services[index])),
                    // The fabric has ended, or another server has taken the service.
                    Err(_) => select.remove(index),
                }
            }
        };
        Server::start(shared, Stop::Port(Some(stop)), accept)
    }

    fn start(shared: Arc<Shared>, stop: Stop, accept: impl FnOnce() + Send + 'static) -> Result<Server, ControlError> {
        let spawned = thread::Builder::new().name(format!("squall-calls-{}", shared.node.0)).spawn(accept);
        let thread =
            spawned.map_err(|cause| ControlError::System { attempt: "start a thread that takes calls", cause })?;
        Ok(Server { shared, stop, thread: Some(thread) })
    }
}

impl Shared {
    fn new(node: NodeId, handlers: impl IntoIterator<Item = (Service, Handler)>) -> Arc<Shared> {
        let handlers = handlers.into_iter().collect();
        Arc::new(Shared { node, handlers, live: Lock::default(), changed: Condition::new() })
    }

    /// Starts a thread for a stream. `service` is the one that was dialed, if the port knows.
    fn take(self: &Arc<Self>, stream: ControlStream, service: Option<Service>) {
        let Some(number) = self.live.lock().enter(stream.hang_up(), service) else {
            return tracing::warn!(error = "there are too many callers", "a call was refused");
        };
        let shared = Arc::clone(self);
        let serve = move || {
            let _leave = Leave { shared: &shared, number };
            shared.serve(stream, number, service);
        };
        let name = format!("squall-call-{}", self.node.0);
        if let Err(error) = thread::Builder::new().name(name).spawn(serve) {
            tracing::warn!(%error, "a call was refused");
            self.leave(number);
        }
    }

    fn serve(&self, mut stream: ControlStream, number: u64, dialed: Option<Service>) {
        let claimed = stream.peer;
        let heard = stream
            .set_timeout(Some(PATIENCE))
            .map_err(|cause| ControlError::Cut { node: None, cause })
            .and_then(|()| hello::hear(&mut stream, self.node));
        let call = match heard {
            Ok(call) => call,
            Err(error) => return tracing::debug!(%error, "a caller did not say what it wants"),
        };
        let service = Service::of(call.service);
        let handler = service.and_then(|service| Some((service, self.handlers.get(&service)?)));
        // The port has checked the caller's identity, so another one in the hello is a lie.
        let is_liar = dialed.is_some() && (dialed != service || claimed != call.from);
        let verdict = match handler {
            _ if call.is_astray || is_liar => Verdict::OtherNode,
            None => Verdict::NoService,
            Some((service, _)) if !self.live.lock().admit(number, service) => Verdict::Busy,
            Some(_) => Verdict::Welcome,
        };
        stream.peer = call.from;
        let answered = hello::answer(&mut stream, self.node, verdict);
        let answered = answered.and_then(|()| {
            stream.set_timeout(None).map_err(|cause| ControlError::Cut { node: Some(call.from), cause })
        });
        match (answered, handler) {
            (Ok(()), Some((_, handle))) if verdict == Verdict::Welcome => handle(stream),
            (Ok(()), _) => tracing::debug!(caller = %call.from, service = call.service, ?verdict, "a call was refused"),
            (Err(error), _) => tracing::debug!(%error, "a caller did not wait for the answer"),
        }
    }

    fn leave(&self, number: u64) {
        self.live.lock().streams.remove(&number);
        self.changed.notify_all();
    }
}

/// A guard that removes a stream at its thread's end, even by a panic.
struct Leave<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.shared.leave(self.number);
    }
}

impl Live {
    /// Takes in a stream. The port gives none without a place of the service that was `dialed`.
    fn enter(&mut self, hang_up: HangUp, dialed: Option<Service>) -> Option<u64> {
        let unnamed = self.streams.values().filter(|(service, _)| service.is_none()).count();
        if self.ended || dialed.is_none() && unnamed >= MAX_UNNAMED {
            return None;
        }
        self.next += 1;
        self.streams.insert(self.next, (dialed, hang_up));
        Some(self.next)
    }

    /// Admits a stream of the service if there is room for one more, and returns whether there was.
    fn admit(&mut self, number: u64, service: Service) -> bool {
        let others = self.streams.iter().filter(|(other, (named, _))| **other != number && *named == Some(service));
        // A stream of the port is never one too many: it has a place there.
        let has_place = self.streams.get(&number).is_some_and(|(named, _)| *named == Some(service));
        let fits = has_place || others.count() < service.id().limit();
        if let Some(entry) = self.streams.get_mut(&number).filter(|_| fits) {
            entry.0 = Some(service);
        }
        fits
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut live = self.shared.live.lock();
        live.ended = true;
        match &mut self.stop {
            Stop::Local(listener) => listener.close(),
            Stop::Port(stop) => drop(stop.take()),
        }
        live.streams.values().for_each(|(_, hang_up)| hang_up.now());
        while !live.streams.is_empty() {
            live = self.shared.changed.wait(live);
        }
        drop(live);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that takes calls panicked");
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("node", &self.shared.node).finish_non_exhaustive()
    }
}
