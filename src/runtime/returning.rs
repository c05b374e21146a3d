//! What a restart of the group needs of a node's logs: that they are cut, and that it says what they have. Both may take long, and
//! are done on a thread of their own.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use squall_fabric::{NodeId, Waker};
use squall_membership::{End, Held, ShardId};

use super::engine::GroupSlot;
use crate::group::GroupControl;

/// What was done.
#[derive(Debug)]
pub(crate) enum Done {
    /// This is what the logs have, once nothing was on its way to them.
    Held(BTreeMap<ShardId, Held>),
    /// A log is cut, or why it is not.
    Cut(ShardId, Result<(), String>),
}

/// What is to be done.
#[derive(Debug)]
enum Job {
    Gather,
    Cut { shard: ShardId, end: End, rebuilds: bool },
}

/// A node's part in a restart, as far as its logs are concerned.
#[derive(Debug)]
pub(crate) struct Returning {
    /// Whether the node has a disk to return with.
    has_disk: bool,
    waker: Waker,
    /// In this order, one after the other.
    jobs: VecDeque<Job>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    done: mpsc::Receiver<Done>,
    thread: JoinHandle<()>,
    /// What it comes to if the thread can't do it.
    otherwise: Done,
}

impl Returning {
    pub(crate) fn new(has_disk: bool, waker: Waker) -> Returning {
        Returning { has_disk, waker, jobs: VecDeque::new(), running: None }
    }

    /// The node is in no view any more: what its logs have is to be said.
    pub(super) fn gather(&mut self) {
        if self.has_disk {
            self.jobs.push_back(Job::Gather);
        }
    }

    /// A shard's log is to be cut, and its replica to be taken back to there at once if `rebuilds`.
    pub(super) fn cut(&mut self, shard: ShardId, end: End, rebuilds: bool) {
        self.jobs.push_back(Job::Cut { shard, end, rebuilds });
    }

    /// Whether it has, or is about to have, the logs in its hands.
    pub(super) fn is_busy(&self) -> bool {
        self.running.is_some() || !self.jobs.is_empty()
    }

    /// Begins what can begin, and returns what is done.
    pub(super) fn step(&mut self, groups: &mut BTreeMap<ShardId, GroupSlot>) -> Option<Done> {
        if let Some(running) = &self.running {
            return match running.done.try_recv() {
                Err(mpsc::TryRecvError::Empty) => None,
                Ok(done) => {
                    self.end_running();
                    Some(done)
                }
                // It has panicked. A view may wait for it, and it has a log in its hands.
                Err(mpsc::TryRecvError::Disconnected) => self.end_running(),
            };
        }
        let is_ready = match self.jobs.front()? {
            Job::Gather => groups.values_mut().all(GroupSlot::is_still),
            Job::Cut { shard, .. } => groups.get_mut(shard).is_none_or(GroupSlot::is_still),
        };
        if is_ready && let Some(job) = self.jobs.pop_front() {
            let controls = groups.iter().map(|(&shard, group)| (shard, Arc::clone(&group.control))).collect();
            return self.start(controls, job);
        }
        None
    }

    /// Returns what comes of it at once, if there is no thread for it.
    fn start(&mut self, controls: BTreeMap<ShardId, Arc<dyn GroupControl>>, job: Job) -> Option<Done> {
        let otherwise = match &job {
            // Then the node joins as one that has nothing.
            Job::Gather => Done::Held(BTreeMap::new()),
            Job::Cut { shard, .. } => {
                Done::Cut(*shard, Err("its log could not be cut, since its thread failed".to_owned()))
            }
        };
        let (tell, done) = mpsc::channel();
        let waker = self.waker.clone();
        let body = move || {
            // The engine may have ended.
            let _ = tell.send(carry_out(&controls, &job));
            drop(tell);
            waker.wake();
        };
        match thread::Builder::new().name("squall-return".to_owned()).spawn(body) {
            Ok(thread) => {
                self.running = Some(Running { done, thread, otherwise });
                None
            }
            Err(error) => {
                tracing::error!(%error, "there is no thread to take a part in the group's restart");
                Some(otherwise)
            }
        }
    }

    /// Waits for the thread. Returns what it comes to if it panicked.
    fn end_running(&mut self) -> Option<Done> {
        let Running { thread, otherwise, .. } = self.running.take()?;
        thread.join().is_err().then(|| {
            tracing::error!("a thread that took a part in the group's restart panicked");
            otherwise
        })
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        self.end_running();
    }
}

fn carry_out(controls: &BTreeMap<ShardId, Arc<dyn GroupControl>>, job: &Job) -> Done {
    match job {
        Job::Gather => {
            let held = controls.iter().filter_map(|(&shard, control)| Some((shard, control.held()?)));
            Done::Held(held.collect())
        }
        Job::Cut { shard, end, rebuilds } => {
            let cut = controls.get(shard).map_or(Ok(()), |control| control.cut(*end, *rebuilds));
            Done::Cut(*shard, cut.map_err(|error| error.to_string()))
        }
    }
}

/// For whom a group waits that lies in pieces, in a sentence.
pub(crate) fn waits_for(nodes: &[NodeId]) -> String {
    let mut nodes = nodes.to_vec();
    nodes.sort_unstable();
    let nodes = nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ");
    format!(
        "the group was interrupted, and waits for {nodes} to come back: start them. More than half of its members go on without \
         the others after `restart_wait_ms`; if they are lost for ever, `squall recover --force` lets this node go on with what its disk \
         has"
    )
}
