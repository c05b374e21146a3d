//! Wakes of the server's tasks from other threads, with one system call for many.
//!
//! The engine's thread often has answers for many connections at once. Waking a task of another thread's event loop
//! costs a system call. So the engine's thread adds each bell to a list, and wakes one task. That task, on the server's
//! thread, wakes the others at little cost.

use std::{
    future::poll_fn,
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake},
};

use atomic_waker::AtomicWaker;

use super::lock;

/// The bells that were rung, and the task that wakes theirs.
#[derive(Debug, Default)]
pub(super) struct Bells {
    rung: Mutex<Vec<Arc<Bell>>>,
    task: AtomicWaker,
}

/// A bell that wakes one task. As a [`Wake`] it may be rung from any thread.
#[derive(Debug)]
pub(super) struct Bell {
    bells: Arc<Bells>,
    is_rung: AtomicBool,
    task: AtomicWaker,
}

impl Bells {
    /// Wakes the tasks of the bells that were rung, for ever. To be spawned on the thread whose tasks they are.
    pub(super) async fn run(self: Arc<Bells>) {
        let mut ringing = Vec::new();
        poll_fn(|context| {
            self.task.register(context.waker());
            mem::swap(&mut *lock(&self.rung), &mut ringing);
            for bell in ringing.drain(..) {
                // Reset before the task looks at its state, so that a later change rings again. It is an exchange, so
                // that the task sees all that was written before a ring that found the bell rung.
                bell.is_rung.swap(false, Ordering::SeqCst);
                bell.task.wake();
            }
            Poll::<()>::Pending
        })
        .await;
    }
}

impl Bell {
    pub(super) fn new(bells: &Arc<Bells>) -> Arc<Bell> {
        Arc::new(Bell { bells: Arc::clone(bells), is_rung: AtomicBool::new(false), task: AtomicWaker::new() })
    }

    /// Sets the task that is woken: the one that calls this.
    pub(super) fn register(&self, context: &Context<'_>) {
        self.task.register(context.waker());
    }

    /// Wakes the task. Cheap if the bell was rung already and the task has not run since.
    pub(super) fn ring(self: &Arc<Bell>) {
        if self.is_rung.swap(true, Ordering::SeqCst) {
            return;
        }
        let is_first = {
            let mut rung = lock(&self.bells.rung);
            rung.push(Arc::clone(self));
            rung.len() == 1
        };
        if is_first {
            self.bells.task.wake();
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Bell>) {
        self.ring();
    }
}
