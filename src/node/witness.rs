//! A node that only votes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use squall_fabric::{
    NodeId, Waker,
    net::{Identity, PortMonitor},
    sync::{Condition, Lock},
    tcp::TcpFabric,
};
use squall_services::{ControlStream, Handler, Server, Service};
use squall_view_log::{Log, Monitor};

use crate::{
    clients::admin::{self, Admin, EmptiedShard, Farewell, NodeCondition, StatusReport},
    config::{Config, carrier::Carrier},
    fabric::port_identity,
    node::{operator::reload_keys, start_error::StartError, view_log},
};

/// A node that votes on views and has no part in any group, so it holds no state. With a witness, two members survive
/// the loss of either. Dropping it ends it.
///
/// The configuration lists it among its `witnesses`, at all nodes.
pub struct Witness {
    id: NodeId,
    monitor: Monitor,
    news: Arc<LogSignal>,
    keys: Option<Identity>,
    /// Ends before the log, whose messages it brings.
    _server: Server,
    _log: Log,
    /// The fabric whose port it uses.
    _fabric: Option<TcpFabric>,
}

/// A notification that the log has news. The lock is taken before it is given, so that a thread that is about to wait
/// does not miss it.
#[derive(Default)]
struct LogSignal {
    lock: Lock<()>,
    came: Condition,
}

impl Witness {
    /// Begins to vote. Does not wait for the others. Fails if the configuration does not name the node as a witness, or
    /// if the view log, the keys or the port can't be opened.
    pub fn start(config: &Config) -> Result<Witness, StartError> {
        if !config.is_witness() {
            return Err(StartError::NoWitness { node: config.id(), witnesses: config.witnesses().to_vec() });
        }
        let caller = config.caller()?;
        let fabric = match config.carrier() {
            Carrier::Shm => None,
            _ => Some(config.open_tcp()?),
        };
        let news = Arc::new(LogSignal::default());
        let waker = {
            let news = Arc::clone(&news);
            Waker::new(move || {
                drop(news.lock.lock());
                news.came.notify_all();
            })
        };
        let directory = view_log::directory(config).map_err(squall_view_log::StartError::from)?;
        // Groups are no concern of a witness.
        let (log, messenger) = view_log::start(config, directory, Default::default(), caller, waker)?;
        let monitor = log.monitor();
        let watched = WitnessOperator {
            id: config.id(),
            cluster: config.cluster().to_owned(),
            storage: view_log::storage(config),
            monitor: monitor.clone(),
            started: Instant::now(),
            keys: port_identity(config)?,
            port: fabric.as_ref().map(TcpFabric::port),
        };
        let handlers: [(Service, Handler); 2] = [
            (Service::ViewLog, Arc::new(move |stream: ControlStream| messenger.serve(stream))),
            (Service::Admin, Arc::new(move |stream| admin::serve(stream, &watched))),
        ];
        let server = match &fabric {
            None => Server::on_host(config.cluster(), config.id(), handlers)?,
            Some(fabric) => Server::at_port(config.id(), |service| fabric.take_service(service), handlers)?,
        };
        Ok(Witness {
            id: config.id(),
            monitor,
            news,
            keys: port_identity(config)?,
            _server: server,
            _log: log,
            _fabric: fabric,
        })
    }

    /// Reads the node's keys again, as happens by itself when their files change. Connections that stand go on, except
    /// with peers whose certificates are revoked. Fails if the node has no keys, or if those that are there can't be
    /// used; then it goes on with those that it has.
    pub fn reload_keys(&self) -> Result<(), String> {
        reload_keys(self.keys.as_ref())
    }

    /// Returns the node's id.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Waits until it can't go on, for `limit` at most, and returns the reason, in a sentence.
    pub fn wait_failed(&self, limit: Duration) -> Option<String> {
        let works = |_: &mut ()| self.monitor.failure().is_none();
        drop(self.news.came.wait_timeout_while(self.news.lock.lock(), limit, works));
        self.monitor.failure().map(|failure| failure.to_string())
    }
}

/// A witness, as operators reach it.
struct WitnessOperator {
    id: NodeId,
    cluster: String,
    storage: Option<String>,
    monitor: Monitor,
    started: Instant,
    keys: Option<Identity>,
    port: Option<PortMonitor>,
}

const NO_MEMBER: &str = "it is a witness, with no part in any group: ask a member";

impl Admin for WitnessOperator {
    fn status(&self) -> StatusReport {
        let known = StatusReport::of_log(&self.cluster, self.id, &self.monitor, self.storage.clone());
        let epoch = self.monitor.status().epoch.map(|epoch| epoch.0);
        let up_ms = Some(self.started.elapsed().as_millis() as u64);
        let known = known.with_port(self.keys.as_ref(), self.port.as_ref());
        StatusReport { condition: NodeCondition::Witness, epoch, up_ms, ..known }
    }

    fn suspect(&self, _: NodeId) -> Result<(), String> {
        Err(NO_MEMBER.into())
    }

    fn reload_keys(&self) -> Result<(), String> {
        reload_keys(self.keys.as_ref())
    }

    fn leave(&self) -> Result<Farewell, String> {
        Err("it is a witness, with no part in any group: end its process, and take it out of `witnesses`".into())
    }

    fn wait_left(&self) -> Result<(), String> {
        Err(NO_MEMBER.into())
    }

    fn recover(&self, _: String) -> Result<Vec<EmptiedShard>, String> {
        Err(NO_MEMBER.into())
    }
}
