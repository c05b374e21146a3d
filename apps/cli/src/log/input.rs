//! The records to append: lines, or whole files.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    thread,
};

use crossbeam::channel::{Receiver, Sender, bounded};

/// The most bytes of a record; the group may have a lower limit.
const MAX_RECORD_BYTES: u64 = 1 << 30;

/// The number of records that are read ahead.
const AHEAD: usize = 64;

/// The source of records.
#[derive(Debug)]
pub(super) enum Input {
    /// Lines of standard input.
    Lines,
    /// Lines of these files, `-` for standard input.
    LinesOf(Vec<PathBuf>),
    /// A list of files, each one record.
    Whole(Vec<PathBuf>),
}

impl Input {
    /// The length of the input in bytes, if that is known before it is read.
    pub(super) fn bytes(&self) -> Option<u64> {
        let (Input::LinesOf(paths) | Input::Whole(paths)) = self else { return None };
        let bytes = |path: &PathBuf| path.metadata().ok().filter(|meta| meta.is_file()).map(|meta| meta.len());
        paths.iter().map(bytes).sum()
    }

    /// Reads records, on a thread of its own, since standard input may be silent for long. An error, which is a
    /// sentence, comes last.
    pub(super) fn read(self) -> io::Result<Receiver<Result<Vec<u8>, String>>> {
        let (records, to_reader) = bounded(AHEAD);
        thread::Builder::new().name("input".into()).spawn(move || {
            if let Err(why) = self.send(&records) {
                // The receiver may be gone.
                let _ = records.send(Err(why));
            }
        })?;
        Ok(to_reader)
    }

    fn send(self, records: &Sender<Result<Vec<u8>, String>>) -> Result<(), String> {
        let stdin = || lines("standard input", &mut io::stdin().lock(), records);
        let open = |path: &Path| File::open(path).map_err(|error| format!("{} can't be read: {error}", path.display()));
        match self {
            Input::Lines => stdin(),
            Input::LinesOf(paths) => paths.iter().try_for_each(|path| match path.as_os_str() == "-" {
                true => stdin(),
                false => lines(&path.display().to_string(), &mut BufReader::new(open(path)?), records),
            }),
            Input::Whole(paths) => paths.iter().try_for_each(|path| {
                let mut record = Vec::new();
                let read = open(path)?.take(MAX_RECORD_BYTES + 1).read_to_end(&mut record);
                read.map_err(|error| format!("{} can't be read: {error}", path.display()))?;
                if record.len() as u64 > MAX_RECORD_BYTES {
                    return Err(format!("{} is longer than {MAX_RECORD_BYTES} bytes", path.display()));
                }
                // An error says that the receiver is gone, so that nothing more is needed.
                let _ = records.send(Ok(record));
                Ok(())
            }),
        }
    }
}

/// Sends lines, without their ends.
fn lines(name: &str, from: &mut dyn BufRead, records: &Sender<Result<Vec<u8>, String>>) -> Result<(), String> {
    for number in 1_u64.. {
        let mut line = Vec::new();
        let read = Read::take(&mut *from, MAX_RECORD_BYTES + 1).read_until(b'\n', &mut line);
        read.map_err(|error| format!("{name} can't be read: {error}"))?;
        if line.is_empty() {
            break;
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if line.len() as u64 > MAX_RECORD_BYTES {
            return Err(format!("line {number} of {name} is longer than {MAX_RECORD_BYTES} bytes"));
        }
        if records.send(Ok(line)).is_err() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lose_their_ends_and_nothing_else() {
        let (records, sent) = bounded(10);
        lines("a test", &mut &b"one\n\n  two\r\n\xff\x00\nlast"[..], &records).unwrap();
        drop(records);
        let sent: Vec<Vec<u8>> = sent.iter().map(|line| line.unwrap()).collect();
        assert_eq!(sent, [&b"one"[..], b"", b"  two\r", b"\xff\x00", b"last"]);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let records = Input::LinesOf(vec!["/nowhere/at/all".into()]).read().unwrap();
        let error = records.recv().unwrap().unwrap_err();
        assert!(error.contains("/nowhere/at/all"), "{error}");
    }
}
