//! A receiver's files. Bytes come in order, grow in the staging directory, are verified, and renamed into place.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    sync::Arc,
};

use rustix::{
    fs::{Mode, fchmod, fsync, futimens},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use squall_services::frame::at_most;

use super::{
    journal::{Journal, Remembered},
    layout::{Piece, StreamLayout},
    manifest::{Entry, EntryKind, Manifest, TransferId},
    root::{PlaceError, Root, Staging, hint, timestamps},
};

/// The most files that are synced one by one; for more, their filesystem is synced once.
const SYNC_ONE_BY_ONE: usize = 4;

/// The source's statement about a file once it has read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// The BLAKE3 of its contents.
    Intact([u8; 32]),
    /// The sent bytes are not the file, for this reason.
    Damaged(String),
}

/// The options of a receiver's handling of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SinkOptions {
    /// Sync files before they are put in place.
    pub(crate) sync: bool,
    /// Replace files of the same name.
    pub(crate) clobber: bool,
}

/// The progress of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// The number of segments that are written.
    pub(crate) segments: u64,
    /// The first entry whose file may not be in place. The verdicts of those before it are not needed.
    pub(crate) first_open: usize,
    /// The number of files that the transfer has.
    pub(crate) files: usize,
}

/// The outcome of a transfer's files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Files that are in place and verified.
    pub(crate) placed: u64,
    /// Files and links of the same name that existed, and were kept.
    pub(crate) kept: u64,
    /// The first failures, each with its file and the reason.
    #[serde(deserialize_with = "at_most::<FAILURES_TOLD, _, _>")]
    pub(crate) failed: Vec<String>,
    /// The number of failures.
    pub(crate) failures: u64,
}

/// The most failures that are reported; further ones are only counted.
const FAILURES_TOLD: usize = 100;

/// A reason for which nothing more can be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SinkError {
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("could not {attempt} the contents of \"{path}\": {cause}{}", hint(*cause))]
    Contents { attempt: &'static str, path: String, cause: Errno },
    #[error("could not write the journal of {transfer}: {cause}{}", hint(*cause))]
    Journal { transfer: TransferId, cause: Errno },
    #[error("segment {came} came after {written} were written: the source breaks the protocol")]
    Order { came: u64, written: u64 },
}

/// The state of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EntryState {
    /// A file whose bytes are not all here; or a directory or link.
    Open,
    /// A file whose bytes are all in the staging directory, with this BLAKE3.
    Whole([u8; 32]),
    /// The file is verified, and is to be put in place.
    Verified,
    Placed,
    Kept,
    Failed,
}

struct OpenFile {
    entry: usize,
    file: File,
    hasher: blake3::Hasher,
}

/// A transfer's files at a receiver.
pub(crate) struct Sink {
    root: Arc<Root>,
    id: TransferId,
    staging: Staging,
    manifest: Arc<Manifest>,
    layout: StreamLayout,
    options: SinkOptions,
    journal: Journal,
    /// The number of segments that are written.
    segments: u64,
    /// The entry before which all bytes of all entries have come.
    cursor: usize,
    current: Option<OpenFile>,
    states: Vec<EntryState>,
    verdicts: BTreeMap<usize, Verdict>,
    /// The entries in state `Verified`.
    verified: Vec<usize>,
    outcome: Outcome,
}

impl Sink {
    /// Prepares to receive; with `resume`, from where an interrupted transfer of the same id stopped.
    pub(crate) fn open(
        root: Arc<Root>,
        manifest: Arc<Manifest>,
        segment_bytes: usize,
        options: SinkOptions,
        resume: bool,
    ) -> Result<Sink, SinkError> {
        let id = manifest.id(segment_bytes);
        let layout = StreamLayout::new(&manifest, segment_bytes);
        let staging = root.staging(id)?;
        let remembered = if resume { Journal::read(&staging) } else { Remembered::default() };
        if remembered == Remembered::default() {
            staging.clear()?;
        }
        let remembered = trusted(&root, &staging, &manifest, &layout, options.clobber, remembered);
        if options.sync && !remembered.placed.is_empty() {
            // An attempt without sync may have placed these files, and the new journal lists them even after a crash.
            root.sync()?;
        }
        let journal = Journal::begin(&staging, options.sync, &remembered)
            .map_err(|cause| SinkError::Journal { transfer: id, cause })?;
        let mut sink = Sink {
            root,
            id,
            staging,
            states: vec![EntryState::Open; manifest.entries().len()],
            segments: remembered.segments,
            cursor: 0,
            manifest,
            layout,
            options,
            journal,
            current: None,
            verdicts: BTreeMap::new(),
            verified: Vec::new(),
            outcome: Outcome::default(),
        };
        for &entry in &remembered.placed {
            sink.states[entry] = EntryState::Placed;
            sink.outcome.placed += 1;
        }
        for &entry in &remembered.kept {
            sink.states[entry] = EntryState::Kept;
            sink.outcome.kept += 1;
        }
        sink.make_directories()?;
        sink.take_up()?;
        Ok(sink)
    }

