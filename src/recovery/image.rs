//! Images: a replica's state at a place of its log, in a file of the log's directory.
//!
//! The contents of an image's file, with little-endian numbers, behind what the log's format has around them:
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

use crate::{disk::Disk, journal::DiskLog, schema, state::Snapshot};

const MAGIC: &[u8; 8] = b"squallIm";
const VERSION: u32 = 3;
/// More than any schema's text has.
const MAX_SCHEMA_BYTES: u32 = 1 << 10;
/// More than any view's record has.
const MAX_VIEW_BYTES: u32 = 1 << 20;
/// How much is written and read at once, in bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// The last view at a place of a log, and its record.
pub(crate) type LastView = Option<(Epoch, ViewRecord)>;

/// Why an image can't be written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    #[error(transparent)]
    File(#[from] SnapshotError),
    /// The service can't be a durable group's.
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

/// Where one shard's log and images are.
#[derive(Clone, Debug)]
pub(crate) struct Shelf {
    pub(crate) disk: Disk,
    pub(crate) cluster: ClusterId,
    pub(crate) shard: ShardId,
    pub(crate) schema: SchemaText,
}

/// The newest image that can be used, and why newer ones can't.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) image: Option<Image>,
    pub(crate) refused: Vec<ImageError>,
}

impl Shelf {
    /// That of a log.
    pub(crate) fn of(log: &DiskLog) -> Shelf {
        let (disk, options) = (log.storage().clone(), log.options());
        Shelf { disk, cluster: options.cluster, shard: options.shard, schema: log.schema() }
    }

    /// Writes an image, durably. On any thread.
    pub(crate) fn write(&self, at: End, view: Option<&(Epoch, ViewRecord)>, state: Snapshot) -> Result<(), ImageError> {
        let write = state.into_writer().ok_or(ImageError::Unsupported)?;
        let mut image = self.begin(at, view)?;
        // It changes nothing but what it writes to, which is dropped.
        let written = catch_unwind(AssertUnwindSafe(|| write(&mut image)));
        written.map_err(|_| ImageError::Panicked)?.map_err(ImageError::Write)?;
        image.finish()
    }

    /// Begins an image, into which the application's part is still to be written.
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

    /// The places from `begin` to `end` that there are images of, good or not.
    pub(crate) fn positions(&self, begin: Position, end: Position) -> Result<Vec<Position>, ImageError> {
        Ok(snapshots(&self.disk)?.into_iter().filter(|at| (begin..=end).contains(at)).collect())
    }

    /// The newest image of a place from `begin` to `end` that can be used.
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

    /// Removes the images of places that a log no longer has, or never came to have.
    pub(crate) fn remove_outside(&self, begin: Position, end: Position) -> Result<(), ImageError> {
        for position in snapshots(&self.disk)?.into_iter().filter(|at| !(begin..=end).contains(at)) {
            remove_snapshot(&self.disk, position)?;
        }
        // Else one could come back that is of no log any more.
        let path = self.disk.path("");
        Ok(self.disk.sync_directory().map_err(|source| SnapshotError::Io { path, source })?)
    }
}

/// An image that is being written. Dropped before it is [finished](ImageWriter::finish), it never was.
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
    /// Makes it durable.
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

/// An image that was found good. What is read from it is the application's part.
pub(crate) struct Image {
    /// Where the log was.
    pub(crate) at: End,
    /// The last view there.
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
