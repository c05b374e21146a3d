//! Durable groups: the log that a node writes, the recovery of replicas from it, and its past for applications.

pub(crate) mod anew;
pub(crate) mod batches;
pub(crate) mod disk;
pub(crate) mod history;
pub mod log_keys;
pub(crate) mod log_writer;
pub(crate) mod recovery;
pub(crate) mod room;
pub(crate) mod scrub;
pub(crate) mod snapshot_store;
pub(crate) mod status;
pub(crate) mod storage_thread;
