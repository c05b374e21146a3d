//! What a node offers to other nodes, and to operators, at its port or under its name.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crossbeam::channel::bounded;
use squall_membership::ShardId;

use crate::{
    admin,
    control::{
        ControlStream, Handler, Messenger, Service,
        transfer::{self, Ask, StateSource},
    },
    group::GroupControl,
    operator::Operator,
    serve,
};

/// A node's groups, as other threads than the engine's see them.
pub(crate) type Controls = BTreeMap<ShardId, Arc<dyn GroupControl>>;

/// The services that every node has.
pub(crate) fn handlers(
    messenger: &Arc<Messenger>,
    controls: &Arc<Controls>,
    operator: &Arc<Operator>,
) -> Vec<(Service, Handler)> {
    let (messenger, operator) = (Arc::clone(messenger), Arc::clone(operator));
    let states = States(Arc::clone(controls));
    vec![
        (Service::ViewLog, Arc::new(move |stream: ControlStream| messenger.serve(stream))),
        (Service::State, Arc::new(move |stream| transfer::serve(stream, &states))),
        (Service::Admin, Arc::new(move |stream| admin::serve(stream, &*operator))),
    ]
}

/// The service of a node whose groups take requests from outside.
pub(crate) fn clients(clients: &Arc<serve::Server>) -> (Service, Handler) {
    let clients = Arc::clone(clients);
    (Service::Clients, Arc::new(move |stream| clients.serve(stream)))
}

/// The states of a node's replicas, for those who join.
struct States(Arc<Controls>);

/// How long a replica may be busy with one call.
const PATIENCE: Duration = Duration::from_secs(10);

impl StateSource for States {
    fn capture(&self, ask: Ask) -> Result<transfer::Captured, String> {
        let control = self.0.get(&ask.shard).ok_or_else(|| format!("this node has no {}", ask.shard))?;
        let (reply, answer) = bounded(1);
        control.capture(Box::new(move |captured| {
            // Who asked may have gone.
            let _ = reply.send(captured);
        }));
        let captured = answer.recv_timeout(PATIENCE).map_err(|_| format!("it is not there within {PATIENCE:?}"))?;
        let captured = captured.map_err(|error| error.to_string())?;
        let (epoch, seq, bytes) = (captured.epoch, captured.seq, captured.bytes);
        Ok(transfer::Captured { epoch, seq, bytes, write: Box::new(move |to| captured.write(to)) })
    }
}
