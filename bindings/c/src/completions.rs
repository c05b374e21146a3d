//! The calls that a program has started, and their results until it takes them.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use rustix::event::{EventfdFlags, eventfd};
use squall::client::Call;
use squall_fabric::sync::Lock;

use crate::result::SquallResult;

/// The number of calls that were started and whose results were not taken.
const MAX_STARTED: usize = 1 << 16;

/// The results of the calls that have ended, and a descriptor that can be read while there are some.
#[derive(Debug)]
pub(crate) struct Completions {
    event: OwnedFd,
    ended: Lock<EndedCalls>,
}

#[derive(Debug, Default)]
struct EndedCalls {
    results: VecDeque<SquallResult>,
    /// The number of calls whose results were not taken.
    started: usize,
}

impl Completions {
    pub(crate) fn new() -> io::Result<Completions> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Completions { event, ended: Lock::default() })
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// Starts a call, unless too many results were not taken.
    pub(crate) fn start(self: &Arc<Self>, tag: u64, call: impl FnOnce() -> Call<Vec<u8>>) -> Result<(), usize> {
        {
            let mut ended = self.ended.lock();
            if ended.started >= MAX_STARTED {
                return Err(MAX_STARTED);
            }
            ended.started += 1;
        }
        Arc::new(PendingCall { call: Lock::new(Some(call())), tag, completions: Arc::clone(self) }).wake();
        Ok(())
    }

    fn end(&self, result: SquallResult) {
        let mut ended = self.ended.lock();
        ended.results.push_back(result);
        // Under the lock, so that it is not reset by one that has not seen this result. The counter can't overflow.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Takes the result of a call that has ended. The descriptor can't be read any more once there is none.
    pub(crate) fn next(&self) -> Option<SquallResult> {
        let mut ended = self.ended.lock();
        let result = ended.results.pop_front();
        match &result {
            Some(_) => ended.started -= 1,
            // It fails if it was reset before.
            None => _ = rustix::io::read(&self.event, &mut [0; 8]),
        }
        result
    }
}

/// A call that waits for its result, on no thread: the thread that wakes it polls it. None once the result has come.
struct PendingCall {
    call: Lock<Option<Call<Vec<u8>>>>,
    tag: u64,
    completions: Arc<Completions>,
}

impl Wake for PendingCall {
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut pending = self.call.lock();
        let Some(call) = &mut *pending else { return };
        let Poll::Ready(result) = Pin::new(call).poll(&mut Context::from_waker(&waker)) else { return };
        *pending = None;
        drop(pending);
        self.completions.end(SquallResult::from(result).with_tag(self.tag));
    }
}
