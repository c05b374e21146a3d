//! A delivery thread, for a group whose `apply` is not short.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam::{
    channel::{Receiver, Sender, TryRecvError, bounded, unbounded},
    sync::{Parker, Unparker},
};
use squall_fabric::{Time, Waker};
use squall_membership::ShardId;

use crate::delivery::{
    shard_change::ShardChange,
    task::{Halt, Task},
};

/// The number of turns that a thread delivers before it publishes its progress.
const BATCH: usize = 64;

/// The engine's side of a delivery thread.
#[derive(Debug)]
pub(crate) struct DeliveryThread {
    changes: Sender<ShardChange>,
    /// The number of changes of which the task has not been told yet.
    untold: Arc<AtomicUsize>,
    unparker: Unparker,
    thread: Option<JoinHandle<()>>,
}

impl DeliveryThread {
    /// Hands `task` to a thread of its own, which calls `halted` if the task fails. If the system gives no thread, the
    /// task comes back.
    pub(crate) fn start(
        shard: ShardId,
        task: Box<dyn Task>,
        halted: impl Fn(ShardId, Halt) + Send + 'static,
        waker: Waker,
    ) -> Result<DeliveryThread, Box<dyn Task>> {
        let (changes, to_task) = unbounded();
        let untold = Arc::new(AtomicUsize::new(0));
        let (hand_over, handed_over) = bounded::<Box<dyn Task>>(1);
        let parker = Parker::new();
        let unparker = parker.unparker().clone();
        let to_tell = Arc::clone(&untold);
        let body = move || {
            if let Ok(task) = handed_over.recv() {
                run(shard, task, &to_task, &to_tell, &parker, &halted, &waker);
            }
        };
        match thread::Builder::new().name(format!("squall-{}", task.name())).spawn(body) {
            Ok(thread) => {
                hand_over.send(task).expect("the thread waits for it");
                Ok(DeliveryThread { changes, untold, unparker, thread: Some(thread) })
            }
            Err(error) => {
                tracing::error!(%error, group = task.name(), "no thread for a slow group: it stays on the engine's");
                Err(task)
            }
        }
    }

    /// Wakes the thread: there may be more to deliver or to answer.
    pub(crate) fn wake(&self) {
        self.unparker.unpark();
    }

    /// Tells the task, once the application's current call returns. After [`ShardChange::End`], the thread ends.
    pub(crate) fn tell(&self, change: ShardChange) {
        self.untold.fetch_add(1, Ordering::Relaxed);
        // Without a receiver the thread has ended already.
        let _ = self.changes.send(change);
        self.unparker.unpark();
    }

    /// Whether the task has been told of all changes. Until then its group's reports are of the view before.
    pub(crate) fn is_up_to_date(&self) -> bool {
        self.untold.load(Ordering::Acquire) == 0
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
    changes: &Receiver<ShardChange>,
    untold: &AtomicUsize,
    parker: &Parker,
    halted: &impl Fn(ShardId, Halt),
    waker: &Waker,
) {
    let mut stuck = false;
    loop {
        match changes.try_recv() {
            Ok(end @ ShardChange::End { .. }) => return task.change(end),
            Ok(change) => {
                // A task that comes back gets other messages, and another state.
                stuck &= !matches!(change, ShardChange::Outside { .. });
                task.change(change);
                untold.fetch_sub(1, Ordering::Release);
                waker.wake();
            }
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {}
        }
        let now = Time::boot_clock();
        let expired = task.deadline().is_some_and(|deadline| deadline <= now);
        if !stuck && (task.is_due() || expired) {
            if let Err(halt) = task.step(now, BATCH) {
                stuck = true;
                halted(shard, halt);
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

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use std::sync::mpsc;

    use squall_fabric::NodeId;
    use squall_membership::Epoch;
    use squall_ordered::{DeliverError, Fault, Ran};

    use super::*;
    use crate::calls::error::Unavailable;

    /// A task that fails each step, and allows one more after it was outside.
    struct Strict {
        steps: u32,
        /// Gets a message for each step, and for being stalled, which lasts until the test says so.
        told: mpsc::Sender<&'static str>,
        go_on: mpsc::Receiver<()>,
    }

    impl Task for Strict {
        fn is_due(&self) -> bool {
            self.steps > 0
        }

        fn step(&mut self, _: Time, _: usize) -> Result<Ran, Halt> {
            self.steps -= 1;
            self.told.send("step").unwrap();
            Err(DeliverError { sender: NodeId(2), cause: Fault::Bulk { number: 1, bytes: 1 } }.into())
        }

        fn deadline(&self) -> Option<Time> {
            None
        }

        fn change(&mut self, change: ShardChange) {
            match change {
                ShardChange::Outside { .. } => self.steps = 1,
                ShardChange::Stalled => {
                    self.told.send("stalled").unwrap();
                    self.go_on.recv().unwrap();
                }
                _ => {}
            }
        }

        fn name(&self) -> &str {
            "strict"
        }
    }

    /// A thread of a task that is due, the messages of the task, and the channel that lets it go on.
    fn start() -> (DeliveryThread, mpsc::Receiver<&'static str>, mpsc::Sender<()>) {
        let ((told, tells), (lets, go_on)) = (mpsc::channel(), mpsc::channel());
        let task = Box::new(Strict { steps: 2, told, go_on });
        let thread = DeliveryThread::start(ShardId(0), task, |_, _| (), Waker::new(|| ()));
        (thread.unwrap_or_else(|_| panic!("there is a thread")), tells, lets)
    }

    #[test]
    fn a_task_that_met_a_faulty_sender_goes_on_only_after_it_was_outside() {
        let (thread, tells, lets) = start();
        assert_eq!(tells.recv(), Ok("step"));
        thread.tell(ShardChange::Stalled);
        assert_eq!(tells.recv(), Ok("stalled"), "not another step");
        lets.send(()).unwrap();
        let why = Unavailable::Dropped { epoch: Epoch(2) };
        thread.tell(ShardChange::Outside { undelivered: Vec::new(), why });
        assert_eq!(tells.recv(), Ok("step"));
    }

    #[test]
    fn it_is_known_whether_the_task_was_told_of_all_changes() {
        let (thread, tells, lets) = start();
        assert_eq!(tells.recv(), Ok("step"));
        assert!(thread.is_up_to_date());
        thread.tell(ShardChange::Stalled);
        assert_eq!(tells.recv(), Ok("stalled"));
        assert!(!thread.is_up_to_date(), "it is being told");
        lets.send(()).unwrap();
        while !thread.is_up_to_date() {
            thread::yield_now();
        }
    }
}
