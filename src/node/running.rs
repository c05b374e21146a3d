//! A running node, as its application has it.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use squall_fabric::NodeId;
use squall_membership::{EndReason, Input, View};
use squall_services::Server;

use crate::{
    clients::serve,
    durable::storage_thread::StorageThread,
    node::{
        engine::EngineRequest,
        operator::{Operator, reload_keys},
        room_thread::RoomThread,
        scrub_thread::ScrubThread,
        status::{Status, ViewChangeTimes},
        views::Views,
        watch::WatchState,
    },
};

/// The longest time that a node stays so that others hear that it has left.
const FAREWELL_PATIENCE: Duration = Duration::from_secs(1);

/// A running node. Dropping it shuts it down.
#[derive(derive_more::Debug)]
#[debug("Node {{ id: {:?}, epoch: {:?} }}", self.id(), operator.watch.view().map(|view| view.epoch))]
pub struct Node {
    pub(super) operator: Arc<Operator>,
    pub(super) engine: Option<JoinHandle<()>>,
    pub(super) room: Option<RoomThread>,
    /// Ends before the storage thread, which it asks.
    pub(super) scrub: Option<ScrubThread>,
    /// Ends after the engine, and writes the rest.
    pub(super) storage: Option<StorageThread>,
    pub(super) clients: Option<Arc<serve::Server>>,
    /// Ends after the engine, for whose groups the server's threads wait.
    pub(super) server: Option<Server>,
}

impl Node {
    /// The node's id.
    pub fn id(&self) -> NodeId {
        self.operator.id
    }

    /// Returns the last view that this node has installed. A node that was dropped from the group, and asks to join
    /// again, still has that view.
    pub fn view(&self) -> Arc<View> {
        self.operator.watch.view().expect("a node that started has a view")
    }

    /// Waits until this node has installed a view of which `which` is true, for `limit` at most. None if it has not.
    ///
    /// # Errors
    ///
    /// The reason for which the node's part in its groups is over, if it is.
    pub fn wait_view(&self, limit: Duration, which: impl Fn(&View) -> bool) -> Result<Option<Arc<View>>, EndReason> {
        self.operator.watch.wait_view(Some(limit), which)
    }

    /// Returns the views that this node installs from now on, the present one first.
    pub fn views(&self) -> Views {
        Views::new(Arc::clone(&self.operator.watch))
    }

    /// Returns the times of this node's steps to its view.
    pub fn last_change(&self) -> ViewChangeTimes {
        self.operator.watch.change()
    }

    /// Reads the node's keys again, as happens by itself when their files change. Connections that stand go on, except
    /// with peers whose certificates are revoked.
    ///
    /// # Errors
    ///
    /// A sentence, if the node has no keys, or if those in the files can't be used: it goes on with those that it has.
    pub fn reload_keys(&self) -> Result<(), String> {
        reload_keys(self.operator.keys.as_ref())
    }

    /// Leaves the group: the others go on without this node, and need no timeout for it. A message that this node has
    /// accepted is delivered, or fails with an error that says that it was not; where all leave, and too few of the
    /// voters are left, the outcome may be unknown. Waits until that is done, for `limit` at most.
    ///
    /// A process that is asked to end (SIGTERM) should call it, whether it is the only one or all are. If all members
    /// leave, in whatever order, the group ends, as by [`shutdown_group`](Node::shutdown_group).
    ///
    /// Returns whether it has left. If not, no other node can go on with the state that this one has, or too few of the
    /// nodes that decide can be reached. Perhaps all others ended while this node was cut off from them. It is still a
    /// member then, and goes on trying; a process that is to end calls [`shutdown`](Node::shutdown) next, whatever the
    /// answer.
    pub fn leave(&self, limit: Duration) -> bool {
        self.operator.tell(EngineRequest::Input(Input::Leave));
        self.operator.wait_left(Some(limit)).is_some()
    }

