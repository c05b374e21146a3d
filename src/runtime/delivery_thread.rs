//! A thread of its own for a group whose `apply` is not short.

use std::{
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam::{
    channel::{Receiver, Sender, TryRecvError, bounded, unbounded},
    sync::{Parker, Unparker},
};
use squall_fabric::{NodeId, Time, Waker};
use squall_membership::{EndReason, Epoch, ShardId};
use squall_ordered::Undelivered;

use super::engine::Request;
use crate::delivery::{Fate, Installed, Task};

/// How many turns a thread delivers before it publishes how far it is.
const BATCH: usize = 64;

/// What befalls a group, in the order in which it does.
pub(super) enum Change {
    /// It has a part in a new view.
    Install(Box<Installed>),
    /// It has none any more.
    Dropped(Vec<(Undelivered, Fate)>, Epoch),
    /// It has none in the view at hand, and these have.
    Elsewhere(Vec<NodeId>),
    /// Nothing can be decided.
    Stalled,
    /// The last: fail whatever waits.
    End(Vec<(Undelivered, Fate)>, EndReason),
}

impl Change {
    /// Tells a task.
    pub(super) fn tell(self, task: &mut dyn Task) {
        match self {
            Change::Install(installed) => task.install(*installed),
            Change::Dropped(undelivered, epoch) => task.dropped(undelivered, epoch),
            Change::Elsewhere(members) => task.elsewhere(members),
            Change::Stalled => task.stalled(),
            Change::End(undelivered, reason) => task.end(undelivered, &reason),
        }
    }
}

/// The engine's side of a delivery thread.
#[derive(Debug)]
pub(crate) struct DeliveryThread {
    changes: Sender<Change>,
    unparker: Unparker,
    thread: Option<JoinHandle<()>>,
}

impl DeliveryThread {
    /// Hands `task` to a thread of its own. If the system gives none, the task comes back.
    pub(crate) fn start(
        shard: ShardId,
        task: Box<dyn Task>,
        requests: Sender<Request>,
        waker: Waker,
    ) -> Result<DeliveryThread, Box<dyn Task>> {
        let (changes, to_task) = unbounded();
        let (hand_over, handed_over) = bounded::<Box<dyn Task>>(1);
        let parker = Parker::new();
        let unparker = parker.unparker().clone();
        let body = move || {
            if let Ok(task) = handed_over.recv() {
                run(shard, task, &to_task, &parker, &requests, &waker);
            }
        };
        match thread::Builder::new().name(format!("squall-{}", task.name())).spawn(body) {
            Ok(thread) => {
                hand_over.send(task).expect("the thread waits for it");
                Ok(DeliveryThread { changes, unparker, thread: Some(thread) })
            }
            Err(error) => {
                tracing::error!(%error, group = task.name(), "no thread for a slow group: it stays on the engine's");
                Err(task)
            }
        }
    }

    /// There may be more to deliver or to answer.
    pub(crate) fn wake(&self) {
        self.unparker.unpark();
    }

    /// Tells the task, once the application's current call returns. After the end, the thread ends.
    pub(super) fn tell(&self, change: Change) {
        // Without a receiver the thread has ended already.
        let _ = self.changes.send(change);
        self.unparker.unpark();
    }
}

impl Drop for DeliveryThread {
    fn drop(&mut self) {
        let (changes, _) = bounded(1);
        self.changes = changes;
        self.unparker.unpark();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a delivery thread panicked in the application's code");
        }
    }
}

fn run(
    shard: ShardId,
    mut task: Box<dyn Task>,
    changes: &Receiver<Change>,
    parker: &Parker,
    requests: &Sender<Request>,
    waker: &Waker,
) {
    let mut stuck = false;
    loop {
        match changes.try_recv() {
            Ok(end @ Change::End(..)) => return end.tell(&mut *task),
            Ok(change) => {
                change.tell(&mut *task);
                waker.wake();
            }
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {}
        }
        let now = Time::boot_clock();
        let expired = task.deadline().is_some_and(|deadline| deadline <= now);
        if !stuck && (task.is_due() || expired) {
            if let Err(error) = task.step(now, BATCH) {
                stuck = true;
                let _ = requests.send(Request::Faulty(shard, error));
            }
            waker.wake();
            continue;
        }
        match task.deadline().filter(|_| !stuck) {
            Some(deadline) => parker.park_timeout(deadline.since(now).max(Duration::from_micros(50))),
            None => parker.park(),
        }
    }
}
