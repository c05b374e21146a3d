//! A log of records as a replicated service.

use std::io::{self, Read};

use rkyv::{Archive, Archived, Deserialize, Serialize};

use crate::{Applied, Config, QueryService, Replicated, Schema, ServeOptions, Snapshot};

/// A service that appends records. Declare it in a durable group: its log on disk holds the records, and the replica
/// only counts them.
///
/// The command is the record, with any bytes; the reply gives its [place](Appended). A query, `()`, gives the
/// [counts](RecordCounts).
#[derive(Clone, Debug, Default)]
pub struct RecordLog {
    counts: RecordCounts,
}

/// The place of an appended record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Archive, Serialize, Deserialize)]
pub struct Appended {
    /// The record's number; 0 if the group is not durable.
    pub version: u64,
    /// The record's time, as [`Hlc`](crate::Hlc) has it: nanoseconds since 1970 (UTC).
    pub time_ns: u64,
}

/// The counts of a log's records, including those that were trimmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Archive, Serialize, Deserialize)]
pub struct RecordCounts {
    /// The number of records.
    pub records: u64,
    /// Their total length, in bytes.
    pub bytes: u64,
    /// The last one's number; 0 if there is none.
    pub last: u64,
}

/// The number of appends that a client may have under way.
const WINDOW: u32 = 4096;

impl RecordLog {
    /// Returns the options with which a group of this name serves clients, so that they may append records as long as
    /// the group's configuration permits.
    pub fn options(config: &Config, group: &str) -> ServeOptions {
        let request_bytes = config.group(group).max_message_bytes();
        ServeOptions { window: WINDOW, request_bytes, ..ServeOptions::default() }
    }
}

impl Replicated for RecordLog {
    type Command = Vec<u8>;
    type Reply = Appended;

    const SCHEMA: Schema = Schema::new("squall-record-log", 1);

    fn apply(&mut self, record: &Archived<Vec<u8>>, at: &Applied) -> Appended {
        let appended = at.version.map_or_else(Appended::default, |version| Appended { version, time_ns: at.time.0 });
        self.counts.records += 1;
        self.counts.bytes += record.len() as u64;
        self.counts.last = appended.version;
        appended
    }

    fn snapshot(&self) -> Snapshot {
        let RecordCounts { records, bytes, last } = self.counts;
        let words = [FORMAT, records, bytes, last].map(u64::to_le_bytes);
        Snapshot::of_bytes(words.concat())
    }

    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let mut words = [[0; 8]; 4];
        from.read_exact(words.as_flattened_mut())?;
        let [format, records, bytes, last] = words.map(u64::from_le_bytes);
        if format != FORMAT {
            let problem = format!("the counts of a log of records are in format {format}, this program knows {FORMAT}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        self.counts = RecordCounts { records, bytes, last };
        Ok(())
    }
}

/// The first word of a snapshot; three words, as in [`RecordCounts`], follow. All are little-endian.
const FORMAT: u64 = 1;

impl QueryService for RecordLog {
    type Query = ();
    type Answer = RecordCounts;

    fn answer(&self, _query: &()) -> RecordCounts {
        self.counts
    }
}