    /// Returns the progress.
    pub(crate) fn written(&self) -> Written {
        let open = |entry: &usize| {
            let state = &self.states[*entry];
            matches!(state, EntryState::Open | EntryState::Whole(_) | EntryState::Verified) && self.is_file(*entry)
        };
        let first_open = (0..self.states.len()).find(open).unwrap_or(self.states.len());
        Written { segments: self.segments, first_open, files: self.manifest.files() }
    }

    /// Returns the number of segments that are written.
    pub(crate) fn segments(&self) -> u64 {
        self.segments
    }

    /// Writes the next segment.
    pub(crate) fn write(&mut self, segment: u64, bytes: &[u8]) -> Result<(), SinkError> {
        if segment != self.segments || bytes.len() != self.layout.len(segment) {
            return Err(SinkError::Order { came: segment, written: self.segments });
        }
        let pieces: Vec<Piece> = self.layout.pieces(segment).collect();
        for piece in pieces {
            self.end_before(piece.entry)?;
            self.write_piece(piece, &bytes[piece.offset..][..piece.len])?;
        }
        self.segments += 1;
        let ended = self.layout.ended(self.segments);
        self.end_before(ended)?;
        self.journal.segments(self.segments);
        self.commit()
    }

    /// Takes the source's verdict on a file. The file is put in place at the next [`commit`](Sink::commit) if its bytes
    /// are what was written.
    pub(crate) fn verdict(&mut self, entry: usize, verdict: Verdict) -> Result<(), SinkError> {
        if entry >= self.states.len() || !self.is_file(entry) {
            return Ok(());
        }
        match self.states[entry] {
            EntryState::Whole(hash) => return self.judge(entry, hash, verdict),
            EntryState::Open => _ = self.verdicts.insert(entry, verdict),
            EntryState::Verified | EntryState::Placed | EntryState::Kept | EntryState::Failed => {}
        }
        Ok(())
    }

    /// Puts the verified files in place.
    pub(crate) fn commit(&mut self) -> Result<(), SinkError> {
        let verified = std::mem::take(&mut self.verified);
        let at_once = self.options.sync && verified.len() > SYNC_ONE_BY_ONE;
        for &entry in &verified {
            self.dress(entry, self.options.sync && !at_once)?;
        }
        if at_once {
            let path = self.root.path().display().to_string();
            self.staging.sync().map_err(PlaceError::disk("sync the files of", path))?;
        }
        for entry in verified {
            self.place(entry)?;
        }
        self.flush_journal()
    }

    /// Ends the transfer, after its last segment and verdict: makes the links, sets the modes and times of directories,
    /// and removes the staging directory.
    pub(crate) fn finish(mut self) -> Result<Outcome, SinkError> {
        let segments = self.layout.segments();
        if self.segments != segments {
            return Err(SinkError::Order { came: segments, written: self.segments });
        }
        self.end_before(self.states.len())?;
        self.commit()?;
        for entry in 0..self.states.len() {
            if self.is_file(entry) && matches!(self.states[entry], EntryState::Open | EntryState::Whole(_)) {
                self.fail(entry, "the source did not say what its contents must be".to_owned());
            }
        }
        for entry in 0..self.states.len() {
            if let EntryKind::Symlink { target } = &self.manifest.entries()[entry].kind
                && !matches!(self.states[entry], EntryState::Placed | EntryState::Kept)
            {
                let (name, mtime) = (name(entry), self.manifest.entries()[entry].mtime);
                let made = self.staging.link(&name, target, mtime);
                match made.map_err(PlaceError::name("make the link", &self.manifest.entries()[entry].path)) {
                    Ok(()) => self.place(entry)?,
                    failed => self.accept(entry, failed)?,
                }
            }
        }
        // Inner directories first, since a change in a directory changes its time.
        for entry in (0..self.states.len()).rev() {
            let Entry { path, kind, mode, mtime } = &self.manifest.entries()[entry];
            if *kind == EntryKind::Directory && self.states[entry] != EntryState::Failed {
                let finished = self.root.finish_directory(path, *mode, *mtime);
                self.accept(entry, finished)?;
            }
        }
        if self.outcome.failures == 0 {
            self.root.discard(&self.staging)?;
        } else {
            self.flush_journal()?;
        }
        if self.options.sync {
            self.root.sync()?;
        }
        Ok(self.outcome)
    }

