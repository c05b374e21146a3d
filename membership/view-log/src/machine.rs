//! Raft's state machine: the view log's state.

use std::{
    io,
    sync::{Arc, MutexGuard},
};

use futures_util::{Stream, StreamExt};
use openraft::{
    EntryPayload, OptionalSend, RaftSnapshotBuilder,
    storage::{EntryResponder, RaftStateMachine},
};
use serde::{Deserialize, Serialize};
use squall_fabric::sync::Lock;
use squall_membership::{Applied, ClusterId, Entry, ViewLogState};

use crate::{
    store::{LogStore, decode, encode},
    types::{AppResponse, LogId, Snapshot, SnapshotMeta, StoredMembership, Types},
};

/// The view log's state, and the last entry that it has.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct MachineState {
    log_state: ViewLogState,
    applied: Option<LogId>,
    membership: StoredMembership,
}

/// A callback for each applied entry.
pub(crate) type Observer = Arc<dyn Fn(Applied) + Send + Sync>;

/// The state machine. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Machine {
    state: Arc<Lock<MachineState>>,
    store: LogStore,
    observer: Observer,
}

impl Machine {
    /// The state machine of the store's last snapshot. `observer` is told of every entry that is applied.
    pub(crate) fn new(store: LogStore, observer: Observer) -> io::Result<Machine> {
        let state = store.snapshot().map(|bytes| decode(&bytes)).transpose()?.unwrap_or_default();
        Ok(Machine { state: Arc::new(Lock::new(state)), store, observer })
    }

    /// Forgets everything, for another life of the cluster, and keeps that life's first entry, if this node is to write
    /// it. Nothing else may use the store at that time.
    pub(crate) fn begin_anew(&self, cluster: ClusterId, first: Option<&Entry>) -> io::Result<()> {
        self.store.begin_anew(cluster, first)?;
        *self.lock() = MachineState::default();
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, MachineState> {
        self.state.lock()
    }

    /// Reads the decisions that this node knows.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&ViewLogState) -> T) -> T {
        read(&self.lock().log_state)
    }

    /// The voters and learners of the last applied change.
    #[cfg(feature = "sim")]
    pub(crate) fn membership(&self) -> crate::types::Membership {
        self.lock().membership.membership().clone()
    }

    fn snapshot_of(state: &MachineState, bytes: Vec<u8>) -> Snapshot {
        let meta = SnapshotMeta { last_log_id: state.applied, last_membership: state.membership.clone() };
        Snapshot { meta, snapshot: bytes }
    }
}

impl<C: Types> RaftSnapshotBuilder<C> for Machine {
    type SnapshotData = Vec<u8>;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let state = self.lock().clone();
        let bytes = encode(&state)?;
        self.store.set_snapshot(bytes.clone())?;
        Ok(Machine::snapshot_of(&state, bytes))
    }
}

impl<C: Types> RaftStateMachine<C> for Machine {
    type SnapshotData = Vec<u8>;
    type SnapshotBuilder = Machine;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let state = self.lock();
        Ok((state.applied, state.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<C>>> + Unpin + OptionalSend,
    {
        while let Some(entry) = entries.next().await {
            let (entry, responder) = entry?;
            let (reply, applied) = {
                let mut state = self.lock();
                state.applied = Some(entry.log_id);
                match entry.payload {
                    EntryPayload::Blank => (AppResponse::Taken, None),
                    EntryPayload::Normal(request) => {
                        let applied = state.log_state.apply(request.0);
                        (AppResponse::from(&applied), Some(applied))
                    }
                    EntryPayload::Membership(membership) => {
                        state.membership = StoredMembership::new(Some(entry.log_id), membership);
                        (AppResponse::Taken, None)
                    }
                }
            };
            if let Some(applied) = applied {
                (self.observer)(applied);
            }
            if let Some(responder) = responder {
                responder.send(reply);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: Vec<u8>) -> io::Result<()> {
        let mut state: MachineState = decode(&snapshot)?;
        (state.applied, state.membership) = (meta.last_log_id, meta.last_membership.clone());
        let last = state.log_state.last().cloned();
        self.store.set_snapshot(encode(&state)?)?;
        *self.lock() = state;
        if let Some(last) = last {
            (self.observer)(Applied::View(last));
        }
        (self.observer)(Applied::Candidates);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        let Some(bytes) = self.store.snapshot() else { return Ok(None) };
        let state: MachineState = decode(&bytes)?;
        Ok(Some(Machine::snapshot_of(&state, bytes)))
    }
}
