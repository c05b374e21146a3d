//! The node's side of the admin service.

use std::{sync::Arc, time::Duration};

use squall_fabric::{
    NodeId,
    net::Call,
    sync::{Condition, Lock},
};

use super::{EmptiedShard, Reply, Request, StatusReport, WORDS};
use squall_services::{
    ControlStream,
    frame::{self, FrameError},
};

/// The time for which a command may be silent.
const IDLE: Duration = Duration::from_secs(60);

/// The time for which a command may read nothing.
const PATIENCE: Duration = Duration::from_secs(5);

/// The requests that a node carries out. Called on the streams' threads, several at once; a refusal is a sentence.
pub(crate) trait Admin: Send + Sync {
    /// Returns this node's report of its cluster.
    fn status(&self) -> StatusReport;

    /// Suspects a member, as if it had failed.
    fn suspect(&self, node: NodeId) -> Result<(), String>;

    /// Reads the node's keys again.
    fn reload_keys(&self) -> Result<(), String>;

    /// Begins to leave. The node's process is asked to stay as long as the returned value lives, so that an operator
    /// gets the answer.
    fn leave(&self) -> Result<Farewell, String>;

    /// Waits until the node has left. If it ended otherwise, the error says how.
    fn wait_left(&self) -> Result<(), String>;

    /// Goes on with what is left, without a quorum of the voters. `reason` names the operator, the time and the cause,
    /// for the view log. Returns the shards that start empty.
    fn recover(&self, reason: String) -> Result<Vec<EmptiedShard>, String>;
}

/// The number of operators that are still to be told that their node has left.
#[derive(Debug, Default)]
pub(crate) struct Farewells {
    count: Lock<usize>,
    changed: Condition,
}

/// One operator that is still to be told.
#[derive(Debug)]
pub(crate) struct Farewell(Arc<Farewells>);

impl Farewells {
    fn add(&self, change: impl FnOnce(&mut usize)) {
        change(&mut self.count.lock());
        self.changed.notify_all();
    }

    /// Adds one operator.
    pub(crate) fn hold(self: &Arc<Self>) -> Farewell {
        self.add(|count| *count += 1);
        Farewell(Arc::clone(self))
    }

    /// Waits until all operators were told, for `limit` at most.
    pub(crate) fn wait(&self, limit: Duration) {
        let count = self.count.lock();
        drop(self.changed.wait_timeout_while(count, limit, |count| *count > 0));
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.add(|count| *count -= 1);
    }
}

/// Answers a call of [`Service::Admin`](squall_services::Service::Admin), until the call ends.
pub(crate) fn serve(stream: ControlStream, admin: &dyn Admin) {
    let caller = stream.peer_name();
    match answer(stream, admin) {
        Ok(()) | Err(FrameError::Closed) => {}
        Err(error) => tracing::debug!(%caller, %error, "an operator's call has ended"),
    }
}

fn answer(stream: ControlStream, admin: &dyn Admin) -> Result<(), FrameError> {
    stream.reader.set_timeout(Some(IDLE))?;
    stream.writer.set_timeout(Some(PATIENCE))?;
    let caller = stream.peer_name();
    let ControlStream { access, mut reader, mut writer, .. } = stream;
    let done = |result: Result<(), String>| result.map_or_else(Reply::Refused, |()| Reply::Done);
    loop {
        let request = frame::read(&mut reader, WORDS)?;
        let call = if request == Request::Status { Call::Status } else { Call::Order };
        if let Err(denied) = access.check(call, None) {
            frame::write(&mut writer, &Reply::Refused(denied.to_string()), WORDS)?;
            continue;
        }
        if call == Call::Order {
            tracing::info!(%caller, ?request, "an operator asks");
        }
        let mut farewell = None;
        let reply = match request {
            Request::Status => Reply::Status(Box::new(admin.status())),
            Request::ReloadKeys => done(admin.reload_keys()),
            Request::Suspect(node) => done(admin.suspect(node)),
            Request::Recover(reason) => admin.recover(reason).map_or_else(Reply::Refused, Reply::Recovered),
            Request::Leave => match admin.leave() {
                Ok(held) => {
                    farewell = Some(held);
                    frame::write(&mut writer, &Reply::Done, WORDS)?;
                    done(admin.wait_left())
                }
                Err(why) => Reply::Refused(why),
            },
        };
        frame::write(&mut writer, &reply, WORDS)?;
        drop(farewell);
    }
}
