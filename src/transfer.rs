//! Where a replica's state leaves it, and comes in: what the delivering thread and those who move states share.

use std::{
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use squall_membership::EndReason;

use crate::state::{CaptureError, Captured, Reached};

/// Whether a node's replica is one of its group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The node is in no view that has the group's shard for it.
    Outside,
    /// The replica needs a state that a complete member captured. Whatever was captured for another number came too late.
    Incomplete { fetch: u32 },
    /// The replica has all that was delivered here.
    Complete,
}

/// Takes a state, on the thread that delivers: it must not take long.
pub(crate) type CaptureReply = Box<dyn FnOnce(Result<Captured, CaptureError>) + Send>;

/// What is to be captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The replica's state.
    State,
    /// Only where it is.
    Place,
}

/// What the delivering thread and those who move states share.
#[derive(Default)]
pub(crate) struct Transfer {
    captures: Mutex<Captures>,
    /// Changed only by who has the replica, but for being forgotten.
    restored: Mutex<Restored>,
    /// Whether there is any of both that the delivering thread has not seen yet.
    any: AtomicBool,
    /// 0 outside, 1 complete, else 2 and the number of the fetch.
    standing: AtomicU64,
}

#[derive(Default)]
struct Captures {
    /// Who wants the state as it is.
    waiting: Vec<(Wanted, CaptureReply)>,
    ended: Option<EndReason>,
}

/// What was restored.
#[derive(Default)]
struct Restored {
    /// How far the state has come that the delivering thread has not seen yet, and the fetch that it is of.
    fresh: Option<(u32, Reached)>,
    /// The last fetch of which a whole state was restored.
    met: Option<u32>,
}

impl Transfer {
    pub(crate) fn standing(&self) -> Standing {
        match self.standing.load(Ordering::Acquire) {
            0 => Standing::Outside,
            1 => Standing::Complete,
            number => Standing::Incomplete { fetch: (number - 2) as u32 },
        }
    }

    pub(crate) fn set_standing(&self, standing: Standing) {
        let number = match standing {
            Standing::Outside => 0,
            Standing::Complete => 1,
            Standing::Incomplete { fetch } => 2 + u64::from(fetch),
        };
        self.standing.store(number, Ordering::Release);
    }

    /// Asks for the state. The delivering thread must be woken.
    pub(crate) fn ask(&self, wanted: Wanted, reply: CaptureReply) {
        let mut captures = lock(&self.captures);
        if let Some(reason) = captures.ended.clone() {
            drop(captures);
            return reply(Err(CaptureError::Ended(reason)));
        }
        captures.waiting.push((wanted, reply));
        drop(captures);
        self.any.store(true, Ordering::Release);
    }

    /// Gives nobody the state any more, and takes those who wait for it.
    pub(crate) fn end(&self, reason: &EndReason) -> Vec<(Wanted, CaptureReply)> {
        self.set_standing(Standing::Outside);
        let mut captures = lock(&self.captures);
        captures.ended.get_or_insert_with(|| reason.clone());
        std::mem::take(&mut captures.waiting)
    }

    /// Forgets a state that was restored: it is of no use.
    pub(crate) fn forget(&self) {
        lock(&self.restored).fresh = None;
    }

    /// Begins to restore a state. By who has the replica, and as long as he has it. None if it needs none, or has one
    /// that the delivering thread goes on from: a second one that broke off would leave the replica with half of each.
    pub(crate) fn begin_restoring(&self) -> Option<u32> {
        let Standing::Incomplete { fetch } = self.standing() else { return None };
        let mut restored = lock(&self.restored);
        if restored.met == Some(fetch) {
            return None;
        }
        restored.fresh = None;
        Some(fetch)
    }

    /// Says that the replica has this state. By who has it still. The delivering thread must be woken.
    pub(crate) fn restored(&self, fetch: u32, reached: Reached) {
        *lock(&self.restored) = Restored { fresh: Some((fetch, reached)), met: Some(fetch) };
        self.any.store(true, Ordering::Release);
    }

    /// Takes what was restored, for this fetch. By the delivering thread, which has the replica.
    pub(crate) fn take_restored(&self, fetch: u32) -> Option<Reached> {
        lock(&self.restored).fresh.take().filter(|(of, _)| *of == fetch).map(|(_, reached)| reached)
    }

    /// Whether the delivering thread has anything to do here.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes those who want the state. What was restored, if anything was, is left for who has the replica.
    pub(crate) fn take(&self) -> Vec<(Wanted, CaptureReply)> {
        // Whatever comes from here on says so again.
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut lock(&self.captures).waiting)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while holding it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("standing", &self.standing()).finish_non_exhaustive()
    }
}
