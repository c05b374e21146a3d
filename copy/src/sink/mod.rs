//! A receiver's files: they grow in the staging directory, are verified, and renamed into place.

mod contents;
mod copy;
mod look;
mod place;
mod ranges;
mod read_back;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::File,
    io,
    sync::{Arc, atomic::AtomicBool},
};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use squall_services::frame::at_most;

pub(crate) use self::copy::FileToCopy;
use super::{
    chunks::Reuse,
    dress::{Keep, Losses},
    extent::Ranges,
    filter::{Filter, Patterns},
    layout::StreamLayout,
    manifest::{EntryKind, Manifest},
    path::RelPath,
    root::{PlaceError, Root, Staging, hint},
};

/// The most files that are synced one by one; for more, their filesystem is synced once.
const SYNC_ONE_BY_ONE: usize = 4;

/// The source's statement about a file once it has read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// The BLAKE3 of its contents, without holes.
    Intact([u8; 32]),
    /// The sent bytes are not the file, for this reason.
    Damaged(String),
}

/// The options of a receiver's handling of files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SinkOptions {
    /// Sync files before they are put in place.
    pub(crate) sync: bool,
    /// Replace files of the same name.
    pub(crate) clobber: bool,
    /// Compare contents even where size and time are the same.
    pub(crate) checksum: bool,
    /// Remove what the source does not have, in its directories.
    pub(crate) delete: bool,
    /// Change nothing.
    pub(crate) dry_run: bool,
    /// The most bytes to copy per second from the source's open files, or to send in its place.
    pub(crate) limit_rate: Option<u64>,
    /// The properties of files that are kept.
    pub(crate) keep: Keep,
    /// Names that are not copied, and so not removed.
    pub(crate) patterns: Patterns,
    /// Names that the source has, and leaves out for another reason: they are not removed either.
    #[serde(deserialize_with = "at_most::<SPARED, _, _>")]
    pub(crate) spared: Vec<Vec<u8>>,
}

/// The most names that are spared.
pub(crate) const SPARED: usize = 1 << 16;

/// The files that a receiver lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lacking {
    /// Files of which it has nothing.
    pub(crate) whole: Vec<u32>,
    /// Files of which it has another version, or some part.
    pub(crate) other: Vec<u32>,
    /// In a dry run, the number of names that it would remove.
    pub(crate) doomed: u64,
    /// In a dry run, the first names that it could not replace, each with the reason.
    #[serde(deserialize_with = "at_most::<FAILURES_TOLD, _, _>")]
    pub(crate) failed: Vec<String>,
    /// In a dry run, the number of those.
    pub(crate) failures: u64,
}

/// The outcome of a transfer's files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Files, links and devices that were put in place, and verified.
    pub(crate) placed: u64,
    /// Files, links and devices that were the same before.
    pub(crate) unchanged: u64,
    /// Names that existed, and were kept.
    pub(crate) kept: u64,
    /// Names that were removed.
    pub(crate) deleted: u64,
    /// The properties that could not be kept of files that are in place.
    pub(crate) losses: Losses,
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
    #[error("segment {came} came after {written} were written: the source breaks the protocol")]
    Order { came: u64, written: u64 },
    #[error("{0}: the source breaks the protocol")]
    Pattern(String),
}

/// The state of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EntryState {
    /// A file whose bytes are not all here; or another entry that is not made yet.
    Open,
    /// A file whose bytes are all in the staging directory, with this BLAKE3.
    Whole([u8; 32]),
    /// The file is verified, and is to be put in place.
    Verified,
    Placed,
    Unchanged,
    Kept,
    Failed,
}

/// A file that has bytes of a file to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Basis {
    /// One in the staging directory.
    Staged(String),
    /// The one that has the file's name now.
    Placed,
}

/// A file that is not whole.
#[derive(derive_more::Debug, Default)]
struct FileWork {
    missing: Ranges,
    /// Bytes that are here, and the files that have them.
    reuses: Vec<Reuse>,
    bases: Vec<Basis>,
    /// Its name in the staging directory, once it is there.
    name: Option<String>,
    /// The hash of its first bytes, and their number, as long as no byte comes out of order.
    #[debug(skip)]
    hashed: Option<Box<(blake3::Hasher, u64)>>,
    /// Whether it has its owner, mode, time and attributes, and, if it is one of few, is synced.
    is_dressed: bool,
}