    /// Begins to leave the group, as [`leave`](Node::leave) does, and returns a future of the reason for which this
    /// node's part is over: [`EndReason::Left`] if it has left.
    ///
    /// The node leaves whether the future is awaited or dropped. It has no limit of its own, and does not keep the node
    /// running.
    pub fn begin_leave(&self) -> impl Future<Output = EndReason> + Send + use<> {
        self.operator.tell(EngineRequest::Input(Input::Leave));
        self.left()
    }

    /// Ends the whole group: all members deliver what all have received, write it down where the group is durable, and
    /// leave. Waits until this node has, for `limit` at most, and returns whether it has.
    ///
    /// One member's call suffices, and several do no harm. Members that can't be reached, or that hang, are not waited
    /// for.
    ///
    /// A message that was acknowledged survives a loss of power of all members: durable groups go on with it when their
    /// nodes are started again. The outcome of a message that was not delivered is unknown.
    pub fn shutdown_group(&self, limit: Duration) -> bool {
        self.operator.tell(EngineRequest::Input(Input::Close));
        self.operator.wait_left(Some(limit)).is_some()
    }

    /// Begins to end the whole group, as [`shutdown_group`](Node::shutdown_group) does, and returns a future as
    /// [`begin_leave`](Node::begin_leave) does.
    pub fn begin_shutdown_group(&self) -> impl Future<Output = EndReason> + Send + use<> {
        self.operator.tell(EngineRequest::Input(Input::Close));
        self.left()
    }

    fn left(&self) -> impl Future<Output = EndReason> + Send + use<> {
        let watch = Arc::clone(&self.operator.watch);
        async move { watch.find(WatchState::left).await }
    }

    /// Declares a member gone, whatever this node sees of it: the others go on without it.
    pub fn suspect(&self, member: NodeId) {
        self.operator.tell(EngineRequest::Input(Input::Suspect(member)));
    }

    /// Returns the reason for which the node's part in its groups is over, if it is.
    pub fn end_reason(&self) -> Option<EndReason> {
        self.operator.watch.end_reason()
    }

    /// Waits until the node's part in its groups is over, and returns the reason.
    pub fn wait_ended(&self) -> EndReason {
        self.operator.watch.wait(None, WatchState::ended).expect("without a limit it waits until then")
    }

    /// Returns a future of the reason for which the node's part in its groups is over. It does not keep the node
    /// running: after [`shutdown`](Node::shutdown) it resolves, too.
    pub fn ended(&self) -> impl Future<Output = EndReason> + Send + use<> {
        let watch = Arc::clone(&self.operator.watch);
        async move { watch.find(WatchState::ended).await }
    }

    /// Returns the current state of the node and its groups. None while the engine does not answer, because it has
    /// ended.
    pub fn status(&self) -> Option<Status> {
        self.operator.ask(EngineRequest::Status)
    }

    /// Stops serving calls, as if the node had died to its clients.
    #[cfg(all(test, not(squall_loom)))]
    pub(crate) fn stop_serving(&mut self) {
        drop(self.server.take());
    }

    /// Ends the node's part in its groups: every waiting call gets an error, and the other members see this one leave.
    ///
    /// Waits until the engine and all applications have returned.
    pub fn shutdown(self) {
        drop(self);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let Some(engine) = self.engine.take() else { return };
        let is_own = engine.thread().id() == thread::current().id();
        let (operator, clients) = (Arc::clone(&self.operator), self.clients.take());
        let (room, scrub, storage, server) =
            (self.room.take(), self.scrub.take(), self.storage.take(), self.server.take());
        let end = move || {
            // An operator that let the node leave hears of that before the node goes.
            operator.farewells.wait(FAREWELL_PATIENCE);
            operator.tell(EngineRequest::Stop);
            if engine.join().is_err() {
                tracing::error!("the engine's thread panicked");
            }
            drop((room, scrub));
            drop(storage);
            if let Some(clients) = clients {
                clients.stop();
            }
            drop(server);
        };
        if !is_own {
            return end();
        }
        // A waker that polls at once runs here on the engine's thread, which can't wait for itself.
        if let Err(error) = thread::Builder::new().name("squall-end".to_owned()).spawn(end) {
            tracing::error!(%error, "a node could not be ended");
        }
    }
}
