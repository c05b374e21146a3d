//! A receiver's record of a transfer on its disk: the progress of the contents, and the files that are in place.
//!
//! One line for each event, in order, in the staging directory:
//!
//! ```text
//! squall-cp 1 9b0c…  sync     version; the kernel's boot; whether files are synced before they are put in place
//! s 12                        the first 12 segments are written
//! f 3                         the manifest's entry 3 is in place
//! k 4                         entry 4 was there already, and was kept
//! ```
//!
//! Lines are not synced themselves. As long as the host runs, all of them hold, since the written bytes are in the
//! kernel's cache. After another boot only files that were synced and put in place hold. A line of the journal can't be
//! on the disk before them unless the filesystem reorders, so their size and time are checked again. Contents that are
//! resumed are verified as a whole at the end in any case.

use std::{
    collections::HashSet,
    fs::File,
    io::{Read, Write},
};

use rustix::io::Errno;

use super::root::Staging;

const NAME: &str = "journal";

/// The contents of a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remembered {
    /// The number of segments that are written.
    pub(crate) segments: u64,
    /// Entries that are in place.
    pub(crate) placed: HashSet<usize>,
    /// Entries in whose place an existing file was kept.
    pub(crate) kept: HashSet<usize>,
}

/// A journal that is being written.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    lines: String,
}

impl Journal {
    /// Reads a journal. The result is empty if there is no journal that this version understands.
    pub(crate) fn read(staging: &Staging) -> Remembered {
        let mut text = Vec::new();
        let read = staging.open(NAME, false).map(|mut file| file.read_to_end(&mut text));
        match read {
            Ok(Ok(_)) => parse(&String::from_utf8_lossy(&text), &boot()),
            _ => Remembered::default(),
        }
    }

    /// Begins a new journal with the records that still hold.
    pub(crate) fn begin(staging: &Staging, sync: bool, remembered: &Remembered) -> Result<Journal, Errno> {
        let file = staging.open("journal.new", true)?;
        let sync = if sync { "sync" } else { "no-sync" };
        let mut journal = Journal { file, lines: format!("squall-cp 1 {} {sync}\n", boot()) };
        remembered.placed.iter().for_each(|&entry| journal.placed(entry));
        remembered.kept.iter().for_each(|&entry| journal.kept(entry));
        journal.segments(remembered.segments);
        journal.flush()?;
        staging.rename("journal.new", NAME)?;
        Ok(journal)
    }

    pub(crate) fn segments(&mut self, segments: u64) {
        self.lines += &format!("s {segments}\n");
    }

    pub(crate) fn placed(&mut self, entry: usize) {
        self.lines += &format!("f {entry}\n");
    }

    pub(crate) fn kept(&mut self, entry: usize) {
        self.lines += &format!("k {entry}\n");
    }

    /// Hands the lines to the kernel.
    pub(crate) fn flush(&mut self) -> Result<(), Errno> {
        let written = self.file.write_all(self.lines.as_bytes());
        self.lines.clear();
        written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

fn parse(text: &str, boot: &str) -> Remembered {
    let mut remembered = Remembered::default();
    // A line without an end was torn.
    let Some((text, _)) = text.rsplit_once('\n') else { return remembered };
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let ["squall-cp", "1", written_in, sync] = header[..] else { return remembered };
    let same_boot = written_in == boot;
    if !same_boot && sync != "sync" {
        return remembered;
    }
    for line in lines {
        match line.split_once(' ').map(|(what, number)| (what, number.parse::<u64>())) {
            Some(("s", Ok(segments))) if same_boot => remembered.segments = segments,
            Some(("s", Ok(_))) => {}
            Some(("f", Ok(entry))) => _ = remembered.placed.insert(entry as usize),
            Some(("k", Ok(entry))) => _ = remembered.kept.insert(entry as usize),
            // Lines behind damage are not trusted.
            _ => break,
        }
    }
    remembered
}

/// Returns an id of this boot of the host. A boot without an id is like no other.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_or_else(|_| format!("unknown-{:016x}", fastrand::u64(..)), |id| id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::{
        super::{manifest::TransferId, root::Root},
        *,
    };

    #[test]
    fn what_was_noted_is_remembered() {
        let base = tempfile::tempdir().unwrap();
        let root = Root::open(base.path()).unwrap();
        let staging = root.staging(TransferId([1; 16])).unwrap();
        assert_eq!(Journal::read(&staging), Remembered::default());
        let before = Remembered { segments: 2, placed: [0, 1].into(), kept: [5].into() };
        let mut journal = Journal::begin(&staging, true, &before).unwrap();
        journal.segments(3);
        journal.placed(2);
        journal.flush().unwrap();
        assert_eq!(Journal::read(&staging), Remembered { segments: 3, placed: [0, 1, 2].into(), kept: [5].into() });
    }

    #[test]
    fn a_torn_line_and_what_follows_damage_are_not_trusted() {
        let remembered = |text: &str| parse(text, "boot");
        let header = "squall-cp 1 boot sync\n";
        assert_eq!(remembered(&format!("{header}s 4\ns 17")).segments, 4);
        assert_eq!(remembered(&format!("{header}s 4\n\0\0\0\ns 5\n")).segments, 4);
        assert_eq!(remembered("squall-cp 2 boot sync\ns 4\n"), Remembered::default());
        assert_eq!(remembered(""), Remembered::default());
    }

    #[test]
    fn after_another_boot_only_synced_files_count() {
        let synced = parse("squall-cp 1 then sync\ns 4\nf 1\n", "now");
        assert_eq!(synced, Remembered { segments: 0, placed: [1].into(), kept: [].into() });
        assert_eq!(parse("squall-cp 1 then no-sync\ns 4\nf 1\n", "now"), Remembered::default());
    }
}
