//! The changes that a service reports, and their places.

use std::sync::Arc;

use rkyv::rancor;
use serde::{Deserialize, Serialize};
use squall_ordered::log::Hlc;

use crate::replica::command::Command;

/// The changes that a service reports between two commands: see
/// [`QueryService::take_changes`](crate::QueryService::take_changes).
#[derive(Debug, Default)]
pub struct Changes(Vec<ReportedChange>);

impl Changes {
    /// Reports a change under a key. Clients watch keys by their first bytes; the key of all, and of a service without
    /// keys, is empty.
    pub fn push(&mut self, key: impl AsRef<[u8]>, change: &impl Command) {
        let key = key.as_ref();
        // A change that can't be serialized is told without bytes, which its watchers then can't read: at all members
        // alike, and without a gap in the numbers.
        let bytes = rkyv::to_bytes::<rancor::Error>(change).unwrap_or_default();
        self.0.push(ReportedChange { key_len: key.len(), bytes: [key, &bytes].concat().into() });
    }

    /// Takes the changes that were reported.
    pub(super) fn take(&mut self) -> Vec<ReportedChange> {
        std::mem::take(&mut self.0)
    }
}

/// A change as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReportedChange {
    key_len: usize,
    /// The key, and behind it the change. Snapshots and watches share them.
    bytes: Arc<[u8]>,
}

impl ReportedChange {
    /// Makes a change of its key and, behind it, its bytes. None if the key is longer than all.
    pub(super) fn of_parts(key_len: usize, bytes: Vec<u8>) -> Option<ReportedChange> {
        (key_len <= bytes.len()).then(|| ReportedChange { key_len, bytes: bytes.into() })
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.bytes[..self.key_len]
    }

    pub(super) fn change(&self) -> &[u8] {
        &self.bytes[self.key_len..]
    }
}

/// The place of a change in the history of its group, or of one of its shards. Stored by a program, it lets a later
/// watch [go on](crate::client::Client::watch_from) behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChangePlace {
    /// The change's number, from 1 on; 0 stands for the beginning.
    pub number: u64,
    /// The [group's time](crate::Applied::time) at the change, in nanoseconds since 1970 (UTC). It tells histories
    /// apart: a group in memory that began anew numbers its changes from 1 again. It is 0 before the first message.
    pub time_ns: u64,
}

impl ChangePlace {
    pub(super) fn new(number: u64, time: Hlc) -> ChangePlace {
        ChangePlace { number, time_ns: time.0 }
    }
}
