//! The placing of files, links and devices under their names, and what they get besides contents.

use std::sync::Arc;

use rustix::{
    fs::{FileType, fsync},
    io::Errno,
};

use super::{
    super::{
        dress::dress,
        manifest::{Entry, EntryKind, SpecialKind},
        root::PlaceError,
    },
    EntryState, Sink, SinkError, stem,
};

impl Sink {
    /// Gives a received file its owner, mode, time and attributes, and syncs it if `sync`.
    pub(super) fn dress(&mut self, entry: usize, sync: bool) -> Result<(), SinkError> {
        let about = &self.manifest.entries()[entry];
        let name = self.work.get(&entry).and_then(|work| work.name.clone()).unwrap_or_default();
        let dressed = (|| {
            let file = self.staging.as_ref().ok_or(Errno::NOENT)?.open(&name, false)?;
            dress(&file, about, self.options.keep, true, &mut self.outcome.losses)?;
            if sync { fsync(&file) } else { Ok(()) }
        })();
        dressed.map_err(|cause| self.contents("set mode and time of, or sync,", entry)(cause.into()))
    }

    /// Gives what is in place already the owner, mode, time and attributes of its entry.
    pub(super) fn dress_in_place(&mut self, entry: usize) -> Result<(), SinkError> {
        let about = &self.manifest.entries()[entry];
        let dressed = self
            .root
            .handle(&about.path)
            .and_then(|file| dress(file, about, self.options.keep, false, &mut self.outcome.losses));
        self.accept(entry, dressed.map_err(PlaceError::name("set mode and time of", &about.path)))
    }

    /// Makes a link or a device, unless it is there.
    pub(super) fn make(&mut self, index: usize) -> Result<(), SinkError> {
        let manifest = Arc::clone(&self.manifest);
        let entry = &manifest.entries()[index];
        if let EntryKind::HardLink { to } = entry.kind
            && !matches!(self.states[to as usize], EntryState::Placed | EntryState::Unchanged)
        {
            let first = manifest.entries()[to as usize].path.to_string();
            self.fail(index, format!("it is a further name of \"{first}\", which is not the source's here"));
            return Ok(());
        }
        if self.has(entry) {
            self.unchanged(index);
            let is_link = matches!(entry.kind, EntryKind::HardLink { .. });
            return if is_link { Ok(()) } else { self.dress_in_place(index) };
        }
        // Not a number: a second name of a file that is in place must never be taken for a part of another.
        let name = format!("{}.made", stem(&entry.path));
        let staging = self.staging()?;
        let (what, made) = match &entry.kind {
            EntryKind::Symlink { target } => ("make the link", staging.link(&name, target)),
            EntryKind::Special { kind, device } => {
                ("make the device or pipe", staging.special(&name, file_type(*kind), *device))
            }
            EntryKind::HardLink { to } => {
                let first = &manifest.entries()[*to as usize].path;
                ("make the hard link", self.root.link(first, staging, &name))
            }
            EntryKind::File { .. } | EntryKind::Directory => return Ok(()),
        };
        let dressed = made.and_then(|()| match entry.kind {
            EntryKind::HardLink { .. } => Ok(()),
            _ => dress(
                self.staging.as_ref().ok_or(Errno::NOENT)?.handle(&name)?,
                entry,
                self.options.keep,
                true,
                &mut self.outcome.losses,
            ),
        });
        match dressed.map_err(PlaceError::name(what, &entry.path)) {
            Ok(()) => self.place(index, &name)?,
            failed => self.accept(index, failed)?,
        }
        // Of two names of one file, neither is removed by renaming one to the other.
        self.staging()?.remove(&name).map_err(|cause| self.contents("remove", index)(cause.into()))
    }

    /// Tells whether a link or device is in place.
    fn has(&self, entry: &Entry) -> bool {
        let Some(found) = self.root.find(&entry.path) else { return false };
        match &entry.kind {
            EntryKind::Symlink { target } => self.root.target(&entry.path).as_ref() == Some(target),
            EntryKind::Special { kind, device } => {
                let is_device = matches!(kind, SpecialKind::BlockDevice | SpecialKind::CharacterDevice);
                found.kind() == file_type(*kind) && (!is_device || found.device() == *device)
            }
            EntryKind::HardLink { to } => {
                let first = self.root.find(&self.manifest.entries()[*to as usize].path);
                first.is_some_and(|first| first.is(&found))
            }
            EntryKind::File { .. } | EntryKind::Directory => false,
        }
    }

    pub(super) fn place(&mut self, entry: usize, name: &str) -> Result<(), SinkError> {
        let manifest = Arc::clone(&self.manifest);
        let path = &manifest.entries()[entry].path;
        let mut placed = self.root.place(self.staging()?, name, path, self.options.clobber);
        let in_the_way = placed.as_ref().is_err_and(PlaceError::is_in_the_way);
        if in_the_way
            && self.options.delete
            && let Some(beside) = self.root.find_parent(path)
            && self.clear(path, &beside)?
        {
            placed = self.root.place(self.staging()?, name, path, self.options.clobber);
        }
        match placed {
            Ok(true) => {
                self.states[entry] = EntryState::Placed;
                self.outcome.placed += 1;
                Ok(())
            }
            Ok(false) => {
                self.states[entry] = EntryState::Kept;
                self.outcome.kept += 1;
                Ok(())
            }
            Err(error) => self.accept(entry, Err(error)),
        }
    }
}

fn file_type(kind: SpecialKind) -> FileType {
    match kind {
        SpecialKind::Pipe => FileType::Fifo,
        SpecialKind::Socket => FileType::Socket,
        SpecialKind::CharacterDevice => FileType::CharacterDevice,
        SpecialKind::BlockDevice => FileType::BlockDevice,
    }
}
