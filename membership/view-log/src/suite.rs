//! openraft's own tests of storage, on both kinds of store.

use std::{io, sync::Arc};

use openraft::{
    AsyncRuntime, EntryPayload, LogId, RaftLogReader, RaftTypeConfig, StorageError,
    entry::RaftEntry,
    storage::{IOFlushed, RaftLogStorage},
    testing::log::{StoreBuilder, Suite},
    vote::RaftLeaderIdExt,
};
use squall_fabric::NodeId;
use squall_membership::{Entry, Incarnation, Member};

use crate::{
    disk,
    machine::Machine,
    sim::{SimDisk, Simulated},
    store::LogStore,
    types::{AppRequest, LeaderId, LogEntry, Real, Types},
};

struct MemoryBuilder;

struct DiskBuilder;

fn machine(store: &LogStore) -> Machine {
    Machine::new(store.clone(), Arc::new(|_| {})).expect("an empty store")
}

impl<C: Types> StoreBuilder<C, LogStore, Machine> for MemoryBuilder {
    async fn build(&self) -> Result<((), LogStore, Machine), StorageError<C>> {
        let store = LogStore::in_memory();
        Ok(((), store.clone(), machine(&store)))
    }
}

impl<C: Types> StoreBuilder<C, LogStore, Machine> for DiskBuilder {
    async fn build(&self) -> Result<((), LogStore, Machine), StorageError<C>> {
        let opened = disk::open_with(SimDisk::new(1), ("test", NodeId(1)), &mut fastrand::Rng::with_seed(1))
            .expect("an empty disk");
        Ok(((), opened.store.clone(), machine(&opened.store)))
    }
}

#[test]
fn a_store_in_memory_passes() {
    Real::run_suite(MemoryBuilder);
}

#[test]
fn a_store_on_a_disk_passes() {
    Simulated::run_suite(DiskBuilder);
}

trait RunSuite: Types {
    fn run_suite(builder: impl StoreBuilder<Self, LogStore, Machine>) {
        let passed = Self::AsyncRuntime::run(Suite::test_all(builder));
        passed.expect("openraft's suite");
    }
}

impl<C: Types> RunSuite for C {}

/// More entries would not fit into a message, and a node that is behind by that much would get none.
#[test]
fn as_many_entries_are_read_at_once_as_fit_into_a_message() {
    let mut store = LogStore::in_memory();
    let mut reader = store.clone();
    let entry = |index: u64| {
        let addresses = vec!["x".repeat(700 << 10)];
        let member = Member { addresses, ..Member::new(NodeId(1), Incarnation(1)) };
        let log_id = LogId::new(LeaderId::new_committed(1, 1), index);
        LogEntry { log_id, payload: EntryPayload::Normal(AppRequest(Entry::Candidate(member))) }
    };
    let read = async {
        let append = RaftLogStorage::<Simulated>::append(&mut store, (0..4).map(entry), IOFlushed::noop());
        append.await.expect("a write");
        RaftLogReader::<Simulated>::limited_get_log_entries(&mut reader, 1, 4).await.expect("entries")
    };
    let entries = <Simulated as RaftTypeConfig>::AsyncRuntime::run(read);
    assert_eq!(entries.iter().map(|entry| entry.log_id().index).collect::<Vec<_>>(), [1]);
}

/// Reads a disk after its power failed, and after each of its writes failed.
#[test]
fn a_disk_keeps_what_was_written_whatever_it_loses_after_it() {
    let read = |disk: &SimDisk| {
        let opened = disk::open_with(disk.clone(), ("test", NodeId(1)), &mut fastrand::Rng::with_seed(1))?;
        Ok::<_, disk::StorageError>((opened.voter, opened.cluster))
    };
    for seed in 0..30 {
        let disk = SimDisk::new(seed);
        let voter = read(&disk).expect("an empty disk").0;
        for life in 1..6 {
            let opened = disk::open_with(disk.clone(), ("test", NodeId(1)), &mut fastrand::Rng::with_seed(seed))
                .expect("a disk");
            opened.store.set_cluster(life).expect("a write");
            disk.fail_after(seed % 7);
            // It may or may not be written, and that is known at once.
            let failed: io::Result<()> = opened.store.set_cluster(life + 100);
            drop(opened);
            disk.crash();
            disk.fail_after(u64::MAX);
            let (found, cluster) = read(&disk).unwrap_or_else(|e| panic!("seed {seed}, life {life}: {e}"));
            assert_eq!(found, voter);
            let cluster = cluster.expect("a life").0;
            assert!(
                cluster == life + 100 || (failed.is_err() && cluster == life),
                "seed {seed}: {cluster}, {failed:?}"
            );
        }
    }
}