/// A transfer's files at a receiver.
pub(crate) struct Sink {
    root: Arc<Root>,
    /// There is none if nothing is to be changed, and there was none.
    staging: Option<Staging>,
    manifest: Arc<Manifest>,
    options: SinkOptions,
    filter: Filter,
    spared: HashSet<Vec<u8>>,
    /// Files with several names, of which one stands for an entry: no other may, or both would have one mode.
    claimed: HashSet<(u64, u64)>,
    /// Files whose chunks are awaited.
    to_compare: HashSet<usize>,
    /// This receiver's node id.
    me: u32,
    /// Ends the reading of files that nobody waits for.
    given_up: Arc<AtomicBool>,
    layout: StreamLayout,
    /// The segment before which all that are for this receiver are written.
    segments: u64,
    states: Vec<EntryState>,
    work: HashMap<usize, FileWork>,
    /// The file in the staging directory that was written last.
    current: Option<(usize, File)>,
    /// Numbers of files that are in the staging directory, by the beginning of their names.
    staged: HashMap<String, Vec<u64>>,
    /// The number of bytes that were written, of those that were missing.
    written: u64,
    verdicts: BTreeMap<usize, Verdict>,
    /// The entries in state `Verified`.
    verified: Vec<usize>,
    /// Whether the files that are lacking are so few that each is synced by itself.
    lacks_few: bool,
    /// The number of bytes that were copied since files were put in place.
    uncommitted: u64,
    outcome: Outcome,
}

impl Sink {
    /// Looks at what is here, and makes directories. Returns what this receiver lacks, too.
    pub(crate) fn open(
        root: Arc<Root>,
        manifest: Arc<Manifest>,
        options: SinkOptions,
        me: u32,
        given_up: Arc<AtomicBool>,
    ) -> Result<(Sink, Lacking), SinkError> {
        let filter = Filter::new(&options.patterns).map_err(|error| SinkError::Pattern(error.to_string()))?;
        root.look_again();
        let staging = match options.dry_run {
            true => root.staging_if_any(manifest.id()),
            false => Some(root.staging(manifest.id())?),
        };
        let mut staged: HashMap<String, Vec<u64>> = HashMap::new();
        for name in staging.as_ref().map_or(Ok(Vec::new()), Staging::names)? {
            if let Some((stem, number)) =
                name.split_once('.').and_then(|(stem, number)| Some((stem, number.parse().ok()?)))
            {
                staged.entry(stem.to_owned()).or_default().push(number);
            }
        }
        // The newest first.
        staged.values_mut().for_each(|numbers| numbers.sort_unstable_by_key(|number| u64::MAX - number));
        let mut sink = Sink {
            root,
            staging,
            states: vec![EntryState::Open; manifest.entries().len()],
            manifest,
            spared: options.spared.iter().cloned().collect(),
            options,
            filter,
            claimed: HashSet::new(),
            to_compare: HashSet::new(),
            me,
            given_up,
            layout: StreamLayout::new(&[], 1),
            segments: 0,
            work: HashMap::new(),
            current: None,
            staged,
            written: 0,
            verdicts: BTreeMap::new(),
            verified: Vec::new(),
            lacks_few: false,
            uncommitted: 0,
            outcome: Outcome::default(),
        };
        if !sink.options.dry_run {
            sink.make_directories()?;
        }
        let lacking = sink.look()?;
        sink.lacks_few = lacking.whole.len() + lacking.other.len() <= SYNC_ONE_BY_ONE;
        if !sink.options.sync && !sink.options.dry_run {
            for name in tops(&sink.manifest) {
                sink.root.note_unsynced(name, false)?;
            }
        }
        Ok((sink, lacking))
    }

