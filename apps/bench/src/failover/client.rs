//! One node, and the caller on it.

use std::{
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::Receiver,
    },
    thread,
    time::Duration,
};

use rkyv::util::AlignedVec;
use squall::{Epoch, Group, Invalid, Message, Node, Service, Snapshot, Stamp, View};
use squall_fabric::Time;

use crate::{
    job::{FailoverJob, Recovered, Settled, WorkerCommand, WorkerReport},
    parent::{Stopped, say},
    places::configure,
};

const GROUP: &str = "bench";

/// A message's size, in bytes.
const SIZE: usize = 100;

/// The interval of looks for an event that wakes no thread.
const LOOK: Duration = Duration::from_millis(1);

/// The time after which a caller that was refused tries again.
const AGAIN: Duration = Duration::from_micros(200);

/// Runs a node and its caller until the parent wants no more of it.
pub(crate) fn run(job: &FailoverJob, told: &Receiver<WorkerCommand>) -> Result<Node, Stopped> {
    let (node, group) = start(job)?;
    let answers = Arc::new(Answers::default());
    let stop = Arc::new(AtomicBool::new(false));
    let caller = {
        let (answers, stop) = (Arc::clone(&answers), Arc::clone(&stop));
        thread::spawn(move || call(&group, &answers, &stop))
    };
    say(&WorkerReport::Ready);
    let result = obey(job, told, &node, &answers);
    stop.store(true, Ordering::Relaxed);
    caller.join().expect("the calling thread does not panic");
    result.map(|()| node)
}

fn obey(job: &FailoverJob, told: &Receiver<WorkerCommand>, node: &Node, answers: &Answers) -> Result<(), Stopped> {
    loop {
        let ended = || node.end_reason().map(|reason| Stopped::Failed(reason.to_string()));
        match told.recv().map_err(|_| Stopped::Told)? {
            WorkerCommand::Settle => {
                let view = loop {
                    let view = node.view();
                    if is_settled(&view, job.nodes) && answers.epoch.load(Ordering::Acquire) == view.epoch.0 {
                        break view;
                    }
                    ended().map_or(Ok(()), Err)?;
                    thread::sleep(LOOK);
                };
                let nodes = view.nodes().iter().map(|node| node.0).collect();
                say(&WorkerReport::Settled(Settled { epoch: view.epoch.0, nodes }));
            }
            WorkerCommand::Recover { after } => {
                while answers.epoch.load(Ordering::Acquire) <= after {
                    ended().map_or(Ok(()), Err)?;
                    thread::sleep(LOOK);
                }
                let answered = answers.first.load(Ordering::Relaxed);
                let change = node.last_change();
                say(&WorkerReport::Recovered(Recovered {
                    suspected: change.suspected.as_nanos(),
                    wedged: change.wedged.as_nanos(),
                    decided: change.decided.as_nanos(),
                    installed: change.installed.as_nanos(),
                    answered,
                }));
            }
        }
    }
}

/// Whether all nodes are members that may send.
fn is_settled(view: &View, nodes: u32) -> bool {
    let nodes = nodes as usize;
    view.members.len() == nodes && view.shards.iter().all(|shard| shard.senders.len() == nodes)
}

/// The newest answers that the caller had.
#[derive(Debug, Default)]
struct Answers {
    /// The view of the last answer.
    epoch: AtomicU64,
    /// The time at which the first answer of that view came, in nanoseconds of the host's boot clock.
    first: AtomicU64,
}

fn call(group: &Group<Witness>, answers: &Answers, stop: &AtomicBool) {
    let payload = [7; SIZE];
    while !stop.load(Ordering::Relaxed) {
        match group.submit_bytes(&payload).deadline(AT_ONCE_OR_NEVER).wait() {
            Ok(epoch) => {
                if epoch.0 > answers.epoch.load(Ordering::Relaxed) {
                    answers.first.store(Time::boot_clock().as_nanos(), Ordering::Relaxed);
                    answers.epoch.store(epoch.0, Ordering::Release);
                }
            }
            // It is not a sender yet, or not at the moment.
            Err(_) => thread::sleep(AGAIN),
        }
    }
}

/// A deadline that lets the caller notice that it shall stop.
const AT_ONCE_OR_NEVER: Duration = Duration::from_secs(5);

/// Answers with the view in which a message was ordered.
pub(crate) struct Witness;

impl Service for Witness {
    type Reply = Epoch;

    fn take(
        &mut self,
        message: &Message<'_>,
        _stamp: Stamp,
        _scratch: &mut AlignedVec,
    ) -> Result<Option<Epoch>, Invalid> {
        Ok(Some(message.epoch))
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of_bytes([])
    }

    fn restore(&mut self, _from: &mut dyn Read) -> io::Result<()> {
        Ok(())
    }
}

fn start(job: &FailoverJob) -> Result<(Node, Group<Witness>), String> {
    let config = configure(&job.cluster, job.node, job.nodes, job.place.as_ref());
    let config = config.failure_timeout(Duration::from_millis(job.failure_timeout_ms));
    let mut builder = Node::builder(config.build().map_err(|error| error.to_string())?);
    let group = builder.group_of(GROUP, Witness);
    Ok((builder.start().map_err(|error| error.to_string())?, group))
}
