//! `squall log export`.

use std::{
    fs::{self, File, Permissions},
    io::{self, BufWriter, Write},
    ops::ControlFlow,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use clap::Args;
use indicatif::HumanBytes;
use squall::{
    Replicated,
    log_service::{LogRecord, RecordLog},
};
use squall_command::{CommandError, stop_on_signals};
use squall_ordered::log::{self, Body, Files, Log, LogItem, Record};
use tempfile::NamedTempFile;

use super::{
    meter::Meter,
    part::LogPart,
    show::{Contents, object},
};

const HELP: &str = "\
Examples:
  squall log export audit/1/logs/log -o audit.jsonl
  squall log export audit/1/logs/log --from 500 --to 900 | jq -r .record
  squall log export old/logs/log | squall log append --config log.toml --json -q      into another log

Each record is a line with a JSON object: version, time, time_ns, epoch, node, skipped (if no member applies it), and
record, or bytes (in hexadecimal) if it is no text. In the log of another service than `squall log serve` it has command
instead: the command as rkyv encoded it, in hexadecimal. `squall log append --json` takes records back, byte for byte;
they get new versions and times.

No member is asked, and nothing of the log is changed. Records are among them that may never have been acknowledged.
A command that a client sent twice is there twice, under two versions, as `squall log read` shows it; members apply it
once. What is damaged or missing from --from to --to is named, and all the rest is exported; the exit code is 1 then.

A file appears under its name once it is whole and on the disk. One that exists is never replaced.";

/// Writes the records of a log in a directory as lines of JSON, to a file or to standard output.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct ExportArgs {
    /// The log's directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Write to this file, which must not exist
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The first version [default: the first that there is]
    #[arg(long, value_name = "VERSION")]
    from: Option<u64>,
    /// The last version [default: the last that there is]
    #[arg(long, value_name = "VERSION")]
    to: Option<u64>,
    /// Show the progress even if standard error is no terminal: a line a second
    #[arg(long)]
    progress: bool,
}

/// The outcome of an export.
#[derive(Debug, Default)]
struct Exported {
    records: u64,
    bytes: u64,
    /// The number of places that can't be read.
    unreadable: u64,
}

impl ExportArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let (from, to) = (self.from.unwrap_or(1), self.to.unwrap_or(u64::MAX));
        if from > to {
            return Err(CommandError::Usage(format!("--from {from} lies behind --to {to}: exchange the two")));
        }
        let stop = stop_on_signals()?;
        let Some(path) = &self.output else {
            let mut out = BufWriter::with_capacity(64 << 10, io::stdout().lock());
            let written = self.write(&mut out, &stop)?;
            return match written.and_then(|exported| out.flush().map(|()| exported)) {
                Ok(exported) => exported.outcome("it", &stop),
                Err(error) => super::shown(Err(error)),
            };
        };
        let failed = |error: io::Error| CommandError::Failed(format!("{} can't be written: {error}", path.display()));
        if path.symlink_metadata().is_ok() {
            return Err(exists(path));
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut made = tempfile::Builder::new();
        // As any file that a program makes: the user's mask decides.
        let made = made.prefix(".squall-export-").permissions(Permissions::from_mode(0o666)).tempfile_in(parent);
        let mut out = BufWriter::with_capacity(1 << 20, made.map_err(failed)?);
        let exported = self.write(&mut out, &stop)?.map_err(failed)?;
        let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
        if !stop.load(Ordering::Relaxed) {
            finish(file, path, parent).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => exists(path),
                _ => failed(error),
            })?;
            let Exported { records, bytes, .. } = exported;
            eprintln!("squall: {records} records are in {}, {}", path.display(), HumanBytes(bytes));
        }
        exported.outcome(&path.display().to_string(), &stop)
    }

    /// Writes all that can be read, and names the rest. The inner error is one of the output.
    fn write(&self, out: &mut dyn Write, stop: &AtomicBool) -> Result<io::Result<Exported>, CommandError> {
        let failed =
            |error: &dyn std::fmt::Display| CommandError::Failed(format!("{}: {error}", self.directory.display()));
        let (files, is_live) = Files::look(&self.directory).map_err(CommandError::failed)?;
        let looked = Log::look(files.clone(), is_live).map_err(|error| failed(&error))?.log;
        let (skips, schema) = (looked.skips().clone(), looked.schema());
        let total = looked.bytes_behind(looked.begin().position).ok();
        let is_of_records = is_of_records(schema.as_str());
        let mut meter = Meter::new(self.output.is_none(), self.progress, total);
        let versions = self.from.unwrap_or(1)..=self.to.unwrap_or(u64::MAX);
        let mut part = LogPart::new(versions, looked.begin().version);
        let (mut exported, mut written, mut passed) = (Exported::default(), Ok(()), 0);
        let read = log::read(files, is_live, |item| {
            if let LogItem::Record(record) = &item {
                passed += log_bytes(record);
            }
            let record = part.take(item).and_then(|record| LogRecord::of_log(&record, &skips));
            if let Some(record) = record {
                written = exported.record(out, &record, is_of_records);
            }
            meter.show(exported.records, passed);
            match written.is_err() || part.is_over() || stop.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        meter.end();
        read.map_err(|error| failed(&error))?;
        part.end();
        exported.unreadable = part.unreadable;
        Ok(written.map(|()| exported))
    }
}

impl Exported {
    fn record(&mut self, out: &mut dyn Write, record: &LogRecord, is_of_records: bool) -> io::Result<()> {
        let contents = match record.record() {
            Ok(bytes) if is_of_records => Contents::Record(bytes),
            _ => Contents::Command(record.command.clone()),
        };
        let mut line = object(record, contents).to_string();
        line.push('\n');
        (self.records, self.bytes) = (self.records + 1, self.bytes + line.len() as u64);
        out.write_all(line.as_bytes())
    }

    fn outcome(&self, what: &str, stop: &AtomicBool) -> Result<(), CommandError> {
        match self.unreadable {
            _ if stop.load(Ordering::Relaxed) => {
                Err(CommandError::Failed(format!("stopped: {what} was not completed")))
            }
            0 => Ok(()),
            places => {
                Err(CommandError::Failed(format!("{places} places of the log can't be read: {what} has all the rest")))
            }
        }
    }
}

/// The bytes that a record takes in the log, about.
fn log_bytes(record: &Record<'_>) -> u64 {
    const HEADER_BYTES: u64 = 64;
    match &record.body {
        Body::Message { payload, .. } => HEADER_BYTES + payload.len() as u64,
        Body::View(_) => HEADER_BYTES,
    }
}

/// Whether a log with this schema is one of records. One without a schema may be any service's.
fn is_of_records(schema: &str) -> bool {
    schema == RecordLog::SCHEMA.of_commands::<<RecordLog as Replicated>::Command>().to_string()
}

/// Gives a whole file its name, durably, if no file has it.
fn finish(file: NamedTempFile, path: &Path, parent: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist_noclobber(path).map_err(|error| error.error)?;
    File::open(parent)?.sync_all()
}

fn exists(path: &Path) -> CommandError {
    let what = if fs::metadata(path).is_ok_and(|found| found.is_dir()) { "is a directory" } else { "exists" };
    CommandError::Usage(format!("{} {what}: give another name", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_log_that_says_so_is_one_of_records() {
        let schema = RecordLog::SCHEMA.of_commands::<<RecordLog as Replicated>::Command>().to_string();
        assert_eq!([is_of_records(&schema), is_of_records(""), is_of_records("undeclared")], [true, false, false]);
    }
}
