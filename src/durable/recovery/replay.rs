//! The application of a log's records to a replica.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use rkyv::util::AlignedVec;
use squall_ordered::{
    Message, Payload,
    log::{Body, Damage, End, Position, ReadError, Reader, Skips},
};

use squall_runtime::blocking::Replaying;

use crate::{
    capture::state::LastView,
    durable::disk::Disk,
    replica::{
        poison::{Given, OnPanic},
        replicated::Stamp,
        service::Service,
        view_change::ViewChange,
    },
};

/// The interval of progress messages.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// The number of records between two looks at the clock.
const LOOK_EVERY: u64 = 4096;

/// A reason for which a replica could not be taken through a log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplayError {
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The records do not continue from the state's place.
    #[error("the log has version {found} behind the state of version {version}: its snapshot is of another log")]
    Gap { version: u64, found: u64 },
    /// The list of skipped commands is of another log.
    #[error(
        "version {0} is not the command that is listed as one that no member applies: the list is of another log. Remove the log, and the \
         node gets it from another member"
    )]
    OtherSkip(u64),
    #[error("the application panicked while the log was applied{}", .0.map_or_else(String::new, |given| format!(", at {}", given.position)))]
    Panicked(Option<Given>),
}

/// The progress of a replica in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replayed {
    /// The place of the state.
    pub(crate) end: End,
    /// The last view at that place.
    pub(crate) view: LastView,
    /// The damage that keeps it from going further.
    pub(crate) damage: Option<Box<Damage>>,
}

/// Applies the records that a reader has behind the state at `from`, up to the reader's end, or to the first damage.
/// Commands in `skips` are not applied.
pub(crate) fn replay<S: Service>(
    service: &mut S,
    reader: &mut Reader<Disk>,
    from: End,
    view: LastView,
    skips: &Skips,
) -> Result<Replayed, ReplayError> {
    let mut at = Replayed { end: from, view, damage: None };
    let mut noted = None;
    // The caller treats a replica that panicked as broken.
    let result = catch_unwind(AssertUnwindSafe(|| apply(service, reader, &mut at, skips, &mut noted)));
    result.unwrap_or(Err(ReplayError::Panicked(noted)))?;
    Ok(at)
}

/// Gives a log's message to a replica, or tells it that the message is skipped. A message that is no command was
/// applied by no member when it came.
pub(crate) fn give<S: Service>(
    service: &mut S,
    message: &Message<'_>,
    stamp: Stamp,
    is_skipped: bool,
    scratch: &mut AlignedVec,
    noted: &mut Option<Given>,
) {
    let _replaying = Replaying::enter();
    let given = OnPanic::note(message, stamp, noted);
    let _ = match is_skipped {
        false => service.take(message, stamp, scratch).map(drop),
        true => service.skip(message, stamp, scratch),
    };
    given.over();
}

fn apply<S: Service>(
    service: &mut S,
    reader: &mut Reader<Disk>,
    at: &mut Replayed,
    skips: &Skips,
    noted: &mut Option<Given>,
) -> Result<(), ReplayError> {
    let mut scratch = AlignedVec::new();
    let (mut records, mut told) = (0_u64, Instant::now());
    loop {
        let record = match reader.next_record() {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(()),
            Err(ReadError::Damaged(damage)) => {
                at.damage = Some(damage);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let end = End { position: record.end(), version: record.version, time: record.time };
        let is_message = matches!(record.body, Body::Message { .. });
        if end.version != at.end.version + u64::from(is_message) {
            return Err(ReplayError::Gap { version: at.end.version, found: end.version });
        }
        let is_skipped = is_message && skips.has(&record);
        if is_message && !is_skipped && skips.get(record.version).is_some() {
            return Err(ReplayError::OtherSkip(record.version));
        }
        match record.body {
            Body::Message { sender, payload } => {
                let payload = match payload.as_ptr().align_offset(16) {
                    0 => Payload::settled(payload),
                    _ => Payload::kept(payload),
                };
                let Position { epoch, seq } = record.position;
                let message = Message { epoch, seq, sender, time: end.time, payload, ticket: 0 };
                let stamp = Stamp::logged(end);
                give(service, &message, stamp, is_skipped, &mut scratch, noted);
            }
            Body::View(view) => {
                let epoch = record.position.epoch;
                service.view_changed(&ViewChange::of_record(epoch, &view));
                at.view = Some((epoch, view));
            }
        }
        at.end = end;
        records += 1;
        if records.is_multiple_of(LOOK_EVERY) && told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            tracing::info!(records, version = end.version, "a replica is taken through its log");
        }
    }
}