    /// Returns the number of bytes that were written, of those that were missing.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Takes the source's verdict on a file. The file is put in place at the next [`commit`](Sink::commit) if its bytes
    /// are what was written.
    pub(crate) fn verdict(&mut self, entry: usize, verdict: Verdict) -> Result<(), SinkError> {
        match self.states.get(entry) {
            Some(&EntryState::Whole(hash)) => self.judge(entry, hash, verdict),
            Some(EntryState::Open) if self.manifest.entries()[entry].is_file() => {
                self.verdicts.insert(entry, verdict);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Puts the verified files in place.
    pub(crate) fn commit(&mut self) -> Result<(), SinkError> {
        let verified = std::mem::take(&mut self.verified);
        self.uncommitted = 0;
        let is_dressed = |sink: &Sink, entry| sink.work.get(entry).is_some_and(|work| work.is_dressed);
        let any_dressed = verified.iter().any(|entry| is_dressed(self, entry));
        let are_many = if any_dressed { !self.lacks_few } else { verified.len() > SYNC_ONE_BY_ONE };
        let at_once = self.options.sync && are_many;
        for entry in &verified {
            if !is_dressed(self, entry) {
                self.dress(*entry, self.options.sync && !at_once)?;
            }
        }
        if at_once {
            let path = self.root.path().display().to_string();
            self.staging()?.sync().map_err(PlaceError::disk("sync the files of", path))?;
        }
        for entry in verified {
            let name = self.work.get_mut(&entry).and_then(|work| work.name.take());
            self.place(entry, &name.unwrap_or_default())?;
            match self.states[entry] {
                // Under its name in the staging directory there is nothing any more.
                EntryState::Placed => _ = self.take_staged(entry),
                EntryState::Kept => self.forget(entry)?,
                // What could not be put in place need not move again.
                _ => {}
            }
        }
        Ok(())
    }

    /// Ends the transfer, after its last segment and verdict: makes links and devices, removes what is to be removed,
    /// sets what files and directories that were there are to have, and removes the staging directory.
    pub(crate) fn finish(mut self) -> Result<Outcome, SinkError> {
        let segments = self.layout.segments();
        if self.layout.next_for(self.me, self.segments) != segments {
            return Err(SinkError::Order { came: segments, written: self.segments });
        }
        self.commit()?;
        let manifest = Arc::clone(&self.manifest);
        for (index, entry) in manifest.entries().iter().enumerate() {
            match (&entry.kind, &self.states[index]) {
                (EntryKind::File { .. }, EntryState::Open) => {
                    self.fail(index, "the source did not send all of it".to_owned());
                }
                (EntryKind::File { .. }, EntryState::Whole(_)) => {
                    self.fail(index, "the source did not say what its contents must be".to_owned());
                }
                (EntryKind::File { .. }, EntryState::Unchanged) => self.dress_in_place(index)?,
                (EntryKind::File { .. } | EntryKind::Directory, _) => {}
                (_, EntryState::Open) => self.make(index)?,
                _ => {}
            }
        }
        if self.options.delete {
            self.outcome.deleted += self.delete()?;
        }
        // Inner directories first, since a change in a directory changes its time.
        for (index, entry) in manifest.entries().iter().enumerate().rev() {
            if entry.kind == EntryKind::Directory && self.states[index] != EntryState::Failed {
                self.dress_in_place(index)?;
            }
        }
        if self.outcome.failures == 0 {
            self.root.discard(self.staging()?)?;
        }
        if self.options.sync {
            self.root.sync()?;
        }
        // Files of a name that are not among these were not compared, if the note is of before a crash.
        let SinkOptions { delete, patterns, spared, .. } = &self.options;
        let all = *delete && *patterns == Patterns::default() && spared.is_empty() && self.outcome.kept == 0;
        for name in tops(&manifest).filter(|_| self.outcome.failures == 0) {
            let is_settled = all || !self.root.has_unsynced(name);
            match self.options.sync {
                true if is_settled => self.root.forget_unsynced(name)?,
                false if is_settled => self.root.note_unsynced(name, true)?,
                _ => {}
            }
        }
        Ok(self.outcome)
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
        // What has come may be of use to the next push.
        self.work.remove(&entry);
        self.fail(entry, wrong);
        Ok(())
    }

    fn staging(&self) -> Result<&Staging, SinkError> {
        self.staging.as_ref().ok_or(SinkError::Order { came: 0, written: 0 })
    }

    /// Ends the work on a file. Returns the names that it has in the staging directory.
    fn take_staged(&mut self, entry: usize) -> Vec<String> {
        self.work.remove(&entry);
        let stem = stem(&self.manifest.entries()[entry].path);
        let numbers = self.staged.remove(&stem).unwrap_or_default();
        numbers.into_iter().map(|number| format!("{stem}.{number}")).collect()
    }

    /// Removes what the staging directory has of a file.
    fn forget(&mut self, entry: usize) -> Result<(), SinkError> {
        for name in self.take_staged(entry) {
            let removed = self.staging()?.remove(&name);
            removed.map_err(|cause| self.contents("remove", entry)(cause.into()))?;
        }
        Ok(())
    }

    fn unchanged(&mut self, entry: usize) {
        self.states[entry] = EntryState::Unchanged;
        self.outcome.unchanged += 1;
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

    fn contents(&self, attempt: &'static str, entry: usize) -> impl FnOnce(io::Error) -> SinkError + use<> {
        let path = self.manifest.entries()[entry].path.to_string();
        move |cause| SinkError::Contents { attempt, path, cause: Errno::from_io_error(&cause).unwrap_or(Errno::IO) }
    }
}

/// Returns the names under which things are copied: those of entries in the receiver's directory itself.
fn tops(manifest: &Manifest) -> impl Iterator<Item = &[u8]> {
    manifest.entries().iter().filter(|entry| entry.path.split().0.is_none()).map(|entry| entry.path.as_bytes())
}

/// Returns the beginning of the names that an entry has in the staging directory: a dot and a number follow.
fn stem(path: &RelPath) -> String {
    blake3::hash(path.as_bytes()).to_hex()[..32].to_owned()
}
