//! A thread that carries out orders, one after the other, beside the thread that moves contents and must not wait for
//! disks.

use std::{io, thread};

use crossbeam::channel::{Receiver, Sender, unbounded};
use squall_fabric::Waker;

/// The handle of a thread with its orders and its reports. When it is dropped, the thread carries out all its orders,
/// and ends.
#[derive(Debug)]
pub(crate) struct Worker<O, R> {
    orders: Option<Sender<O>>,
    pub(crate) said: Receiver<R>,
    thread: Option<thread::JoinHandle<()>>,
}

impl<O: Send + 'static, R: Send + 'static> Worker<O, R> {
    /// Starts a thread that runs `body` with its orders and the function by which it reports, which wakes `waker`.
    pub(crate) fn start(
        name: &str,
        waker: Waker,
        body: impl FnOnce(Receiver<O>, &dyn Fn(R)) + Send + 'static,
    ) -> io::Result<Worker<O, R>> {
        let (orders, ordered) = unbounded();
        let (say, said) = unbounded();
        let run = move || {
            body(ordered, &|report| {
                // A handle that is being dropped listens no more.
                let _ = say.send(report);
                waker.wake();
            });
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Worker { orders: Some(orders), said, thread: Some(thread) })
    }
}

impl<O, R> Worker<O, R> {
    pub(crate) fn order(&self, order: O) {
        // A thread that failed has reported it.
        let _ = self.orders.as_ref().map(|orders| orders.send(order));
    }
}

impl<O, R> Drop for Worker<O, R> {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                tracing::error!(name, "a thread of a copy panicked");
            }
        }
    }
}
