//! Wakes tasks of the server's thread from other threads, with one system call for many.
//!
//! The engine's thread has often answers for many connections at once. Waking a task of another thread's event loop costs a
//! system call; so it notes whom to wake in a list, and wakes one task, which wakes the others where that is cheap.

use std::{
    future::poll_fn,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake},
};

use atomic_waker::AtomicWaker;

/// Those who rang, and the task that wakes them.
#[derive(Debug, Default)]
pub(super) struct Bells {
    rung: Mutex<Vec<Arc<Bell>>>,
    task: AtomicWaker,
}

/// Wakes one task. As a [`Wake`] it may be rung by anybody.
#[derive(Debug)]
pub(super) struct Bell {
    bells: Arc<Bells>,
    is_rung: AtomicBool,
    task: AtomicWaker,
}

impl Bells {
    /// Wakes those who rang, for ever. To be spawned on the thread whose tasks they are.
    pub(super) async fn run(self: Arc<Bells>) {
        let mut ringing = Vec::new();
        poll_fn(|context| {
            self.task.register(context.waker());
            mem::swap(&mut *self.lock(), &mut ringing);
            for bell in ringing.drain(..) {
                // Before its task looks: what is rung for later than this rings again. It is an exchange, so that the task
                // sees what those wrote who found the bell rung.
                bell.is_rung.swap(false, Ordering::SeqCst);
                bell.task.wake();
            }
            Poll::<()>::Pending
        })
        .await;
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Bell>>> {
        // Nothing panics while holding it.
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Wakes the task. Cheap if it was rung already and did not run since.
    pub(super) fn ring(self: &Arc<Bell>) {
        if self.is_rung.swap(true, Ordering::SeqCst) {
            return;
        }
        let is_first = {
            let mut rung = self.bells.lock();
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
