//! The owner, mode, times and attributes that a receiver gives to files, links and directories; and what of it could
//! not be kept.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, Stat, Timespec, Timestamps, Uid, chmodat, chownat, fchmod, fstat, futimens,
        utimensat,
    },
    io::Errno,
};
use serde::{Deserialize, Serialize};
use squall_services::frame::at_most;

use super::{
    attributes::{AttributeKinds, is_access_list, is_list},
    manifest::{Entry, Mtime, Owner},
    path::{RelPath, shown},
};

/// The properties of files that are kept, besides contents, modes and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Keep {
    /// Owners, and with them set-id bits.
    pub(crate) owners: bool,
    /// Extended attributes.
    pub(crate) attributes: AttributeKinds,
}

/// The most losses that are told; further ones are only counted.
const LOSSES_TOLD: usize = 100;

/// The properties that could not be kept at a receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Losses {
    /// Files of which the user or group could not be kept.
    pub(crate) owners: u64,
    /// Files whose set-id bits are gone, since their owner could not be kept.
    pub(crate) set_ids: u64,
    /// Access control lists. The files' groups have no more rights than by the list.
    pub(crate) lists: u64,
    /// Other extended attributes.
    pub(crate) attributes: u64,
    /// The first of them, each with its file and the reason.
    #[serde(deserialize_with = "at_most::<LOSSES_TOLD, _, _>")]
    pub(crate) told: Vec<String>,
}

impl Losses {
    fn tell(&mut self, path: &RelPath, what: &str, cause: Errno) {
        if self.told.len() < LOSSES_TOLD {
            self.told.push(format!("\"{path}\": {what} could not be kept: {cause}"));
        }
    }
}

/// The bits of a mode that let a program run as the file's user or group.
pub(crate) const SET_USER: u32 = 0o4000;
pub(crate) const SET_GROUP: u32 = 0o2000;

/// Gives what `file` is open as, an `O_PATH` handle too, the owner, attributes, mode and times of an entry. What is
/// right already is not touched.
pub(crate) fn dress(
    file: impl AsFd,
    entry: &Entry,
    keep: Keep,
    is_own: bool,
    losses: &mut Losses,
) -> Result<(), Errno> {
    let file = file.as_fd();
    let before = fstat(file)?;
    let set_mode = |mode: u32| match fchmod(file, Mode::from_raw_mode(mode)) {
        Err(Errno::BADF) => chmodat(CWD, by_path(file), Mode::from_raw_mode(mode), AtFlags::empty()),
        set => set,
    };
    let owner_changes =
        entry.owner.is_some_and(|owner| keep.owners && (before.st_uid, before.st_gid) != (owner.user, owner.group));
    let is_link = FileType::from_raw_mode(before.st_mode) == FileType::Symlink;
    // Its owner's rights, and the sticky bit, give nobody else any; set-id bits of a directory let nobody run as
    // another.
    let is_directory = FileType::from_raw_mode(before.st_mode) == FileType::Directory;
    let others = if is_directory { 0o7777 } else { 0o1777 };
    let narrow = before.st_mode & (entry.mode | 0o700) & others;
    if !is_link && (owner_changes || before.st_mode & 0o7777 != entry.mode) && narrow != before.st_mode & 0o7777 {
        // A new owner must not have the rights of the old for a moment.
        set_mode(narrow)?;
    }
    let now = match entry.owner.filter(|_| keep.owners) {
        Some(owner) => change_owner(file, &before, owner, &entry.path, losses)?,
        None => before,
    };
    if is_link {
        return set_times(file, &now, entry.mtime);
    }
    let mut mode = entry.mode;
    let kept = |set: u32, here: u32, wanted: fn(Owner) -> u32| {
        mode & set == 0 || keep.owners && entry.owner.is_some_and(|owner| wanted(owner) == here)
    };
    let (user, group) =
        (kept(SET_USER, now.st_uid, |owner| owner.user), kept(SET_GROUP, now.st_gid, |owner| owner.group));
    if !user || !group {
        mode &= !(if user { 0 } else { SET_USER } | if group { 0 } else { SET_GROUP });
        losses.set_ids += 1;
        losses.tell(&entry.path, "set-id bits, which go with the owner,", Errno::PERM);
    }
    let failed = entry.attributes.apply(file, keep.attributes, is_own)?;
    for (name, cause) in failed {
        if is_list(&name) {
            if is_access_list(&name) {
                mode = entry.attributes.mode_without_list(mode);
            }
            losses.lists += 1;
        } else {
            losses.attributes += 1;
        }
        losses.tell(&entry.path, &format!("the attribute {}", shown(&name)), cause);
    }
    // A list or a new owner may have changed it.
    let now = fstat(file)?;
    if now.st_mode & 0o7777 != mode {
        set_mode(mode)?;
        // The system takes a set-id bit silently from who is not in the group.
        if mode & !fstat(file)?.st_mode & (SET_USER | SET_GROUP) != 0 {
            losses.set_ids += 1;
            losses.tell(&entry.path, "set-id bits", Errno::PERM);
        }
    }
    set_times(file, &now, entry.mtime)
}

/// Changes the owner, as far as this user may. Returns what the file is then.
fn change_owner(
    file: BorrowedFd<'_>,
    before: &Stat,
    owner: Owner,
    path: &RelPath,
    losses: &mut Losses,
) -> Result<Stat, Errno> {
    if (before.st_uid, before.st_gid) == (owner.user, owner.group) {
        return Ok(*before);
    }
    let (user, group) = (Uid::from_raw(owner.user), Gid::from_raw(owner.group));
    let change = |user, group| chownat(file, "", user, group, AtFlags::EMPTY_PATH);
    let changed = change(Some(user), Some(group)).or_else(|cause| match cause {
        // A user may give a file to a group of its own.
        Errno::PERM if before.st_gid != owner.group => {
            change(None, Some(group)).and(match before.st_uid == owner.user {
                true => Ok(()),
                false => Err(cause),
            })
        }
        _ => Err(cause),
    });
    match changed {
        Ok(()) => {}
        Err(cause @ (Errno::PERM | Errno::INVAL | Errno::NOTSUP)) => {
            losses.owners += 1;
            losses.tell(path, &format!("the owner {}:{}", owner.user, owner.group), cause);
        }
        Err(cause) => return Err(cause),
    }
    fstat(file)
}

fn set_times(file: BorrowedFd<'_>, now: &Stat, mtime: Mtime) -> Result<(), Errno> {
    if (now.st_mtime, now.st_mtime_nsec as u32) == (mtime.seconds, mtime.nanos) {
        return Ok(());
    }
    let mtime = Timespec { tv_sec: mtime.seconds, tv_nsec: mtime.nanos.into() };
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: mtime };
    match futimens(file, &times) {
        Err(Errno::BADF) => utimensat(CWD, by_path(file), &times, AtFlags::empty()),
        set => set,
    }
}

/// Returns the path by which the kernel reaches what an `O_PATH` handle stands for, which may be closed to its own
/// user.
fn by_path(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}
