//! The errors of reading the past.

use std::{error::Error, io};

use squall_ordered::log::{Damage, ReadError};

/// A reason for which a durable group's log or an earlier state can't be shown, or a snapshot of the state can't be
/// taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// The group has no log.
    #[error("group {group:?} has no log: give it `mode = \"durable\"` in its configuration")]
    NotDurable {
        /// The group.
        group: String,
    },
    /// The node of this group was not started.
    #[error("the node of this group was not started")]
    NotStarted,
    /// The call would make the delivery thread wait for other threads.
    #[error("the log can't be used inside `apply` or a read's closure, which must not wait: use it on another thread")]
    InsideApply,
    /// The requested version is no longer on this node's disk, or never was.
    #[error(
        "version {asked} of group {group:?} is not on this node's disk: what is there begins with {first}. Ask for that, or ask \
         another member"
    )]
    Trimmed {
        /// The group.
        group: String,
        /// The version that was asked for.
        asked: u64,
        /// The first version that can be read.
        first: u64,
    },
    /// The requested time lies before everything that is on this node's disk.
    #[error(
        "the last command before that time was trimmed: what is there begins with version {first}. Ask another member"
    )]
    Before {
        /// The first version that can be read.
        first: u64,
    },
    /// The version is not globally persisted yet, or does not exist.
    #[error(
        "version {asked} of group {group:?} is not on all members' disks yet, {globally_persisted} is: ask again later"
    )]
    NotYet {
        /// The group.
        group: String,
        /// The version that was asked for.
        asked: u64,
        /// The last version that is globally persisted.
        globally_persisted: u64,
    },
    /// Records are damaged. A reader continues behind them when it is asked for the next one.
    #[error("{0}. Other members have it: have this node repair its log from them")]
    Damaged(Box<Damage>),
    /// The log can't be read.
    #[error(transparent)]
    Unreadable(ReadError),
    /// A snapshot can't be written or read.
    #[error("{0}")]
    Snapshot(Box<dyn Error + Send + Sync>),
    /// The commands can't be applied to a snapshot.
    #[error("an earlier state can't be built: {0}")]
    Replay(Box<dyn Error + Send + Sync>),
    /// A call at a node that still receives the group's state from another member.
    #[error("no snapshot of the state can be taken while this node joins the group: try again, or ask another member")]
    Joining,
    /// The service can't write its state.
    #[error("no snapshot of the state can be taken: {0}")]
    Capture(String),
    /// The log's end was cut, or the log was begun anew from another member's state, before the snapshot was complete.
    #[error("the log was changed while a snapshot of the state was taken: take another one")]
    Overtaken,
    /// The service panicked while an earlier state was built or looked at. The live replica is unchanged.
    #[error("the service panicked in an earlier state of the group")]
    Panicked,
    /// A refusal, since as many requests for earlier states wait already as may.
    #[error("{0} questions about earlier states wait already: ask again later")]
    Busy(usize),
    /// The system gives no thread.
    #[error("there is no thread for an earlier state: {0}")]
    NoThread(io::Error),
    /// The group's log is no longer written.
    #[error("the group's log has ended: {why}")]
    Ended {
        /// The reason.
        why: String,
    },
}

impl HistoryError {
    /// Wraps an error of writing or reading a snapshot.
    pub(super) fn snapshot(error: impl Into<Box<dyn Error + Send + Sync>>) -> HistoryError {
        HistoryError::Snapshot(error.into())
    }

    /// Converts an error of a log's reader.
    pub(super) fn reading(group: &str, asked: u64, error: ReadError) -> HistoryError {
        match error {
            ReadError::Damaged(damage) => HistoryError::Damaged(damage),
            ReadError::OldVersion { begin, .. } => {
                HistoryError::Trimmed { group: group.to_owned(), asked, first: begin + 1 }
            }
            other => HistoryError::Unreadable(other),
        }
    }
}
