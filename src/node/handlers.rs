//! The services that a node offers to other nodes, and to operators, at its port or under its name.

use std::sync::Arc;

use squall_services::{ControlStream, Handler, Messenger, Service};

use crate::{
    clients::{
        admin,
        log_service::{self, Logs},
        serve,
    },
    group::control::Controls,
    node::operator::Operator,
    state_transfer::{
        offer,
        wire::{self, TransferRequest},
    },
};

/// The handlers of the services that every node has.
pub(crate) fn of_node(
    messenger: &Arc<Messenger>,
    controls: &Arc<Controls>,
    operator: &Arc<Operator>,
) -> Vec<(Service, Handler)> {
    let (messenger, operator) = (Arc::clone(messenger), Arc::clone(operator));
    let states = Arc::clone(controls);
    let capture = move |request: TransferRequest| {
        let control = states.get(&request.shard).ok_or_else(|| format!("this node has no {}", request.shard))?;
        offer::offer(&**control, request.part)
    };
    let watch = Arc::clone(&operator.watch);
    let logs = Logs { controls: Arc::clone(controls), view: Box::new(move || watch.view()) };
    vec![
        (Service::ViewLog, Arc::new(move |stream: ControlStream| messenger.serve(stream))),
        (Service::State, Arc::new(move |stream| wire::serve(stream, &capture))),
        (Service::Admin, Arc::new(move |stream| admin::serve(stream, &*operator))),
        (Service::Log, Arc::new(move |stream| log_service::serve(stream, &logs))),
    ]
}

/// The handler of a node whose groups take requests from outside.
pub(crate) fn clients(clients: &Arc<serve::Server>) -> (Service, Handler) {
    let clients = Arc::clone(clients);
    (Service::Clients, Arc::new(move |stream| clients.serve(stream)))
}
