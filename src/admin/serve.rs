//! The node's side.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use squall_fabric::NodeId;

use super::{EmptiedShard, Reply, Request, StatusReport, WORDS};
use crate::control::{
    ControlStream,
    frame::{self, FrameError},
};

/// How long a command may say nothing.
const IDLE: Duration = Duration::from_secs(60);

/// How long a command may take nothing of what is said.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a node can be asked and told. Called on the streams' threads, several at once; what is refused is said in a sentence.
pub(crate) trait Admin: Send + Sync {
    /// How this node sees its cluster.
    fn status(&self) -> StatusReport;

    /// Suspects a member, as if it had failed.
    fn suspect(&self, node: NodeId) -> Result<(), String>;

    /// Begins to leave. The node's process is asked to stay as long as what is returned lives, so that an operator hears of it.
    fn leave(&self) -> Result<Farewell, String>;

    /// Waits until the node has left, or ended otherwise: then it says how.
    fn wait_left(&self) -> Result<(), String>;

    /// Goes on with what is left, without a quorum of those who decide. `reason` says who wants it, when and why, for the
    /// view log. Returns the shards that start empty.
    fn recover(&self, reason: String) -> Result<Vec<EmptiedShard>, String>;
}

/// How many operators are yet to hear that their node has left.
#[derive(Debug, Default)]
pub(crate) struct Farewells {
    count: Mutex<usize>,
    changed: Condvar,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Farewell(Arc<Farewells>);

impl Farewells {
    fn add(&self, change: impl FnOnce(&mut usize)) {
        change(&mut self.count.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// One more.
    pub(crate) fn hold(self: &Arc<Self>) -> Farewell {
        self.add(|count| *count += 1);
        Farewell(Arc::clone(self))
    }

    /// Waits until all have heard, for `limit` at most.
    pub(crate) fn wait(&self, limit: Duration) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(count, limit, |count| *count > 0));
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.add(|count| *count -= 1);
    }
}

/// Answers a call of [`Service::Admin`](crate::control::Service::Admin), until its end.
pub(crate) fn serve(stream: ControlStream, admin: &dyn Admin) {
    let caller = stream.peer;
    match answer(stream, admin) {
        Ok(()) | Err(FrameError::Closed) => {}
        Err(error) => tracing::debug!(%caller, %error, "an operator's call has ended"),
    }
}

fn answer(stream: ControlStream, admin: &dyn Admin) -> Result<(), FrameError> {
    stream.reader.set_timeout(Some(IDLE))?;
    stream.writer.set_timeout(Some(PATIENCE))?;
    let ControlStream { peer, mut reader, mut writer, .. } = stream;
    let done = |result: Result<(), String>| result.map_or_else(Reply::Refused, |()| Reply::Done);
    loop {
        let request = frame::read(&mut reader, WORDS)?;
        if request != Request::Status {
            tracing::info!(caller = %peer, ?request, "an operator asks");
        }
        let mut farewell = None;
        let reply = match request {
            Request::Status => Reply::Status(Box::new(admin.status())),
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