    fn is_file(&self, entry: usize) -> bool {
        matches!(self.manifest.entries()[entry].kind, EntryKind::File { .. })
    }

    fn make_directories(&mut self) -> Result<(), SinkError> {
        let manifest = Arc::clone(&self.manifest);
        for (entry, Entry { path, kind, .. }) in manifest.entries().iter().enumerate() {
            if *kind == EntryKind::Directory {
                let made = self.root.make_directory(path);
                self.accept(entry, made)?;
            }
        }
        Ok(())
    }

    /// Reads again what was received before, so that whole files are verified in the end.
    fn take_up(&mut self) -> Result<(), SinkError> {
        let ended = self.layout.ended(self.segments);
        for entry in 0..self.states.len() {
            let held = self.layout.held(entry, self.segments);
            if held == 0 || self.states[entry] != EntryState::Open {
                continue;
            }
            let attempt = || {
                let mut file = self.staging.open(&name(entry), false)?;
                file.set_len(held)?;
                let mut hasher = blake3::Hasher::new();
                let mut buffer = vec![0; 1 << 20];
                loop {
                    match file.read(&mut buffer)? {
                        0 => break,
                        n => _ = hasher.update(&buffer[..n]),
                    }
                }
                file.seek(SeekFrom::End(0))?;
                Ok((file, hasher))
            };
            let (file, hasher) = attempt().map_err(self.contents("read again", entry))?;
            if entry < ended {
                self.states[entry] = EntryState::Whole(hasher.finalize().into());
            } else {
                self.current = Some(OpenFile { entry, file, hasher });
            }
        }
        self.end_before(ended)
    }

    /// Ends the entries before `entry`, of which all bytes have come. Entries without bytes are made now.
    fn end_before(&mut self, entry: usize) -> Result<(), SinkError> {
        while self.cursor < entry {
            if self.is_file(self.cursor) && self.states[self.cursor] == EntryState::Open {
                self.end(self.cursor)?;
            }
            self.cursor += 1;
        }
        Ok(())
    }

    fn write_piece(&mut self, piece: Piece, bytes: &[u8]) -> Result<(), SinkError> {
        if self.states[piece.entry] != EntryState::Open {
            return Ok(());
        }
        if piece.at == 0 {
            let file = self.staging.open(&name(piece.entry), true);
            let file = file.map_err(|cause| self.contents("create", piece.entry)(cause.into()))?;
            self.current = Some(OpenFile { entry: piece.entry, file, hasher: blake3::Hasher::new() });
        }
        let Some(current) = self.current.as_mut().filter(|current| current.entry == piece.entry) else {
            return Err(SinkError::Order { came: self.segments, written: self.segments });
        };
        current.hasher.update(bytes);
        current.file.write_all(bytes).map_err(|cause| self.contents("write", piece.entry)(cause))
    }

    /// Ends a file of which all bytes are written.
    fn end(&mut self, entry: usize) -> Result<(), SinkError> {
        let hasher = match self.current.take_if(|current| current.entry == entry) {
            Some(current) => current.hasher,
            None => {
                let made = self.staging.open(&name(entry), true);
                made.map_err(|cause| self.contents("create", entry)(cause.into()))?;
                blake3::Hasher::new()
            }
        };
        let hash = hasher.finalize().into();
        self.states[entry] = EntryState::Whole(hash);
        self.verdicts.remove(&entry).map_or(Ok(()), |verdict| self.judge(entry, hash, verdict))
    }

    fn judge(&mut self, entry: usize, hash: [u8; 32], verdict: Verdict) -> Result<(), SinkError> {
        let wrong = match verdict {
            Verdict::Intact(expected) if expected == hash => {
                self.states[entry] = EntryState::Verified;
                self.verified.push(entry);
                return Ok(());
            }
            Verdict::Intact(_) => "what was written is not what the source read: push it again".to_owned(),
            Verdict::Damaged(reason) => reason,
        };
        self.staging.remove(&name(entry)).map_err(|cause| self.contents("remove", entry)(cause.into()))?;
        self.fail(entry, wrong);
        Ok(())
    }

