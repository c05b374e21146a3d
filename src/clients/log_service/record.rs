//! The records that readers get.

use rkyv::{Archived, rancor, util::AlignedVec};
use serde::{Deserialize, Serialize};
use squall_fabric::NodeId;
use squall_membership::Epoch;
use squall_ordered::log::{Body, Record, Skips};

use super::{LogError, RecordLog};
use crate::{
    Hlc,
    clients::serve::Served,
    replica::{command::Command, service::Service},
};

/// An [`Hlc`] as it travels.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Hlc")]
struct WireTime(u64);

/// A command in a durable group's log.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Debug)]
pub struct LogRecord {
    /// Its number.
    pub version: u64,
    /// The time of its submission, or a time just behind that of the record before where that is later.
    #[serde(with = "WireTime")]
    pub time: Hlc,
    /// The view in which it was ordered.
    pub epoch: Epoch,
    /// The member through which it was submitted.
    pub sender: NodeId,
    /// Whether no member applies it, by an operator's decision.
    pub is_skipped: bool,
    /// The command, as rkyv encoded it.
    #[debug("{} bytes", command.len())]
    pub command: Vec<u8>,
}

impl LogRecord {
    /// Returns the command of a log's record, in a group that serves clients and has these skips. Returns None for a
    /// record that is no command: a view, or a message about a session.
    pub fn of_log(record: &Record<'_>, skips: &Skips) -> Option<LogRecord> {
        let Body::Message { sender, payload } = record.body else { return None };
        let command = Served::<RecordLog>::command_of(payload)?.to_vec();
        let Record { position, version, time, .. } = *record;
        Some(LogRecord { version, time, epoch: position.epoch, sender, is_skipped: skips.has(record), command })
    }

    /// Returns the bytes that were appended, in the log of a [`RecordLog`](super::RecordLog). Fails if the log is
    /// another service's.
    pub fn record(&self) -> Result<Vec<u8>, LogError> {
        self.with_command::<Vec<u8>, _>(|record| record.to_vec())
    }

    /// Calls `look` with the command, in the log of a service with such commands. Fails if the record is no such
    /// command.
    pub fn with_command<C: Command, T>(&self, look: impl FnOnce(&Archived<C>) -> T) -> Result<T, LogError> {
        let mut aligned: AlignedVec = AlignedVec::with_capacity(self.command.len());
        aligned.extend_from_slice(&self.command);
        let command = rkyv::access::<Archived<C>, rancor::Error>(&aligned);
        command.map(look).map_err(|error| LogError::Command { version: self.version, why: error.to_string() })
    }
}

/// A part of a log, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The records; none where nothing has come yet, or where versions have no records.
    pub records: Vec<LogRecord>,
    /// The version at which the next page begins.
    pub next: u64,
    /// The last version that may be shown so far, as the member knows that was asked.
    pub globally_persisted: u64,
}

/// The findings of a member's check of a part of its log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// The last version that was checked.
    pub to: u64,
    /// The number of messages that are good.
    pub messages: u64,
    /// Their length, in bytes.
    pub bytes: u64,
    /// A digest (BLAKE3) of all of them, the same at all members; None where a record is damaged.
    pub digest: Option<[u8; 32]>,
    /// The damages: a sentence for each, up to a hundred.
    pub damage: Vec<String>,
}
