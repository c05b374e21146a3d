//! Images: a replica's state at a place of its log, in a file of the log's directory.
//!
//! The contents of an image's file, with little-endian numbers, inside the frame of the log's format:
//!
//! ```text
//!  0..8    "squallIm"
//!  8..12   3, the format's version
//! 12..16   v, the length of the last view's record; 0 if there was none
//! 16..24   that view's epoch
//! 24..32   s, the length of the schema's text
//! 32..     v bytes: the record, as the log has it
//! then     s bytes: the schema, as the log's manifest has it
//! then     what the application wrote, to the end
//! ```

use std::{
    fmt,
    io::{self, BufReader, BufWriter, Read, Write},
    panic::{AssertUnwindSafe, catch_unwind},
};

use squall_membership::{ClusterId, Epoch, ShardId};
use squall_ordered::log::{
    self, End, Position, SchemaText, SnapshotError, SnapshotWriter, Storage, ViewRecord, remove_snapshot, snapshots,
};

use crate::{
    durable::{disk::Disk, log_writer::DiskLog},
    group::schema,
    state_transfer::state::Snapshot,
};

const MAGIC: &[u8; 8] = b"squallIm";
const VERSION: u32 = 3;
/// A bound above the length of any schema's text, in bytes.
const MAX_SCHEMA_BYTES: u32 = 1 << 10;
/// A bound above the length of any view's record, in bytes.
const MAX_VIEW_BYTES: u32 = 1 << 20;
/// The size of the buffers for writing and reading, in bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// The last view at a place of a log, and its record.
pub(crate) type LastView = Option<(Epoch, ViewRecord)>;

/// A reason for which an image can't be written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    #[error(transparent)]
    File(#[from] SnapshotError),
    /// The service does not support durable groups.
    #[error(
        "the group is durable, so its state must be kept: implement `Replicated::snapshot` and `Replicated::restore`"
    )]
    Unsupported,
    #[error("the group's state could not be written: {0}")]
    Write(io::Error),
    #[error("the application panicked while it wrote its state")]
    Panicked,
    #[error("an image of the group's state can't be read: {0}")]
    Read(#[from] io::Error),
    #[error("an image of the group's state is not of this format: {0}")]
    Foreign(&'static str),
    #[error("an image of the group's state is of the schema {written:?}, and the log of {log:?}")]
    Schema { written: String, log: String },
    #[error("an image of the group's state at {at} is not of this log, which is at {log} there")]
    Other { at: End, log: End },
}

/// The directory of one shard's log and images.
#[derive(Clone, Debug)]
pub(crate) struct Shelf {
    pub(crate) disk: Disk,
    pub(crate) cluster: ClusterId,
    pub(crate) shard: ShardId,
    pub(crate) schema: SchemaText,
}

/// The newest image that can be used, and the errors of newer ones.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) image: Option<Image>,
    pub(crate) refused: Vec<ImageError>,
}

impl Shelf {
    /// Returns the directory of a log.
    pub(crate) fn of(log: &DiskLog) -> Shelf {
        let (disk, options) = (log.storage().clone(), log.options());
        Shelf { disk, cluster: options.cluster, shard: options.shard, schema: log.schema() }
    }

    /// Writes an image, durably. It may be called on any thread.
    pub(crate) fn write(&self, at: End, view: Option<&(Epoch, ViewRecord)>, state: Snapshot) -> Result<(), ImageError> {
        let write = state.into_writer().ok_or(ImageError::Unsupported)?;
        let mut image = self.begin(at, view)?;
        // Unwind safety: a panic leaves only the image's file unfinished, which is dropped.
        let written = catch_unwind(AssertUnwindSafe(|| write(&mut image)));
        written.map_err(|_| ImageError::Panicked)?.map_err(ImageError::Write)?;
        image.finish()
    }

    /// Begins an image, to which the application's part is still to be written.
    pub(crate) fn begin(&self, at: End, view: Option<&(Epoch, ViewRecord)>) -> Result<ImageWriter, ImageError> {
        let writer = SnapshotWriter::new(self.disk.clone(), self.cluster, self.shard, at)?;
        let mut image = ImageWriter(BufWriter::with_capacity(CHUNK_BYTES, Contents(writer)));
        let record = view.map(|(_, view)| view.encode()).unwrap_or_default();
        let mut write = || {
            image.write_all(MAGIC)?;
            image.write_all(&VERSION.to_le_bytes())?;
            image.write_all(&(record.len() as u32).to_le_bytes())?;
            image.write_all(&view.map_or(0, |(epoch, _)| epoch.0).to_le_bytes())?;
            image.write_all(&(self.schema.as_str().len() as u64).to_le_bytes())?;
            image.write_all(&record)?;
            image.write_all(self.schema.as_str().as_bytes())
        };
        write().map_err(ImageError::Write)?;
        Ok(image)
    }

