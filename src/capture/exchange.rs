//! The state that the delivering thread shares with threads that move a replica's state out or in.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use squall_fabric::sync::Lock;
use squall_membership::EndReason;

use crate::capture::state::{CaptureError, Captured, Reached};

/// Whether a node's replica is one of its group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplicaStatus {
    /// The node is in no view in which it has the group's shard.
    Outside,
    /// The replica needs a state that a complete member captured. A state that was captured for another number came too
    /// late.
    Incomplete { fetch: u32 },
    /// The replica has all that was delivered here.
    Complete,
}

/// A function that takes a state, on the thread that delivers: it must not take long.
pub(crate) type CaptureReply = Box<dyn FnOnce(Result<Captured, CaptureError>) + Send>;

/// The thing that is to be captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The replica's state.
    State,
    /// The place of the replica alone.
    Place,
}

/// The shared part of the delivering thread and the threads that move states.
#[derive(Default)]
pub(crate) struct StateExchange {
    captures: Lock<Captures>,
    /// Changed only by the holder of the replica, except that any thread may make it forget.
    restored: Lock<Restored>,
    /// Whether there is a capture or a restored state that the delivering thread has not seen yet.
    any: AtomicBool,
    /// 0 outside, 1 complete, else 2 and the number of the fetch.
    replica_status: AtomicU64,
}

#[derive(Default)]
struct Captures {
    /// The requests for the state as it is.
    waiting: Vec<(Wanted, CaptureReply)>,
    ended: Option<EndReason>,
}

#[derive(Default)]
struct Restored {
    /// The place of the restored state that the delivering thread has not seen yet, with the number of its fetch.
    fresh: Option<(u32, Reached)>,
    /// The last fetch of which a whole state was restored.
    met: Option<u32>,
}

impl StateExchange {
    pub(crate) fn replica_status(&self) -> ReplicaStatus {
        match self.replica_status.load(Ordering::Acquire) {
            0 => ReplicaStatus::Outside,
            1 => ReplicaStatus::Complete,
            number => ReplicaStatus::Incomplete { fetch: (number - 2) as u32 },
        }
    }

    pub(crate) fn set_replica_status(&self, replica_status: ReplicaStatus) {
        let number = match replica_status {
            ReplicaStatus::Outside => 0,
            ReplicaStatus::Complete => 1,
            ReplicaStatus::Incomplete { fetch } => 2 + u64::from(fetch),
        };
        self.replica_status.store(number, Ordering::Release);
    }

    /// Asks for the state. The delivering thread must be woken.
    pub(crate) fn ask(&self, wanted: Wanted, reply: CaptureReply) {
        let mut captures = self.captures.lock();
        if let Some(reason) = captures.ended.clone() {
            drop(captures);
            return reply(Err(CaptureError::Ended(reason)));
        }
        captures.waiting.push((wanted, reply));
        drop(captures);
        self.any.store(true, Ordering::Release);
    }

    /// Gives no caller the state any more, and takes the waiting requests.
    pub(crate) fn end(&self, reason: &EndReason) -> Vec<(Wanted, CaptureReply)> {
        self.set_replica_status(ReplicaStatus::Outside);
        let mut captures = self.captures.lock();
        captures.ended.get_or_insert_with(|| reason.clone());
        std::mem::take(&mut captures.waiting)
    }

    /// Forgets a state that was restored: it is of no use.
    pub(crate) fn forget(&self) {
        self.restored.lock().fresh = None;
    }

    /// Begins to restore a state. Called by the holder of the replica, which must hold it until the end.
    ///
    /// None if the replica needs no state, or has one from which the delivering thread goes on: a second one that broke
    /// off would leave the replica with half of each.
    pub(crate) fn begin_restoring(&self) -> Option<u32> {
        let ReplicaStatus::Incomplete { fetch } = self.replica_status() else { return None };
        let mut restored = self.restored.lock();
        if restored.met == Some(fetch) {
            return None;
        }
        restored.fresh = None;
        Some(fetch)
    }

    /// Notes that the replica has this state. Called by the thread that restored it and still holds the replica. The
    /// delivering thread must be woken.
    pub(crate) fn restored(&self, fetch: u32, reached: Reached) {
        *self.restored.lock() = Restored { fresh: Some((fetch, reached)), met: Some(fetch) };
        self.any.store(true, Ordering::Release);
    }

    /// Takes the restored state, if it is of this fetch. Called by the delivering thread, which holds the replica.
    pub(crate) fn take_restored(&self, fetch: u32) -> Option<Reached> {
        self.restored.lock().fresh.take().filter(|(of, _)| *of == fetch).map(|(_, reached)| reached)
    }

    /// Whether the delivering thread has any work here.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes the requests for the state. A restored state, if there is any, is left for the holder of the replica.
    pub(crate) fn take(&self) -> Vec<(Wanted, CaptureReply)> {
        // A request that comes from here on sets it again.
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut self.captures.lock().waiting)
    }
}