    /// Gives a received file its mode and time, and syncs it if `sync`.
    fn dress(&mut self, entry: usize, sync: bool) -> Result<(), SinkError> {
        let Entry { mode, mtime, .. } = &self.manifest.entries()[entry];
        let dressed = (|| {
            let file = self.staging.open(&name(entry), false)?;
            fchmod(&file, Mode::from_raw_mode(*mode))?;
            futimens(&file, &timestamps(*mtime))?;
            if sync { fsync(&file) } else { Ok(()) }
        })();
        dressed.map_err(|cause| self.contents("set mode and time of, or sync,", entry)(cause.into()))
    }

    fn place(&mut self, entry: usize) -> Result<(), SinkError> {
        let path = &self.manifest.entries()[entry].path;
        let name = name(entry);
        match self.root.place(&self.staging, &name, path, self.options.clobber) {
            Ok(true) => {
                self.states[entry] = EntryState::Placed;
                self.outcome.placed += 1;
                self.journal.placed(entry);
                return Ok(());
            }
            Ok(false) => {
                self.states[entry] = EntryState::Kept;
                self.outcome.kept += 1;
                self.journal.kept(entry);
            }
            failed @ Err(_) => self.accept(entry, failed.map(drop))?,
        }
        self.staging.remove(&name).map_err(|cause| self.contents("remove", entry)(cause.into()))
    }

    /// Sorts a failure: it is either this entry's, or ends the transfer.
    fn accept(&mut self, entry: usize, placed: Result<(), PlaceError>) -> Result<(), SinkError> {
        match placed {
            Ok(()) => Ok(()),
            Err(error @ PlaceError::Name { .. }) => {
                self.states[entry] = EntryState::Failed;
                self.note(error.to_string());
                Ok(())
            }
            Err(error @ PlaceError::Disk { .. }) => Err(error.into()),
        }
    }

    fn fail(&mut self, entry: usize, reason: String) {
        self.states[entry] = EntryState::Failed;
        let path = &self.manifest.entries()[entry].path;
        self.note(format!("\"{path}\": {reason}"));
    }

    fn note(&mut self, failure: String) {
        self.outcome.failures += 1;
        if self.outcome.failed.len() < FAILURES_TOLD {
            self.outcome.failed.push(failure);
        }
    }

    fn flush_journal(&mut self) -> Result<(), SinkError> {
        self.journal.flush().map_err(|cause| SinkError::Journal { transfer: self.id, cause })
    }

    fn contents(&self, attempt: &'static str, entry: usize) -> impl FnOnce(std::io::Error) -> SinkError {
        let path = self.manifest.entries()[entry].path.to_string();
        move |cause| SinkError::Contents { attempt, path, cause: Errno::from_io_error(&cause).unwrap_or(Errno::IO) }
    }
}

/// Returns the name of an entry in the staging directory.
fn name(entry: usize) -> String {
    format!("f{entry}")
}

/// Returns the part of a journal's records that still holds.
fn trusted(
    root: &Root,
    staging: &Staging,
    manifest: &Manifest,
    layout: &StreamLayout,
    clobber: bool,
    mut remembered: Remembered,
) -> Remembered {
    let entries = manifest.entries();
    remembered.placed.retain(|&entry| match entries.get(entry) {
        Some(Entry { path, kind: EntryKind::File { bytes }, mtime, .. }) => root.file(path) == Some((*bytes, *mtime)),
        _ => false,
    });
    // A name that was kept is to be replaced now, or may be gone.
    remembered.kept.retain(|&entry| !clobber && entries.get(entry).is_some_and(|entry| root.has(&entry.path)));
    let mut segments = remembered.segments.min(layout.segments());
    for entry in 0..entries.len() {
        let held = layout.held(entry, segments);
        if held == 0 || remembered.placed.contains(&entry) || remembered.kept.contains(&entry) {
            continue;
        }
        let here = staging.open(&name(entry), false).and_then(|file| rustix::fs::fstat(&file));
        if !here.is_ok_and(|stat| stat.st_size as u64 >= held) {
            segments = segments.min(layout.whole_before(entry));
        }
    }
    // Entries that are in place at the front count as written.
    let settled = |entry: &usize| {
        entries[*entry].bytes() == 0 || remembered.placed.contains(entry) || remembered.kept.contains(entry)
    };
    let first_open = (0..entries.len()).find(|entry| !settled(entry));
    let in_place = first_open.map_or(layout.segments(), |entry| layout.whole_before(entry));
    remembered.segments = segments.max(in_place);
    remembered
}
