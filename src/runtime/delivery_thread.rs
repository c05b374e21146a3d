//! A thread of its own for a group whose `apply` is not short.

use std::{
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam::{
    channel::{Receiver, Sender, TryRecvError, bounded},
    sync::{Parker, Unparker},
};
use squall_fabric::{Time, Waker};
use squall_membership::{EndReason, ShardId};
use squall_ordered::Undelivered;

use super::engine::Request;
use crate::delivery::Task;

/// How many turns a thread delivers before it publishes how far it is.
const BATCH: usize = 64;

/// The last thing that a delivery thread is told.
struct End {
    undelivered: Vec<Undelivered>,
    reason: EndReason,
}

/// The engine's side of a delivery thread.
#[derive(Debug)]
pub(crate) struct DeliveryThread {
    end: Sender<End>,
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
        let (end, ends) = bounded(1);
        let (hand_over, handed_over) = bounded::<Box<dyn Task>>(1);
        let parker = Parker::new();
        let unparker = parker.unparker().clone();
        let body = move || {
            if let Ok(task) = handed_over.recv() {
                run(shard, task, &ends, &parker, &requests, &waker);
            }
        };
        match thread::Builder::new().name(format!("squall-{}", task.name())).spawn(body) {
            Ok(thread) => {
                hand_over.send(task).expect("the thread waits for it");
                Ok(DeliveryThread { end, unparker, thread: Some(thread) })
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

    /// Fails whatever waits, and ends the thread once the application's current call returns.
    pub(crate) fn end(&self, undelivered: Vec<Undelivered>, reason: EndReason) {
        // The channel has room for the one end that there is; without a receiver the thread has ended already.
        let _ = self.end.try_send(End { undelivered, reason });
        self.unparker.unpark();
    }
}

impl Drop for DeliveryThread {
    fn drop(&mut self) {
        let (end, _) = bounded(1);
        self.end = end;
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
    ends: &Receiver<End>,
    parker: &Parker,
    requests: &Sender<Request>,
    waker: &Waker,
) {
    let mut stuck = false;
    loop {
        match ends.try_recv() {
            Ok(End { undelivered, reason }) => return task.end(&undelivered, &reason),
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
