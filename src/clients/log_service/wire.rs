//! The messages between readers of logs and nodes: [frames](squall_services::frame) of these, on a stream of
//! [`Service::Log`](squall_services::Service). The reader asks, the node answers, one request after the other.

use serde::{Deserialize, Serialize};

use super::{Checked, Page};
use crate::{
    LogStatus,
    clients::wire::{Consistency, Members},
};

/// The version of these messages.
pub(super) const VERSION: u32 = 3;

/// The longest request, in bytes.
pub(super) const REQUEST_BYTES: usize = 64 << 10;

/// The longest answer, in bytes: a page has at least one record, however long.
pub(super) const REPLY_BYTES: usize = 1 << 30;

/// A message of a reader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum LogServiceRequest {
    /// Names the log to read: that of a group's shard of this number. The first message.
    Hello { version: u32, group: String, shard: u32 },
    /// Asks for records from `from` to `to`. Where there is none yet, the node waits for `wait_ms`.
    Read { from: u64, to: u64, max_bytes: u64, wait_ms: u64, consistency: Consistency },
    /// Asks for the last version at a time, in nanoseconds since 1970.
    At { time_ns: u64, consistency: Consistency },
    /// Asks for the status of the log.
    Status,
    /// Checks records from `from` to `to`, or as many as fit into `max_bytes`.
    Check { from: u64, to: u64, max_bytes: u64 },
}

/// A message of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum LogServiceReply {
    /// The node has that log. These are the members of its view.
    Welcome(Members),
    /// Records.
    Page(Page),
    /// The last version at that time, and its own; 0 if all are later.
    At { version: u64, time_ns: u64 },
    /// The status of the log.
    Status(Box<LogStatus>),
    /// The findings of a check.
    Checked(Checked),
    /// The requested records are no longer on this node's disk.
    Trimmed { first: u64 },
    /// The node can't answer, and another member may, or this one later.
    Away(String),
    /// The node does not answer, nor would others.
    Refused(String),
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use proptest::prelude::*;
    use squall_fabric::NodeId;
    use squall_membership::Epoch;
    use squall_services::frame;

    use super::{super::LogRecord, *};
    use crate::Hlc;

    #[test]
    fn records_travel_as_they_are() {
        let (sender, command) = (NodeId(10), vec![1, 2, 3]);
        let record = LogRecord { version: 7, time: Hlc(8), epoch: Epoch(9), sender, is_skipped: true, command };
        let mut bytes = Vec::new();
        let page = LogServiceReply::Page(Page { records: vec![record], next: 8, globally_persisted: 9 });
        frame::write(&mut bytes, &page, REPLY_BYTES).unwrap();
        assert_eq!(bytes[4..], [1, 1, 7, 8, 9, 10, 1, 3, 1, 2, 3, 8, 9], "fields in their order, nothing else");
        assert_eq!(frame::read::<LogServiceReply>(&mut &bytes[..], REPLY_BYTES).unwrap(), page);
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let framed = [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat();
            let _ = frame::read::<LogServiceRequest>(&mut &framed[..], REQUEST_BYTES);
            let _ = frame::read::<LogServiceReply>(&mut &framed[..], REPLY_BYTES);
        }
    }
}