    /// Opens the image of a place, once all of it was read and found good.
    pub(crate) fn open(&self, position: Position) -> Result<Image, ImageError> {
        let snapshot = log::Snapshot::open(self.disk.clone(), self.cluster, self.shard, position)?;
        let at = snapshot.at();
        let mut from = BufReader::with_capacity(CHUNK_BYTES, Stored { snapshot, at: 0 });
        let mut head = [0; 32];
        from.read_exact(&mut head)?;
        let half = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if &head[..8] != MAGIC {
            return Err(ImageError::Foreign("it begins with something else"));
        }
        if half(8) != VERSION {
            return Err(ImageError::Foreign("another version of squall wrote it, use that one"));
        }
        if half(12) > MAX_VIEW_BYTES {
            return Err(ImageError::Foreign("its view has more members than there can be"));
        }
        if half(24) > MAX_SCHEMA_BYTES {
            return Err(ImageError::Foreign("its schema has a longer text than there can be"));
        }
        let (mut record, mut schema) = (vec![0; half(12) as usize], vec![0; half(24) as usize]);
        from.read_exact(&mut record)?;
        from.read_exact(&mut schema)?;
        let (written, log) = (String::from_utf8_lossy(&schema).into_owned(), self.schema.as_str());
        if !schema::is_readable(&written, log) {
            return Err(ImageError::Schema { written, log: log.to_owned() });
        }
        let epoch = Epoch(u64::from(half(16)) | u64::from(half(20)) << 32);
        let view = (!record.is_empty()).then(|| (epoch, ViewRecord::decode(&record)));
        Ok(Image { at, view, from })
    }

    /// Returns the places from `begin` to `end` of which there are images, good or not.
    pub(crate) fn positions(&self, begin: Position, end: Position) -> Result<Vec<Position>, ImageError> {
        Ok(snapshots(&self.disk)?.into_iter().filter(|at| (begin..=end).contains(at)).collect())
    }

    /// Returns the newest image of a place from `begin` to `end` that can be used.
    pub(crate) fn newest(&self, begin: Position, end: Position) -> Result<Found, ImageError> {
        let mut refused = Vec::new();
        for position in self.positions(begin, end)?.into_iter().rev() {
            match self.open(position) {
                Ok(image) => return Ok(Found { image: Some(image), refused }),
                Err(error) => refused.push(error),
            }
        }
        Ok(Found { image: None, refused })
    }

    /// Removes the images of places that the log no longer has, or never came to have.
    pub(crate) fn remove_outside(&self, begin: Position, end: Position) -> Result<(), ImageError> {
        for position in snapshots(&self.disk)?.into_iter().filter(|at| !(begin..=end).contains(at)) {
            remove_snapshot(&self.disk, position)?;
        }
        // Without the sync, an image could come back that belongs to no log any more.
        let path = self.disk.path("");
        Ok(self.disk.sync_directory().map_err(|source| SnapshotError::Io { path, source })?)
    }
}

/// An image that is being written. If it is dropped before it is [finished](ImageWriter::finish), no image exists.
pub(crate) struct ImageWriter(BufWriter<Contents>);

struct Contents(SnapshotWriter<Disk>);

impl Write for Contents {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ImageWriter {
    /// Makes the image durable.
    pub(crate) fn finish(self) -> Result<(), ImageError> {
        let contents = self.0.into_inner().map_err(|error| ImageError::Write(error.into_error()))?;
        Ok(contents.0.finish()?)
    }
}

impl Write for ImageWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl fmt::Debug for ImageWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageWriter").finish_non_exhaustive()
    }
}

/// An image that was found good. Its reader yields the application's part.
pub(crate) struct Image {
    /// The place of the log.
    pub(crate) at: End,
    /// The last view at that place.
    pub(crate) view: LastView,
    from: BufReader<Stored>,
}

struct Stored {
    snapshot: log::Snapshot<Disk>,
    at: u64,
}

impl Read for Stored {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = into.len().min(usize::try_from(self.snapshot.len() - self.at).unwrap_or(usize::MAX));
        self.snapshot.read_at(self.at, &mut into[..len]).map_err(io::Error::other)?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Read for Image {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.from.read(into)
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("at", &self.at).finish_non_exhaustive()
    }
}
