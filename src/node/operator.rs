//! The questions and commands that a running node takes from operators and from its own program.

use std::{sync::Arc, time::Duration};

use crossbeam::channel::{Sender, bounded};
use squall_fabric::{
    NodeId, Waker,
    net::{Identity, PortMonitor},
};
use squall_membership::{EndReason, Input};
use squall_view_log::Monitor;

use crate::{
    clients::admin::{Admin, EmptiedShard, Farewell, Farewells, NodeCondition, StatusReport},
    node::{
        engine::EngineRequest,
        milestones::VOTE_PATIENCE,
        room_thread::SharedRoom,
        watch::{NodeWatch, WatchState},
    },
};

/// The longest time that a forced view may take to be in operation.
const RECOVERY_PATIENCE: Duration = Duration::from_secs(30);

/// The longest time that the engine may take to answer: it may be in an application's call.
const PATIENCE: Duration = Duration::from_secs(4);

/// A running node, for holders that do not own it.
pub(crate) struct Operator {
    pub(crate) id: NodeId,
    pub(crate) cluster: String,
    /// The place of the view log, in words.
    pub(crate) storage: Option<String>,
    pub(crate) room: SharedRoom,
    pub(crate) requests: Sender<EngineRequest>,
    pub(crate) waker: Waker,
    pub(crate) watch: Arc<NodeWatch>,
    pub(crate) monitor: Monitor,
    pub(crate) farewells: Arc<Farewells>,
    pub(crate) keys: Option<Identity>,
    /// The counts of the node's port, if it has one.
    pub(crate) port: Option<PortMonitor>,
}

/// Reads keys again, if there are any.
pub(crate) fn reload_keys(keys: Option<&Identity>) -> Result<(), String> {
    let keys = keys.ok_or("it has no keys: nothing protects its port, or it has none")?;
    keys.try_reload().map_err(|error| error.to_string())
}

impl Operator {
    /// Sends the engine a request. After its end nothing happens.
    pub(crate) fn tell(&self, request: EngineRequest) {
        let _ = self.requests.send(request);
        self.waker.wake();
    }

    /// Sends the engine a question. None if there is no answer in time, or the engine has ended.
    pub(super) fn ask<T>(&self, request: impl FnOnce(Sender<T>) -> EngineRequest) -> Option<T> {
        let (reply, answer) = bounded(1);
        self.tell(request(reply));
        answer.recv_timeout(PATIENCE).ok()
    }

    /// Waits until the node has left, for `limit` at most. Returns the reason of its end, if it has ended.
    pub(crate) fn wait_left(&self, limit: Option<Duration>) -> Option<EndReason> {
        let reason = self.watch.wait(limit, WatchState::ended)?;
        let patience = limit.map_or(VOTE_PATIENCE, |limit| limit.min(VOTE_PATIENCE));
        self.watch.wait(Some(patience), WatchState::left);
        Some(reason)
    }
}

impl Admin for Operator {
    fn status(&self) -> StatusReport {
        let known = StatusReport::of_log(&self.cluster, self.id, &self.monitor, self.storage.clone());
        let known = StatusReport { room: self.room.lock().clone(), ..known };
        let known = known.with_port(self.keys.as_ref(), self.port.as_ref());
        let seen = self.ask(|reply| EngineRequest::Report(Box::new(known.clone()), reply));
        seen.unwrap_or_else(|| {
            let why =
                self.watch.end_reason().map_or_else(|| "its engine does not answer".into(), |end| end.to_string());
            StatusReport { condition: NodeCondition::Ended(why), ..known }
        })
    }

    fn suspect(&self, node: NodeId) -> Result<(), String> {
        if node == self.id {
            return Err(format!(
                "{node} is this node itself: ask another member, or let this one leave (`squall leave`)"
            ));
        }
        let view = self.watch.view().ok_or("it is in no view yet")?;
        if view.rank_of(node).is_none() {
            let members: Vec<String> = view.nodes().iter().map(|member| member.0.to_string()).collect();
            return Err(format!("{node} is not a member of {}: that has {}", view.epoch, members.join(", ")));
        }
        self.tell(EngineRequest::Input(Input::Suspect(node)));
        Ok(())
    }

    fn reload_keys(&self) -> Result<(), String> {
        reload_keys(self.keys.as_ref())
    }

    fn leave(&self) -> Result<Farewell, String> {
        match self.watch.end_reason() {
            Some(reason) => Err(format!("its part is over: {reason}")),
            None => {
                let farewell = self.farewells.hold();
                self.tell(EngineRequest::Input(Input::Leave));
                Ok(farewell)
            }
        }
    }

    fn wait_left(&self) -> Result<(), String> {
        match self.wait_left(None) {
            Some(EndReason::Left) => Ok(()),
            Some(reason) => Err(format!("it did not leave, since it ended before: {reason}")),
            None => Err("it has not left".into()),
        }
    }

    fn recover(&self, reason: String) -> Result<Vec<EmptiedShard>, String> {
        let forced = self.ask(|reply| EngineRequest::Recover(reason, reply));
        let (epoch, emptied) = forced.ok_or("its engine does not answer")??;
        match self.watch.wait_view(Some(RECOVERY_PATIENCE), |view| view.epoch >= epoch) {
            Ok(Some(_)) => Ok(emptied),
            Ok(None) => {
                Err(format!("{epoch} is forced, and not in operation after {RECOVERY_PATIENCE:?}: see `squall status`"))
            }
            Err(reason) => Err(format!("{epoch} is forced, and this node has ended: {reason}")),
        }
    }
}
