//! Applying a log's records to a replica.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use rkyv::util::AlignedVec;
use squall_ordered::{
    Message, Payload,
    log::{Body, Damage, End, Position, ReadError, Reader},
};

use super::image::LastView;
use crate::{disk::Disk, replicated::Logged, service::Service, view_change::ViewChange};

/// How often progress is told.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// How many records go by between two looks at the clock.
const LOOK_EVERY: u64 = 4096;

/// Why a replica could not be taken through a log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplayError {
    #[error(transparent)]
    Read(#[from] ReadError),
    /// What was read does not go on where the state is.
    #[error("the log has version {found} behind the state of version {version}: its image is of another log")]
    Gap { version: u64, found: u64 },
    #[error("the application panicked while the log was applied, behind version {0}")]
    Panicked(u64),
}

/// How far a replica is in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replayed {
    /// The state is the one at this place.
    pub(crate) end: End,
    /// The last view there.
    pub(crate) view: LastView,
    /// What keeps it from going further.
    pub(crate) damage: Option<Box<Damage>>,
}

/// Applies what a reader has behind the state at `from`, up to the reader's end, or to what is damaged.
pub(crate) fn replay<S: Service>(
    service: &mut S,
    reader: &mut Reader<Disk>,
    from: End,
    view: LastView,
) -> Result<Replayed, ReplayError> {
    let mut at = Replayed { end: from, view, damage: None };
    // The caller takes a replica that panicked for broken.
    let result = catch_unwind(AssertUnwindSafe(|| apply(service, reader, &mut at)));
    result.unwrap_or(Err(ReplayError::Panicked(at.end.version)))?;
    Ok(at)
}

fn apply<S: Service>(service: &mut S, reader: &mut Reader<Disk>, at: &mut Replayed) -> Result<(), ReplayError> {
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
        match record.body {
            Body::Message { sender, payload } => {
                let payload = match payload.as_ptr().align_offset(16) {
                    0 => Payload::settled(payload),
                    _ => Payload::kept(payload),
                };
                let Position { epoch, seq } = record.position;
                let message = Message { epoch, seq, sender, payload, ticket: 0 };
                // What is no command was applied by nobody when it came.
                let _ = service.take(&message, Some(Logged { version: end.version, time: end.time }), &mut scratch);
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
