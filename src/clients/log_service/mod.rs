//! Logs as a service: programs append to a durable group's log, and read it, without being members of the group.
//!
//! - [`RecordLog`] is a replicated service whose only command appends a record. It keeps no records in memory: they are
//!   in the group's log on disk.
//! - [`Client`](crate::client::Client) appends. A record is acknowledged once all members have it on disk, and is there
//!   once, whichever members fail meanwhile.
//! - [`LogClient`] reads: by version, by time, as the log grows. It reads any durable group's log, at any member, and
//!   sees only records that no crash undoes.
//!
//! ```no_run
//! use squall::{
//!     Config, Consistency, Node, NodeId,
//!     client::{Client, ClientConfig},
//!     log_service::{LogClient, RecordLog},
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // At each member; its configuration has `storage`, and `mode = "durable"` in `[groups.log]`.
//! let config = Config::load("log.toml")?;
//! let mut node = Node::builder(config.clone());
//! node.serve("log", RecordLog::default(), RecordLog::options(&config, "log"));
//! let node = node.start()?;
//!
//! // Anywhere else.
//! let config = ClientConfig::on_host("audit", [NodeId(1), NodeId(2), NodeId(3)]);
//! let appended = Client::<RecordLog>::connect(&config, "log")?.submit(&b"hello".to_vec()).wait()?;
//! let mut log = LogClient::new(&config, "log");
//! let page = log.read(Consistency::Linearizable, appended.version..)?;
//! assert_eq!(page.records[0].record()?, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Versions
//!
//! A record's number is its version in the group's log. It is larger than those of all records before it, and the same
//! at all members, for ever. Versions that clients' sessions take have no record, so numbers may be missing.

mod check;
mod client;
mod error;
mod record;
mod record_log;
mod serve;
#[cfg(all(test, not(squall_loom)))]
mod tests;
mod wire;

pub(crate) use self::serve::{Logs, serve};
pub use self::{
    client::LogClient,
    error::LogError,
    record::{Checked, LogRecord, Page},
    record_log::{Appended, RecordCounts, RecordLog},
};
