//! The work on a node's logs that a restart of the group needs: cutting them, and reporting what they have. Both may
//! take long, and are done on a thread of their own.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use squall_fabric::{NodeId, Waker};
use squall_membership::{HeldCopy, OrderEnd, ShardId};

use super::group_slot::GroupSlot;
use crate::{calls::error::list, group::control::GroupControl};

/// A finished job.
#[derive(Debug)]
pub(crate) enum Done {
    /// The contents of the logs, once nothing was on its way to them.
    Held(BTreeMap<ShardId, HeldCopy>),
    /// A log is cut, or could not be cut for this reason.
    Cut(ShardId, Result<(), String>),
}

/// A job on the logs.
#[derive(Debug)]
enum Job {
    Gather,
    Cut { shard: ShardId, end: OrderEnd, rebuilds: bool },
}

/// A node's part in a restart, as far as its logs are concerned.
#[derive(Debug)]
pub(crate) struct Returning {
    /// Whether the node has a disk to return with.
    has_disk: bool,
    waker: Waker,
    /// The jobs, which run in this order, one after the other.
    jobs: VecDeque<Job>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    done: mpsc::Receiver<Done>,
    thread: JoinHandle<()>,
    /// The result if the thread fails.
    otherwise: Done,
}

impl Returning {
    pub(crate) fn new(has_disk: bool, waker: Waker) -> Returning {
        Returning { has_disk, waker, jobs: VecDeque::new(), running: None }
    }

    /// Asks for the contents of the logs: the node is in no view any more.
    pub(super) fn gather(&mut self) {
        if self.has_disk {
            self.jobs.push_back(Job::Gather);
        }
    }

    /// Asks for a cut of a shard's log. Its replica is taken back to there at once if `rebuilds`.
    pub(super) fn cut(&mut self, shard: ShardId, end: OrderEnd, rebuilds: bool) {
        self.jobs.push_back(Job::Cut { shard, end, rebuilds });
    }

    /// Whether it works on the logs, or is about to.
    pub(super) fn is_busy(&self) -> bool {
        self.running.is_some() || !self.jobs.is_empty()
    }

    /// Begins a job that can begin, and returns one that is done.
    pub(super) fn step(&mut self, groups: &mut BTreeMap<ShardId, GroupSlot>) -> Option<Done> {
        if let Some(running) = &self.running {
            return match running.done.try_recv() {
                Err(mpsc::TryRecvError::Empty) => None,
                Ok(done) => {
                    self.end_running();
                    Some(done)
                }
                // The thread has panicked. A view may wait for it, and it has a log in its hands.
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

    /// Starts a job. If there is no thread for it, returns its result at once.
    fn start(&mut self, controls: BTreeMap<ShardId, Arc<dyn GroupControl>>, job: Job) -> Option<Done> {
        let otherwise = match &job {
            // The node then joins as one that has nothing.
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

    /// Waits for the thread. Returns the job's result if the thread panicked.
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

/// A sentence that names the nodes for which a group in pieces waits.
pub(crate) fn waits_for(nodes: &[NodeId]) -> String {
    let mut nodes = nodes.to_vec();
    nodes.sort_unstable();
    let nodes = list(&nodes);
    format!(
        "the group was interrupted, and waits for {nodes} to come back: start them. More than half of its members go on without \
         the others after `restart_wait_ms`; if they are lost for ever, `squall recover --force --reason TEXT` lets this node \
         go on with what its disk has"
    )
}
