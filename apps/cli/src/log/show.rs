//! Records on standard output.

use std::io::{self, BufWriter, StdoutLock, Write};

use clap::Args;
use serde_json::json;
use squall::log_service::LogRecord;

use super::time;

/// The form in which records are shown.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct FormArgs {
    /// Put each record's version before it
    #[arg(long)]
    with_version: bool,
    /// Put each record's version and time before it
    #[arg(long)]
    with_time: bool,
    /// Print a JSON object on each line: version, time, time_ns, epoch, node, skipped (if no member applies it), and
    /// record, or bytes (in hexadecimal) if it is no text
    #[arg(long, conflicts_with_all = ["with_version", "with_time"])]
    json: bool,
}

/// Shows records, a line for each.
pub(super) struct Shown {
    form: FormArgs,
    out: BufWriter<StdoutLock<'static>>,
    /// The number of commands that are no records.
    strange: u64,
}

impl Shown {
    pub(super) fn new(form: FormArgs) -> Shown {
        Shown { form, out: BufWriter::with_capacity(64 << 10, io::stdout().lock()), strange: 0 }
    }

    /// Shows records, and flushes them with all records before.
    pub(super) fn records<'r>(&mut self, records: impl IntoIterator<Item = &'r LogRecord>) -> io::Result<()> {
        records.into_iter().try_for_each(|record| self.record(record))?;
        self.out.flush()
    }

    /// Shows a record. It may appear only with the next [records](Shown::records).
    pub(super) fn record(&mut self, record: &LogRecord) -> io::Result<()> {
        let Ok(bytes) = record.record() else {
            // No member has applied it.
            self.strange += 1;
            return Ok(());
        };
        let LogRecord { version, time, epoch, sender, is_skipped, .. } = record;
        if *is_skipped && !self.form.json {
            eprintln!("squall: version {version} is skipped: no member applies it, as an operator has said");
        }
        if self.form.json {
            let mut object = json!({
                "version": version,
                "time": time::show(*time),
                "time_ns": time.0,
                "epoch": epoch.0,
                "node": sender.0,
            });
            if *is_skipped {
                object["skipped"] = true.into();
            }
            match String::from_utf8(bytes) {
                Ok(text) => object["record"] = text.into(),
                Err(error) => object["bytes"] = hexadecimal(error.as_bytes()).into(),
            }
            return writeln!(self.out, "{object}");
        }
        if self.form.with_version || self.form.with_time {
            write!(self.out, "{version}\t")?;
        }
        if self.form.with_time {
            write!(self.out, "{}\t", time::show(*time))?;
        }
        self.out.write_all(&bytes)?;
        self.out.write_all(b"\n")
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if self.strange > 0 {
            eprintln!(
                "squall: {} commands are no records, and were not shown: is this the log of another service?",
                self.strange
            );
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
